#!/usr/bin/env python3
"""How far --headroom's model of a step is from steps that were measured: on slow links from what was measured
on fast ones (between hosts: on the same links), and with twice the learners. These share a machine: for
learners that compute as fast as the others, half as many are measured on half of its processors.

  docs/check_headroom.py                     learners of one process, --net
  docs/check_headroom.py --netlab 100mbit    processes on hosts of ./run netlab (root), real TCP

Prints a table in Markdown: error = modelled / measured - 1. Run it where nothing else runs; what other
tenants of a virtual machine disturb is measured again.
"""
import argparse
import json
import os
import subprocess
import sys

from quiet_machine import undisturbed

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAST, SLOW, HERE = "1gbit,200us", "100mbit,1ms", "these links"
# Computes for some time, and hides exchanges behind it.
RESNET = ["train_resnet", "--data", "shapes", "--arch", "resnet20", "--image-size", "32", "--batch-size", "8"]
# Nearly all of its step is exchange.
LM = ["train_lm", "--batch-size", "1", "--bptt", "2", "--emsize", "400", "--nhid", "400", "--nlayers", "1"]


def measure(program, learners, net, o, share=1.0):
    command = [os.path.join(o.build, program[0]), *program[1:], "--threads", "1", "--headroom", str(o.seconds), "--json",
               "--quiet"]
    if o.netlab:
        command = [os.path.join(ROOT, "run"), "netlab", "run", *command]
    else:
        command += ["--learners", str(learners), "--net", net]
    processors = sorted(os.sched_getaffinity(0))
    processors = processors[:max(1, int(len(processors) * share))]

    def once():
        found = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd="/tmp",
                               preexec_fn=lambda: os.sched_setaffinity(0, processors))
        lines = found.stdout.splitlines()
        if found.returncode != 0 or not lines:
            sys.exit(f"{' '.join(command)}: {found.stderr}")
        return json.loads(lines[-1])

    return undisturbed(once, o.steal)


def modelled(source, net, learners):
    return {m["exchange"]: m["step_s"] for m in source["model"] if (m["net"], m["learners"]) == (net, learners)}


errors = []


def compare(what, learners, predictions, target):
    for m in target["measured"]:
        if m["exchange"] not in predictions:
            continue
        model, real = predictions[m["exchange"]], m["step_s"]
        error = model / real - 1
        errors.append(error)
        print(f"| {what} | {learners} | {m['exchange']} | {1e3 * real:.1f} | {1e3 * model:.1f} | {100 * error:+.1f} % |",
              flush=True)


def hosts(n, rate):
    subprocess.run([os.path.join(ROOT, "run"), "netlab", "up", str(n), rate], check=True)


def compare_learners(n, o):
    if o.netlab:
        hosts(n // 2 if n // 2 in o.learners else n, o.netlab)
    half = measure(LM, n // 2, SLOW, o, 0.5) if n // 2 in o.learners else None
    if o.netlab:
        hosts(n, o.netlab)
    for name, program in (("ResNet-20", RESNET), ("language model", LM)):
        slow = measure(program, n, SLOW, o)
        if o.netlab:
            compare(f"{name}, its own links", n, modelled(slow, HERE, n), slow)
        else:
            compare(f"{name}, from {FAST} to {SLOW}", n, modelled(measure(program, n, FAST, o), SLOW, n), slow)
    if half:
        compare(f"language model, from {n // 2} on half of the processors", n, modelled(half, HERE, n), slow)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default=os.path.join(ROOT, "build"))
    arguments.add_argument("--seconds", type=float, default=20, help="for each measurement")
    arguments.add_argument("--netlab", metavar="RATE")
    arguments.add_argument("--steal", type=float, default=0.1, help="share of the time that others may take")
    arguments.add_argument("--learners", type=int, nargs="+", default=[2, 4, 8])
    o = arguments.parse_args()
    print("| step | learners | exchange | measured ms | modelled ms | error |\n|---|---|---|---|---|---|")
    try:
        for n in o.learners:
            compare_learners(n, o)
    finally:
        if o.netlab:
            subprocess.run([os.path.join(ROOT, "run"), "netlab", "down"], check=True)
    errors.sort(key=abs)
    print(f"\nmedian error {100 * abs(errors[len(errors) // 2]):.1f} %, largest {100 * abs(errors[-1]):.1f} %, "
          f"{sum(abs(e) <= 0.15 for e in errors)} of {len(errors)} within 15 %")


main()
