// The likeliest classes of what a classifier has seen, as --predict prints them.
//
//   const std::vector<Guess> best = best_classes(logits, 5, "cat.jpg");
//   json.push_back(guesses_json("image", "cat.jpg", best, classes, text));
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace heddle {

struct Guess {
  int label;
  double probability;
};

// Returns the `count` most probable classes, best first. Throws InputError, beginning with `where`,
// if a logit is not finite.
std::vector<Guess> best_classes(std::span<const float> logits, int count, const std::string& where);

// Returns {key: name, "best": [{"class", "probability"}]} and appends the same to `text`, for
// people. A class beyond `classes` is called "class 12".
nlohmann::ordered_json guesses_json(const char* key, const std::string& name,
                                    const std::vector<Guess>& guesses,
                                    const std::vector<std::string>& classes, std::string& text);

}  // namespace heddle
