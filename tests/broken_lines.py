#!/usr/bin/env python3
"""What the tests of compression are worth: breaks one line at a time, and says whether the test that stands for it fails.

  tests/broken_lines.py             all of them, in a copy of the tree under build-broken (half an hour of two cores)
  tests/broken_lines.py TEXT…       those whose description contains one of these
  tests/broken_lines.py --check     nothing is built: every line still stands in its file, once, and every test exists

A test is a case of doctest's or, where only processes or whole programs show what is broken, one of ctest's.
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
TIMEOUT_S = 200  # of one test of doctest's
CTEST_TIMEOUT_S = 900

# What no longer holds, file, its line, the line as it is broken, program, test (doctest's pattern). Where that is empty, the
# program is the name of a test of ctest's, which is run as a whole.
BREAKS = [
    # ScaleCom, error feedback
    ("the residual forgets what it held", "compress/error_feedback.cpp", "low_pass(g, x, beta_)", "low_pass(x, x, beta_)",
     "test_compress", "error feedback: sum of what was sent*"),
    ("beta changes, the residuals do not", "apps/session/training_state.cpp", "scale(x, static_cast<float>(factor))", "scale(x, 1.0f)",
     "test_apps", "training state: with another --accumulate*"),
    ("sent elements stay in the residual", "compress/error_feedback.cpp", "scatter_value(0, sent, x)",
     "scatter_value(0, sent.slice(0, 0), x)", "test_compress", "error feedback: sum of what was sent*"),
    ("values come from the old residual", "compress/shared_indices.cpp", "gather(e.compressed[i].tensor,", "gather(e.compressed[i].sum,",
     "test_compress", "scalecom: what is sent of the sum*"),
    ("the largest are looked for without the residual", "compress/codecs/sparse_kernels_cpu.cpp", "    return sum;\n", "    return sum - residual;\n",
     "test_compress", "scalecom: alone it is local top-k*"),
    ("rank 0 leads always", "compress/scalecom.cpp", "static_cast<int>(e.step % e.comm.size())", "static_cast<int>(e.step * 0)",
     "test_optim", "learners: the leader changes with every step*"),
    ("a skipped step keeps its leader", "optim/data_parallel.cpp", "  ++step_;\n", "  step_ += report.skipped ? 0 : 1;\n",
     "test_optim", "learners: the leader changes with every step*"),
    ("exact selection takes chunks", "compress/scalecom.cpp", "return exact_ ? select_top(elements(x), code.k) :",
     "return exact_ && code.k < 0 ? select_top(elements(x), code.k) :", "test_compress", "quality: figures are those*"),
    ("traffic grows with the number of learners", "compress/compressed_reducer.cpp", "[&] { e.comm.all_reduce(payload); });",
     "[&] { for (int r = 0; r < e.comm.size(); ++r) e.comm.all_reduce(payload); });", "test_compress",
     "traffic of a learner: constant*"),
    ("top-k adds up what one rank sent", "compress/top_k.cpp", "at < received.size(); at += mine.codes.size()",
     "at < mine.codes.size(); at += mine.codes.size()", "test_compress", "identical learners behave as one"),
    ("random places are the same in every step", "compress/random_k.cpp",
     "static_cast<uint64_t>(e.step) << 20 | item.layer->index", "static_cast<uint64_t>(e.step * 0) | item.layer->index",
     "test_compress", "a constant gradient is delivered*"),
    ("random places differ from rank to rank", "compress/random_k.cpp",
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
    ("what is owed is dropped with the setting", "compress/compressed_reducer.cpp",
     "  layers_.at(parameter).choice = value;\n",
     "  if (feedback_) feedback_->mark_sent_whole(parameter);\n  layers_.at(parameter).choice = value;\n", "test_compress",
     "powersgd: after a change of rank*"),
    ("gradients of the dense start are owed, too", "optim/data_parallel.cpp",
     "    sum_dense(gradients, gradients.flat, comm_, ledger_);\n",
     "    if (reducer_ != nullptr) reducer_->return_unapplied(gradients, comm_.size());\n"
     "    sum_dense(gradients, gradients.flat, comm_, ledger_);\n", "test_optim",
     "learners: residuals are zero during a dense start*"),
    ("micro-steps are counted as steps", "optim/data_parallel.cpp",
     "  micro_step_ = last_micro_step() ? 0 : micro_step_ + 1;\n",
     "  if (!last_micro_step()) ++step_;\n  micro_step_ = last_micro_step() ? 0 : micro_step_ + 1;\n", "test_optim",
     "learners: the leader changes with every step*"),
    # What is not finite, and steps that do not count
    ("nobody is told of a rank's NaN", "compress/compressed_reducer.cpp", "fill(flag, e.finite ? 0.0f : 1.0f);",
     "fill(flag, 0.0f);", "test_compress", "not finite on one rank: nobody accepts*"),
    ("top-k tells nobody of a rank's NaN", "compress/top_k.cpp", "*flag.data<uint8_t>() = e.finite ? 0 : 1;",
     "*flag.data<uint8_t>() = e.finite ? 0 : 0;", "test_compress", "not finite in a bucket of a single layer*"),
    ("a step that does not count is not taken back", "compress/compressed_reducer.cpp",
     "if (feedback_) feedback_->restore(item.name(), item.sum);", "if (feedback_ && e.finite) feedback_->restore(item.name(), item.sum);",
     "test_compress", "not finite on one rank: nobody accepts*"),
    ("a collective that fails is not taken back", "compress/compressed_reducer.cpp", "    restore();\n    throw;\n", "    throw;\n",
     "test_compress", "a collective that fails*"),
    ("a dense sum is applied that a residual could not hold", "compress/compressed_reducer.cpp",
     "accepted = largest_magnitude_of({flat}) <= magnitude(kMaxAddend);", "accepted = all_finite(flat);", "test_optim",
     "learners: what the ranks sent in a skipped step*"),
    ("what a skipped step sent is lost", "optim/data_parallel.cpp", "if (report.skipped && compressing())",
     "if (report.skipped && compressing() && comm_.size() == 0)", "test_optim", "learners: what the ranks sent in a skipped step*"),
    ("what a skipped step sent is owed without beta", "compress/error_feedback.cpp", "static_cast<float>(beta_ * share)",
     "static_cast<float>(share)", "test_optim", "learners: applied gradients and residual / beta*"),
    ("every rank owes all that was sent in a skipped step", "compress/compressed_reducer.cpp",
     "p->grad.reshape({p->size()}), 1.0 / ranks);", "p->grad.reshape({p->size()}), 1.0 + 0 * ranks);", "test_optim",
     "learners: what the ranks sent in a skipped step*"),
    ("what was refused is owed twice", "optim/data_parallel.cpp", "if (bucket.finite) reducer_->return_unapplied",
     "reducer_->return_unapplied", "test_optim", "learners: what the ranks sent in a skipped step*"),
    ("a skipped step of the dense start stays owed", "optim/data_parallel.cpp", "if (report.skipped && compressing())",
     "if (report.skipped && reducer_ != nullptr)", "test_optim", "learners: residuals are zero during a dense start*"),
    ("fp16 may overflow", "compress/block_exchange.cpp", "return largest_magnitude_of(values) < kInfinite;", "return true;",
     "test_compress", "casts: what fp16 cannot hold*"),
    ("sums may overflow", "compress/compressed_reducer.cpp",
     "if (flag.item() != 0 || largest_magnitude_of({sums}) > magnitude(kMaxSum)) return false;",
     "if (flag.item() != 0) return false;", "test_compress", "powersgd: a factor that overflows*"),
    ("values of top-k may be infinite", "compress/top_k.cpp",
     "return accepted && largest_magnitude_of({sent}) <= magnitude(kMaxSum);", "return accepted;", "test_compress",
     "top-k: what a rank sends that is no message*"),
    ("gradients are clipped after they were compressed", "optim/data_parallel.cpp",
     "    if (parallel_.local_clip > 0) clip_locally();\n    post_complete_buckets();\n",
     "    post_complete_buckets();\n    worker_->drain();\n    if (parallel_.local_clip > 0) clip_locally();\n",
     "test_optim", "learners: local clipping comes before the residual*"),
    ("local clipping without the root of P", "optim/data_parallel.cpp",
     "parallel_.local_clip * std::sqrt(static_cast<double>(comm_.size()))", "parallel_.local_clip", "test_optim",
     "learners: local clipping holds each rank's own*"),
    ("a bucket leaves after the first micro-batch", "optim/data_parallel.cpp",
     "if (!last_micro_step() || !p.written || !buckets_.mark_ready(p)) return;",
     "if (!p.written || !buckets_.mark_ready(p)) return;", "test_optim", "learners: compressed*overlapped or not*"),
    ("with local clipping, too, buckets leave at once", "optim/data_parallel.cpp",
     "if (parallel_.overlap && parallel_.local_clip == 0) post_complete_buckets();",
     "if (parallel_.overlap) post_complete_buckets();", "test_optim",
     "learners: compressed*overlapped or not*"),
    ("the sum is applied, not the mean", "optim/data_parallel.cpp", "out.learners = ranks;",
     "out.learners = ranks > 0 ? 1 : 0;", "test_optim", "learners: momentum and weight decay come after*"),
    ("weight decay counts twice", "optim/update.cu", "multiply_add(s.momentum, velocity[i], gradient);",
     "multiply_add(s.momentum, velocity[i], gradient + s.weight_decay * w[i]);", "test_optim",
     "learners: momentum and weight decay come after*"),
    ("processes add up in another order than threads", "comm/collectives.cpp",
     "run_ring(staged.host(), {.reduce = true, .gather = true});",
     "run_ring(staged.host(), {.reduce = true, .gather = true, .shift = *transport_->name() == 'm' ? -1 : 0});",
     "test_learners_mpi", ""),
    # Codecs
    ("indices take a byte more than they count", "compress/codecs/select.cpp",
     "return is_bitmap() ? packed_bytes(n, 1) : packed_bytes(k, width());",
     "return is_bitmap() ? packed_bytes(n, 1) : packed_bytes(k, width()) + 1;", "test_compress", "indices: bytes by the formula*"),
    ("one of equal elements too many", "compress/codecs/select.cpp", "equal-- > 0", "equal-- >= 0", "test_compress",
     "selection: chunks as by a loop*"),
    ("NaN is the largest", "compress/codecs/select.cpp", "return v == v ? v : Lanes<kLanes>::all(0);", "return v;", "test_compress",
     "selection: chunks as by a loop*"),
    ("levels are rounded up too often", "compress/codecs/quantize.cpp", "= Philox::unit(block.word[j]);",
     "= 0.8f * Philox::unit(block.word[j]);", "test_compress", "quantiser: bounds*"),
    ("nearest for stochastic rounding", "compress/codecs/quantize.cpp", "    if (noise)\n", "    if (noise && n < 0)\n", "test_compress",
     "quantiser: bounds*"),
    ("all ranks round alike", "compress/block_exchange.cpp", "static_cast<uint64_t>(e.comm.rank()) << 16", "uint64_t{0} << 16",
     "test_compress", "qsgd: within the bound*"),
    ("all steps round alike", "compress/block_exchange.cpp", "static_cast<uint64_t>(e.step) << 28", "uint64_t{0} << 28",
     "test_compress", "qsgd: within the bound*"),
    ("levels of half the bits", "compress/block_exchange.cpp", ".bits = bits},", ".bits = std::max(2, bits - 1)},", "test_compress",
     "qsgd: within the bound*"),
    ("a message of top-k of any length is read", "compress/top_k.cpp", "if (lengths[r] < least || lengths[r] > most)",
     "if (lengths[r] < 0)", "test_compress", "top-k: what a rank sends that is no message*"),
    ("the owner uses its sum as it was before it was encoded", "compress/block_exchange.cpp",
     "  std::vector<Tensor> values;\n", "  for (size_t i = 0, j = 0; i < all.size(); ++i)\n"
     "    if (plan.blocks[i].owner == me) std::copy_n(owned[j].x, owned[j].n, all[i].x), ++j;\n"
     "  std::vector<Tensor> values;\n", "test_compress", "reducers: the same bits on all ranks*"),
    ("the last block is said to be a whole one", "compress/block_exchange.cpp", "(rest > 0 ? encoded(rest) : 0)",
     "(rest > 0 ? encoded(block_) : 0)", "test_compress", "payload: what a parameter costs*"),
    ("ScaleCom's indices are said to cost nothing", "compress/scalecom.cpp", "return indices.k * 4 + indices.bytes();",
     "return indices.k * 4;", "test_compress", "payload: what a parameter costs*"),
    ("differences have a bit too many", "compress/codecs/delta_code.cpp", "std::bit_width(static_cast<uint64_t>(mean)) - 1",
     "std::bit_width(static_cast<uint64_t>(mean))", "test_compress", "differences: round trip*"),
    ("zeros without end are read as one difference", "compress/codecs/delta_code.cpp", "if (next >= n) refuse",
     "if (next > n + k) refuse", "test_compress", "differences: what is cut off*"),
    ("half: ties are rounded up", "core/half.h", "(a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u)",
     "(a + 0x1000u - 0x38000000u)", "test_compress", "half: all 65536*"),
    ("an element may be drawn twice", "compress/codecs/select.cpp", "    if (drawn[i]) continue;\n", "", "test_compress",
     "selection at random*"),
    # PowerSGD
    ("the residual is against the sum", "compress/power_sgd.cpp", "axpy(static_cast<float>(-1.0 / ranks), item.sum, item.tensor);",
     "axpy(static_cast<float>(-1.0 + 0 * ranks), item.sum, item.tensor);", "test_compress", "powersgd: five steps*"),
    ("every step begins anew", "compress/power_sgd.cpp",
     "HEDDLE_DISPATCH(device, next_factor(q, ranks, factor(*item.layer, device)));", "(void)device;", "test_compress",
     "powersgd: five steps*"),
    ("Gram-Schmidt once", "compress/codecs/low_rank.cpp", "round < 2", "round < 1", "test_compress", "orthogonalize: orthonormal*"),
    ("factors are no part of the state", "compress/power_sgd.cpp", "if (layer.compressed && shrinks(layer)) state.emplace_back",
     "if (!layer.compressed && shrinks(layer)) state.emplace_back", "test_compress", "state: copied into a fresh*"),
    ("P is not made orthonormal", "compress/power_sgd.cpp", "    HEDDLE_DISPATCH(e.device, orthogonalize(factors));\n", "",
     "test_compress", "powersgd: exact where the gradients have the rank*"),
    ("Gram-Schmidt adds up in fp32", "compress/codecs/low_rank.cpp", "double sum = 0;", "float sum = 0;", "test_compress",
     "powersgd: in double exact*"),
    ("a change of rank makes all factors new", "compress/power_sgd.cpp", "if (!q.defined() || q.shape()[0] != m.rank) q =",
     "if (q.defined() && q.shape()[0] != m.rank)\n      for (auto& [name, other] : factors_) other = {};\n"
     "    if (!q.defined()) q =", "test_compress", "powersgd: after a change of rank*"),
    ("what a layer owes that travels dense is no part of the state", "compress/compressed_reducer.cpp",
     "if (feedback_ && layer.compressed && (shrinks(layer) || feedback_->holds(name)))",
     "if (feedback_ && layer.compressed && shrinks(layer))", "test_compress", "powersgd: turned dense in a step*"),
    # Which tensors
    ("the first convolution is compressed", "compress/compressed_reducer.cpp", "&& &p != first && !named;",
     "&& (&p != first || !named) && !named;", "test_compress", "which layers: first convolution*"),
    ("batch norm and biases are compressed", "compress/compressed_reducer.cpp", "p.shape().rank() > 1 &&",
     "p.shape().rank() > 0 &&", "test_compress", "which layers: first convolution*"),
    ("--min-compress is not enough", "compress/compressed_reducer.cpp", "p.size() >= options.min_compress",
     "p.size() > options.min_compress", "test_compress", "which layers: first convolution*"),
    ("--dense-layers must be whole names", "compress/compressed_reducer.cpp", "std::regex_search(p.name, dense)",
     "std::regex_match(p.name, dense)", "test_compress", "which layers: first convolution*"),
    # Bad input
    ("rate=0", "compress/families.cpp", '{{.name = "rate", .initial = 100, .low = 1,',
     '{{.name = "rate", .initial = 100, .low = 0,', "test_compress", "spec: defaults*"),
    ("bits=9", "compress/families.cpp", ".low = 2, .high = 8,", ".low = 2, .high = 16,", "test_compress", "spec: defaults*"),
    ("the first name is said to be the nearest", "compress/spec.cpp", "nearest_name(name, known)", "known.front()",
     "test_compress", "spec: defaults*"),
    ("a plan of another network is used", "apps/session/layer_plan.cpp", "check(elements == here && here > 0,", "check(here >= 0,",
     "test_apps", "layer plan: one of another network*"),
    ("a plan for other learners is used", "apps/session/layer_plan.cpp", "check(ranks == learners,", "check(ranks > 0,", "test_apps",
     "layer plan: one of another network*"),
    ("a plan without some layers is used", "apps/session/layer_plan.cpp", "check(settings.contains(layer.name),",
     "check(!settings.empty(),", "test_apps", "layer plan: one of another network*"),
    # L-GreCo
    ("errors are rounded down", "compress/plan/l_greco.cpp", "std::ceil(error / (budget / buckets))", "std::floor(error / (budget / buckets))",
     "test_compress", "L-GreCo: the plan is the best of all*"),
    ("the last state of a layer is not looked at", "compress/plan/l_greco.cpp", "b < states - step; ++b", "b + 1 < states - step; ++b",
     "test_compress", "L-GreCo: the plan is the best of all*"),
    ("plans over the budget are used", "compress/plan/l_greco.cpp", "if (plan.error <= plan.budget) break;", "break;", "test_compress",
     "L-GreCo: over the budget by the last bit*"),
    ("plans may be larger than the default", "compress/plan/l_greco.cpp", "if (uniform.error <= plan.budget && plan.cost > uniform.cost)",
     "if (uniform.error <= plan.budget && plan.cost > 9 * uniform.cost)", "test_compress", "L-GreCo: the plan is the best of all*"),
    ("an error that is no number is only never chosen", "compress/plan/l_greco.cpp",
     'if (!finite) return fall_back("an error is not a number");', "(void)finite;", "test_compress",
     "L-GreCo: a budget of its own*"),
    ("a budget of zero is divided by", "compress/plan/l_greco.cpp",
     'if (uniform.budget <= 0) return fall_back("the budget is zero");', "", "test_compress",
     "L-GreCo: a budget of its own*"),
    ("where no plan keeps the budget, the first candidates do", "compress/plan/l_greco.cpp",
     'if (plan.chosen.empty() || plan.error > plan.budget) return fall_back("no plan keeps the budget");',
     "if (plan.chosen.empty()) plan.chosen.assign(layers.size(), 0), measure_plan(layers, plan);", "test_compress",
     "L-GreCo: a budget of its own*"),
    ("without a plan the first candidates are used", "compress/plan/l_greco.cpp", "    uniform.fallback = why;\n",
     "    uniform.fallback = why;\n    uniform.chosen.assign(layers.size(), 0);\n", "test_optim",
     "planner: NaN in a window*"),
    ("of equal costs the most error", "compress/plan/l_greco.cpp", "if (least.back()[b] < least.back()[best]) best = b;",
     "if (least.back()[b] <= least.back()[best]) best = b;", "test_compress", "L-GreCo: over the budget by the last bit*"),
    ("of equal candidates the last", "compress/plan/l_greco.cpp", "while (!leads_here(chosen[l])) ++chosen[l];",
     "for (chosen[l] = errors[l].size() - 1; !leads_here(chosen[l]);) --chosen[l];", "test_compress",
     "L-GreCo: over the budget by the last bit*"),
    ("bytes are compared where costs count", "compress/plan/l_greco.cpp",
     "if (uniform.error <= plan.budget && plan.cost > uniform.cost)",
     "if (uniform.error <= plan.budget && plan.bytes > uniform.bytes)", "test_compress",
     "L-GreCo: costs in place of bytes*"),
    ("a plan that has become too dear is kept", "compress/plan/layer_planner.cpp",
     "if (keeps_budget && !gain(before, plan) && !too_expensive) return before;",
     "if (keeps_budget && (!gain(before, plan) || too_dear)) return before;", "test_optim",
     "planner: a plan that has become dearer*"),
    ("a budget of its own counts only below the default's", "compress/plan/l_greco.cpp", "options.budget > 0 ? options.budget :",
     "options.budget > 0 ? std::min(options.budget, uniform.error) :", "test_compress", "Accordion: plans keep its budget*"),
    ("all layers have Accordion's budget of those that are steady", "compress/plan/layer_planner.cpp",
     "accordion_settings(layers_, critical)", "accordion_settings(layers_, std::vector<bool>(critical.size()))",
     "test_optim", "planner: Accordion lets steady layers*"),
    ("alpha counts twice in Accordion's budget", "compress/plan/l_greco.cpp", "options.budget > 0 ? options.budget :",
     "options.budget > 0 ? options.alpha * options.budget :", "test_optim", "planner: alpha is a factor of Accordion's*"),
    ("a window adds up in the residual itself", "compress/compressed_reducer.cpp",
     "seen.emplace_back(item.name(), item.tensor.clone());", "seen.emplace_back(item.name(), item.tensor);", "test_optim",
     "planner: different learners agree*"),
    ("plans are read in fp32", "apps/session/layer_plan.cpp", 'layer.at("setting").get<double>()',
     'layer.at("setting").get<float>()', "test_apps", "layer plan: a reducer gets the settings*"),
    ("squared errors", "compress/codecs/select.cpp", "return std::sqrt(std::max(0.0, unsent));", "return std::max(0.0, unsent);", "test_optim",
     "planner: error tables are what*"),
    ("tables are summed, not averaged", "comm/communicator.cpp", "mean[i] += values[i] / comm.size();", "mean[i] += values[i];",
     "test_optim", "planner: identical learners have the same plan*"),
    ("one rank's table counts", "comm/communicator.cpp", "mean[i] += values[i] / comm.size();", "mean[i] = values[i];", "test_optim",
     "planner: a plan's errors are the mean*"),
    ("a window holds its last gradients", "compress/compressed_reducer.cpp", "if (!first) axpy(1, x, sum->second);",
     "if (!first) sum->second.copy_from(x);", "test_optim", "planner: a window has the signed sums*"),
    ("plans that differ are used", "compress/plan/layer_planner.cpp", "if (all[r][0] != hash)", "if (all[r].empty())", "test_optim",
     "planner: NaN in a window*"),
    ("any gain is a reason to change", "compress/plan/layer_planner.cpp", "constexpr double kLeastGain = 0.02;",
     "constexpr double kLeastGain = -1;", "test_optim", "planner: windows close where they should*"),
    ("no reserve", "compress/plan/layer_planner.cpp", "constexpr double kSlack = 0.02;", "constexpr double kSlack = 0;", "test_optim",
     "planner: a new plan leaves 2*"),
    ("the plan before stays, over budget or not", "compress/plan/layer_planner.cpp", "const bool keeps_budget = before.error <= plan.budget;",
     "const bool keeps_budget = before.error <= 9 * plan.budget;", "test_optim", "planner: the plan before is kept within*"),
    ("plans begin a step late", "compress/plan/layer_planner.cpp", "if (step == due_) adopt", "if (step == due_ + 1) adopt", "test_optim",
     "planner: windows close where they should*"),
    ("the rate of the last look is not noticed", "compress/plan/layer_planner.cpp", "if (!lr_) lr_ = lr;", "if (!lr_) lr_ = 1 + 0 * lr;", "test_optim",
     "planner: a jump of one layer's*"),
    ("a run that goes on judges by its own rate", "compress/plan/layer_planner.cpp", "    lr_ = state.lr;\n", "", "test_optim",
     "planner: a run that goes on*"),
    ("bytes cost no time", "compress/plan/layer_planner.cpp", "seconds[c] + per_byte * static_cast<double>(layer.bytes[c])",
     "seconds[c] + 0 * per_byte", "test_optim", "planner: bytes and time choose differently*"),
    ("norms may change more", "compress/plan/accordion.cpp", "constexpr double kEta = 0.5;", "constexpr double kEta = 0.9;", "test_compress",
     "Accordion: critical at first*"),
    ("what is not critical travels as before", "compress/plan/accordion.cpp", "std::abs(2 * bytes - layer.bytes[layer.uniform])",
     "std::abs(bytes - layer.bytes[layer.uniform])", "test_compress", "Accordion: what is not critical*"),
    ("a plan is used of a table that another has replaced", "compress/plan/layer_planner.cpp",
     "  solution_ = {};  // of a plan that is due now, where a run goes on with another interval\n", "", "test_optim",
     "planner: with another interval*"),
    # The quality meter
    ("the bound is above what it should be", "compress/plan/quality_meter.cpp", "out.mismatch + (1 - out.mismatch) * rho;", "out.mismatch + rho;",
     "test_compress", "quality: figures are those*"),
    ("the cosine is to what was to be sent", "compress/plan/quality_meter.cpp", "dot(sent, seen.gradients)", "dot(sent, seen.all)",
     "test_compress", "quality: figures are those*"),
    ("the warning looks at the whole run", "apps/log/quality_report.cpp", "looks_ >= kLooksBeforeWarning && mean <= 0",
     "looks_ >= kLooksBeforeWarning && alike_sum_ <= 0", "test_apps", "quality report: learners that have nothing*"),
    ("residuals without 1 / beta", "compress/plan/quality_meter.cpp", "std::sqrt(residual / ranks) / beta", "std::sqrt(residual / ranks) / (0 * beta + 1)",
     "test_compress", "quality: figures are those*"),
    # Runs that go on, and what programs show
    ("refused exchanges are not counted", "optim/exchange_probes.cpp", "totals_.rejected += finite ? 0 : 1;", "", "test_apps",
     "training log: exchanges that were refused*"),
    ("gradients are dumped of the first of several batches", "apps/log/training_log.cpp", "    known->second = copy;\n",
     "    return;\n", "test_apps", "training log: gradients are dumped*"),
    ("a run that goes on begins with the first leader", "optim/data_parallel.cpp", "  step_ = state.steps;\n", "",
     "test_apps", "training state: fewer and more learners*"),
    ("fewer or more learners owe the sum of what was owed", "apps/session/training_state.cpp",
     "    scale(x, 1.0f / static_cast<float>(files.size()));\n", "", "test_apps",
     "training state: fewer and more learners*"),
    ("all go on with the first rank's residuals", "apps/session/training_state.cpp",
     "for (int r = same ? parts.rank : 0; r < (same ? parts.rank + 1 : learners); ++r)",
     "for (int r = 0; r < (same ? 1 : learners); ++r)", "test_apps", "training state: fewer and more learners*"),
    ("a run goes on as another one", "apps/session/resume.cpp", "    check_same_run(o, identity, *start.checkpoint);\n",
     "    if (comm.size() == 0) check_same_run(o, identity, *start.checkpoint);\n", "test_apps",
     "training state: where a run goes on*"),
    ("the ratio of compressed layers is that of all", "apps/log/summary.cpp", "    if (sent >= dense) continue;\n", "",
     "test_program_learners", ""),
    ("dense steps count as if they were compressed", "apps/log/summary.cpp",
     "out.wire = quotient(dense_bytes * steps, static_cast<double>(totals.compressed_sent));",
     "out.wire = quotient(dense_bytes * steps, static_cast<double>(totals.compressed_sent + totals.dense_sent));",
     "test_program_learners", ""),

    # Momentum behind a residual, and the ramp of a rate
    ("a gradient from a residual forgets the decay", "optim/update.cu",
     "const float v = multiply_add(s.momentum, velocity[i], decay);", "const float v = s.momentum * velocity[i];", "test_optim",
     "compressed momentum: steps from a residual*"),
    ("a gradient from a residual counts once instead of 1 / (1 - momentum) times", "optim/update_rule.cpp",
     "input.grad_scale / (1 - options_.momentum)", "input.grad_scale", "test_optim",
     "compressed momentum: a gradient moves a weight*"),
    ("layers that travel dense are said to leave a residual", "optim/data_parallel.cpp", "reducer_->uses_residual(p.name)",
     "reducer_->keeps_residuals()", "test_optim", "learners: momentum across the switch*"),
    ("a range of deferred updates has its first layer's rule", "optim/optimizer.cpp", "kind(order[next]) == kind(order[first])",
     "rule_->decays(*order[next]) == decay", "test_optim", "learners: momentum across the switch*"),
    ("dense steps before the start follow the residual's rule", "optim/data_parallel.cpp",
     "parallel_.residual_momentum && compressing() &&", "parallel_.residual_momentum &&", "test_optim",
     "learners: momentum across the switch*"),
    ("a ramp grows by the same number", "compress/compressed_reducer.cpp", "kFirstRate * std::pow(rate / kFirstRate, done)",
     "kFirstRate + (rate - kFirstRate) * done", "test_optim", "learners: a ramp lowers*"),
    ("plans begin within a ramp", "optim/exchange_probes.cpp", "options.compress_start + compressed->ramp()",
     "options.compress_start + 0 * compressed->ramp()", "test_optim", "learners: plans of layers begin*"),
    ("factors keep their size", "compress/codecs/low_rank.cpp", "T(share * row[j] * power)", "T(share * row[j])", "test_compress",
     "powersgd: after a burst*"),

    # Files that are not ours, or not what they seem
    ("any folder is a run's", "apps/log/run_folder.cpp", "if (!fs::exists(folder) || fs::is_empty(folder)) return;", "return;",
     "test_apps", "run folder: only a run's own*"),
    ("whatever looks temporary is removed", "apps/log/run_folder.cpp", "return std::regex_match(name, ours);",
     "return std::regex_search(name, ours);", "test_apps", "run folder: what is removed*"),
    ("links are followed", "apps/log/append_file.cpp", "O_CREAT | O_NOFOLLOW |", "O_CREAT |", "test_apps",
     "run folder: what is removed*"),
    ("a file that may not be read is taken for none", "core/files.cpp",
     "check(errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENXIO, why);",
     "check(errno == ENOMEM, why);", "test_apps", "checkpoint: one that cannot be read*"),
    ("refused updates are saved", "apps/session/training_state.cpp", "|| parts.log.skipped_steps() > 0 ||", "||", "test_apps",
     "training state: nothing is saved while*"),
    ("any depth of brackets", "apps/cli/json.cpp", "depth <= kMaxJsonDepth", "depth <= 1000 * kMaxJsonDepth", "test_apps",
     "json: a limited depth*"),
    ("a picture's memory is what the heap held", "data/stb_image.cpp", "std::calloc(1, size)", "std::malloc(size)", "test_data",
     "images: what a broken file leaves out*"),
    ("a PNG inflates without end", "data/stb_image.cpp", "size_t{size} > heddle::stb_growth_limit", "size_t{size} > size_t{1} << 40",
     "test_data", "images: a PNG file does not inflate*"),
    ("a resized picture is cut off, not rounded", "data/resample.cpp", "int sum = 1 << (kBits - 1);", "int sum = 0;", "test_data",
     "augment: center gives the bytes*"),
    ("half a pixel is rounded up", "data/augment.cpp", "std::lrint(", "std::lround(", "test_data",
     "augment: center gives the bytes*"),
    ("signals are taken by whoever computes", "apps/checkpoint/signals.cpp", "pthread_sigmask(SIG_BLOCK, &signals, nullptr);",
     "pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);", "test_signals", ""),
]


def found(path, text):
    return (ROOT / path).read_text().count(text)


def targets_of(program, case):
    """What is built for a test: its program, or those that CMakeLists.txt gives ctest; none where it has no such test."""
    if case:
        return [program]
    made = re.search(rf"add_test\(NAME {program} COMMAND ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())
    return re.findall(r"TARGET_FILE:(\w+)", made[1] if made else "")


def cases_of(program):
    """The names of its tests, by the sources that CMakeLists.txt gives it."""
    made = re.search(rf"heddle_test\({program} (.*?)\)", (ROOT / "CMakeLists.txt").read_text(), re.S)
    sources = re.findall(r"tests/\w+\.cpp", made[1] if made else "")
    return ["".join(re.findall(r'"([^"]*)"', name)) for source in sources
            for name in re.findall(r'TEST_CASE\(\s*((?:"[^"]*"\s*)+)\)', (ROOT / source).read_text())]


def check():
    """Lines that are gone or stand more than once, and tests that no longer exist."""
    wrong = []
    cases = {program: cases_of(program) for program in {entry[4] for entry in BREAKS if entry[5]}}
    for what, path, old, new, program, case in BREAKS:
        if found(path, old) != 1:
            wrong.append(f"{what}: {path} has its line {found(path, old)} times: {old.strip()}")
        if old == new:
            wrong.append(f"{what}: nothing is broken")
        if not case:
            if not targets_of(program, case):
                wrong.append(f"{what}: CMakeLists.txt has no test {program}")
            continue
        pattern = re.compile(".*".join(map(re.escape, case.split("*"))) + "$")
        if not any(pattern.match(name) for name in cases[program]):
            wrong.append(f"{what}: {program} has no test {case}")
    return wrong


def run(*command, timeout=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)


def build(entries):
    return run("ninja", "-C", COPY / "build", *sorted({target for entry in entries for target in targets_of(*entry[4:])}))


def prepare(chosen):
    """A copy of what git tracks, as it is here, with the programs of the chosen tests."""
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
    made = build(chosen)
    if made.returncode:
        sys.exit(made.stdout[-3000:])


def test(program, case):
    """"passes", or how it fails."""
    if not case:
        return test_whole(program)
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


def test_whole(name):
    """The same of a test of ctest's."""
    done = run("ctest", "--test-dir", COPY / "build", "-R", f"^{name}$", "--output-on-failure",
               "--timeout", str(CTEST_TIMEOUT_S))
    if "No tests were found" in done.stdout or "***Not Run" in done.stdout:
        return "does not exist"
    if done.returncode == 0:
        return "passes"
    if "***Timeout" in done.stdout:
        return f"is still running after {CTEST_TIMEOUT_S} s"
    # Under mpirun doctest writes in colours.
    errors = re.findall(r"^FAIL: |: (?:\x1b\[[\d;]*m)?(?:FATAL )?ERROR: ", done.stdout, re.M)
    return f"fails, {len(errors)} checks"


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
    prepare(chosen)
    unnoticed = 0
    for entry in chosen:
        what, path, old, new, program, case = entry
        begin = time.monotonic()
        file = COPY / "source" / path
        whole = file.read_text()
        file.write_text(whole.replace(old, new))
        try:
            made = build([entry])
            outcome = test(program, case) if made.returncode == 0 else "is not built: " + made.stdout[-600:]
        finally:
            file.write_text(whole)
        red = outcome.startswith(("fails", "ends", "is still"))
        unnoticed += not red
        print(f"{'red ' if red else 'GREEN'} {what} | {path} | {case or program} {outcome} | {time.monotonic() - begin:.0f} s",
              flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} breaks were noticed")
    if build(chosen).returncode:
        sys.exit("the programs are not built without a break")
    worthless = [(case or program, outcome) for program, case in sorted({entry[4:] for entry in chosen})
                 if (outcome := test(program, case)) != "passes"]
    for case, outcome in worthless:
        print(f"without a break, too: {case} {outcome}")
    return 1 if unnoticed or worthless else 0


if __name__ == "__main__":
    sys.exit(main())
