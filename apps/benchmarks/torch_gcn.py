#!/usr/bin/env python3
"""The reference of `./run bench gcn`: the same training steps of a graph network in PyTorch.

Reads the batches that heddle's sampler has drawn from a folder, builds the same network as layers/graph_net.h (sage),
times forward, loss, backward and Adam, and prints one JSON line: {"torch": version, "ms": [per step], "loss": last}.

  torch_gcn.py --folder F --hidden 64 --threads 2 --product coo

--product: how neighbours are mixed. coo, csr: torch.sparse.mm; csr's gradient multiplies by the transpose that is given,
as heddle's does. gather: rows are gathered, scaled and added by index_add, as libraries without a sparse product do."""
import argparse
import json
import pathlib
import time

import numpy
import torch
from torch import nn
from torch.nn import functional


class Csr(torch.autograd.Function):
    """A product with a sparse matrix, whose transpose is known."""

    @staticmethod
    def forward(ctx, a, transposed, x):
        ctx.transposed = transposed
        return a @ x

    @staticmethod
    def backward(ctx, dy):
        return None, None, ctx.transposed @ dy


def mixer(product, rows, cols, starts, columns, weights):
    """Returns x -> A x."""
    row_of = torch.repeat_interleave(torch.arange(rows), (starts[1:] - starts[:-1]).long())
    index = torch.stack([row_of, columns.long()])
    coo = torch.sparse_coo_tensor(index, weights, (rows, cols)).coalesce()
    if product == "coo":
        return lambda x: torch.sparse.mm(coo, x)
    if product == "csr":
        csr, transposed = coo.to_sparse_csr(), coo.t().coalesce().to_sparse_csr()
        return lambda x: Csr.apply(csr, transposed, x)
    scale = weights[:, None]
    return lambda x: torch.zeros(rows, x.shape[1]).index_add(0, row_of, x[index[1]] * scale)


def read(path, product):
    """Returns the mixers, from the first layer on, the number of each one's rows, features and labels of a batch."""
    data, at = path.read_bytes(), 0

    def take(kind, count):
        nonlocal at
        begin, at = at, at + 4 * count
        return torch.from_numpy(numpy.frombuffer(data, kind, count, begin).copy())

    layers, features = (int(x) for x in take("<i4", 2))
    mixers, sizes = [], []
    for _ in range(layers):
        rows, cols, entries = (int(x) for x in take("<i4", 3))
        starts, columns = take("<i4", rows + 1), take("<i4", entries)
        mixers.append(mixer(product, rows, cols, starts, columns, take("<f4", entries)))
        sizes.append((rows, cols))
    x = take("<f4", sizes[0][1] * features).reshape(-1, features)
    return mixers, [rows for rows, _ in sizes], x, take("<i4", sizes[-1][0]).long()


class Sage(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.mixed = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.own = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:]))

    def forward(self, x, mixers, rows):
        for i, (mix, n) in enumerate(zip(mixers, rows)):
            x = self.mixed[i](mix(x)) + self.own[i](x[:n])
            if i + 1 < len(mixers):
                x = functional.relu(x)
        return x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--product", choices=("coo", "csr", "gather"), default="coo")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    batches = [read(path, o.product) for path in sorted(pathlib.Path(o.folder).glob("batch-*"))]
    mixers, _, x, _ = batches[0]
    model = Sage([x.shape[1]] + [o.hidden] * (len(mixers) - 1) + [o.classes])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ms = []
    for step, (mixers, rows, x, labels) in enumerate(batches[:o.warmup] + batches):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x, mixers, rows), labels)
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step >= o.warmup:
            ms.append(1000 * (time.perf_counter() - begin))
    print(json.dumps({"torch": torch.__version__, "ms": ms, "loss": value}))


if __name__ == "__main__":
    main()
