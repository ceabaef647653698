#!/usr/bin/env python3
"""The reference of `./run bench`: the same training step in PyTorch.

Builds the same ResNets as layers/resnet.h or the same language model as layers/lstm_lm.h, times
forward, loss, backward and update on random data, and prints one JSON line: {"torch": version,
"ms": [per step], "cpu_ms": [...], "rss_bytes": peak, "loss": last}. On a GPU the bytes are what PyTorch
has reserved there.

  torch_step.py --arch resnet20 --batch 128 --image-size 32 --classes 10 --threads 2 --layout nhwc
  torch_step.py --arch lstm_lm --batch 20 --bptt 35 --threads 2
"""
import argparse
import contextlib
import json
import time

import torch
from torch import nn
from torch.nn import functional

# arch: (CIFAR family, bottleneck blocks, blocks per stage)
ARCHS = {
    "resnet20": (True, False, (3, 3, 3)),
    "resnet18": (False, False, (2, 2, 2, 2)),
    "resnet50": (False, True, (3, 4, 6, 3)),
}


def conv(channels_in, channels_out, kernel, stride=1):
    return nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    """Convolutions with batch norm, a shortcut around them, ReLU after the sum."""

    def __init__(self, channels_in, width, stride, bottleneck, option_a):
        super().__init__()
        channels_out = width * 4 if bottleneck else width
        if bottleneck:
            plan = [(channels_in, width, 1, 1), (width, width, 3, stride), (width, channels_out, 1, 1)]
        else:
            plan = [(channels_in, width, 3, stride), (width, width, 3, 1)]
        self.convs = nn.ModuleList(conv(*unit) for unit in plan)
        self.norms = nn.ModuleList(nn.BatchNorm2d(unit[1]) for unit in plan)
        self.padding = 0  # channels of zeros on either side of the subsampled identity
        self.downsample = None
        if stride != 1 or channels_in != channels_out:
            if option_a:
                self.padding = (channels_out - channels_in) // 2
            else:
                self.downsample = nn.Sequential(
                    conv(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out))

    def forward(self, x):
        y = x
        for unit, norm in zip(self.convs[:-1], self.norms[:-1]):
            y = functional.relu(norm(unit(y)), inplace=True)
        y = self.norms[-1](self.convs[-1](y))
        if self.padding:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))
        elif self.downsample is not None:
            x = self.downsample(x)
        y += x
        return functional.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, arch, small_stem, classes):
        super().__init__()
        cifar, bottleneck, depths = ARCHS[arch]
        width = 16 if cifar else 64
        self.stem = conv(3, width, 3) if small_stem else conv(3, width, 7, 2)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(Block(channels, width << stage, stride, bottleneck, cifar))
                channels = (width << stage) * (4 if bottleneck else 1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.pool(functional.relu(self.norm(self.stem(x)), inplace=True))
        return self.head(self.blocks(x).mean((2, 3)))


class LanguageModel(nn.Module):
    """Embedding, dropout, LSTM layers with dropout between them, dropout, decoder."""

    def __init__(self, vocabulary, emsize, nhid, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, emsize)
        self.rnn = nn.LSTM(emsize, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, vocabulary)

    def forward(self, tokens, state):
        y, state = self.rnn(self.drop(self.encoder(tokens)), state)
        return self.decoder(self.drop(y)), state


def compiled(model, o):
    return model if o.compile == "none" else torch.compile(model, mode=o.compile)


def make_optimizer(parameters, o):
    """SGD as this release of PyTorch has it; with --best its fastest implementation."""
    settings = {"lr": 0.01, "momentum": o.momentum, "weight_decay": o.weight_decay}
    parameters = list(parameters)
    for extra in ({"fused": True}, {"foreach": True}) if o.best else ():
        with contextlib.suppress(TypeError, RuntimeError):
            return torch.optim.SGD(parameters, **settings, **extra)
    return torch.optim.SGD(parameters, **settings)


def peak_rss_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def used_bytes(o):
    return torch.cuda.max_memory_reserved() if o.device == "cuda" else peak_rss_bytes()


def make_images(o):
    """A model, and a function that gives logits and labels of a batch of images."""
    form = torch.channels_last if o.layout == "nhwc" else torch.contiguous_format
    model = ResNet(o.arch, o.stem == "cifar", o.classes).to(o.device, memory_format=form)
    images = torch.randn(o.batch, 3, o.image_size, o.image_size, device=o.device).to(memory_format=form)
    labels = torch.randint(o.classes, (o.batch,), device=o.device)
    run = compiled(model, o)
    return model, lambda: (run(images), labels)


def make_text(o):
    """The same for a window of tokens; the state is carried from step to step without its history."""
    model = LanguageModel(o.vocabulary, o.emsize, o.nhid, o.nlayers, o.dropout).to(o.device)
    tokens = torch.randint(o.vocabulary, (o.bptt, o.batch), device=o.device)
    targets = torch.randint(o.vocabulary, (o.bptt * o.batch,), device=o.device)
    state = (torch.zeros(o.nlayers, o.batch, o.nhid, device=o.device),) * 2
    run = compiled(model, o)

    def forward():
        nonlocal state
        logits, state = run(tokens, tuple(s.detach().clone() for s in state))
        return logits.flatten(0, 1), targets

    return model, forward


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--arch", choices=(*ARCHS, "lstm_lm"), default="resnet20")
    flags.add_argument("--stem", choices=("cifar", "imagenet"), default="cifar")
    flags.add_argument("--batch", type=int, default=128)
    flags.add_argument("--image-size", type=int, default=32)
    flags.add_argument("--classes", type=int, default=10)
    flags.add_argument("--vocabulary", type=int, default=10000)
    flags.add_argument("--emsize", type=int, default=650)
    flags.add_argument("--nhid", type=int, default=650)
    flags.add_argument("--nlayers", type=int, default=2)
    flags.add_argument("--bptt", type=int, default=35)
    flags.add_argument("--dropout", type=float, default=0.5)
    flags.add_argument("--momentum", type=float, default=0)
    flags.add_argument("--weight-decay", type=float, default=0)
    flags.add_argument("--clip", type=float, default=0, help="maximum global norm of the gradients; 0: no clipping")
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    flags.add_argument("--compile", choices=("none", "default", "max-autotune"), default="none")
    flags.add_argument("--layout", choices=("nchw", "nhwc"), default="nhwc")
    flags.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    flags.add_argument("--best", action="store_true", help="use the fastest optimizer of this release")
    flags.add_argument("--warmup", type=int, default=2)
    flags.add_argument("--steps", type=int, default=5)
    o = flags.parse_args()

    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False  # like PyTorch's matrix products, and heddle without --tf32
    torch.backends.cudnn.benchmark = True
    model, forward = (make_text if o.arch == "lstm_lm" else make_images)(o)
    optimizer = make_optimizer(model.parameters(), o)
    half = torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.precision == "bf16")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with half:
            logits, labels = forward()
        loss = functional.cross_entropy(logits.float(), labels)
        loss.backward()
        if o.clip > 0:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        return loss.item()

    wall_ms, cpu_ms, loss = [], [], 0.0
    for i in range(o.warmup + o.steps):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        loss = step()
        if o.device == "cuda":
            torch.cuda.synchronize()
        if i >= o.warmup:
            wall_ms.append(1000 * (time.perf_counter() - begin))
            cpu_ms.append(1000 * (time.process_time() - cpu_begin))
    print(json.dumps({"torch": torch.__version__, "ms": wall_ms, "cpu_ms": cpu_ms,
                      "rss_bytes": used_bytes(o), "loss": loss}))


main()
