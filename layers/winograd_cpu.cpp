#include <omp.h>

#include <algorithm>

#include "core/parallel.h"
#include "core/simd.h"
#include "layers/winograd.h"

namespace heddle::cpu {
namespace {

using L = Lanes<16>;
using Vec = L::Vec;

constexpr int64_t kPositions = 36;  // of a transformed tile
constexpr int64_t kBlock = 24;      // tiles of one pass of the inner product

// Computes Bᵀ d: six inputs to six.
inline void transform_input(const Vec d[6], Vec t[6]) {
  const Vec a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1];
  const Vec c = d[4] - d[2], e = 2.0f * (d[3] - d[1]);
  t[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
  t[1] = a + b;
  t[2] = a - b;
  t[3] = c + e;
  t[4] = c - e;
  t[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
}

// Computes Aᵀ m: six products to four outputs.
inline void transform_output(const Vec m[6], Vec y[4]) {
  const Vec s1 = m[1] + m[2], s2 = m[1] - m[2], s3 = m[3] + m[4], s4 = m[3] - m[4];
  y[0] = m[0] + s1 + s3;
  y[1] = s2 + 2.0f * s4;
  y[2] = s1 + 4.0f * s3;
  y[3] = s2 + 8.0f * s4 + m[5];
}

// Computes A g, the adjoint of transform_output: four output gradients to six.
inline void transform_output_gradient(const Vec g[4], Vec m[6]) {
  const Vec even = g[0] + g[2], odd = g[1] + g[3];
  const Vec far = g[0] + 4.0f * g[2], far_odd = 2.0f * g[1] + 8.0f * g[3];
  m[0] = g[0];
  m[1] = even + odd;
  m[2] = even - odd;
  m[3] = far + far_odd;
  m[4] = far - far_odd;
  m[5] = g[3];
}

// Computes G w: three weights to six.
inline void transform_weight(const Vec w[3], Vec u[6]) {
  const Vec near = (w[0] + w[2]) * (-1.0f / 6), middle = w[1] * (-1.0f / 6);
  const Vec far = (w[0] + 4.0f * w[2]) * (1.0f / 24), half = w[1] * (1.0f / 12);
  u[0] = w[0] * 0.25f;
  u[1] = near + middle;
  u[2] = near - middle;
  u[3] = far + half;
  u[4] = far - half;
  u[5] = w[2];
}

// Computes Gᵀ u, the adjoint of transform_weight: six gradients to three.
inline void transform_weight_gradient(const Vec u[6], Vec w[3]) {
  const Vec near = (u[1] + u[2]) * (-1.0f / 6), far = u[3] + u[4];
  w[0] = 0.25f * u[0] + near + far * (1.0f / 24);
  w[1] = (u[2] - u[1]) * (1.0f / 6) + (u[3] - u[4]) * (1.0f / 12);
  w[2] = near + far * (1.0f / 6) + u[5];
}

// Applies a one-dimensional transform to the columns of a kIn x kIn square, then to the rows.
template <int kIn, int kOut, class Transform>
inline void transform_square(const Vec in[kIn][kIn], Vec out[kOut][kOut], Transform transform) {
  Vec half[kOut][kIn];
  HEDDLE_UNROLL
  for (int j = 0; j < kIn; ++j) {
    Vec column[kIn], result[kOut];
    HEDDLE_UNROLL
    for (int i = 0; i < kIn; ++i) column[i] = in[i][j];
    transform(column, result);
    HEDDLE_UNROLL
    for (int i = 0; i < kOut; ++i) half[i][j] = result[i];
  }
  HEDDLE_UNROLL
  for (int i = 0; i < kOut; ++i) transform(half[i], out[i]);
}

// The tiles of a batch of maps, counted image by image, row by row.
struct Tiles {
  int64_t images, channels, height, width, rows, columns;

  explicit Tiles(const Tensor& x)
      : images(x.shape()[0]),
        channels(x.shape()[1]),
        height(x.shape()[2]),
        width(x.shape()[3]),
        rows((height + 3) / 4),
        columns((width + 3) / 4) {}
  int64_t count() const { return images * rows * columns; }
};

// A tile's image, and the first row and column of its outputs.
struct Place {
  int64_t image, top, left;
  Place(const Tiles& t, int64_t tile)
      : image(tile / (t.rows * t.columns)),
        top(tile / t.columns % t.rows * 4),
        left(tile % t.columns * 4) {}
};

// Reads a kSize x kSize square whose corner lies at (top, left), with zeros outside the map.
template <int kSize>
inline void load_square(const float* map, const Tiles& t, int64_t top, int64_t left,
                        Vec out[kSize][kSize]) {
  const float* corner = map + (top * t.width + left) * 16;
  if (top >= 0 && left >= 0 && top + kSize <= t.height && left + kSize <= t.width) {
    HEDDLE_UNROLL
    for (int i = 0; i < kSize; ++i) {
      HEDDLE_UNROLL
      for (int j = 0; j < kSize; ++j) out[i][j] = L::load(corner + (i * t.width + j) * 16);
    }
    return;
  }
  for (int i = 0; i < kSize; ++i)
    for (int j = 0; j < kSize; ++j) {
      const int64_t y = top + i, x = left + j;
      const bool valid = y >= 0 && y < t.height && x >= 0 && x < t.width;
      out[i][j] = valid ? L::load(corner + (i * t.width + j) * 16) : Vec{};
    }
}

// A group's transformed tiles: [position][channel block][tile][16].
struct Group {
  float* data;
  int64_t blocks, tiles;
  int64_t stride() const { return blocks * tiles * 16; }  // from position to position
  float* at(int64_t position, int64_t block, int64_t tile) const {
    return data + position * stride() + (block * tiles + tile) * 16;
  }
};

// Transforms tiles [first, first + count) of x into v; the tiles after them are zeros.
template <bool kGradient>
void transform_tiles(const float* x, const Tiles& t, int64_t first, int64_t count, const Group& v) {
  constexpr int kSize = kGradient ? 4 : 6;
  for (int64_t i = 0; i < v.tiles; ++i) {
    const Place p(t, first + i);
    for (int64_t block = 0; block < v.blocks; ++block) {
      Vec square[kSize][kSize], out[6][6] = {};
      if (i < count) {
        const float* map = x + (p.image * v.blocks + block) * t.height * t.width * 16;
        if constexpr (kGradient) {
          load_square<4>(map, t, p.top, p.left, square);
          transform_square<4, 6>(square, out, transform_output_gradient);
        } else {
          load_square<6>(map, t, p.top - 1, p.left - 1, square);
          transform_square<6, 6>(square, out, transform_input);
        }
      }
      float* to = v.at(0, block, i);
      HEDDLE_UNROLL
      for (int position = 0; position < kPositions; ++position, to += v.stride())
        L::store(to, out[position / 6][position % 6]);
    }
  }
}

// Computes m[tile][out] = sum over in of v[tile][in] * u[in][out] for kTiles tiles and kOuts blocks
// of sixteen.
template <int kTiles, int kOuts>
inline void multiply_block(const Group& v, const Group& m, const float* u, int64_t position,
                           int64_t tile, int64_t out_block, int64_t out_channels) {
  Vec sum[kOuts][kTiles] = {};
  for (int64_t block = 0; block < v.blocks; ++block) {
    const float* in = v.at(position, block, tile);
    const float* weight = u + block * 16 * out_channels + out_block * 16;
    for (int lane = 0; lane < 16; ++lane, weight += out_channels) {
      Vec w[kOuts];
      HEDDLE_UNROLL
      for (int o = 0; o < kOuts; ++o) w[o] = L::load(weight + o * 16);
      HEDDLE_UNROLL
      for (int k = 0; k < kTiles; ++k) {
        HEDDLE_UNROLL
        for (int o = 0; o < kOuts; ++o) sum[o][k] += in[k * 16 + lane] * w[o];
      }
    }
  }
  HEDDLE_UNROLL
  for (int o = 0; o < kOuts; ++o) {
    HEDDLE_UNROLL
    for (int k = 0; k < kTiles; ++k) L::store(m.at(position, out_block + o, tile + k), sum[o][k]);
  }
}

void multiply(const Group& v, const Group& m, const float* u) {
  const int64_t in_channels = v.blocks * 16, out_channels = m.blocks * 16;
  for (int64_t position = 0; position < kPositions; ++position) {
    const float* weight = u + position * in_channels * out_channels;
    for (int64_t tile = 0; tile < v.tiles; tile += kBlock) {
      int64_t block = 0;
      for (; block + 2 <= m.blocks; block += 2)
        for (int64_t k = 0; k < kBlock; k += 12)
          multiply_block<12, 2>(v, m, weight, position, tile + k, block, out_channels);
      for (; block < m.blocks; ++block)
        multiply_block<24, 1>(v, m, weight, position, tile, block, out_channels);
    }
  }
}

void store_tiles(const Group& m, float* y, const Tiles& t, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Place p(t, first + i);
    const int64_t rows = std::min<int64_t>(4, t.height - p.top);
    const int64_t columns = std::min<int64_t>(4, t.width - p.left);
    for (int64_t block = 0; block < m.blocks; ++block) {
      Vec square[6][6], out[4][4];
      const float* from = m.at(0, block, i);
      HEDDLE_UNROLL
      for (int position = 0; position < kPositions; ++position, from += m.stride())
        square[position / 6][position % 6] = L::load(from);
      transform_square<6, 4>(square, out, transform_output);
      float* corner =
          y + (((p.image * m.blocks + block) * t.height + p.top) * t.width + p.left) * 16;
      if (rows == 4 && columns == 4) {
        HEDDLE_UNROLL
        for (int r = 0; r < 4; ++r) {
          HEDDLE_UNROLL
          for (int c = 0; c < 4; ++c) L::store(corner + (r * t.width + c) * 16, out[r][c]);
        }
      } else {
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c)
            L::store(corner + (r * t.width + c) * 16, out[r][c]);
      }
    }
  }
}

// Returns u[position][in][out] of w (out, in, 3, 3). Transposed, for backward, in and out swap
// roles and the kernel is rotated by 180 degrees.
Tensor transform_weights(const Tensor& w, bool transposed) {
  const int64_t rows = w.shape()[0], columns = w.shape()[1];
  const int64_t in = transposed ? rows : columns, out = transposed ? columns : rows;
  Tensor u = Tensor::empty_on(Device{}, {kPositions, in, out});
  const float* weights = w.data<float>();
  float* result = u.data<float>();
  parallel_for(in, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t o = 0; o < out; o += 16) {
        Vec kernel[3][3], full[6][6];
        for (int r = 0; r < 3; ++r)
          for (int s = 0; s < 3; ++s)
            for (int lane = 0; lane < 16; ++lane)
              kernel[r][s][lane] = transposed
                                       ? weights[((i * columns + o + lane) * 3 + 2 - r) * 3 + 2 - s]
                                       : weights[(((o + lane) * columns + i) * 3 + r) * 3 + s];
        transform_square<3, 6>(kernel, full, transform_weight);
        HEDDLE_UNROLL
        for (int position = 0; position < kPositions; ++position)
          L::store(result + (position * in + i) * out + o, full[position / 6][position % 6]);
      }
  });
  return u;
}

// Returns the number of tiles in a group: as many as keep its transformed inputs and outputs within
// the second-level cache.
int64_t group_tiles(int64_t in, int64_t out, int64_t available) {
  constexpr int64_t kFloats = 131072;
  const int64_t most = std::max<int64_t>(1, kFloats / (kPositions * (in + out)) / kBlock) * kBlock;
  return std::min(most, ceil_div(available, kBlock) * kBlock);
}

void convolve(const Tensor& x, const Tensor& u, const Tensor& y) {
  const Tiles t(x);
  const int64_t in = t.channels, out = y.shape()[1];
  const int64_t tiles = group_tiles(in, out, t.count());
  const int64_t groups = ceil_div(t.count(), tiles);
  const int64_t scratch = kPositions * (in + out) * tiles;
  const int64_t workers = std::min<int64_t>(omp_get_max_threads(), groups);
  const Tensor memory = Tensor::empty_on(Device{}, {workers, scratch});
  const float *input = x.data<float>(), *weights = u.data<float>();
  float *output = y.data<float>(), *scratches = memory.data<float>();
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      const Group v = {scratches + worker * scratch, in / 16, tiles};
      const Group m = {v.data + kPositions * in * tiles, out / 16, tiles};
      for (int64_t g = groups * worker / workers; g < groups * (worker + 1) / workers; ++g) {
        const int64_t first = g * tiles, count = std::min(tiles, t.count() - first);
        transform_tiles<false>(input, t, first, count, v);
        multiply(v, m, weights);
        store_tiles(m, output, t, first, count);
      }
    }
  });
}

// Adds to du[in][out] the sum over tiles of v[tile][in] * m[tile][out], sixteen by sixteen
// channels.
inline void accumulate_block(const Group& v, const Group& m, int64_t position, int64_t in_block,
                             int64_t out_block, float* du, int64_t out_channels) {
  Vec sum[16] = {};
  const float *a = v.at(position, in_block, 0), *b = m.at(position, out_block, 0);
  for (int64_t tile = 0; tile < v.tiles; ++tile, a += 16, b += 16) {
    const Vec g = L::load(b);
    HEDDLE_UNROLL
    for (int lane = 0; lane < 16; ++lane) sum[lane] += a[lane] * g;
  }
  HEDDLE_UNROLL
  for (int lane = 0; lane < 16; ++lane) {
    float* p = du + (in_block * 16 + lane) * out_channels + out_block * 16;
    L::store(p, L::load(p) + sum[lane]);
  }
}

}  // namespace

bool winograd_fits(const Tensor& x, const Shape& weight) {
  return x.dtype() == DType::f32 && x.layout() == Layout::c16 && weight[0] % 16 == 0 &&
         weight[1] % 16 == 0 && weight[2] == 3 && weight[3] == 3;
}

void winograd_forward(const Tensor& x, const Tensor& w, const Tensor& y) {
  convolve(x, transform_weights(w, false), y);
}

void winograd_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx) {
  convolve(dy, transform_weights(w, true), dx);
}

void winograd_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, float beta) {
  const Tiles t(x), tg(dy);
  const int64_t in = t.channels, out = tg.channels;
  const int64_t tiles = group_tiles(in, out, t.count());
  const int64_t groups = ceil_div(t.count(), tiles);
  const int64_t workers = std::min<int64_t>(omp_get_max_threads(), groups);
  const int64_t scratch = kPositions * (in + out) * tiles, result = kPositions * in * out;
  const Tensor memory = Tensor::empty_on(Device{}, {workers, scratch + result});
  const float *input = x.data<float>(), *gradient = dy.data<float>();
  float* scratches = memory.data<float>();
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      float* du = scratches + worker * (scratch + result);
      std::fill(du, du + result, 0.0f);
      const Group v = {du + result, in / 16, tiles};
      const Group m = {v.data + kPositions * in * tiles, out / 16, tiles};
      for (int64_t g = groups * worker / workers; g < groups * (worker + 1) / workers; ++g) {
        const int64_t first = g * tiles, count = std::min(tiles, t.count() - first);
        transform_tiles<false>(input, t, first, count, v);
        transform_tiles<true>(gradient, tg, first, count, m);
        for (int64_t position = 0; position < kPositions; ++position)
          for (int64_t i = 0; i < v.blocks; ++i)
            for (int64_t o = 0; o < m.blocks; ++o)
              accumulate_block(v, m, position, i, o, du + position * in * out, out);
      }
    }
  });
  // Add the workers' sums in order, and transform back.
  float* weights = dw.data<float>();
  parallel_for(in, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t o = 0; o < out; o += 16) {
        Vec square[6][6], kernel[3][3];
        HEDDLE_UNROLL
        for (int position = 0; position < kPositions; ++position) {
          Vec sum = {};
          for (int64_t worker = 0; worker < workers; ++worker)
            sum += L::load(scratches + worker * (scratch + result) + (position * in + i) * out + o);
          square[position / 6][position % 6] = sum;
        }
        transform_square<6, 3>(square, kernel, transform_weight_gradient);
        for (int r = 0; r < 3; ++r)
          for (int s = 0; s < 3; ++s)
            for (int lane = 0; lane < 16; ++lane) {
              float* p = weights + (((o + lane) * in + i) * 3 + r) * 3 + s;
              *p = accumulate(beta, *p, kernel[r][s][lane]);
            }
      }
  });
}

}  // namespace heddle::cpu
