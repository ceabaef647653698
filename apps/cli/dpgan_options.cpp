#include "apps/cli/dpgan_options.h"

#include <algorithm>

#include "apps/cli/format.h"
#include "core/error.h"

namespace heddle {
namespace {

constexpr int64_t kSteps = 110;

}  // namespace

FlagTable dpgan_flags(TrainDpganOptions& o) {
  FlagTable flags(
      "train_dpgan",
      concat("Trains a generator of small pictures that reveals little of the data "
             "that it learns from: only noisy sums of teachers' votes reach it (DataLens in "
             "small).",
             kFlagSources, "\n\n", kExitCodes));
  flags.group("Teachers");
  flags.add("teachers", &o.teachers, "N", "teachers of all learners together", at_least(1),
            at_most(1e6));
  flags.add("images-each", &o.images_each, "N", "pictures that each teacher has to itself",
            at_least(1), at_most(1e6));
  flags.add("teacher-steps", &o.teacher_steps, "N", "steps of every teacher before each vote",
            at_least(1), at_most(1e4));
  flags.add("teacher-lr", &o.teacher_lr, "X", "learning rate of the teachers' Adam", above(0),
            at_most(1e3));
  add_common_flags(flags, o);
  add_privacy_flags(flags, o.dp, false);
  flags.at("data").help =
      "folder of CIFAR-10/100 binary files, or shapes: ten classes drawn on the fly, bright on "
      "black and hardly turned; made grey, of 16 x 16 pixels";
  flags.at("batch-size").help = "generated pictures that the teachers vote on in a step";
  flags.at("batch-size").apply(otherwise("15"));
  flags.at("lr").help = "learning rate of the generator's Adam";
  flags.at("lr").apply(otherwise("0.003"));
  flags.at("steps").apply(otherwise(std::to_string(kSteps)));
  flags.at("epochs").help = "parts of the run after which the generator is tested, at most";
  flags.at("epochs").apply(otherwise("5"));
  flags.at("name").apply(otherwise("dpgan"));
  flags.at("compress").help = "how votes are summed: topagg:epsilon=10; see below";
  flags.at("compress").examples = {"topagg"};
  return flags;
}

void resolve(TrainDpganOptions& o, FlagTable& flags) {
  decide_training(o, flags, "");
  parse_texts(o);
  check(is_voting(o), "--compress ", o.compress,
        ": the generator learns from noisy votes only; expected topagg");
  set_default(flags, "steps", o.steps, kSteps);
  set_default(flags, "epochs", o.epochs, std::min<int64_t>(5, o.steps));
  set_default(flags, "name", o.name, "dpgan");
  check(o.epochs <= o.steps, "--epochs ", o.epochs, ": expected at most one for each of ", o.steps,
        " steps");
  check(o.teachers >= o.parsed.learners.size, "--teachers ", o.teachers,
        ": expected one for each of ", o.parsed.learners.size, " learners");
  o.dp.described =
      concat("the ", o.images_each, " images of one of ", o.teachers, " teachers, replaced");
  for (const char* flag : {"peers", "optimizer", "momentum", "nesterov", "weight-decay",
                           "decay-norm-bias", "global-batch-size", "clip-grad-norm", "graph",
                           "tf32", "workers", "dump-gradients", "bucket-mb", "overlap", "freeze",
                           "local-steps", "outer-lr", "outer-momentum", "outer-delay"})
    flags.check_needs({{flag, false, "has no effect on a generator that votes train"}});
  o.optimizer = "sgd";  // files may set these for other programs; here they would move the pictures
  o.momentum = o.weight_decay = o.clip_grad_norm = 0;
  o.nesterov = false;
  o.local_steps = 1;
  o.freeze.clear();
  check(!o.parsed.device.is_cuda() || !flags.given("device"),
        "--device: train_dpgan computes on the CPU");
  o.parsed.device = Device{};
  check(o.precision == "fp32", "--precision: train_dpgan computes in fp32");
  flags.check_needs(privacy_needs(o.dp, true));
  resolve_common(o, flags, "shapes");
}

}  // namespace heddle
