// What most programs need: tensors and the tape, layers, data sets, learners as threads,
// compression, and the optimizers that use them. One header of each folder is enough to read first:
// core/tape.h, layers/linear.h, data/loader.h, comm/communicator.h, compress/reducer.h,
// optim/data_parallel.h.
//
//   #include <heddle.h>
#pragma once

#include "comm/threads.h"
#include "compress/families.h"
#include "core/context.h"
#include "core/parameters.h"
#include "core/safetensors.h"
#include "core/tape.h"
#include "core/tensor.h"
#include "data/graph.h"
#include "data/loader.h"
#include "data/neighbour_sampler.h"
#include "data/row_batches.h"
#include "data/shapes.h"
#include "data/text.h"
#include "layers/activation.h"
#include "layers/attention.h"
#include "layers/batchnorm.h"
#include "layers/concat.h"
#include "layers/conv2d.h"
#include "layers/embedding.h"
#include "layers/graph_net.h"
#include "layers/gru.h"
#include "layers/layernorm.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/lstm.h"
#include "layers/lstm_lm.h"
#include "layers/pooling.h"
#include "layers/resnet.h"
#include "layers/shortcut.h"
#include "layers/small_cnn.h"
#include "layers/sparse.h"
#include "layers/weights.h"
#include "optim/data_parallel.h"
#include "optim/decentralized.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
