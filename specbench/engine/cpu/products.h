// Products of input rows and weight rows. Weights keep torch's layout [out, in], and each weight row is read from
// memory once for all rows of a draft.
#pragma once

#include <algorithm>

#include "team.h"
#include "vectors.h"

enum Type { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

struct Linear {
  const void* weight;  // [out, in]
  const float* bias;   // [out], or null
  const float* scale;  // [out] for int8, else null
  long out, in;
  int type;
};

// Add elements from..to (whole vectors) to the sums of W weight rows and X input rows, lane by lane. Meanwhile prefetch
// P weight rows at ``ahead``, so that memory is busy while sums are computed.
template <int W, int X, int P, class T>
static inline void add_products(vec (&sum)[W][X], const T* w, long w_stride, const float* x, long x_stride, long from,
                                long to, const T* ahead) {
  for (long i = from; i < to; i += LANES) {
    vec input[X];
#pragma GCC unroll 8
    for (int b = 0; b < X; b++) input[b] = load(x + b * x_stride + i);
#pragma GCC unroll 8
    for (int a = 0; a < W; a++) {
      vec weight = load(w + a * w_stride + i);
      in_register(weight);
      if (a < P) __builtin_prefetch(ahead + a * w_stride + i, 0, 2);
#pragma GCC unroll 8
      for (int b = 0; b < X; b++) sum[a][b] = fused(weight, input[b], sum[a][b]);
    }
  }
}

// Add up all lanes and the remaining elements from ``rest`` on: out[x * out_stride + w].
template <int W, int X, class T>
static inline void finish(const vec (&sum)[W][X], const T* w, long w_stride, const float* x, long x_stride, long rest,
                          long k, float* out, long out_stride) {
#pragma GCC unroll 8
  for (int b = 0; b < X; b++) {
    float total[W];
    vec column[W];
#pragma GCC unroll 8
    for (int a = 0; a < W; a++) column[a] = sum[a][b];
    hsums<W>(column, total);
    for (long j = rest; j < k; j++)
      for (int a = 0; a < W; a++) total[a] = fused(load_one(w + a * w_stride + j), x[b * x_stride + j], total[a]);
#pragma GCC unroll 8
    for (int a = 0; a < W; a++) out[b * out_stride + a] = total[a];
  }
}

// Dot products of W weight rows and X input rows.
template <int W, int X, int P, class T>
static inline void dots(const T* w, long w_stride, const float* x, long x_stride, long k, float* out, long out_stride,
                        const T* ahead) {
  vec sum[W][X] = {};
  const long rest = k / LANES * LANES;
  add_products<W, X, P>(sum, w, w_stride, x, x_stride, 0, rest, ahead);
  finish<W, X>(sum, w, w_stride, x, x_stride, rest, k, out, out_stride);
}

// The same for up to three input rows.
template <int W, int P, class T>
static inline void dots_of(long rows, const T* w, long w_stride, const float* x, long x_stride, long k, float* out,
                           long out_stride, const T* ahead) {
  if (rows >= 3) dots<W, 3, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else if (rows == 2) dots<W, 2, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else dots<W, 1, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
}

// A part of the same sums, which are saved in ``kept`` until the next part.
template <int X, int P, class T>
static inline void chunk(vec* kept, const T* w, long w_stride, const float* x, long x_stride, long from, long to,
                           long k, float* out, long out_stride, const T* ahead) {
  vec sum[TILE_W][X] = {};
  if (from) std::memcpy(sum, kept, sizeof sum);
  add_products<TILE_W, X, P>(sum, w, w_stride, x, x_stride, from, to, ahead);
  if (k - to < LANES) finish<TILE_W, X>(sum, w, w_stride, x, x_stride, to, k, out, out_stride);
  else std::memcpy(kept, sum, sizeof sum);
}

template <int P, class T>
static inline void chunk_of(long rows, vec* kept, const T* w, long w_stride, const float* x, long x_stride, long from,
                              long to, long k, float* out, long out_stride, const T* ahead) {
  if (rows >= 3) chunk<3, P>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
  else if (rows == 2) chunk<2, P>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
  else chunk<1, P>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
}

constexpr long ROWS = 96;                         // input rows at a time: they fit a core's L2 cache
constexpr long CHUNK = 24576 / TILE_W / 4;        // elements of TILE_W weight rows at a time: they fit its L1 cache
static_assert(CHUNK % LANES == 0, "whole vectors");

// TILE_W weight rows by up to ROWS input rows, three at a time. Each time, a share of the next TILE_W weight rows is
// prefetched, so that memory is read evenly during the computation: a core can have only few open memory requests.
template <class T>
static inline void band(const T* w, long w_stride, const float* x, long x_stride, long rows, long k, float* out,
                        long out_stride) {
  vec kept[(ROWS + 2) / 3][TILE_W * 3];
  const long tiles = (rows + 2) / 3, whole = k / LANES * LANES;
  const long chunk_size = tiles == 1 ? std::max<long>(whole, 1) : CHUNK;
  for (long from = 0; from == 0 || from < whole; from += chunk_size) {
    const long to = std::min(whole, from + chunk_size);
    for (long tile = 0, row = 0; tile < tiles; tile++) {
      const long some = (rows - row + tiles - tile - 1) / (tiles - tile);
      const float* mine = x + row * x_stride;
      float* target = out + row * out_stride;
      const long first = TILE_W * tile / tiles, fetched = TILE_W * (tile + 1) / tiles - first;
      const T* next = w + (TILE_W + first) * w_stride;
      vec* sums = kept[tile];
      if (fetched == 0)
        chunk_of<0>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else if (fetched == 1)
        chunk_of<1>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else if (fetched == 2)
        chunk_of<2>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else if (fetched <= 4)
        chunk_of<4>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else
        chunk_of<8>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      row += some;
    }
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

// Compute outputs begin..end of a linear layer for some rows: out[row * out_stride + output].
static inline void linear_part(const Linear& linear, long begin, long end, const float* x, long x_stride, long rows,
                               float* out, long out_stride) {
  if (linear.type == FLOAT32) outputs<float>(linear, begin, end, x, x_stride, rows, out, out_stride);
  else if (linear.type == BFLOAT16) outputs<bf16>(linear, begin, end, x, x_stride, rows, out, out_stride);
  else outputs<int8_t>(linear, begin, end, x, x_stride, rows, out, out_stride);
}

// Pieces of a product, each with some outputs for some rows: input rows that fit a core's cache, and enough weights
// that the overhead of a piece does not matter.
struct Pieces {
  static constexpr long BYTES = 96 << 10;

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
