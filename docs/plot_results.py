#!/usr/bin/env python3
"""Tables and pictures of docs/results.md from docs/results/*.json.

  docs/plot_results.py     rewrites what stands between "<!-- TABLE name -->" and "<!-- END -->" in
                           docs/results.md, and docs/results-*.svg
"""
import json
import math
import pathlib
import re
import statistics

from reproduce import first_compressed_step

DOCS = pathlib.Path(__file__).resolve().parent
RESULTS = {f.stem: json.loads(f.read_text()) for f in sorted((DOCS / "results").glob("*.json"))}
COLOURS = ["#1b6ca8", "#c1440e", "#3a7d44", "#7b4ea3", "#8a6d00", "#444444"]


def group(prefix):
    """Results whose names begin so, by the rest of the name."""
    return {name[len(prefix):]: r for name, r in RESULTS.items() if name.startswith(prefix)}


def table(head, rows):
    if not rows:
        return "No run has been kept yet.\n"
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(x) for x in row) + " |" for row in rows]) + "\n"


def number(x, digits=2):
    return "" if x is None else f"{x:.{digits}f}"


def ratios(r):
    s = r["summary"]
    return [number(s[f"ratio_{key}"], 1) for key in ("layers", "values", "wire", "run")]


def megabytes(r):
    return number(r["summary"]["bytes_sent"] / 1e6, 1)


def dense_steps(r):
    """How many steps a compressed run exchanged densely before. Results of old do not say."""
    if "compress_start" in r:
        return r["compress_start"]
    typed = re.search(r"--compress-start (\d+)", r["command"])
    first = r["curve"][0]  # at the end of an epoch, or of a shorter run
    return first_compressed_step(int(typed[1]) if typed else -1, first["step"] // first["epoch"], r["summary"]["step"])


def headline():
    by_method = {}
    for name, r in group("headline-").items():
        method, seed = name.rsplit("-", 1)
        by_method.setdefault(method, {})[seed] = r
    rows = []
    for method, seeds in by_method.items():
        accuracy = [r["summary"]["valid_acc1"] for r in seeds.values()]
        first = next(iter(seeds.values()))
        rows.append([method, ", ".join(number(a) for a in accuracy), number(statistics.fmean(accuracy)),
                     *ratios(first), megabytes(first)])
    return table(["method", "accuracy by seed, %", "mean", "ratio layers", "values", "wire", "run",
                  "MB sent, one learner"], rows)


def accuracy_table(prefix):
    rows = [[name, number(r["summary"]["valid_acc1"]), number(r["train_loss"][-1], 4), *ratios(r), megabytes(r)]
            for name, r in group(prefix).items()]
    return table(["method", "accuracy, %", "train loss", "ratio layers", "values", "wire", "run",
                  "MB sent, one learner"], rows)


def ptb():
    rows = [[name, number(r["summary"]["valid_ppl"]), number(r["summary"]["test_ppl"]), *ratios(r), megabytes(r)]
            for name, r in group("ptb-").items()]
    return table(["method", "validation perplexity", "test", "ratio layers", "values", "wire", "run",
                  "MB sent, one learner"], rows)


def scaling():
    rows = []
    for name, r in sorted(group("scaling-").items(), key=lambda x: (x[0].rsplit("-", 1)[0], int(x[0].rsplit("-", 1)[1]))):
        method, learners = name.rsplit("-", 1)
        layers = r["quality"]["layers"].values()
        mean = {key: statistics.fmean(layer[key] for layer in layers if key in layer) if any(key in x for x in layers)
                else None for key in ("contraction", "cosine", "mismatch", "bound")}
        rows.append([method, learners, r["bytes_per_step"], r["bytes_dense"], number(r["quality"]["alike"], 4),
                     *(number(mean[key], 3) for key in mean)])
    return table(["method", "learners", "bytes sent, a step and learner", "dense", "alike", "contraction", "cosine",
                  "d / k", "bound"], rows)


def times():
    rows = []
    for place in "model", "hosts":
        for net in "resnet20", "resnet18", "lstm":
            mine = group(f"time-{place}-{net}-")
            for name, r in mine.items():
                method, overlap = name.rsplit("-", 1)
                dense = mine.get(f"dense-{overlap}")
                faster = number(dense["step_s"] / r["step_s"]) if dense else ""
                rows.append([place, net, method, overlap, number(r["step_s"], 3), number(r["t_exposed"], 3), faster,
                             number(r["summary"]["ratio_wire"], 1)])
    return table(["network", "net", "method", "overlap", "step s", "waited for s", "over dense", "ratio wire"], rows)


def whole():
    rows = [[name, *ratios(r)[:3], r["bytes_per_step"], r["bytes_dense"]] for name, r in group("whole-model-").items()]
    return table(["network", "ratio layers", "values", "wire", "bytes sent, a step and learner", "dense"], rows)


def composed():
    """Accuracy of the headline's curves against the seconds of the time table's steps, per place."""
    curves, reached = {}, []
    for name, r in group("headline-").items():
        method, seed = name.rsplit("-", 1)
        for place in "model", "hosts":
            dense = RESULTS.get(f"time-{place}-resnet20-dense-on")
            step = RESULTS.get(f"time-{place}-resnet20-{method}-on")
            if seed != "1" or not dense or not step:
                continue
            start = 0 if method == "dense" else dense_steps(r)
            points = [((min(x["step"], start) * dense["step_s"] + max(0, x["step"] - start) * step["step_s"]) / 60,
                       x["acc1"]) for x in r["curve"] if "acc1" in x]
            curves.setdefault(place, []).append((method, points))
    for place, lines in curves.items():
        for method, points in lines:
            row = [place, method, number(points[-1][0], 1), number(points[-1][1])]
            for goal in 80, 85, 88:
                row.append(number(next((x for x, y in points if y >= goal), None), 1))
            reached.append(row)
    return curves, table(["network", "method", "minutes in all", "accuracy, %", "minutes to 80 %", "to 85 %", "to 88 %"],
                         reached)


def plot(name, title, x_label, y_label, lines, log_y=False, from_zero=False):
    """lines: [(label, [(x, y)])] -> docs/results-NAME.svg"""
    lines = [(label, points) for label, points in lines if points]
    if not lines:
        return
    width, height, left, bottom, top, right = 760, 400, 70, 50, 40, 230
    xs = [x for _, points in lines for x, _ in points]
    ys = [math.log10(y) if log_y else y for _, points in lines for _, y in points]
    x0, x1 = min(xs + [0] * from_zero), max(xs)
    y0, y1 = min(ys + [0] * (from_zero and not log_y)), max(ys)
    y1 += (y1 - y0) * 0.05 or 1

    def place(x, y):
        y = math.log10(y) if log_y else y
        return (left + (x - x0) / ((x1 - x0) or 1) * (width - left - right),
                height - bottom - (y - y0) / ((y1 - y0) or 1) * (height - bottom - top))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="22" font-size="15">{title}</text>']
    for i in range(6):
        y = y0 + (y1 - y0) * i / 5
        shown = 10 ** y if log_y else y
        at = place(x0, shown)[1]
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{shown:.4g}</text>')
        x = x0 + (x1 - x0) * i / 5
        out.append(f'<text x="{place(x, 10 ** y0 if log_y else y0)[0]:.1f}" y="{height - bottom + 18}" '
                   f'text-anchor="middle">{x:.4g}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">{x_label}</text>'
               f'<text x="16" y="{height / 2}" transform="rotate(-90 16 {height / 2})" text-anchor="middle">{y_label}</text>')
    for i, (label, points) in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in points))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{width - right + 12}" y="{top + 16 * i + 12}" fill="{colour}">{label}</text>')
    (DOCS / f"results-{name}.svg").write_text("\n".join(out + ["</svg>"]) + "\n")


def plots():
    curves = [(name, [(x["epoch"], x["acc1"]) for x in r["curve"] if "acc1" in x])
              for name, r in group("headline-").items() if name.endswith("-1")]
    plot("headline", "ResNet-20 on CIFAR-10, 4 learners x 32, seed 1", "epoch", "test accuracy, %", curves)
    for place, lines in composed()[0].items():
        plot(f"composed-{place}", f"Accuracy against time, composed (100 Mbit/s, {place})", "minutes",
             "test accuracy, %", lines, from_zero=False)
    by_method = {}
    for name, r in group("scaling-").items():
        method, learners = name.rsplit("-", 1)
        by_method.setdefault(method, []).append((int(learners), r["bytes_per_step"]))
        by_method.setdefault("dense", []).append((int(learners), r["bytes_dense"]))
    plot("scaling", "Bytes that a learner sends in a step, ResNet-20", "learners", "bytes (logarithmic)",
         [(method, sorted(set(points))) for method, points in by_method.items()], log_y=True)


def main():
    made = {"headline": headline, "ablation": lambda: accuracy_table("ablation-"),
            "large": lambda: accuracy_table("large-"), "ptb": ptb, "scaling": scaling, "times": times, "whole": whole,
            "composed": lambda: composed()[1]}
    file = DOCS / "results.md"

    plots()

    def fill(match):
        pictures = "".join(f"\n![{picture.stem.replace('-', ' ')}]({picture.name})\n"
                           for picture in sorted(DOCS.glob(f"results-{match[1]}*.svg")))
        return f"<!-- TABLE {match[1]} -->\n{made[match[1]]()}{pictures}<!-- END -->"

    file.write_text(re.sub(r"<!-- TABLE (\w+) -->\n.*?<!-- END -->", fill, file.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
