#!/usr/bin/env python3
"""Unpacks image data sets as they are downloaded into a folder that train_resnet --data reads.

    ./run unpack_data cifar-10-python.tar.gz FOLDER      CIFAR-10 or CIFAR-100, Python or binary version, .tar.gz or a folder
    ./run unpack_data mnist FOLDER                       a folder with MNIST's four files, gzip or not; Fashion-MNIST's too

Existing files are not overwritten, and either all files are written or none. CIFAR's Python version holds pickles, which can run any code: only the few names that
its files use are accepted."""
import gzip
import io
import lzma
import pathlib
import pickle
import re
import sys
import tarfile
import tempfile
import zlib

IMAGE = 3 * 32 * 32
BINARY = {f"data_batch_{i}": f"data_batch_{i}.bin" for i in range(1, 6)} | {
    "test_batch": "test_batch.bin", "train": "train.bin", "test": "test.bin"}
NAMES = {"batches.meta": ("label_names", "batches.meta.txt"), "meta": ("fine_label_names", "fine_label_names.txt")}
WHOLE = re.compile(r"(data_batch_[1-5]|test_batch|train|test)\.bin|batches\.meta\.txt|(fine|coarse)_label_names\.txt")
IDX = re.compile(r"((train|t10k)-(images|labels)[-.]idx[13]-ubyte)(\.gz)?")
LARGEST = 1 << 28  # bytes of one file


class Array:
    """Stands for numpy.ndarray, or its dtype, in a pickle."""

    def __init__(self, kind=None):
        self.kind = kind

    def __setstate__(self, state):
        self.state = state

    def bytes_of_images(self):
        """Returns the raw bytes of an array (n, 3072) of bytes in C's order."""
        _, shape, kind, fortran, raw = self.state
        raw = raw.encode("latin-1") if isinstance(raw, str) else raw
        if kind.kind not in ("u1", b"u1") or fortran or len(shape) != 2 or shape[1] != IMAGE or len(raw) != shape[0] * IMAGE:
            raise ValueError(f"expected an array of bytes (n, {IMAGE}), found shape {shape}")
        return raw


class Pickle(pickle.Unpickler):
    """Reads a pickle of dictionaries, lists, numbers, texts and arrays of bytes."""

    def find_class(self, module, name):
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")):
            return lambda *_: Array()
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return lambda *arguments: Array(*arguments[:1])
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _: text.encode("latin-1")
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def unpickle(data):
    entries = Pickle(io.BytesIO(data), encoding="bytes").load()
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in entries.items()}


def read(file):
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"longer than {LARGEST} bytes")
    return data


def records(batch):
    """Returns a batch in the binary version: label bytes, then the image, for each image."""
    fine = "fine_labels" in batch
    labels = [batch["coarse_labels"], batch["fine_labels"]] if fine else [batch["labels"]]
    data = batch["data"].bytes_of_images()
    if any(len(x) * IMAGE != len(data) for x in labels):
        raise ValueError(f"{len(data)} bytes of images for {len(labels[0])} labels")
    return b"".join(bytes(column[i] for column in labels) + data[i * IMAGE:(i + 1) * IMAGE] for i in range(len(labels[0])))


def convert(name, file):
    """Returns the name and bytes of the file to write; None for a file of no data set."""
    if WHOLE.fullmatch(name):
        return name, read(file)
    if found := IDX.fullmatch(name):
        return found[1], read(gzip.open(file) if found[4] else file)
    if name in BINARY:
        return BINARY[name], records(unpickle(read(file)))
    if name in NAMES:
        key, to = NAMES[name]
        return to, b"".join(x + b"\n" for x in unpickle(read(file))[key])
    return None


def members(source):
    """Yields the base name and an open file for each file of an archive or a folder, a plain one before its .gz."""
    if source.is_dir():
        for path in sorted(source.iterdir()):
            if path.is_file():
                with path.open("rb") as file:
                    yield path.name, file
    else:
        with tarfile.open(source) as archive:
            for member in archive:
                if member.isfile():
                    yield pathlib.PurePosixPath(member.name).name, archive.extractfile(member)


def unpack(source, folder):
    """Writes the files of the set to the folder; returns their names. Throws Refused."""
    name, written = "", []
    parent = folder if folder.is_dir() else folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".unpack-") as part:
        try:
            for name, file in members(source):
                made = convert(name, file)
                if made is None or (name.endswith(".gz") and made[0] in written):
                    continue
                with (pathlib.Path(part) / made[0]).open("xb") as out:
                    out.write(made[1])
                written.append(made[0])
        except (pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, MemoryError,
                OverflowError, RecursionError, zlib.error, lzma.LZMAError, tarfile.TarError, gzip.BadGzipFile) as error:
            raise Refused(f"{name}: {type(error).__name__}: {error}" if name else error) from error
        if not written:
            raise Refused("expected CIFAR or MNIST, found none of their files")
        folder.mkdir(exist_ok=True)
        for name in written:
            if (folder / name).exists():
                raise Refused(f"{folder / name} exists")
        for name in written:
            (pathlib.Path(part) / name).rename(folder / name)
    return written


class Refused(Exception):
    """The source is no data set, or a broken one."""


def main(arguments):
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if len(arguments) != 2:
        print("unpack_data: expected an archive or a folder, and the folder to write to (--help)", file=sys.stderr)
        return 2
    source, folder = map(pathlib.Path, arguments)
    try:
        written = unpack(source, folder)
    except (Refused, OSError) as error:
        print(f"unpack_data: {source}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, (Refused, FileNotFoundError)) else 1
    print(f"{folder}: {', '.join(written)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
