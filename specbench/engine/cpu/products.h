// Products: rows of input times rows of weights. Weights stay as torch has them, [out, in], and each of their rows is
// read from memory once for all rows of a draft.
#pragma once

#include <algorithm>

#include "team.h"
#include "vectors.h"

enum Type { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

struct Linear {
  const void* weight;  // [out, in]
  const float* bias;   // [out], or null
  const float* scale;  // [out], of int8; else null
  long out, in;
  int type;
};

// Sums over k of W rows of weights by X rows of input: out[x * out_stride + w]. Meanwhile P rows of weights are fetched
// that lie ``ahead`` of w, so that the memory is never idle while sums are computed.
template <int W, int X, int P, class T>
static inline void dots(const T* w, long w_stride, const float* x, long x_stride, long k, float* out, long out_stride,
                        const T* ahead) {
  vec sum[W][X] = {};
  long i = 0;
  for (; i + LANES <= k; i += LANES) {
    vec input[X];
#pragma GCC unroll 8
    for (int b = 0; b < X; b++) input[b] = load(x + b * x_stride + i);
#pragma GCC unroll 8
    for (int a = 0; a < W; a++) {
      const vec weight = load(w + a * w_stride + i);
      if (a < P) __builtin_prefetch(ahead + a * w_stride + i);
#pragma GCC unroll 8
      for (int b = 0; b < X; b++) sum[a][b] += weight * input[b];
    }
  }
#pragma GCC unroll 8
  for (int a = 0; a < W; a++) {
#pragma GCC unroll 8
    for (int b = 0; b < X; b++) {
      float total = hsum(sum[a][b]);
      for (long j = i; j < k; j++) total = fused(load_one(w + a * w_stride + j), x[b * x_stride + j], total);
      out[b * out_stride + a] = total;
    }
  }
}

template <int W, int P, class T>
static inline void dots_of(long rows, const T* w, long w_stride, const float* x, long x_stride, long k, float* out,
                           long out_stride, const T* ahead) {
  if (rows >= 3) dots<W, 3, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else if (rows == 2) dots<W, 2, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else dots<W, 1, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
}

// TILE_W rows of weights by any number of rows of input. The fetching of the next TILE_W is spread over all of it.
template <class T>
static inline void band(const T* w, long w_stride, const float* x, long x_stride, long rows, long k, float* out,
                        long out_stride) {
  const long tiles = (rows + 2) / 3;
  for (long tile = 0, row = 0; tile < tiles; tile++) {
    const long some = (rows - row + tiles - tile - 1) / (tiles - tile);
    const float* from = x + row * x_stride;
    float* to = out + row * out_stride;
    const T* next = w + TILE_W * w_stride;
    if (tiles == 1) {
      dots_of<TILE_W, TILE_W>(some, w, w_stride, from, x_stride, k, to, out_stride, next);
    } else if (tiles == 2) {
      next += tile * (TILE_W / 2) * w_stride;
      dots_of<TILE_W, TILE_W / 2>(some, w, w_stride, from, x_stride, k, to, out_stride, next);
    } else if (tiles <= 4 && tile < 4) {
      next += tile * (TILE_W / 4) * w_stride;
      dots_of<TILE_W, TILE_W / 4>(some, w, w_stride, from, x_stride, k, to, out_stride, next);
    } else if (tile < TILE_W) {
      next += tile * w_stride;
      dots_of<TILE_W, 1>(some, w, w_stride, from, x_stride, k, to, out_stride, next);
    } else {
      dots_of<TILE_W, 0>(some, w, w_stride, from, x_stride, k, to, out_stride, next);
    }
    row += some;
  }
}

template <class T>
static void outputs(const Linear& linear, long begin, long end, const float* x, long x_stride, long rows, float* out,
                    long out_stride) {
  const T* weight = static_cast<const T*>(linear.weight);
  const long k = linear.in;
  long at = begin;
  for (; at + TILE_W <= end; at += TILE_W) band(weight + at * k, k, x, x_stride, rows, k, out + at, out_stride);
  for (; at < end; at++)
    for (long row = 0; row < rows; row++)
      dots<1, 1, 0>(weight + at * k, k, x + row * x_stride, x_stride, k, out + row * out_stride + at, out_stride,
                    weight);
  if (!linear.bias && !linear.scale) return;
  for (long row = 0; row < rows; row++) {
    float* to = out + row * out_stride;
    if (linear.scale)
      for (long i = begin; i < end; i++) to[i] *= linear.scale[i];
    if (linear.bias)
      for (long i = begin; i < end; i++) to[i] += linear.bias[i];
  }
}

// Outputs begin to end of a linear layer for some rows: out[row * out_stride + output].
static inline void linear_part(const Linear& linear, long begin, long end, const float* x, long x_stride, long rows,
                               float* out, long out_stride) {
  if (linear.type == FLOAT32) outputs<float>(linear, begin, end, x, x_stride, rows, out, out_stride);
  else if (linear.type == BFLOAT16) outputs<bf16>(linear, begin, end, x, x_stride, rows, out, out_stride);
  else outputs<int8_t>(linear, begin, end, x, x_stride, rows, out, out_stride);
}

// Pieces of a product: some outputs for some rows. Rows of input that fit a core's cache, weights enough to be worth
// the taking.
struct Pieces {
  static constexpr long ROWS = 96, BYTES = 96 << 10;

  Pieces(const Linear& linear, long rows) : outs(linear.out), rows(rows) {
    const long row_bytes = linear.in * (linear.type == FLOAT32 ? 4 : linear.type == BFLOAT16 ? 2 : 1);
    width = std::max<long>(1, BYTES / row_bytes / TILE_W) * TILE_W;
    across = (outs + width - 1) / width;
    count = across * ((rows + ROWS - 1) / ROWS);
  }

  long begin(long piece) const { return piece % across * width; }
  long end(long piece) const { return std::min(outs, begin(piece) + width); }
  long row(long piece) const { return piece / across * ROWS; }
  long some(long piece) const { return std::min(ROWS, rows - row(piece)); }

  long outs, rows, width, across, count;
};
