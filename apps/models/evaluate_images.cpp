#include "apps/models/evaluate_images.h"

#include <algorithm>

#include "core/error.h"
#include "core/kernels.h"
#include "core/trace.h"
#include "data/feed.h"
#include "layers/loss.h"

namespace heddle {
namespace {

constexpr int64_t kBatchesPerBarrier = 8;

}  // namespace

Evaluation evaluate(const ImageClassifier& model, const Loader& loader, Device device, DType dtype,
                    LearnerOptimizer* learners, Mistakes* mistakes) {
  const double begin = steady_seconds();
  Evaluation out{.loss = 0};
  int64_t first = 0, five = 0;
  const bool together = learners != nullptr && learners->learners() > 1;
  int64_t batches = 0;
  BatchFeed feed(loader.epoch(0), loader.augmentation(), device, dtype);
  while (feed.next()) {
    const FedBatch& batch = feed.batch();
    // A barrier now and then, equally often on all ranks, keeps ranks that wait from timing out.
    if (together && ++batches % kBatchesPerBarrier == 0)
      learners->collective("evaluation", [](Communicator& comm) { comm.barrier(); });
    if (batch.count == 0) continue;  // fewer images were left than learners
    Tape tape({.training = false});
    const Var logits = model.forward(tape, Var(batch.images));
    const Var loss = softmax_cross_entropy(tape, logits, batch.labels);
    (void)feed.prefetch();
    out.loss += to_double(loss.value().item()) * to_double(batch.count);
    out.samples += batch.count;
    const Tensor scores = logits.value().to(Device{});
    first += count_top_k(scores, batch.labels, 1);
    five += count_top_k(scores, batch.labels, 5);
    if (mistakes != nullptr) mistakes->add(scores, batch.labels, batch.first_sample);
  }
  if (together) {
    const Tensor counts = Tensor::empty_on(Device{}, {3}, DType::i64);
    const Tensor loss = Tensor::from({to_float(out.loss)});
    int64_t* c = counts.data<int64_t>();
    c[0] = out.samples, c[1] = first, c[2] = five;
    learners->collective("evaluation", [&](Communicator& comm) {
      comm.all_reduce(counts);
      comm.all_reduce(loss);
    });
    out.samples = c[0], first = c[1], five = c[2], out.loss = loss.item();
    if (mistakes != nullptr) mistakes->combine(*learners);
  }
  check(out.samples > 0, "validation: expected images, found none");
  const double samples = to_double(out.samples);
  out.loss /= samples;
  out.acc1 = 100.0 * to_double(first) / samples;
  out.acc5 = 100.0 * to_double(five) / samples;
  out.seconds = steady_seconds() - begin;
  return out;
}

void average_buffers(ParameterStore& store, LearnerOptimizer& learners) {
  if (learners.learners() == 1) return;
  learners.collective("batch norm", [&](Communicator& comm) {
    for (Buffer& buffer : store.buffers()) {
      if (buffer.value.dtype() != DType::f32) continue;
      comm.all_reduce(buffer.value);
      scale(buffer.value, 1.0f / to_float(comm.size()));
    }
  });
}

std::vector<Guess> predict(const ImageClassifier& model, const std::string& file,
                           const Augmentation& prepare, Device device, int count) {
  Image image;
  read_image_file(file, image);
  Tensor pixels = Tensor::empty_on(Device{}, {1, 3, prepare.size, prepare.size});
  augment(prepare, image, Philox(0, 0), 0, pixels.data<float>());
  Tape tape({.training = false});
  const Var logits = model.forward(tape, Var(pixels.to(device)));
  const std::vector<float> scores = logits.value().to_vector();
  return best_classes(scores, count, file);
}

}  // namespace heddle
