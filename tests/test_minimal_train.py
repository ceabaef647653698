#!/usr/bin/env python3
# test_minimal_train.py PROGRAM README_EXAMPLE: the first example trains in each of its three steps, data-parallel training begins
# as one learner does, and ScaleCom sends less than a tenth of what dense learners send. README.md shows docs/readme_example.cpp as it is built, and its loss falls.
import pathlib
import re
import subprocess
import sys

LINE = re.compile(r"(.+?) +loss ([0-9.]+) -> ([0-9.]+) +sent by a learner: +([0-9]+) bytes per step")


def readme_example():
    source = pathlib.Path("docs/readme_example.cpp").read_text()
    assert f"```cpp\n{source}```" in pathlib.Path("README.md").read_text(), "README.md: not docs/readme_example.cpp"
    out = subprocess.run([sys.argv[2]], stdout=subprocess.PIPE, check=True, text=True, timeout=300).stdout
    print(out, end="")
    losses = [float(x) for x in re.findall(r"^epoch [1-4]: loss ([0-9.]+)$", out, re.M)]
    assert len(losses) == 4 and losses[3] < 0.8 * losses[0], f"README's example: expected a loss that falls, found {losses}"


def main():
    out = subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, check=True, text=True, timeout=300).stdout
    print(out, end="")
    lines = [LINE.fullmatch(line) for line in out.splitlines()]
    assert len(lines) == 3 and all(lines), "expected one line for each of the three steps"
    steps = [(m[1], float(m[2]), float(m[3]), int(m[4])) for m in lines]
    for name, first, last, _ in steps:
        assert 2 < first < 3, f"{name}: an untrained network of ten classes has a loss near ln 10, found {first}"
        assert last < 0.8 * first, f"{name}: expected a loss that falls by a fifth at least, {first} -> {last}"
    alone, dense, scalecom = steps
    assert abs(alone[1] - dense[1]) < 2e-3, "four quarters of a batch: expected the loss of the whole batch"
    assert alone[3] == 0 and dense[3] > 0, "expected bytes from four learners, and none from one"
    assert 0 < scalecom[3] < dense[3] / 10, f"ScaleCom: expected less than a tenth of {dense[3]} bytes, {scalecom[3]}"


main()
readme_example()
