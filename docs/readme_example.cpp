#include <cstdio>
#include <memory>

#include "comm/threads.h"
#include "compress/families.h"
#include "core/context.h"
#include "data/loader.h"
#include "data/shapes.h"
#include "layers/activation.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/pooling.h"
#include "optim/data_parallel.h"
using namespace heddle;

int main() {
  const std::shared_ptr<const ImageDataset> images =
      render_shapes(Split::train, {.image_size = 16, .train_images = 3200});
  run_threads(4, [&](Communicator& comm) {  // each learner runs this on a thread of its own
    Context context({.threads = 1});
    ParameterStore store;
    const Conv2d conv1(store, "conv1", {.in = 3, .out = 32, .kernel = 3, .stride = 2});
    const Conv2d conv2(store, "conv2", {.in = 32, .out = 128, .kernel = 3, .stride = 2});
    const Linear head(store, "head", 128, 10);
    store.finalize(/*seed=*/1);
    const Loader loader(
        images, make_augmentation("none", images->info(), Split::train, 16),
        {.batch_size = 16, .shuffle = true, .rank = comm.rank(), .world_size = comm.size()});
    DataParallelOptimizer optimizer(store, make_sgd({.momentum = 0.9}), comm, {}, {},
                                    make_reducer(parse_compress("scalecom:rate=100"), {}, store));
    for (int epoch = 0; epoch < 4; ++epoch) {
      double loss_sum = 0;
      for (const Batch& batch : loader.epoch(epoch)) {
        Tape tape;
        Var x = relu(tape, conv1.forward(tape, Var(batch.images)));
        x = global_average_pool(tape, relu(tape, conv2.forward(tape, x)));
        const Var loss = softmax_cross_entropy(tape, head.forward(tape, x), batch.labels);
        loss_sum += loss.value().item();
        optimizer.begin_step(/*lr=*/0.05);
        optimizer.backward(tape, loss);  // buckets are compressed and exchanged while it runs
        optimizer.finish_step();
      }
      if (comm.rank() == 0) std::printf("epoch %d: loss %.3f\n", epoch + 1, loss_sum / 50);
    }
  });
}
