// Arbitrary bytes as a checkpoint's manifest.json or state.json, or as a layer plan: they are
// read, or refused with an InputError. The first byte chooses the file.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "apps/checkpoint/checkpoint.h"
#include "apps/checkpoint/exchange_state.h"
#include "apps/session/layer_plan.h"
#include "compress/families.h"
#include "core/context.h"
#include "core/error.h"

namespace {

using namespace heddle;

std::string make_folder() {
  char name[] = "/tmp/fuzz_checkpoint-XXXXXX";
  if (mkdtemp(name) == nullptr) std::abort();
  return name;
}

void write(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), std::ssize(text));
}

void read_state(const std::string& folder, std::string_view text) {
  write(folder + "/state.json", text);
  const Checkpoint checkpoint = read_checkpoint(folder);
  try {
    const LearnerOptimizer::State state = parse_exchange(checkpoint.state.at("exchange"));
    (void)exchange_json(state).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (const nlohmann::json::exception&) {  // restore_training turns it into an InputError
  }
}

void read_plan(const std::string& folder, std::string_view text) {
  CommonOptions o;
  o.plan = folder + "/plan.json";
  write(o.plan, text);
  ParameterStore store;
  store.add("a.weight", {40, 50}, constant_init(0));
  store.finalize(1);
  const auto reducer = make_reducer(parse_compress("topk"), {}, store);
  apply_layer_plan(o, store, 2, dynamic_cast<CompressedReducer&>(*reducer));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Context context;
  static const std::string folder = make_folder();
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 3) {
      case 0:
        write(folder + "/state.json", R"({"version":1,"step":3})");
        write(folder + "/manifest.json", text);
        (void)open_checkpoint(folder);
        break;
      case 1:
        read_state(folder, text);
        break;
      default:
        read_plan(folder, text);
    }
  } catch (const InputError&) {
  }
  return 0;
}
