#!/usr/bin/env python3
"""Makes the golden values of this folder with PyTorch (1.13.1 of Debian 12 made the committed ones).

    /usr/bin/python3 tests/golden/make_golden.py [--check]

Everything is computed in float64 and stored as float32, one safetensors file per case. Weights,
inputs, labels and upstream gradients follow the formula that formula.py states and are not stored;
in a layer case their names are `<case>.x`, `<case>.weight`, `<case>.dy` and so on. Models read
`input:<seed>` and `labels:<seed>`; the file holds the seeds as `input_seed` (one per step).
Language models read `tokens:<step>` and `targets:<step>`.

A tensor of at most 2400 elements is stored whole. A larger one, or a model's gradient, is sampled:
`name.sampled` holds its L2 norm, its projection sum_i t_i * u("proj:" + name, i), and K entries
t[(k * size) div K], K being the length less two. Entries are unique if `size` is at least K;
a smaller tensor repeats some.

Seeds: at a kink (a ReLU's zero, a max pool's tie) rounding decides which way the gradient goes, and
one element that goes the other way moves gradients by 1e-3. A model has 10^5 such elements. The
script tries a number of seeds, uses the one whose nearest kink is farthest away, and fails if that
is under 1e-5: an implementation whose activations are that exact decides every kink as PyTorch does.

The script also computes every model in float32 and prints how far that is from float64, so that
the bound of the tests (relative 1e-4) is known to leave room for rounding. It fails if float32 is
not below a third of that bound. --check writes nothing and compares with the stored files.
"""

import argparse
import math
import pathlib
import sys

import numpy as np
import torch
from torch.nn import functional as F

from formula import LanguageModel, he_scale, label, make_resnet, read_safetensors, set_parameters
from formula import uniform, value, write_safetensors

HERE = pathlib.Path(__file__).parent
BOUND = 1e-4
KINK_DISTANCE = 1e-5
WHOLE = 2400
failures = []


def sample(name, t, entries):
    flat = t.detach().double().flatten().numpy()
    at = [(k * flat.size) // entries for k in range(entries)]
    projection = float(np.dot(flat, uniform("proj:" + name, flat.size)))
    return np.concatenate([[math.sqrt(np.dot(flat, flat)), projection], flat[at]])


def sampled_error(a, b, size):
    """The worst of: norm, projection and root mean square entry, relative to what b should have."""
    norm, entry = b[0], b[0] / math.sqrt(size)
    rms = math.sqrt(np.mean((a[2:] - b[2:]) ** 2))
    return max(abs(a[0] - b[0]) / norm, abs(a[1] - b[1]) / norm, rms / entry)


def relative(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-300))


def save(case, tensors, check):
    path = HERE / f"{case}.safetensors"
    if not check:
        write_safetensors(path, tensors, {"made_by": f"make_golden.py, PyTorch {torch.__version__}"})
        return
    stored = read_safetensors(path)
    if list(stored) != list(tensors):
        failures.append(f"{path.name}: holds other tensors than those that the script makes")
        return
    for name, t in tensors.items():
        worst = relative(stored[name].numpy(), np.asarray(t))
        if worst > 1e-6:
            failures.append(f"{path.name}: {name} differs by {worst:.1e}")


def numpy(t):
    return t.detach().double().numpy()


# ----------------------------------------------------------------------------------------- layers


def layer_case(case, inputs, run, check, dy=(1.0, 0.0), gradients=True):
    """Runs `run(**inputs)` -> {name: tensor}, the first being y, and its gradients d<input>.

    inputs: {name: (shape, scale, offset)}; dy: scale and offset of the upstream gradient.
    """
    errors = {}

    def compute(dtype):
        leaves = {}
        for name, (shape, scale, offset) in inputs.items():
            leaf = value(f"{case}.{name}", shape, scale, offset, dtype)
            leaves[name] = leaf.requires_grad_()
        results = run(**leaves)
        y = next(iter(results.values()))
        if gradients:
            y.backward(value(f"{case}.dy", y.shape, *dy, dtype))
            results.update({"d" + name: leaf.grad for name, leaf in leaves.items()})
        return {name: numpy(t) for name, t in results.items()}

    exact, rounded, tensors = compute(torch.float64), compute(torch.float32), {}
    for name, t in exact.items():
        errors[name] = relative(rounded[name], t)
        if t.size <= WHOLE:
            tensors[name] = t
        else:
            tensors[name + ".sampled"] = sample(name, torch.from_numpy(t), 256)
    report(case, errors)
    save(case, tensors, check)


def report(case, errors, distance=None):
    name, worst = max(errors.items(), key=lambda item: item[1])
    kink = f", nearest kink {distance:.1e}" if distance else ""
    print(f"{case:28s} float32 against float64: {worst:.1e} ({name}){kink}", flush=True)
    if not worst < BOUND / 3:
        failures.append(f"{case}: float32 differs from float64 by {worst:.1e} in {name}")


def conv_case(case, x, w, check, **options):
    def run(x, weight):
        return {"y": F.conv2d(x, weight, **options)}

    layer_case(case, {"x": (x, 1, 0), "weight": (w, he_scale(w), 0)}, run, check)


def batchnorm_case(case, shape, check, training=True, relu=False, add=False):
    c = shape[1]

    def run(x, weight, bias, residual=None):
        mean = value(f"{case}.running_mean", (c,), 0.1, 0.0, x.dtype)
        var = value(f"{case}.running_var", (c,), 0.1, 1.0, x.dtype)
        y = F.batch_norm(x, mean, var, weight, bias, training, 0.1, 1e-5)
        y = y + residual if add else y
        y = F.relu(y) if relu else y
        return {"y": y, "running_mean": mean, "running_var": var} if training else {"y": y}

    # Away from mean 0, and a variance so small that epsilon shows.
    inputs = {"x": (shape, 0.2, 0.5), "weight": ((c,), 0.1, 1), "bias": ((c,), 0.1, 0)}
    if add:
        inputs["residual"] = (shape, 1, 0)
    layer_case(case, inputs, run, check, gradients=training)


def transposed_case(case, x, w, check, **options):
    def run(x, weight, bias):
        return {"y": F.conv_transpose2d(x, weight, bias, **options)}

    bias = (w[1] * options.get("groups", 1),)
    layer_case(case, {"x": (x, 1, 0), "weight": (w, he_scale(w), 0), "bias": (bias, 0.1, 0)}, run, check)


def attention_case(case, sizes, check, causal=False):
    """torch.nn.MultiheadAttention with itself: (T, B, D) and heads."""
    t, b, d, heads = sizes

    def run(x, **weights):
        model = torch.nn.MultiheadAttention(d, heads).to(x.dtype)
        mask = torch.ones(t, t, dtype=torch.bool).triu(1) if causal else None
        names = {name: weights[name.replace(".", "_")] for name, _ in model.named_parameters()}
        y, _ = torch.nn.utils.stateless.functional_call(
            model, names, (x, x, x), {"need_weights": False, "attn_mask": mask})
        return {"y": y}

    inputs = {"x": ((t, b, d), 1, 0)}
    for name, p in torch.nn.MultiheadAttention(d, heads).named_parameters():
        inputs[name.replace(".", "_")] = (tuple(p.shape), 0.5, 0)
    layer_case(case, inputs, run, check)


def pool_case(case, shape, f, check, scale=1):
    layer_case(case, {"x": (shape, scale, 0)}, lambda x: {"y": f(x)}, check)


def make_layers(check):
    conv_case("conv2d_3x3_s1", (2, 8, 9, 7), (12, 8, 3, 3), check, padding=1)
    conv_case("conv2d_3x3_s2", (2, 8, 9, 7), (12, 8, 3, 3), check, stride=2, padding=1)
    conv_case("conv2d_1x1_s2", (2, 8, 9, 7), (12, 8, 1, 1), check, stride=2)
    conv_case("conv2d_7x7_s2", (2, 3, 15, 13), (16, 3, 7, 7), check, stride=2, padding=3)
    conv_case("conv2d_groups2", (2, 8, 9, 7), (12, 4, 3, 3), check, padding=1, groups=2)
    conv_case("conv2d_3x3_c16", (2, 16, 8, 8), (16, 16, 3, 3), check, padding=1)
    conv_case("conv2d_3x3_c32", (2, 32, 8, 8), (32, 32, 3, 3), check, padding=1)
    conv_case("conv2d_3x3_c32_odd", (3, 32, 9, 7), (48, 32, 3, 3), check, padding=1)
    conv_case("conv2d_3x3_c64", (1, 64, 6, 11), (64, 64, 3, 3), check, padding=1)
    conv_case("conv2d_3x3_c16_s2", (2, 16, 8, 8), (32, 16, 3, 3), check, stride=2, padding=1)
    conv_case("conv2d_3x3_c3_c16", (2, 3, 8, 8), (16, 3, 3, 3), check, padding=1)
    conv_case("conv2d_1x1_c32", (2, 32, 4, 4), (64, 32, 1, 1), check)

    for suffix, shape in (("", (3, 5, 4, 6)), ("_c16", (2, 16, 4, 4))):
        batchnorm_case("batchnorm_train" + suffix, shape, check)
        batchnorm_case("batchnorm_eval" + suffix, shape, check, training=False)
        batchnorm_case("batchnorm_relu" + suffix, shape, check, relu=True)
        batchnorm_case("batchnorm_add_relu" + suffix, shape, check, relu=True, add=True)

    pool_case("relu", (2, 8, 5, 5), F.relu, check)
    pool_case("leaky_relu", (2, 8, 5, 5), lambda x: F.leaky_relu(x, 0.2), check)
    pool_case("sigmoid", (2, 8, 5, 5), torch.sigmoid, check, scale=4)
    pool_case("tanh", (2, 8, 5, 5), torch.tanh, check, scale=4)
    pool_case("gelu", (2, 8, 5, 5), F.gelu, check, scale=4)
    pool_case("softmax", (3, 16, 2, 9), lambda x: F.softmax(x, -1), check, scale=4)
    # A variance so small that epsilon shows.
    norm = {"x": ((4, 16, 10), 0.02, 0.05), "weight": ((10,), 0.1, 1), "bias": ((10,), 0.1, 0)}
    layer_case("layernorm", norm, lambda x, weight, bias: {"y": F.layer_norm(x, (10,), weight, bias)}, check)
    attention_case("attention", (5, 3, 8, 2), check)
    attention_case("attention_causal", (6, 2, 12, 3), check, causal=True)
    transposed_case("conv_transpose2d_3x3_s2", (2, 8, 4, 5), (8, 6, 3, 3), check, stride=2, padding=1)
    transposed_case("conv_transpose2d_4x4_c16", (2, 32, 4, 3), (32, 16, 4, 4), check, stride=2, padding=1)
    transposed_case("conv_transpose2d_groups2", (2, 8, 4, 5), (8, 3, 3, 3), check, groups=2)
    transposed_case("conv_transpose1d", (3, 4, 1, 9), (4, 32, 1, 3), check, stride=2)
    pool_case("max_pool_3x3_s2", (2, 5, 9, 8), lambda x: F.max_pool2d(x, 3, 2, 1), check)
    pool_case("max_pool_3x3_s2_c16", (2, 16, 8, 8), lambda x: F.max_pool2d(x, 3, 2, 1), check)
    pool_case("global_avg_pool", (2, 16, 5, 7), lambda x: x.mean((2, 3)), check)

    linear = {"x": ((5, 24), 1, 0), "weight": ((10, 24), he_scale((10, 24)), 0), "bias": ((10,), 0.1, 0)}
    layer_case("linear", linear, lambda x, weight, bias: {"y": F.linear(x, weight, bias)}, check)

    def pair_case(case, loss, scale):
        def run(a):
            return {"loss": loss(a, value(f"{case}.b", (4, 3, 5), 0.5, 0.5, a.dtype)).reshape(1)}

        layer_case(case, {"a": ((4, 3, 5), scale, 0)}, run, check, dy=(0, 1))

    pair_case("mse_loss", F.mse_loss, 1)
    pair_case("bce_with_logits", F.binary_cross_entropy_with_logits, 8)

    for case, smoothing in (("cross_entropy", 0.0), ("cross_entropy_smoothed", 0.1)):

        def run(logits):
            labels = label(f"{case}.labels", 7, 10)
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
            return {"loss": loss.reshape(1)}

        layer_case(case, {"logits": ((7, 10), 3, 0)}, run, check, dy=(0, 1))


def lstm_case(case, sizes, check, layers=1, windows=1, kind=torch.nn.LSTM):
    """torch.nn.LSTM or GRU from a state that is not zero; x holds the windows one after the other. Values
    of the state are carried from window to window, gradients are not."""
    t, b, i, h = sizes

    def make(dtype=torch.float32):
        return kind(i, h, layers).to(dtype)

    def run(x, **weights):
        model, outputs = make(x.dtype), []
        model._flat_weights = [weights[name] for name in model._flat_weights_names]
        names = ("h0", "c0") if kind is torch.nn.LSTM else ("h0",)
        state = tuple(value(f"{case}.{name}", (layers, b, h), 1, 0, x.dtype) for name in names)
        for window in x.split(t):
            state = tuple(s.detach() for s in state)
            y, state = model(window, state if len(state) > 1 else state[0])
            state = state if isinstance(state, tuple) else (state,)
            outputs.append(y)
        return {"y": torch.cat(outputs)} | dict(zip(("h", "c"), state))

    inputs = {"x": ((windows * t, b, i), 1, 0)}
    for name, p in make().named_parameters():
        inputs[name] = (p.shape, he_scale(p.shape) if p.dim() > 1 else 0.1, 0)
    layer_case(case, inputs, run, check)


def make_language_layers(check):
    def run(weight):
        tokens = label("embedding.labels", 24, 20).reshape(6, 4)  # some often, some never
        return {"y": F.embedding(tokens, weight)}

    layer_case("embedding", {"weight": ((20, 13), 1, 0)}, run, check)

    odd, even = (5, 3, 7, 10), (4, 16, 16, 32)  # T, B, I, H
    lstm_case("lstm", odd, check)
    lstm_case("lstm_2", odd, check, layers=2)
    lstm_case("lstm_h32", even, check, layers=2)
    lstm_case("lstm_windows", odd, check, layers=2, windows=2)
    lstm_case("gru", odd, check, layers=2, windows=2, kind=torch.nn.GRU)


# ----------------------------------------------------------------------------------------- models


def kink_distance(model, x):
    """Returns the least distance of a ReLU's input from zero, or of a max pool's two largest candidates."""
    distances = []

    def at_relu(module, inputs):
        distances.append(inputs[0].abs().min().item())

    def at_pool(module, inputs):
        c = inputs[0].shape[1]
        windows = F.unfold(inputs[0], module.kernel_size, 1, module.padding, module.stride)
        top = windows.unflatten(1, (c, -1)).topk(2, dim=2).values
        gap = (top[:, :, 0] - top[:, :, 1])[top[:, :, 0] > 0]  # all zero: the ReLU stops it anyway
        distances.append(gap.min().item())

    hooks = []
    for m in model.modules():
        if isinstance(m, torch.nn.ReLU):
            hooks.append(m.register_forward_pre_hook(at_relu))
        elif isinstance(m, torch.nn.MaxPool2d):
            hooks.append(m.register_forward_pre_hook(at_pool))
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return min(distances)


def choose_seed(case, model, shape, seeds, least=KINK_DISTANCE):
    """The seed whose input stays farthest from all kinks of a float64 model in training mode."""
    distance, seed = max(
        (kink_distance(model, value(f"input:{s}", shape, dtype=torch.float64)), s) for s in seeds
    )
    if distance < least:
        failures.append(f"{case}: input {seed} is {distance:.1e} from a kink")
    return seed, distance


def model_run(arch, seed, shape, dtype):
    model = set_parameters(make_resnet(arch).to(dtype))
    x = value(f"input:{seed}", shape, dtype=dtype)
    logits = model.train()(x)
    loss = F.cross_entropy(logits, label(f"labels:{seed}", shape[0], 10))
    loss.backward()
    with torch.no_grad():
        evaluated = model.eval()(x)
    return model, {"logits": numpy(logits), "loss": numpy(loss).reshape(1), "eval_logits": numpy(evaluated)}


def make_model(case, arch, batch, size, check, seeds=100):
    """Logits and loss in training mode, then logits in evaluation mode: these show the running
    statistics of all layers after one step. Gradients only if seeds are tried, to stay away from kinks.
    """
    shape, seed, distance = (batch, 3, size, size), 0, None
    if seeds:
        model = set_parameters(make_resnet(arch).double()).train()
        seed, distance = choose_seed(case, model, shape, range(seeds))
    exact, results = model_run(arch, seed, shape, torch.float64)
    rounded, results32 = model_run(arch, seed, shape, torch.float32)
    errors = {n: relative(results32[n], t) for n, t in results.items()}
    tensors = {"input_seed": np.array([seed]), **results}
    if seeds:
        for (name, p), (_, q) in zip(exact.named_parameters(), rounded.named_parameters()):
            key = "grad:" + name
            tensors[key + ".sampled"] = sample(key, p.grad, 16)
            errors[key] = sampled_error(sample(key, q.grad, 16), tensors[key + ".sampled"], p.numel())
    report(case, errors, distance)
    save(case, tensors, check)


def make_steps(case, check, **options):
    """Ten steps of SGD on ResNet-20, batch 4 at 12x12, the same learning rate throughout. Rounding adds up over the
    steps, so that the kinks are kept three times as far away: at 2.7e-5 a compiler's order of sums decided one."""
    shape, steps, tries = (4, 3, 12, 12), 10, 100

    def train(dtype, seeds=None):
        model = set_parameters(make_resnet("resnet20").to(dtype)).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **options)
        losses, chosen = [], []
        for step in range(steps):
            if seeds is None:
                candidates = range(tries * step, tries * (step + 1))
                chosen.append(choose_seed(case, model, shape, candidates, 3 * KINK_DISTANCE))
            seed = chosen[step][0] if seeds is None else seeds[step]
            loss = F.cross_entropy(
                model(value(f"input:{seed}", shape, dtype=dtype)), label(f"labels:{seed}", shape[0], 10)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model, losses, chosen

    exact, losses, chosen = train(torch.float64)
    seeds, distances = zip(*chosen)
    rounded, losses32, _ = train(torch.float32, seeds)
    tensors = {"input_seed": np.array(seeds), "losses": losses}
    errors = {"losses": relative(losses32, losses)}
    for (name, p), (_, q) in zip(exact.named_parameters(), rounded.named_parameters()):
        key = "param:" + name
        tensors[key + ".sampled"] = sample(key, p, 4)
        errors[key] = sampled_error(sample(key, q, 4), tensors[key + ".sampled"], p.numel())
    report(case, errors, min(distances))
    save(case, tensors, check)


def make_language_steps(case, emsize, tied, check):
    """Ten steps of a language model as the word_language_model example takes them: SGD, gradients
    clipped to a global norm of 0.25, the state carried from step to step without its history."""
    steps, t, b, vocabulary, nhid, nlayers = 10, 6, 4, 50, 12, 2

    def train(dtype):
        model = set_parameters(LanguageModel(vocabulary, emsize, nhid, nlayers, tied).to(dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=20)
        state = tuple(torch.zeros(nlayers, b, nhid, dtype=dtype) for _ in "hc")
        losses, norms = [], []
        for step in range(steps):
            tokens = label(f"tokens:{step}", t * b, vocabulary).reshape(t, b)
            logits, state = model(tokens, tuple(s.detach() for s in state))
            targets = label(f"targets:{step}", t * b, vocabulary)
            loss = F.cross_entropy(logits.reshape(t * b, vocabulary), targets)
            optimizer.zero_grad()
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25).item())
            optimizer.step()
            losses.append(loss.item())
        results = {"losses": losses, "grad_norms": norms, "h": numpy(state[0]), "c": numpy(state[1])}
        return model, results

    exact, tensors = train(torch.float64)
    rounded, results = train(torch.float32)
    errors = {name: relative(results[name], t) for name, t in tensors.items()}
    for (name, p), (_, q) in zip(exact.named_parameters(), rounded.named_parameters()):
        key = "param:" + name
        tensors[key + ".sampled"] = sample(key, p, 16)
        errors[key] = sampled_error(sample(key, q, 16), tensors[key + ".sampled"], p.numel())
    report(case, errors)
    save(case, tensors, check)


# ------------------------------------------------------------------------- optimisers, schedules


def make_formula(check):
    """The formula itself, which the two sides must agree on bit for bit."""
    tensors = {
        "uniform": value("layer1.0.conv1.weight", (1000,)),
        "scaled": value("layer1.0.conv1.weight", (1000,), he_scale((16, 16, 3, 3))),
        "shifted": value("bn1.weight", (1000,), 0.1, 1.0),
        "labels": label("labels:0", 100, 10),
    }
    save("formula", tensors, check)


def make_optimizers(check):
    """Five steps on a vector of 37 elements, gradients `toy.grad:<step>`: values after each step."""
    cases = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "sgd_weight_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
        "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "sgd_momentum_weight_decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "adam_weight_decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01),
    }
    tensors = {}
    for name, make in cases.items():
        p = value("toy.param", (37,), 1, 0, torch.float64).requires_grad_()
        optimizer, values = make([p]), []
        for step in range(5):
            p.grad = value(f"toy.grad:{step}", (37,), 1, 0, torch.float64)
            optimizer.step()
            values.append(numpy(p).copy())
        tensors[name] = np.stack(values)
    save("optimizers", tensors, check)


def make_schedules(check):
    """Learning rates of 30 epochs (for one-cycle: steps), as used in epoch 0, 1, ... 29.

    The plateau's metric after epoch e is value("plateau.metric", e; 0.5, 1), lower is better.
    """
    scheduler = torch.optim.lr_scheduler
    cases = {
        "step": lambda o: scheduler.StepLR(o, step_size=7, gamma=0.1),
        "multistep": lambda o: scheduler.MultiStepLR(o, milestones=[8, 19, 25], gamma=0.1),
        "cosine": lambda o: scheduler.CosineAnnealingLR(o, T_max=30),
        "onecycle": lambda o: scheduler.OneCycleLR(o, max_lr=0.4, total_steps=30, cycle_momentum=False),
        "plateau": lambda o: scheduler.ReduceLROnPlateau(o, factor=0.1, patience=3),
    }
    metric, tensors = value("plateau.metric", (30,), 0.5, 1.0).double(), {}
    for name, make in cases.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
        schedule, rates = make(optimizer), []
        for epoch in range(30):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if epoch < 29:
                schedule.step(*([metric[epoch].item()] if name == "plateau" else []))
        tensors[name] = rates
    save("schedules", tensors, check)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="compare with the stored files")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    make_formula(check)
    make_layers(check)
    make_language_layers(check)
    make_optimizers(check)
    make_schedules(check)
    make_language_steps("lm_steps", 10, False, check)
    make_language_steps("lm_steps_tied", 12, True, check)
    make_model("resnet20", "resnet20", 4, 16, check)
    make_model("resnet18", "resnet18:cifar", 2, 16, check)
    make_model("resnet18_imagenet", "resnet18:imagenet", 4, 48, check)
    make_model("resnet50_imagenet", "resnet50:imagenet", 2, 128, check, seeds=0)
    make_steps("sgd_steps", check)
    make_steps("sgd_steps_nesterov", check, nesterov=True)
    total = sum(f.stat().st_size for f in HERE.glob("*.safetensors"))
    print(f"{total / 1024:.0f} KiB of golden values")
    for line in failures:
        print("make_golden.py:", line, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
