#!/usr/bin/env python3
"""Makes a graph for train_gcn of Debian's package index: nodes are packages, edges are dependencies and recommendations,
features are words of the one-line descriptions, and classes are sections.

    apt-cache dumpavail | apps/debian_graph.py FOLDER
    apps/debian_graph.py FOLDER Packages          # a file in the format of apt's Packages

Descriptions are package metadata of Debian. A package's name is no feature: it would tell too much."""
import collections
import pathlib
import re
import sys

WORDS = 512  # the most frequent ones
SECTIONS = 30  # the largest ones; packages of others have no label


def paragraphs(lines):
    """Returns each paragraph's fields, without the lines that continue one but for those of dependencies."""
    fields, last = {}, None
    for line in lines:
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, None
        elif line[0] in " \t":
            if last in ("Depends", "Recommends"):
                fields[last] += line.rstrip("\n")
        else:
            last, _, value = line.partition(":")
            last = "Description" if last.startswith("Description-en") else last
            fields.setdefault(last, value.strip())
    if fields:
        yield fields


def read_packages(lines):
    """Returns the fields of each package by name; of a package that is listed again, the first."""
    packages = {}
    for fields in paragraphs(lines):
        if "Package" in fields:
            packages.setdefault(fields["Package"], fields)
    return packages


def needed(fields):
    """Returns the names of the packages that a package depends on or recommends, with alternatives."""
    text = ",".join(fields.get(key, "") for key in ("Depends", "Recommends"))
    return {re.split(r"[\s(:\[<]", name.strip(), maxsplit=1)[0] for name in re.split(r"[,|]", text)} - {""}


def write(folder, name, lines):
    (folder / name).write_text("".join(line + "\n" for line in lines))


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    folder = pathlib.Path(sys.argv[1])
    try:
        with open(sys.argv[2], errors="replace") if len(sys.argv) == 3 else sys.stdin as source:
            packages = read_packages(source)
    except OSError as error:
        print(f"debian_graph: {error}", file=sys.stderr)
        sys.exit(2)
    if not packages:
        print("debian_graph: expected Debian's Packages format, found no package; 'apt-get update' fetches the index", file=sys.stderr)
        sys.exit(2)
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(packages)
    number = {name: i for i, name in enumerate(names)}
    words = {n: set(re.findall("[a-z]{3,}", packages[n].get("Description", "").lower())) for n in names}
    counts = collections.Counter(word for n in names for word in words[n])
    known = {word: i for i, word in enumerate(sorted(sorted(counts), key=lambda w: -counts[w])[:WORDS])}
    section = {n: packages[n].get("Section", "").rpartition("/")[2] for n in names}
    sizes = collections.Counter(s for s in section.values() if s)
    largest = set(sorted(sorted(sizes), key=lambda s: -sizes[s])[:SECTIONS])
    edges = {(number[a], number[b]) for a in names for b in needed(packages[a]) if b in number and a != b}
    edges = sorted({(min(e), max(e)) for e in edges})
    write(folder, "names.txt", names)
    write(folder, "labels.txt", (section[n] if section[n] in largest else "-" for n in names))
    write(folder, "features.txt", (" ".join(map(str, sorted(known[w] for w in words[n] if w in known))) for n in names))
    write(folder, "edges.txt", ("%d %d" % e for e in edges))
    print(f"{folder}: {len(names)} packages, {len(edges)} edges, {len(known)} words, {len(largest)} sections")


if __name__ == "__main__":
    main()
