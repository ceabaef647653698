#include "apps/cli/common_options.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string_view>

#include "comm/launch.h"
#include "compress/families.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/parse_number.h"

namespace heddle {
namespace {

constexpr int64_t kMaxBatch = 1 << 20;
const std::vector<std::string> kOptimizers = {"sgd", "adam", "adamw"};
const std::vector<std::string> kSchedules = {"constant", "step",     "multistep",
                                             "cosine",   "onecycle", "plateau"};

std::vector<std::string> compressor_names() {
  std::vector<std::string> out = {"auto"};
  for (const Family& family : families())
    if (family.name != "topagg") out.push_back(family.name);  // which few programs know
  return out;
}

// Returns those that keep nothing from step to step.
std::vector<Family> start_families() {
  return {find_family("none"), find_family("bf16"), find_family("fp16"), find_family("qsgd")};
}

void add_machine_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Data and machine");
  flags.add("data", &o.data, "PATH", "data set", not_in_environment);
  flags.add("device", &o.device, "NAME", "device that computes: auto, cpu, cuda or cuda:N");
  flags.add("precision", &o.precision, "P", "type of activations and products; weights stay fp32",
            one_of({"fp32", "bf16"}));
  flags.add("threads", &o.threads, "N", "compute threads per learner", at_least(1), at_most(1024),
            otherwise("all cores, divided by the learners of this machine"));
  flags.add("workers", &o.workers, "N",
            "threads that prepare batches of images, which are the same for any N; 0: prepare "
            "them between the steps; text needs no threads",
            at_most(256));
  flags.add("seed", &o.seed, "N", "seed of all random streams");
  flags.add(
      "deterministic", &o.deterministic, "",
      "bit-identical results in all runs with equal --threads; runs on a CPU have them anyway, "
      "except with --compress auto and --lgreco objective=time");
  flags.add("tf32", &o.tf32, "",
            "on a GPU: round the factors of fp32 products to 10 mantissa bits, for speed");
  flags.add("tune", &o.tune, "",
            "on a GPU: time a convolution's or LSTM's algorithms at first use, keep the fastest; "
            "not with --deterministic");
  flags.add("graph", &o.graph, "WHEN",
            "on a GPU: record forward and backward once and replay them as one CUDA graph "
            "(bit-identical); auto: with one learner, without --compress and --accumulate, "
            "unless a step is traced or explained",
            one_of({"auto", "on", "off"}));
}

void add_learner_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Learners");
  flags.add("learners", &o.learners, "N",
            "data-parallel ranks, as threads of this process; under mpirun or srun each process "
            "is one rank instead",
            at_least(1), at_most(4096));
  flags.add("comm", &o.comm, "NAME",
            "transport between learners; auto: mpi under a launcher, else threads; nccl: one GPU "
            "per learner",
            one_of({"auto", "threads", "mpi", "nccl"}));
  flags.add("net", &o.net, "MODEL",
            "simulate a network between threads, such as 100mbit,20ms,jitter=2ms: bandwidth of "
            "each rank's link and one-way latency; "
            "hosts=2;host=10gbit,20us;between=100mbit,1ms: ranks that share hosts and their links",
            otherwise("none"));
  flags.add("comm-timeout", &o.comm_timeout, "S",
            "seconds without an answer after which a rank gives up", above(0), at_most(1e9));
  flags.add("bucket-mb", &o.bucket_mb, "X", "MiB of gradients per exchange", above(0), at_most(1e5),
            otherwise("4, with a GPU 25"));
  flags.add("overlap", &o.overlap, "WHEN",
            "on: exchange gradients while backward runs; off: after it (bit-identical)",
            one_of({"on", "off"}));
  flags.add("hosts", &o.hosts, "HOSTS",
            "exchange in two levels: dense sums within each host, and between hosts one exchange "
            "for each, as --compress says; auto: hosts as the launcher or --net knows them; N: "
            "that many hosts, each of consecutive learners",
            otherwise("none: every learner exchanges"));
  flags.add("compress", &o.compress, "SPEC",
            "gradient compression: none, bf16, fp16, topk:density=0.01,indices=delta, "
            "randomk:density=0.01, scalecom:rate=100,beta=1,select=chunk,ramp=0,values=fp32, "
            "adacomp:bin=auto,factor=2,scale=layer, lgc:density=0.001,train=300, "
            "qsgd:bits=4,bucket=512,rounding=stochastic, powersgd:rank=4; auto or auto:SPEC: "
            "each bucket dense or compressed, whichever is measured to be faster",
            such_as(compressor_names()));
  flags.add(
      "compress-start", &o.compress_start, "STEPS",
      "number of initial steps whose gradients are exchanged as --start-compress says",
      at_least(-1),
      otherwise(
          "one epoch, at most 5 % of the run, at least 100 steps; a resumed run keeps its own"));
  flags.add("start-compress", &o.start_compress, "SPEC",
            "how the steps before --compress-start are exchanged: dense (none), or by a code that "
            "keeps nothing back: bf16, fp16, qsgd:bits=4",
            such_as({"none", "bf16", "fp16", "qsgd"}));
  flags.add("compressed-momentum", &o.compressed_momentum, "RULE",
            "momentum of sgd for gradients delayed by a residual; residual: none, they move "
            "the weights at once, scaled by 1 / (1 - momentum); full: as for dense gradients",
            one_of({"", "residual", "full"}),
            otherwise("residual where the compressor keeps residuals, else full, as with "
                      "local-steps"));
  flags.add("dense-layers", &o.dense_layers, "REGEX",
            "names of parameters that are never compressed");
  flags.add("min-compress", &o.min_compress, "N",
            "parameters with fewer elements are never compressed");
  flags.add("layerwise", &o.layerwise, "HOW",
            "compression by layer; uniform: the setting of --compress for every layer; lgreco: a "
            "planned setting for each, with fewer bytes and no larger error",
            one_of({"uniform", "lgreco"}));
  flags.add("lgreco", &o.lgreco, "KEYS",
            "settings of --layerwise lgreco: alpha, allowed error relative to the uniform "
            "setting; every, steps between plans; window, steps measured for a plan; errors, of "
            "gradients alone or compensated, with residuals; objective, bytes or measured time; "
            "budget=accordion: allow more error in layers whose gradients are steady");
  flags.add("plan", &o.plan, "FILE", "use the per-layer settings of a run's plan-<step>.json");
  flags.add("shadow", &o.shadow, "N",
            "every N steps also sum the gradients dense, and report the error of compression for "
            "each layer; 0: never");
  flags.add(
      "local-steps", &o.local_steps, "N",
      "each learner trains on its own for N steps; then the mean of their changes, compressed "
      "by --compress, is applied for all; 1: gradients are exchanged in each step",
      at_least(1), at_most(1e9));
  flags.add("outer-lr", &o.outer_lr, "X",
            "with --local-steps, the factor for the mean of the changes; 1 averages the weights",
            above(0));
  flags.add("outer-momentum", &o.outer_momentum, "X",
            "with --local-steps, Nesterov momentum of the mean of the changes", at_least(0),
            below(1));
  flags.add("outer-delay", &o.outer_delay, "STEPS",
            "with --local-steps, continue for so many steps while the changes are exchanged",
            at_least(0), at_most(1e9));
  flags.add(
      "peers", &o.peers, "GRAPH",
      "each learner has weights of its own and exchanges with its neighbours only, in a ring, "
      "complete, star, exp, torus:RxC, er:p=0.4,seed=1, or the graph of a file with lines "
      "'rank: neighbours'",
      otherwise("none: gradients are summed over all learners"),
      such_as({"ring", "complete", "star", "exp"}));
  flags.add("innovation", &o.innovation, "CODE",
            "with --peers, how what is new in the weights is coded: none, "
            "qsgd:bits=4,bucket=1024,rounding=nearest, topk:density=0.1, "
            "dyna:bits=1,bucket=64,scale=adaptive",
            such_as({"none", "qsgd", "topk", "dyna"}));
  flags.add("peer-rule", &o.peer_rule, "NAME",
            "with --peers, dual: how a learner's own data pull its weights away is learned and "
            "cancelled; gossip: weights are averaged only, for comparison",
            one_of({"dual", "gossip"}));
  flags.add("peer-mixing", &o.peer_mixing, "X",
            "with --peers, how far the weights move towards the neighbours' in a step", at_most(1),
            otherwise("by --innovation"));
  flags.add("resync", &o.resync, "N",
            "with --peers, steps after which neighbours exchange uncoded weights, against rounding "
            "errors; 0: never",
            at_most(1e12));
  flags.add("ledger", &o.ledger, "",
            "print a table of the bytes sent by layer and kind at the end; metrics.jsonl has it "
            "in any case",
            not_saved);
}

void add_training_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Training");
  flags.add("epochs", &o.epochs, "N", "passes over the training data", at_least(1), at_most(1e6),
            otherwise("by recipe, or what --steps needs"));
  flags.add("steps", &o.steps, "N", "stop after N updates", at_least(1), at_most(1e12),
            otherwise("no limit"));
  flags.add("batch-size", &o.batch_size, "N", "samples per step and learner", at_least(1),
            at_most(kMaxBatch), otherwise("by recipe"));
  flags.add("global-batch-size", &o.global_batch_size, "N",
            "samples per update over all learners, instead of --batch-size", at_least(1),
            at_most(1e12), otherwise("learners * --batch-size * --accumulate"));
  flags.add("accumulate", &o.accumulate, "N", "batches whose mean gradient makes one update",
            at_least(1), at_most(1 << 20));
  flags.add("optimizer", &o.optimizer, "NAME", "update rule", one_of(kOptimizers));
  flags.add("lr", &o.lr, "X", "learning rate; the peak of one-cycle", at_most(1e9),
            otherwise("by recipe"));
  flags.add("momentum", &o.momentum, "X", "momentum of sgd", below(1));
  flags.add("nesterov", &o.nesterov, "", "Nesterov momentum for sgd; --no-nesterov: heavy ball");
  flags.add("weight-decay", &o.weight_decay, "X", "L2 penalty; decoupled for adamw",
            otherwise("by recipe"));
  flags.add("decay-norm-bias", &o.decay_norm_bias, "",
            "apply weight decay to batch norm and biases too");
  flags.add("clip-grad-norm", &o.clip_grad_norm, "X", "scale the gradient down to this norm",
            above(0), otherwise("none"));
  flags.add("clip-mode", &o.clip_mode, "MODE",
            "what --clip-grad-norm clips; global or aggregate: the mean over the learners; "
            "local: each learner's gradient before compression, to X * sqrt(learners)",
            one_of({"", "global", "local", "aggregate"}),
            otherwise("local where compression keeps residuals, else global"));
  flags.add("lr-scheduler", &o.lr_scheduler, "NAME", "learning rate schedule", one_of(kSchedules));
  flags.add("lr-warmup-epochs", &o.lr_warmup_epochs, "X",
            "epochs of linear warm-up before the schedule", at_most(1e6));
  flags.add("lr-milestones", &o.lr_milestones, "N...",
            "epochs at which multistep multiplies the learning rate by --lr-gamma", at_least(1),
            at_most(1e6), otherwise("1/2 and 3/4 of the run"));
  flags.add("lr-step-size", &o.lr_step_size, "N", "epochs between two drops of the step schedule",
            at_least(1), at_most(1e6), otherwise("1/3 of the run"));
  flags.add("lr-gamma", &o.lr_gamma, "X", "factor of the step, multistep and plateau schedules",
            above(0), at_most(1));
  flags.add(
      "on-nonfinite", &o.on_nonfinite, "WHAT",
      "on a NaN or Inf in a gradient, skip the update of its bucket (of its parameter alone where "
      "gradients are summed densely, of all with --clip-grad-norm) or of the whole step",
      one_of({"bucket", "step"}));
  flags.add("max-skipped", &o.max_skipped, "N",
            "consecutive steps with NaN or Inf before the run counts as diverged", at_most(1e9));
  flags.add("max-loss", &o.max_loss, "X", "loss of a step above which the run counts as diverged",
            above(0), otherwise("none"));
}

void add_output_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Output");
  flags.add("save-every", &o.save_every, "N",
            "checkpoint every N steps, or Nepochs; 0: only after a signal");
  flags.add("keep", &o.keep, "N", "newest checkpoints to keep; the best one is kept too",
            at_least(1));
  flags.add("resume", &o.resume, "PATH",
            "resume from a checkpoint, or from the newest one of a run folder; auto: from "
            "--output-dir, or start from the beginning if it has none",
            not_saved);
  flags.add("resume-anyway", &o.resume_anyway, "",
            "resume even if network, data or compression differ, with all tensors that fit",
            not_saved);
  flags.add("output-dir", &o.output_dir, "DIR", "run folder; must be new or empty",
            otherwise("runs/<name>-<time>"), not_saved);
  flags.add("name", &o.name, "TEXT", "name of the run");
  flags.add("print-freq", &o.print_freq, "N",
            "steps between progress lines when stderr is not a terminal", at_least(1),
            at_most(1e12));
  flags.add("json", &o.json, "", "print one JSON object as the last line of stdout");
  flags.add("quiet", &o.quiet, "", "print nothing on stderr but errors");
  flags.add("report", &o.report, "",
            "write report.html to the run folder at the end, and what it shows of validations");
  flags.add("tensorboard", &o.tensorboard, "",
            "write events.out.tfevents.* for TensorBoard to the run folder");
  flags.add("trace", &o.trace, "FILE", "write a Chrome/Perfetto trace", not_saved);
  flags.add("trace-steps", &o.trace_steps, "A:B", "first and last step to trace, counted from 1",
            otherwise("2:6"), not_saved);
  flags.add("dump-gradients", &o.dump_gradients, "N",
            "write the first rank's gradients of step N, before clipping and exchange, to "
            "gradients-<step>.safetensors in the run folder; bench compress reads it",
            at_least(1), at_most(1e12), otherwise("none"), not_saved);
  flags.add("explain-step", &o.explain_step, "N",
            "narrate step N of the first rank from gradient to update, each event with its "
            "numbers and its line in the sources; on stderr and in explain-<step>.txt of the run "
            "folder",
            at_least(1), at_most(1e12), otherwise("none"), not_saved);
}

void add_action_flags(FlagTable& flags, CommonOptions& o) {
  flags.group(kQuestions);
  flags.add("init", &o.init, "FILE", "start from these weights (safetensors)");
  flags.add(
      "freeze", &o.freeze, "REGEX",
      "names of parameters that are not trained; a batch norm whose parameters are all frozen "
      "keeps its running statistics and normalises by them");
  flags.add("evaluate", &o.evaluate, "", "measure the loss once and do not train", not_saved);
  flags.add("dry-run", &o.dry_run, "", "print the plan: parameters, memory, steps, bytes",
            not_saved);
  flags.add("headroom", &o.headroom, "S",
            "instead of training, measure for about S seconds what the exchange of gradients "
            "costs and what compression can save",
            at_most(1e6), otherwise("0: train"), not_saved);
  flags.add("headroom-net", &o.headroom_net, "MODEL",
            "one more network for the model of --headroom, between hosts if there are --hosts, "
            "written as for --net: 25gbit,5us",
            otherwise("none"), not_saved);
  flags.add("config", &o.config, "FILE",
            "read flags from a TOML file, one per line, without the dashes", not_saved);
  flags.add("dump-config", &o.dump_config, "", "print the resolved configuration as TOML",
            not_saved);
  flags.add("list", &o.list, "",
            "print the known names (networks, optimizers, schedules) and data formats", not_saved);
  flags.add("version", &o.version, "", "print the version", not_saved);
  flags.add("help", &o.help, "", "print this text, as -h does", not_saved);
  flags.add("man", &o.man, "", "print this text as a manual page (troff)", not_saved);
  flags.add("completion", &o.completion, "SHELL",
            "print a script that lets this shell complete the flags", one_of({"", "bash", "zsh"}),
            not_saved, not_in_environment);
}

// Returns the number of hosts, -1 for auto and 0 for none.
int parse_hosts(const std::string& text) {
  if (text.empty()) return 0;
  if (text == "auto") return -1;
  const int hosts = parse_number<int>(text).value_or(0);
  check(hosts > 0, "--hosts ", text, ": expected auto or a number of hosts");
  return hosts;
}

}  // namespace

void add_common_flags(FlagTable& flags, CommonOptions& o) {
  add_machine_flags(flags, o);
  add_learner_flags(flags, o);
  add_training_flags(flags, o);
  add_output_flags(flags, o);
  add_action_flags(flags, o);
}

std::string find_data(const std::string& data, const std::string& embedded) {
  namespace fs = std::filesystem;
  const char* sets = std::getenv("HEDDLE_DATA");
  std::error_code error;
  if (sets == nullptr || data.empty() || data == embedded || fs::exists(data, error)) return data;
  const fs::path found = fs::path(sets) / data;  // an absolute path stays unchanged
  return fs::exists(found, error) ? found.string() : data;
}

void parse_texts(CommonOptions& o) {
  if (o.trace_steps.empty()) o.trace_steps = "2:6";
  const bool gpu = o.device.starts_with("cuda") || (o.device == "auto" && o.comm == "nccl");
  o.parsed.device = gpu && o.dump_config ? Device{DeviceType::cuda, 0} : parse_device(o.device);
  o.parsed.hosts = parse_hosts(o.hosts);
  if (!o.net.empty()) o.parsed.net = parse_net(o.net);
  if (o.parsed.net && o.parsed.net->hosts < 0) {
    check(o.parsed.hosts > 0, "--net ", o.net,
          ": expected the number of hosts: hosts=N in it, or --hosts N");
    o.parsed.net->hosts = o.parsed.hosts;
  }
  check(!o.parsed.net || o.parsed.net->hosts <= std::max<int64_t>(1, o.learners), "--net ", o.net,
        ": expected at most ", o.learners, " hosts, one for each learner");
  if (!o.headroom_net.empty())
    check(parse_net(o.headroom_net, "--headroom-net").hosts == 0, "--headroom-net ", o.headroom_net,
          ": expected one link");
  o.parsed.learners = plan_learners(o);
  o.parsed.compress = parse_compress_choice(o.compress);
  o.parsed.start_compress = parse_spec(o.start_compress, start_families(), "--start-compress");
  o.parsed.save_every = parse_save_every(o.save_every);
  o.parsed.trace_steps = parse_step_range(o.trace_steps);
}

void resolve_batch_size(CommonOptions& o, FlagTable& flags, int64_t by_rule) {
  const FlagSource each = flags.source("batch-size"), all = flags.source("global-batch-size");
  if (all == FlagSource::default_value || each > all) {
    o.global_batch_size = 0;
    return set_default(flags, "batch-size", o.batch_size, by_rule);
  }
  // A dumped configuration has both: with a different number of learners the global batch stays.
  check(each < all || each == FlagSource::config,
        "--batch-size and --global-batch-size: expected at most one of them");
  const int64_t batches = o.parsed.learners.size * o.accumulate;
  check(o.global_batch_size % batches == 0, "--global-batch-size: expected a multiple of ", batches,
        " (learners times --accumulate), found ", o.global_batch_size);
  o.batch_size = o.global_batch_size / batches;
  check(o.batch_size <= kMaxBatch, "--global-batch-size: expected at most ", kMaxBatch,
        " for each learner, found ", o.batch_size);
  flags.suggest("batch-size", std::to_string(o.batch_size), "--global-batch-size");  // no default
}

void resolve_common(CommonOptions& o, FlagTable& flags, const std::string& embedded) {
  check(o.resume.empty() || !o.evaluate, "--resume continues training; with --evaluate use --init");
  flags.check_needs(common_needs(o));
  if (!o.training) o.freeze.clear();
  // A file or the environment may have set it for others.
  if (o.parsed.learners.size == 1 || !o.peers.empty()) o.local_steps = 1;
  if (o.local_steps == 1) o.outer_delay = 0;
  try {
    (void)std::regex(o.freeze);
  } catch (const std::regex_error& error) {
    throw InputError(concat("--freeze ", o.freeze, ": ", error.what()));
  }
  set_default(flags, "threads", o.threads,
              std::max(1, omp_get_max_threads() / o.parsed.learners.on_machine));

  set_default(flags, "bucket-mb", o.bucket_mb, default_bucket_mb(o.parsed.device));

  // A run's configuration may be read again from another folder.
  for (std::string* path : {&o.data, &o.init, &o.plan}) {
    const bool is_path = !path->empty() && !(path == &o.data && *path == embedded);
    if (is_path) *path = std::filesystem::absolute(*path).lexically_normal().string();
  }
  if (o.peers.find_first_of("./") != std::string::npos && std::filesystem::exists(o.peers))
    o.peers = std::filesystem::absolute(o.peers).lexically_normal().string();

  check(o.name.find('/') == std::string::npos && o.name != "." && o.name != "..",
        "--name: expected a name without '/', found '", o.name, "'");
  check(o.optimizer != "sgd" || !o.nesterov || o.momentum > 0,
        "--nesterov needs a --momentum above 0");
}

std::string list_row(const char* title, const std::vector<std::string>& names) {
  std::string out = title;
  for (const std::string& name : names) out += " " + name;
  return out + '\n';
}

std::string list_training_choices() {
  return list_row("optimizers:", kOptimizers) + list_row("schedules:", kSchedules) +
         list_row("compressors:", compressor_names());
}

CompressChoice parse_compress_choice(const std::string& text) {
  const bool automatic = text == "auto" || text.starts_with("auto:");
  if (text == "auto") return {parse_compress("scalecom:rate=100"), true};
  return {parse_compress(automatic ? text.substr(5) : text), automatic};
}

SaveInterval parse_save_every(const std::string& text) {
  int64_t number = 1;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(error == std::errc() ? at : text.data(), end);
  const bool epochs = unit == "epoch" || unit == "epochs";
  check((unit.empty() && !text.empty()) || epochs,
        "--save-every: expected a number of steps, or 1epoch, found '", text, "'");
  check(number >= 0 && number <= int64_t{1} << 31,
        "--save-every: expected a number from 0 to 2^31, found '", text, "'");
  return {number, epochs};
}

StepRange parse_step_range(const std::string& text) {
  long long first = 0, last = 0;
  int used = 0;
  const bool ok = std::sscanf(text.c_str(), "%lld:%lld%n", &first, &last, &used) == 2 &&
                  to_size(used) == text.size() && first >= 1 && first <= last;
  check(ok, "--trace-steps: expected A:B with 1 <= A <= B, found '", text, "'");
  return {first, last};
}

}  // namespace heddle
