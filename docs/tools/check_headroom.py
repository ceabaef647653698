#!/usr/bin/env python3
"""Compares --headroom's model of a step with measured steps: slow links predicted from measurements on fast ones, and
twice the learners predicted from half. Learners share a machine, so the half runs on half of its processors:
each learner then computes as fast as when all learners run on all processors.

  docs/tools/check_headroom.py                     learners of one process, --net
  docs/tools/check_headroom.py --netlab 100mbit    processes on hosts of ./run netlab (root), real TCP, from faster links

Prints a Markdown table; error = modelled / measured - 1. Run it on an idle machine; a measurement disturbed by other
tenants of a virtual machine is repeated.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from quiet_machine import undisturbed

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FAST, SLOW, HERE = "1gbit,200us", "100mbit,1ms", "these links"
# Computes long enough to hide its exchanges.
RESNET = ["train_resnet", "--data", "shapes", "--arch", "resnet20", "--image-size", "32", "--batch-size", "8"]
# Spends nearly all of its step on the exchange.
LM = ["train_lm", "--batch-size", "1", "--bptt", "2", "--emsize", "400", "--nhid", "400", "--nlayers", "1"]


def measure(program, learners, net, o, share=1.0, model=None):
    command = [os.path.join(o.build, program[0]), *program[1:], "--threads", "1", "--headroom", str(o.seconds), "--json",
               "--quiet"]
    if model:
        command += ["--headroom-net", model]
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
    """Returns exchange -> modelled seconds of a step."""
    steps = {m["exchange"]: m["step_s"] for m in source["model"] if (m["net"], m["learners"]) == (net, learners)}
    if not steps:
        sys.exit(f"--headroom does not model {learners} learners on {net}")
    return steps


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


def netlab(*arguments):
    subprocess.run([os.path.join(ROOT, "run"), "netlab", *arguments], check=True)


def on_fast_links(program, n, slow, o):
    """Predicts steps on the links of `slow` from a measurement on fast links. Returns the fast links and the prediction."""
    if not o.netlab:
        return FAST, modelled(measure(program, n, FAST, o), SLOW, n)
    links = f"{slow['mbit_per_s']:.3f}mbit,{1e6 * slow['latency_s']:.1f}us"
    netlab("rate", o.fast)
    found = modelled(measure(program, n, None, o, model=links), links, n)
    netlab("rate", o.netlab)
    return o.fast, found


def compare_learners(n, o):
    half = None
    if n // 2 in o.learners:
        if o.netlab:
            netlab("up", str(n // 2), o.netlab)
        half = modelled(measure(LM, n // 2, SLOW, o, 0.5), HERE, n)
    if o.netlab:
        netlab("up", str(n), o.netlab)
    slow = {}
    for name, program in (("ResNet-20", RESNET), ("language model", LM)):
        slow[name] = measure(program, n, SLOW, o)
        links, found = on_fast_links(program, n, slow[name], o)
        compare(f"{name}, from {links} to {o.netlab or SLOW}", n, found, slow[name])
    if half:
        compare(f"language model, from {n // 2} on half of the processors", n, half, slow["language model"])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default=os.path.join(ROOT, "build"))
    arguments.add_argument("--seconds", type=float, default=20, help="length of each measurement")
    arguments.add_argument("--netlab", metavar="RATE", help="link rate of ./run netlab's hosts; default: simulated links")
    arguments.add_argument("--fast", metavar="RATE", default="300mbit", help="rate of the faster links between hosts")
    arguments.add_argument("--steal", type=float, default=0.1, help="largest share of processor time that other virtual machines may steal")
    arguments.add_argument("--learners", type=int, nargs="+", default=[2, 4, 8])
    o = arguments.parse_args()
    print("| step | learners | exchange | measured ms | modelled ms | error |\n|---|---|---|---|---|---|")
    try:
        for n in o.learners:
            compare_learners(n, o)
    finally:
        if o.netlab:
            netlab("down")
    sizes = [abs(e) for e in errors]
    print(f"\nmedian error {100 * statistics.median(sizes):.1f} %, largest {100 * max(sizes):.1f} %, "
          f"{sum(e <= 0.15 for e in sizes)} of {len(sizes)} within 15 %")


main()
