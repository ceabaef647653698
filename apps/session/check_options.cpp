#include "apps/session/check_options.h"

#include "apps/session/layer_plan.h"
#include "core/error.h"

namespace heddle {

void check_options(const CommonOptions& o) {
  const CompressChoice& compress = o.parsed.compress;
  if (compress.automatic) {
    check(compress.spec.family != "none", "--compress ", o.compress,
          ": expected a compression to compare with dense exchange");
    check(o.layerwise == "uniform" && o.plan.empty(),
          "--compress auto decides by bucket; it cannot be combined with --layerwise or --plan");
    check(!o.deterministic,
          "--compress auto decides by measured times, which --deterministic excludes");
  }
  check_layerwise(o);
  check(o.headroom == 0 || o.parsed.learners.size > 1,
        "--headroom needs several learners: give --learners N or start with mpirun");
}

}  // namespace heddle
