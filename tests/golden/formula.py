"""Shared by make_golden.py and interop.py: the value formula, safetensors files, and the networks in
PyTorch (ResNet and the LSTM language model).

The formula. Both sides compute every weight, input, upstream gradient and label from its name, so
that only results need to be stored. All integers are unsigned and 64 bits wide and wrap around:

    hash(name)  = FNV-1a of the name's bytes: h = 14695981039346656037; h = (h ^ byte) * 1099511628211
    bits(name, i) = mix(hash(name) + (i + 1) * 0x9E3779B97F4A7C15), mix the finaliser of splitmix64:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; z = z ^ z >> 31
    u(name, i)  = (int(bits >> 40) - 2^23) / 2^23, in [-1, 1), exact in float32
    value(name, i; scale, offset) = float32(offset + float64(float32(scale)) * u(name, i))
    label(name, i; classes) = (bits >> 40) mod classes

Product and sum of `value` are exact in float64 for the scales used here, so that there is one
rounding and a fused multiply-add changes nothing: the two sides agree bit for bit. Index i counts
the elements of a tensor in row-major order.

Parameters of a model, named as in torchvision and torch.nn.LSTM:
    matrices and convolutions       scale float32(sqrt(6 / fan_in))  (uniform, variance 2 / fan_in),
                                    fan_in the product of all axes but the first
    batch norm weight               1 + 0.1 u
    every bias                      0.1 u
    running_mean 0, running_var 1
"""

import json
import math
import struct

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

# ---------------------------------------------------------------------------------------- formula


def bits(name, count):
    h = 14695981039346656037
    for byte in name.encode():
        h = ((h ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(40)


def uniform(name, count):
    return (bits(name, count).astype(np.float64) - 2.0**23) / 2.0**23


def value(name, shape, scale=1.0, offset=0.0, dtype=torch.float32):
    flat = offset + float(np.float32(scale)) * uniform(name, math.prod(shape))
    return torch.from_numpy(flat.astype(np.float32)).reshape(shape).to(dtype)


def label(name, count, classes):
    return torch.from_numpy((bits(name, count) % np.uint64(classes)).astype(np.int64))


def he_scale(shape):
    return np.float32(math.sqrt(6.0 / math.prod(shape[1:])))


def set_parameters(model):
    """Gives every parameter of a model its value by the formula and resets the running statistics."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(value(name, p.shape, he_scale(p.shape)))
            elif ".bias" in name:
                p.copy_(value(name, p.shape, 0.1))
            else:
                p.copy_(value(name, p.shape, 0.1, 1.0))
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.reset_running_stats()
    return model


# ------------------------------------------------------------------------------------ safetensors

DTYPES = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8")}


def write_safetensors(path, tensors, metadata=None):
    header, chunks, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, t in tensors.items():
        array = t.detach().numpy() if isinstance(t, torch.Tensor) else np.asarray(t)
        dtype = "I64" if array.dtype == np.int64 else "F32"
        data = array.astype(DTYPES[dtype]).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def read_safetensors(path):
    with open(path, "rb") as f:
        raw = f.read()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data, tensors = json.loads(raw[8 : 8 + length]), raw[8 + length :], {}
    header.pop("__metadata__", None)
    end = 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = t["data_offsets"]
        dtype = DTYPES[t["dtype"]]
        if begin != end or stop - begin != math.prod(t["shape"]) * dtype.itemsize:
            raise ValueError(f"{path}: {name} has offsets [{begin}, {stop}] and shape {t['shape']}")
        array = np.frombuffer(data[begin:stop], dtype).reshape(t["shape"])
        tensors[name] = torch.from_numpy(array.copy())
        end = stop
    if end != len(data):
        raise ValueError(f"{path}: {len(data)} bytes of data, the header accounts for {end}")
    return tensors


# ----------------------------------------------------------------------------------------- models


def conv(i, o, kernel, stride=1):
    return nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False)


class PadChannels(nn.Module):
    """Option A of He et al.: every second pixel, zero channels in front and behind."""

    def __init__(self, extra):
        super().__init__()
        self.extra = extra

    def forward(self, x):
        front = self.extra // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, front, self.extra - front))


class Block(nn.Module):
    """A basic block (two 3x3) or a bottleneck (1x1, 3x3 with the stride, 1x1 to 4x the width)."""

    def __init__(self, i, width, stride, bottleneck, option_a):
        super().__init__()
        out = width * 4 if bottleneck else width
        if bottleneck:
            self.conv1, self.bn1 = conv(i, width, 1), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = conv(width, out, 1), nn.BatchNorm2d(out)
        else:
            self.conv1, self.bn1 = conv(i, width, 3, stride), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or i != out:
            self.downsample = (
                PadChannels(out - i)
                if option_a
                else nn.Sequential(conv(i, out, 1, stride), nn.BatchNorm2d(out))
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if hasattr(self, "conv3"):
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + shortcut)


class ResNet(nn.Module):
    def __init__(self, widths, blocks, stem, bottleneck=False, option_a=False, classes=10):
        super().__init__()
        i = 64 if not option_a else widths[0]
        self.conv1 = conv(3, i, 7, 2) if stem == "imagenet" else conv(3, i, 3)
        self.bn1 = nn.BatchNorm2d(i)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        self.stages = []
        for s, (width, count) in enumerate(zip(widths, blocks)):
            layer = []
            for b in range(count):
                stride = 2 if s > 0 and b == 0 else 1
                layer.append(Block(i, width, stride, bottleneck, option_a))
                i = width * 4 if bottleneck else width
            self.add_module(f"layer{s + 1}", nn.Sequential(*layer))
            self.stages.append(f"layer{s + 1}")
        self.fc = nn.Linear(i, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.fc(x.mean((2, 3)))


def make_resnet(arch):
    """`resnet20` ... `resnet110`, or `resnet18`, `resnet34`, `resnet50`, ... followed by `:cifar`
    (the default here) or `:imagenet` for the stem. Ten classes."""
    name, _, stem = arch.partition(":")
    depth = int(name.removeprefix("resnet"))
    deep = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
    if depth in deep:
        return ResNet((64, 128, 256, 512), deep[depth], stem or "cifar", bottleneck=depth >= 50)
    if depth % 6 != 2 or stem:
        raise ValueError(f"unknown architecture {arch}")
    return ResNet((16, 32, 64), (depth // 6,) * 3, "cifar", option_a=True)


class LanguageModel(nn.Module):
    """The architecture and the parameter names of PyTorch's word_language_model example."""

    def __init__(self, vocabulary, emsize, nhid, nlayers, tied):
        super().__init__()
        self.drop = nn.Dropout(0.0)
        self.encoder = nn.Embedding(vocabulary, emsize)
        self.rnn = nn.LSTM(emsize, nhid, nlayers, dropout=0.0)
        self.decoder = nn.Linear(nhid, vocabulary)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens, state=None):
        y, state = self.rnn(self.drop(self.encoder(tokens)), state)
        return self.decoder(self.drop(y)), state
