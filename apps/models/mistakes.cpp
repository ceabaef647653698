#include "apps/models/mistakes.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "apps/cli/format.h"
#include "apps/models/png.h"
#include "core/error.h"
#include "core/kernels.h"
#include "data/resample.h"

namespace heddle {
namespace {

// Appends the window of an image that the network sees, `side` pixels per side, as RGB bytes.
void append_picture(const Augmentation& seen, const Image& image, int side,
                    std::vector<uint8_t>& sheet) {
  const int shorter = std::min(image.width, image.height);
  const int64_t resized = std::lround(to_float(seen.size) * seen.resize);
  const int window = seen.crop == Crop::center
                         ? std::max(1, to_int(int64_t{shorter} * seen.size / resized))
                         : shorter;
  const Box box{(image.width - window) / 2, (image.height - window) / 2, window, window};
  const size_t old = sheet.size();
  sheet.resize(old + to_size(3 * side * side));
  resample(image, box, {side, side, 0, 0}, side, sheet.data() + old);
}

}  // namespace

void Mistakes::add(const Tensor& logits, const Tensor& labels, int64_t first_sample) {
  const int64_t n = labels.size();
  check_shape(logits, {n, classes_}, "logits");
  check_indices(labels, classes_, "labels");
  const Tensor host = logits.to(Device{});
  std::vector<Hard> batch;
  for (int64_t i = 0; i < n; ++i) {
    const float* z = host.data<float>() + i * classes_;
    const int64_t label = labels.data<int32_t>()[i], guess = std::max_element(z, z + classes_) - z;
    double sum = 0;
    for (int64_t c = 0; c < classes_; ++c) sum += std::exp(to_double(z[c]) - z[guess]);
    const double loss = std::log(sum) + z[guess] - z[label];
    if (!std::isfinite(loss)) continue;
    ++counts_[{label, guess}];
    batch.push_back({loss, 1 / sum, first_sample + i, label, guess});
  }
  keep(std::move(batch));
}

// Keeps the images with the largest losses, in an order that does not depend on who had them.
void Mistakes::keep(std::vector<Hard> more) {
  hard_.insert(hard_.end(), more.begin(), more.end());
  std::erase_if(hard_, [](const Hard& h) { return h.image < 0; });
  std::ranges::sort(hard_, {}, [](const Hard& h) { return std::tuple(-h.loss, h.image); });
  hard_.resize(std::min(hard_.size(), kImages));
}

void Mistakes::combine(LearnerOptimizer& learners) {
  struct Count {
    int64_t label, guess, images;
  };
  std::vector<Count> mine;
  for (const auto& [pair, images] : counts_) mine.push_back({pair.first, pair.second, images});
  std::vector<std::vector<Count>> counts;
  std::vector<std::vector<Hard>> hard;
  learners.collective("evaluation", [&](Communicator& comm) {
    // Entries without images, so that all learners have equally many.
    size_t most = 0;
    for (const auto& size : gather_values(comm, std::vector{mine.size()}))
      most = std::max(most, size[0]);
    mine.resize(most);
    hard_.resize(kImages);
    counts = gather_values(comm, mine);
    hard = gather_values(comm, hard_);
  });
  counts_.clear();
  for (const std::vector<Count>& of_rank : counts)
    for (const Count& count : of_rank)
      if (count.images > 0) counts_[{count.label, count.guess}] += count.images;
  hard_.clear();
  for (std::vector<Hard>& of_rank : hard) keep(std::move(of_rank));
}

nlohmann::ordered_json Mistakes::json(const Loader& loader,
                                      const std::vector<std::string>& classes) const {
  nlohmann::ordered_json confusion = nlohmann::ordered_json::array(), images = confusion;
  for (const auto& [pair, count] : counts_) confusion.push_back({pair.first, pair.second, count});
  const Augmentation& seen = loader.augmentation();
  const int side = std::min(seen.size, kSide);
  std::vector<uint8_t> sheet;
  Image image;
  for (const Hard& hard : hard_) {
    loader.dataset().read(hard.image, image);
    append_picture(seen, image, side, sheet);
    images.push_back({{"image", hard.image},
                      {"class", hard.label},
                      {"guess", hard.guess},
                      {"probability", hard.probability},
                      {"loss", hard.loss}});
  }
  const int64_t height = side * std::ssize(hard_);
  return {{"classes", classes},
          {"confusion", confusion},
          {"images", images},
          {"side", side},
          {"sheet", hard_.empty() ? "" : base64(encode_png(sheet, side, height, 3))}};
}

}  // namespace heddle
