// Control words that spread through a graph: every rank reads the sum of the same step, after as
// many steps as the graph is wide.
#include <doctest/doctest.h>

#include <deque>
#include <vector>

#include "core/context.h"
#include "optim/flooded_words.h"

using namespace heddle;

TEST_CASE("flooded words: every rank reads the sum of one step, delay() steps later") {
  Context context;
  struct Case {
    const char* graph;
    int ranks;
    int64_t delay;
  };
  for (const Case& c :
       {Case{"ring", 1, 0}, Case{"ring", 2, 0}, Case{"ring", 4, 1}, Case{"ring", 7, 2},
        Case{"complete", 5, 0}, Case{"star", 6, 1}, Case{"exp", 16, 1}, Case{"torus:3x4", 12, 2}}) {
    CAPTURE(c.graph);
    CAPTURE(c.ranks);
    const Topology topology = Topology::parse(c.graph, c.ranks);
    std::deque<FloodedWords> words;
    for (int r = 0; r < c.ranks; ++r) words.emplace_back(topology, r);
    const auto value = [](int64_t rank, int64_t step, size_t word) {
      return static_cast<float>((rank * 31 + step * 7 + static_cast<int64_t>(word) * 5) % 17);
    };
    for (int64_t step = 0; step < 20; ++step) {
      std::vector<Tensor> messages;
      for (int r = 0; r < c.ranks; ++r) {
        for (size_t word = 0; word < FloodedWords::kCount; ++word)
          words[static_cast<size_t>(r)].set(word, value(r, step, word));
        messages.push_back(words[static_cast<size_t>(r)].message());
      }
      for (int r = 0; r < c.ranks; ++r) {
        FloodedWords& mine = words[static_cast<size_t>(r)];
        for (const auto& each : topology.neighbours(r))
          mine.receive(each.rank, messages[static_cast<size_t>(each.rank)]);
        mine.end_step();
        CHECK(mine.delay() == c.delay);
        for (size_t word = 0; word < FloodedWords::kCount; ++word) {
          float expected = 0;
          for (int q = 0; q < c.ranks && step >= c.delay; ++q)
            expected += value(q, step - c.delay, word);
          CHECK(mine.sum(word) == expected);
        }
      }
    }
  }
}
