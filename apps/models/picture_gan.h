// DataLens in small (Wang et al. 2021, arXiv 2103.11109): a generator of grey pictures of 16 x 16
// pixels, by class, that never sees data. Teachers hold a few pictures each and learn to tell
// classes and generated pictures apart; how a generated picture has to change is what their votes
// decide. Networks with one hidden layer, in place of the paper's convolutions; teachers have a
// class of their own for generated pictures (Salimans et al. 2016, arXiv 1606.03498), because a
// discriminator that is only given the label did not learn to use it from so few pictures.
//
//   Generator generator(store, classes);
//   Teachers teachers(pictures, count, classes, seed);
//   teachers.train(generated);
//   teachers.gradient(i, generated);   // of one teacher, for its vote
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "compress/reducer.h"
#include "core/parameters.h"
#include "core/random.h"
#include "core/tape.h"
#include "data/dataset.h"
#include "layers/linear.h"
#include "optim/optimizer.h"

namespace heddle {

// A batch of pictures, as rows of pixels: 0 is black, 1 white; generated ones may be beyond.
struct Pictures {
  static constexpr int64_t kSide = 16, kPixels = kSide * kSide;
  Tensor pixels;  // f32 (N, kPixels), on the host, like the labels
  Tensor labels;  // i32 (N)
  int64_t size() const { return labels.size(); }
};
// Reads images [begin, end) of a set, averaged to kSide pixels and to grey. Throws InputError for
// images that are not square or whose side is not a multiple of kSide.
Pictures read_pictures(const ImageDataset& set, int64_t begin, int64_t end);

// Returns the labels first, first + 1, … of a cycle through all classes: i32 (n), on the host.
Tensor labels_in_turn(int64_t n, int64_t classes, int64_t first = 0);

class Generator {
 public:
  static constexpr int64_t kNoise = 50;
  Generator(ParameterStore& store, int64_t classes);
  // Returns pixels (N, kPixels). Picture i takes its noise from the random numbers from i * kNoise
  // on.
  Var forward(Tape& tape, const Tensor& labels, const Philox& random) const;
  // Returns pictures with the labels labels_in_turn(count, classes, first).
  Pictures generate(int64_t count, const Philox& random, int64_t first = 0) const;

 private:
  int64_t classes_;
  Linear first_, second_;
};

// A rank's teachers, each with its own pictures and its own Adam. Not thread-safe.
class Teachers {
 public:
  // Teacher i holds the pictures [i * size / count, (i + 1) * size / count); weights are drawn with
  // the seeds from `seed` on. Throws InputError for fewer pictures than teachers.
  Teachers(Pictures data, int64_t count, int64_t classes, uint64_t seed);
  int64_t count() const { return std::ssize(teachers_); }

  // Makes one step of every teacher, on all its pictures and these generated ones. Returns the mean
  // loss.
  double train(const Pictures& generated, double lr);
  // Returns the gradient (N, kPixels) against which the pictures look more like their labels to
  // teacher i.
  Tensor gradient(int64_t i, const Pictures& generated);
  // Returns the state, as views to copy from and into.
  NamedTensors named_state() const;

 private:
  struct Teacher {
    explicit Teacher(int64_t classes);
    Var forward(Tape& tape, const Var& pixels) const;
    ParameterStore store;
    Linear first, second;
    std::unique_ptr<Optimizer> optimizer;
  };
  Pictures data_;
  int64_t classes_;
  std::deque<Teacher> teachers_;
};

struct PictureScore {
  double loss = NAN, accuracy = NAN;  // accuracy in percent
};
// Returns how a network with one hidden layer that learns on generated pictures does on real ones.
PictureScore picture_score(const Pictures& generated, const Pictures& real, int64_t classes,
                           uint64_t seed);

// Returns a sheet of pictures as a PNG file: a column for each class, from those of generate().
std::string sample_sheet(const Pictures& pictures, int64_t classes);

}  // namespace heddle
