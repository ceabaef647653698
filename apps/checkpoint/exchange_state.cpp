#include "apps/checkpoint/exchange_state.h"

#include <bit>
#include <limits>
#include <tuple>

#include "apps/cli/json.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTable = "plan.table";
constexpr const char* kSum = "plan.sum.";
constexpr const char* kGradient = "plan.gradient.";
constexpr const char* kExchanges = "plan.exchanges";

// Packs doubles bit for bit as i64 (n), a type that safetensors files of this project hold.
Tensor pack_doubles(const std::vector<double>& values) {
  Tensor packed = Tensor::empty_on(Device{}, {std::ssize(values)}, DType::i64);
  for (size_t i = 0; i < values.size(); ++i)
    packed.data<int64_t>()[i] = std::bit_cast<int64_t>(values[i]);
  return packed;
}

// Returns packed doubles. Throws InputError for another type.
std::vector<double> unpack_doubles(const Tensor& packed) {
  check(packed.dtype() == DType::i64, "packed numbers: expected ", dtype_name(DType::i64),
        ", found ", dtype_name(packed.dtype()));
  std::vector<double> values;
  for (int64_t i = 0; i < packed.size(); ++i)
    values.push_back(std::bit_cast<double>(packed.data<int64_t>()[i]));
  return values;
}

// Returns the mean over the ranks that saved.
std::vector<double> mean_table(const RankFiles& files) {
  std::vector<double> table;
  for (int r = 0; r < files.count; ++r) {
    const SafetensorsFile file = files.open(r);
    if (r == 0 && !file.has(kTable)) return {};
    const std::vector<double> one = unpack_doubles(file.load(kTable));
    if (r == 0) table.resize(one.size());
    check(one.size() == table.size(), file.path(), ": ", kTable, ": expected ", table.size(),
          " numbers, found ", one.size());
    for (size_t i = 0; i < table.size(); ++i) table[i] += one[i];
  }
  for (double& x : table) x /= files.count;
  return table;
}

Json planner_json(const LayerPlannerState& planner) {
  Json layers = Json::array();
  for (const LayerChoices& layer : planner.layers)
    layers.push_back({{"name", layer.name},
                      {"settings", layer.settings},
                      {"bytes", layer.bytes},
                      {"uniform", layer.uniform}});
  Json out = {{"due", planner.due}, {"layers", layers}, {"current", planner.current}};
  out["norms"] = planner.sample.norms;
  out["lr"] = planner.sample.lr;
  out["plan's lr"] = planner.lr ? Json(*planner.lr) : Json();
  return out;
}

LayerPlannerState parse_planner(const nlohmann::json& json) {
  LayerPlannerState planner;
  planner.due = whole(json.at("due"));
  planner.current = json.at("current").get<std::vector<size_t>>();
  for (const auto& layer : json.at("layers")) {
    LayerChoices& choices = planner.layers.emplace_back();
    choices.name = layer.at("name").get<std::string>();
    choices.settings = layer.at("settings").get<std::vector<double>>();
    choices.bytes = layer.at("bytes").get<std::vector<int64_t>>();
    choices.uniform = to_size(whole(layer.at("uniform")));
    check(choices.bytes.size() == choices.settings.size() &&
              choices.uniform < choices.settings.size(),
          "plan of ", printable(choices.name), ": ", choices.settings.size(), " settings, ",
          choices.bytes.size(), " byte counts, setting ", choices.uniform);
  }
  check(planner.current.size() == planner.layers.size(), "plan: ", planner.current.size(),
        " settings for ", planner.layers.size(), " layers");
  for (size_t l = 0; l < planner.layers.size(); ++l)
    check(planner.current[l] < planner.layers[l].settings.size(), "plan of ",
          printable(planner.layers[l].name), ": no setting ", planner.current[l]);
  // JSON has null for infinity.
  for (const auto& norm : json.at("norms"))
    planner.sample.norms.push_back(norm.is_number() ? norm.get<double>()
                                                    : std::numeric_limits<double>::infinity());
  check(planner.sample.norms.empty() || planner.sample.norms.size() == planner.layers.size(),
        "plan: ", planner.sample.norms.size(), " norms for ", planner.layers.size(), " layers");
  planner.sample.lr = json.at("lr").get<double>();
  const auto lr = json.find("plan's lr");  // added later
  if (lr != json.end() && !lr->is_null()) planner.lr = lr->get<double>();
  return planner;
}

// Return the fields of the totals in the order of their arrays in JSON.
template <class Totals>
auto counts_of(Totals& t) {
  return std::tie(t.traffic.sent, t.traffic.received, t.traffic.calls, t.dense_steps,
                  t.compressed_steps, t.dense_sent, t.compressed_sent, t.rejected);
}
template <class Totals>
auto seconds_of(Totals& t) {
  return std::tie(t.exchange_s, t.collective_s, t.exposed_s);
}

// Fills the fields from an array.
template <class... Fields>
void read_array(const nlohmann::json& array, const std::tuple<Fields&...>& fields) {
  size_t i = 0;
  std::apply([&](Fields&... field) { (array.at(i++).get_to(field), ...); }, fields);
}

}  // namespace

RdpAccountant::State parse_account(const nlohmann::json& json) {
  const auto& queries = json.at("queries");
  check(queries.is_number_integer(), "privacy: queries: expected a whole number, found ",
        printable(queries.dump()));
  RdpAccountant::State state{.queries = whole(queries), .spent = {}};
  for (const auto& x : json.at("spent"))  // JSON has null for infinity
    state.spent.push_back(x.is_number() ? x.get<double>()
                                        : std::numeric_limits<double>::infinity());
  return state;
}

Json exchange_json(const LearnerOptimizer::State& state) {
  Json ledger = Json::array();
  for (const auto& [key, entry] : state.ledger)
    ledger.push_back(
        {key.first, to_int(key.second), entry.payload, entry.sent, entry.received, entry.counted});
  Json json = {{"steps", state.steps},
               {"totals", counts_of(state.totals)},
               {"seconds", seconds_of(state.totals)},
               {"dense", {state.totals.dense_of_dense, state.totals.dense_of_compressed}},
               {"coded_steps", state.totals.coded_steps},
               {"local_steps", {state.totals.dense_local, state.totals.compressed_local}},
               {"ledger", ledger},
               {"settings", state.settings},
               {"hosts", state.hosts}};
  if (state.planner) json["planner"] = planner_json(*state.planner);
  if (state.privacy)
    json["privacy"] = {{"queries", state.privacy->queries}, {"spent", state.privacy->spent}};
  return json;
}

LearnerOptimizer::State parse_exchange(const nlohmann::json& json) {
  LearnerOptimizer::State state;
  state.steps = whole(json.at("steps"));
  read_array(json.at("totals"), counts_of(state.totals));
  read_array(json.at("seconds"), seconds_of(state.totals));
  state.totals.dense_of_dense = -1;  // unknown: added later
  state.totals.coded_steps = json.value("coded_steps", int64_t{0});
  if (json.contains("dense"))
    read_array(json["dense"],
               std::tie(state.totals.dense_of_dense, state.totals.dense_of_compressed));
  if (json.contains("local_steps"))  // added later
    read_array(json["local_steps"],
               std::tie(state.totals.dense_local, state.totals.compressed_local));
  for (const auto& entry : json.at("ledger")) {
    const int kind = to_int(whole(entry.at(1)));
    check(kind >= 0 && kind < to_int(kPayloadKinds), "ledger: kind ", kind);
    state.ledger[{entry.at(0).get<std::string>(), static_cast<PayloadKind>(kind)}] = {
        whole(entry.at(2)), whole(entry.at(3)), whole(entry.at(4)),
        whole(entry.at(entry.size() > 5 ? 5 : 2))};  // [5] was added later
  }
  state.settings = json.at("settings").get<std::map<std::string, double>>();
  if (json.contains("hosts")) state.hosts = json["hosts"].get<std::vector<int>>();  // added later
  if (json.contains("planner")) state.planner = parse_planner(json["planner"]);
  if (json.contains("privacy")) state.privacy = parse_account(json["privacy"]);
  return state;
}

NamedTensors exchange_tensors(const LearnerOptimizer::State& state) {
  NamedTensors out;
  if (!state.planner) return out;
  const GradientWindow& window = state.planner->window;
  if (!state.planner->table.empty()) out.emplace_back(kTable, pack_doubles(state.planner->table));
  for (const auto& [name, sum] : window.compensated) out.emplace_back(kSum + name, sum.clone());
  for (const auto& [name, sum] : window.alone) out.emplace_back(kGradient + name, sum.clone());
  std::vector<double> exchanges;  // bytes are whole numbers below 2^53
  for (const TimedExchange& exchange : window.exchanges) {
    exchanges.push_back(to_double(exchange.bytes));
    exchanges.push_back(exchange.seconds);
  }
  if (!exchanges.empty()) out.emplace_back(kExchanges, pack_doubles(exchanges));
  return out;
}

void read_exchange_tensors(const RankFiles& files, LearnerOptimizer::State& state) {
  if (!state.planner) return;
  state.planner->table = mean_table(files);
  if (files.count > 1) return;
  const SafetensorsFile file = files.open(0);
  GradientWindow& window = state.planner->window;
  const auto after = [](const std::string& name, const char* prefix) {
    return name.substr(std::char_traits<char>::length(prefix));
  };
  for (const std::string& name : file.names()) {
    if (name.starts_with(kSum)) window.compensated[after(name, kSum)] = file.load(name);
    if (name.starts_with(kGradient)) window.alone[after(name, kGradient)] = file.load(name);
  }
  if (!file.has(kExchanges)) return;
  const std::vector<double> exchanges = unpack_doubles(file.load(kExchanges));
  for (size_t i = 0; i + 1 < exchanges.size(); i += 2)
    window.exchanges.push_back({to_int64(exchanges[i]), exchanges[i + 1]});
}

}  // namespace heddle
