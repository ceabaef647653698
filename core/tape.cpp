#include "core/tape.h"

#include <algorithm>

#include "core/kernels.h"
#include "core/trace.h"

namespace heddle {

Tensor Grad::sum() && {
  if (!second.defined()) return std::move(first);
  if (!first.unique()) std::swap(first, second);
  if (first.unique()) {
    add_to(second, first);
    second = {};
    return std::move(first);
  }
  Tensor out = Tensor::empty_like(first);
  add(first, second, out);
  first = second = {};
  return out;
}

Var::Var(Tensor value, bool needs_grad)
    : slot_(std::make_shared<Slot>(Slot{std::move(value), {}, needs_grad})) {}

void Var::add_grad(Tensor grad) const {
  if (!needs_grad()) return;
  check_form(grad, slot_->value.form(), "gradient");
  Grad& g = slot_->grad;
  if (!g.first.defined()) {
    g.first = std::move(grad);
  } else if (!g.second.defined()) {
    g.second = std::move(grad);
  } else {
    g.first = std::exchange(g, Grad{}).sum();
    g.second = std::move(grad);
  }
}

Grad Var::take_grad() const { return std::exchange(slot_->grad, Grad{}); }

Tensor Var::grad() const { return slot_ == nullptr ? Tensor{} : Grad(slot_->grad).sum(); }

void BackwardPass::contributed(Parameter& p) {
  if (p.frozen) return;
  auto open = std::find(open_->begin(), open_->end(), &p);
  check(open != open_->end(), "tape: ", p.name, " contributed more often than it was used");
  open_->erase(open);
  if (--p.pending > 0) return;
  explain("final", p.name, [&] {
    Figures figures = {{"elements", to_double(p.size()), Unit::count},
                       {"bytes", to_double(p.size()) * 4, Unit::bytes}};
    figures.push_back(p.written ? Figure{"gradient norm", norm(p.grad)}
                                : Figure{"without a gradient", 0, Unit::none});
    return figures;
  });
  if (*on_final_) (*on_final_)(p);
}

Tape::~Tape() {
  for (; !nodes_.empty(); nodes_.pop_back()) {
    for (Parameter* p : nodes_.back().open) --p->pending;
    for (Parameter* p : nodes_.back().uses) --p->readers;
  }
}

void Tape::record(std::string name, const Var& output, std::vector<Parameter*> uses,
                  std::function<void(BackwardPass&)> backward) {
  if (!training()) return;
  std::erase_if(uses, [](const Parameter* p) { return p == nullptr || p->frozen; });
  check(output.needs_grad() || uses.empty(), name, ": its output needs a gradient, as ",
        uses.empty() ? name : uses.front()->name, " is trained");
  if (!output.needs_grad()) return;
  for (Parameter* p : uses) {
    ++p->pending;
    ++p->readers;
  }
  nodes_.push_back({std::move(name), output, uses, std::move(uses), std::move(backward)});
}

void Tape::backward(const Var& loss, const std::function<void(Parameter&)>& on_final,
                    const std::function<void(Parameter&)>& on_free, float scale) {
  check(training(), "backward: the tape was made with training = false");
  check(!nodes_.empty(),
        "backward: the tape is empty: nothing that is trained was recorded, or "
        "backward has been called already");
  check(loss.value().size() == 1, "backward: expected a scalar loss, found shape ",
        to_string(loss.shape()));
  check(std::ranges::any_of(nodes_,
                            [&](const Node& n) { return &n.output.value() == &loss.value(); }),
        "backward: the loss was not computed on this tape");
  Tensor seed = Tensor::empty_like(loss.value());
  fill(seed, scale);
  loss.add_grad(seed);
  for (; !nodes_.empty(); nodes_.pop_back()) {
    Node& node = nodes_.back();
    TraceRange range("backward", node.name);
    BackwardPass pass;
    pass.on_final_ = &on_final;
    pass.open_ = &node.open;
    pass.dy = node.output.take_grad();
    if (pass.dy.defined()) node.backward(pass);
    // A node without a gradient contributes nothing: its uses end here.
    while (!node.open.empty()) pass.contributed(*node.open.back());
    node.backward = {};
    while (!node.uses.empty()) {
      Parameter& p = *node.uses.back();
      node.uses.pop_back();
      if (--p.readers == 0 && on_free) on_free(p);
    }
  }
}

}  // namespace heddle
