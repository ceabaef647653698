#!/usr/bin/env python3
"""Whether --compress auto is ever slower than the better of dense and compressed: the same steps three
ways, in turns, on networks from fast to slow.

  docs/check_auto.py [--learners 4] [--rounds 3] [--net 100mbit,1ms …]

Prints a table in Markdown: the lower quartile of a step behind auto's decision (a median moves with what
other tenants of a virtual machine do), and auto over the better of the other two. Run it where nothing
else runs; a turn that was disturbed too much is taken again.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from quiet_machine import undisturbed

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = {
    "ResNet-20": ["train_resnet", "--data", "shapes", "--arch", "resnet20", "--image-size", "32", "--batch-size", "8",
                  "--bucket-mb", "0.25"],
    "LSTM": ["train_lm", "--batch-size", "2", "--bptt", "10", "--emsize", "200", "--nhid", "200", "--bucket-mb", "0.5"],
}
WAYS = {"dense": "none", "compressed": "scalecom:rate=100", "auto": "auto:scalecom:rate=100"}
START = 5  # steps before compression
SETTLED = START + 3 * 6 + 2  # both ways have been tried, and what was chosen measured


def steps_of(command, compress, o, folder):
    start = [] if compress == "none" else ["--compress-start", str(START)]
    shutil.rmtree(folder, ignore_errors=True)  # of the turn before
    command = [os.path.join(o.build, command[0]), *command[1:], "--compress", compress, *start, "--threads", "1", "--learners",
               str(o.learners), "--steps", str(o.steps), "--quiet", "--no-report", "--no-tensorboard", "--output-dir", folder]
    found = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd="/tmp")
    if found.returncode != 0:
        sys.exit(f"{' '.join(command)}: {found.stderr}")
    times = []
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line.get("split") == "train" and line["step"] > SETTLED:
                times.append(sum(line["t_" + part] for part in ("data", "forward", "backward", "update")))
    return times


def choice_of(folder):
    choices = sorted((f for f in os.listdir(folder) if f.startswith("exchange-")), key=lambda f: int(f[9:-5]))
    with open(os.path.join(folder, choices[-1]), encoding="utf-8") as file:
        choice = json.load(file)
    buckets = choice["buckets"]
    packed, joined = (sum(b[key] for b in buckets) for key in ("compressed", "joined"))
    return f"{packed} of {len(buckets)}, {len(buckets) - joined} messages" + (", dropped" if choice["dropped"] else "")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default=os.path.join(ROOT, "build"))
    arguments.add_argument("--learners", type=int, default=4)
    arguments.add_argument("--steps", type=int, default=SETTLED + 40)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    arguments.add_argument("--steal", type=float, default=0.3, help="share of the time that others may take")
    arguments.add_argument("--net", nargs="+", default=["10gbit,20us", "1gbit,200us", "100mbit,1ms", "20mbit,5ms"])
    o = arguments.parse_args()
    print("| model | network | dense ms | compressed ms | auto ms | auto compresses | auto / better |\n|---|---|---|---|---|---|---|")
    worst = 0
    for name in o.model:
        command = MODELS[name]
        for net in o.net:
            times = {way: [] for way in WAYS}
            choices = set()
            with tempfile.TemporaryDirectory() as work:
                def turn(first):
                    ways = list(WAYS)[first:] + list(WAYS)[:first]  # each is the first of a turn, and the last
                    return {way: steps_of([*command, "--net", net], WAYS[way], o, os.path.join(work, way))
                            for way in ways}

                for number in range(o.rounds):
                    for way, steps in undisturbed(lambda: turn(number % 3), o.steal).items():
                        times[way] += steps
                    choices.add(choice_of(os.path.join(work, "auto")))
            dense, compressed, auto = (statistics.quantiles(times[way], n=4)[0] for way in WAYS)
            ratio = auto / min(dense, compressed)
            worst = max(worst, ratio)
            print(f"| {name} | {net} | {1e3 * dense:.1f} | {1e3 * compressed:.1f} | {1e3 * auto:.1f} | "
                  f"{'; '.join(sorted(choices))} | {ratio:.3f} |", flush=True)
    print(f"\nat worst {100 * (worst - 1):+.1f} % of a step")


main()
