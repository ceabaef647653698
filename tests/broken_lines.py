#!/usr/bin/env python3
"""Evaluates the tests of compression: breaks one line at a time, and says whether the test that covers it fails.

  tests/broken_lines.py             all of them, in a copy of the tree under build-broken (half an hour of two cores)
  tests/broken_lines.py TEXT…       those whose description contains one of these
  tests/broken_lines.py --check     builds nothing; checks that every line still exists in its file, once, and every test

A test is a doctest case or, if only processes or whole programs show the break, a ctest test.
Exit code 1 if a test misses its break or fails without one, or if a line or a test no longer exists.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build-broken"
TIMEOUT_S = 200  # for one doctest case
CTEST_TIMEOUT_S = 900

# Description of the break, file, its line, the broken line, program, test (doctest's pattern). If that is empty, the
# program is the name of a ctest test, which runs as a whole.
BREAKS = [
    # ScaleCom, error feedback
    ("the residual forgets earlier gradients", "compress/error_feedback.cpp", "low_pass(old_residual, x, beta_)", "low_pass(x, x, beta_)",
     "test_compress", "error feedback: sum of what was sent*"),
    ("beta changes, the residuals do not", "apps/session/training_state.cpp", "scale(x, static_cast<float>(factor))", "scale(x, 1.0f)",
     "test_apps", "training state: another*"),
    ("sent elements stay in the residual", "compress/error_feedback.cpp", "scatter_value(0, sent, x)",
     "scatter_value(0, sent.slice(0, 0), x)", "test_compress", "error feedback: sum of what was sent*"),
    ("values come from the old residual", "compress/exchange.cpp", "gather(e.compressed[i].tensor,", "gather(e.compressed[i].sum,",
     "test_compress", "scalecom: the sum at the*"),
    ("the largest elements are selected without the residual", "compress/codecs/sparse_kernels_cpu.cpp", "    return sum;\n", "    return sum - residual;\n",
     "test_compress", "scalecom: one learner equals*"),
    ("rank 0 is always the leader", "compress/scalecom.cpp", "static_cast<int>(e.step % e.comm.size())", "static_cast<int>(e.step * 0)",
     "test_optim", "learners: the leader changes*"),
    ("a skipped step keeps its leader", "optim/data_parallel.cpp", "  ++step_;\n", "  step_ += report.skipped ? 0 : 1;\n",
     "test_optim", "learners: the leader changes*"),
    ("exact selection uses chunks", "compress/scalecom.cpp", "return exact_ ? select_top(elements(x), code.k) :",
     "return exact_ && code.k < 0 ? select_top(elements(x), code.k) :", "test_compress", "quality: figures equal*"),
    ("traffic grows with the number of learners", "compress/exchange.cpp", "[&] { e.comm.all_reduce(payload); });",
     "[&] { for (int r = 0; r < e.comm.size(); ++r) e.comm.all_reduce(payload); });", "test_compress",
     "traffic of a learner: constant*"),
    ("top-k sums one rank's message only", "compress/top_k.cpp", "at < received.size(); at += mine.codes.size()",
     "at < mine.codes.size(); at += mine.codes.size()", "test_compress", "identical learners behave as one"),
    ("random indices are the same in every step", "compress/random_k.cpp",
     "static_cast<uint64_t>(e.step) << 20 | item.layer->index", "static_cast<uint64_t>(e.step * 0) | item.layer->index",
     "test_compress", "a constant gradient is*"),
    ("random indices differ between ranks", "compress/random_k.cpp",
     "static_cast<uint64_t>(e.step) << 20 | item.layer->index",
     "static_cast<uint64_t>(e.step + e.comm.rank()) << 20 | item.layer->index", "test_compress",
     "error feedback: sum of what was sent*"),
    ("wrong rate above 196 uses", "compress/scalecom.cpp", "if (uses_per_sample > 196) return 25;", "if (uses_per_sample > 196) return 50;",
     "test_compress", "scalecom: automatic rates by*"),
    ("every rank fixes rate=auto separately", "compress/scalecom.cpp", "[&] { e.comm.broadcast(rates, 0); });", "[] {});",
     "test_optim", "learners: rate=auto is*"),
    ("dense layers do not apply their residual", "compress/compressed_reducer.cpp",
     "if (feedback_ && feedback_->holds(p->name)) {",
     "if (feedback_ && feedback_->holds(p->name) && !bucket.flat.defined()) {", "test_compress",
     "powersgd: a layer too small*"),
    ("with beta below 1 a residual that is sent whole is cleared", "compress/error_feedback.cpp",
     "if (beta_ < 1) scale(m, static_cast<float>(1 - beta_));", "if (beta_ < 1) scale(m, 0.0f);", "test_compress",
     "error feedback: a temporarily*"),
    ("a residual is dropped with the setting", "compress/compressed_reducer.cpp",
     "  layers_.at(parameter).choice = value;\n",
     "  if (feedback_) feedback_->mark_sent_whole(parameter);\n  layers_.at(parameter).choice = value;\n", "test_compress",
     "powersgd: a change of rank*"),
    ("gradients of the dense start enter the residual", "optim/data_parallel.cpp",
     "    sum_dense(gradients, gradients.flat, comm, ledger_);\n",
     "    if (reducer_ != nullptr) reducer_->return_unapplied(gradients, comm_.size());\n"
     "    sum_dense(gradients, gradients.flat, comm, ledger_);\n", "test_optim",
     "learners: residuals are zero during a dense start*"),
    ("micro-steps are counted as steps", "optim/data_parallel.cpp",
     "  micro_step_ = last_micro_step() ? 0 : micro_step_ + 1;\n",
     "  if (!last_micro_step()) ++step_;\n  micro_step_ = last_micro_step() ? 0 : micro_step_ + 1;\n", "test_optim",
     "learners: the leader changes*"),
    # Values that are not finite, and steps that do not count
    ("a rank's NaN is not reported to the others", "compress/exchange.cpp", "fill(flag, e.finite ? 0.0f : 1.0f);",
     "fill(flag, 0.0f);", "test_compress", "not finite on one rank:*"),
    ("top-k does not report a rank's NaN", "compress/exchange.cpp", "*flag.data<uint8_t>() = e.finite ? 0 : 1;",
     "*flag.data<uint8_t>() = e.finite ? 0 : 0;", "test_compress", "not finite in a bucket*"),
    ("a rejected step does not restore residuals", "compress/compressed_reducer.cpp",
     "if (feedback_) feedback_->restore(", "if (feedback_ && e.finite) feedback_->restore(",
     "test_compress", "not finite on one rank:*"),
    ("a failed collective does not restore residuals", "compress/compressed_reducer.cpp", "    restore();\n    throw;\n", "    throw;\n",
     "test_compress", "a failed collective leaves*"),
    ("a dense sum too large for a residual is applied", "compress/compressed_reducer.cpp",
     "accepted = summable(flat);", "accepted = all_finite(flat);", "test_optim",
     "learners: what the ranks sent in a skipped step*"),
    ("the sums of a skipped step are lost", "optim/data_parallel.cpp", "if (report.skipped && compressing() && reduces())",
     "if (report.skipped && compressing() && comm_.size() == 0)", "test_optim", "learners: what the ranks sent in a skipped step*"),
    ("the sums of a skipped step return without beta", "compress/error_feedback.cpp", "static_cast<float>(beta_ * share)",
     "static_cast<float>(share)", "test_optim", "learners: applied gradients and residual / beta*"),
    ("every rank's residual gets the whole sum of a skipped step", "compress/compressed_reducer.cpp",
     "p->grad.reshape({p->size()}), 1.0 / ranks);", "p->grad.reshape({p->size()}), 1.0 + 0 * ranks);", "test_optim",
     "learners: what the ranks sent in a skipped step*"),
    ("a rejected bucket returns to residuals twice", "optim/data_parallel.cpp", "if (bucket.finite) reducer_->return_unapplied",
     "reducer_->return_unapplied", "test_optim", "learners: what the ranks sent in a skipped step*"),
    ("a skipped step of the dense start enters residuals", "optim/data_parallel.cpp", "if (report.skipped && compressing() && reduces())",
     "if (report.skipped && reducer_ != nullptr)", "test_optim", "learners: residuals are zero during a dense start*"),
    ("fp16 may overflow", "compress/block_exchange.cpp", "return largest_magnitude_of(values) <= most;", "return largest_magnitude_of(values) <= most + kInfinite;",
     "test_compress", "casts: a value beyond fp16,*"),
    ("sums may overflow", "compress/exchange.cpp",
     "if (flag.item() != 0 || largest_magnitude_of({sums}) > magnitude(kMaxSum)) return false;",
     "if (flag.item() != 0) return false;", "test_compress", "powersgd: an overflowing*"),
    ("values of top-k may be infinite", "compress/top_k.cpp",
     "if (largest_magnitude_of({values}) > magnitude(kMaxSum)) return false;", "", "test_compress",
     "top-k: an invalid message*"),
    # AdaComp
    ("AdaComp's residual forgets what the scale got wrong", "compress/adacomp.cpp",
     "      HEDDLE_DISPATCH(e.device, scatter_add(own.values, own.indices, item.tensor));",
     "      HEDDLE_DISPATCH(e.device, scatter_value(0, own.indices, item.tensor));", "test_compress",
     "adacomp: what is sent and what is kept*"),
    ("AdaComp compares |G| instead of looking ahead", "compress/codecs/magnitude.h",
     "magnitude(x + ahead * (x - old)) >= largest", "magnitude(x + ahead * (old - old)) >= largest", "test_compress",
     "adacomp: sums and residuals*"),
    ("AdaComp looks ahead by G instead of g", "compress/codecs/magnitude.h", "ahead * (x - old)", "ahead * (x - 0 * old)",
     "test_compress", "adacomp: sums and residuals*"),
    ("AdaComp sends zeros", "compress/codecs/magnitude.h", "return x != 0 && magnitude(x", "return magnitude(x",
     "test_compress", "adacomp: bins of zeros,*"),
    ("bins of zeros count in AdaComp's scale", "compress/adacomp.cpp", "bins += m > 0 ? 1 : 0;", "++bins;", "test_compress",
     "adacomp: bins of zeros,*"),
    ("AdaComp's bins all have the layer's largest scale", "compress/adacomp.cpp",
     "std::ldexp(largest * kEighths[code % 8], -(code / 8))", "std::ldexp(largest * kEighths[0], -(code / 500))", "test_compress",
     "adacomp: on a quadratic*"),
    ("AdaComp sends bins that have no code", "compress/adacomp.cpp",
     "if (by_bin_ && scales.codes[i / to_size(length)] == kNothingSent) continue;", "", "test_compress",
     "adacomp: rounding by the factor*"),
    ("AdaComp's ratio counts the wire", "compress/adacomp.cpp", "signs, k * (length <= 64 ? 1 : 2)});", "signs});",
     "test_compress", "adacomp: independent gradients*"),
    ("AdaComp's expected bytes stay as they began", "compress/adacomp.cpp", "static_cast<float>(kNewActivity *",
     "static_cast<float>(0 * kNewActivity *", "test_compress", "adacomp: bins by shape*"),
    ("AdaComp accepts any number of elements", "compress/adacomp.cpp", "check_fits(k <= item.n());", "", "test_compress",
     "adacomp: an invalid message*"),
    ("AdaComp's scale may be infinite", "compress/adacomp.cpp",
     "if (!(scales.largest >= 0 && scales.largest <= kMaxScale)) return false;", "", "test_compress",
     "adacomp: an invalid message*"),
    ("AdaComp's table loses its scale", "compress/adacomp.cpp", "squares -= s * (2 * m - s);", "squares -= m * m + 0 * s;",
     "test_optim", "planner: error tables equal*"),
    # LGC
    ("LGC's decoder reads weights in the encoder's order", "compress/lgc_autoencoder.cpp",
     "weight[(layer.transposed ? c * out + o : o * in + c) * kernel + k]", "weight[(o * in + c) * kernel + k]", "test_compress",
     "lgc: the tape computes*"),
    ("LGC's gradient forgets the mean of the codes", "compress/lgc_autoencoder.cpp",
     "from[i] + from[rows * n + i % n] / static_cast<float>(rows)", "from[i]", "test_compress", "lgc: the tape computes*"),
    ("LGC's loss weighs all rows equally", "compress/lgc_autoencoder.cpp", "(i < rows * n ? rows * n : n)", "(rows * n)",
     "test_compress", "lgc: the tape computes*"),
    ("LGC's codes are a window too long", "compress/lgc_autoencoder.cpp", "std::max<int64_t>(1, k / 16)", "1 + k / 16",
     "test_compress", "lgc: lengths*"),
    ("LGC's Adam never corrects its bias", "compress/lgc_autoencoder.cpp",
     "lr * std::sqrt(1 - std::pow(kBeta2, steps)) / (1 - std::pow(kBeta1, steps))", "1e-6 * lr", "test_compress",
     "lgc: a curve is learned*"),
    ("LGC does not sort what the leader selects", "compress/lgc.cpp", "if (by_value_) std::ranges::sort(chosen);", "",
     "test_compress", "lgc: the leader's order*"),
    ("LGC's ranks subtract what the mean decodes to", "compress/lgc.cpp", "own = decoded(selected, mine, -1);",
     "own = decoded(selected, mean, -1);", "test_compress", "lgc: a leader whose*"),
    ("LGC adds codes up without dividing", "compress/lgc.cpp", "mean.data<float>()[j] /= ranks;", "mean.data<float>()[j] /= 1;",
     "test_compress", "lgc: nothing is lost*"),
    ("LGC's gate is open", "compress/lgc.cpp", "autoencoder_.steps() > 0 && state(kError) < gate_", "autoencoder_.steps() > 0",
     "test_compress", "lgc: the gate*"),
    ("LGC's retrained weights stay on the first rank", "compress/lgc.cpp", "} else if (trained) {", "} else if (trained && false) {",
     "test_compress", "lgc: refreshed*"),
    ("a rejected step counts as a step of LGC's training", "compress/lgc.cpp", "    if (!all.finite) return false;",
     "    if (!all.finite) { ++state(kSteps); return false; }", "test_compress", "not finite on one rank*"),
    ("LGC tries for ever", "compress/lgc.cpp", "&& steps / train_ <= kAttempts) decide(e, steps);", ") decide(e, steps);", "test_compress",
     "lgc: after four attempts*"),
    ("LGC counts buckets instead of steps", "compress/lgc.cpp", "    if (e.step == step_) return;\n", "", "test_compress",
     "lgc: a step of several buckets*"),
    ("LGC's Adam keeps its moments when a step diverges", "compress/lgc_autoencoder.cpp",
     "for (const Tensor& x : {first_, second_, steps_}) x.fill_zero();", "steps_.fill_zero();", "test_compress",
     "lgc: a step of training that diverges*"),
    ("LGC's layers share the unit of the first", "compress/lgc.cpp", "out.units[j] = out.rho[layer];", "out.units[j] = out.rho[0];",
     "test_compress", "lgc: a layer of small*"),
    ("LGC accepts any number of elements", "compress/lgc.cpp", "if (std::ssize(indices[i]) != kept(e.compressed[i]))",
     "if (false)", "test_compress", "lgc: an invalid message*"),
    ("gradients are clipped after compression", "optim/data_parallel.cpp",
     "    if (parallel_.local_clip > 0) clip_locally();\n    post_complete_buckets();\n",
     "    post_complete_buckets();\n    worker_->drain();\n    if (parallel_.local_clip > 0) clip_locally();\n",
     "test_optim", "learners: local clipping precedes*"),
    ("local clipping without the root of P", "optim/data_parallel.cpp",
     "parallel_.local_clip * std::sqrt(to_double(comm_.size()))", "parallel_.local_clip", "test_optim",
     "learners: local clipping limits*"),
    ("a bucket is exchanged after the first micro-batch", "optim/data_parallel.cpp",
     "if (!last_micro_step() || !p.written || !buckets_.mark_ready(p)) return;",
     "if (!p.written || !buckets_.mark_ready(p)) return;", "test_optim", "learners: overlap changes*"),
    ("with local clipping, too, buckets are exchanged at once", "optim/data_parallel.cpp",
     "if (parallel_.overlap && parallel_.local_clip == 0 && !voting()) post_complete_buckets();",
     "if (parallel_.overlap) post_complete_buckets();", "test_optim",
     "learners: overlap changes*"),
    ("the sum is applied, not the mean", "optim/data_parallel.cpp", "out.learners = ranks;",
     "out.learners = ranks > 0 ? 1 : 0;", "test_optim", "learners: momentum and*"),
    ("weight decay counts twice", "optim/update.cu", "multiply_add(s.momentum, velocity[i], gradient);",
     "multiply_add(s.momentum, velocity[i], gradient + s.weight_decay * w[i]);", "test_optim",
     "learners: momentum and*"),
    ("an exchange mixes up the peers", "comm/collectives.cpp", "rounds[to_size(wrap(rank() - in[i].peer))].in",
     "rounds[to_size(wrap(in[i].peer - rank()))].in", "test_comm", "collectives: one rank and 2 to 8*"),
    ("an exchange waits for everyone", "comm/communicator.cpp", "do_exchange(out, in); });", "do_exchange(out, in); do_barrier(); });",
     "test_comm", "exchange: ranks wait*"),
    ("an exchange accepts two parcels for one peer", "comm/communicator.cpp", "seen[to_size(peer)] = true;",
     "seen[to_size(peer)] = false;", "test_comm", "communicators: impossible calls*"),
    ("an exchange's payload is taken for a share", "comm/link_cost.cpp", 'if (collective == "exchange") return sent;', "",
     "test_comm", "link cost: every collective*"),
    ("processes sum in a different order from threads", "comm/collectives.cpp",
     "run_ring(staged.host(), {.reduce = true, .gather = true});",
     "run_ring(staged.host(), {.reduce = true, .gather = true, .shift = *transport_->name() == 'm' ? -1 : 0});",
     "test_learners_mpi", ""),
    # Learners that talk to neighbours only
    ("--peer-rule does nothing", "apps/session/exchange.cpp", '.dual = o.peer_rule == "dual",', ".dual = true,", "test_program_peers", ""),
    ("--peer-mixing does nothing", "apps/session/exchange.cpp", ".mixing = o.peer_mixing,", ".mixing = 0,", "test_program_peers", ""),
    ("a checkpoint has the first learner's weights", "apps/session/training_state.cpp",
     "x.copy_from(Tensor::view_as(values.slice(at, at + x.size()), x.shape()));", "x.size();", "test_program_peers", ""),
    ("a run may continue with other peers", "apps/session/compare_runs.cpp",
     'json.update({{"peers", o.peers}, {"innovation", o.innovation}, {"peer-rule", o.peer_rule}});', "json.size();",
     "test_program_peers", ""),
    ("an edited graph goes unnoticed", "optim/decentralized.cpp", '{{"graph", static_cast<double>(topology_.hash() >> 12)}}', "{}",
     "test_program_peers", ""),
    ("a run that overflows ends without its log", "apps/session/exchange.cpp", ".most_non_finite = 0,", ".most_non_finite = 3,",
     "test_program_peers", ""),
    ("who stays out is not counted", "core/privacy.cpp", "(order - i) * std::log1p(-q)", "order * std::log1p(-q)", "test_core", "privacy: divergences*"),
    ("noise that is a little too small", "core/privacy.cpp", "  return high;", "  return low;", "test_core", "privacy: noise_for*"),
    ("signs are compared near the thresholds only", "core/privacy.cpp", "{0.0, order * change}", "{0.0}", "test_core", "privacy: signs of*"),
    ("epsilon without the order's logarithm", "core/privacy.cpp", "(std::log(delta) + std::log(order))", "std::log(delta)", "test_core", "privacy: epsilons*"),
    # Votes that protect data
    ("biases are not voted on", "compress/topagg.cpp", "  for (const Parameter& p : setup.store.parameters())\n    layers.push_back",
     "  for (const Parameter& p : setup.store.parameters())\n    if (p.shape().rank() > 1) layers.push_back", "test_optim", "topagg: the answer is*"),
    ("elements that nobody chose have no noise", "compress/topagg.cpp", "sigma > 0 ? sum + sigma * random.normal() : sum",
     "sigma > 0 && sum != 0 ? sum + sigma * random.normal() : sum", "test_optim", "topagg: every element has*"),
    ("noise is the same in every step", "compress/topagg.cpp", "static_cast<uint64_t>(bucket.step) << 28 |", "0 |", "test_optim",
     "topagg: every element has*"),
    ("all owners draw the same noise", "compress/topagg.cpp", "static_cast<uint64_t>(comm.rank()) << 16 |", "0 |", "test_optim",
     "topagg: every element has*"),
    ("noise of half the variance", "compress/topagg.cpp", "sum + sigma * random.normal()", "sum + sigma * 0.707 * random.normal()",
     "test_optim", "topagg: every element has*"),
    ("noise comes from a seed", "core/secret_random.cpp", "if (test_seed_ != 0) {", "if (test_seed_ + 1 != 0) {", "test_optim", "secret numbers:*"),
    ("a gradient with NaN votes", "compress/topagg.cpp", "if (!all_finite(g)) return;", "if (!all_finite(g)) (void)step;", "test_optim",
     "topagg: a gradient that is not finite*"),
    ("votes are kept for the next step", "compress/topagg.cpp", "    std::fill_n(begin, p->size(), 0.0);\n", "", "test_optim",
     "topagg: an answer depends*"),
    ("running statistics are accepted", "compress/topagg.cpp", "check(setup.store.buffers().empty(),", "check(true,", "test_optim",
     "topagg: what cannot protect*"),
    ("layers may stay dense", "compress/topagg.cpp", "check(setup.options.dense_layers.empty(),", "check(true,", "test_optim",
     "topagg: what cannot protect*"),
    ("a replaced unit counts as a removed one", "compress/topagg.cpp", "(voting.replaced ? 2 : 1)", "1", "test_optim",
     "topagg: one unit changes*"),
    ("a vote counts as one element", "compress/topagg.cpp", "std::sqrt(chosen)", "std::sqrt(chosen * 0 + 1)", "test_optim",
     "topagg: one unit changes*"),
    ("gradients are not clipped", "compress/topagg.cpp", "std::max(clip_, std::sqrt(squares))", "clip_", "test_optim",
     "topagg: one unit changes*"),
    ("sampling with replaced units is accepted", "compress/topagg.cpp", "check(voting.rate == 1 || !voting.replaced,", "check(true,",
     "test_optim", "topagg: what cannot protect*"),
    ("every bucket is a query", "compress/topagg.cpp", "if (bucket.step != std::exchange(step_, bucket.step)) {",
     "if (bucket.step + 1 != std::exchange(step_, bucket.step)) {", "test_optim", "topagg: a query is counted*"),
    ("a query is answered before it is counted", "core/privacy.cpp", "  if (on_count_) on_count_(state_);\n", "", "test_optim",
     "topagg: a query is counted*"),
    ("a checkpoint's account replaces a larger one", "core/privacy.cpp", "std::max(state_.spent[i], other.spent[i])", "other.spent[i]",
     "test_optim", "accountant: what others*"),
    ("the divisor is the number of ranks alone", "compress/topagg.cpp", "sum * clip_ / voting_.voters", "sum * clip_", "test_optim",
     "topagg: the answer is*"),
    ("stochastic votes are biased", "compress/topagg.cpp", "static_cast<double>(g[i] / most) ?", "static_cast<double>(2 * g[i] / most) ?", "test_optim", "topagg: stochastic votes*"),
    ("sums of many votes lose their upper bit", "compress/topagg.cpp", "return bits_below(2 * static_cast<int64_t>(most) + 1);",
     "return bits_below(2 * static_cast<int64_t>(most));", "test_optim", "topagg: sums of votes at*"),
    ("a threshold is for one sign only", "compress/topagg.cpp", "std::abs(noisy) <= threshold_", "noisy <= threshold_ && noisy > 0", "test_optim",
     "topagg: signs are zero*"),
    ("control words get noise", "compress/topagg.cpp", "total[i] += of_rank;", "total[i] += of_rank + 1e-3f;", "test_optim",
     "topagg: control words*"),
    ("gradients are exchanged before they are votes", "optim/data_parallel.cpp", "parallel_.local_clip == 0 && !voting())", "parallel_.local_clip == 0)",
     "test_optim", "voting optimizer: each*"),
    ("dense steps before votes are accepted", "optim/data_parallel.cpp", "check(parallel.compress_start == 0,", "check(true,", "test_optim",
     "voting optimizer: what would*"),
    ("groups follow the seed", "data/loader.cpp", "Philox(0, stream_id(Stream::shuffle))", "Philox(options.seed, stream_id(Stream::shuffle))",
     "test_data", "loader: fixed shares depend*"),
    ("every step draws the same groups", "data/loader.cpp", "static_cast<uint64_t>(step) << 12 |", "0 |", "test_data",
     "loader: the groups of a step*"),
    ("groups are drawn half as often", "data/loader.cpp", "random.uniform() >= options.group_rate", "random.uniform() >= options.group_rate / 2",
     "test_data", "loader: the groups of a step*"),
    ("a worker claims an empty batch twice", "data/loader.cpp", "      if (claimed_ == next_) ++claimed_;", "      if (claimed_ == next_) --claimed_, ++claimed_;",
     "test_data", "loader: the groups of a step*"),
    ("votes that noise drowns are trained on", "apps/session/privacy.cpp", "constexpr double kMostNoise = 4;", "constexpr double kMostNoise = 1e9;",
     "test_program_privacy", ""),
    ("training without noise needs no --dp-anyway", "apps/session/privacy.cpp", "check(sum.sigma > 0, ", "check(sum.sigma >= 0, ",
     "test_program_privacy", ""),
    ("privacy.json is not read", "apps/session/privacy.cpp", "      if (exists(file)) read_account",
     "      if (file.empty()) read_account", "test_program_privacy", ""),
    ("privacy.json is not written in time", "apps/session/privacy.cpp", "  if (folder != nullptr)\n    accountant.on_count",
     "  if (folder == nullptr)\n    accountant.on_count", "test_program_privacy", ""),
    ("a run may continue from dense steps", "apps/session/privacy.cpp", "if (!checkpoint.empty() && !accounted)", "if (!checkpoint.empty() && accounted)",
     "test_program_privacy", ""),
    ("a group's images follow from the groups before it", "data/loader.cpp", "(step * groups + group) * options.batch_size",
     "(step * groups + to_int64(parts.size())) * options.batch_size", "test_data", "loader: a group's images*"),
    ("a vote is rounded by a seed", "compress/topagg.cpp", "  SecretRandom random(noise_seed_, key);\n  for", "  SecretRandom random(1, key);\n  for",
     "test_optim", "topagg: no seed and no other*"),
    ("noise that can be repeated has a price", "compress/topagg.cpp", "if (!sum.secret) return", "if (sum.sigma < 0) return", "test_optim",
     "topagg: noise that can be repeated*"),
    ("a lost account is not missed", "apps/session/privacy.cpp", "accounted = accounted && exists(files.back());", "exists(files.back());",
     "test_program_privacy", ""),
    ("a budget is for one process", "apps/session/privacy.cpp", "given * (1 + 1e-9)", "given * 0", "test_program_privacy", ""),
    ("every teacher sees all pictures", "apps/models/picture_gan.cpp", "const int64_t begin = data_.size() * i / count(),",
     "const int64_t begin = 0 * i,", "test_apps", "teachers: each learns*"),
    ("the generator follows itself", "apps/train_dpgan.cpp", "mse_loss(tape, made, Var(pictures()))", "mse_loss(tape, made, Var(made.value()))",
     "test_program_dpgan", ""),
    ("teachers begin anew after a resume", "apps/train_dpgan.cpp", "OwnState own{.rank = teachers_.named_state()};", "OwnState own;",
     "test_program_dpgan", ""),
    ("noise that can be repeated counts as secret", "compress/topagg.cpp", '.secret = values.at("noise-seed") == 0', ".secret = true",
     "test_program_privacy", ""),
    ("--dp-epsilon-max ends a step late", "apps/session/session.cpp", "accountant->spent_after(1).epsilon > epsilon_limit",
     "accountant->spent_after(0).epsilon > epsilon_limit", "test_program_privacy", ""),
    ("learners share the images of a protected one", "apps/cli/resnet_options.cpp", 'set_default(flags, "shard", o.shard, "fixed")',
     "(void)voting", "test_program_privacy", ""),
    ("a vocabulary is trained on", "apps/cli/lm_options.cpp", "!is_voting(o),", "true || !is_voting(o),", "test_program_privacy", ""),
    ("secret noise goes with --deterministic", "apps/session/privacy.cpp", 'check(!o.deterministic ||', "check(true ||", "test_program_privacy", ""),
    ("words arrive at each rank in a step of its own", "optim/flooded_words.cpp", "step_ - delay()", "step_", "test_optim",
     "flooded words: every rank reads*"),
    ("words are passed on by the wrong neighbour", "optim/flooded_words.cpp", "if (there + 1 !=", "if (there - 1 !=", "test_optim",
     "flooded words: every rank reads*"),
    ("shares by class are dealt to other ranks", "data/loader.cpp", "(batch * ranks + rank) * options.batch_size",
     "(batch * ranks + ranks - 1 - rank) * options.batch_size", "test_data", "loader: shares by class*"),
    ("images are shuffled over the shares", "core/random.h", "begin + rng.below(i, static_cast<uint32_t>(i - begin))",
     "rng.below(i, static_cast<uint32_t>(i))", "test_data", "loader: shares by class*"),
    ("a learner believes what it has not sent", "optim/decentralized.cpp", "decode(own, innovation);", "", "test_optim",
     "peers: duals sum to zero*"),
    ("an evaluation leaves the mean in place", "optim/decentralized.cpp", "if (own_.defined()) store_.values().copy_from(own_);", "", "test_optim",
     "peers: the mean stands in*"),
    ("begun anew, peers keep their duals", "optim/decentralized.cpp", "for (const Tensor& x : {dual_, apart_, coder_.scales()})", "for (const Tensor& x : {apart_, coder_.scales()})",
     "test_optim", "peers: begun anew*"),
    ("without a learning rate no words travel", "optim/decentralized.cpp", "if (next_ == 0) worker_.post([this] { exchange_words(); });", "",
     "test_optim", "peers: control words are*"),
    ("gossip goes half way", "optim/decentralized.cpp", ": x[i] + mixing_ * a[i]", ": x[i] + mixing_ / 2 * a[i]",
     "test_optim", "peers: gossip*"),
    ("the dual has the wrong sign", "optim/decentralized.cpp", "d[i] -= mixing * a[i];",
     "d[i] += mixing * a[i];", "test_optim",
     "peers: four learners*"),
    ("neighbours add up instead of differing", "optim/decentralized.cpp", "(double{theirs[i]} - own[i])", "(double{theirs[i]} + own[i])",
     "test_optim", "peers: duals sum to zero*"),
    ("weights that are not finite are sent", "optim/decentralized.cpp", "finite ? coder_.encode(layer, v + begin, step_, at) : coder_.encode_zero(layer, at);",
     "coder_.encode(layer, v + begin, step_, at);", "test_optim",
     "peers: weights that are not finite*"),
    ("a learning rate of zero divides", "optim/decentralized.cpp", "if (optimizer_.lr() < kLeastRate) return;", "", "test_optim",
     "peers: a learning rate of zero*"),
    ("ranks may have different graphs", "optim/decentralized.cpp", "check(hashes[r] == hashes[0],", "check(hashes[r].size() == 1,", "test_optim",
     "peers: impossible options*"),
    ("differences are recomputed in vain", "optim/decentralized.cpp", "        a[i] = sums[to_size(i)];\n", "", "test_optim",
     "peers: after a resync*"),
    ("only the first bucket can be spoilt", "optim/decentralized.cpp", "spoilt_ |= !finite;", "spoilt_ |= !finite && index == 0;",
     "test_optim", "peers: weights that are not finite*"),
    ("drift is relative to what weights are now", "optim/decentralized.cpp", "std::max(1e-30, extreme(kWeight))",
     "std::max(1e-30, largest_of(estimate_))", "test_optim", "peers: weights that shrink*"),
    ("a tiny learning rate makes large duals", "optim/decentralized.cpp", "kLeastPart * extreme(kRate)", "0 * extreme(kRate)",
     "test_optim", "peers: a tiny learning rate*"),
    ("weights are exchanged before backward has read them", "optim/decentralized.h",
     "void ready(Parameter& p) override { optimizer_.ready(p); }", "void ready(Parameter& p) { optimizer_.ready(p); optimizer_.weights_free(p); }",
     "test_optim", "peers: weights stay*"),
    ("a code of zeros is Dyna's for zero", "compress/innovation.cpp", "std::fill_n(bytes, this->bytes(layer), uint8_t{0});",
     "std::fill_n(bytes, this->bytes(layer), uint8_t{1});", "test_compress", "innovation: a code of zeros*"),
    ("a graph's weights are not symmetric", "optim/topology.cpp", "1.0 / (1 + std::max(degree(rank), degree(q)))",
     "1.0 / (1 + degree(rank))", "test_optim", "topology: weights*"),
    ("graphs may have two parts", "optim/topology.cpp", "return std::ranges::min(distances(0)) >= 0;", "return true;", "test_optim",
     "topology: graphs from files*"),
    ("neighbours in a file may be one-sided", "optim/topology.cpp", "check(edges_[static_cast<size_t>(q)].contains(r),",
     "check(q >= 0 || edges_[static_cast<size_t>(q)].contains(r),", "test_optim", "topology: graphs from files*"),
    ("Dyna's parts have no middle", "compress/innovation.cpp", "(levels[static_cast<size_t>(i)]) + 0.5f) - 1)", "(levels[static_cast<size_t>(i)])) - 1)", "test_compress", "innovation: dyna's parts*"),
    ("Dyna's scale never shrinks", "compress/innovation.cpp", "return largest < 0.9f * scale ? keep(0.9 * scale) : scale;", "return scale;",
     "test_compress", "innovation: dyna's parts*"),
    ("noise ignores the step", "compress/innovation.cpp", "static_cast<uint64_t>(step) << 20 | layer", "layer", "test_compress",
     "innovation: stochastic*"),
    # Codecs
    ("indices take one byte more than is counted", "compress/codecs/select.cpp",
     "return is_bitmap() ? packed_bytes(n, 1) : packed_bytes(k, width());",
     "return is_bitmap() ? packed_bytes(n, 1) : packed_bytes(k, width()) + 1;", "test_compress", "indices: bytes match the*"),
    ("one element too many of several equal ones", "compress/codecs/select.cpp", "equal-- > 0", "equal-- >= 0",
     "test_compress", "selection: chunks equal*"),
    ("NaN counts as the largest", "compress/codecs/chunks_cpu.h", "return !numbers || v == v ? v : Lanes<kLanes>::all(0);", "return v;", "test_compress",
     "selection: chunks equal*"),
    ("levels are rounded up too often", "compress/codecs/quantize.cpp", "= Philox::unit(block.word[j]);",
     "= 0.8f * Philox::unit(block.word[j]);", "test_compress", "quantiser: bounds*"),
    ("rounding to nearest instead of stochastic rounding", "compress/codecs/quantize.cpp", "    if (noise)\n", "    if (noise && n < 0)\n", "test_compress",
     "quantiser: bounds*"),
    ("all ranks use the same random numbers for rounding", "compress/block_exchange.cpp", "static_cast<uint64_t>(e.comm.rank()) << 16", "uint64_t{0} << 16",
     "test_compress", "qsgd: error bound, unbiased*"),
    ("all steps use the same random numbers for rounding", "compress/block_exchange.cpp", "static_cast<uint64_t>(e.step) << 28", "uint64_t{0} << 28",
     "test_compress", "qsgd: error bound, unbiased*"),
    ("levels have one bit too few", "compress/block_exchange.cpp", "static_cast<int>(item.layer->choice)};", "std::max(2, static_cast<int>(item.layer->choice) - 1)};", "test_compress",
     "qsgd: error bound, unbiased*"),
    ("a top-k message of any length is accepted", "compress/exchange.cpp", "if (length[0] < least || length[0] > most)",
     "if (length[0] < 0)", "test_compress", "top-k: an invalid message*"),
    ("the owner uses its sum before encoding", "compress/block_exchange.cpp",
     "  std::vector<Tensor> values;\n", "  for (size_t i = 0, j = 0; i < all.size(); ++i)\n"
     "    if (plan.blocks[i].owner == me) std::copy_n(owned[j].x, owned[j].n, all[i].x), ++j;\n"
     "  std::vector<Tensor> values;\n", "test_compress", "reducers: equal bits on*"),
    ("the last block counts as a whole one", "compress/block_exchange.cpp", "(rest > 0 ? encoded(rest) : 0)",
     "(rest > 0 ? encoded(block_) : 0)", "test_compress", "payload: the bytes of a*"),
    ("ScaleCom's indices count as free", "compress/scalecom.cpp", "return indices.k * value_bytes() + indices.bytes();",
     "return indices.k * value_bytes();", "test_compress", "payload: the bytes of a*"),
    ("differences use one bit too many", "compress/codecs/delta_code.cpp", "std::bit_width(static_cast<uint64_t>(mean)) - 1",
     "std::bit_width(static_cast<uint64_t>(mean))", "test_compress", "differences: round trip,*"),
    ("endless zeros are read as one difference", "compress/codecs/delta_code.cpp", "if (next >= n) refuse",
     "if (next > n + k) refuse", "test_compress", "differences: truncated*"),
    ("half: ties are rounded up", "core/half.h", "(a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u)",
     "(a + 0x1000u - 0x38000000u)", "test_compress", "half: all 65536*"),
    ("an element may be drawn twice", "compress/codecs/select.cpp", "    if (drawn[i]) continue;\n", "", "test_compress",
     "random selection: k distinct*"),
    # PowerSGD
    ("the residual is relative to the sum", "compress/power_sgd.cpp", "axpy(static_cast<float>(-1.0 / ranks), item.sum, item.tensor);",
     "axpy(static_cast<float>(-1.0 + 0 * ranks), item.sum, item.tensor);", "test_compress", "powersgd: five steps match*"),
    ("every step starts with new factors", "compress/power_sgd.cpp",
     "HEDDLE_DISPATCH(device, next_factor(q, ranks, factor(*item.layer, device)));", "(void)device;", "test_compress",
     "powersgd: five steps match*"),
    ("Gram-Schmidt once", "compress/codecs/low_rank.cu", "round < 2", "round < 1", "test_compress", "orthogonalize: orthonormal*"),
    ("factors are missing in the state", "compress/power_sgd.cpp", "if (layer.compressed && shrinks(layer)) state.emplace_back",
     "if (!layer.compressed && shrinks(layer)) state.emplace_back", "test_compress", "state: copied into a new*"),
    ("P is not made orthonormal", "compress/power_sgd.cpp", "    HEDDLE_DISPATCH(e.device, orthogonalize(factors));\n", "",
     "test_compress", "powersgd: exact for gradients*"),
    ("Gram-Schmidt sums in fp32", "compress/codecs/low_rank.cu", "double sum = 0;", "float sum = 0;", "test_compress",
     "orthogonalize: orthonormal*"),
    ("a change of rank resets all factors", "compress/power_sgd.cpp", "if (!q.defined() || q.shape()[0] != m.rank) q =",
     "if (q.defined() && q.shape()[0] != m.rank)\n      for (auto& [name, other] : factors_) other = {};\n"
     "    if (!q.defined()) q =", "test_compress", "powersgd: a change of rank*"),
    ("a dense layer's residual is missing in the state", "compress/compressed_reducer.cpp",
     "if (feedback_ && layer.compressed && (shrinks(layer) || feedback_->holds(name)))",
     "if (feedback_ && layer.compressed && shrinks(layer))", "test_compress", "powersgd: no loss if a*"),
    # Which tensors are compressed
    ("the first convolution is compressed", "compress/layer_table.cpp", "&& &p != first && !named;",
     "&& (&p != first || !named) && !named;", "test_compress", "which layers are dense:*"),
    ("batch norm and biases are compressed", "compress/layer_table.cpp", "p.shape().rank() > 1 &&",
     "p.shape().rank() > 0 &&", "test_compress", "which layers are dense:*"),
    ("--min-compress is exclusive", "compress/layer_table.cpp", "p.size() >= options.min_compress",
     "p.size() > options.min_compress", "test_compress", "which layers are dense:*"),
    ("--dense-layers must be whole names", "compress/layer_table.cpp", "std::regex_search(p.name, dense)",
     "std::regex_match(p.name, dense)", "test_compress", "which layers are dense:*"),
    # Bad input
    ("rate=0 is accepted", "compress/families.cpp", '{{.name = "rate", .initial = 100, .low = 1,',
     '{{.name = "rate", .initial = 100, .low = 0,', "test_compress", "spec: defaults, canonical*"),
    ("bits=9 is accepted", "compress/families.cpp", ".low = 2, .high = 8,", ".low = 2, .high = 16,", "test_compress", "spec: defaults, canonical*"),
    ("a broken pipe ends a run before it is saved", "apps/checkpoint/signals.cpp", "pthread_sigmask(SIG_BLOCK, &pipe, nullptr);", "(void)pipe;",
     "test_signals", ""),
    ("memory that the machine lacks is granted", "core/pool.cpp", "bytes > static_cast<size_t>(available_memory())", "bytes > ~size_t{0} - 1",
     "test_core", "Pool: blocks never*"),
    ("the first name is suggested as the nearest", "core/names.cpp", "nearest_name(name, known);", "known.front();",
     "test_compress", "spec: defaults, canonical*"),
    ("a plan for a different network is accepted", "apps/session/layer_plan.cpp", "check(elements == here && here > 0,", "check(here >= 0,",
     "test_apps", "layer plan: refused for*"),
    ("a plan for a different number of learners is accepted", "apps/session/layer_plan.cpp", "check(ranks == learners,", "check(ranks > 0,", "test_apps",
     "layer plan: refused for*"),
    ("a plan without some layers is accepted", "apps/session/layer_plan.cpp", "check(settings.contains(layer.name),",
     "check(!settings.empty(),", "test_apps", "layer plan: refused for*"),
    # L-GreCo
    ("errors are rounded down", "compress/plan/l_greco.cpp", "std::ceil(error / (budget / buckets))", "std::floor(error / (budget / buckets))",
     "test_compress", "L-GreCo: the plan is optimal,*"),
    ("the last state of a layer is ignored", "compress/plan/l_greco.cpp", "b < states - step; ++b", "b + 1 < states - step; ++b",
     "test_compress", "L-GreCo: the plan is optimal,*"),
    ("plans over the budget are used", "compress/plan/l_greco.cpp", "if (plan.error <= plan.budget) break;", "break;", "test_compress",
     "L-GreCo: over budget by*"),
    ("plans may be larger than the default", "compress/plan/l_greco.cpp", "if (uniform.error <= plan.budget && plan.cost > uniform.cost)",
     "if (uniform.error <= plan.budget && plan.cost > 9 * uniform.cost)", "test_compress", "L-GreCo: the plan is optimal,*"),
    ("a candidate whose error is not finite is merely never chosen", "compress/plan/l_greco.cpp",
     'if (!finite) return fall_back("an error or the budget is negative or not finite");', "(void)finite;", "test_compress",
     "L-GreCo: a given budget,*"),
    ("division by a budget of zero", "compress/plan/l_greco.cpp",
     'if (uniform.budget <= 0) return fall_back("the budget is zero");', "", "test_compress",
     "L-GreCo: a given budget,*"),
    ("if no plan keeps the budget, the first candidates are used", "compress/plan/l_greco.cpp",
     'if (plan.chosen.empty() || plan.error > plan.budget)\n    return fall_back("no plan stays within the budget");',
     "if (plan.chosen.empty()) plan.chosen.assign(layers.size(), 0), measure_plan(layers, plan);", "test_compress",
     "L-GreCo: a given budget,*"),
    ("without a plan the first candidates are used", "compress/plan/l_greco.cpp", "    uniform.fallback = why;\n",
     "    uniform.fallback = why;\n    uniform.chosen.assign(layers.size(), 0);\n", "test_optim",
     "planner: NaN in a window*"),
    ("among equal costs the largest error is chosen", "compress/plan/l_greco.cpp", "if (least.back()[b] < least.back()[best]) best = b;",
     "if (least.back()[b] <= least.back()[best]) best = b;", "test_compress", "L-GreCo: over budget by*"),
    ("among equal candidates the last is chosen", "compress/plan/l_greco.cpp", "while (!leads_here(chosen[l])) ++chosen[l];",
     "for (chosen[l] = errors[l].size() - 1; !leads_here(chosen[l]);) --chosen[l];", "test_compress",
     "L-GreCo: over budget by*"),
    ("bytes are compared instead of costs", "compress/plan/l_greco.cpp",
     "if (uniform.error <= plan.budget && plan.cost > uniform.cost)",
     "if (uniform.error <= plan.budget && plan.bytes > uniform.bytes)", "test_compress",
     "L-GreCo: costs decide instead*"),
    ("a plan that has become too expensive is kept", "compress/plan/layer_planner.cpp",
     "if (keeps_budget && !gain(before, plan) && !too_expensive) return before;",
     "if (keeps_budget && (!gain(before, plan) || too_expensive)) return before;", "test_optim",
     "planner: a plan that becomes*"),
    ("a given budget counts only below the default's", "compress/plan/l_greco.cpp", "options.budget > 0 ? options.budget :",
     "options.budget > 0 ? std::min(options.budget, uniform.error) :", "test_compress", "Accordion: plans keep its budget*"),
    ("all layers get the budget that Accordion gives steady ones", "compress/plan/layer_planner.cpp",
     "accordion_settings(layers_, critical)", "accordion_settings(layers_, std::vector<bool>(critical.size()))",
     "test_optim", "planner: Accordion allows*"),
    ("alpha counts twice in Accordion's budget", "compress/plan/l_greco.cpp", "options.budget > 0 ? options.budget :",
     "options.budget > 0 ? options.alpha * options.budget :", "test_optim", "planner: alpha is a factor of Accordion's*"),
    ("a window sums in the residual itself", "compress/plan/gradient_window.cpp",
     "compensated_.emplace_back(layer, x.clone());", "compensated_.emplace_back(layer, x);", "test_optim",
     "planner: different learners agree*"),
    ("plans are read in fp32", "apps/session/layer_plan.cpp", 'layer.at("setting").get<double>()',
     'layer.at("setting").get<float>()', "test_apps", "layer plan: a reducer gets*"),
    ("errors are squared", "compress/codecs/select.cpp", "return std::sqrt(std::max(0.0, unsent));", "return std::max(0.0, unsent);", "test_optim",
     "planner: error tables equal*"),
    ("tables are summed, not averaged", "comm/communicator.cpp", "mean[i] += values[i] / comm.size();", "mean[i] += values[i];",
     "test_optim", "planner: identical learners*"),
    ("only one rank's table counts", "comm/communicator.cpp", "mean[i] += values[i] / comm.size();", "mean[i] = values[i];", "test_optim",
     "planner: a plan's errors are the mean*"),
    ("a window keeps only its last gradients", "compress/plan/gradient_window.cpp", "if (!first) axpy(1, x, sum->second);",
     "if (!first) sum->second.copy_from(x);", "test_optim", "planner: a window sums*"),
    ("differing plans are used", "compress/plan/layer_planner.cpp", "if (all[r][0] != hash)", "if (all[r].empty())", "test_optim",
     "planner: NaN in a window*"),
    ("any gain changes the plan", "compress/plan/layer_planner.cpp", "constexpr double kLeastGain = 0.02;",
     "constexpr double kLeastGain = -1;", "test_optim", "planner: windows close*"),
    ("there is no reserve", "compress/plan/layer_planner.cpp", "constexpr double kSlack = 0.02;", "constexpr double kSlack = 0;", "test_optim",
     "planner: a new plan leaves*"),
    ("the previous plan is kept even over budget", "compress/plan/layer_planner.cpp", "const bool keeps_budget = before.error <= plan.budget;",
     "const bool keeps_budget = before.error <= 9 * plan.budget;", "test_optim", "planner: the previous plan*"),
    ("plans start one step late", "compress/plan/layer_planner.cpp", "if (step == due_) adopt", "if (step == due_ + 1) adopt", "test_optim",
     "planner: windows close*"),
    ("the learning rate at the last plan is ignored", "compress/plan/layer_planner.cpp", "if (!lr_) lr_ = lr;", "if (!lr_) lr_ = 1 + 0 * lr;", "test_optim",
     "planner: a jump of one layer's*"),
    ("a resumed run judges by its own learning rate", "compress/plan/layer_planner.cpp", "    lr_ = state.lr;\n", "", "test_optim",
     "planner: a run resumed*"),
    ("bytes cost no time", "compress/plan/layer_planner.cpp", "seconds[c] + per_byte * static_cast<double>(layer.bytes[c])",
     "seconds[c] + 0 * per_byte", "test_optim", "planner: bytes and time choose differently*"),
    ("norms may change more before a layer is critical", "compress/plan/accordion.cpp", "constexpr double kEta = 0.5;", "constexpr double kEta = 0.9;", "test_compress",
     "Accordion: critical at*"),
    ("layers that are not critical keep their setting", "compress/plan/accordion.cpp", "std::abs(2 * bytes - layer.bytes[layer.uniform])",
     "std::abs(bytes - layer.bytes[layer.uniform])", "test_compress", "Accordion: layers that*"),
    ("a plan of a replaced table is used", "compress/plan/layer_planner.cpp",
     "  solution_ = {};  // ", "  // ", "test_optim",
     "planner: with another interval*"),
    # The quality meter
    ("the bound is too large", "compress/plan/quality_meter.cpp", "out.mismatch + (1 - out.mismatch) * rho;", "out.mismatch + rho;",
     "test_compress", "quality: figures equal*"),
    ("the cosine is taken with gradient plus residual", "compress/plan/quality_meter.cpp", "sum_of(sent, seen.gradients, product)", "sum_of(sent, seen.all, product)",
     "test_compress", "quality: figures equal*"),
    ("the warning considers the whole run", "apps/log/quality_report.cpp", "samples_ < kSamplesBeforeWarning || mean > 0",
     "samples_ < kSamplesBeforeWarning || correlation_sum_ > 0", "test_apps", "quality report: one warning*"),
    ("residuals are measured without 1 / beta", "compress/plan/quality_meter.cpp", "std::sqrt(residual / ranks) / beta", "std::sqrt(residual / ranks) / (0 * beta + 1)",
     "test_compress", "quality: figures equal*"),
    # Resumed runs, and results of programs
    ("rejected exchanges are not counted", "optim/exchange_probes.cpp", "totals_.rejected += finite ? 0 : 1;", "", "test_apps",
     "training log: rejected*"),
    ("gradients of the first of several batches are dumped", "apps/log/training_log.cpp", "    known->second = copy;\n",
     "    return;\n", "test_apps", "training log: the gradients*"),
    ("a resumed run starts with the first leader", "optim/data_parallel.cpp", "  step_ = state.steps;\n", "",
     "test_apps", "training state: fewer or*"),
    ("fewer or more learners get the sum of the residuals", "apps/session/training_state.cpp",
     "    scale(x, 1.0f / static_cast<float>(saved.size()));\n", "", "test_apps",
     "training state: fewer or*"),
    ("all learners resume with the first rank's residuals", "apps/session/training_state.cpp",
     "for (int r = own_file ? parts.rank : 0; r < (own_file ? parts.rank + 1 : learners); ++r)",
     "for (int r = 0; r < (own_file ? 1 : learners); ++r)", "test_apps", "training state: fewer or*"),
    ("a run resumes as another one", "apps/session/resume.cpp", "    check_same_run(o, spec.identity, *start.checkpoint);\n",
     "    if (comm.size() == 0) check_same_run(o, spec.identity, *start.checkpoint);\n", "test_apps",
     "training state: a run resumes*"),
    ("the ratio of compressed layers includes all layers", "apps/log/summary.cpp", "    if (sent >= dense) continue;\n", "",
     "test_program_learners", ""),
    ("dense steps count as compressed", "apps/log/summary.cpp",
     "out.wire = quotient(dense_bytes * steps, static_cast<double>(totals.compressed_sent));",
     "out.wire = quotient(dense_bytes * steps, static_cast<double>(totals.compressed_sent + totals.dense_sent));",
     "test_program_learners", ""),

    # Values in 16 bits
    ("the loss of the first rounding is forgotten", "compress/block_exchange.cpp", "    axpy(-1, x, lost[i]);", "    lost[i].fill_zero();",
     "test_compress", "values=bf16: half*"),
    ("the loss of rounding a sum is forgotten", "compress/block_exchange.cpp", "      axpy(1, sum, lost.slice(coded.begin, coded.begin + coded.n));", "",
     "test_compress", "values=bf16: half*"),
    ("the loss of a sum lands in another block", "compress/block_exchange.cpp", "    begin += coded.n;", "    begin += 0 * coded.n;",
     "test_compress", "values=bf16: half*"),
    ("top-k forgets what rounding loses", "compress/top_k.cpp", "        out.lost.back() = values;", "        out.lost.back() = {};",
     "test_compress", "values=bf16: half*"),
    ("what was lost is not kept", "compress/error_feedback.cpp", "  if (lost.defined())\n", "  if (lost.defined() && beta_ < 0)\n",
     "test_compress", "values=bf16: half*"),
    ("values=bf16 is ignored", "compress/compressed_reducer.h", "found->second == 1 ? Coding::bf16", "found->second == 2 ? Coding::bf16",
     "test_compress", "values=bf16: half*"),
    ("flags of others are not looked at", "compress/block_exchange.cpp", "  for (int r = 0; r < p; ++r)  // every rank has received all flags\n",
     "  for (int r = 0; r < p * 0; ++r)  // every rank has received all flags\n", "test_compress", "values=bf16: a bucket with*"),
    # Momentum after a residual, and the ramp of a rate
    ("a gradient from a residual skips weight decay", "optim/update.cu",
     "const float v = multiply_add(s.momentum, velocity[i], decay);", "const float v = s.momentum * velocity[i];", "test_optim",
     "compressed momentum: steps*"),
    ("a gradient from a residual counts once instead of 1 / (1 - momentum) times", "optim/update_rule.cpp",
     "input.grad_scale / (1 - options_.momentum)", "input.grad_scale", "test_optim",
     "compressed momentum: a*"),
    ("dense layers are reported to leave a residual", "optim/data_parallel.cpp", "reducer_->uses_residual(p.name)",
     "reducer_->keeps_residuals()", "test_optim", "learners: momentum across the switch*"),
    ("a range of deferred updates uses its first layer's rule", "optim/optimizer.cpp", "kind(order[next]) == kind(order[first])",
     "rule_->decays(*order[next]) == decay", "test_optim", "learners: momentum across the switch*"),
    ("dense steps before the start use the residual's rule", "optim/data_parallel.cpp",
     "parallel_.residual_momentum && compressing() &&", "parallel_.residual_momentum &&", "test_optim",
     "learners: momentum across the switch*"),
    ("Adam scales a gradient from a residual", "optim/update_rule.cpp", ".grad_scale = to_float(input.grad_scale)};",
     ".grad_scale = to_float(input.from_residual ? 10 * input.grad_scale : input.grad_scale)};", "test_optim",
     "compressed momentum: Adam's rule*"),
    ("quantized layers are reported to leave a residual", "compress/compressed_reducer.h", "return feedback_ && compresses(parameter)",
     "return compresses(parameter)", "test_optim", "learners: momentum is unchanged*"),
    ("a ramp is linear", "compress/layer_table.cpp", "kFirstRate * std::pow(rate / kFirstRate, done)",
     "kFirstRate + (rate - kFirstRate) * done", "test_optim", "learners: a ramp sends*"),
    ("plans start within a ramp", "optim/exchange_probes.cpp", "options.compress_start + compressed->ramp()",
     "options.compress_start + 0 * compressed->ramp()", "test_optim", "learners: layer plans start*"),
    ("factors keep their size", "compress/codecs/low_rank.cu", "(share * sum[begin + i] * power)", "(share * sum[begin + i] + 0 * power)", "test_compress",
     "powersgd: ordinary gradients*"),

    # Layers
    ("leaky ReLU's gradient at zero is one", "layers/activation.cu", "y > 0.0f ? dy : slope * dy", "y >= 0.0f ? dy : slope * dy",
     "test_layers", "leaky ReLU*"),
    ("the sigmoid's gradient lacks a factor", "layers/activation.cu", "dy * y * (1.0f - y)", "dy * y", "test_layers",
     "leaky ReLU*"),
    ("GELU's gradient lacks its slope", "layers/activation.cu", "below(x) + x * 0.3989422804f", "below(x) + 0.0f * x * 0.3989422804f",
     "test_layers", "gelu*"),
    ("softmax overflows", "layers/rows.cu", "[=](int64_t c) { return exp_of(by * (z[c] - top)); }",
     "[=](int64_t c) { return exp_of(by * (z[c] - 0 * top)); }", "test_layers", "softmax: rows*"),
    ("softmax's gradient keeps its mean", "layers/rows.cu", "to_float(p[c]) * (d[c] - mean)", "to_float(p[c]) * (d[c] - 0 * mean)",
     "test_layers", "softmax: rows*"),
    ("a causal position sees the next one", "layers/rows.cu", "r % causal + 1 : columns", "r % causal + 2 : columns", "test_layers",
     "attention*"),
    ("attention is not scaled in backward", "layers/attention.cpp", "dweights.reshape(rows), by,", "dweights.reshape(rows), 1.0f,",
     "test_layers", "attention*"),
    ("keys get the gradient of queries", "layers/attention.cpp", "matrix(dparts, count + i), {.transpose_a = true}",
     "matrix(dparts, count + i), {}", "test_layers", "attention*"),
    ("layer normalisation with another epsilon", "layers/rows.cu", "1.0f / sqrtf(variance + eps)", "1.0f / sqrtf(variance + 1.1f * eps)",
     "test_golden", "golden: layer normalisation"),
    ("layer normalisation's gradient ignores the variance", "layers/rows.cu", "- even - unit(c) * along", "- even - 0 * unit(c) * along",
     "test_layers", "layer normalisation*"),
    ("the reset gate's gradient is lost", "layers/gru.cu", "own[2 * hidden] = T(dn * r);", "own[2 * hidden] = T(dn);", "test_layers", "gru*"),
    ("a GRU's update gate is turned round", "layers/gru.cu", "(1.0f - z) * n + z * before", "z * n + (1.0f - z) * before", "test_golden",
     "golden: LSTM*"),
    ("both biases of a GRU get one gradient", "layers/recurrent.cpp", "bias == w.bias_ih ? dgates : drecurrent",
     "bias == nullptr ? drecurrent : dgates", "test_layers", "gru*"),
    ("the easiest images are kept", "apps/models/mistakes.cpp", "std::tuple(-h.loss, h.image)", "std::tuple(h.loss, h.image)", "test_apps",
     "mistakes: only so many*"),
    ("one learner's mistakes count alone", "apps/models/mistakes.cpp", "+= count.images", "= count.images", "test_apps",
     "mistakes: three learners*"),
    ("a watcher ends with the run's first lines", "apps/report/watch.cpp", "(run.summary.empty() && idle_seconds(folder) < kLongSeconds)",
     "(run.summary.empty() && idle_seconds(folder) < 0)", "test_report", "watch: a page that follows*"),
    ("half the gradient of a squared error", "layers/pair_loss.cu", "return 2.0f * (a - b);", "return a - b;", "test_layers",
     "squared error and*"),
    ("both sides of a squared error are pulled the same way", "layers/loss.cpp", "      scale(db, -1);\n", "", "test_layers",
     "squared error and*"),
    ("binary cross-entropy overflows", "layers/pair_loss.cu", "exp_of(a > 0.0f ? -a : a)", "exp_of(-a)", "test_layers",
     "squared error and*"),
    ("joined channels overwrite each other", "layers/concat.cpp", "copy(b, all - first, first);", "copy(b, all - first, 0 * first);",
     "test_layers", "concatenated channels*"),
    ("a transposed convolution is a row too large", "layers/conv2d.cpp", "return (in - 1) * o.stride - 2", "return in * o.stride - 2",
     "test_golden", "golden: transposed convolution"),
    ("a transposed convolution ignores its bias", "layers/conv2d.cpp",
     "conv2d_backward_input(input, weight.value, output, o));\n  if (bias != nullptr) add_channel_bias(output, bias->value);",
     "conv2d_backward_input(input, weight.value, output, o));", "test_golden", "golden: transposed convolution"),

    # Frozen parameters
    ("a frozen weight of a linear layer gets a gradient", "layers/linear.cpp", "    if (!weight.frozen)\n", "    if (weight.grad.size() >= 0)\n",
     "test_layers", "frozen parameters: gradients*"),
    ("the output of a frozen layer needs no gradient", "layers/linear.cpp", "x.needs_grad() || any_trained({&weight, bias})",
     "any_trained({&weight, bias})", "test_layers", "frozen parameters: gradients*"),
    ("frozen layers are recorded", "core/tape.cpp", "  if (!output.needs_grad()) return;\n", "",
     "test_layers", "frozen parameters: a residual*"),
    ("frozen parameters are reported as final", "core/tape.cpp", "std::erase_if(uses, [](const Parameter* p) { return p->frozen; });",
     "", "test_layers", "frozen parameters: *"),
    ("a frozen convolution stops the gradient of its bias", "layers/conv2d.cpp",
     "    if (!weight.frozen) {\n      const float beta = weight.next_beta();\n      HEDDLE_DISPATCH(device, conv2d_backward_weight(input, dy, weight.grad, beta, o));\n    }\n    pass.contributed(weight);\n",
     "    if (weight.frozen) return;\n    HEDDLE_DISPATCH(device, conv2d_backward_weight(input, dy, weight.grad, weight.next_beta(), o));\n    pass.contributed(weight);\n",
     "test_layers", "frozen parameters: gradients*"),
    ("a frozen batch norm normalises by the batch", "layers/batchnorm.cpp", "  const bool training = tape.training() && !norm.fixed();",
     "  const bool training = tape.training();", "test_layers", "frozen parameters: *"),
    ("a value's sign is its neighbour's", "layers/batchnorm_cuda.cu", "(signs >> i & 1) != 0", "(signs >> (i ^ 1) & 1) != 0",
     "test_layers", "CUDA kernels: batch norm as on the CPU*"),
    ("values loaded one by one take the first sign of their byte", "layers/batchnorm_cuda.cu", ">> place % a.per_byte;",
     ">> place % 1;", "test_layers", "CUDA kernels: batch norm as on the CPU*"),
    ("a position in a window ignores its row", "layers/pooling_cuda.cu", "(h - p * stride) * kernel_w + w - q * stride",
     "0 * kernel_w + w - q * stride", "test_layers", "CUDA kernels: pooling*"),
    ("a crop is resized by the whole image's filter", "data/resample.cpp", "make_filter(box.width, window.resized_width",
     "make_filter(image.width, window.resized_width", "test_data", "resample: part of an image*"),
    ("resized bytes of a batch are not mirrored", "data/augment.cpp", "if (augmentation.flip) out.flip",
     "if (augmentation.flip && augmentation.crop == Crop::pad) out.flip", "test_data", "augment: half of*"),
    ("running statistics move once for each strip of channels", "layers/batchnorm_cuda.cu", "    if (blockIdx.x == 0) move_running(running, cut.channels);",
     "    move_running(running, cut.channels);", "test_layers", "CUDA kernels: running*"),
    ("batch norm's last part counts a whole row", "layers/batchnorm_cuda.cu", "(rest < 0 ? 0 : rest < down() ? rest : down())",
     "(rest < 0 ? 0 : down())", "test_layers", "CUDA kernels: batch norm*"),
    ("squares of pixels: rows and columns exchanged in weights", "layers/stem_cuda.cu", "(k % 2 * 2 + l % 2) * kSlots + c",
     "(l % 2 * 2 + k % 2) * kSlots + c", "test_layers", "CUDA kernels: a first convolution*"),
    ("joined loops: a block looks up the loop before", "core/shared_kernel.h", "    (all.parts[middle].first <= blockIdx.x ? low : high) = middle;",
     "    (all.parts[middle].first < blockIdx.x ? low : high) = middle;", "test_compress", "CUDA codecs: joined*"),
    ("joined loops: those that nobody launched are started", "core/joined_launches.cpp", "  finish_all(false);", "  finish_all(true);",
     "test_compress", "CUDA codecs: joined*"),
    ("the gradient through a frozen batch norm is not scaled", "layers/batchnorm.cpp", "      x.add_grad(dx);\n",
     "      x.add_grad(dz.clone());\n", "test_layers", "frozen parameters: gradients*"),
    ("a frozen batch norm forgets the shortcut", "layers/batchnorm.cpp", "    if (skip.needs_grad()) skip.add_grad(std::move(dz));",
     "", "test_layers", "frozen parameters: gradients*"),
    ("half a batch norm frozen: the other half is, too", "layers/batchnorm.h", "return weight->frozen && bias->frozen;", "return weight->frozen || bias->frozen;",
     "test_layers", "frozen parameters: gradients*"),
    ("a frozen bias of an LSTM is the other's end", "layers/recurrent.cpp", "    if (bias->frozen) continue;", "    if (bias->frozen) return;",
     "test_layers", "frozen parameters: gradients*"),
    ("initial values depend on what is frozen", "core/parameters.cpp", "  const size_t index = parameters_.size() + frozen_.size();",
     "  const size_t index = parameters_.size();", "test_layers", "frozen parameters: initial*"),
    ("frozen values differ between learners", "optim/replica_check.cpp", "  comm.broadcast(store.frozen_values(), 0);\n", "",
     "test_optim", "learners: frozen*"),
    ("statistics of frozen batch norms differ between learners", "optim/replica_check.cpp",
     "    if (b.value.dtype() == DType::f32) comm.broadcast(b.value, 0);", "    (void)b;", "test_optim", "learners: frozen*"),
    ("frozen replicas may differ", "optim/replica_check.cpp", "  for (const auto* parameters : {&store.parameters(), &store.frozen()})",
     "  for (const auto* parameters : {&store.parameters()})", "test_optim", "learners: frozen*"),
    ("a trained parameter without a gradient is not noticed", "core/tape.cpp", "  check(output.needs_grad() || uses.empty(),", "  check(training(),",
     "test_layers", "frozen parameters: a layer*"),
    ("other frozen layers keep a compressor's settings", "apps/session/training_state.cpp", '        state.at("identity").value("freeze", "") == parts.o.freeze;',
     "        true;", "test_program_finetune", ""),
    ("config.toml evaluates a new head", "apps/cli/resnet_options.cpp", "  o.new_head = o.new_head && o.training;", "  (void)o.new_head;",
     "test_program_finetune", ""),
    ("frozen layers see other images", "apps/train_resnet.cpp", "  if (continues_weights(o))\n", "  if (continues_weights(o) && o.batch_size < 0)\n",
     "test_program_finetune", ""),
    ("the first trained convolution is dense", "compress/layer_table.cpp", "for (const auto* parameters : {&store.parameters(), &store.frozen()})",
     "for (const auto* parameters : {&store.parameters()})", "test_compress", "which layers are dense:*"),
    ("statistics of frozen batch norms are averaged with others", "core/parameters.cpp",
     "(frozen ? frozen_buffers_ : buffers_).emplace_back", "(frozen ? buffers_ : buffers_).emplace_back",
     "test_layers", "frozen parameters: a residual*"),
    ("--new-head keeps the file's last layer", "apps/session/resnet_setup.cpp", "  if (o.new_head) {", "  if (o.new_head && store.count() < 0) {",
     "test_program_finetune", ""),
    ("a run resumes with other frozen layers", "apps/session/session.cpp", '  if (!o.freeze.empty()) spec.identity["freeze"] = o.freeze;\n', "  (void)o;\n",
     "test_program_finetune", ""),
    ("another --freeze cannot resume at all", "apps/session/training_state.cpp", "fill_from(mine, buffers_of(parts), kBuffer, anyway);",
     "fill_from(mine, buffers_of(parts), kBuffer);", "test_program_finetune", ""),
    # The exchange in two levels
    ("what is not finite stays within its host", "optim/host_levels.cpp", "flag.data<int32_t>()[0] = finite ? 1 : 0;",
     "flag.data<int32_t>()[0] = finite ? 1 : 1;", "test_optim", "hosts: what is not finite*"),
    ("a host returns its part as one learner would", "optim/data_parallel.cpp", "reducer_->return_unapplied(gradients_of(bucket), sources());",
     "reducer_->return_unapplied(gradients_of(bucket), comm_.size());", "test_optim", "hosts: what is not finite*"),
    ("each host's first rank sends its own gradient only", "optim/data_parallel.cpp",
     "  if (levels_ != nullptr) levels_->sum_within(gradients, ledger_);\n", "", "test_optim", "hosts: as many ranks*"),
    ("the others of a host wait no longer than for a message", "comm/group.cpp", "        if (!patient_) throw;\n", "        throw;\n",
     "test_optim", "hosts: an exchange*"),
    ("a group's bytes are not the whole's", "comm/communicator.cpp",
     "    if (other_ != nullptr) add(other_->traffic_[{collective, tag_}], *counting_, before);\n", "    (void)before;\n",
     "test_comm", "groups: every*"),
    ("ranks of a host have links of their own", "comm/net_model.cpp", "up_[to_size(from_host)]", "up_[to_size(from)]",
     "test_comm", "network model: hosts*"),
    ("residuals of hosts count as those of learners", "apps/session/training_state.cpp", "                        learners_each(learners, exchange.hosts);\n",
     "                        std::max(1.0, 0 * learners_each(learners, exchange.hosts));\n", "test_apps", "training state: hosts may*"),
    ("every rank of a host has saved residuals", "apps/session/training_state.cpp",
     "  std::vector<int> saved = first_ranks(hosts);\n", "  std::vector<int> saved = hosts;\n", "test_apps", "training state: hosts may*"),
    ("sizes of images are little-endian", "data/mnist.cpp", "header[4 + 4 * d + i]", "header[4 + 4 * d + 3 - i]", "test_data", "mnist: grey*"),
    # Files that are not ours, or not what they seem
    ("any folder counts as a run's", "apps/log/run_folder.cpp", "if (!fs::exists(folder) || fs::is_empty(folder)) return;", "return;",
     "test_apps", "run folder: only a run's*"),
    ("whatever looks temporary is removed", "apps/log/run_folder.cpp", "return std::regex_match(name, ours);",
     "return std::regex_search(name, ours);", "test_apps", "run folder: only files*"),
    ("links are followed", "apps/log/append_file.cpp", "O_CREAT | O_NOFOLLOW |", "O_CREAT |", "test_apps",
     "run folder: only files*"),
    ("an unreadable file counts as missing", "core/files.cpp",
     "check(errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENXIO, why);",
     "check(errno == ENOMEM, why);", "test_apps", "checkpoint: an unreadable*"),
    ("rejected updates are saved", "apps/session/training_state.cpp", "&& parts.log.skipped_steps() == 0 &&", "&&", "test_apps",
     "training state: nothing*"),
    ("any depth of brackets is accepted", "apps/cli/json.cpp", "depth <= kMaxJsonDepth", "depth <= 1000 * kMaxJsonDepth", "test_apps",
     "json: the depth is limited;*"),
    ("a picture's memory is not initialised", "data/stb_image.cpp", "std::calloc(1, size)", "std::malloc(size)", "test_data",
     "images: a broken file decodes*"),
    ("a PNG inflates without limit", "data/stb_image.cpp", "size_t{size} > heddle::stb_growth_limit", "size_t{size} > size_t{1} << 40",
     "test_data", "images: a PNG file does not inflate*"),
    ("a resized picture is truncated, not rounded", "data/resample.cpp", "kHalf = 1 << (kBits - 1)", "kHalf = 0", "test_data",
     "augment: center gives torchvision's*"),
    ("half a pixel is rounded up", "data/augment.cpp", "std::lrint(", "std::lround(", "test_data",
     "augment: center gives torchvision's*"),
    ("computing threads handle signals", "apps/checkpoint/signals.cpp", "pthread_sigmask(SIG_BLOCK, &signals, nullptr);",
     "pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);", "test_signals", ""),
    # Graphs: sparse products, sampling, features that travel
    ("a transpose forgets the weights", "core/sparse_matrix.cpp", "to_weights[at] = weights[i];", "to_weights[at] = 1 + 0 * weights[i];",
     "test_layers", "sparse matrix: transpose*"),
    ("bits are read in reverse", "core/sparse_matrix.cpp", "first + std::countr_zero(bits)", "first + 7 - std::countr_zero(bits)",
     "test_layers", "sparse matrix: transpose*"),
    ("a sparse layer forgets earlier gradients", "layers/sparse.cpp", "add_transposed(gradient, weight.next_beta(), weight.grad)",
     "add_transposed(gradient, 0 * weight.next_beta(), weight.grad)", "test_layers", "sparse linear*"),
    ("columns are not checked", "core/sparse_matrix.cpp", '  check_indices(columns_, cols, "sparse matrix: columns");\n', "",
     "test_layers", "sparse matrix: transpose*"),
    ("a sparse product ignores its weights", "layers/sparse.cu", "sums[c] += weight * to_float(from[c])", "sums[c] += to_float(from[c]) + 0 * weight", "test_layers", "sparse product: a dense*"),
    ("a sparse product rounds each addition", "layers/sparse.cu", "sums[c] += weight * to_float(from[c])", "sums[c] = to_float(T(sums[c])) + weight * to_float(from[c])", "test_layers", "sparse product: bf16*"),
    ("a sparse product has no gradient", "layers/sparse.cpp", "HEDDLE_DISPATCH(device, sparse_matmul(*a.transpose(), dy, dx));", "dx.fill_zero();",
     "test_layers", "sparse product: a dense*"),
    ("other rows get a gradient, too", "layers/sparse.cpp", "    dx.fill_zero();\n", "", "test_layers", "first rows*"),
    ("one of two inputs gets no gradient", "layers/activation.cpp", "    a.add_grad(dy);\n", "", "test_layers", "first rows*"),
    ("no ReLU between the layers", "layers/graph_net.cpp", "  y = relu(tape, y);\n", "", "test_layers", "graph network*"),
    ("a node forgets itself", "layers/graph_net.cpp", "self != nullptr ? add(tape, mixed, self) : mixed", "self == nullptr ? add(tape, mixed, self) : mixed", "test_layers", "graph network*"),
    ("weights ignore the preference", "data/neighbour_sampler.cpp", "local && !plain ? c / node.s : c", "local && plain ? c / node.s : c", "test_data", "sampler: unbiased*"),
    ("draws ignore the preference", "data/neighbour_sampler.cpp", "std::isinf(node.s) ? local : all_[to_size(edge)] + (node.s - 1) * local",
     "all_[to_size(edge)] + 0 * local", "test_data", "sampler: the share*"),
    ("a mean of k draws is divided by one more", "data/neighbour_sampler.cpp", "node.scale / to_double(count)", "node.scale / to_double(count + 1)",
     "test_data", "sampler: unbiased*"),
    ("more variance than the budget", "data/neighbour_sampler.cpp", "1 + c / 2 + std::sqrt", "1 + c + std::sqrt", "test_data", "sampler: the share*"),
    ("a draw depends on the batch", "data/neighbour_sampler.cpp", "to_size(v) * to_size(k)", "entries.size()", "test_data", "sampler: blocks*"),
    ("every step draws the same", "data/neighbour_sampler.cpp", "to_size(step) * kMaxLayers + hop", "to_size(0 * step) + hop", "test_data", "sampler: blocks*"),
    ("remote draws are the local ones", "data/neighbour_sampler.cpp", "for (const int32_t pick : picks_) out.remote_draws += 1 - here_",
     "for (const int32_t pick : picks_) out.remote_draws += here_", "test_data", "sampler: the share*"),
    ("local neighbours alone have less weight", "data/neighbour_sampler.cpp", "node.scale * node.all / node.local", "node.scale",
     "test_data", "sampler: weights that sum*"),
    ("normalised weights do not sum to one", "data/neighbour_sampler.cpp", "node.all * node.scale / sum", "node.scale / sum",
     "test_data", "sampler: weights that sum*"),
    ("a node counts for too little in its own sum", "data/neighbour_sampler.cpp", "1 / to_float(graph_.degree(rows[r]) + 1)",
     "1 / to_float(graph_.degree(rows[r]) + 2)", "test_data", "sampler: all neighbours*"),
    ("a sparse layer's bias forgets earlier gradients", "layers/sparse.cpp", "sum_rows(dy, bias.grad, bias.next_beta())",
     "sum_rows(dy, bias.grad, 0 * bias.next_beta())", "test_layers", "sparse linear*"),
    ("edges between blocks are those within", "data/graph.cpp", "edge_rng.uniform(next++) < o.between", "edge_rng.uniform(next++) >= o.between",
     "test_data", "graph: the block model*"),
    ("bits of features are kept in reverse", "data/graph.cpp", "std::byte{1} << f.index % 8", "std::byte{1} << (7 - f.index % 8)",
     "test_data", "graph: a folder*"),
    ("repeated edges stay", "data/graph.cpp", "  both.erase(again, both.end());\n", "", "test_data", "graph: values*"),
    ("loops stay", "data/graph.cpp", "if (from == to) continue;", "", "test_data", "graph: values*"),
    ("a node without a label is for training", "data/graph.cpp", "graph.labels[graph.splits.size()] >= 0", "true", "test_data", "graph: errors*"),
    ("a feature may be NaN", "data/graph.cpp", " && std::isfinite(f.value)", "", "test_data", "graph: errors*"),
    ("a feature may come twice", "data/graph.cpp", "lines.expect(twice == given.end(),", "lines.expect(true,", "test_data", "graph: errors*"),
    ("node numbers end one later", "data/lines.h", "value < bound", "value <= bound", "test_data", "graph: errors*"),
    ("parts grow without limit", "data/partition.cpp", "(1 - sizes[to_size(part)] / capacity)", "(capacity > 0 ? 1 : 0)", "test_data", "partition*"),
    ("a part may be empty", "data/partition.cpp", "std::ranges::find(owners, part) != owners.end()", "true", "test_data", "partition*"),
    ("rows of features lie one further", "comm/feature_store.cpp", "place_.push_back(sizes[to_size(owner)]++);",
     "place_.push_back(std::max(0, sizes[to_size(owner)]++ - 1));", "test_comm", "collectives: one rank*"),
    ("evaluation counts one learner's nodes", "apps/models/evaluate_graph.cpp", "sums[i] += of_rank[i];", "sums[i] = of_rank[i];",
     "test_program_gcn", ""),
    ("what was fetched is forgotten by a checkpoint", "apps/train_gcn.cpp", '    own.rank = {{"sampling", totals_.words()}};\n', "",
     "test_program_gcn", ""),
    ("a graph without validation is trained", "apps/session/gcn_setup.cpp", "if (o.training || o.evaluate) {", "if (o.evaluate) {",
     "test_program_gcn", ""),
    ("a class's name may be no text", "data/graph.cpp", "    lines.expect_text();\n    words", "    words", "test_data", "graph: errors*"),
    ("a split that cannot be read is replaced", "data/graph.cpp", "!= fs::file_type::not_found", "== fs::file_type::regular",
     "test_data", "graph: errors*"),
    ("with 0 draws, other ranks' neighbours are left out", "data/neighbour_sampler.cpp", "if (k == 0) node.s = 1;", "", "test_data",
     "sampler: all neighbours*"),
    ("other learners' nodes are predicted from nothing", "apps/models/evaluate_graph.cpp", "[&] { comm.all_reduce(out); }", "[] {}",
     "test_program_gcn", ""),
    ("ranks may have different graphs", "apps/session/gcn_setup.cpp", "if (all[rank] != all[0])", "if (false)", "test_program_gcn", ""),
    ("a batch's features are those of the one before", "apps/train_gcn.cpp", "        prepare(session_.batch(), micro + 1);\n",
     "        prepare(session_.batch(), micro);\n", "test_program_gcn", ""),
]


def found(path, text):
    return (ROOT / path).read_text().count(text)


def targets_of(program, case):
    """Returns what to build for a test: its program, or those that CMakeLists.txt gives ctest, if any."""
    if case:
        return [program]
    made = re.search(rf"add_test\(NAME {program} COMMAND ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())
    return re.findall(r"TARGET_FILE:(\w+)", made[1] if made else "")


def cases_of(program):
    """Returns the names of the tests in the sources that CMakeLists.txt lists for a program."""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    made = re.search(rf"heddle_test\({program} (.*?)\)", cmake, re.S)
    listed = re.sub(r"\$\{(\w+)\}", lambda name: " ".join(re.findall(rf"set\({name[1]} ([^)]*)\)", cmake)), made[1] if made else "")
    sources = re.findall(r"tests/\w+\.cpp", listed)
    return ["".join(re.findall(r'"([^"]*)"', name)) for source in sources
            for name in re.findall(r'TEST_CASE\(\s*((?:"[^"]*"\s*)+)\)', (ROOT / source).read_text())]


def check():
    """Returns lines that are gone or occur more than once, and tests that no longer exist."""
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
    """Copies all files that git tracks, as they are here, and builds the programs of the chosen tests."""
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
    """Returns "passes", or how the test fails."""
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
    """Returns the same for a ctest test."""
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
        print("\n".join(wrong) or f"{len(BREAKS)} lines to break exist, with their tests")
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
            outcome = test(program, case) if made.returncode == 0 else "does not build: " + made.stdout[-600:]
        finally:
            file.write_text(whole)
        red = outcome.startswith(("fails", "ends", "is still"))
        unnoticed += not red
        print(f"{'red ' if red else 'GREEN'} {what} | {path} | {case or program} {outcome} | {time.monotonic() - begin:.0f} s",
              flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} breaks were noticed")
    if build(chosen).returncode:
        sys.exit("the programs do not build without a break")
    worthless = [(case or program, outcome) for program, case in sorted({entry[4:] for entry in chosen})
                 if (outcome := test(program, case)) != "passes"]
    for case, outcome in worthless:
        print(f"even without a break: {case} {outcome}")
    return 1 if unnoticed or worthless else 0


if __name__ == "__main__":
    sys.exit(main())
