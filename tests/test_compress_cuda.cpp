// CUDA's codecs against the CPU's, byte for byte: the code for the GPU runs under
// tests/cuda_emulation.h.
#include "tests/cuda_emulation.h"
// clang-format off
#include "compress/codecs/blocks_cuda.cu"
#include "compress/codecs/sparse_kernels_cuda.cu"
#include "compress/codecs/low_rank.cu"
// clang-format on

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "compress/codecs/magnitude.h"
#include "core/context.h"
#include "tests/compress_helpers.h"

using namespace heddle;

namespace {

// Random numbers with many ties, and with values that are hard to compare.
Tensor hard_values(int64_t n, bool extremes) {
  const Tensor x = Tensor::empty_on(Device{}, {n});
  const Philox rng(3, static_cast<uint64_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const auto place = static_cast<uint64_t>(i);
    float v = rng.below(2 * place, 2) == 0 ? rng.normal(i) : 0.25f * rng.below(2 * place + 1, 5);
    if (extremes) {
      const uint32_t draw = rng.below(4 * place + 2, 40);
      v = draw == 0 ? NAN : (draw == 1 ? -INFINITY : (draw == 2 ? 1e-42f : v));
    }
    if (rng.below(4 * place + 3, 20) == 0) v = place % 2 == 0 ? -0.0f : -1e-9f;  // below fp16's
    x.data<float>()[i] = v;
  }
  return x;
}

Tensor places_like(int64_t count) {
  const Tensor out = Tensor::empty_on(Device{}, {count}, DType::i32);
  std::memset(out.raw(), 0xff, static_cast<size_t>(out.bytes()));
  return out;
}

double furthest(const Tensor& a, const Tensor& b) {
  double out = 0;
  for (int64_t i = 0; i < a.size(); ++i)
    out = std::max(out, std::abs(static_cast<double>(a.data<float>()[i]) - b.data<float>()[i]));
  return out;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0);
}

}  // namespace

TEST_CASE("CUDA codecs: the largest of every chunk, with and without a residual") {
  Context context;
  for (const int64_t n : {1, 3, 100, 4000, 4001, 12345, 70000})
    for (const int64_t chunk : {1, 2, 3, 7, 100, 333, 1024, 1025, 4096, 5000, 9001, 1000000}) {
      CAPTURE(n);
      CAPTURE(chunk);
      const int64_t chunks = (n + chunk - 1) / chunk;
      const Tensor g = hard_values(n, false), m = hard_values(n, false).clone();
      for (int64_t i = 0; i + 3 < n; i += 2) m.data<float>()[i] = -m.data<float>()[i + 3];
      const Tensor g2 = g.clone(), m2 = m.clone();
      const Tensor place = places_like(chunks), place2 = places_like(chunks);
      const Tensor size = places_like(chunks), size2 = places_like(chunks);
      cpu::add_and_swap(g, m, chunk, place, size);
      emulated::add_and_swap(g2, m2, chunk, place2, size2);
      CHECK(same_bytes(g, g2));
      CHECK(same_bytes(m, m2));
      CHECK(same_bytes(place, place2));
      CHECK(same_bytes(size, size2));
      const Tensor x = hard_values(n, true);
      for (const bool numbers : {true, false}) {
        cpu::largest_of_chunks(x, chunk, numbers, place, size);
        emulated::largest_of_chunks(x, chunk, numbers, place2, size2);
        CHECK(same_bytes(place, place2));
        CHECK(same_bytes(size, size2));
      }
    }
}

TEST_CASE("CUDA codecs: the k largest of all") {
  Context context;
  for (const int64_t n : {1, 5, 4095, 4096, 4097, 30000})
    for (const int64_t k : {int64_t{0}, int64_t{1}, n / 100, n / 3, n - 1, n})
      for (const bool extremes : {false, true}) {
        CAPTURE(n);
        CAPTURE(k);
        const Tensor x = hard_values(n, extremes);
        const Tensor expected = places_like(k), found = places_like(k);
        cpu::select_top(x, k, expected);
        emulated::select_top(x, k, found);
        CHECK(same_bytes(found, expected));
      }
  const Tensor equal = Tensor::zeros({5000});
  const Tensor found = places_like(70);
  emulated::select_top(equal, 70, found);
  for (int32_t i = 0; i < 70; ++i) CHECK(found.data<int32_t>()[i] == i);
}

TEST_CASE("CUDA codecs: the selection of AdaComp") {
  Context context;
  for (const int64_t n : {1, 5, 4095, 4097, 30000})
    for (const int64_t bin : {1, 3, 50, 4096, 40000})
      for (const float ahead : {0.0f, 0.5f, 1.0f}) {
        CAPTURE(n);
        CAPTURE(bin);
        const Tensor old = hard_values(n, false), x = old.clone();
        for (int64_t i = 0; i < n; i += 2) x.data<float>()[i] += old.data<float>()[(i + 7) % n];
        const Tensor largest = places_like((n + bin - 1) / bin);
        cpu::largest_of_chunks(x, bin, true, places_like(largest.size()), largest);
        const Tensor expected = cpu::select_active(x, old, ahead, bin, largest);
        CHECK(same_bytes(emulated::select_active(x, old, ahead, bin, largest), expected));
        if (bin < n) CHECK(expected.size() > 0);
      }
  const Tensor zeros = Tensor::zeros({5000}), none = Tensor::zeros({100}, DType::i32);
  CHECK(emulated::select_active(zeros, zeros, 1, 50, none).size() == 0);
  CHECK(cpu::select_active(zeros, zeros, 1, 50, none).size() == 0);
}

TEST_CASE("CUDA codecs: indices as bits, round trip") {
  Context context;
  struct Form {
    int64_t n, k, chunk;
  };
  for (const Form& f : {Form{1, 1, 1},
                        {1000, 10, 100},
                        {1001, 11, 100},
                        {999, 500, 2},
                        {17, 3, 7},
                        {5000, 50, 0},
                        {5000, 2500, 0},
                        {9, 9, 0},
                        {70001, 700, 0},
                        {256, 0, 0}}) {
    CAPTURE(f.n);
    CAPTURE(f.k);
    const IndexCode code{f.n, f.k, f.chunk};
    const Tensor x = hard_values(f.n, false);
    const Tensor indices = select_indices(code, x);
    for (const int64_t at : {0, 1}) {  // in a message they begin anywhere
      const Tensor a = Tensor::zeros({code.bytes() + 1}, DType::u8), b = a.clone();
      cpu::encode_indices(code, indices, a.slice(at, at + code.bytes()));
      emulated::encode_indices(code, indices, b.slice(at, at + code.bytes()));
      CHECK(same_bytes(a, b));
      CHECK(same_bytes(emulated::decode_indices(code, b.slice(at, at + code.bytes())), indices));
    }
  }
}

TEST_CASE("CUDA codecs: casts and levels, encoded, added and decoded") {
  Context context;
  for (const Coding coding : {Coding::fp32, Coding::bf16, Coding::fp16, Coding::levels})
    for (const int bits : {2, 3, 4, 7, 8})
      for (const int64_t n : {1, 64, 511, 512, 2048, 5001}) {
        if (coding != Coding::levels && bits > 2) continue;
        CAPTURE(static_cast<int>(coding));
        CAPTURE(bits);
        CAPTURE(n);
        const int64_t length = coding == Coding::levels && n > 511 ? 509 : n;
        const int64_t part =
            CodedBlocks{.n = n, .block = length, .coding = coding, .bits = bits}.bytes(4);
        for (const bool noise : {true, false})
          for (const bool numbers : {true, false}) {
            const Tensor x = hard_values(n, !numbers), y = Tensor::zeros({n}), z = y.clone();
            const Tensor a = Tensor::zeros({3 * part}, DType::u8), b = a.clone();
            CodedBlocks block{.x = x.data<float>(),
                              .n = n,
                              .begin = 1000,
                              .block = length,
                              .seed = 5,
                              .coding = coding,
                              .stochastic = noise,
                              .bits = bits};
            std::vector<CodedBlocks> blocks;
            for (int r = 0; r < 3; ++r) {  // of three ranks
              block.offset = r * part;
              block.stream = static_cast<uint64_t>(r);
              blocks.push_back(block);
            }
            cpu::encode_blocks(blocks, a.data<uint8_t>());
            emulated::encode_blocks(blocks, b.data<uint8_t>());
            CHECK(same_bytes(a, b));
            std::vector<CodedBlocks> sum = {block};
            sum[0].offset = 0;
            sum[0].x = y.data<float>();
            cpu::add_blocks(sum, a.data<uint8_t>(), part, 3);
            sum[0].x = z.data<float>();
            emulated::add_blocks(sum, a.data<uint8_t>(), part, 3);
            if (numbers) CHECK(same_bytes(y, z));
            sum[0].x = y.data<float>();
            cpu::decode_blocks(sum, a.data<uint8_t>());
            sum[0].x = z.data<float>();
            emulated::decode_blocks(sum, a.data<uint8_t>());
            if (numbers) CHECK(same_bytes(y, z));
          }
      }
}

TEST_CASE("CUDA codecs: PowerSGD's factors") {
  Context context;
  for (const int64_t r : {1, 2, 5})
    for (const int64_t n : {5, 255, 256, 1000})
      for (const int64_t columns : {1, 7, 300}) {
        CAPTURE(r);
        CAPTURE(n);
        CAPTURE(columns);
        const Tensor p = hard_values(r * n, false).reshape({r, n}), p2 = p.clone();
        const Tensor zeros = Tensor::zeros({2, n}), zeros2 = zeros.clone();
        cpu::orthogonalize({p, zeros});
        emulated::orthogonalize({p2, zeros2});
        CHECK(furthest(p2, p) < 1e-6);  // sums in another order
        CHECK(same_bytes(zeros2, zeros));

        const Tensor q = hard_values(r * columns, false).reshape({r, columns});
        const Tensor out = Tensor::zeros({n * columns}), out2 = out.clone();
        cpu::multiply_factors(p, q, out);
        emulated::multiply_factors(p, q, out2);
        CHECK(furthest(out2, out) < 1e-6);  // the CPU may fuse multiply and add

        q.slice(r - 1, r).fill_zero();  // a zero row leaves next's as it was
        const Tensor next = hard_values(r * columns, false).reshape({r, columns});
        const Tensor next2 = next.clone();
        cpu::next_factor(q, 3, next);
        emulated::next_factor(q, 3, next2);
        CHECK(same_bytes(next2, next));
      }
}

TEST_CASE("codecs: elements at indices, on the CPU") {
  Context context;
  const Tensor x = Tensor::from({1, 2, 3, 4, 5}), indices = index_tensor({4, 1, 9});
  const Tensor values = Tensor::zeros({3});
  cpu::gather(x, indices, values);
  CHECK(values.data<float>()[0] == 5);
  CHECK(values.data<float>()[1] == 2);
  CHECK(std::isnan(values.data<float>()[2]));  // index 9 is outside x
  cpu::scatter(Tensor::from({10, 20, 30}), indices, x);
  CHECK(x.to_vector() == Values{1, 20, 3, 4, 10});
  cpu::scatter_add(Tensor::from({1, 2, 3}), indices, x);
  CHECK(x.to_vector() == Values{1, 22, 3, 4, 11});
  cpu::scatter_value(0, indices, x);
  CHECK(x.to_vector() == Values{1, 0, 3, 4, 0});
  cpu::low_pass(Tensor::from({1, 1, 1, 1, 1}), x, 0.25);
  CHECK(x.to_vector() == Values{1, 0.75, 1.5, 1.75, 0.75});
}

// More loops than the arguments of one kernel hold, of several kinds and lengths.
TEST_CASE("CUDA codecs: joined loops are those that run one by one") {
  Context context;
  std::vector<Tensor> x, values, g, m, found, sizes;
  const auto chunk_of = [](size_t i) { return i % 3 == 0 ? int64_t{3000} : int64_t{7}; };
  for (size_t i = 0; i < 200; ++i) {
    const auto n = static_cast<int64_t>(i * 37 % 5000 + 1);
    x.push_back(hard_values(n, false));
    values.push_back(Tensor::zeros(x[i].shape()));
    g.push_back(hard_values(n, false));
    m.push_back(hard_values(n, false));
    found.push_back(Tensor::zeros({(n + chunk_of(i) - 1) / chunk_of(i)}, DType::i32));
    sizes.push_back(found[i].clone());
  }
  const auto run = [&](auto&& copy_words, auto&& add_and_swap) {
    for (size_t i = 0; i < x.size(); ++i) {
      copy_words(x[i], values[i]);
      add_and_swap(g[i], m[i], chunk_of(i), found[i], sizes[i]);
    }
  };
  const auto all = [&] {
    std::vector<Tensor> out;
    for (const auto* tensors : {&values, &g, &m, &found, &sizes})
      for (const Tensor& t : *tensors) out.push_back(t.clone());
    return out;
  };
  const std::vector<Tensor> before = all();
  const auto joined = [&](bool launch) {
    JoinedLaunches launches;
    CHECK_THROWS_AS(JoinedLaunches(), InputError);
    run([](auto&&... a) { emulated::copy_words(a...); },
        [](auto&&... a) { emulated::add_and_swap(a...); });
    if (launch) launches.launch();
  };
  joined(false);  // forgotten
  const std::vector<Tensor> forgotten = all();
  joined(true);
  const std::vector<Tensor> after = all();
  for (size_t i = 0; i < x.size(); ++i) {  // as it was
    values[i].fill_zero();
    g[i].copy_from(before[x.size() + i]);
    m[i].copy_from(before[2 * x.size() + i]);
  }
  run([](auto&&... a) { cpu::copy_words(a...); }, [](auto&&... a) { cpu::add_and_swap(a...); });
  const std::vector<Tensor> expected = all();
  for (size_t i = 0; i < before.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bytes(forgotten[i], before[i]));
    CHECK(same_bytes(after[i], expected[i]));
  }
}
