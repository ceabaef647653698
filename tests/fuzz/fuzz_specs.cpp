// Parses arbitrary values of --compress, --lgreco, --net, --save-every and --trace-steps: each is
// accepted, or refused with an InputError. The first byte chooses the flag.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/session/layer_plan.h"
#include "comm/net_model.h"
#include "compress/families.h"
#include "core/context.h"
#include "core/error.h"

namespace {

using namespace heddle;

void require(bool ok) {
  if (!ok) std::abort();
}

void read_compress(const std::string& text) {
  const CompressSpec spec = parse_compress(text);
  for (const auto& [key, value] : spec.values) require(std::isfinite(value));
  const CompressSpec again = parse_compress(to_string(spec));
  require(again.family == spec.family && again.values == spec.values);
  ParameterStore store;
  store.add("w", {8, 16}, constant_init(0));
  store.finalize(1);
  (void)make_reducer(spec, {.min_compress = 1}, store);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Context context;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 5) {
      case 0:
        read_compress(text);
        break;
      case 1: {
        CommonOptions o;
        o.parsed.compress.spec = parse_compress("topk");
        o.layerwise = "lgreco";
        o.lgreco = text;
        check_layerwise(o);
        break;
      }
      case 2: {
        const NetModel net = parse_net(text);
        require(net.bytes_per_s > 0 && net.latency_s >= 0 && net.jitter_s >= 0);
        break;
      }
      case 3:
        require(parse_save_every(text).steps(10) >= 0);
        break;
      default: {
        const StepRange range = parse_step_range(text);
        require(range.first >= 1 && range.first <= range.last);
      }
    }
  } catch (const InputError&) {
  }
  return 0;
}
