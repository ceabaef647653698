#!/usr/bin/env python3
"""The runs reported in docs/results.md. Starts every run that has no result yet, one after the other, and adds each
result to docs/results.jsonl as one line: the command, the revision, curves, ratios, plans.

  ./run reproduce                 every run without a result, except full-…
  ./run reproduce headline ptb    runs whose names begin with one of these
  ./run reproduce full            the full-length recipes, which run only when named and need a GPU, except full-cpu-…
  ./run reproduce --list          lists every run; "done": has a result, "long": runs only when named
  ./run reproduce --again NAME    runs it again although it has a result
  ./run reproduce --keep DIR NAME keeps the run folder as DIR/NAME
  ./run reproduce --add FILE…     adds results from JSON files (one result each, as earlier revisions wrote them)

Data sets are expected in HEDDLE_DATA, or in ../shared/data; the graph of Debian's packages in runs/debian, where it is made
of this machine's package index if it is missing.
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

import results

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = results.FILE
DATA = pathlib.Path(os.environ.get("HEDDLE_DATA", ROOT.parent / "shared" / "data"))

RESNET = "train_resnet --data DATA/cifar-10-batches-bin --arch resnet20 --learners 4 --batch-size 32 --lr 0.2"
ALONE = RESNET.replace("--learners 4 --batch-size 32", "--batch-size 128")
VOTES = ("train_resnet --arch cnn --learners 2 --batch-size 1 --dp-unit group --dp-rate 0.02 --epochs 10 --weight-decay 0"
         " --momentum 0 --no-nesterov")
PTB = "train_lm --data DATA/ptb --preset zaremba-small --learners 4 --batch-size 5"
LGRECO = " --layerwise lgreco"
COMPENSATED = " --lgreco errors=compensated"  # the only rule before it had a name: recorded commands lack the flag
EARLY = " --compress-start 100"  # the least that the default allows
CODED = " --start-compress qsgd:bits=4"
HALF = " --precision bf16"  # of activations and products; twice as fast on a processor with AMX
SCALECOM = " --compress scalecom:rate=100"
MOMENTUM = " --compressed-momentum full"
# Measured before --compressed-momentum existed, when "full" was the only rule: their recorded commands lack the flag.
BEFORE = "ablation-", "pair-", "large-", "root-", "long-", "scaling-", "meter-"
ADACOMP = " --compress adacomp"
BF16 = ",values=bf16"
QSGD = " --compress qsgd:bits=4"
PEERS, QSGD4, BY_CLASS = " --peers ring", " --innovation qsgd:bits=4", " --shard by-class"
LOCAL = " --local-steps 8"
NO_MOMENTUM = " --momentum 0 --no-nesterov"
FULL = "full-"  # runs with this prefix take hours and run only when named; all except full-cpu-… need a GPU


def graph_runs():
    """Sampling on graphs, 4 learners: what a preference for a learner's own neighbours saves and costs."""
    runs = {}
    debian = "train_gcn --data GRAPH --epochs 4 --learners 4"
    for seed in 1, 2, 3:
        for graph, base in ("debian", debian), ("sbm", "train_gcn --learners 4"):
            alone = base.replace("--learners 4", f"--batch-size {1024 if graph == 'debian' else 256}")  # as many as four's
            runs[f"gcn-{graph}-one-1-uniform-{seed}"] = f"{alone} --seed {seed}"
            for part in "ldg", "random":
                name, command = f"gcn-{graph}-{part}", f"{base} --partition {part} --seed {seed} --skew"
                runs[f"{name}-1-uniform-{seed}"] = command + " 1"
                runs[f"{name}-local-plain-{seed}"] = command + " local --skew-weights plain"
                for weights in "unbiased", "normalised", "plain":
                    for skew, value in (("budget", "budget=1.5"), ("2", 2), ("4", 4), ("8", 8), ("16", 16)):
                        runs[f"{name}-{skew}-{weights}-{seed}"] = f"{command} {value} --skew-weights {weights}"
        for name, flags in ("dense", ""), ("scalecom", SCALECOM):  # with compressed gradients
            for skew, value in ("uniform", "1"), ("budget", "budget=1.5"):
                runs[f"gcn-composed-{name}-{skew}-{seed}"] = f"{debian} --seed {seed} --skew {value}{flags}"
    for name, flags in ("dense", ""), ("scalecom", SCALECOM + " --compress-start 0"):
        for skew, value in ("1", "1"), ("budget", "budget=1.5"), ("16", "16"):
            runs[f"gcn-time-{name}-{skew}"] = (
                f"{debian.replace('--epochs 4', '--epochs 2')} --net 100mbit,1ms --skew {value}{flags}")
    return runs


def experiments():
    """Returns name -> the words after ./run; "netlab" in front means across four hosts at 100 Mbit/s."""
    runs = {}
    for seed in 1, 2, 3:
        for name, flags in (("dense", ""), ("scalecom", SCALECOM), ("lgreco-scalecom", SCALECOM + LGRECO),
                            ("scalecom-full", SCALECOM + MOMENTUM), ("lgreco-scalecom-full", SCALECOM + LGRECO + COMPENSATED + MOMENTUM),
                            ("lgreco-scalecom-compensated", SCALECOM + LGRECO + COMPENSATED),
                            ("scalecom-25", SCALECOM.replace("100", "25")), ("scalecom-400", SCALECOM.replace("100", "400")),
                            ("scalecom-early", SCALECOM + EARLY), ("scalecom-coded", SCALECOM + CODED),
                            ("topk", " --compress topk:density=0.01"), ("powersgd", " --compress powersgd:rank=2"),
                            ("scalecom-bf16", SCALECOM + BF16), ("powersgd-bf16", " --compress powersgd:rank=2" + BF16),
                            ("adacomp", ADACOMP), ("adacomp-bin", ADACOMP + ":scale=bin")):
            runs[f"headline-{name}-{seed}"] = f"{RESNET} --epochs 16 --seed {seed}{flags}"
            # Three more for the three main rows: the difference that counts is as small as the spread of the first three.
            if name in ("dense", "scalecom", "lgreco-scalecom"):
                runs[f"headline-{name}-{seed + 3}"] = f"{RESNET} --epochs 16 --seed {seed + 3}{flags}"
            elif name == "lgreco-scalecom-compensated" and seed == 1:
                runs[f"headline-{name}-4"] = f"{RESNET} --epochs 16 --seed 4{flags}"
        # For fairness: what dense loses without momentum at the rate that moves as far, 0.2 / (1 - 0.9).
        runs[f"headline-dense-no-momentum-{seed}"] = (
            f"{RESNET.replace('--lr 0.2', '--lr 2')}{NO_MOMENTUM} --epochs 16 --seed {seed}")
    for seed in 1, 2:  # one change at a time to the default rule
        for name, flags in (("dense", ""), ("scalecom", SCALECOM), ("ramp", SCALECOM + ",ramp=780"),
                            ("adacomp", ADACOMP), ("adacomp-bin", ADACOMP + ":scale=bin"),
                            ("beta-0.3", SCALECOM + ",beta=0.3"), ("start", SCALECOM + " --compress-start 390")):
            runs[f"rule-{name}-{seed}"] = f"{RESNET} --epochs 8 --seed {seed}{flags}"
        # LGC, and ScaleCom selecting as many values; LGC sends codes of these.
        for name, flags in (("scalecom", " --compress scalecom:rate=1000,select=exact"), ("value", " --compress lgc"),
                            ("index", " --compress lgc:order=index"), ("paper", " --compress lgc:codec=paper")):
            runs[f"lgc-{name}-{seed}"] = f"{RESNET} --epochs 16 --seed {seed}{flags}"
        # Learners that talk to neighbours only; rule-dense is the sum over all with images at random.
        for name, flags in (("qsgd", PEERS + QSGD4), ("dyna", PEERS + " --innovation dyna"), ("none", PEERS),
                            ("gossip", PEERS + " --peer-rule gossip")):
            runs[f"peers-{name}-{seed}"] = f"{RESNET} --epochs 8 --seed {seed}{flags}"
            runs[f"classes-{name}-{seed}"] = f"{RESNET} --epochs 8 --seed {seed}{flags}{BY_CLASS}"
        runs[f"classes-dense-{seed}"] = f"{RESNET} --epochs 8 --seed {seed}{BY_CLASS}"
        eight = RESNET.replace("--learners 4 --batch-size 32", "--learners 8 --batch-size 16")
        for name, flags in ("dense", ""), ("qsgd", PEERS + QSGD4):
            runs[f"eight-{name}-{seed}"] = f"{eight} --epochs 8 --seed {seed}{flags}"
        # As many epochs as fit into the time of four dense ones over 100 Mbit/s with 20 ms (docs/benchmarks.md, local steps).
        for name, epochs, flags in (("dense", 4, ""), ("scalecom", 6, SCALECOM), ("qsgd", 7, QSGD), ("peers-qsgd", 11, PEERS + QSGD4),
                                    ("8", 13, LOCAL), ("8-topk", 13, LOCAL + " --compress topk:density=0.05"), ("8-qsgd", 17, LOCAL + QSGD),
                                    ("8-qsgd-delay", 20, LOCAL + " --outer-delay 7" + QSGD),
                                    ("8-qsgd-delay-2", 20, LOCAL + " --outer-delay 2" + QSGD), ("4-qsgd", 14, " --local-steps 4" + QSGD),
                                    ("3-qsgd-delay", 19, " --local-steps 3 --outer-delay 2" + QSGD)):
            runs[f"local-{name}-{seed}"] = f"{RESNET} --epochs {epochs} --seed {seed}{flags}"
        # Differential privacy: votes and DP-SGD at the same epsilon; docs/results.md says where the learning rates are from.
        for name, lr, flags in (("sgd", 2, "density=1,vote=clip"), ("clip", 2, "density=0.1,vote=clip"), ("all", 0.03, "density=1"),
                                ("votes", 0.1, "density=0.1"), ("few", 0.3, "density=0.01"),
                                ("stochastic", 0.3, "density=0.01,vote=stochastic")):
            runs[f"dp-{name}-{seed}"] = f"{VOTES} --lr {lr} --seed {seed} --compress topagg:epsilon=3.15,output=votes,{flags}"
        runs[f"dp-none-{seed}"] = f"{VOTES} --lr 2 --seed {seed} --compress topagg:density=1,vote=clip,output=votes --dp-anyway"
        gan = f"train_dpgan --learners 2 --seed {seed}"
        votes = " --compress topagg:density=0.2,output=votes"
        for name, flags in (("10", ""), ("10-all", " --compress topagg:density=1,epsilon=10,output=votes"),
                            ("1", f"{votes},epsilon=1 --steps 86"), ("none", votes + " --dp-anyway"),
                            ("1-4000", f"{votes},epsilon=1 --steps 86 --teachers 4000 --images-each 4")):
            runs[f"dpgan-{name}-{seed}"] = gan + flags
    runs.update(graph_runs())
    runs["softmax-by-class"] = "bench softmax --data DATA"
    runs["meter-scalecom"] = f"{RESNET} --epochs 16 --seed 1{SCALECOM} --shadow 50"  # the headline's first seed with the quality meter
    for name, flags in (
        ("dense", ""),
        ("topk", " --compress topk:density=0.01"),
        ("scalecom", SCALECOM),
        ("scalecom-beta", " --compress scalecom:rate=100,beta=0.1"),
        # Possible causes of the gap to dense: the rate, or too short a dense start.
        ("scalecom-rate-25", " --compress scalecom:rate=25"),
        ("scalecom-start", SCALECOM + " --compress-start 780"),
        ("scalecom-exact", " --compress scalecom:rate=100,select=exact"),
        ("qsgd", QSGD),
        ("powersgd", " --compress powersgd:rank=2"),
        ("lgreco-qsgd", QSGD + LGRECO),
        ("lgreco-powersgd", " --compress powersgd:rank=2" + LGRECO + COMPENSATED),
        ("lgreco-scalecom", SCALECOM + LGRECO + COMPENSATED),
        ("lgreco-scalecom-accordion", SCALECOM + LGRECO + COMPENSATED + ",budget=accordion"),
    ):
        runs[f"ablation-{name}"] = f"{RESNET} --epochs 8{flags}"
    for name, flags in (("dense", ""), ("scalecom", SCALECOM)):  # what the gap to dense depends on
        runs[f"pair-one-learner-{name}"] = f"{ALONE} --epochs 8{flags}"
        runs[f"pair-no-momentum-{name}"] = f"{RESNET.replace('--lr 0.2', '--lr 1')} --momentum 0 --no-nesterov --epochs 8{flags}"
        runs[f"pair-low-rate-{name}"] = f"{RESNET.replace('--lr 0.2', '--lr 0.1')} --epochs 8{flags}"
        runs[f"pair-32-epochs-{name}"] = f"{RESNET} --epochs 32{flags}"
    # Linear scaling: 0.1 for 64 images, hence 1.6 for 1024, after a warm-up.
    large = RESNET.replace("--learners 4 --batch-size 32 --lr 0.2", "--learners 16 --batch-size 64 --lr 1.6")
    for seed in 1, 2:
        for name, flags in (("dense", ""), ("beta-1", SCALECOM), ("beta-0.1", " --compress scalecom:rate=100,beta=0.1")):
            command = f"{large} --epochs 8 --seed {seed} --lr-warmup-epochs 2{flags}"
            runs[f"large-{name}-{seed}"] = command
            if seed == 1:  # square-root scaling, which does not collapse after the warm-up
                runs[f"root-{name}-1"] = command.replace("--lr 1.6", "--lr 0.4")
    for name in "dense", "beta-0.1":
        runs[f"long-{name}-1"] = runs[f"root-{name}-1"].replace("--epochs 8", "--epochs 16")
    runs["root-beta-0.1-rate-25-1"] = runs["root-beta-0.1-1"].replace("rate=100", "rate=25")
    # 3,168 steps of 1,024 images, of which 3,068 are compressed; then ScaleCom's way: the batch grows with the learners.
    # batch-, grown-, wide-, many- and usual- compute in bf16, dense and compressed (which needs a processor with AVX-512).
    half = RESNET + HALF
    many = f"{half.replace('--learners 4 --batch-size 32 --lr 0.2', '--learners 16 --batch-size 64 --lr 0.4')} --lr-warmup-epochs 2"
    for name, flags in (("dense", ""), ("scalecom", SCALECOM), ("ramp", SCALECOM + ",ramp=300"),
                        ("beta-0.1", SCALECOM + ",beta=0.1"), ("beta-0.1-full", SCALECOM + ",beta=0.1" + MOMENTUM)):
        runs[f"batch-{name}-1"] = f"{many} --epochs 66{flags}"
    # What a run of few large batches loses less with: a ramp over half of its compressed steps, a dense start of half
    # of all, other rates and methods.
    grown = f"{half.replace('--learners 4', '--learners 32')} --epochs 16 --lr-warmup-epochs 2"
    for name, flags in (("ramp", SCALECOM + ",ramp=334"), ("start", SCALECOM + " --compress-start 384"),
                        ("25", SCALECOM.replace("100", "25")), ("powersgd", " --compress powersgd:rank=4"), ("qsgd", QSGD)):
        runs[f"grown-{name}-1"] = grown + flags
    wide = f"{half.replace('--learners 4 --batch-size 32', '--learners 64 --batch-size 8')} --epochs 4"
    runs["wide-ramp-1"] = f"{wide}{SCALECOM},ramp=144"
    for name, flags in (("dense", ""), ("scalecom", SCALECOM), ("ramp", SCALECOM + ",ramp=334")):
        runs[f"grown-{name}-twice-1"] = grown.replace("--lr 0.2", "--lr 0.4") + flags
    for name, flags in (("dense", ""), ("scalecom", SCALECOM)):
        runs[f"grown-{name}-1"] = grown + flags
        runs[f"wide-{name}-1"] = wide + flags
        runs[f"many-{name}-1"] = wide.replace("--epochs 4", "--epochs 16") + flags
        runs[f"usual-{name}-1"] = f"{half.replace('resnet20', 'resnet18').replace('--lr 0.2', '--lr 0.1')} --epochs 8{flags}"
        # Accuracy against time as measured; four hosts instead of --learners 4.
        race = RESNET.replace(" --learners 4", "")
        runs[f"race-resnet20-{name}"] = f"netlab {race} --epochs 16{flags}"
        race = "netlab " + race.replace("resnet20", "resnet18").replace("--lr 0.2", "--lr 0.1")
        runs[f"race-resnet18-{name}"] = f"{race} --epochs 2{flags}"
    runs["race-resnet18-coded-4-epochs"] = f"{race} --epochs 4{SCALECOM}{CODED}"  # two are too few for late gradients
    for name, flags in (
        ("dense", ""),
        ("scalecom-100", SCALECOM),
        ("scalecom-400", " --compress scalecom:rate=400"),
        ("scalecom-100-early", SCALECOM + EARLY),
        ("scalecom-400-early", " --compress scalecom:rate=400" + EARLY),
        ("scalecom-100-coded", SCALECOM + CODED),
        ("scalecom-400-coded", " --compress scalecom:rate=400" + CODED),
        ("adacomp", ADACOMP),
        ("scalecom-100-aggregate", SCALECOM + " --clip-mode aggregate"),
    ):
        runs[f"ptb-{name}"] = PTB + flags
        for seed in (2, 3) if not name.endswith(("aggregate", "early", "coded")) else ():
            runs[f"ptb-{name}-{seed}"] = f"{PTB} --seed {seed}{flags}"
    # One pass takes dense an hour and a half; ScaleCom may take two, at the same learning rate.
    for name, flags in ("dense", " --epochs 1"), ("scalecom", " --epochs 2" + SCALECOM):
        runs[f"race-lstm-{name}"] = "netlab " + PTB.replace(" --learners 4", "") + flags
    for learners in 4, 16, 64:
        for name, flags in (("scalecom", SCALECOM), ("topk", " --compress topk:density=0.01"), ("adacomp", ADACOMP)):
            runs[f"scaling-{name}-{learners}"] = (
                f"{RESNET.replace('--learners 4 --batch-size 32', f'--learners {learners} --batch-size 8')}"
                f" --steps 100 --compress-start 0 --shadow 10{flags}")
    # The last twelve of 30 steps are measured, all under a plan: the first applies from step 19, the second from
    # step 29. Only four of the twelve lie in a planning window, where gradients are copied; the median ignores them.
    plan = " --layerwise lgreco --lgreco every=10,window=2"
    nets = {
        "resnet18": "train_resnet --data DATA/cifar-10-batches-bin --arch resnet18 --batch-size 32",
        "resnet20": "train_resnet --data DATA/cifar-10-batches-bin --arch resnet20 --batch-size 32",
        "lstm": "train_lm --data DATA/ptb --preset zaremba-medium --batch-size 5 --clip-mode aggregate",
    }
    for net, command in nets.items():
        for name, flags in (("dense", ""), ("qsgd", QSGD), ("lgreco-qsgd", QSGD + plan), ("scalecom", SCALECOM),
                            ("lgreco-scalecom", SCALECOM + plan + ",errors=compensated")):
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
    # He et al.: 128 images a step, rate 0.1, divided by ten after 82 and 123 of 164 epochs (32,000 and 48,000 of 64,000
    # steps), with the 4 learners and the batch of ScaleCom's CIFAR-10 experiment. Then Zaremba et al.: batch size 20.
    resnet = ("train_resnet --data DATA/cifar-10-batches-bin --arch resnet20 --device cuda --learners 4 --batch-size 32"
              " --epochs 164 --lr 0.1 --no-nesterov --weight-decay 0.0001 --lr-scheduler multistep --lr-milestones 82 123")
    lm = "train_lm --data DATA/ptb --preset zaremba-medium --device cuda --learners 4 --batch-size 5"
    for name, command in (("resnet20-dense", resnet), ("resnet20-scalecom", resnet + SCALECOM),
                          ("resnet20-lgreco-scalecom", resnet + SCALECOM + LGRECO + COMPENSATED),
                          ("zaremba-medium-dense", lm), ("zaremba-medium-scalecom", lm + SCALECOM)):
        runs[FULL + name] = command
        if "resnet20" in name:  # one learner with the same batch, minutes on a GPU in bf16
            runs[f"{FULL}one-{name}"] = command.replace("--learners 4 --batch-size 32", "--batch-size 128") + HALF
        # The same without a GPU, in bf16: by estimate an hour each, and as long for ten of the language model's epochs.
        on_cpu = command.replace(" --device cuda", "") + HALF
        runs[f"{FULL}cpu-{name}"] = on_cpu + " --epochs 10" if "medium" in name else on_cpu
    return {name: command + (MOMENTUM if name.startswith(BEFORE) and re.search("topk|scalecom|powersgd", command) else "")
            for name, command in runs.items()}


def choose(runs, names):
    """Returns the runs that these names select, or without names all except full-…. A run's whole name selects
    that run alone (headline-scalecom-2 is not also headline-scalecom-25-1), any other the runs that begin with it."""
    if names:
        return [run for run in runs
                if run in names or any(name and name not in runs and run.startswith(name) for name in names)]
    return [run for run in runs if not run.startswith(FULL)]


def first_compressed_step(typed, steps_per_epoch, total_steps):
    """Returns the length of the dense start, as the function of this name in apps/session computes it for a new run.
    typed: --compress-start, negative if it was not given."""
    if typed >= 0:
        return typed
    return max(100, min(steps_per_epoch, total_steps // 20))


def median(lines, *keys):
    """Returns the median over the last twelve steps of the sum of these times, in seconds."""
    last = [sum(line[key] for key in keys) for line in lines[-12:] if all(key in line for key in keys)]
    return round(statistics.median(last), 5) if last else None


def by_epoch(samples, epochs):
    """Returns epoch -> the quality meter's means over the samples of that epoch and over layers."""
    out = {}
    for epoch in sorted({epochs[sample["step"]] for sample in samples}):
        here = [sample for sample in samples if epochs[sample["step"]] == epoch]
        layers = [layer for sample in here for layer in sample["quality"].values()]
        means = {key: round(statistics.fmean(x[key] for x in layers), 5) for key in layers[0]}
        backlog = sum(x["residual_norm"] for x in layers) / sum(x["gradient_norm"] for x in layers)  # as --shadow's table
        out[epoch] = {**means, "correlation": round(statistics.fmean(x["correlation"] for x in here), 5),
                      "backlog": round(backlog, 5)}
    return out


def digest(folder, metrics, summary):
    """Returns the part of a run folder that is kept as its result."""
    lines = [results.in_current_names(json.loads(line)) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if line.get("split") == "train"]
    curve, trained = [], 0.0
    for line in lines:
        if line.get("split") == "train":
            trained += sum(line.get(key, 0) for key in ("t_data", "t_forward", "t_backward", "t_update"))
        elif line.get("split") in ("valid", "test"):
            curve.append({k: line[k] for k in ("epoch", "step", "loss", "acc1", "ppl", "consensus_error") if k in line}
                         | {"train_s": round(trained, 2)})
    # Sampling on graphs is compared in many short runs, of which the end matters.
    out = {"curve": curve[-1:] if "feature_rows" in summary and len(curve) > 3 else curve, "summary": summary}
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
        timed = statistics.fmean(x.get("bytes_between", x["bytes_sent"]) for x in steps[-12:])  # the steps that step_s covers
        out["ratio_timed"] = round(out["bytes_dense"] / timed, 5)
        # Gradients only, averaged over the compressed steps. The metrics' count also includes losses, checks, and
        # two dense exchanges in every step that the quality meter samples.
        out["bytes_per_step"] = round(out["bytes_dense"] / summary["ratio_wire"])
    if errors := [(x["step"], x["decoder_error"]) for x in steps if "decoder_error" in x]:  # LGC's, while it trains
        out["decoder_error"] = [[step - errors[0][0] + 1, round(error, 4)]
                                for i, (step, error) in enumerate(errors) if i % 50 == 49 or i in (0, 9, 24)]
    samples = [line for line in lines if "quality" in line]
    if samples:
        by_layer = {}  # a sample lacks the layers of a skipped bucket
        for sample in samples:
            for name, figures in sample["quality"].items():
                by_layer.setdefault(name, []).append(figures)
        layers = {name: {key: round(statistics.fmean(x[key] for x in seen), 5) for key in seen[0]}
                  for name, seen in by_layer.items()}
        out["quality"] = {"samples": len(samples),
                          "correlation": round(statistics.fmean(x["correlation"] for x in samples), 5),
                          "layers": layers, "epochs": by_epoch(samples, {x["step"]: x["epoch"] for x in steps})}
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
    """Returns the revision that the program writes into run.json. It can be older than HEAD: commits that change no
    source do not rebuild it."""
    said = subprocess.run([ROOT / "run", program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.search(r"\bgit ([0-9a-f]+(?:-dirty)?)", said)[1]


def interrupted(folder, flags, revision):
    """Returns whether this folder has a checkpoint of a run (finished or not) with these flags and this revision."""
    try:
        about = json.loads((folder / "run.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    saved = [x for x in folder.glob("checkpoints/step-*/manifest.json") if re.fullmatch(r"step-\d+", x.parent.name)]
    return (about["build"]["git_revision"] == revision and about["argv"][1:len(flags) + 1] == flags
            and (folder / "metrics.jsonl").exists() and saved != [])


# These runs measure one process (times, and each rank's bytes), so a resumed run would not do.
IN_ONE_GO = "time-", "gcn-", "race-", "scaling-", "whole-"


def shown(typed):
    """Returns the command that a user would type."""
    return "./run " + re.sub("^netlab ", "netlab run build/", typed.replace("DATA", "…").replace("GRAPH", "…/debian"))


def debian_graph():
    """Returns the folder of the graph of Debian's packages, which it makes of this machine's index if it is not there."""
    folder = ROOT / "runs" / "debian"
    if not folder.exists():
        subprocess.run([ROOT / "run", "debian_graph", folder], check=True)
    return folder


def run_bench(name, typed, words):
    """Runs one part of bench and adds its curves, one point in twenty steps. Returns whether it succeeded."""
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "bench.json"
        done = subprocess.run([ROOT / "run", *words, "--json", file], stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            print(f"reproduce: {name} ended with exit code {done.returncode}", file=sys.stderr)
            return False
        found = json.loads(file.read_text())
    methods = [{"name": x["name"], "bytes": x["bytes"], "steps": len(x["distance"]),
                "distance": [[i + 1, float(f"{d:.4g}")] for i, d in enumerate(x["distance"])
                             if i % 20 == 19 or i + 1 in (1, len(x["distance"]))]} for x in found["methods"]]
    results.add(RESULTS, {"name": name, "command": shown(typed), "revision": revision_of("bench"),
                          "machine": f"{found['machine']}, {os.cpu_count()} cores", "methods": methods})
    return True


def run(name, typed, keep, again=False):
    """Runs one experiment and adds its result. Returns whether it succeeded."""
    graph = str(debian_graph()) if "GRAPH" in typed else ""
    words = [graph if word == "GRAPH" else word.replace("DATA", str(DATA)) for word in typed.split()]
    if words[0] == "bench":
        return run_bench(name, typed, words)
    hosts = words[0] == "netlab"
    program, flags = (words[1], words[2:]) if hosts else (words[0], words[1:])
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(keep or scratch).resolve() / name
        flags = flags + ["--json", "--quiet", "--output-dir", str(folder)]
        resumed = (folder.exists() and not again and not name.startswith(IN_ONE_GO)
                   and interrupted(folder, flags, revision_of(program)))
        if resumed:  # a resumed run is bit-identical to an uninterrupted one
            flags += ["--resume", "auto"]
        else:
            shutil.rmtree(folder, ignore_errors=True)  # left by an earlier attempt
        if hosts:
            if subprocess.run([ROOT / "run", "netlab", "up", "4", "100mbit"], check=False).returncode != 0:
                print(f"reproduce: {name} needs network namespaces (./run netlab up)", file=sys.stderr)
                return False
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
        summary.pop("run_folder", None)  # a temporary folder
        about = json.loads((folder / "run.json").read_text())
        result = {"name": name, "command": shown(typed),
                  "revision": about["build"]["git_revision"],
                  "machine": f"{about['machine']['cpu']}, {about['machine']['cores']} cores"
                             + (f", {about['device']}" if about["device"] != "cpu" else "")}
        if resumed:
            result["resumed"] = True
        result.update(digest(folder, folder / "metrics.jsonl", summary))
    results.add(RESULTS, result)
    return True


def add_files(files, parser):
    """Adds results that another clone left as JSON files."""
    found = []
    for file in files:
        try:
            result = json.loads(pathlib.Path(file).read_text())
            found.append({"name": result["name"], "command": result["command"], **result})
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"--add {file}: not a result of ./run reproduce ({error!r})")
    results.add(RESULTS, *found)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="./run reproduce", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="prefix of a run's name")
    parser.add_argument("--list", action="store_true", help="list the runs and exit")
    parser.add_argument("--again", action="store_true", help="start runs that have a result already, too")
    parser.add_argument("--keep", metavar="DIR",
                        help="keep run folders here; an interrupted run resumes from its last checkpoint")
    parser.add_argument("--add", metavar="FILE", nargs="+", help="add results from JSON files and exit")
    o = parser.parse_args(arguments)
    if o.add:
        return add_files(o.add, parser)
    runs = experiments()
    chosen = choose(runs, o.names) if o.names or not o.list else list(runs)
    if not chosen:
        parser.error(f"no run's name begins with {' or '.join(o.names)}")
    done = results.load(RESULTS).keys()
    if o.list:
        for name in chosen:
            mark = "done" if name in done else "long" if name.startswith(FULL) else ""
            print(f"{mark:4}  {name:42} {shown(runs[name])}")
        return None
    if subprocess.run(["git", "-C", ROOT, "diff", "--quiet", "HEAD", "--", ".", ":!docs/results.jsonl"], check=False).returncode:
        sys.exit("reproduce: uncommitted changes; a result must name a revision")
    failed = []  # one diverged run does not stop the rest
    for name in chosen:
        if name not in done or o.again:
            print(f"reproduce: {name}", file=sys.stderr, flush=True)
            if not run(name, runs[name], o.keep, o.again):
                failed.append(name)
    if failed:
        sys.exit("reproduce: failed: " + ", ".join(failed))
    return None


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # --list into head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
