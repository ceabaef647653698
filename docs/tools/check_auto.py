#!/usr/bin/env python3
"""Measures whether --compress auto is ever slower than the better of dense and compressed: the same steps run
three ways, on networks from fast to slow.

  docs/tools/check_auto.py [--learners 2] [--starts 8] [--turns 7] [--net 100mbit,1ms …]

The three runs alternate: one runs while two are stopped, so that other load on the machine affects all three equally;
a step interrupted by a stop is not counted. Prints a Markdown table: the median step after auto has decided, and auto
over the better of the other two, as means over starts with the standard error. Each start decides anew. Run it on
an idle machine.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from quiet_machine import undisturbed

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = {
    "ResNet-20": ["train_resnet", "--data", "shapes", "--arch", "resnet20", "--image-size", "32", "--batch-size", "8",
                  "--bucket-mb", "0.25"],
    "LSTM": ["train_lm", "--batch-size", "2", "--bptt", "10", "--emsize", "200", "--nhid", "200", "--bucket-mb", "0.5"],
}
WAYS = {"dense": "none", "compressed": "scalecom:rate=100", "auto": "auto:scalecom:rate=100"}
START = 5  # steps before compression
DECIDED = START + 8 * 6 + 6 + 2  # both ways have been tried, and the choice has been measured


class Run:
    """An open-ended training run, paused (SIGSTOP) once its exchange has been decided."""

    def __init__(self, command, way, o, folder):
        start = [] if way == "dense" else ["--compress-start", str(START)]
        self.metrics = os.path.join(folder, "metrics.jsonl")
        self.command = [os.path.join(o.build, command[0]), *command[1:], "--compress", WAYS[way], *start, "--threads", "1",
                        "--learners", str(o.learners), "--steps", "1000000", "--print-freq", "1", "--quiet", "--no-report", "--no-tensorboard",
                        "--output-dir", folder]
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.errors, cwd="/tmp")
        try:
            while len(self.steps()) <= DECIDED:
                time.sleep(0.05)
        except BaseException:
            self.end()
            raise
        self.process.send_signal(signal.SIGSTOP)
        self.before = len(self.steps())

    def steps(self):
        """Returns the seconds of each step written so far."""
        if self.process.poll() is not None:
            self.errors.seek(0)
            sys.exit(f"{' '.join(self.command)}: {self.errors.read()}")
        if not os.path.exists(self.metrics):
            return []
        with open(self.metrics, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [sum(line["t_" + part] for part in ("data", "forward", "backward", "update"))
                for line in lines if line.get("split") == "train"]

    def turn(self, seconds):
        self.process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGSTOP)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.errors.close()


def choice_of(folder):
    choices = sorted((f for f in os.listdir(folder) if f.startswith("exchange-")), key=lambda f: int(f[9:-5]))
    with open(os.path.join(folder, choices[-1]), encoding="utf-8") as file:
        choice = json.load(file)
    buckets = choice["buckets"]
    compressed, joined = (sum(b[key] for b in buckets) for key in ("compressed", "joined"))
    return f"{compressed} of {len(buckets)}, {len(buckets) - joined} messages" + (", dropped" if choice["dropped"] else "")


def start(command, o):
    """Starts all three runs. Returns the median step of each, and auto's choice."""
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as ends:
        runs = []
        for way in WAYS:
            runs.append(Run(command, way, o, os.path.join(work, way)))
            ends.callback(runs[-1].end)
        seconds = max(o.seconds, *(6 * statistics.median(run.steps()) for run in runs))
        for number in range(o.turns):
            for i in range(len(runs)):
                runs[(number + i) % len(runs)].turn(seconds)
        # A step during which a run was stopped includes at least one turn of another run; a turn lasts six steps or more.
        medians = [statistics.median(s for s in run.steps()[run.before:] if s < 0.75 * seconds) for run in runs]
        return medians, choice_of(os.path.join(work, "auto"))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder of the programs")
    arguments.add_argument("--learners", type=int, default=2, help="learners of each run")
    arguments.add_argument("--starts", type=int, default=8, help="how often all three runs are started")
    arguments.add_argument("--turns", type=int, default=7, help="turns of each run in each start")
    arguments.add_argument("--seconds", type=float, default=1, help="length of a turn; six steps if that is longer")
    arguments.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), help="networks to train")
    arguments.add_argument("--steal", type=float, default=0.3, help="largest share of processor time that other virtual machines may steal")
    arguments.add_argument("--net", nargs="+", default=["10gbit,20us", "1gbit,200us", "100mbit,1ms", "20mbit,5ms"],
                           help="modelled networks: bandwidth,latency")
    o = arguments.parse_args()
    if o.starts < 2 or o.turns < 1:
        arguments.error("expected --starts of at least 2 (for a standard error) and --turns of at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the runs too
    print("| model | network | dense ms | compressed ms | auto ms | auto compresses | auto / better |\n|---|---|---|---|---|---|---|")
    worst = 0
    for name in o.model:
        for net in o.net:
            medians, choices = [], []
            for _ in range(o.starts):
                found, choice = undisturbed(lambda: start([*MODELS[name], "--net", net], o), o.steal)
                medians.append(found)
                choices.append(choice)
            dense, compressed, auto = (statistics.mean(way) for way in zip(*medians))
            ratios = [a / (d if dense <= compressed else c) for d, c, a in medians]
            ratio = statistics.mean(ratios)
            error = statistics.stdev(ratios) / len(ratios) ** 0.5
            worst = max(worst, ratio)
            print(f"| {name} | {net} | {1e3 * dense:.1f} | {1e3 * compressed:.1f} | {1e3 * auto:.1f} | "
                  f"{'; '.join(sorted(set(choices)))} | {ratio:.3f} ± {error:.3f} |", flush=True)
    print(f"\nauto's step time relative to the better of the two, at worst: {100 * (worst - 1):+.1f} %")


main()
