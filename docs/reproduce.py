#!/usr/bin/env python3
"""The runs behind docs/results.md. Runs what has no result yet, one after the other, and keeps what
came out of each as docs/results/NAME.json: the command, the revision, curves, ratios, plans.

  ./run reproduce                 all that is missing, but for full-…
  ./run reproduce headline ptb    what begins with these names
  ./run reproduce full            the recipes of full length, which need a GPU and are run only when named
  ./run reproduce --list          every run; "done": has a result, "gpu": run only when named
  ./run reproduce --again NAME    runs it although it has one
  ./run reproduce --keep DIR NAME the run folders stay, as DIR/NAME

The data sets are looked for in HEDDLE_DATA, else in ../shared/data.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
DATA = pathlib.Path(os.environ.get("HEDDLE_DATA", ROOT.parent / "shared" / "data"))

RESNET = "train_resnet --data DATA/cifar-10-batches-bin --arch resnet20 --learners 4 --batch-size 32 --lr 0.2"
ALONE = RESNET.replace("--learners 4 --batch-size 32", "--batch-size 128")
PTB = "train_lm --data DATA/ptb --preset zaremba-small --learners 4 --batch-size 5"
LGRECO = " --layerwise lgreco"
SCALECOM = " --compress scalecom:rate=100"
MOMENTUM = " --compressed-momentum full"
# Measured before there was another rule than this one; their records have the commands of that time, without the flag.
BEFORE = "ablation-", "pair-", "large-", "root-", "long-", "scaling-", "meter-"
QSGD = " --compress qsgd:bits=4"
FULL = "full-"  # names of runs that begin so take a GPU


def experiments():
    """Name -> what is typed behind ./run; "netlab" in front: across four hosts at 100 Mbit/s."""
    runs = {}
    for seed in 1, 2, 3:
        for name, flags in (("dense", ""), ("scalecom", SCALECOM), ("lgreco-scalecom", SCALECOM + LGRECO),
                            ("scalecom-full", SCALECOM + MOMENTUM), ("lgreco-scalecom-full", SCALECOM + LGRECO + MOMENTUM)):
            runs[f"headline-{name}-{seed}"] = f"{RESNET} --epochs 16 --seed {seed}{flags}"
    runs["meter-scalecom"] = f"{RESNET} --epochs 16 --seed 1{SCALECOM} --shadow 50"  # the headline's, looked at
    for name, flags in (
        ("dense", ""),
        ("topk", " --compress topk:density=0.01"),
        ("scalecom", SCALECOM),
        ("scalecom-beta", " --compress scalecom:rate=100,beta=0.1"),
        # What the difference to dense may come from: the rate, or a start that is dense for too short.
        ("scalecom-rate-25", " --compress scalecom:rate=25"),
        ("scalecom-start", SCALECOM + " --compress-start 780"),
        ("scalecom-exact", " --compress scalecom:rate=100,select=exact"),
        ("qsgd", QSGD),
        ("powersgd", " --compress powersgd:rank=2"),
        ("lgreco-qsgd", QSGD + LGRECO),
        ("lgreco-powersgd", " --compress powersgd:rank=2" + LGRECO),
        ("lgreco-scalecom", SCALECOM + LGRECO),
        ("lgreco-scalecom-accordion", SCALECOM + LGRECO + " --lgreco budget=accordion"),
    ):
        runs[f"ablation-{name}"] = f"{RESNET} --epochs 8{flags}"
    for name, flags in (("dense", ""), ("scalecom", SCALECOM)):  # pairs: what the difference depends on
        runs[f"pair-one-learner-{name}"] = f"{ALONE} --epochs 8{flags}"
        runs[f"pair-no-momentum-{name}"] = f"{RESNET.replace('--lr 0.2', '--lr 1')} --momentum 0 --no-nesterov --epochs 8{flags}"
        runs[f"pair-low-rate-{name}"] = f"{RESNET.replace('--lr 0.2', '--lr 0.1')} --epochs 8{flags}"
        runs[f"pair-32-epochs-{name}"] = f"{RESNET} --epochs 32{flags}"
    # The linear rule: 0.1 for 64 images, so 1.6 for 1024, after a warm-up.
    large = RESNET.replace("--learners 4 --batch-size 32 --lr 0.2", "--learners 16 --batch-size 64 --lr 1.6")
    for seed in 1, 2:
        for name, flags in (("dense", ""), ("beta-1", SCALECOM), ("beta-0.1", " --compress scalecom:rate=100,beta=0.1")):
            command = f"{large} --epochs 8 --seed {seed} --lr-warmup-epochs 2{flags}"
            runs[f"large-{name}-{seed}"] = command
            if seed == 1:  # by the root of the batch, which does not fall back when the warm-up ends
                runs[f"root-{name}-1"] = command.replace("--lr 1.6", "--lr 0.4")
    for name in "dense", "beta-0.1":
        runs[f"long-{name}-1"] = runs[f"root-{name}-1"].replace("--epochs 8", "--epochs 16")
    runs["root-beta-0.1-rate-25-1"] = runs["root-beta-0.1-1"].replace("rate=100", "rate=25")
    for name, flags in (
        ("dense", ""),
        ("scalecom-100", SCALECOM),
        ("scalecom-400", " --compress scalecom:rate=400"),
        ("scalecom-100-aggregate", SCALECOM + " --clip-mode aggregate"),
    ):
        runs[f"ptb-{name}"] = PTB + flags
    for learners in 4, 16, 64:
        for name, flags in (("scalecom", SCALECOM), ("topk", " --compress topk:density=0.01")):
            runs[f"scaling-{name}-{learners}"] = (
                f"{RESNET.replace('--learners 4 --batch-size 32', f'--learners {learners} --batch-size 8')}"
                f" --steps 100 --compress-start 0 --shadow 10{flags}")
    # Of 30 steps the last twelve are measured, all with a plan: the first is used from step 19 on, another
    # from 29 on. Only four of the twelve are in windows, in which gradients are copied: no more than the
    # median leaves out.
    plan = " --layerwise lgreco --lgreco every=10,window=2"
    nets = {
        "resnet18": "train_resnet --data DATA/cifar-10-batches-bin --arch resnet18 --batch-size 32",
        "resnet20": "train_resnet --data DATA/cifar-10-batches-bin --arch resnet20 --batch-size 32",
        "lstm": "train_lm --data DATA/ptb --preset zaremba-medium --batch-size 5 --clip-mode aggregate",
    }
    for net, command in nets.items():
        for name, flags in (("dense", ""), ("qsgd", QSGD), ("lgreco-qsgd", QSGD + plan), ("scalecom", SCALECOM),
                            ("lgreco-scalecom", SCALECOM + plan)):
            flags += " --compress-start 0" if flags else ""
            if not flags:
                command_here = command.replace(" --clip-mode aggregate", "")
            else:
                command_here = command
            for overlap in "on", "off":
                base = f"{command_here} --steps 30 --overlap {overlap}{flags}"
                runs[f"time-model-{net}-{name}-{overlap}"] = base + " --learners 4 --net 100mbit,1ms"
                runs[f"time-hosts-{net}-{name}-{overlap}"] = "netlab " + base
    runs["whole-model-resnet18"] = (nets["resnet18"] + " --learners 4 --steps 20 --compress-start 0" + SCALECOM)
    # 128 images a step, 0.1, a tenth after 82 and 123 of 164 epochs (32,000 and 48,000 of 64,000 steps): He et al.,
    # at the 4 learners and the batch that ScaleCom has for CIFAR-10. Then Zaremba et al. with their 20 columns.
    resnet = ("train_resnet --data DATA/cifar-10-batches-bin --arch resnet20 --device cuda --learners 4 --batch-size 32"
              " --epochs 164 --lr 0.1 --no-nesterov --weight-decay 0.0001 --lr-scheduler multistep --lr-milestones 82 123")
    lm = "train_lm --data DATA/ptb --preset zaremba-medium --device cuda --learners 4 --batch-size 5"
    for name, command in (("resnet20-dense", resnet), ("resnet20-scalecom", resnet + SCALECOM),
                          ("resnet20-lgreco-scalecom", resnet + SCALECOM + LGRECO),
                          ("zaremba-medium-dense", lm), ("zaremba-medium-scalecom", lm + SCALECOM)):
        runs[FULL + name] = command
    return {name: command + (MOMENTUM if name.startswith(BEFORE) and re.search("topk|scalecom|powersgd", command) else "")
            for name, command in runs.items()}


def choose(runs, names):
    """Whose names begin with one of these; without any, all that need no GPU."""
    if names:
        return [run for run in runs if any(name and run.startswith(name) for name in names)]
    return [run for run in runs if not run.startswith(FULL)]


def first_compressed_step(typed, steps_per_epoch, total_steps):
    """Steps that a compressed run exchanges densely before, as apps/session/exchange.cpp has them in the function of this
    name. typed: --compress-start, negative where it was not given."""
    if typed >= 0:
        return typed
    return max(100, min(steps_per_epoch, total_steps // 20))


def median(lines, *keys):
    """Over the last twelve steps, of the sum of these seconds."""
    last = [sum(line[key] for key in keys) for line in lines[-12:] if all(key in line for key in keys)]
    return round(statistics.median(last), 5) if last else None


def by_epoch(looks, epochs):
    """The mean over the looks of each epoch and over layers."""
    out = {}
    for epoch in sorted({epochs[look["step"]] for look in looks}):
        here = [look for look in looks if epochs[look["step"]] == epoch]
        layers = [layer for look in here for layer in look["quality"].values()]
        means = {key: round(statistics.fmean(x[key] for x in layers), 5) for key in layers[0]}
        backlog = sum(x["residual_norm"] for x in layers) / sum(x["gradient_norm"] for x in layers)  # as --shadow's table
        out[epoch] = {**means, "alike": round(statistics.fmean(x["alike"] for x in here), 5),
                      "backlog": round(backlog, 5)}
    return out


def digest(folder, metrics, summary):
    """What is kept of a run folder."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if line.get("split") == "train"]
    curve = [{k: line[k] for k in ("epoch", "step", "loss", "acc1", "ppl") if k in line}
             for line in lines if line.get("split") in ("valid", "test")]
    out = {"curve": curve, "summary": summary}
    config = (folder / "config.toml").read_text()
    if not re.search(r'^compress = "none"', config, re.M):
        typed = int(re.search(r"^compress-start = (-?\d+)", config, re.M)[1])
        per_epoch = max(x["step"] for x in steps if x["epoch"] == 1)
        out["compress_start"] = first_compressed_step(typed, per_epoch, summary["step"])
    out["train_loss"] = [round(statistics.fmean(x["loss"] for x in steps if x["epoch"] == e), 5)
                         for e in sorted({x["epoch"] for x in steps})]
    out["step_s"] = median(steps, "t_data", "t_forward", "t_backward", "t_update")
    for key in "t_exposed", "t_comm", "t_compress":
        out[key] = median(steps, key)
    if "bytes_dense" in steps[-1]:
        out["bytes_dense"] = steps[-1]["bytes_dense"]
        timed = statistics.fmean(x["bytes_sent"] for x in steps[-12:])  # those that step_s is of
        out["ratio_timed"] = round(out["bytes_dense"] / timed, 5)
        # Of gradients, in the mean over the compressed steps. What the metrics count in a step has losses in
        # it, checks, and, where the quality meter looks, two dense exchanges.
        out["bytes_per_step"] = round(out["bytes_dense"] / summary["ratio_wire"])
    looks = [line for line in lines if "quality" in line]
    if looks:
        by_layer = {}  # a look has no layer of a bucket that was refused
        for look in looks:
            for name, figures in look["quality"].items():
                by_layer.setdefault(name, []).append(figures)
        layers = {name: {key: round(statistics.fmean(x[key] for x in seen), 5) for key in seen[0]}
                  for name, seen in by_layer.items()}
        out["quality"] = {"looks": len(looks), "alike": round(statistics.fmean(x["alike"] for x in looks), 5),
                          "layers": layers, "epochs": by_epoch(looks, {x["step"]: x["epoch"] for x in steps})}
    plans = {}
    for file in sorted(folder.glob("plan-*.json"), key=lambda f: int(f.stem.split("-")[1])):
        plan = json.loads(file.read_text())
        settings = json.dumps([[layer["name"], layer["setting"]] for layer in plan["layers"]])
        plans[plan["step"]] = {"hash": hashlib.sha256(settings.encode()).hexdigest()[:16], "bytes": plan["bytes"],
                               "uniform_bytes": plan["uniform_bytes"],
                               "budget_used": round(plan["error"] / plan["budget"], 4) if plan["budget"] else None}
    if plans:
        out["plans"] = plans
    return out


def revision_of(program):
    """As the program has it in its run.json; commits that leave the sources alone do not build it again."""
    said = subprocess.run([ROOT / "run", program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.search(r"\bgit ([0-9a-f]+(?:-dirty)?)", said)[1]


def interrupted(folder, flags, revision):
    """Whether this folder has a checkpoint of a run of these flags and this revision; it may have ended, too."""
    try:
        about = json.loads((folder / "run.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    saved = [x for x in folder.glob("checkpoints/step-*/manifest.json") if re.fullmatch(r"step-\d+", x.parent.name)]
    return (about["build"]["git_revision"] == revision and about["argv"][1:len(flags) + 1] == flags
            and (folder / "metrics.jsonl").exists() and saved != [])


# What these are about are figures of a process: times, and bytes of each rank.
IN_ONE_GO = "time-", "scaling-", "whole-"


def shown(typed):
    """What a user would type."""
    return "./run " + re.sub("^netlab ", "netlab run build/", typed.replace("DATA", "…"))


def run(name, typed, keep, again=False):
    words = typed.replace("DATA", str(DATA)).split()
    hosts = words[0] == "netlab"
    program, flags = (words[1], words[2:]) if hosts else (words[0], words[1:])
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(keep or scratch).resolve() / name
        flags = flags + ["--json", "--quiet", "--output-dir", str(folder)]
        resumed = (folder.exists() and not again and not name.startswith(IN_ONE_GO)
                   and interrupted(folder, flags, revision_of(program)))
        if resumed:  # gives the weights and losses of a run in one go, bit for bit
            flags += ["--resume", "auto"]
        else:
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier try
        if hosts:
            subprocess.run([ROOT / "run", "netlab", "up", "4", "100mbit"], check=True)
            command = [ROOT / "run", "netlab", "run", ROOT / "build" / program, *flags]
        else:
            command = [ROOT / "run", program, *flags]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        finally:
            if hosts:
                subprocess.run([ROOT / "run", "netlab", "down"], check=True)
        if done.returncode != 0:
            print(f"reproduce: {name} ended with exit code {done.returncode}", file=sys.stderr)
            return False
        summary = json.loads(done.stdout.splitlines()[-1])
        summary.pop("run_folder", None)  # a folder that is about to go
        about = json.loads((folder / "run.json").read_text())
        result = {"name": name, "command": shown(typed),
                  "revision": about["build"]["git_revision"],
                  "machine": f"{about['machine']['cpu']}, {about['machine']['cores']} cores"
                             + (f", {about['device']}" if about["device"] != "cpu" else "")}
        if resumed:
            result["resumed"] = True
        result.update(digest(folder, folder / "metrics.jsonl", summary))
    RESULTS.mkdir(exist_ok=True)
    part = RESULTS / f"{name}.json.part"
    part.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    part.replace(RESULTS / f"{name}.json")
    return True


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="./run reproduce", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginning of a run's name")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--keep", metavar="DIR",
                        help="where run folders stay; a run that was broken off there goes on from its last checkpoint")
    o = parser.parse_args(arguments)
    runs = experiments()
    chosen = choose(runs, o.names) if o.names or not o.list else list(runs)
    if not chosen:
        parser.error(f"no run's name begins with {' or '.join(o.names)}")
    done = {name for name in chosen if (RESULTS / f"{name}.json").exists()}
    if o.list:
        for name in chosen:
            mark = "done" if name in done else "gpu" if name.startswith(FULL) else ""
            print(f"{mark:4}  {name:42} {shown(runs[name])}")
        return
    if subprocess.run(["git", "-C", ROOT, "diff", "--quiet", "HEAD", "--", ".", ":!docs/results"], check=False).returncode:
        sys.exit("reproduce: there are changes that are not committed; a result needs a revision")
    failed = []  # a run that diverges is no reason to leave out those behind it
    for name in chosen:
        if name not in done or o.again:
            print(f"reproduce: {name}", file=sys.stderr, flush=True)
            if not run(name, runs[name], o.keep, o.again):
                failed.append(name)
    if failed:
        sys.exit("reproduce: no result of " + ", ".join(failed))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # of --list, for head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
