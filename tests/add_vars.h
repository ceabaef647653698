// The sum of two Vars, for test networks in which two branches join.
#pragma once

#include <utility>

#include "core/kernels.h"
#include "core/tape.h"

namespace heddle {

// a + b of equal shape, type and layout.
inline Var add(Tape& tape, const Var& a, const Var& b) {
  const Tensor output = Tensor::empty_like(a.value());
  add(a.value(), b.value(), output);
  Var y(output, true);
  tape.record("add", y, {}, [a, b](BackwardPass& pass) {
    // Both inputs get the same memory: no longer unique, so neither writes into it.
    Tensor dy = std::move(pass.dy).sum();
    a.add_grad(dy);
    b.add_grad(std::move(dy));
  });
  return y;
}

}  // namespace heddle
