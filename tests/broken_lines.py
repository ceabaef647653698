#!/usr/bin/env python3
"""What the tests of compression are worth: breaks one line at a time, and says whether the test that stands for it fails.

  tests/broken_lines.py             all of them, in a copy of the tree under build-broken (half an hour of two cores)
  tests/broken_lines.py TEXT…       those whose description contains one of these
  tests/broken_lines.py --check     nothing is built: every line still stands in its file, once, and every test exists

Exit code 1 when a test does not notice.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build-broken"
TIMEOUT_S = 200

# What no longer holds, file, its line, the line as it is broken, program, test (doctest's pattern).
BREAKS = [
    # ScaleCom, error feedback
    ("the residual forgets what it held", "compress/error_feedback.cpp", "filter(g, x, beta_)", "filter(x, x, beta_)",
     "test_compress", "error feedback: sum of what was sent*"),
    ("beta changes, what is owed does not", "compress/error_feedback.cpp", "static_cast<float>(beta / beta_)", "1.0f",
     "test_compress", "scalecom: a change of beta*"),
    ("sent elements stay in the residual", "compress/error_feedback.cpp", "put_value(0, sent, x)",
     "put_value(0, sent.slice(0, 0), x)", "test_compress", "error feedback: sum of what was sent*"),
    ("values come from the old residual", "compress/scalecom.cpp", "take(e.compressed[i].tensor,", "take(e.compressed[i].sum,",
     "test_compress", "scalecom: what is sent of the sum*"),
    ("the largest are looked for without the residual", "compress/codec_cpu.cpp", "    return sum;\n", "    return sum - residual;\n",
     "test_compress", "scalecom: alone it is local top-k*"),
    ("rank 0 leads always", "compress/scalecom.cpp", "static_cast<int>(e.step % e.comm.size())", "static_cast<int>(e.step * 0)",
     "test_optim", "learners: the leader changes with every step*"),
    ("a skipped step keeps its leader", "optim/data_parallel.cpp", "    ++step_;\n", "    step_ += report.skipped ? 0 : 1;\n",
     "test_optim", "learners: the leader changes with every step*"),
    ("exact selection takes chunks", "compress/scalecom.cpp", "return exact_ ? select_top(elements(x), code.k) :",
     "return exact_ && code.k < 0 ? select_top(elements(x), code.k) :", "test_compress", "quality: figures are those*"),
    ("traffic grows with the number of learners", "compress/compressed_reducer.cpp", "[&] { e.comm.all_reduce(payload); });",
     "[&] { for (int r = 0; r < e.comm.size(); ++r) e.comm.all_reduce(payload); });", "test_compress",
     "traffic of a learner: constant*"),
    ("top-k adds up what one rank sent", "compress/top_k.cpp", "at < received.size(); at += mine.codes.size()",
     "at < mine.codes.size(); at += mine.codes.size()", "test_compress", "identical learners behave as one"),
    ("random places are the same in every step", "compress/scalecom.cpp",
     "static_cast<uint64_t>(e.step) << 20 | item.layer->index", "static_cast<uint64_t>(e.step * 0) | item.layer->index",
     "test_compress", "a constant gradient is delivered*"),
    ("random places differ from rank to rank", "compress/scalecom.cpp",
     "static_cast<uint64_t>(e.step) << 20 | item.layer->index",
     "static_cast<uint64_t>(e.step + e.comm.rank()) << 20 | item.layer->index", "test_compress",
     "error feedback: sum of what was sent*"),
    ("rates above 196 uses", "compress/scalecom.cpp", "if (uses_per_sample > 196) return 25;", "if (uses_per_sample > 196) return 50;",
     "test_compress", "scalecom: automatic rates by*"),
    ("every rank settles rate=auto for itself", "compress/scalecom.cpp", "[&] { e.comm.broadcast(rates, 0); });", "[] {});",
     "test_optim", "learners: rate=auto is the same*"),
    ("layers that travel dense leave their residual behind", "compress/compressed_reducer.cpp",
     "if (feedback_ && feedback_->holds(p->name)) compensate(p->name, x);",
     "if (feedback_ && feedback_->holds(p->name) && !bucket.flat.defined()) compensate(p->name, x);", "test_compress",
     "powersgd: a rank that does not pay*"),
    ("with beta below 1 a residual sent whole is gone whole", "compress/error_feedback.cpp",
     "if (beta_ < 1) scale(m, static_cast<float>(1 - beta_));", "if (beta_ < 1) scale(m, 0.0f);", "test_compress",
     "error feedback: a layer that travels dense for a while*"),
    # What is not finite, and steps that do not count
    ("nobody is told of a rank's NaN", "compress/compressed_reducer.cpp", "fill(flag, e.finite ? 0.0f : 1.0f);",
     "fill(flag, 0.0f);", "test_compress", "not finite on one rank: nobody accepts*"),
    ("top-k tells nobody of a rank's NaN", "compress/top_k.cpp", "*flag.data<uint8_t>() = e.finite ? 0 : 1;",
     "*flag.data<uint8_t>() = e.finite ? 0 : 0;", "test_compress", "not finite in a bucket of a single layer*"),
    ("a step that does not count is not taken back", "compress/compressed_reducer.cpp",
     "if (feedback_) feedback_->undo(item.name(), item.sum);", "if (feedback_ && e.finite) feedback_->undo(item.name(), item.sum);",
     "test_compress", "not finite on one rank: nobody accepts*"),
    ("a collective that fails is not taken back", "compress/compressed_reducer.cpp", "    undo();\n    throw;\n", "    throw;\n",
     "test_compress", "a collective that fails*"),
    ("a dense sum is applied that a residual could not hold", "compress/compressed_reducer.cpp",
     "accepted = largest_magnitude_of({flat}) <= magnitude(kLargest);", "accepted = all_finite(flat);", "test_optim",
     "learners: what was sent in a step that is not applied*"),
    ("what a skipped step sent is lost", "optim/data_parallel.cpp", "if (report.skipped && compressing())",
     "if (report.skipped && compressing() && comm_.size() == 0)", "test_optim", "learners: what was sent in a step that is not applied*"),
    ("what a skipped step sent is owed without beta", "compress/error_feedback.cpp", "static_cast<float>(beta_ * share)",
     "static_cast<float>(share)", "test_optim", "learners: with beta below 1*"),
    ("gradients are clipped after they were compressed", "optim/data_parallel.cpp",
     "    if (parallel_.local_clip > 0) clip_locally();\n    flush();\n", "    flush();\n    worker_->drain();\n    if (parallel_.local_clip > 0) clip_locally();\n",
     "test_optim", "learners: local clipping comes before the residual*"),
    ("local clipping without the root of P", "optim/data_parallel.cpp",
     "parallel_.local_clip * std::sqrt(static_cast<double>(comm_.size()))", "parallel_.local_clip", "test_optim",
     "learners: local clipping holds each rank's own*"),
    ("a bucket leaves after the first micro-batch", "optim/data_parallel.cpp",
     "if (!last_micro_step() || !p.written || !ready_.insert(&p).second) return;",
     "if (!p.written || !ready_.insert(&p).second) return;", "test_optim", "learners: compressed*overlapped or not*"),
    # Codecs
    ("indices take a byte more than they count", "compress/select.cpp",
     "return is_bitmap() ? packed_bytes(n, 1) : packed_bytes(k, width());",
     "return is_bitmap() ? packed_bytes(n, 1) : packed_bytes(k, width()) + 1;", "test_compress", "indices: bytes by the formula*"),
    ("one of equal elements too many", "compress/select.cpp", "equal-- > 0", "equal-- >= 0", "test_compress",
     "selection: chunks as by a loop*"),
    ("NaN is the largest", "compress/select.cpp", "return v == v ? v : Lanes<kLanes>::all(0);", "return v;", "test_compress",
     "selection: chunks as by a loop*"),
    ("levels are rounded up too often", "compress/quantize.cpp", "= Philox::unit(block.word[j]);",
     "= 0.8f * Philox::unit(block.word[j]);", "test_compress", "quantiser: bounds*"),
    ("nearest for stochastic rounding", "compress/quantize.cpp", "    if (noise)\n", "    if (noise && n < 0)\n", "test_compress",
     "quantiser: bounds*"),
    ("all ranks round alike", "compress/block_exchange.cpp", "static_cast<uint64_t>(e.comm.rank()) << 16", "uint64_t{0} << 16",
     "test_compress", "qsgd: within the bound*"),
    ("all steps round alike", "compress/block_exchange.cpp", "static_cast<uint64_t>(e.step) << 28", "uint64_t{0} << 28",
     "test_compress", "qsgd: within the bound*"),
    ("levels of half the bits", "compress/block_exchange.cpp", ".bits = bits},", ".bits = std::max(2, bits - 1)},", "test_compress",
     "qsgd: within the bound*"),
    ("a message of top-k of any length is read", "compress/top_k.cpp", "if (lengths[r] < least || lengths[r] > most)",
     "if (lengths[r] < 0)", "test_compress", "top-k: what a rank sends that is no message*"),
    # PowerSGD
    ("the residual is against the sum", "compress/power_sgd.cpp", "axpy(static_cast<float>(-1.0 / ranks), item.sum, item.tensor);",
     "axpy(static_cast<float>(-1.0 + 0 * ranks), item.sum, item.tensor);", "test_compress", "powersgd: five steps*"),
    ("every step begins anew", "compress/power_sgd.cpp",
     "HEDDLE_DISPATCH(device, next_factor(q, ranks, factor(*item.layer, device)));", "(void)device;", "test_compress",
     "powersgd: five steps*"),
    ("Gram-Schmidt once", "compress/low_rank.cpp", "round < 2", "round < 1", "test_compress", "orthogonalize: orthonormal*"),
    ("factors are no part of the state", "compress/power_sgd.cpp", "if (layer.compressed && pays(layer)) state.emplace_back",
     "if (!layer.compressed && pays(layer)) state.emplace_back", "test_compress", "state: copied into a fresh*"),
    # Which tensors
    ("the first convolution is compressed", "compress/compressed_reducer.cpp", "&& &p != first && !named;",
     "&& (&p != first || !named) && !named;", "test_compress", "which layers: first convolution*"),
    # L-GreCo
    ("errors are rounded down", "compress/l_greco.cpp", "std::ceil(error / (budget / buckets))", "std::floor(error / (budget / buckets))",
     "test_compress", "L-GreCo: the plan is the best of all*"),
    ("the last state of a layer is not looked at", "compress/l_greco.cpp", "b < states - step; ++b", "b + 1 < states - step; ++b",
     "test_compress", "L-GreCo: the plan is the best of all*"),
    ("plans over the budget are used", "compress/l_greco.cpp", "if (plan.error <= plan.budget) break;", "break;", "test_compress",
     "L-GreCo: over the budget by the last bit*"),
    ("plans may be larger than the default", "compress/l_greco.cpp", "if (uniform.error <= plan.budget && plan.cost > uniform.cost)",
     "if (uniform.error <= plan.budget && plan.cost > 9 * uniform.cost)", "test_compress", "L-GreCo: the plan is the best of all*"),
    ("squared errors", "compress/select.cpp", "return std::sqrt(std::max(0.0, unsent));", "return std::max(0.0, unsent);", "test_optim",
     "planner: error tables are what*"),
    ("tables are summed, not averaged", "comm/communicator.cpp", "mean[i] += values[i] / comm.size();", "mean[i] += values[i];",
     "test_optim", "planner: identical learners have the same plan*"),
    ("one rank's table counts", "comm/communicator.cpp", "mean[i] += values[i] / comm.size();", "mean[i] = values[i];", "test_optim",
     "planner: a plan's errors are the mean*"),
    ("a window holds its last gradients", "compress/compressed_reducer.cpp", "if (!first) axpy(1, x, sum->second);",
     "if (!first) sum->second.copy_from(x);", "test_optim", "planner: a window has the signed sums*"),
    ("plans that differ are used", "compress/layer_planner.cpp", "if (all[r][0] != hash)", "if (all[r].empty())", "test_optim",
     "planner: NaN in a window*"),
    ("any gain is a reason to change", "compress/layer_planner.cpp", "constexpr double kLeastGain = 0.02;",
     "constexpr double kLeastGain = -1;", "test_optim", "planner: windows close where they should*"),
    ("no reserve", "compress/layer_planner.cpp", "constexpr double kReserve = 0.02;", "constexpr double kReserve = 0;", "test_optim",
     "planner: a new plan leaves 2*"),
    ("the plan before stays, over budget or not", "compress/layer_planner.cpp", "const bool keeps_budget = before.error <= plan.budget;",
     "const bool keeps_budget = before.error <= 9 * plan.budget;", "test_optim", "planner: the plan before is kept within*"),
    ("plans begin a step late", "compress/layer_planner.cpp", "if (step == due_) adopt", "if (step == due_ + 1) adopt", "test_optim",
     "planner: windows close where they should*"),
    ("the rate of the last look is not noticed", "compress/layer_planner.cpp", "if (!lr_) lr_ = lr;", "if (!lr_) lr_ = 1 + 0 * lr;", "test_optim",
     "planner: a jump of one layer's*"),
    ("a run that goes on judges by its own rate", "compress/layer_planner.cpp", "    lr_ = state.lr;\n", "", "test_optim",
     "planner: a run that goes on*"),
    ("bytes cost no time", "compress/layer_planner.cpp", "seconds[c] + per_byte * static_cast<double>(layer.bytes[c])",
     "seconds[c] + 0 * per_byte", "test_optim", "planner: bytes and time choose differently*"),
    ("norms may change more", "compress/accordion.cpp", "constexpr double kEta = 0.5;", "constexpr double kEta = 0.9;", "test_compress",
     "Accordion: critical at first*"),
    ("what is not critical travels as before", "compress/accordion.cpp", "std::abs(2 * bytes - layer.bytes[layer.uniform])",
     "std::abs(bytes - layer.bytes[layer.uniform])", "test_compress", "Accordion: what is not critical*"),
    # The quality meter
    ("the bound is above what it should be", "compress/quality.cpp", "out.mismatch + (1 - out.mismatch) * rho;", "out.mismatch + rho;",
     "test_compress", "quality: figures are those*"),
    ("the cosine is to what was to be sent", "compress/quality.cpp", "dot(sent, seen.gradients)", "dot(sent, seen.all)",
     "test_compress", "quality: figures are those*"),
    ("the warning looks at the whole run", "apps/quality_report.cpp", "looks_ >= kLooksBeforeWarning && mean <= 0",
     "looks_ >= kLooksBeforeWarning && alike_sum_ <= 0", "test_apps", "quality report: learners that have nothing*"),
    ("residuals without 1 / beta", "compress/quality.cpp", "std::sqrt(residual / ranks) / beta", "std::sqrt(residual / ranks) / (0 * beta + 1)",
     "test_compress", "quality: figures are those*"),
]


def found(path, text):
    return (ROOT / path).read_text().count(text)


def cases_of(program):
    """The names of its tests, by the sources that CMakeLists.txt gives it."""
    made = re.search(rf"heddle_test\({program} (.*?)\)", (ROOT / "CMakeLists.txt").read_text(), re.S)
    sources = re.findall(r"tests/\w+\.cpp", made[1] if made else "")
    return ["".join(re.findall(r'"([^"]*)"', name)) for source in sources
            for name in re.findall(r'TEST_CASE\(\s*((?:"[^"]*"\s*)+)\)', (ROOT / source).read_text())]


def check():
    """Lines that are gone or stand more than once, and tests that no longer exist."""
    wrong = []
    cases = {program: cases_of(program) for program in {entry[4] for entry in BREAKS}}
    for what, path, old, new, program, case in BREAKS:
        if found(path, old) != 1:
            wrong.append(f"{what}: {path} has its line {found(path, old)} times: {old.strip()}")
        if old == new:
            wrong.append(f"{what}: nothing is broken")
        pattern = re.compile(".*".join(map(re.escape, case.split("*"))) + "$")
        if not any(pattern.match(name) for name in cases[program]):
            wrong.append(f"{what}: {program} has no test {case}")
    return wrong


def run(*command, timeout=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)


def build(program):
    return run("ninja", "-C", COPY / "build", program)


def prepare():
    """A copy of what git tracks, as it is here, with its programs."""
    source = COPY / "source"
    source.mkdir(parents=True, exist_ok=True)
    names = subprocess.run(["git", "-C", ROOT, "ls-files"], stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        here, there = ROOT / name, source / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if here.is_file() and (not there.exists() or there.read_bytes() != here.read_bytes()):
            there.write_bytes(here.read_bytes())
            there.chmod(here.stat().st_mode)
    configured = run("cmake", "-S", source, "-B", COPY / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DHEDDLE_CUDA=OFF")
    if configured.returncode:
        sys.exit(configured.stdout[-3000:])
    for program in sorted({entry[4] for entry in BREAKS}):
        made = build(program)
        if made.returncode:
            sys.exit(made.stdout[-3000:])


def test(program, case):
    """"passes", or how it fails."""
    try:
        done = run(COPY / "build" / program, f"--test-case={case}", "--no-colors", timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"is still running after {TIMEOUT_S} s"
    counts = re.search(r"test cases: *(\d+) \| *(\d+) passed \| *(\d+) failed", done.stdout)
    if counts is None:
        return f"ends with {done.returncode}"
    if int(counts[1]) == 0:
        return "does not exist"
    errors = len(re.findall(r": (?:FATAL )?ERROR: ", done.stdout))
    return "passes" if done.returncode == 0 else f"fails, {errors} checks"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    wrong = check()
    if wrong or arguments.check:
        print("\n".join(wrong) or f"{len(BREAKS)} lines to break stand where they should")
        return 1 if wrong else 0
    chosen = [entry for entry in BREAKS if not arguments.text or any(text in entry[0] for text in arguments.text)]
    if not chosen:
        sys.exit("no break has such a description")
    prepare()
    unnoticed = 0
    for what, path, old, new, program, case in chosen:
        begin = time.monotonic()
        file = COPY / "source" / path
        whole = file.read_text()
        file.write_text(whole.replace(old, new))
        try:
            made = build(program)
            outcome = test(program, case) if made.returncode == 0 else "is not built: " + made.stdout[-600:]
        finally:
            file.write_text(whole)
        red = outcome.startswith(("fails", "ends", "is still"))
        unnoticed += not red
        print(f"{'red ' if red else 'GREEN'} {what} | {path} | {case} {outcome} | {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} breaks were noticed")
    for program in sorted({entry[4] for entry in chosen}):
        if build(program).returncode:
            sys.exit(f"{program} is not built without a break")
    worthless = [(case, outcome) for program, case in sorted({entry[4:] for entry in chosen})
                 if (outcome := test(program, case)) != "passes"]
    for case, outcome in worthless:
        print(f"without a break, too: {case} {outcome}")
    return 1 if unnoticed or worthless else 0


if __name__ == "__main__":
    sys.exit(main())
