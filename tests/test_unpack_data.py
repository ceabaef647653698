#!/usr/bin/env python3
"""apps/unpack_data.py on small sets in every form in which they are downloaded, broken ones, and hostile pickles."""
import gzip
import io
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / "apps" / "unpack_data.py"


def fake_numpy():
    """Makes modules whose pickles look like those of numpy's arrays, which need not be installed."""
    numpy, core, multiarray = (types.ModuleType(name) for name in ("numpy", "numpy.core", "numpy.core.multiarray"))

    class ndarray:
        def __init__(self, raw=b""):
            self.raw = raw

        def __reduce__(self):
            return _reconstruct, (ndarray, (0,), b"b"), (1, (len(self.raw) // 3072, 3072), dtype("u1"), False, self.raw)

    class dtype:
        def __init__(self, *name):
            self.name = name

        def __reduce__(self):
            return dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)

    def _reconstruct(*_):
        return ndarray()

    for item, module in (ndarray, numpy), (dtype, numpy), (_reconstruct, multiarray):
        item.__module__ = module.__name__
        item.__qualname__ = item.__name__
        setattr(module, item.__name__, item)
    numpy.core, core.multiarray = core, multiarray
    return {"numpy": numpy, "numpy.core": core, "numpy.core.multiarray": multiarray}


def image(number):
    return bytes((number + i) % 256 for i in range(3072))


def batch(first, count, fine=False):
    """Returns a pickle as CIFAR's Python version has them, with keys of bytes."""
    real, fake = {name: sys.modules.get(name) for name in fake_numpy()}, fake_numpy()
    sys.modules.update(fake)
    try:
        data = fake["numpy"].ndarray(b"".join(image(first + i) for i in range(count)))
        labels = [(first + i) % 10 for i in range(count)]
        entries = {b"coarse_labels": labels, b"fine_labels": [10 * x for x in labels]} if fine else {b"labels": labels}
        return pickle.dumps({b"batch_label": b"one", **entries, b"data": data, b"filenames": [b"a.png"] * count}, protocol=2)
    finally:
        for name, module in real.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class UnpackData(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True, check=False)

    def archive(self, files):
        path = self.at / "set.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(f"cifar/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return path

    def unpack(self, source):
        made = self.run_tool(source, self.at / "out")
        self.assertEqual(made.returncode, 0, made.stderr)
        return {path.name: path.read_bytes() for path in (self.at / "out").iterdir()}

    def refuse(self, source, *words):
        made = self.run_tool(source, self.at / "out")
        self.assertEqual(made.returncode, 2, made.stdout + made.stderr)
        self.assertEqual(len(made.stderr.splitlines()), 1, made.stderr)
        for word in words:
            self.assertIn(word, made.stderr)

    def test_cifar10_python(self):
        files = {f"data_batch_{i}": batch(100 * i, 3) for i in range(1, 6)}
        files["test_batch"] = batch(7, 2)
        files["batches.meta"] = pickle.dumps({b"label_names": [b"cat", b"dog"]}, protocol=2)
        files["readme.html"] = b"no set"
        out = self.unpack(self.archive(files))
        self.assertEqual(sorted(out), sorted([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt"]))
        self.assertEqual(out["data_batch_2.bin"], b"".join(bytes([(200 + i) % 10]) + image(200 + i) for i in range(3)))
        self.assertEqual(out["batches.meta.txt"], b"cat\ndog\n")

    def test_cifar100_python_in_a_folder(self):
        (self.at / "in").mkdir()
        for name, first in ("train", 3), ("test", 5):
            (self.at / "in" / name).write_bytes(batch(first, 2, fine=True))
        (self.at / "in" / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"a", b"b"]}, protocol=2))
        out = self.unpack(self.at / "in")
        self.assertEqual(out["train.bin"], bytes([3, 30]) + image(3) + bytes([4, 40]) + image(4))
        self.assertEqual(out["fine_label_names.txt"], b"a\nb\n")

    def test_binary_archive(self):
        self.assertEqual(self.unpack(self.archive({"test_batch.bin": b"x" * 3073})), {"test_batch.bin": b"x" * 3073})

    def test_mnist(self):
        (self.at / "in").mkdir()
        images, labels = struct.pack(">IIII", 0x803, 1, 28, 28) + bytes(784), struct.pack(">II", 0x801, 1) + b"\x05"
        (self.at / "in" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (self.at / "in" / "train-labels.idx1-ubyte").write_bytes(labels)
        self.assertEqual(self.unpack(self.at / "in"), {"train-images-idx3-ubyte": images, "train-labels.idx1-ubyte": labels})

    def test_hostile_pickle(self):
        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {self.path}",)

        evil = Evil()
        evil.path = self.at / "broken_into"
        for data in pickle.dumps({b"labels": evil}), pickle.dumps(evil):
            self.refuse(self.archive({"data_batch_1": data}), "data_batch_1", "system")
        self.assertFalse(evil.path.exists())

    def test_paths_in_an_archive_do_not_leave_the_folder(self):
        out = self.unpack(self.archive({"../../../test_batch.bin": b"x"}))
        self.assertEqual(list(out), ["test_batch.bin"])

    def test_refused(self):
        self.refuse(self.at / "none", "none")
        self.refuse(self.archive({"a.txt": b"x"}), "found none")
        self.refuse(self.archive({"data_batch_1": b"\x80"}), "data_batch_1")
        self.refuse(self.archive({"data_batch_1": batch(0, 2)[:-4000]}), "data_batch_1")
        self.refuse(self.archive({"data_batch_1": pickle.dumps({b"labels": [1]})}), "data")
        (self.at / "a.tar.gz").write_bytes(b"no archive")
        self.refuse(self.at / "a.tar.gz")
        (self.at / "in").mkdir()
        (self.at / "in" / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
        self.refuse(self.at / "in", "gzip")
        self.assertEqual(self.run_tool().returncode, 2)

    def test_a_cut_archive_leaves_nothing_and_the_whole_one_works_then(self):
        files = {f"data_batch_{i}": batch(100 * i, 3) for i in range(1, 4)} | {"readme.html": os.urandom(5000)}
        path = self.archive(files)
        whole = path.read_bytes()
        for length in len(whole) - 3000, len(whole) // 2, 30:
            path.write_bytes(whole[:length])
            self.refuse(path)
            self.assertEqual(sorted(x.name for x in self.at.iterdir() if x.name != path.name), [])
        path.write_bytes(whole)
        self.assertEqual(len(self.unpack(path)), 3)

    def test_a_file_and_its_gz(self):
        (self.at / "in").mkdir()
        for name, data in ("t10k-labels-idx1-ubyte", b"plain"), ("t10k-labels-idx1-ubyte.gz", gzip.compress(b"packed")):
            (self.at / "in" / name).write_bytes(data)
        self.assertEqual(self.unpack(self.at / "in"), {"t10k-labels-idx1-ubyte": b"plain"})

    def test_files_are_not_overwritten(self):
        source = self.archive({"test_batch.bin": b"new"})
        (self.at / "out").mkdir()
        (self.at / "out" / "test_batch.bin").write_bytes(b"old")
        self.refuse(source, "test_batch.bin")
        self.assertEqual((self.at / "out" / "test_batch.bin").read_bytes(), b"old")


if __name__ == "__main__":
    unittest.main()
