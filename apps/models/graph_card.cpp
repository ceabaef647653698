#include "apps/models/graph_card.h"

#include "apps/cli/format.h"
#include "core/error.h"

namespace heddle {

GraphCard read_graph_card(const WeightsFile& file) {
  const bool sage = file.has("convs.0.lin_l.weight");
  check(sage || file.has("convs.0.lin.weight"), file.path(),
        ": expected a graph network, with a tensor convs.0.lin_l.weight or convs.0.lin.weight, "
        "found ",
        file.has("fc.weight")        ? "a residual network, which train_resnet reads"
        : file.has("encoder.weight") ? "a language model, which train_lm reads"
                                     : "neither");
  GraphCard card;
  card.model = sage ? "sage" : "gcn";
  const auto weight = [&](int64_t layer) {
    return concat("convs.", layer, sage ? ".lin_l.weight" : ".lin.weight");
  };
  while (file.has(weight(card.layers))) ++card.layers;
  const auto shape = [&](int64_t layer) {
    const Shape& s = file.info(weight(layer)).shape;
    check(s.rank() == 2, file.path(), ": ", weight(layer), ": expected (out, in), found ",
          to_string(s));
    return s;
  };
  card.features = shape(0)[1];
  card.hidden = shape(0)[0];
  card.class_count = shape(card.layers - 1)[0];
  if (const auto names = file.value("classes"); !names.empty()) card.classes = split(names, '\n');
  check(card.classes.empty() || std::ssize(card.classes) == card.class_count, file.path(),
        ": metadata classes: expected ", card.class_count, " names, found ", card.classes.size());
  return card;
}

std::map<std::string, std::string> graph_metadata(const GraphCard& card) {
  return {{"format", "pt"}, {"model", card.model}, {"classes", join(card.classes, "\n")}};
}

}  // namespace heddle
