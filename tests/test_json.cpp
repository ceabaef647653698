// Deeply nested JSON: every reader refuses it and names the file.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/json.h"
#include "apps/models/lm_card.h"
#include "apps/report/report_data.h"
#include "apps/report/report_page.h"
#include "apps/session/layer_plan.h"
#include "compress/families.h"
#include "core/context.h"
#include "core/safetensors.h"
#include "tests/app_helpers.h"

namespace heddle {
namespace {

std::string nested(int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += i % 2 == 0 ? "[" : "{\"a\":";
  for (int i = depth - 1; i >= 0; --i) text += i % 2 == 0 ? "]" : "}";
  return text;
}

TEST_CASE("json: the depth is limited; brackets within strings do not count") {
  CHECK(parse_json(R"({"a": [1, "x\"]}"]})", "x")["a"][1] == "x\"]}");
  CHECK(parse_json("[\"" + std::string(1000, '[') + "\\\\\"]", "x").size() == 1);
  CHECK(parse_json<nlohmann::ordered_json>("[[],[],[]]", "x").size() == 3);
  const std::string deepest = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
  CHECK(parse_json(deepest, "x").dump() == deepest);
  CHECK(contains(message_of([&] { parse_json("[" + deepest + "]", "x"); }),
                 "x: expected JSON of at most 100 levels, found more at offset 100"));
  CHECK(contains(message_of([&] { parse_json(nested(80000), "x"); }), "found more at offset"));
  CHECK(contains(message_of([&] { parse_json("[\"a", "x"); }), "x: is not JSON: "));
  CHECK(contains(message_of([&] { parse_json("]]", "x"); }), "x: is not JSON: "));
}

TEST_CASE("json: every reader refuses deep nesting and names the file") {
  Context context;
  const std::string deep = R"({"summary":)" + nested(80000) + "}";
  const auto refused = [](const std::string& file, const auto& read) {
    CAPTURE(file);
    CHECK(contains(message_of(read), file + ": expected JSON of at most 100 levels"));
  };
  const TempFolder temp;
  for (const char* name : {"run.json", "plan-3.json", "exchange-3.json", "trace.json"}) {
    const TempFolder run;
    run.write("metrics.jsonl", "{\"schema\":1}\n");
    refused(run.write(name, deep), [&] {
      const RunRecord record = read_run(run.path);
      report_page({record});
      for (const std::string& what : record.skipped) throw InputError(what);
    });
  }
  refused(temp.write("metrics.jsonl", deep + "\n") + ":1: the line", [&] { read_run(temp.path); });
  refused(temp.write("manifest.json", deep), [&] { open_checkpoint(temp.path); });
  refused(temp.write("state.json", deep), [&] { read_checkpoint(temp.path); });
  refused("x", [&] { parse_vocabulary(nested(80000), "x"); });

  CommonOptions o;
  o.plan = temp.write("plan.json", deep);
  ParameterStore store;
  store.add("a.weight", {40, 50}, constant_init(0));
  store.finalize(1);
  const auto reducer = make_reducer(parse_compress("topk"), {}, store);
  refused("--plan " + o.plan,
          [&] { apply_layer_plan(o, store, 2, dynamic_cast<CompressedReducer&>(*reducer)); });

  // Tensors are described at two levels: the reader accepts no more.
  std::string weights(8, '\0');
  const uint64_t length = deep.size();
  std::memcpy(weights.data(), &length, sizeof length);
  const std::string file = temp.write("x.safetensors", weights + deep);
  CHECK(contains(message_of([&] { SafetensorsFile::open(file); }),
                 "header entry 'summary': expected an object, found an array"));
}

}  // namespace
}  // namespace heddle
