#!/usr/bin/env python3
"""Estimates a training step of ResNet-50 (224 x 224, bf16, channels last) on a GPU, part by part, in ms.

A roofline: each part takes the longer of its arithmetic at --tflops and its traffic at --gb-per-s, as if each tensor of
activations was read or written once per use. --efficiency is the share of --tflops that convolutions reach, by
assumption. Real steps are slower: small kernels, launches and cold caches are not in it.

  docs/tools/roofline_resnet50.py [--gpu h100|h200] [--tflops T --gb-per-s G] [--batch 256] [--efficiency 0.75]
"""
import argparse

# TFLOP/s of a bf16 product, GB/s of a copy (reads and writes counted), both as measured.
GPUS = {"h100": (776, 3027), "h200": (790, 4300)}
BF16, FP32 = 2, 4  # bytes
CLASSES, SIZE, STEM = 1000, 224, 64


def conv(size, channels_in, channels_out, kernel, stride):
    """Returns (multiply-adds, inputs read, outputs) of one image, and the number of weights."""
    out = size // stride
    taps = channels_in * kernel**2
    read = size**2 * channels_in // (stride**2 if kernel == 1 else 1)  # a strided 1 x 1 skips pixels
    return out**2 * channels_out * taps, read, out**2 * channels_out, taps * channels_out


def network():
    """Returns convolutions after the stem, and batch norms as (elements, whether a shortcut is added)."""
    convs, norms = [], [((SIZE // 2) ** 2 * STEM, False)]
    size, channels = SIZE // 4, STEM
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            shapes = [(size, channels, width, 1, 1), (size, width, width, 3, stride),
                      (size // stride, width, 4 * width, 1, 1)]
            if block == 0:
                shapes.append((size, channels, 4 * width, 1, stride))
            convs += [conv(*shape) for shape in shapes]
            norms += [(convs[i - len(shapes)][2], i == 2) for i in range(len(shapes))]
            size, channels = size // stride, 4 * width
    return convs + [conv(1, channels, CLASSES, 1, 1)], norms


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--gpu", choices=GPUS, default="h100")
    flags.add_argument("--tflops", type=float, help="of a bf16 product (default: the GPU's)")
    flags.add_argument("--gb-per-s", type=float, help="reads and writes of a copy (default: the GPU's)")
    flags.add_argument("--batch", type=int, default=256)
    flags.add_argument("--efficiency", type=float, default=0.75, help="of convolutions (default: 0.75)")
    o = flags.parse_args()
    per_ms = (o.tflops or GPUS[o.gpu][0]) * 1e9 * o.efficiency
    bytes_per_ms = (o.gb_per_s or GPUS[o.gpu][1]) * 1e6

    def product(layer, passes):
        work, read, written, _ = layer
        return passes * max(2 * work * o.batch / per_ms, BF16 * (read + written) * o.batch / bytes_per_ms)

    convs, norms = network()
    stem = conv(SIZE, 3, STEM, 7, 2)
    weights = stem[3] + sum(layer[3] for layer in convs)
    # Forward: two reads, one write. Backward: two reads for the sums, two reads and one write for the gradient. A
    # shortcut is read, and the sign of ReLU's output written, a bit; backward reads that and the second gradient that
    # its output has, and writes the shortcut's gradient, which the second pass reads.
    norm_bytes = BF16 * o.batch * sum(n * (8 + (3 + 2 / 16 if shortcut else 0)) for n, shortcut in norms)
    # Max pooling's output is a quarter of its input; so are the indices, a byte each, which are written and read.
    pool_bytes = o.batch * norms[0][0] * (2.5 * BF16 + 2 / 4)
    cast_bytes = (BF16 + FP32) * (o.batch * 3 * SIZE**2 + 2 * weights)  # images, weights, their gradients
    update_bytes = FP32 * weights * (5 + 1)  # weight, gradient, momentum; two written; the gradient's norm
    rows = [("convolutions", sum(product(layer, 3) for layer in convs)),
            ("batch norm", norm_bytes / bytes_per_ms),
            ("stem, pooling, casts", product(stem, 2) + (pool_bytes + cast_bytes) / bytes_per_ms),
            ("update", update_bytes / bytes_per_ms)]
    for name, ms in [*rows, ("step", sum(ms for _, ms in rows))]:
        print(f"{name:22}{ms:8.2f}")


if __name__ == "__main__":
    main()
