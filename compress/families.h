// The table of compression algorithms (families.cpp), and make_reducer(). docs/new_reducer.md says
// how to add one.
//
//   auto reducer = make_reducer(parse_compress("scalecom:rate=100"), {.seed = 1}, store);
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "compress/reducer.h"
#include "compress/spec.h"
#include "core/parameters.h"

namespace heddle {

// How the units whose data topagg protects take part (topagg.h).
struct VotingOptions {
  double voters = 1;     // votes of a rank in a step, or the expected number of them
  double rate = 1;       // probability with which a unit votes in a step, independently of others
  bool replaced = true;  // a unit's data may be replaced; false: added or removed. rate < 1: false
  double delta = 1e-5;
  int64_t steps = 0;  // for which epsilon= must suffice
};

struct ReducerOptions {
  uint64_t seed = 0;              // of noise, random selection and first factors
  std::string dense_layers = {};  // regular expression; parameters with a matching name stay dense
  int64_t min_compress = 1024;    // elements; smaller layers stay dense
  VotingOptions voting = {};
};

struct Family;

// The arguments of an algorithm's constructor. Family and store must outlive the reducer.
struct ReducerSetup {
  const Family& family;
  const CompressSpec& spec;
  const ReducerOptions& options;
  const ParameterStore& store;
};

struct Family {
  std::string name;
  // The first key, if it takes numbers, is the setting that may differ from layer to layer.
  std::vector<SpecKey> keys;
  std::unique_ptr<Reducer> (*make)(const ReducerSetup& setup);
  bool planned = true;  // false: it cannot tell L-GreCo what a setting loses
};

const std::deque<Family>& families();  // a row stays where it is
// Adds an algorithm of one's own, which parse_compress() and make_reducer() know from then on;
// before any other thread uses the table. Throws InputError for a name that is taken or has ":" or
// ",".
void add_family(const Family& family);
// Returns a row of the table. Throws an InputError that names the nearest family.
const Family& find_family(const std::string& name);

// Returns the reducer of one rank. Except with topagg, which votes on all, parameters of one axis
// (batch norm, biases), those below min_compress, those that dense_layers names, and the first
// convolution (the first parameter with four axes that was added; as in ScaleCom) are always dense.
// Throws InputError for an unknown family or a bad regular expression.
std::unique_ptr<Reducer> make_reducer(const CompressSpec& spec, const ReducerOptions& options,
                                      const ParameterStore& store);

}  // namespace heddle
