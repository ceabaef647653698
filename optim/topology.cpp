#include "optim/topology.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/parse_number.h"
#include "core/random.h"

namespace heddle {
namespace {

constexpr int kMaxRanks = 4096;

// Reads a number that is the whole text; throws InputError, which shows the whole value.
template <class T>
T number(std::string_view text, const std::string& whole) {
  const auto value = parse_number<T>(text);
  check(value.has_value(), "peers ", whole, ": expected a number, found \"", text, "\"");
  return *value;
}

}  // namespace

void Topology::connect(int a, int b) {
  if (a == b) return;
  edges_[to_size(a)].insert(b);
  edges_[to_size(b)].insert(a);
}

Topology Topology::parse(const std::string& text, int ranks) {
  check(ranks > 0 && ranks <= kMaxRanks, "peers: expected 1 to ", kMaxRanks, " learners, found ",
        ranks);
  Topology graph(ranks);
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string kind = text.substr(0, colon),
                    rest = text.substr(std::min(colon + 1, text.size()));
  if (text == "ring") {
    for (int r = 0; r < ranks; ++r) graph.connect(r, (r + 1) % ranks);
  } else if (text == "complete") {
    for (int r = 0; r < ranks; ++r)
      for (int q = 0; q < r; ++q) graph.connect(r, q);
  } else if (text == "star") {
    for (int r = 1; r < ranks; ++r) graph.connect(0, r);
  } else if (text == "exp") {
    for (int r = 0; r < ranks; ++r)
      for (int far = 1; far < ranks; far *= 2) graph.connect(r, (r + far) % ranks);
  } else if (kind == "torus") {
    const size_t x = std::min(rest.find('x'), rest.size());
    const int rows = number<int>(rest.substr(0, x), text),
              columns = number<int>(rest.substr(std::min(x + 1, rest.size())), text);
    check(rows > 0 && columns > 0 && int64_t{rows} * columns == ranks, "peers ", text,
          ": expected a product of ", ranks, ", the number of learners");
    for (int r = 0; r < ranks; ++r) {
      const int row = r / columns, column = r % columns;
      graph.connect(r, row * columns + (column + 1) % columns);
      graph.connect(r, (row + 1) % rows * columns + column);
    }
  } else if (kind == "er") {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string seed = rest.substr(std::min(comma + 1, rest.size()));
    check(rest.starts_with("p=") && (comma == rest.size() || seed.starts_with("seed=")), "peers ",
          text, ": expected er:p=0.4,seed=1");
    const double p = number<double>(rest.substr(2, comma - 2), text);
    check(p > 0 && p <= 1, "peers ", text, ": expected a probability above 0 and at most 1, found ",
          p);
    const Philox rng(seed.empty() ? 1 : number<uint64_t>(seed.substr(5), text),
                     stream_id(Stream::network));
    for (int r = 0; r < ranks; ++r)
      for (int q = 0; q < r; ++q)
        if (rng.uniform(static_cast<uint64_t>(r) * kMaxRanks + static_cast<uint64_t>(q)) < p)
          graph.connect(r, q);
  } else {
    std::error_code none;
    check(std::filesystem::is_regular_file(text, none), "peers ", text,
          ": expected ring, complete, star, exp, torus:RxC, er:p=0.4,seed=1 or a file");
    graph.read(text);
  }
  check(graph.is_connected(), "peers ", text, ": some of the ", ranks,
        " learners cannot reach each other",
        kind == "er" ? "; try another seed, or a larger p" : "");
  return graph;
}

// Reads lines "3: 2 4", empty lines and comments after #.
void Topology::read(const std::string& file) {
  std::istringstream lines(read_text_file(file));
  std::set<int> seen;
  int line_number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = concat(file, ", line ", ++line_number);
    line = line.substr(0, line.find('#'));
    const size_t colon = std::min(line.find(':'), line.size());
    const auto rank_of = [&](const std::string& word) {
      const int rank = number<int>(word, where);
      check(rank >= 0 && rank < ranks(), "peers ", where, ": expected a rank below ", ranks(),
            ", found ", rank);
      return rank;
    };
    std::istringstream head(line.substr(0, colon)),
        words(line.substr(std::min(colon + 1, line.size())));
    std::string word;
    if (!(head >> word)) {
      check(colon == line.size(), "peers ", where, ": expected a rank before the colon");
      continue;
    }
    const int rank = rank_of(word);
    check(colon < line.size() && !(head >> word), "peers ", where, ": expected \"rank: ranks\"");
    check(seen.insert(rank).second, "peers ", where, ": rank ", rank, " has a line already");
    while (words >> word) {
      const int peer = rank_of(word);
      check(peer != rank, "peers ", where, ": rank ", rank, " is a neighbour of itself");
      edges_[to_size(rank)].insert(peer);
    }
  }
  for (int r = 0; r < ranks(); ++r)
    for (const int q : edges_[to_size(r)])
      check(edges_[to_size(q)].contains(r), "peers ", file, ": rank ", r, " has the neighbour ", q,
            ", but ", q, " does not have ", r);
}

bool Topology::is_connected() const { return std::ranges::min(distances(0)) >= 0; }

// By breadth-first search; -1 for a rank that cannot be reached.
std::vector<int> Topology::distances(int rank) const {
  std::vector<int> out(edges_.size(), -1);
  out.at(to_size(rank)) = 0;
  std::vector<int> order = {rank};
  for (size_t i = 0; i < order.size(); ++i)
    for (const int q : edges_[to_size(order[i])])
      if (out[to_size(q)] < 0) {
        out[to_size(q)] = out[to_size(order[i])] + 1;
        order.push_back(q);
      }
  return out;
}

std::vector<Topology::Neighbour> Topology::neighbours(int rank) const {
  std::vector<Neighbour> out;
  for (const int q : edges_.at(to_size(rank)))
    out.push_back({q, 1.0 / (1 + std::max(degree(rank), degree(q)))});
  return out;
}

double Topology::own_weight(int rank) const {
  double own = 1;
  for (const Neighbour& each : neighbours(rank)) own -= each.weight;
  return own;
}

// Power iteration on vectors without mean, on which the first eigenvalue does not act.
double Topology::second_eigenvalue() const {
  constexpr int kIterations = 20000;
  const Philox rng(1, stream_id(Stream::network, 1));
  std::vector<std::vector<Neighbour>> rows(edges_.size());
  std::vector<double> x(edges_.size());
  for (size_t r = 0; r < x.size(); ++r) {
    x[r] = rng.uniform(r);
    rows[r] = neighbours(to_int(r));
    rows[r].push_back({to_int(r), own_weight(to_int(r))});
  }
  double growth = 0;
  for (int iteration = 0; iteration < kIterations && x.size() > 1; ++iteration) {
    double mean = 0, squares = 0, grown = 0;
    for (const double v : x) mean += v / to_double(x.size());
    for (double& v : x) {
      v -= mean;
      squares += v * v;
    }
    const double norm = std::sqrt(squares);
    if (norm < 1e-30) return 0;
    std::vector<double> next(x.size());
    for (size_t r = 0; r < x.size(); ++r) {
      for (const auto& [q, weight] : rows[r]) next[r] += weight * x[to_size(q)] / norm;
      grown += next[r] * next[r];
    }
    x = std::move(next);
    const double before = std::exchange(growth, std::sqrt(grown));
    if (iteration > 100 && std::abs(growth - before) < 1e-15) break;
  }
  return growth;
}

uint64_t Topology::hash() const {
  std::vector<int32_t> all;
  for (const std::set<int>& each : edges_) {
    all.push_back(static_cast<int32_t>(each.size()));
    all.insert(all.end(), each.begin(), each.end());
  }
  return hash_bytes(all.data(), all.size() * sizeof(int32_t));
}

}  // namespace heddle
