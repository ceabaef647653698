// A compression algorithm to copy: groups of rows of a layer (O, ...) are each sent as the mean of
// their elements, and what the means leave out stays in a residual. It shows what every
// algorithm of heddle has: a class with exchange(), a function that makes it, and a row in the
// table of families. docs/new_reducer.md explains it. Compiled and run by the tests.
#include <algorithm>

#include "compress/compressed_reducer.h"
#include "tests/compress_helpers.h"

namespace {

using namespace heddle;

class RowMeans : public CompressedReducer {
 public:
  explicit RowMeans(const ReducerSetup& setup) : CompressedReducer(setup) { feedback_.emplace(); }

 protected:
  // The items hold gradient plus residual. All ranks run the same collectives: branches may depend
  // only on what is the same on all of them.
  bool exchange(Exchange& e) override {
    NamedTensors sums = e.dense;
    std::vector<Tensor> means;
    for (const Item& item : e.compressed) {
      const int64_t chunk = chunk_of(item);
      const Tensor mean = Tensor::zeros({(item.n() + chunk - 1) / chunk});
      for (int64_t i = 0; i < item.n(); ++i)
        mean.data<float>()[i / chunk] +=
            item.x()[i] / static_cast<float>(std::min(chunk, item.n() - i / chunk * chunk));
      means.push_back(mean);
      sums.emplace_back(item.name(), mean.clone());
    }
    if (!all_reduce(e, sums)) return false;  // no residual has been written to
    for (size_t k = 0; k < means.size(); ++k) {
      const Item& item = e.compressed[k];
      const int64_t chunk = chunk_of(item);
      const float* mine = means[k].data<float>();
      const float* sum = sums[e.dense.size() + k].second.data<float>();
      for (int64_t i = 0; i < item.n(); ++i) {
        item.x()[i] -= mine[i / chunk];  // the rest is the new residual
        item.sum.data<float>()[i] = sum[i / chunk];
      }
    }
    return true;
  }

 private:
  // Returns how many elements share a mean: those of as many rows as the layer's setting says.
  static int64_t chunk_of(const Item& item) {
    const int64_t width = item.n() / item.layer->parameter->shape()[0];
    return width * static_cast<int64_t>(item.layer->now);
  }
};

std::unique_ptr<Reducer> make_row_means(const ReducerSetup& setup) {
  return std::make_unique<RowMeans>(setup);
}

// Its row in the table of algorithms, which a program of your own adds; within heddle it stands in
// compress/families.cpp.
const Family kRowMeans = {"rowmeans",
                          {{.name = "rows", .initial = 1, .low = 1, .high = 64, .whole = true}},
                          make_row_means};

}  // namespace

TEST_CASE("the reducer to copy: delivered and kept gradients sum to all gradients") {
  add_family(kRowMeans);
  CHECK_THROWS_AS(add_family(kRowMeans), InputError);
  for (const char* spec : {"rowmeans", "rowmeans:rows=2", "rowmeans:rows=64"}) {
    std::vector<double> missing(10000);  // by index in the flat buffer
    std::mutex mutex;
    expect_none(run_ranks(3, [&](Communicator& comm) {
      CompressModel model;
      const auto reducer = make_reducer(parse_compress(spec), {}, model.store);
      Ledger ledger;
      std::vector<double> mine(missing.size());
      const auto count = [&](const Tensor& x, int64_t offset, double sign) {
        for (int64_t i = 0; i < x.size(); ++i)
          mine[static_cast<size_t>(offset + i)] += sign * x.data<float>()[i];
      };
      for (int64_t step = 0; step < 4; ++step) {
        model.fill_random(comm.rank(), step);
        count(model.store.grads(), 0, 1);
        if (!reducer->reduce(model.bucket(step), comm, ledger)) throw Error("not accepted");
        if (comm.rank() == 0) count(model.store.grads(), 0, -1);
      }
      for (const auto& [name, residual] : reducer->named_state())
        count(residual, model.store.find(name.substr(std::string("residual.").size()))->offset, -1);
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < mine.size(); ++i) missing[i] += mine[i];
    }));
    for (const double m : missing) CHECK(std::abs(m) < 1e-4);
  }
}
