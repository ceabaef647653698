"""docs/results.jsonl: one measured run per line, sorted by name, so that runs added on two branches merge."""
import contextlib
import fcntl
import json
import os
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent
FILE = DOCS / "results.jsonl"
# Names that runs of earlier revisions gave to what is measured.
EARLIER_NAMES = {"alike": "correlation", "looks": "samples"}  # check_words: quoted


def in_current_names(data):
    """Returns the same data, with keys of earlier revisions renamed."""
    if isinstance(data, dict):
        return {EARLIER_NAMES.get(key, key): in_current_names(value) for key, value in data.items()}
    if isinstance(data, list):
        return [in_current_names(value) for value in data]
    return data


def load(file):
    """Returns name -> result, sorted by name; nothing if there is no such file. Two results of one name (a merge
    of branches that both measured it) are an error: somebody has to choose."""
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file.exists() else [], 1):
        result = json.loads(line)
        if result["name"] in found:
            sys.exit(f"{file}:{number}: a second result named {result['name']}; delete one of the two lines")
        found[result["name"]] = result
    return dict(sorted(found.items()))


@contextlib.contextmanager
def locked(folder):
    """Keeps other processes from changing the file between reading and writing it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def add(file, *results):
    """Writes these results into the file, in place of those of the same names."""
    with locked(file.parent):
        found = load(file)
        found.update((result["name"], in_current_names(result)) for result in results)
        part = file.with_suffix(".part")
        part.write_text("".join(json.dumps(found[name], ensure_ascii=False, separators=(",", ":")) + "\n"
                                for name in sorted(found)), encoding="utf-8")
        part.replace(file)
