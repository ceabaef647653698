#include "apps/cli/common_options.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "apps/checkpoint/saver.h"
#include "apps/session/exchange.h"
#include "apps/session/learners.h"
#include "comm/net_model.h"
#include "core/error.h"
#include "core/parallel.h"

namespace heddle {

namespace {

constexpr int64_t kMaxBatch = 1 << 20;
const std::vector<std::string> kOptimizers = {"sgd", "adam", "adamw"};
const std::vector<std::string> kSchedules = {"constant", "step",     "multistep",
                                             "cosine",   "onecycle", "plateau"};

void add_run_flags(FlagTable& flags, CommonOptions& o, const FlagTexts& texts) {
  flags.group("Data and machine");
  flags.add("data", &o.data, {.value = "PATH", .help = texts.data, .environment = false});
  flags.add("device", &o.device, {.value = "NAME", .help = "auto, cpu, cuda or cuda:N"});
  flags.add("precision", &o.precision,
            {.value = "P",
             .help = "of activations and products; weights stay "
                     "fp32",
             .choices = {"fp32", "bf16"}});
  flags.add("threads", &o.threads,
            {.value = "N",
             .help = "of one learner that compute",
             .min = 1,
             .max = 1024,
             .default_text = "all cores, divided by the learners of this machine"});
  flags.add("workers", &o.workers, {.value = "N", .help = texts.workers, .max = 256});
  flags.add("seed", &o.seed, {.value = "N", .help = "of everything random"});
  flags.add("deterministic", &o.deterministic,
            {.help = "same bits in every run with equal --threads; "
                     "on the CPU that holds anyway, but for --compress auto and "
                     "--lgreco objective=time"});
  flags.add("tf32", &o.tf32,
            {.help = "on a GPU: fp32 products round their factors to 10 bits, for speed"});
  flags.add("tune", &o.tune,
            {.help = "on a GPU: time the algorithms of each convolution at its first use, and take "
                     "the fastest; not with --deterministic"});
  flags.add("graph", &o.graph,
            {.value = "WHEN",
             .help = "on a GPU: record forward and backward once and start them as one CUDA graph, "
                     "same bits; auto: with one learner, without --compress and --accumulate, and "
                     "where no step is traced or explained",
             .choices = {"auto", "on", "off"}});
}

void add_learner_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Learners");
  flags.add("learners", &o.learners,
            {.value = "N",
             .help = "ranks as threads of this process; under mpirun or srun every process is one",
             .min = 1,
             .max = 4096});
  flags.add(
      "comm", &o.comm,
      {.value = "NAME",
       .help = "how they talk; auto takes mpi under a launcher, else threads; nccl: a GPU each",
       .choices = {"auto", "threads", "mpi", "nccl"}});
  flags.add("net", &o.net,
            {.value = "MODEL",
             .help = "treat the threads' messages as a network would, 100mbit,20ms,jitter=2ms: "
                     "rate of every rank's link, delay one way",
             .default_text = "none"});
  flags.add("comm-timeout", &o.comm_timeout,
            {.value = "S",
             .help = "seconds without an answer after which a rank gives up",
             .max = 1e9,
             .min_open = true});
  flags.add("bucket-mb", &o.bucket_mb,
            {.value = "X",
             .help = "MiB of gradients that are exchanged at once",
             .max = 1e5,
             .min_open = true});
  flags.add("overlap", &o.overlap,
            {.value = "WHEN",
             .help = "on: exchange gradients while backward runs; off: behind it; same bits",
             .choices = {"on", "off"}});
  flags.add(
      "compress", &o.compress,
      {.value = "SPEC",
       .help = "how gradients travel: none, bf16, fp16, topk:density=0.01,indices=delta, "
               "randomk:density=0.01, scalecom:rate=100,beta=1,select=chunk,ramp=0, "
               "qsgd:bits=4,bucket=512,rounding=stochastic, powersgd:rank=4; auto or auto:SPEC: "
               "by bucket dense or compressed, whichever is faster as measured here"});
  flags.add("compress-start", &o.compress_start,
            {.value = "STEPS",
             .help = "steps that are exchanged densely before",
             .min = -1,
             .default_text = "one epoch, at most 5 % of the run, at least 100 steps"});
  flags.add("compressed-momentum", &o.compressed_momentum,
            {.value = "RULE",
             .help = "sgd's momentum for gradients that a residual held back: residual, none: they "
                     "move the weights at once, by 1 / (1 - momentum); full, as for dense ones",
             .choices = {"", "residual", "full"},
             .default_text = "residual for scalecom, topk and randomk, full for powersgd"});
  flags.add("dense-layers", &o.dense_layers,
            {.value = "REGEX", .help = "parameters that always travel dense, by name"});
  flags.add("min-compress", &o.min_compress,
            {.value = "N", .help = "elements below which a parameter travels dense", .min = 0});
  flags.add("layerwise", &o.layerwise,
            {.value = "HOW",
             .help = "uniform: every layer with the setting of --compress; lgreco: plans a setting "
                     "for each, with fewer bytes and no larger error",
             .choices = {"uniform", "lgreco"}});
  flags.add("lgreco", &o.lgreco,
            {.value = "KEYS",
             .help = "of its plans: error over that of the uniform setting, steps from plan to "
                     "plan, steps that each looks at, what is made small (bytes or, as measured, "
                     "time), whether layers whose gradients are steady may err more (accordion)"});
  flags.add("plan", &o.plan,
            {.value = "FILE", .help = "settings by layer from a run's plan-<step>.json"});
  flags.add("shadow", &o.shadow,
            {.value = "N",
             .help = "every N steps also sum gradients densely, and report what compression does "
                     "to each layer (0: never)",
             .min = 0});
  flags.add(
      "ledger", &o.ledger,
      {.help =
           "at the end, a table of the bytes sent by layer and kind; metrics.jsonl has it anyway",
       .replay = false});
}

void add_training_flags(FlagTable& flags, CommonOptions& o, const FlagTexts& texts) {
  flags.group("Training");
  flags.add("epochs", &o.epochs,
            {.value = "N",
             .help = texts.epochs,
             .min = 1,
             .max = 1e6,
             .default_text = texts.epochs_default});
  flags.add("steps", &o.steps,
            {.value = "N",
             .help = "stop after N updates",
             .min = 1,
             .max = 1e12,
             .default_text = "no limit"});
  flags.add("batch-size", &o.batch_size,
            {.value = "N",
             .help = texts.batch_size,
             .min = 1,
             .max = kMaxBatch,
             .default_text = texts.by_rule});
  flags.add("global-batch-size", &o.global_batch_size,
            {.value = "N",
             .help = "of all learners and batches of an update together, instead of --batch-size",
             .min = 1,
             .max = 1e12,
             .default_text = "learners * --batch-size * --accumulate"});
  flags.add("accumulate", &o.accumulate,
            {.value = "N",
             .help = "batches whose mean gradient makes one "
                     "update",
             .min = 1,
             .max = 1 << 20});
  flags.add("optimizer", &o.optimizer,
            {.value = "NAME",
             .help = "update rule",
             .choices = kOptimizers,
             .default_text = texts.optimizer_default});
  flags.add("lr", &o.lr,
            {.value = "X",
             .help = "learning rate; the peak of one-cycle",
             .max = 1e9,
             .default_text = texts.lr_default});
  flags.add("momentum", &o.momentum, {.value = "X", .help = "of sgd", .max = 1, .max_open = true});
  flags.add("nesterov", &o.nesterov,
            {.help = "Nesterov's momentum for sgd; --no-nesterov: heavy ball"});
  flags.add("weight-decay", &o.weight_decay,
            {.value = "X",
             .help = "L2 penalty; decoupled for adamw",
             .default_text = texts.weight_decay_default});
  flags.add("decay-norm-bias", &o.decay_norm_bias,
            {.help = "weight decay on batch norm and biases too"});
  flags.add("clip-grad-norm", &o.clip_grad_norm,
            {.value = "X",
             .help = "scale the gradient down to this "
                     "norm",
             .min_open = true,
             .default_text = texts.clip_default});
  flags.add(
      "clip-mode", &o.clip_mode,
      {.value = "MODE",
       .help = "what --clip-grad-norm looks at: global or aggregate, the mean over the learners; "
               "local, each learner's own gradient before it is compressed, against X * "
               "sqrt(learners)",
       .choices = {"", "global", "local", "aggregate"},
       .default_text = "local where compression keeps residuals, else global"});
  flags.add("lr-scheduler", &o.lr_scheduler,
            {.value = "NAME",
             .help = "learning rate over time",
             .choices = kSchedules,
             .default_text = texts.scheduler_default});
  flags.add("lr-warmup-epochs", &o.lr_warmup_epochs,
            {.value = "X",
             .help = "linear warm-up before the "
                     "schedule",
             .max = 1e6});
  flags.add("lr-milestones", &o.lr_milestones,
            {.value = "N...",
             .help = "epochs at which multistep "
                     "multiplies by --lr-gamma",
             .min = 1,
             .max = 1e6,
             .default_text = texts.milestones_default});
  flags.add("lr-step-size", &o.lr_step_size,
            {.value = "N",
             .help = "epochs between the drops of step",
             .min = 1,
             .max = 1e6,
             .default_text = "1/3 of the run"});
  flags.add("lr-gamma", &o.lr_gamma,
            {.value = "X",
             .help = "factor of step, multistep and plateau",
             .max = 1,
             .min_open = true,
             .default_text = texts.gamma_default});
  flags.add("on-nonfinite", &o.on_nonfinite,
            {.value = "WHAT",
             .help = "with a NaN or Inf in a gradient, "
                     "leave out the update of its tensor (bucket) or of all (step)",
             .choices = {"bucket", "step"}});
  flags.add("max-skipped", &o.max_skipped,
            {.value = "N",
             .help = "such steps in a row before the run "
                     "counts as diverged",
             .max = 1e9});
  flags.add("max-loss", &o.max_loss,
            {.value = "X",
             .help = "a step's loss above which the run counts as diverged",
             .min_open = true,
             .default_text = "none"});
}

void add_output_flags(FlagTable& flags, CommonOptions& o, const FlagTexts& texts) {
  flags.group("Output");
  flags.add("save-every", &o.save_every,
            {.value = "N", .help = "checkpoint every N steps, or Nepochs; 0: only at a signal"});
  flags.add("keep", &o.keep,
            {.value = "N", .help = "newest checkpoints to keep; the best one stays too", .min = 1});
  flags.add("resume", &o.resume,
            {.value = "PATH",
             .help = "goes on from a checkpoint, or from the newest one of a run folder; auto: of "
                     "--output-dir, and from the beginning where there is none",
             .replay = false});
  flags.add("resume-anyway", &o.resume_anyway,
            {.help = "--resume although network, data or compression differ, as far as tensors fit",
             .replay = false});
  flags.add("output-dir", &o.output_dir,
            {.value = "DIR",
             .help = "run folder; must be new or empty",
             .default_text = "runs/<name>-<time>",
             .replay = false});
  flags.add("name", &o.name,
            {.value = "TEXT", .help = "of the run", .default_text = texts.name_default});
  flags.add("print-freq", &o.print_freq,
            {.value = "N",
             .help = "steps between two lines when stderr is "
                     "not a terminal",
             .min = 1,
             .max = 1e12});
  flags.add("json", &o.json, {.help = "one JSON object as the last line of stdout"});
  flags.add("quiet", &o.quiet, {.help = "nothing on stderr but errors"});
  flags.add("report", &o.report, {.help = "report.html in the run folder at the end"});
  flags.add("tensorboard", &o.tensorboard,
            {.help = "TensorBoard's events.out.tfevents.* in the run folder"});
  flags.add("trace", &o.trace,
            {.value = "FILE", .help = "write a Chrome/Perfetto trace", .replay = false});
  flags.add("trace-steps", &o.trace_steps,
            {.value = "A:B",
             .help = "steps that are traced, from 1",
             .default_text = "2:6",
             .replay = false});
  flags.add(
      "dump-gradients", &o.dump_gradients,
      {.value = "N",
       .help = "write the first rank's own gradients of step N, before clipping and exchange, "
               "to gradients-<step>.safetensors of the run folder, for bench compress",
       .min = 1,
       .max = 1e12,
       .default_text = "none",
       .replay = false});
  flags.add("explain-step", &o.explain_step,
            {.value = "N",
             .help = "tell how step N went on the first rank, from gradient to update, each event "
                     "with its numbers and its place in the sources; on stderr and in "
                     "explain-<step>.txt of the run folder",
             .min = 1,
             .max = 1e12,
             .default_text = "none",
             .replay = false});
}

void add_action_flags(FlagTable& flags, CommonOptions& o, const FlagTexts& texts) {
  flags.group("Weights, configuration, questions");
  flags.add("init", &o.init, {.value = "FILE", .help = "start from these weights (safetensors)"});
  flags.add("evaluate", &o.evaluate, {.help = texts.evaluate, .replay = false});
  flags.add("dry-run", &o.dry_run,
            {.help = "print the plan: parameters, memory, steps, bytes", .replay = false});
  flags.add("headroom", &o.headroom,
            {.value = "S",
             .help = "instead of training, measure for about S seconds what the learners' exchange "
                     "costs, and what compression can win",
             .max = 1e6,
             .default_text = "0: train",
             .replay = false});
  flags.add(
      "headroom-net", &o.headroom_net,
      {.value = "MODEL",
       .help = "one network more for the model of --headroom, as --net names them: 25gbit,5us",
       .default_text = "none",
       .replay = false});
  flags.add("config", &o.config,
            {.value = "FILE",
             .help = "read flags from TOML, one per line, without "
                     "the dashes",
             .replay = false});
  flags.add("dump-config", &o.dump_config,
            {.help = "print the resolved configuration as TOML", .replay = false});
  flags.add("list", &o.list, {.help = texts.list, .replay = false});
  flags.add("version", &o.version, {.help = "print the version", .replay = false});
  flags.add("help", &o.help, {.help = "print this text, as -h does", .replay = false});
  flags.add("man", &o.man, {.help = "print it as a manual page (troff)", .replay = false});
}

}  // namespace

void add_common_flags(FlagTable& flags, CommonOptions& o, const FlagTexts& texts) {
  add_run_flags(flags, o, texts);
  add_learner_flags(flags, o);
  add_training_flags(flags, o, texts);
  add_output_flags(flags, o, texts);
  add_action_flags(flags, o, texts);
}

std::string find_data(const std::string& data, const std::string& embedded) {
  namespace fs = std::filesystem;
  const char* sets = std::getenv("HEDDLE_DATA");
  std::error_code error;
  if (sets == nullptr || data.empty() || data == embedded || fs::exists(data, error)) return data;
  const fs::path found = fs::path(sets) / data;  // an absolute path stays what it is
  return fs::exists(found, error) ? found.string() : data;
}

void resolve_batch_size(CommonOptions& o, FlagTable& flags, int64_t by_rule) {
  const FlagSource each = flags.source("batch-size"), all = flags.source("global-batch-size");
  if (all == FlagSource::default_value || each > all) {
    o.global_batch_size = 0;
    return set_default(flags, "batch-size", o.batch_size, by_rule);
  }
  // A dumped configuration carries both: with other learners the global batch stays.
  check(each < all || each == FlagSource::config,
        "--batch-size and --global-batch-size: expected one of them");
  const int64_t batches = plan_learners(o).size * o.accumulate;
  check(o.global_batch_size % batches == 0, "--global-batch-size: expected a multiple of ", batches,
        " (learners times --accumulate), found ", o.global_batch_size);
  o.batch_size = o.global_batch_size / batches;
  check(o.batch_size <= kMaxBatch, "--global-batch-size: expected at most ", kMaxBatch,
        " for each learner, found ", o.batch_size);
  flags.suggest("batch-size", std::to_string(o.batch_size), "--global-batch-size");  // no default
}

void resolve_common(CommonOptions& o, FlagTable& flags, const std::string& embedded) {
  check(o.resume.empty() || !o.evaluate, "--resume goes on training; with --evaluate use --init");
  flags.check_needs(common_needs(o));
  const LearnerPlan learners = plan_learners(o);
  set_default(flags, "threads", o.threads,
              std::max(1, omp_get_max_threads() / learners.on_machine));

  check_exchange(o);
  check(o.headroom == 0 || learners.size > 1,
        "--headroom: one learner exchanges nothing; give --learners N or start with mpirun");
  if (!o.headroom_net.empty()) (void)parse_net(o.headroom_net, "--headroom-net");

  // The configuration of a run is read again from other folders.
  for (std::string* path : {&o.data, &o.init, &o.plan}) {
    const bool is_path = !path->empty() && !(path == &o.data && *path == embedded);
    if (is_path) *path = std::filesystem::absolute(*path).lexically_normal().string();
  }

  check(o.name.find('/') == std::string::npos && o.name != "." && o.name != "..",
        "--name: expected a name without '/', found '", o.name, "'");
  check(o.optimizer != "sgd" || !o.nesterov || o.momentum > 0,
        "--nesterov needs a --momentum above 0");
  (void)parse_save_every(o.save_every, 1);
  if (o.trace_steps.empty()) o.trace_steps = "2:6";
  (void)parse_step_range(o.trace_steps);
}

std::string list_row(const char* title, const std::vector<std::string>& names) {
  std::string out = title;
  for (const std::string& name : names) out += " " + name;
  return out + '\n';
}

std::string list_training_choices() {
  return list_row("optimizers:", kOptimizers) + list_row("schedules:", kSchedules);
}

StepRange parse_step_range(const std::string& text) {
  long long first = 0, last = 0;
  int used = 0;
  const bool ok = std::sscanf(text.c_str(), "%lld:%lld%n", &first, &last, &used) == 2 &&
                  static_cast<size_t>(used) == text.size() && first >= 1 && first <= last;
  check(ok, "--trace-steps: expected A:B with 1 <= A <= B, found '", text, "'");
  return {first, last};
}

}  // namespace heddle
