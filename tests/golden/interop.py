#!/usr/bin/env python3
"""Exchanges weights between heddle and PyTorch as safetensors under PyTorch's names.

    interop.py write ARCH WEIGHTS LOGITS     PyTorch writes both; heddle reads and compares
    interop.py check ARCH WEIGHTS LOGITS     heddle wrote both; PyTorch reads and compares

ARCH is resnet20, 32, 44, 56, 110, or resnet18, 34, 50, 101, 152 followed by `:cifar` (the default here)
or `:imagenet`, or `lm:untied` or `lm:tied`, a language model of two LSTM layers with 60 words,
emsize 16 (tied: 24) and nhid 24. LOGITS holds one tensor `logits`: the model in evaluation mode on
inputs of formula.py. For a ResNet that is (N, 10) for `interop.input`, (N, 3, 32, 32), or
(N, 3, 64, 64) with the imagenet stem; for a language model (7, B, 60) for the labels `interop.tokens`,
(7, B), from a state of zeros. `check` demands exactly the model's names, shapes and types, and logits
within a relative error of 1e-4; it exits with 1 if shapes, types or values differ, with 2 if names
differ or a file or ARCH is wrong, and with 77 without PyTorch.
"""

import sys

try:
    import torch
except ImportError:
    print("interop.py: no PyTorch in this python3", file=sys.stderr)
    sys.exit(77)

from formula import LanguageModel, label, make_resnet, read_safetensors, set_parameters
from formula import value, write_safetensors

LANGUAGE = {"lm:untied": (16, False), "lm:tied": (24, True)}  # emsize, tied


def make_model(arch):
    if arch not in LANGUAGE:
        return make_resnet(arch)
    emsize, tied = LANGUAGE[arch]
    return LanguageModel(60, emsize, 24, 2, tied)


def run(model, arch, batch):
    size = 64 if arch.endswith(":imagenet") else 32
    with torch.no_grad():
        if arch in LANGUAGE:
            return model.eval()(label("interop.tokens", 7 * batch, 60).reshape(7, batch))[0]
        return model.eval()(value("interop.input", (batch, 3, size, size)))


def write(arch, weights, logits):
    model = set_parameters(make_model(arch))
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(value(name, buffer.shape, 0.1))
        elif name.endswith("running_var"):
            buffer.copy_(value(name, buffer.shape, 0.5, 2.0))
        else:
            buffer.fill_(7)
    write_safetensors(weights, model.state_dict(), {"format": "pt"})
    write_safetensors(logits, {"logits": run(model, arch, 4)})


def check(arch, weights, logits):
    model, state = make_model(arch), read_safetensors(weights)
    for name, expected in model.state_dict().items():
        found = state.get(name, expected)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            sys.exit(
                f"interop.py: {weights}: {name} is {found.dtype} {list(found.shape)},"
                f" expected {expected.dtype} {list(expected.shape)}"
            )
    model.load_state_dict(state, strict=True)  # names PyTorch lacks or heddle lacks: an error
    if arch == "lm:tied" and not state["encoder.weight"].equal(state["decoder.weight"]):
        sys.exit(f"interop.py: {weights}: encoder.weight and decoder.weight differ")
    ours = read_safetensors(logits)["logits"]
    expected = run(model, arch, ours.shape[1 if arch in LANGUAGE else 0])
    if ours.shape != expected.shape:
        sys.exit(f"interop.py: {logits}: logits are {list(ours.shape)}, expected {list(expected.shape)}")
    error = ((ours - expected).norm() / expected.norm()).item()
    print(f"{arch}: {len(state)} tensors, relative error of the logits {error:.1e}")
    return 0 if error <= 1e-4 else 1  # NaN fails too


def main():
    if len(sys.argv) != 5 or sys.argv[1] not in ("write", "check"):
        print(__doc__, file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    try:
        return (write if sys.argv[1] == "write" else check)(*sys.argv[2:]) or 0
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        print(f"interop.py: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
