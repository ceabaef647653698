// minimal_train: one small network, trained three times with the same loop.
//
//   1  one learner          backward -> update
//   2  four learners        backward -> bucket -> all-reduce -> update
//   3  four with ScaleCom   backward -> bucket -> leader selects 1 % -> all-reduce -> update
//
// A learner is a rank with a replica of the model and a share of every batch. Here learners are
// threads; with an MpiSession (comm/mpi_communicator.h) the same train() runs as processes. Each
// step of training forms the mean gradient of all learners, so that the replicas stay equal. While
// backward is still computing the gradients of the first layers, those of the last are already on
// their way to the other learners: optim/data_parallel.h shows how.
//
// The program takes no options; `train_resnet --help` lists what a real run may want.
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "comm/threads.h"
#include "compress/families.h"
#include "core/context.h"
#include "core/tape.h"
#include "data/loader.h"
#include "data/shapes.h"
#include "layers/activation.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/pooling.h"
#include "optim/data_parallel.h"

using namespace heddle;

namespace {

// ------------------------------------------------------------------------------------- the model
// Three convolutions, the mean over the pixels, one linear layer. The constructor adds the
// parameters to the store; forward() records each layer and its backward pass on the tape.
struct ConvNet {
  explicit ConvNet(ParameterStore& store)
      : conv1(store, "conv1", {.in = 3, .out = 16, .kernel = 3, .padding = 1, .bias = true}),
        conv2(store, "conv2",
              {.in = 16, .out = 32, .kernel = 3, .stride = 2, .padding = 1, .bias = true}),
        conv3(store, "conv3",
              {.in = 32, .out = 128, .kernel = 3, .stride = 2, .padding = 1, .bias = true}),
        head(store, "head", 128, 10) {}

  // images (N, 3, 16, 16) -> logits (N, 10)
  Var forward(Tape& tape, const Var& images) const {
    Var x = relu(tape, conv1.forward(tape, images));  // (N, 16, 16, 16)
    x = relu(tape, conv2.forward(tape, x));           // (N, 32, 8, 8)
    x = relu(tape, conv3.forward(tape, x));           // (N, 128, 4, 4)
    return head.forward(tape, global_average_pool(tape, x));
  }

  Conv2d conv1, conv2, conv3;
  Linear head;
};

// ------------------------------------------------------------------------------------ the learner
struct Result {
  double first_loss = 0, last_loss = 0;  // of the first and the last step, mean over all learners
  double bytes_per_step = 0;             // that a learner sends, mean over steps and learners
};

constexpr int kBatch = 64;  // images per step, of all learners together
constexpr int kEpochs = 4;
constexpr double kLearningRate = 0.05;

// Trains one replica. Every rank calls this at the same time, each on a thread of its own.
// `compress` names the algorithm by which the learners exchange gradients; "" sums them densely.
Result train(Communicator& comm, const std::string& compress) {
  Context context({.threads = 1});  // this learner's memory pool and library handles
  ParameterStore store;
  const ConvNet model(store);
  store.finalize(/*seed=*/1);

  // Each learner reads its share of every batch: rank 0 the first part, rank 1 the second, ...
  const std::shared_ptr<const ImageDataset> images =
      render_shapes(Split::train, {.image_size = 16, .train_images = 3200});
  const Loader loader(images, make_augmentation("none", images->info(), Split::train, /*size=*/16),
                      {.batch_size = kBatch / comm.size(),
                       .workers = 0,
                       .shuffle = true,
                       .drop_last = true,
                       .rank = comm.rank(),
                       .world_size = comm.size()});

  // A reducer sums gradients over the ranks by a compression algorithm and keeps, in a residual,
  // what it did not send. Without one the optimizer sums every gradient in full.
  std::unique_ptr<Reducer> reducer;
  if (!compress.empty()) reducer = make_reducer(parse_compress(compress), {}, store);
  DataParallelOptimizer optimizer(store, make_sgd({.momentum = 0.9}), comm, {},
                                  {.bucket_bytes = 64 << 10}, std::move(reducer));

  Result result;
  int64_t steps = 0;
  const int64_t sent_before = comm.total_traffic().sent;  // the initial weights
  for (int epoch = 0; epoch < kEpochs; ++epoch)
    for (const Batch& batch : loader.epoch(epoch)) {
      Tape tape;
      const Var logits = model.forward(tape, Var(batch.images));
      const Var loss = softmax_cross_entropy(tape, logits, batch.labels);

      optimizer.begin_step(kLearningRate);
      tape.backward(
          loss,
          // p.grad is final. When its bucket is complete, the exchange starts on another thread.
          [&](Parameter& p) { optimizer.ready(p); },
          // Backward has read p.value for the last time. It is updated once p.grad has been summed.
          [&](Parameter& p) { optimizer.weights_free(p); });
      optimizer.finish_step();  // waits for what is still being exchanged

      result.last_loss = loss.value().item();
      if (steps++ == 0) result.first_loss = result.last_loss;
    }

  // Averages the three figures over the learners, as one collective after the last exchange.
  result.bytes_per_step =
      static_cast<double>(comm.total_traffic().sent - sent_before) / static_cast<double>(steps);
  optimizer.collective("results", [&](Communicator& c) {
    const auto mean =
        mean_over_ranks(c, {result.first_loss, result.last_loss, result.bytes_per_step});
    result = {mean[0], mean[1], mean[2]};
  });
  optimizer.check_replicas();  // throws if any two learners' weights differ in any bit
  return result;
}

// Trains with `learners` threads and prints one line.
void run(const char* title, int learners, const std::string& compress) {
  Result result;
  run_threads(learners, [&](Communicator& comm) {
    const Result mine = train(comm, compress);
    if (comm.rank() == 0) result = mine;
  });
  std::printf("%-26s loss %.3f -> %.3f   sent by a learner: %8.0f bytes per step\n", title,
              result.first_loss, result.last_loss, result.bytes_per_step);
}

}  // namespace

int main() {
  // 1. The tape announces each final gradient, the optimizer updates at once. Nothing is sent.
  run("one learner", 1, "");

  // 2. Four quarters of the same batches have the same mean gradient up to rounding: losses start
  //    out equal. A ring all-reduce sends 2 * 3/4 of the 43,370 gradients, 4 bytes each.
  run("four learners", 4, "");

  // 3. ScaleCom (Chen et al. 2020): one learner, a different one each step, selects one gradient in
  //    every hundred; all learners send those and keep the others in their residuals. The small
  //    tensors (biases, the first convolution) travel dense.
  run("four learners, ScaleCom", 4, "scalecom:rate=100");
}
