#!/usr/bin/env python3
"""Tests docs/tools/reproduce.py, results.py and plot_results.py on made-up runs. Every expected figure is computed by
hand, in or next to the line that makes up its input. Nothing is trained, and nothing is written in the tree."""
import contextlib
import io
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
sys.dont_write_bytecode = True
sys.path.insert(0, str(DOCS / "tools"))
import plot_results  # noqa: E402
import reproduce  # noqa: E402
import results as results_file  # noqa: E402

ACCURACY = {  # by seed
    "dense": (90.0, 90.4, 89.6),  # mean 90.00, spread 0.80
    "scalecom": (89.2, 89.7, 89.0),  # mean 89.30, spread 0.70; vs dense -0.8, -0.7, -0.6: -0.70, 0.40 too far
    "lgreco-scalecom": (88.9, 89.4, 88.3),  # spread 1.10; vs scalecom -0.3, -0.3, -0.7: -0.43
}
LARGE = {"dense": (76.0, 75.0), "beta-1": (56.0, 58.0), "beta-0.1": (66.0, 57.0),
         "beta-0.1-rate-25": (70.0,)}
STEP_S = {"dense": 2.0, "qsgd": 1.0, "lgreco-qsgd": 0.5, "scalecom": 0.5, "lgreco-scalecom": 0.625}
SENT = {"scalecom-4": 20000, "scalecom-16": 25000, "scalecom-64": 27000,  # 1.35 times; of a ring 1.3125
        "topk-4": 100000, "topk-16": 500000, "topk-64": 2000000,
        "adacomp-4": 60000, "adacomp-16": 300000, "adacomp-64": 1260000}  # 20 times; 63 / 3 is 21
TEST_PPL = {"dense": 100.0, "scalecom-100": 101.5, "scalecom-400": 103.25, "scalecom-100-aggregate": 102.0, "adacomp": 101.0,
            "scalecom-100-early": 100.5, "scalecom-400-early": 101.0, "scalecom-100-coded": 100.5, "scalecom-400-coded": 101.0,
            "dense-2": 98.0, "adacomp-2": 98.0, "scalecom-100-2": 97.02, "scalecom-400-2": 98.98,
            "dense-3": 102.0, "adacomp-3": 102.0, "scalecom-100-3": 102.0, "scalecom-400-3": 102.0}


def experiments():
    """Returns the runs of reproduce.py; of the headline's, three seeds of each."""
    return {name: typed for name, typed in reproduce.experiments().items() if not re.fullmatch("headline-.*-[456]", name)}


def made_up(name, typed):
    """Returns the result that reproduce.py would add for this run."""
    compressed = "--compress " in typed
    # A hundredth of the model travels dense: 1 / values = 0.01 + 0.99 / layers.
    layers, values = (200.0, 1 / 0.01495) if "lgreco" in name else (100.0, 1 / 0.0199) if compressed else (1.0, 1.0)
    in_a_step = 22500 if "lgreco" in name else 30000 if compressed else 1000000
    summary = {"step": 6240, "valid_acc1": 80.0, "ratio_layers": layers, "ratio_values": values,
               "ratio_wire": 1000000 / in_a_step, "ratio_run": 10.0, "bytes_sent": 5000000}
    result = {"name": name, "command": "./run " + typed, "revision": "0123456789ab", "summary": summary,
              "curve": [{"epoch": 1, "step": 390, "acc1": 50.0}, {"epoch": 8, "step": 3120, "acc1": 81.0},
                        {"epoch": 16, "step": 6240, "acc1": 89.2}],
              "train_loss": [1.0, 0.5], "step_s": 1.0, "t_exposed": 0.25, "bytes_dense": 1000000,
              "bytes_per_step": in_a_step}
    group, _, rest = name.partition("-")
    if group == "headline":
        method, seed = rest.rsplit("-", 1)
        # Runs of --compressed-momentum full: a point less.
        summary["valid_acc1"] = ACCURACY.get(method.removesuffix("-full"), (85.0,) * 3)[(int(seed) - 1) % 3] - method.endswith("-full")
    elif group in ("large", "root", "long"):
        method, seed = rest.rsplit("-", 1)
        summary["valid_acc1"] = LARGE[method][int(seed) - 1]
    elif group == "lgc":  # 10,000 bytes, a hundredth of dense's 1,000,000, belong to layers sent dense
        method, seed = rest.rsplit("-", 1)
        summary["valid_acc1"] = {"scalecom": 86.0, "value": 85.75, "index": 85.0}.get(method, 86.25)
        result["bytes_per_step"] = {"scalecom": 30000, "value": 20000}.get(method, 35000)
        if method == "value":
            result["decoder_error"] = [[1, 1.25], [50, 0.5]]
    elif group in ("dp", "dpgan"):
        method, seed = rest.rsplit("-", 1)
        summary["valid_acc1"] = {"sgd": 48.0, "10": 80.0, "votes": 24.0}.get(method, 30.0)
        summary["privacy"] = {"epsilon": None if method == "none" else 3.15}
    elif group == "gcn":  # skewed sampling fetches a quarter of the rows
        uniform = "uniform" in name
        summary.update(test_acc1=80.0 if uniform else 79.75, feature_rows=400.0 if uniform else 100.0, inflation=1.5, remote_share=0.25,
                       feature_bytes=6400.0 if uniform else 1600.0, graph_hash="0123", bytes_step_mean=4170.0 if compressed else 417000.0)
        result["curve"] = [{"epoch": 1, "step": 27, "train_s": 5.0}, {"epoch": 2, "step": 54, "train_s": 8.5}]
    elif group in ("peers", "classes", "eight"):  # a third of the bytes would be 3.0; qsgd has a sixth
        method, seed = rest.rsplit("-", 1)
        summary["valid_acc1"] = {"dense": 86.0, "qsgd": 85.5}.get(method, 84.0)
        if method != "dense":
            summary["ratio_wire"] = 6.0
            result["curve"][-1]["consensus_error"] = 0.0125
    elif group == "softmax":  # four times the bytes of one, in half the steps: twice
        del result["curve"], result["summary"]
        result["methods"] = [{"name": "dual", "bytes": 4000, "steps": 50, "distance": [[1, 0.5], [50, 1e-5]]},
                             {"name": "dual, dyna:bits=1", "bytes": 1000, "steps": 100, "distance": [[1, 0.5], [100, 9e-6]]},
                             {"name": "dual, qsgd:bits=4", "bytes": 500, "steps": 50, "distance": [[1, 0.5], [50, 9e-6]]},
                             {"name": "gossip", "bytes": 4000, "steps": 100, "distance": [[1, 0.5], [100, 0.25]]}]
    elif group == "ablation":
        summary["valid_acc1"] = {"dense": 88.0, "scalecom": 87.25}.get(rest, 87.0)
    elif group == "ptb":
        summary.update(valid_ppl=110.0, test_ppl=TEST_PPL[rest])
    elif group == "scaling":
        summary.update(bytes_step_mean=SENT[rest], bytes_step_max=SENT[rest] + 77)
        layer = {"contraction": 0.5, "cosine": 0.75}
        result["quality"] = {"samples": 10, "correlation": 0.9, "layers": {"a": layer, "b": {**layer, "contraction": 0.7}}}
    elif group == "meter":
        figures = {"correlation": 0.125, "mismatch": 0.75, "contraction": 0.875, "cosine": 0.25, "backlog": 30.0}
        result["quality"] = {"samples": 2, "correlation": 0.125, "layers": {}, "epochs": {"1": figures, "16": figures}}
    elif group == "time":
        method, overlap = re.search("-(?:resnet18|resnet20|lstm)-(.*)-(on|off)$", name).groups()
        result["step_s"] = STEP_S[method] + (0.5 if overlap == "off" else 0)
        result["ratio_timed"] = {"dense": 1.0}.get(method, 6.5)
    elif group == "full":
        summary["valid_acc1"] = 91.5 - compressed
        for entry in result["curve"]:
            entry["ppl"] = 100.0 + (2 * entry["epoch"] / 16 if compressed else 0)
    elif group == "race":  # compressed epochs take a quarter of the time
        for entry in result["curve"]:
            entry["train_s"] = entry["step"] * (0.25 if compressed else 1.0)
        if compressed:
            result["curve"][-1]["acc1"] = 89.5
        if "lstm" in name:
            for entry in result["curve"]:
                entry["ppl"] = 300 - 2 * entry.pop("acc1")
            result["curve"].append({**result["curve"][-1], "ppl": 100.0 if compressed else 80.0})  # of the test text
    elif group == "whole":
        summary["ratio_values"] = 88.5
    if "lgreco" in name:
        result["plans"] = {"400": {"bytes": 1000, "uniform_bytes": 1500, "budget_used": 1.025},
                           "790": {"bytes": 1000, "uniform_bytes": 1300, "budget_used": 1.0},
                           "1180": {"bytes": 500, "uniform_bytes": 700, "budget_used": None}}  # mean 1.40
    if name == "headline-lgreco-scalecom-1":
        result["compress_start"] = 1000  # recorded in the result, so it overrides the rule
    return result


class Page(unittest.TestCase):
    def page(self, results):
        """Returns the tables of results.md by name, made from these results in a copy of docs/."""
        with tempfile.TemporaryDirectory() as scratch:
            docs = pathlib.Path(scratch)
            shutil.copy(DOCS / "results.md", docs)
            (docs / "results-composed-of-old.svg").write_text("made once, from runs that are gone")
            results_file.add(docs / "results.jsonl", *results.values())
            plot_results.main(docs)
            text = (docs / "results.md").read_text()
            self.pictures = {x.name for x in docs.glob("results-*.svg")}
        for linked in re.findall(r"\]\((results-.*?)\)", text):
            self.assertIn(linked, self.pictures)
        return dict(re.findall(r"<!-- TABLE (\w+) -->\n(.*?)<!-- END -->", text, re.S))

    def made_up_page(self, change=lambda results: None):
        results = {name: made_up(name, typed) for name, typed in experiments().items()}
        change(results)
        return self.page(results)

    def rows(self, text):
        return [line for line in text.splitlines() if line.startswith("|")][2:]

    def test_every_run_has_its_row(self):
        tables = self.made_up_page()
        counted = 0
        for name, prefix in (("headline", "headline-"), ("whole", "whole-model-"), ("ablation", "ablation-"),
                             ("large", "large-"), ("root", "root-"), ("long", "long-"), ("ptb", "ptb-"), ("scaling", "scaling-"),
                             ("times", "time-"), ("rule", "rule-"), ("local", "local-"), ("lgc", "lgc-"), ("batch", "batch-"), ("grown", "grown-"),
                             ("wide", "wide-"), ("many", "many-"), ("usual", "usual-"), ("race", "race-"), ("classes", "classes-"),
                             ("eight", "eight-"), ("full", "full-"), ("dp", "dp-"), ("dpgan", "dpgan-"), ("gcn_debian", "gcn-debian-"),
                             ("gcn_sbm", "gcn-sbm-"), ("gcn_composed", "gcn-composed-"), ("gcn_time", "gcn-time-")):
            runs = [x for x in reproduce.experiments() if x.startswith(prefix)]
            counted += len(runs)
            rows = len(self.rows(tables.pop(name)))
            if name in ("headline", "large", "rule", "local", "lgc", "classes", "eight", "dp", "dpgan", "gcn_debian", "gcn_sbm", "gcn_composed"):
                runs = {x.rsplit("-", 1)[0] for x in runs}  # all seeds in one row
            self.assertEqual(rows, len(runs), name)
        self.assertEqual(self.rows(tables.pop("meter")), ["| 1 | 0.125 | 0.750 | 0.875 | 0.250 | 30.000 |",
                                                                "| 16 | 0.125 | 0.750 | 0.875 | 0.250 | 30.000 |"])
        counted += 1
        in_peers = [x for x in reproduce.experiments() if x.startswith("peers-")]
        self.assertEqual(len(self.rows(tables.pop("peers"))), 1 + len(in_peers) // 2)  # and rule-dense
        self.assertEqual(len(self.rows(tables.pop("softmax"))), 4)
        counted += len(in_peers) + 1
        in_pairs = [x for x in reproduce.experiments() if x.startswith("pair-")]
        self.assertEqual(counted + len(in_pairs), len(reproduce.experiments()))
        tables.pop("claims")
        rows = self.rows(tables.pop("pairs"))  # two from other groups, and one for every two runs
        self.assertEqual(len(rows), 2 + len(in_pairs) // 2)
        self.assertEqual(set(tables), {"composed"})
        self.assertEqual(self.pictures, {"results-headline.svg", "results-scaling.svg", "results-softmax.svg", "results-race.svg", "results-composed-model.svg",
                                         "results-composed-hosts.svg"})

    def test_privacy(self):
        tables = self.made_up_page()
        self.assertIn("| sgd | 48.00, 48.00 | 48.00 | 0.00 | 3.15 |", tables["dp"])
        self.assertIn("| none | 30.00, 30.00 | 30.00 | 0.00 | not private |", tables["dp"])
        self.assertIn("votes, accuracy above a guess, points: expected ≥ 15.00, found 14.00 over 2 seeds: missed by 1.00\n", tables["dp"])
        self.assertIn("10, accuracy above a guess, points: expected ≥ 15.00, found 70.00 over 2 seeds: holds\n", tables["dpgan"])

    def test_graphs(self):
        tables = self.made_up_page()
        self.assertIn("| ldg | 16 | normalised | 79.75, 79.75, 79.75 | 79.75 | -0.25 | 100 | 4.0 | 0.250 | 1.50 |", tables["gcn_debian"])
        self.assertIn("| random | 1 |  | 80.00, 80.00, 80.00 | 80.00 |  | 400 |  | 0.250 | 1.50 |", tables["gcn_debian"])
        self.assertIn("ldg-budget-normalised, points against uniform: expected ≥ -0.30, found -0.25 over 3 seeds: holds\n", tables["gcn_debian"])
        self.assertIn("ldg-16-normalised, rows, times fewer: expected ≥ 7.00, found 4.00 over 3 seeds: missed by 3.00\n", tables["gcn_debian"])
        self.assertNotIn("expected", tables["gcn_sbm"])
        self.assertIn("The graph's hash: 0123.\n", tables["gcn_sbm"])
        self.assertIn("| scalecom | budget | 79.75, 79.75, 79.75 | 79.75 | 1,600 | 4,170 |", tables["gcn_composed"])
        self.assertIn("| dense | 16 | 3.50 | 1000 | 1,600 | 417,000 |", tables["gcn_time"])

    def test_peers(self):
        tables = self.made_up_page()
        self.assertIn("- qsgd: consensus error at the end 0.013, 0.013\n", tables["eight"])
        self.assertIn("qsgd, accuracy against dense, points: expected ≥ -1.00, found -0.50 over 2 seeds: holds\n", tables["eight"])
        self.assertIn("all-reduce over neighbours: expected ≥ 5.90, found 6.00: holds\n", tables["peers"])
        self.assertNotIn("expected", tables["classes"])
        self.assertIn("| dual, dyna:bits=1 | 100 | 9e-06 | 1,000 | 0.10 | 2.0 |\n", tables["softmax"])
        self.assertIn("| gossip | – | 0.25 | 4,000 |  |  |\n", tables["softmax"])

    def test_headline(self):
        out = self.made_up_page()["headline"]
        self.assertIn("| scalecom | 89.20, 89.70, 89.00 | 89.30 | 0.70 | -0.70 ± 0.06 (3) | 100.0 | 50.3 | 33.3 | 10.0 | 5.0 "
                      "| 0123456 |", out)
        self.assertIn("ScaleCom within 0.3 points of dense: expected ≥ -0.30, found -0.70 over 3 seeds (standard error 0.06): "
                      "missed by 0.40\n", out)
        self.assertIn("compressed tensors: expected ≥ 99.00, found 100.00 over 3 seeds: holds\n", out)
        self.assertIn("whole model: expected ≥ 50.00, found 50.25 over 3 seeds: holds\n", out)
        self.assertIn("by its plans: expected ≥ 1.80, found 1.40 over 9 plans: missed by 0.40\n", out)
        # Without the 10,000 bytes of the dense hundredth 20,000 against 12,500.
        self.assertIn("sent (rank 0): expected ≥ 1.80, found 1.60 over 3 seeds: missed by 0.20\n", out)
        self.assertIn("of uniform ScaleCom: expected ≥ -0.30, found -0.43 over 3 seeds (standard error 0.13): "
                      "missed by 0.13, within 2 standard errors\n", out)
        self.assertIn("- plans over budget, lgreco-scalecom: 3 of 9, by 2.5 % at most\n", out)

    def test_more_seeds_of_one_method(self):
        def change(results):
            for seed in 4, 5, 6:
                results[f"headline-dense-{seed}"] = made_up(f"headline-dense-{seed}", "train_resnet")
            results["headline-scalecom-5"] = made_up("headline-scalecom-5", "train_resnet --compress scalecom")

        # Differences -0.8, -0.7, -0.6, -0.7: standard deviation 0.0816.
        self.assertIn("found -0.70 over 4 seeds (standard error 0.04): missed by 0.40\n", self.made_up_page(change)["headline"])

    def test_how_they_were_made(self):
        def change(results):
            results["ptb-dense"]["revision"] = "ba9876543210"
            results["ptb-dense"]["machine"] = "Intel(R) Xeon(R) Processor, 2 cores"
            results["ptb-scalecom-400"]["resumed"] = True

        tables = self.made_up_page(change)
        self.assertIn("\n`./run reproduce ptb-`; revision 0123456 (16), ba98765 (1); Intel Xeon, 2 cores; interrupted and resumed: "
                      "`scalecom-400`. `dense` is\n`./run train_lm --data DATA/ptb ", tables["ptb"])
        self.assertIn("\n`./run reproduce headline-`; revision 0123456. `dense-1` is\n`./run train", tables["headline"])
        self.assertNotIn("reproduce", tables["composed"])

    def test_large(self):
        self.assertIn("| beta-0.1 | 66.00, 57.00 | 61.50 | 9.00 | -14.00 (2) |", self.made_up_page()["large"])
        self.assertIn("beta-1, points: expected ≥ 0.00, found 4.50 over 2 seeds: holds\n", self.made_up_page()["large"])

        def change(results):
            del results["large-beta-1-1"]

        self.assertIn("beta-1, points: expected ≥ 0.00, found -1.00 over 1 seed: missed by 1.00\n",
                      self.made_up_page(change)["large"])

    def test_bytes_of_a_resumed_run(self):
        def counted(results):
            for seed in 1, 2, 3:
                results[f"headline-scalecom-{seed}"]["summary"]["bytes_step_mean"] = 20000  # 10,000 of them dense
                results[f"headline-lgreco-scalecom-{seed}"]["summary"]["bytes_step_mean"] = 15000

        def resumed(results):
            counted(results)
            results["headline-lgreco-scalecom-2"].update(resumed=True)
            results["headline-lgreco-scalecom-2"]["summary"]["bytes_step_mean"] = 0

        self.assertIn("by what the runs sent: expected ≥ 1.80, found 2.00 over", self.made_up_page(counted)["headline"])
        self.assertIn("by what the runs sent (rank 0): expected ≥ 1.80, found 1.60 over",
                      self.made_up_page(resumed)["headline"])

    def test_pairs(self):
        def change(results):
            results["pair-one-learner-dense"]["summary"]["valid_acc1"] = 82.5
            del results["pair-no-momentum-scalecom"], results["headline-scalecom-full-3"]

        rows = self.rows(self.made_up_page(change)["pairs"])
        self.assertEqual(rows[0], "| 8 epochs | 1 | 88.00 | 87.25 | -0.75 |")
        self.assertEqual(rows[1], "| 16 epochs | 2 | 90.20 | 88.45 | -1.75 |")
        self.assertEqual(rows[3], "| 8 epochs, one learner of 128 images | 1 | 82.50 | 80.00 | -2.50 |")
        self.assertEqual(rows[4], "| 8 epochs, learning rate 0.1 | 1 | 80.00 | 80.00 | +0.00 |")
        self.assertEqual(len(rows), 5)

    def test_seeds_that_only_one_method_has(self):
        def change(results):
            del results["headline-dense-1"], results["headline-scalecom-2"], results["headline-lgreco-scalecom-1"]
            del results["headline-lgreco-scalecom-2"]
            results["headline-scalecom-1"]["summary"]["ratio_layers"] = 94.0
            results["headline-scalecom-3"]["revision"] = "ba9876543210"

        out = self.made_up_page(change)["headline"]
        self.assertIn("| scalecom | 89.20, 89.00 | 89.10 | 0.20 | -0.60 (1) | 97.0 |", out)
        self.assertIn("| 0123456, ba98765 |", out)
        self.assertIn("found -0.60 over 1 seed: missed by 0.30\n", out)
        self.assertIn("found 97.00 over 2 seeds: missed by 2.00\n", out)
        self.assertIn("uniform ScaleCom: expected ≥ -0.30, found -0.70 over 1 seed: missed by 0.40\n", out)

    def test_ablation_and_perplexity(self):
        tables = self.made_up_page()
        self.assertIn("| dense | 88.00 |  | 0.5000 |", tables["ablation"])
        self.assertIn("| scalecom | 87.25 | -0.75 | 0.5000 |", tables["ablation"])
        self.assertIn("- plans over budget, lgreco-qsgd: 1 of 3, by 2.5 % at most\n", tables["ablation"])
        self.assertIn("| scalecom-100 | 110.00 | 101.50 | 101.5 |", tables["ptb"])
        self.assertIn("- scalecom-100, test perplexity in % of dense: expected ≤ 101.00, found 101.50: missed by 0.50\n",
                      tables["ptb"])
        self.assertIn("- scalecom-100-aggregate, test perplexity in % of dense: expected ≤ 101.00, found 102.00: missed by 1.00\n",
                      tables["ptb"])
        self.assertIn("found 103.25: missed by 2.25\n", tables["ptb"])
        # 101.5, 99 and 100 % of the dense run with the same seed.
        self.assertIn("- scalecom-100, mean over 3 seeds, test perplexity in % of dense: expected ≤ 101.00, found 100.17: holds\n",
                      tables["ptb"])
        self.assertIn("- scalecom-400, mean over 3 seeds, test perplexity in % of dense: expected ≤ 101.00, found 101.42: missed by 0.42\n",
                      tables["ptb"])
        self.assertNotIn("scalecom-100-aggregate, mean", tables["ptb"])

    def test_lgc(self):
        text = self.made_up_page()["lgc"]
        self.assertIn("- value, accuracy against the control, points: expected ≥ -0.50, found -0.25 over 2 seeds: holds", text)
        self.assertIn("- index, accuracy against the control, points: expected ≥ -0.50, found -1.00 over 2 seeds: missed by 0.50",
                      text)
        self.assertIn("- value, bytes of the compressed tensors, control over LGC (rank 0): expected ≥ 1.80, found 2.00 over "
                      "2 seeds: holds", text)  # 20,000 over 10,000
        self.assertNotIn("scalecom, accuracy", text)
        self.assertIn("- value, seed 2: part of the energy that the decoder loses in training step 1: 1.25, step 50: 0.50\n", text)
        self.assertNotIn("index, seed 2", text)

    def test_claims(self):
        rows = self.rows(self.made_up_page()["claims"])
        self.assertNotIn("not measured yet", "".join(rows))
        verdict = {cells[1]: tuple(cells[2:5]) for cells in (re.split(r" *\| *", row) for row in rows)}
        self.assertEqual(len(verdict), len(rows))
        points = statistics.fmean(a - b for a, b in zip(ACCURACY["scalecom"], ACCURACY["dense"]))
        self.assertEqual(verdict["ResNet-20 on CIFAR-10, 16 epochs, ScaleCom at rate 100 with heddle's rule of momentum: "
                                 "accuracy against dense, points"],
                         ("≥ -0.3", f"{points:.2f} over 3 seeds (standard error 0.06)", f"missed by {-0.3 - points:.2f}"))
        self.assertEqual(verdict["Full recipe, ResNet-20, 164 epochs: accuracy of dense, %"], ("≥ 91", "91.50", "holds"))
        self.assertEqual(verdict["Full recipe, ScaleCom: accuracy against dense, points"], ("≥ -0.5", "-1.00 over 1 seed", "missed by 0.50"))
        self.assertEqual(verdict["Medium LSTM, one seed: validation perplexity in % of dense, worst epoch"], ("≤ 102", "102.00", "holds"))
        self.assertEqual(verdict["At 100 Mbit/s ResNet-18 reaches dense's final result sooner, ScaleCom: ratio of times"],
                         ("≥ 4", "4.00 over 1 seed", "holds"))
        self.assertEqual(verdict["L-GreCo's plans have fewer bytes than its uniform default: ratio"],
                         ("≥ 1.8", "1.40 over 9 plans", "missed by 0.40"))
        self.assertEqual(verdict["… bytes that its runs sent for the compressed tensors (rank 0): ratio"],
                         ("≥ 1.8", "1.60 over 3 seeds", "missed by 0.20"))  # 20,000 over 12,500
        self.assertEqual(verdict["LSTM on Penn Treebank, AdaComp: test perplexity in % of dense"],
                         ("≤ 102", "100.33 over 3 seeds", "holds"))  # 101, 100, 100
        self.assertEqual(verdict["LSTM on Penn Treebank, rate 400: test perplexity in % of dense"],
                         ("≤ 101", "101.42 over 3 seeds", "missed by 0.42, within 2 standard errors"))  # 103.25, 101, 100
        self.assertEqual(verdict["AdaComp's ratio on that LSTM, in its paper's count as we recall it"], ("≥ 150", "100.00", "missed by 50.00"))

        self.assertEqual(verdict["… bytes to 1e-5 without a code over those with dual, qsgd:bits=4"], ("≥ 7", "8.00", "holds"))
        self.assertEqual(verdict["… bytes to 1e-5 without a code over those with dual, dyna:bits=1"],
                         ("≥ 24", "2.00", "missed by 22.00"))

        rows = self.rows(self.page({"headline-dense-1": made_up("headline-dense-1", "train_resnet")})["claims"])
        self.assertEqual(len([row for row in rows if "**not measured yet**" in row]), len(rows))

        def slow(results):
            for name in "race-resnet18-scalecom", "race-resnet18-coded-4-epochs":
                for entry in results[name]["curve"]:
                    entry["acc1"] = 10.0

        text = self.made_up_page(slow)["claims"]
        for how in "ScaleCom", "coded start and four epochs for two (tried after that)":
            self.assertIn(f"ResNet-18 reaches dense's final result sooner, {how}: ratio of times | ≥ 4 | not reached | missed |", text)

    def test_verdicts_near_their_bounds(self):
        self.assertEqual(plot_results.judged(-0.25, least=-0.3, error=0.02), "holds")
        self.assertEqual(plot_results.judged(-0.25, least=-0.3, error=0.03), "holds, within 2 standard errors")
        self.assertEqual(plot_results.judged(-0.36, least=-0.3, error=0.02), "missed by 0.06")
        self.assertEqual(plot_results.judged(101.5, most=101, error=0.3), "missed by 0.50, within 2 standard errors")

    def test_race(self):
        def slow(results):
            for name in "race-resnet18-scalecom", "race-resnet18-coded-4-epochs":
                for entry in results[name]["curve"]:
                    entry["acc1"] = 10.0

        out = self.made_up_page(slow)["race"]
        self.assertIn("| resnet20-dense | 89.20 | 104.0 |  |  |", out)
        # It passes dense's final 89.2 % in its last epoch, after 1,560 instead of 6,240 s.
        self.assertIn("| resnet20-scalecom | 89.50 | 26.0 | 26.0 | 4.00 |", out)
        self.assertIn("| resnet18-scalecom | 10.00 | 26.0 | not reached |  |", out)
        # A perplexity falls: 121.6 of dense's end is reached by 121.0 at the end, not by 200 after the first epoch.
        self.assertIn("| lstm-scalecom | 121.00 | 26.0 | 26.0 | 4.00 |", out)
        self.assertIn("- resnet20-scalecom, sooner at dense's final result: expected ≥ 2.00, found 4.00: holds\n", out)
        self.assertIn("- resnet18-scalecom, sooner at dense's final result: expected ≥ 4.00, not reached\n", out)

    def test_times(self):
        out = self.made_up_page()["times"]
        self.assertIn("| model | resnet18 | lgreco-scalecom | off | 1.125 | 0.250 | 2.22 | 6.5 |", out)
        self.assertIn("- hosts, lstm, over dense: expected ≥ 2.50, found lgreco-qsgd 4.00 (holds), lgreco-scalecom 3.20 "
                      "(holds), qsgd 2.00 (missed by 0.50), scalecom 4.00 (holds)\n", out)
        self.assertIn("- hosts, lstm, L-GreCo over its uniform default: expected ≥ 1.00, found lgreco-qsgd 2.00 (holds), "
                      "lgreco-scalecom 0.80 (missed by 0.20)\n", out)
        self.assertEqual(out.count("\n- "), 12)  # two for each place and network

    def test_traffic(self):
        tables = self.made_up_page()
        self.assertIn("| scalecom | 64 | 27000 | 27077 | 1000000 | 0.9000 | 0.600 | 0.750 |  |  |", tables["scaling"])
        self.assertIn("- scalecom, bytes that a learner sends, 64 learners over 4, within the ring factor 2 (P - 1) / P: "
                      "expected ≤ 1.31, found 1.35: missed by 0.04\n", tables["scaling"])
        # 10000 bytes of each travel dense.
        self.assertIn("64 learners over 4: 20.00; without the tensors that travel dense: linear in P - 1 would be 21.00, "
                      "found 22.11\n", tables["scaling"])
        self.assertIn("over the whole model: expected ≥ 90.00, found 88.50: missed by 1.50\n", tables["whole"])

        def change(results):  # counted on the first rank alone
            for learners, count in (4, 16000), (16, 20000), (64, 21000):  # 1.3125 times
                results[f"scaling-scalecom-{learners}"]["bytes_per_step"] = count
            del results["scaling-scalecom-64"]["summary"]["bytes_step_mean"]

        out = self.made_up_page(change)["scaling"]
        self.assertIn("| scalecom | 4 | 16000 (rank 0) |", out)
        self.assertIn("sends (rank 0), 64 learners over 4, within the ring factor 2 (P - 1) / P: "
                      "expected ≤ 1.31, found 1.31: holds\n", out)

    def test_composed(self):
        out = self.made_up_page()["composed"]
        # 312 steps of 2 s, then of 0.5 s: step 3120 at 2028 s, step 6240 at 3588 s.
        self.assertIn("| model | scalecom | 59.8 | 89.20 | 33.8 | 59.8 | 59.8 |", out)
        self.assertIn("| model | scalecom-full | 59.8 | 89.20 | 33.8 | 59.8 | 59.8 |", out)
        # 1000 steps of 2 s, then of 0.625 s: 3325 s and 5275 s.
        self.assertIn("| hosts | lgreco-scalecom | 87.9 | 89.20 | 55.4 | 87.9 | 87.9 |", out)
        self.assertIn("| hosts | dense | 208.0 | 89.20 | 104.0 | 208.0 | 208.0 |", out)

    def test_without_runs(self):
        tables = self.page({})
        self.assertEqual(len(tables), 33)
        for name, out in tables.items():
            self.assertEqual(out, "No run has been kept yet.\n", name)
        self.assertEqual(self.pictures, set())

    def test_with_dense_runs_only(self):
        tables = self.page({name: made_up(name, typed) for name, typed in experiments().items()
                            if "--compress " not in typed})
        self.assertIn("| dense | 90.00, 90.40, 89.60 | 90.00 | 0.80 |  | 1.0 |", tables["headline"])
        self.assertIn("ScaleCom within 0.3 points of dense: expected ≥ -0.30, no run yet\n", tables["headline"])
        self.assertIn("| dense | 110.00 | 100.00 | 100.0 |", tables["ptb"])
        self.assertIn("| model | dense | 208.0 |", tables["composed"])
        self.assertIn("No run has been kept yet.", tables["scaling"])

    def test_without_dense_runs(self):
        def change(results):
            for name in [name for name in results if "dense" in name]:
                del results[name]

        tables = self.made_up_page(change)
        self.assertIn("ScaleCom within 0.3 points of dense: expected ≥ -0.30, no run yet\n", tables["headline"])
        self.assertIn("| scalecom | 87.25 |  | 0.5000 |", tables["ablation"])
        self.assertIn("| scalecom-100 | 110.00 | 101.50 |  |", tables["ptb"])
        self.assertNotIn("expected", tables["ptb"])
        self.assertNotIn("over dense: expected", tables["times"])
        self.assertIn("L-GreCo over its uniform default", tables["times"])
        self.assertEqual(tables["composed"], "No run has been kept yet.\n")


class Digest(unittest.TestCase):
    def digest(self, config, steps=14, first_epoch=9):
        """Returns the digest of a run of that many steps."""
        def sample(contraction, backlog):
            return {"contraction": contraction, "residual_norm": 2 * backlog, "gradient_norm": 2.0}

        lines = [{"schema": 1, "program": "made up"}]
        for i in range(1, steps + 1):
            # The last twelve take 3, 4, … 14 s; the two before them must not count.
            lines.append({"step": i, "epoch": 1 if i <= first_epoch else 2, "split": "train", "loss": float(i),
                          "t_data": 0.25, "t_forward": i - 1.0 if i > 2 else 100.0, "t_backward": 0.5,
                          "t_update": 0.25, "t_exposed": i / 10, "t_comm": 0.125, "t_compress": 0.0625,
                          "bytes_dense": 1000000, "bytes_sent": 1000000 if i <= 2 else 10000 + 1000 * (i % 2)})
        lines += [{"step": 9, "epoch": 1, "split": "valid", "loss": 2.0, "acc1": 40.0, "acc5": 90.0},
                  {"step": 5, "quality": {"a": sample(0.25, 3.0), "b": sample(1.0, 5.0)}, "correlation": 0.5},
                  {"step": 10, "quality": {"a": sample(0.75, 7.0)}, "alike": 1.0},  # check_words: quoted
                  {"summary": "done", "step": steps}]
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (folder / "config.toml").write_text(config)
            for step, setting, error in (9, 7, 1.5), (10, 8, 2.5), (100, 7, 2.0):
                (folder / f"plan-{step}.json").write_text(json.dumps(
                    {"step": step, "bytes": 10 * setting, "uniform_bytes": 100, "error": error, "budget": 2.0,
                     "layers": [{"name": "a", "setting": setting}]}))
            return reproduce.digest(folder, folder / "metrics.jsonl", {"step": steps, "ratio_wire": 40.0})

    def test_figures(self):
        out = self.digest('compress = "scalecom:rate=100"\ncompress-start = 5\n')
        self.assertEqual(out["curve"], [{"epoch": 1, "step": 9, "loss": 2.0, "acc1": 40.0, "train_s": 304.0}])
        self.assertEqual(out["train_loss"], [5.0, 12.0])  # means of 1 … 9 and 10 … 14
        self.assertEqual((out["step_s"], out["t_exposed"]), (8.5, 0.85))  # medians of 3 … 14 and .3 … 1.4
        self.assertEqual((out["t_comm"], out["t_compress"]), (0.125, 0.0625))
        self.assertEqual((out["bytes_dense"], out["bytes_per_step"]), (1000000, 25000))
        self.assertEqual(out["ratio_timed"], 95.2381)  # of the mean of 10000 and 11000
        quality = out["quality"]
        self.assertEqual((quality["samples"], quality["correlation"]), (2, 0.75))
        self.assertEqual({name: x["contraction"] for name, x in quality["layers"].items()}, {"a": 0.5, "b": 1.0})
        self.assertEqual({epoch: [x[key] for key in ("contraction", "backlog", "correlation")]
                          for epoch, x in quality["epochs"].items()}, {1: [0.625, 4.0, 0.5], 2: [0.75, 7.0, 1.0]})
        self.assertEqual(out["compress_start"], 5)

    def test_plans(self):
        plans = self.digest('compress = "scalecom:rate=100"\ncompress-start = 5\n')["plans"]
        self.assertEqual(list(plans), [9, 10, 100])
        self.assertEqual([plan["bytes"] for plan in plans.values()], [70, 80, 70])
        self.assertEqual([plan["budget_used"] for plan in plans.values()], [0.75, 1.25, 1.0])
        self.assertEqual(plans[9]["hash"], plans[100]["hash"])
        self.assertNotEqual(plans[9]["hash"], plans[10]["hash"])

    def test_dense_steps(self):
        self.assertEqual(self.digest('compress = "qsgd"\ncompress-start = -1  # default\n')["compress_start"], 100)
        self.assertEqual(self.digest('compress = "qsgd"\ncompress-start = -1\n', 6240, 390)["compress_start"], 312)
        self.assertEqual(self.digest('compress = "qsgd"\ncompress-start = -1\n', 6240, 120)["compress_start"], 120)
        self.assertEqual(self.digest('compress = "qsgd"\ncompress-start = 0\n')["compress_start"], 0)
        self.assertNotIn("compress_start", self.digest('compress = "none"  # default\ncompress-start = -1\n'))
        for steps, per_epoch, dense in (6240, 390, 312), (63960, 390, 390), (30, 30, 100):
            self.assertEqual(reproduce.first_compressed_step(-1, per_epoch, steps), dense)
        self.assertEqual(reproduce.first_compressed_step(7, 390, 6240), 7)

        def kept(command, epoch, step, steps):  # whose result does not record it
            return {"command": command, "curve": [{"epoch": epoch, "step": step}], "summary": {"step": steps}}

        self.assertEqual(plot_results.dense_steps(kept("./run x --compress y", 1, 390, 6240)), 312)
        self.assertEqual(plot_results.dense_steps(kept("./run x --compress y", 2, 780, 63960)), 390)
        self.assertEqual(plot_results.dense_steps(kept("./run x --compress-start 0", 1, 390, 6240)), 0)


class Resumed(unittest.TestCase):
    FLAGS = "--data D --epochs 3"

    def words(self, left, name="r", again=False):
        """Returns the last two words of the program's command line in a folder that holds these files, by name."""
        def program(command, **_):
            if "--version" in command:
                return mock.Mock(stdout="heddle 0.1.0 (GNU 12.2.0, Release, git 0123456789ab)\noneDNN 2.6.3\n")
            self.called = list(map(str, command))
            return mock.Mock(returncode=1)

        with tempfile.TemporaryDirectory() as scratch, mock.patch.object(reproduce.subprocess, "run", program), \
                contextlib.redirect_stderr(io.StringIO()):
            folder = pathlib.Path(scratch).resolve() / name
            for file, text in left.items():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(text.replace("FOLDER", str(folder)))
            self.assertFalse(reproduce.run(name, "train_lm " + self.FLAGS, scratch, again))
            kept = folder.exists()
        self.assertEqual("--resume" in self.called, kept)
        return self.called[-2:]

    def test_resumes(self):
        argv = ["train_lm", *self.FLAGS.split(), "--json", "--quiet", "--output-dir", "FOLDER"]
        left = {"run.json": json.dumps({"argv": argv, "build": {"git_revision": "0123456789ab"}}),
                "metrics.jsonl": '{"schema": 1}\n{"step":1}\n', "checkpoints/step-10/manifest.json": "{}"}
        anew = ["--resume", "auto"]
        self.assertEqual(self.words(left), anew)
        again = argv + ["--resume", "auto"]  # interrupted a second time
        self.assertEqual(self.words({**left, "run.json": left["run.json"].replace(json.dumps(argv), json.dumps(again))}),
                         anew)
        # Finished, but its result was not added.
        ended = {**left, "metrics.jsonl": left["metrics.jsonl"] + '{"summary":"done"}\n'}
        self.assertEqual(self.words(ended), anew)
        self.assertEqual(self.words(ended, again=True)[0], "--output-dir")
        for group in "time", "scaling":
            self.assertEqual(self.words(left, name=group + "-r")[0], "--output-dir", group)
        for name, other in (("run.json", left["run.json"].replace("456789ab", "456789ac")),
                            ("run.json", left["run.json"].replace('"3"', '"4"')), ("run.json", left["run.json"][:40])):
            self.assertEqual(self.words({**left, name: other})[0], "--output-dir", name)
        half = {name.replace("step-10", "step-10.part"): text for name, text in left.items()}
        self.assertEqual(self.words(half)[0], "--output-dir")
        for name in left:
            self.assertEqual(self.words({n: text for n, text in left.items() if n != name})[0], "--output-dir", name)


class File(unittest.TestCase):
    """docs/results.jsonl: one line for each run."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.file = self.folder / "results.jsonl"

    def test_sorted_and_replaced(self):
        results_file.add(self.file, {"name": "b", "x": 1}, {"name": "a"})
        results_file.add(self.file, {"name": "c"}, {"name": "b", "x": 2})
        self.assertEqual(self.file.read_text(), '{"name":"a"}\n{"name":"b","x":2}\n{"name":"c"}\n')

    def test_two_of_a_name_are_an_error(self):
        self.file.write_text('{"name":"a","x":1}\n{"name":"a","x":2}\n')
        with self.assertRaisesRegex(SystemExit, "results.jsonl:2: a second result named a"):
            results_file.load(self.file)

    def add(self, *files):
        with mock.patch.object(reproduce, "RESULTS", self.file), contextlib.redirect_stderr(io.StringIO()):
            reproduce.main(["--add", *map(str, files)])

    def test_add_takes_files_of_earlier_revisions(self):
        quality = {"looks": 2, "alike": 0.5, "epochs": {"1": {"alike": 0.25}}}  # check_words: quoted
        (self.folder / "m.json").write_text(json.dumps({"name": "m", "command": "./run x", "quality": quality}, indent=1))
        (self.folder / "k.json").write_text(json.dumps({"name": "k", "command": "./run y"}))
        self.add(self.folder / "m.json", self.folder / "k.json")
        self.assertEqual(self.file.read_text(), '{"name":"k","command":"./run y"}\n{"name":"m","command":"./run x",'
                         '"quality":{"samples":2,"correlation":0.5,"epochs":{"1":{"correlation":0.25}}}}\n')

    def test_add_refuses_what_is_no_result(self):
        for text in "[1]", "{", '{"name": "x"}':
            (self.folder / "bad.json").write_text(text)
            with self.assertRaises(SystemExit) as refused:
                self.add(self.folder / "bad.json")
            self.assertEqual(refused.exception.code, 2, text)
        self.assertFalse(self.file.exists())

    def test_branches_merge(self):
        """Runs that two branches added are all there after a merge, neighbours in the file included."""
        if not shutil.which("git"):
            print("skipped: merging two branches of results (no git)")
            return

        def git(*words):
            subprocess.run(["git", "-C", self.folder, "-c", "user.name=x", "-c", "user.email=x@example.org", *words],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        git("init", "-b", "main")
        shutil.copy(DOCS / ".gitattributes", self.folder)
        results_file.add(self.file, {"name": "b"}, {"name": "x"})
        git("add", ".")
        git("commit", "-m", "start")
        for branch, names in ("left", "ac"), ("right", "dz"):  # c and d would be neighbours
            git("checkout", "-b", branch, "main")
            results_file.add(self.file, *({"name": name} for name in names))
            git("commit", "-am", branch)
        git("merge", "left")
        self.assertEqual("".join(results_file.load(self.file)), "abcdxz")

    def test_the_file_of_this_tree(self):
        lines = (DOCS / "results.jsonl").read_text().splitlines()
        names = [json.loads(line)["name"] for line in lines]
        self.assertEqual(names, sorted(set(names)))
        self.assertTrue(set(names) <= set(reproduce.experiments()), set(names) - set(reproduce.experiments()))


class Names(unittest.TestCase):
    def main(self, *words):
        """Returns the names of the runs that this would start, and its output."""
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(said), \
                contextlib.redirect_stderr(said), \
                mock.patch.object(reproduce, "RESULTS", pathlib.Path(scratch) / "results.jsonl"), \
                mock.patch.object(reproduce, "run", return_value=True) as run, \
                mock.patch.object(reproduce.subprocess, "run", return_value=mock.Mock(returncode=0)):
            (pathlib.Path(scratch) / "results.jsonl").write_text('{"name":"ptb-dense"}\n')
            reproduce.main(list(words))
            return [call.args[0] for call in run.call_args_list], said.getvalue()

    def test_full_length_only_when_named(self):
        runs = reproduce.experiments()
        full = [name for name in runs if name.startswith("full-")]
        self.assertEqual(len(full), 13)
        for name in full:
            self.assertEqual(" --device cuda " in runs[name], not name.startswith("full-cpu-"))
        self.assertEqual(self.main()[0], [name for name in runs if name not in full + ["ptb-dense"]])
        self.assertEqual(reproduce.choose(runs, [""]), [])
        self.assertEqual(self.main("full")[0], full)
        self.assertEqual(self.main("headline-scalecom-2")[0], ["headline-scalecom-2"])
        self.assertEqual(len(self.main("headline-scalecom-")[0]), 24)  # rates 25, 100 (six seeds), 400, the rule full, bf16, early, coded
        self.assertEqual(self.main("full-zaremba")[0], [name for name in full if name.startswith("full-zaremba")])
        self.assertEqual(self.main("ptb")[0], [name for name in runs if name.startswith("ptb-") and name != "ptb-dense"])

    def test_rule_of_momentum(self):
        full = {name for name, typed in reproduce.experiments().items() if typed.endswith(" --compressed-momentum full")}
        self.assertIn("ablation-powersgd", full)
        self.assertIn("headline-lgreco-scalecom-full-2", full)
        for name in "headline-scalecom-1", "ablation-dense", "ablation-lgreco-qsgd", "ptb-scalecom-100", "time-hosts-lstm-scalecom-on":
            self.assertNotIn(name, full)

    def test_list(self):
        started, said = self.main("--list")
        self.assertEqual(started, [])
        self.assertEqual(len(said.splitlines()), len(reproduce.experiments()))
        self.assertEqual(said.count("\nlong  full-"), 13)
        self.assertIn("\ndone  ptb-dense ", said)
        self.assertEqual(said.count("done"), 1)


if __name__ == "__main__":
    unittest.main()
