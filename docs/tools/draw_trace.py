#!/usr/bin/env python3
"""Draws one rank of a trace (train_resnet --trace t.json) as an SVG: time runs to the right, one row per track; arrows
follow each bucket of gradients from the backward pass to its exchange to its update.

  docs/tools/draw_trace.py t.json picture.svg [--rank 0] [--from-ms X --to-ms Y]
"""
import argparse
import html
import json
import math

TRACKS = ["data", "forward", "backward", "compress", "comm", "update", "wait", "plan"]
COLORS = dict(zip(TRACKS, ["#8d8d8d", "#4e79a7", "#f28e2b", "#b07aa1", "#e15759", "#59a14f", "#bab0ac", "#76b7b2"]))
WIDTH, LEFT, ROW, TOP = 1200, 90, 44, 40


def round_step(rough):
    """Returns the smallest of 1, 2, 5, 10, 20 … that is not below `rough`."""
    power = 10 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("trace")
    arguments.add_argument("picture")
    arguments.add_argument("--rank", type=int, default=0)
    arguments.add_argument("--from-ms", type=float)
    arguments.add_argument("--to-ms", type=float)
    o = arguments.parse_args()
    try:
        with open(o.trace, encoding="utf-8") as file:
            events = [e for e in json.load(file)["traceEvents"] if e["pid"] == o.rank]
    except (OSError, ValueError, KeyError, TypeError) as error:
        arguments.error(f"{o.trace}: {error!r}")
    if not any(e["ph"] == "X" for e in events):
        arguments.error(f"{o.trace} has no ranges of rank {o.rank}")
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    origin = min(e["ts"] for e in events if e["ph"] == "X")
    ranges = [(names[e["tid"]], (e["ts"] - origin) / 1e3, e["dur"] / 1e3, e["name"]) for e in events if e["ph"] == "X"]
    ranges.sort(key=lambda r: (r[0], r[1], -r[2]))
    begin = o.from_ms if o.from_ms is not None else 0
    end = o.to_ms if o.to_ms is not None else max(r[1] + r[2] for r in ranges)
    tracks = sorted({r[0] for r in ranges}, key=lambda t: (TRACKS.index(t.split()[0]), t))
    height = TOP + ROW * len(tracks) + 30

    def x(ms):
        return LEFT + (min(max(ms, begin), end) - begin) / (end - begin) * (WIDTH - LEFT - 10)

    def y(track):
        return TOP + ROW * tracks.index(track)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
           f'font-size="12"><rect width="{WIDTH}" height="{height}" fill="white"/>',
           f'<text x="{LEFT}" y="20">rank {o.rank}, {begin:.0f} to {end:.0f} ms</text>',
           '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto">'
           '<path d="M0 0L6 3L0 6z" fill="#333"/></marker></defs>']
    for track in tracks:
        out.append(f'<text x="8" y="{y(track) + 19}">{track}</text>'
                   f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(track) + 34}" y2="{y(track) + 34}" stroke="#ddd"/>')
    until = {}
    for track, at, length, name in ranges:
        inner = at < until.get(track, 0) - 1e-5  # a phase of the range before it
        until[track] = max(until.get(track, 0), at + length)
        if at > end or at + length < begin:
            continue
        wide = max(x(at + length) - x(at), 0.5)
        top, high = (y(track) + 22, 8) if inner else (y(track), 30)
        color = "#0006" if inner else COLORS[track.split()[0]]
        out.append(f'<rect x="{x(at):.1f}" y="{top}" width="{wide:.1f}" height="{high}" fill="{color}" '
                   f'stroke="white" stroke-width="0.4"><title>{html.escape(name)}: {length:.2f} ms</title></rect>')
        if not inner and wide > 7 * len(name) + 6:
            out.append(f'<text x="{x(at) + 4:.1f}" y="{y(track) + 19}" fill="white">{html.escape(name)}</text>')

    def point(event):
        return (event["ts"] - origin) / 1e3, names[event["tid"]]

    arrows = {}
    for event in events:
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], []).append(event)
    for points in arrows.values():
        points.sort(key=lambda e: e["ts"])
        for a, b in zip(points, points[1:]):
            (ms_a, track_a), (ms_b, track_b) = point(a), point(b)
            if begin <= ms_a and ms_b <= end:
                out.append(f'<line x1="{x(ms_a):.1f}" y1="{y(track_a) + 30}" x2="{x(ms_b):.1f}" y2="{y(track_b) + 2}" '
                           'stroke="#333" stroke-width="0.8" marker-end="url(#tip)"/>')
    step = round_step((end - begin) / 8)
    for i in range(math.ceil(begin / step), math.floor(end / step) + 1):
        anchor = "end" if x(i * step) > WIDTH - 30 else "middle"
        out.append(f'<text x="{x(i * step):.1f}" y="{height - 8}" text-anchor="{anchor}" fill="#555">{i * step:g} ms</text>')
    with open(o.picture, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n</svg>\n")


main()
