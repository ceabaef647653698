#!/usr/bin/env python3
"""Makes the tables, expectations and charts of docs/results.md from docs/results.jsonl.

  docs/tools/plot_results.py     rewrites the text between "<!-- TABLE name -->" and "<!-- END -->" in docs/results.md,
                                 and docs/results-*.svg
"""
import collections
import math
import pathlib
import re
import statistics
import typing

import results
from reproduce import first_compressed_step

RESULTS = {}  # by name, filled by main()
COLOURS = ["#1b6ca8", "#c1440e", "#3a7d44", "#7b4ea3", "#8a6d00", "#444444"]


def group(prefix):
    """Returns the results whose names have this prefix, by the rest of the name."""
    return {name[len(prefix):]: r for name, r in RESULTS.items() if name.startswith(prefix)}


def table(head, rows):
    if not rows:
        return "No run has been kept yet.\n"
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(x) for x in row) + " |" for row in rows]) + "\n"


def number(x, digits=2):
    return "" if x is None else f"{x:.{digits}f}"


def judged(found, least=None, most=None, error=None):
    """error: the standard error of a mean that was found, if it is known."""
    miss = found - most if least is None else least - found
    near = "" if error is None or abs(miss) >= 2 * error else ", within 2 standard errors"
    if miss <= 1e-4:
        return "holds" + near
    return (f"missed by {miss:.2f}" if miss >= 0.005 else f"missed by {miss:.1g}") + near


def expected(what, found, least=None, most=None, over="", error=None):
    """Returns a line below a table: the expectation, the result, and whether the result meets it."""
    bound = f"≤ {most:.2f}" if least is None else f"≥ {least:.2f}"
    if found is None:
        return f"- {what}: expected {bound}, no run yet\n"
    return f"- {what}: expected {bound}, found {found:.2f}{over}: {judged(found, least, most, error)}\n"


RATIOS = "layers", "values", "wire", "run"
RATIO_HEAD = ["ratio layers", *RATIOS[1:]]


def mean(values):
    values = list(values)
    return statistics.fmean(values) if values else None


def ratios(*runs):
    return [number(mean(r["summary"][f"ratio_{key}"] for r in runs), 1) for key in RATIOS]


def megabytes(*runs):
    return number(mean(r["summary"]["bytes_sent"] for r in runs) / 1e6, 1)


def sent(*runs):
    """Returns the bytes of gradients that a learner sent per compressed step of each run, and a remark about them. Older
    runs counted rank 0 only, and a resumed run has a mean over ranks of its last process only; if any run is of
    these kinds, rank 0 is compared."""
    if all("bytes_step_mean" in r["summary"] and not r.get("resumed") for r in runs):
        return [r["summary"]["bytes_step_mean"] for r in runs], ""
    return [r["bytes_per_step"] for r in runs], " (rank 0)"


def over_budget(runs):
    """Returns a line for each method that planned its layers. runs: (method, result)."""
    plans = {}
    for method, r in runs:
        plans.setdefault(method, []).extend(p["budget_used"] or 0 for p in r.get("plans", {}).values())
    out = ""
    for method, used in plans.items():
        over = sum(u > 1 for u in used)
        if used:
            out += f"- plans over budget, {method}: {over} of {len(used)}"
            out += f", by {100 * (max(used) - 1):.1f} % at most\n" if over else "\n"
    return out


def dense_steps(r):
    """Returns the length of a compressed run's dense start, in steps. Early results do not record it."""
    if "compress_start" in r:
        return r["compress_start"]
    typed = re.search(r"--compress-start (\d+)", r["command"])
    first = r["curve"][0]  # after the first epoch, or after a shorter run
    return first_compressed_step(int(typed[1]) if typed else -1, first["step"] // first["epoch"], r["summary"]["step"])


def plural(n, what):
    return f" over {n} {what}{'' if n == 1 else 's'}"


def runs_by_seed(prefix):
    """Returns method -> seed -> result."""
    by_method = {}
    for name, r in group(prefix).items():
        method, seed = name.rsplit("-", 1)
        by_method.setdefault(method, {})[int(seed)] = r
    return {method: dict(sorted(seeds.items())) for method, seeds in by_method.items()}


def accuracies(seeds):
    return [r["summary"]["valid_acc1"] for r in seeds.values()]


def spread(seeds):
    found = accuracies(seeds)
    return max(found) - min(found) if len(found) > 1 else None


class Difference(typing.NamedTuple):
    """The mean difference of two methods' accuracies over the seeds that both have, in points."""
    points: float | None  # None: no seed is common
    error: float | None  # standard error of the mean; None below three seeds
    seeds: int

    @property
    def over(self):
        return plural(self.seeds, "seed") + ("" if self.error is None else f" (standard error {self.error:.2f})")


def difference(seeds, others):
    each = [seeds[s]["summary"]["valid_acc1"] - others[s]["summary"]["valid_acc1"] for s in sorted(seeds.keys() & others.keys())]
    return Difference(mean(each), standard_error(each), len(each))


def compressed_bytes(r, in_a_step):
    """Returns the bytes per step without the tensors that are sent dense. Their share f of the model follows from the
    ratios: 1 / values = f + (1 - f) / layers."""
    layers, values = r["summary"]["ratio_layers"], r["summary"]["ratio_values"]
    dense_share = (1 / values - 1 / layers) / (1 - 1 / layers)
    return in_a_step - dense_share * r["bytes_dense"]


def standard_error(values):
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 2 else None


def table_by_seed(by_method):
    dense = by_method.get("dense", {})
    rows = []
    for method, seeds in by_method.items():
        found = difference(seeds, dense)
        against = "" if method == "dense" or found.points is None else f"{found.points:+.2f} ({found.seeds})"
        if against and found.error is not None:
            against = against.replace(" (", f" ± {found.error:.2f} (")
        revisions = dict.fromkeys(r["revision"][:7] for r in seeds.values())
        rows.append([method, ", ".join(number(a) for a in accuracies(seeds)), number(mean(accuracies(seeds))),
                     number(spread(seeds)), against, *ratios(*seeds.values()), megabytes(*seeds.values()),
                     ", ".join(revisions)])
    return table(["method", "accuracy by seed, %", "mean", "spread", "against dense, points (seeds)", *RATIO_HEAD,
                  "MB sent, one learner", "revision"], rows)


def sent_by_uniform_over_planned(uniform, planned):
    """Returns the quotient of the bytes sent for the compressed tensors, by seed, and a remark about them."""
    pairs_of = [runs[seed] for seed in sorted(uniform.keys() & planned.keys()) for runs in (uniform, planned)]
    figures, whose = sent(*pairs_of)
    rest = [compressed_bytes(r, x) for r, x in zip(pairs_of, figures)]
    return [uniform / planned for uniform, planned in zip(rest[::2], rest[1::2])], whose


def headline():
    by_method = runs_by_seed("headline-")
    dense, scalecom, lgreco = (by_method.get(m, {}) for m in ("dense", "scalecom", "lgreco-scalecom"))
    out = table_by_seed(by_method)
    if not by_method:
        return out

    found = difference(scalecom, dense)
    out += "\n" + expected("ScaleCom within 0.3 points of dense", found.points, least=-0.3, over=found.over, error=found.error)
    for key, where, least in ("layers", "the compressed tensors", 99), ("values", "the whole model", 50):
        out += expected(f"ScaleCom, ratio by values over {where}",
                        mean(r["summary"][f"ratio_{key}"] for r in scalecom.values()), least=least,
                        over=plural(len(scalecom), "seed"))
    plans = [p["uniform_bytes"] / p["bytes"] for r in lgreco.values() for p in r.get("plans", {}).values()]
    what = "L-GreCo, wire bytes of the compressed tensors, uniform default over planned, "
    out += expected(what + "by its plans", mean(plans), least=1.8, over=plural(len(plans), "plan"))
    gains, whose = sent_by_uniform_over_planned(scalecom, lgreco)
    out += expected(what + f"by what the runs sent{whose}", mean(gains), least=1.8, over=plural(len(gains), "seed"))
    found = difference(lgreco, dense)
    out += expected("L-GreCo within 0.3 points of dense", found.points, least=-0.3, over=found.over, error=found.error)
    found = difference(lgreco, scalecom)
    out += expected("L-GreCo within 0.3 points of uniform ScaleCom", found.points, least=-0.3, over=found.over, error=found.error)
    return out + over_budget((method, r) for method, seeds in by_method.items() for r in seeds.values())


def peers(prefix, dense):
    """Learners that talk to neighbours only, next to sums over all learners of the same images."""
    found = runs_by_seed(prefix)
    by_method = {**({"dense": dense} if dense and found else {}), **found}
    out = table_by_seed(by_method)
    for method, seeds in by_method.items():
        errors = [r["curve"][-1].get("consensus_error") for r in seeds.values()]
        if method == "dense" or None in errors:
            continue
        out += "\n" if "\n- " not in out else ""
        out += f"- {method}: consensus error at the end {', '.join(f'{e:.2g}' for e in errors)}\n"
    for method in ("qsgd",) if prefix != "classes-" and "qsgd" in found else ():
        against = difference(by_method[method], dense)
        out += expected(f"{method}, accuracy against dense, points", against.points, least=-1, over=against.over)
        wire = mean(r["summary"]["ratio_wire"] for r in found[method].values())
        out += expected(f"{method}, bytes of a step, all-reduce over neighbours", wire, least=5.9)
    return out


def privacy(prefix):
    """Runs with differential privacy: accuracy and epsilon."""
    by_method = runs_by_seed(prefix)
    rows = []
    for method, seeds in by_method.items():
        spent = [(r["summary"].get("privacy") or {}).get("epsilon") for r in seeds.values()]
        rows.append([method, ", ".join(number(a) for a in accuracies(seeds)), number(mean(accuracies(seeds))),
                     number(spread(seeds)), "not private" if None in spent else f"{max(spent):.3g}"])
    out = table(["method", "accuracy by seed, %", "mean", "spread", "epsilon"], rows)
    for method in [m for m in ("sgd", "votes", "10", "1") if m in by_method]:
        out += "\n" if "\n- " not in out else ""
        out += expected(f"{method}, accuracy above a guess, points", mean(accuracies(by_method[method])) - 10, least=15,
                        over=plural(len(by_method[method]), "seed"))
    return out


def graphs(prefix):
    """Sampling on a graph, by partition, skew and weights: accuracy, and the rows of features that were fetched."""
    by_method = runs_by_seed(prefix)
    test = {method: {s: r["summary"]["test_acc1"] for s, r in seeds.items()} for method, seeds in by_method.items()}
    rows, kept = [], {}
    order = ["1", "budget", "2", "4", "8", "16", "local"]
    for method in sorted(by_method, key=lambda m: (m.split("-")[0], order.index(m.split("-")[1]), m.split("-")[2])):
        part, skew, weights = method.split("-")
        seeds, uniform = by_method[method], by_method.get(f"{part}-1-uniform", {})
        both = test[method].keys() & uniform.keys()
        fetched = mean(r["summary"]["feature_rows"] for r in seeds.values())
        points = mean(test[method][s] - test[f"{part}-1-uniform"][s] for s in both)
        most, least = (sum(runs[s]["summary"]["feature_rows"] for s in both) for runs in (uniform, seeds))
        kept[method] = points, most / least if least else None, len(both)
        found = [seeds[s]["summary"] for s in seeds]
        inflation = mean(x["inflation"] for x in found)
        rows.append([part, "budget 1.5" if skew == "budget" else skew, weights if skew != "1" else "",
                     ", ".join(number(x) for x in test[method].values()), number(mean(test[method].values())),
                     number(points if skew != "1" else None), number(fetched, 0),
                     number(kept[method][1] if skew != "1" else None, 1), number(mean(x["remote_share"] for x in found), 3),
                     number(inflation if skew != "local" else None, 2)])
    out = table(["partition", "skew", "weights", "test accuracy by seed, %", "mean", "against uniform, points",
                 "rows fetched, per step and learner", "fewer, times", "remote share of draws", "second moment of a draw, times"], rows)
    for method, least, fewer in (("ldg-budget-unbiased", -0.3, 2), ("ldg-budget-normalised", -0.3, 2), ("ldg-16-normalised", -0.5, 7)):
        if method in kept and "debian" in prefix:
            points, times, n = kept[method]
            out += "\n" if "\n- " not in out else ""
            out += expected(f"{method}, points against uniform", points, least=least, over=plural(n, "seed"))
            out += expected(f"{method}, rows, times fewer", times, least=fewer, over=plural(n, "seed"))
    hashes = sorted({r["summary"]["graph_hash"] for seeds in by_method.values() for r in seeds.values()})
    return out + ("\nThe graph's hash: " + ", ".join(hashes) + ".\n" if hashes else "")


def composed_graphs(prefix):
    """Skewed sampling together with compressed gradients: accuracy, bytes of features and of gradients in a step."""
    rows = []
    for method, seeds in runs_by_seed(prefix).items():
        found = [r["summary"] for r in seeds.values()]
        rows.append([*method.split("-"), ", ".join(number(x["test_acc1"]) for x in found), number(mean(x["test_acc1"] for x in found)),
                     f"{mean(x['feature_bytes'] for x in found):,.0f}", f"{mean(x['bytes_step_mean'] for x in found):,.0f}"])
    return table(["gradients", "sampling", "test accuracy by seed, %", "mean", "bytes of features, per step and learner",
                  "of gradients, compressed step"], rows)


def graph_times(prefix):
    """Seconds of the second epoch over a slow network."""
    rows = []
    for method, r in group(prefix).items():
        at = {entry["epoch"]: entry["train_s"] for entry in r["curve"]}
        rows.append([*method.split("-"), number(at[2] - at[1]), number(1000 * r["step_s"], 0),
                     f"{r['summary']['feature_bytes']:,.0f}", f"{r['summary']['bytes_step_mean']:,.0f}"])
    return table(["gradients", "skew", "seconds of an epoch", "ms of a step", "bytes of features, per step and learner",
                  "of gradients"], rows)


def softmax_methods():
    return RESULTS.get("softmax-by-class", {"methods": []})["methods"]


def softmax_ends():
    """Returns the steps and MB in which methods reach a distance of 1e-5, by name; without those that do not."""
    steps = {m["name"]: step for m in softmax_methods() for step, d in m["distance"][-1:] if d <= 1e-5}
    return steps, {m["name"]: steps[m["name"]] * m["bytes"] / 1e6 for m in softmax_methods() if m["name"] in steps}


def softmax():
    """The distance from the optimum over the bytes that a learner has sent."""
    rows = []
    steps, mb = softmax_ends()
    for m in softmax_methods():
        name = m["name"]
        fewer = mb["dual"] / mb[name] if name.startswith("dual") and {"dual", name} <= mb.keys() else None
        rows.append([name, steps.get(name, "–"), f"{min(d for _, d in m['distance']):.2g}", f"{m['bytes']:,.0f}",
                     number(mb.get(name), 2), number(fewer, 1)])
    return table(["learners", "steps to 1e-5", "closest", "bytes in a step", "MB to 1e-5", "fewer bytes than dual, times"], rows)


def lgc():
    """Compares LGC with ScaleCom that sends as many values, the control."""
    by_method = runs_by_seed("lgc-")
    control, out = by_method.get("scalecom", {}), table_by_seed(by_method)
    for method, seeds in by_method.items():
        if both := sorted(seeds.keys() & control.keys() if method != "scalecom" else ()):
            found = difference(seeds, control)
            pairs_of = [runs[seed] for seed in both for runs in (control, seeds)]
            figures, whose = sent(*pairs_of)
            rest = [compressed_bytes(r, x) for r, x in zip(pairs_of, figures)]
            out += "\n" + expected(f"{method}, accuracy against the control, points", found.points, least=-0.5, over=found.over)
            out += expected(f"{method}, bytes of the compressed tensors, control over LGC{whose}",
                            mean(a / b for a, b in zip(rest[::2], rest[1::2])), least=1.8, over=plural(len(both), "seed"))
        for seed, result in sorted(seeds.items()):
            if curve := result.get("decoder_error"):
                out += (f"- {method}, seed {seed}: part of the energy that the decoder loses in training "
                        + ", ".join(f"step {step}: {error:.2f}" for step, error in curve) + "\n")
    return out


def large(prefix):
    by_method = runs_by_seed(prefix)
    out = table_by_seed(by_method)
    if not {"beta-0.1", "beta-1"} <= by_method.keys():
        return out
    found = difference(by_method["beta-0.1"], by_method["beta-1"])
    return out + "\n" + expected("beta-0.1 against beta-1, points", found.points, least=0, over=found.over)


def accuracy_table(prefix):
    dense = group(prefix).get("dense")
    rows = []
    for name, r in group(prefix).items():
        accuracy = r["summary"]["valid_acc1"]
        against = "" if dense in (None, r) else f"{accuracy - dense['summary']['valid_acc1']:+.2f}"
        rows.append([name, number(accuracy), against, number(r["train_loss"][-1], 4), *ratios(r), megabytes(r)])
    out = table(["method", "accuracy, %", "against dense, points", "train loss", *RATIO_HEAD, "MB sent, one learner"],
                rows)
    planned = over_budget(group(prefix).items())
    return out + ("\n" + planned if planned else "")


def pairs():
    """Compares ScaleCom at rate 100 with dense under other conditions; the headline row is a mean over common seeds."""
    named = [("8 epochs", "ablation-"), ("16 epochs", "headline-"), ("32 epochs", "pair-32-epochs-"),
             ("8 epochs, one learner of 128 images", "pair-one-learner-"),
             ("8 epochs, no momentum, learning rate 1", "pair-no-momentum-"),
             ("8 epochs, learning rate 0.1", "pair-low-rate-")]
    rows = []
    for what, prefix in named:
        if prefix == "headline-":
            both = [[group(f"headline-{method}-").get(str(seed)) for method in ("dense", "scalecom-full")]
                    for seed in (1, 2, 3)]
        else:
            both = [[group(prefix).get(method) for method in ("dense", "scalecom")]]
        both = [pair for pair in both if None not in pair]
        if both:
            dense, scalecom = (mean(r["summary"]["valid_acc1"] for r in runs) for runs in zip(*both))
            rows.append([what, len(both), number(dense), number(scalecom), f"{scalecom - dense:+.2f}"])
    return table(["condition", "seeds", "dense, %", "scalecom, %", "difference, points"], rows)


def meter():
    """Shows the correlation of the learners' gradients and how well the leader's choice suits all, by epoch."""
    keys = ("correlation", "mismatch", "contraction", "cosine", "backlog")
    rows = [[epoch, *(number(figures.get(key), 3) for key in keys)]
            for r in group("meter-").values() for epoch, figures in r["quality"]["epochs"].items()]
    return table(["epoch", "correlation", "d / k", "contraction", "cosine", "residual / g"], rows)


def ptb():
    """Compares each run with the dense run of its seed; names without a number have seed 1."""
    runs = group("ptb-")
    seed_of = {name: (re.search(r"-([23])$", name) or ["", "1"])[1] for name in runs}
    method_of = {name: re.sub("-[23]$", "", name) for name in runs}
    dense = {seed_of[name]: r for name, r in runs.items() if method_of[name] == "dense"}
    share = {name: 100 * r["summary"]["test_ppl"] / dense[seed_of[name]]["summary"]["test_ppl"]
             if seed_of[name] in dense else None for name, r in runs.items()}
    rows = [[name, number(r["summary"]["valid_ppl"]), number(r["summary"]["test_ppl"]), number(share[name], 1),
             *ratios(r), megabytes(r)] for name, r in runs.items()]
    bound = {"adacomp": 102}  # others: 101
    lines = "".join(expected(f"{name}, test perplexity in % of dense", share[name], most=bound.get(name, 101))
                    for name in runs if dense and name != "dense" and seed_of[name] == "1")
    for method in dict.fromkeys(method_of.values()):
        shares = [share[name] for name in runs if method_of[name] == method and share[name] is not None]
        if method != "dense" and len(shares) > 1:
            lines += expected(f"{method}, mean over {len(shares)} seeds, test perplexity in % of dense", mean(shares),
                              most=bound.get(method, 101))
    return table(["method", "validation perplexity", "test", "test, % of dense", *RATIO_HEAD, "MB sent, one learner"],
                 rows) + ("\n" + lines if lines else "")


def full():
    rows = [[name, number(r["summary"].get("valid_acc1")), number(r["summary"].get("test_ppl")), *ratios(r),
             megabytes(r), r["revision"][:7]] for name, r in group("full-").items()]
    return table(["run", "accuracy, %", "test perplexity", *RATIO_HEAD, "MB sent, one learner", "revision"], rows)


def validations(r):
    """Returns a run's curve without train_lm's last entry, which is that of the test text, after the same step."""
    return list({x["step"]: x for x in reversed(r["curve"])}.values())[::-1]


def sooner_than_dense(runs, name):
    """Returns how many times sooner this run reaches the accuracy (a language model: the perplexity) at which the dense
    run ended: None without both runs, 0 if it never does. Time is that of the training steps, without validation."""
    if not {"dense", name} <= runs.keys():
        return None
    goal = validations(runs["dense"])[-1]
    return next((goal["train_s"] / x["train_s"] for x in validations(runs[name]) if reached(x) >= reached(goal)), 0)


def reached(validation):
    return validation["acc1"] if "acc1" in validation else -validation["ppl"]


def race():
    """Compares when runs over the same slow network reach the accuracy at which the dense run ended."""
    rows, lines = [], ""
    for net, least in ("resnet20", 2), ("resnet18", 4), ("lstm", 4):
        runs = group(f"race-{net}-")
        for name, r in runs.items():
            row = [f"{net}-{name}", number(abs(reached(validations(r)[-1]))), number(r["curve"][-1]["train_s"] / 60, 1), "", ""]
            sooner = sooner_than_dense(runs, name) if name != "dense" else None
            if sooner is not None:
                what = f"{net}-{name}, sooner at dense's final result"
                if sooner > 0:
                    row[3:] = number(runs["dense"]["curve"][-1]["train_s"] / sooner / 60, 1), number(sooner)
                    lines += expected(what, sooner, least=least)
                else:
                    row[3] = "not reached"
                    lines += f"- {what}: expected ≥ {least:.2f}, not reached\n"
            rows.append(row)
    return table(["run", "accuracy, % (lstm: perplexity)", "minutes", "minutes to dense's final result", "times sooner"],
                 rows) + ("\n" + lines if lines else "")


def scaling_runs():
    """Returns method -> learners -> result."""
    by_method = {}
    for name, r in group("scaling-").items():
        method, learners = name.rsplit("-", 1)
        by_method.setdefault(method, {})[int(learners)] = r
    return {method: dict(sorted(runs.items())) for method, runs in by_method.items()}


def sent_dense(r):
    """Returns the bytes that a ring sends for the tensors that are not compressed, from the ratios of values over the
    compressed tensors and over the whole model."""
    whole, layers, values = r["bytes_dense"], r["summary"]["ratio_layers"], r["summary"]["ratio_values"]
    return whole * (1 / values - 1 / layers) / (1 - 1 / layers)


def scaling():
    rows, lines = [], ""
    for method, runs in scaling_runs().items():
        figures, whose = sent(*runs.values())
        for (learners, r), in_a_step in zip(runs.items(), figures):
            layers = r["quality"]["layers"].values()
            means = [mean(layer[key] for layer in layers if key in layer)
                     for key in ("contraction", "cosine", "mismatch", "bound")]
            rows.append([method, learners, f"{in_a_step:.0f}{whose}", number(r["summary"].get("bytes_step_max"), 0),
                         r["bytes_dense"], number(r["quality"]["correlation"], 4), *(number(x, 3) for x in means)])
        few, many = min(runs), max(runs)
        if few == many:
            continue
        growth = figures[-1] / figures[0]
        what = f"{method}, bytes that a learner sends{whose}, {many} learners over {few}"
        if method == "scalecom":  # a ring of P learners sends 2 (P - 1) / P of the data
            lines += expected(what + ", within the ring factor 2 (P - 1) / P", growth,
                              most=(many - 1) / many / ((few - 1) / few))
        else:  # an all-gather forwards P - 1 payloads
            rest = [sent - sent_dense(r) for r, sent in zip(runs.values(), figures)]
            lines += (f"- {what}: {growth:.2f}; without the tensors that travel dense: linear in P - 1 would be "
                      f"{(many - 1) / (few - 1):.2f}, found {rest[-1] / rest[0]:.2f}\n")
    return table(["method", "learners", "bytes sent, a step and learner", "at most", "dense", "correlation", "contraction",
                  "cosine", "d / k", "bound"], rows) + ("\n" + lines if lines else "")


def times():
    rows, lines = [], ""
    for place in "model", "hosts":
        for net in "resnet20", "resnet18", "lstm":
            mine = group(f"time-{place}-{net}-")

            def faster(method, than, overlap="on"):
                pair = mine.get(f"{method}-{overlap}"), mine.get(f"{than}-{overlap}")
                return pair[1]["step_s"] / pair[0]["step_s"] if all(pair) else None

            for name, r in mine.items():
                method, overlap = name.rsplit("-", 1)
                rows.append([place, net, method, overlap, number(r["step_s"], 3), number(r["t_exposed"], 3),
                             number(faster(method, "dense", overlap)), number(r["ratio_timed"], 1)])
            methods = [name[:-len("-on")] for name in mine if name.endswith("-on") and name != "dense-on"]
            for what, least, found in (
                ("over dense", 2.5, {m: faster(m, "dense") for m in methods}),
                ("L-GreCo over its uniform default", 1,
                 {m: faster(m, m.removeprefix("lgreco-")) for m in methods if m.startswith("lgreco-")}),
            ):
                each = [f"{m} {x:.2f} ({judged(x, least=least)})" for m, x in found.items() if x is not None]
                if each:
                    lines += f"- {place}, {net}, {what}: expected ≥ {least:.2f}, found {', '.join(each)}\n"
    return table(["network", "net", "method", "overlap", "step s", "waited for s", "over dense", "ratio wire"],
                 rows) + ("\n" + lines if lines else "")


def whole():
    runs = group("whole-model-")
    rows = []
    for name, r in runs.items():
        (in_a_step,), whose = sent(r)
        rows.append([name, *ratios(r)[:3], f"{in_a_step:.0f}{whose}", r["bytes_dense"]])
    out = table(["network", *RATIO_HEAD[:3], "bytes sent, a step and learner", "dense"], rows)
    if "resnet18" in runs:
        out += "\n" + expected("ResNet-18, ratio by values over the whole model",
                               runs["resnet18"]["summary"]["ratio_values"], least=90)
    return out


def composed():
    """Combines the headline's accuracy curves with the time table's seconds per step, for each network."""
    curves, reached = {}, []
    for name, r in group("headline-").items():
        method, seed = name.rsplit("-", 1)
        for place in "model", "hosts":
            dense = RESULTS.get(f"time-{place}-resnet20-dense-on")
            step = RESULTS.get(f"time-{place}-resnet20-{method.removesuffix('-full').removesuffix('-compensated')}-on")
            if seed != "1" or not dense or not step:
                continue
            start = 0 if method == "dense" else dense_steps(r)
            points = [((min(x["step"], start) * dense["step_s"] + max(0, x["step"] - start) * step["step_s"]) / 60,
                       x["acc1"]) for x in r["curve"] if "acc1" in x]
            curves.setdefault(place, []).append((method, points))
    for place, lines in curves.items():
        for method, points in lines:
            row = [place, method, number(points[-1][0], 1), number(points[-1][1])]
            for goal in 80, 85, 88:
                row.append(number(next((x for x, y in points if y >= goal), None), 1))
            reached.append(row)
    return curves, table(["network", "method", "minutes in all", "accuracy, %", "minutes to 80 %", "to 85 %", "to 88 %"],
                         reached)


def marks(low, high, log):
    """Returns six values from low to high, or, if they are decimal logarithms, whole ones, if there are two."""
    powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if log and len(powers) > 1:
        return powers
    return [low + (high - low) * i / 5 for i in range(6)]


def plot(docs, name, title, x_label, y_label, lines, log_y=False, from_zero=False, log_x=False):
    """Writes results-NAME.svg. lines: [(label, [(x, y)])]; log_x: x is a decimal logarithm."""
    lines = [(label, points) for label, points in lines if points]
    if not lines:
        return
    width, height, left, bottom, top, right = 760, 400, 70, 50, 40, 230
    xs = [x for _, points in lines for x, _ in points]
    ys = [math.log10(y) if log_y else y for _, points in lines for _, y in points]
    x0, x1 = min(xs + [0] * from_zero), max(xs)
    y0, y1 = min(ys + [0] * (from_zero and not log_y)), max(ys)
    y1 += (y1 - y0) * 0.05 or 1

    def place(x, y):
        y = math.log10(y) if log_y else y
        return (left + (x - x0) / ((x1 - x0) or 1) * (width - left - right),
                height - bottom - (y - y0) / ((y1 - y0) or 1) * (height - bottom - top))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="22" font-size="15">{title}</text>']
    for y in marks(y0, y1, log_y):
        shown = 10 ** y if log_y else y
        at = place(x0, shown)[1]
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{shown:.4g}</text>')
    for x in marks(x0, x1, log_x):
        out.append(f'<text x="{place(x, 10 ** y0 if log_y else y0)[0]:.1f}" y="{height - bottom + 18}" '
                   f'text-anchor="middle">{10 ** x if log_x else x:.4g}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">{x_label}</text>'
               f'<text x="16" y="{height / 2}" transform="rotate(-90 16 {height / 2})" text-anchor="middle">{y_label}</text>')
    for i, (label, points) in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in points))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{width - right + 12}" y="{top + 16 * i + 12}" fill="{colour}">{label}</text>')
    (docs / f"results-{name}.svg").write_text("\n".join(out + ["</svg>"]) + "\n")


def plots(docs):
    for old in docs.glob("results-*.svg"):
        old.unlink()
    curves = [(name, [(x["epoch"], x["acc1"]) for x in r["curve"] if "acc1" in x])
              for name, r in group("headline-").items() if name.endswith("-1")]
    plot(docs, "headline", "ResNet-20 on CIFAR-10, 4 learners x 32, seed 1", "epoch", "test accuracy, %", curves)
    for place, lines in composed()[0].items():
        plot(docs, f"composed-{place}", f"Accuracy against time, composed (100 Mbit/s, {place})", "minutes",
             "test accuracy, %", lines, from_zero=False)
    measured = [(name, [(x["train_s"] / 60, x["acc1"]) for x in r["curve"]]) for name, r in group("race-resnet20-").items()]
    plot(docs, "race", "ResNet-20 on CIFAR-10, four hosts with links of 100 Mbit/s, as measured", "minutes of training",
         "test accuracy, %", measured)
    plot(docs, "softmax", "Softmax regression, 8 learners, images sorted by class", "MB sent by one learner (logarithmic)",
         "distance from the optimum",
         [(m["name"], [(math.log10(step * m["bytes"] / 1e6), d) for step, d in m["distance"]])
          for m in softmax_methods()], log_y=True, log_x=True)
    lines = {}
    for method, runs in scaling_runs().items():
        lines[method] = list(zip(runs, sent(*runs.values())[0]))
        lines.setdefault("dense", set()).update((learners, r["bytes_dense"]) for learners, r in runs.items())
    plot(docs, "scaling", "Bytes that a learner sends in a step, ResNet-20", "learners", "bytes (logarithmic)",
         [(method, sorted(points)) for method, points in lines.items()], log_y=True)


def claims():
    """Returns the first table of the page: one claim per row, with the bound at which it counts as shown."""
    rows = []

    def claim(text, found, least=None, most=None, over="", error=None):
        bound = f"≤ {most:g}" if least is None else f"≥ {least:g}"
        rows.append([text, bound, "" if found is None else f"{found:.2f}{over}",
                     "**not measured yet**" if found is None else judged(found, least, most, error)])

    def against_dense(text, prefix, method, least):
        runs = runs_by_seed(prefix)
        found = difference(runs.get(method, {}), runs.get("dense", {}))
        claim(f"{text}: accuracy against dense, points", found.points, least=least, over=found.over, error=found.error)

    headline = runs_by_seed("headline-")
    scalecom, lgreco = (headline.get(method, {}).values() for method in ("scalecom", "lgreco-scalecom"))
    against_dense("ResNet-20 on CIFAR-10, 16 epochs, ScaleCom at rate 100 with heddle's rule of momentum", "headline-", "scalecom", -0.3)
    against_dense("… with momentum after the exchange, as in ScaleCom's algorithm 1", "headline-", "scalecom-full", -0.3)
    against_dense("… at rate 25", "headline-", "scalecom-25", -0.3)
    against_dense("… at rate 400", "headline-", "scalecom-400", -0.3)
    against_dense("… with a dense start of 100 steps instead of 312", "headline-", "scalecom-early", -0.3)
    against_dense("… with a start of 4 bits a value instead of dense", "headline-", "scalecom-coded", -0.3)
    against_dense("… top-k, where each learner selects its own 1 %", "headline-", "topk", -0.3)
    against_dense("… PowerSGD in rank 2", "headline-", "powersgd", -0.3)
    for what, method in ("ScaleCom's values", "scalecom"), ("PowerSGD's factors", "powersgd"):
        found = difference(headline.get(f"{method}-bf16", {}), headline.get(method, {}))
        claim(f"{what} sent as bf16: accuracy against fp32, points", found.points, least=-0.3, over=found.over, error=found.error)
    for key, where, least in ("layers", "the compressed tensors", 99), ("values", "the whole model", 50):
        found = mean(r["summary"][f"ratio_{key}"] for r in scalecom)
        claim(f"Ratio at rate 100, values of {where}", found, least=least)
    claim("Ratio at rate 100, values of a whole ResNet-18",
          mean(r["summary"]["ratio_values"] for r in group("whole-model-").values()), least=90)
    against_dense("ResNet-20, 16 epochs, L-GreCo's plans over ScaleCom", "headline-", "lgreco-scalecom", -0.3)
    against_dense("… made from gradients with their residuals, as in L-GreCo's code", "headline-", "lgreco-scalecom-compensated", -0.3)
    plans = [p["uniform_bytes"] / p["bytes"] for r in lgreco for p in r.get("plans", {}).values()]
    claim("L-GreCo's plans have fewer bytes than its uniform default: ratio", mean(plans), least=1.8, over=plural(len(plans), "plan"))
    gains, whose = sent_by_uniform_over_planned(headline.get("scalecom", {}), headline.get("lgreco-scalecom", {}))
    claim(f"… bytes that its runs sent for the compressed tensors{whose}: ratio", mean(gains), least=1.8, over=plural(len(gains), "seed"),
          error=standard_error(gains))
    against_dense("ResNet-20, 16 epochs, AdaComp", "headline-", "adacomp", -0.5)
    claim("AdaComp's ratio on the compressed tensors, in its paper's count as we recall it",
          mean(r["summary"]["ratio_layers"] for r in headline.get("adacomp", {}).values()), least=40)
    against_dense("Large batches, 16 learners of 64 images, 66 epochs", "batch-", "scalecom", -1)
    against_dense("… 8 epochs, beta 0.1, momentum after the exchange", "large-", "beta-0.1", -1)
    against_dense("Large batches, 32 learners of 32 images, 16 epochs", "grown-", "scalecom", -1)
    long = {}
    for net in "resnet20-", "zaremba-medium-":  # a GPU's runs are in fp32, a processor's in bf16: all from one of them
        runs = group(f"full-{net}") if f"full-{net}dense" in RESULTS else group(f"full-cpu-{net}")
        long |= {net + method: r for method, r in runs.items()}
    accuracy = {name: r["summary"]["valid_acc1"] for name, r in long.items() if "valid_acc1" in r["summary"]}
    dense = accuracy.get("resnet20-dense")
    claim("Full recipe, ResNet-20, 164 epochs: accuracy of dense, %", dense, least=91)
    for what, name in ("ScaleCom", "resnet20-scalecom"), ("L-GreCo (`errors=compensated`)", "resnet20-lgreco-scalecom"):
        points = accuracy[name] - dense if dense is not None and name in accuracy else None
        claim(f"Full recipe, {what}: accuracy against dense, points", points, least=-0.5, over=" over 1 seed")
    alone = {name: r["summary"]["valid_acc1"] for name, r in group("full-one-resnet20-").items()}
    for what, name in ("ScaleCom", "scalecom"), ("L-GreCo (`errors=compensated`)", "lgreco-scalecom"):
        points = alone[name] - alone["dense"] if {name, "dense"} <= alone.keys() else None
        claim(f"… one learner of 128 images, {what}: accuracy against dense, points", points, least=-0.5, over=" over 1 seed")
    ptb_runs = group("ptb-")
    for text, method, most in (("rate 100", "scalecom-100", 101), ("rate 400", "scalecom-400", 101),
                               ("AdaComp", "adacomp", 102)):
        shares = [100 * ptb_runs[name]["summary"]["test_ppl"] / ptb_runs[f"dense{seed}"]["summary"]["test_ppl"]
                  for seed in ("", "-2", "-3") if {name := f"{method}{seed}", f"dense{seed}"} <= ptb_runs.keys()]
        claim(f"LSTM on Penn Treebank, {text}: test perplexity in % of dense", mean(shares), most=most,
              over=plural(len(shares), "seed"), error=standard_error(shares))
    claim("AdaComp's ratio on that LSTM, in its paper's count as we recall it", mean(
        r["summary"]["ratio_layers"] for name, r in ptb_runs.items() if re.fullmatch(r"adacomp(-\d)?", name)), least=150)
    curves = [{x["epoch"]: x["ppl"] for x in validations(long.get(f"zaremba-medium-{method}", {"curve": []}))}
              for method in ("scalecom", "dense")]
    claim("Medium LSTM, one seed: validation perplexity in % of dense, worst epoch",
          max((100 * curves[0][e] / curves[1][e] for e in curves[0].keys() & curves[1].keys()), default=None), most=102)
    traffic = scaling_runs().get("scalecom", {})
    sizes = sent(*traffic.values())[0] if {4, 64} <= traffic.keys() else []
    claim("From 4 to 64 learners a learner's traffic grows by no more than the ring's factor",
          sizes[-1] / sizes[0] if sizes else None, most=1.3125)
    peers_runs = {"dense": runs_by_seed("rule-").get("dense", {}), **runs_by_seed("peers-")}
    found = difference(peers_runs.get("qsgd", {}), peers_runs["dense"])
    claim("COLD on a ring of four, 4 bits, images at random: accuracy against dense, points", found.points, least=-1, over=found.over,
          error=found.error)
    claim("… bytes of a step, ring all-reduce over neighbours",
          mean(r["summary"]["ratio_wire"] for r in peers_runs.get("qsgd", {}).values()), least=5.9)
    steps, mb = softmax_ends()
    for name, least in ("dual, qsgd:bits=4", 7), ("dual, dyna:bits=1", 24):
        known = {"dual", name} <= steps.keys()
        claim(f"Softmax regression by class, ring of eight, {name}: steps to 1e-5, over those without a code",
              steps[name] / steps["dual"] if known else None, most=1.03 if "qsgd" in name else 1.05)
        claim(f"… bytes to 1e-5 without a code over those with {name}", mb["dual"] / mb[name] if known else None, least=least)
    for net, what, sooner, faster in (("resnet20", "ResNet-20", 2, None), ("resnet18", "ResNet-18", 4, 2.5), ("lstm", "LSTM", 4, 2.5)):
        race_runs = group(f"race-{net}-")
        for name in sorted(race_runs.keys() - {"dense"}, reverse=True):
            ratio = sooner_than_dense(race_runs, name)
            how = {"scalecom": "ScaleCom", "coded-4-epochs": "coded start and four epochs for two (tried after that)"}[name]
            how += " (two epochs for one)" if net == "lstm" else ""
            claim(f"At 100 Mbit/s {what} reaches dense's final result sooner, {how}: ratio of times", ratio, least=sooner, over=" over 1 seed")
            if ratio == 0:
                rows[-1][2:] = "not reached", "missed"
        pair = [group(f"time-hosts-{net}-").get(f"{method}-on") for method in ("dense", "scalecom")]
        if faster:
            medium = " (medium)" if net == "lstm" else ""
            claim(f"At 100 Mbit/s {what}{medium} needs less time per step, ScaleCom: ratio of times",
                  pair[0]["step_s"] / pair[1]["step_s"] if None not in pair else None, least=faster)
    return table(["claim", "counts as shown if", "found", "verdict"], rows if RESULTS else [])


def provenance(prefix):
    """Returns the command that repeats a table's runs, their revisions and machines."""
    runs = group(prefix)
    if not runs:
        return ""
    def counted(values):
        counts = collections.Counter(values)
        return ", ".join(f"{value} ({n})" if len(counts) > 1 else value for value, n in counts.items())

    machines = [re.sub(r"\(R\)| Processor|^.*, (?=NVIDIA)", "", r["machine"]) for r in runs.values() if "machine" in r]
    out = f"\n`./run reproduce {prefix}`; revision {counted(r['revision'][:7] for r in runs.values())}"
    if machines:
        out += f"; {counted(machines)}"
    resumed = [f"`{name}`" for name, r in runs.items() if r.get("resumed")]
    if resumed:
        out += f"; interrupted and resumed: {', '.join(resumed)}"
    name = next((name for name in runs if name.startswith("dense")), next(iter(runs)))
    first = runs[name]
    command = re.sub("^./run netlab (?!run )", "./run netlab run build/", first["command"])  # as early results have it
    return f"{out}. `{name}` is\n`{command}`\n"


def main(docs=results.DOCS):
    RESULTS.clear()
    RESULTS.update(results.load(docs / results.FILE.name))
    made = {"headline": (headline, "headline-"), "ablation": (lambda: accuracy_table("ablation-"), "ablation-"),
            "meter": (meter, "meter-"), "pairs": (pairs, "pair-"), "large": (lambda: large("large-"), "large-"),
            "root": (lambda: large("root-"), "root-"), "long": (lambda: large("long-"), "long-"), "ptb": (ptb, "ptb-"),
            **{name: (lambda name=name: table_by_seed(runs_by_seed(name + "-")), name + "-")
               for name in ("rule", "local", "batch", "grown", "wide", "many", "usual")}, "lgc": (lgc, "lgc-"), "race": (race, "race-"),
            "peers": (lambda: peers("peers-", runs_by_seed("rule-").get("dense", {})), "peers-"),
            "classes": (lambda: peers("classes-", runs_by_seed("classes-").get("dense", {})), "classes-"),
            "eight": (lambda: peers("eight-", runs_by_seed("eight-").get("dense", {})), "eight-"),
            "dp": (lambda: privacy("dp-"), "dp-"), "dpgan": (lambda: privacy("dpgan-"), "dpgan-"),
            "gcn_debian": (lambda: graphs("gcn-debian-"), "gcn-debian-"), "gcn_sbm": (lambda: graphs("gcn-sbm-"), "gcn-sbm-"),
            "gcn_composed": (lambda: composed_graphs("gcn-composed-"), "gcn-composed-"),
            "gcn_time": (lambda: graph_times("gcn-time-"), "gcn-time-"),
            "softmax": (softmax, "softmax-"),
            "scaling": (scaling, "scaling-"), "times": (times, "time-"), "whole": (whole, "whole-model-"), "full": (full, "full-")}
    file = docs / "results.md"

    plots(docs)

    def fill(match):
        pictures = "".join(f"\n![{picture.stem.replace('-', ' ')}]({picture.name})\n"
                           for picture in sorted(docs.glob(f"results-{match[1]}*.svg")))
        if match[1] == "composed":
            text = composed()[1]
        elif match[1] == "claims":
            text = claims()
        else:
            rows, prefix = made[match[1]]
            text = rows() + provenance(prefix)
        return f"<!-- TABLE {match[1]} -->\n{text}{pictures}<!-- END -->"

    file.write_text(re.sub(r"<!-- TABLE (\w+) -->\n.*?<!-- END -->", fill, file.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
