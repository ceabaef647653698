#!/usr/bin/env python3
"""One table of all compressors, for docs/howto/which-compressor.md: what each costs in accuracy, sends, computes and
keeps. Some nine minutes on two cores.

  docs/tools/compare_compressors.py [--build DIR] [--steps N]

points   test accuracy against dense with ResNet-20 on CIFAR-10 at four learners (docs/results.jsonl, the recipe of
         `./run reproduce headline`), mean of the seeds: after 16 epochs, and after 8; in brackets the number of seeds.
         "full": with --compressed-momentum full, where nothing newer has been measured
KB       that a learner sends in a step: gradients of ResNet-20 (269,722 values), 2, 4 and 8 learners, mean over steps
         and learners; of CIFAR-10 if HEDDLE_DATA or ../shared/data has it, else of rendered shapes
ms       of exchanging one gradient of ResNet-18 (11,173,962 values) with nobody: encoding, decoding and residuals,
         one thread (`./run bench compress`); the share of a training step
state    what one learner's exchange keeps from step to step, in values per parameter; momentum is not counted
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile

import reproduce
import results

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The compressor as typed: how the row of `bench compress` that measures it begins.
COMPRESSORS = {
    "bf16": "bf16", "fp16": "fp16", "qsgd:bits=8": "qsgd:bits=8,", "qsgd:bits=4": "qsgd:bits=4,",
    "powersgd:rank=4": "powersgd:rank=4", "powersgd:rank=2": "powersgd:rank=2", "topk:density=0.01": "topk:",
    "randomk:density=0.01": "randomk:", "scalecom:rate=100": "scalecom:rate=100,beta=1,select=chunk",
    "adacomp": "adacomp:bin=auto,factor=2,scale=layer", "adacomp:scale=bin": "adacomp:bin=auto,factor=2,scale=bin",
}


def accuracies(measured):
    """Returns (compress, rule, epochs) -> (group, seed) -> accuracy, of runs with the headline's recipe. Runs of one
    group, the first word of their names, were made together: dense and compressed ones are compared within it."""
    recipe = re.compile(re.escape(reproduce.shown(reproduce.RESNET)) + r" --epochs (\d+)(?: --seed (\d+))?"
                        r"(?: --compress (\S+))?( --compressed-momentum full)?$")
    found = {}
    for result in measured.values():
        match = recipe.match(result["command"])
        if match is None or "valid_acc1" not in result["summary"]:
            continue
        epochs, seed, compress, full = match.groups()
        full = full or "-full-" in result["name"] or result["name"].startswith(reproduce.BEFORE)  # then the only rule
        runs = found.setdefault((compress or "none", bool(full and compress), int(epochs)), {})
        runs[result["name"].split("-")[0], int(seed or 1)] = result["summary"]["valid_acc1"]
    return found


def points(found, compress, epochs):
    """Returns the mean difference from dense over the groups and seeds that both have, as text."""
    dense = found.get(("none", False, epochs), {})
    one_rule = compress.startswith(("bf16", "fp16", "qsgd"))  # no residual
    for full in (False, True):
        runs = found.get((compress, full, epochs), {})
        both = [runs[which] - dense[which] for which in sorted(runs.keys() & dense.keys())]
        if both:
            return f"{statistics.fmean(both):+.2f} ({len(both)}{', full' if full and not one_rule else ''})"
    return "-"


def kept_values(file):
    """Returns how many bytes of the exchange's tensors a rank's file of a checkpoint holds, by four."""
    with open(file, "rb") as opened:
        header = json.loads(opened.read(struct.unpack("<Q", opened.read(8))[0]))
    return sum(x["data_offsets"][1] - x["data_offsets"][0] for name, x in header.items() if name.startswith("exchange.")) / 4


def sent_and_kept(o, compress):
    """Returns KB a step by number of learners, and the state's values per parameter."""
    sent, kept = [], None
    for learners in 2, 4, 8:
        with tempfile.TemporaryDirectory() as folder:
            command = [o.build / "train_resnet", "--data", o.data, "--arch", "resnet20", "--learners", str(learners), "--batch-size", "4",
                       "--steps", str(o.steps), "--threads", "1", "--compress", compress, "--json", "--quiet", "--output-dir", folder]
            if compress != "none":
                command += ["--compress-start", "0"]
            if learners == 2:
                command += ["--save-every", str(o.steps)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            sent.append(json.loads(done.stdout.splitlines()[-1])["bytes_step_mean"] / 1e3)
            if learners == 2:
                kept = kept_values(f"{folder}/checkpoints/step-{o.steps}/rank-0.safetensors") / 269722
    return sent, kept


def exchange_times(o):
    """Returns the rows of `bench compress`: name -> (ms of an exchange with nobody, percent of a step)."""
    done = subprocess.run([o.build / "bench", "compress", "--arch", "resnet18", "--threads", "1", "--steps", "3"],
                          stdout=subprocess.PIPE, text=True, check=True)
    rows = (line.split() for line in done.stdout.splitlines() if not line.startswith("#"))
    return {row[0]: (row[-2], row[-1]) for row in rows if len(row) > 3}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", metavar="DIR")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="steps of each run that counts bytes")
    o = parser.parse_args()
    cifar = reproduce.DATA / "cifar-10-batches-bin"
    o.data = str(cifar) if cifar.exists() else "shapes"
    os.environ.pop("HEDDLE_DATA", None)  # to the programs it is a flag
    found, times = accuracies(results.load(results.FILE)), exchange_times(o)
    print("| `--compress` | 16 epochs, points | 8 epochs, points | KB, P = 2 | 4 | 8 | ms | % of a step | state |")
    print("|---|---|---|---|---|---|---|---|---|")
    for compress, row in {"none": "", **COMPRESSORS}.items():
        sent, kept = sent_and_kept(o, compress)
        time = next((x for name, x in times.items() if row and name.startswith(row)), ("-", "-"))
        both = ["0"] * 2 if compress == "none" else [points(found, compress, epochs) for epochs in (16, 8)]
        print(f"| `{compress}` | {both[0]} | {both[1]} | {' | '.join(f'{x:.1f}' for x in sent)} | {time[0]} | {time[1]} | "
              f"{kept:.2f} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"compare_compressors: {error}")
