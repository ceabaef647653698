// The options of train_dpgan.
//
//   TrainDpganOptions o;
//   FlagTable flags = dpgan_flags(o);
//   flags.parse(arguments, environment);
//   resolve(o, flags);
#pragma once

#include <cstdint>

#include "apps/cli/common_options.h"

namespace heddle {

struct TrainDpganOptions : CommonOptions {
  TrainDpganOptions() {
    data = "shapes";
    compress = "topagg:density=0.2,epsilon=10,output=votes";
    batch_size = 15;
    lr = 0.003;
    momentum = 0;
    nesterov = false;
    lr_scheduler = "constant";
    dp.unit = "teacher";
  }

  int64_t teachers = 1000, images_each = 15, teacher_steps = 1;
  double teacher_lr = 0.001;
};

// Returns the table of all flags, bound to `options`.
FlagTable dpgan_flags(TrainDpganOptions& options);
// Parses the texts and sets the options that were not given. Throws InputError for flags that
// contradict each other or have no meaning here.
void resolve(TrainDpganOptions& options, FlagTable& flags);

}  // namespace heddle
