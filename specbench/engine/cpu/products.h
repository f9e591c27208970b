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

// Part of the sums of W rows of weights by X rows of input, lane by lane: from..to of their length, whole vectors.
// Meanwhile P rows of weights are fetched that lie ``ahead`` of w, so that memory is never idle while sums are computed.
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

// The sums over all lanes, with what is left of the length from ``rest`` on: out[x * out_stride + w].
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

// All of it, of W rows of weights by X rows of input.
template <int W, int X, int P, class T>
static inline void dots(const T* w, long w_stride, const float* x, long x_stride, long k, float* out, long out_stride,
                        const T* ahead) {
  vec sum[W][X] = {};
  const long rest = k / LANES * LANES;
  add_products<W, X, P>(sum, w, w_stride, x, x_stride, 0, rest, ahead);
  finish<W, X>(sum, w, w_stride, x, x_stride, rest, k, out, out_stride);
}

// The same of up to three rows of input.
template <int W, int P, class T>
static inline void dots_of(long rows, const T* w, long w_stride, const float* x, long x_stride, long k, float* out,
                           long out_stride, const T* ahead) {
  if (rows >= 3) dots<W, 3, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else if (rows == 2) dots<W, 2, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else dots<W, 1, P>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
}

// A stretch of the same sums, which wait in ``kept`` between two stretches.
template <int X, int P, class T>
static inline void stretch(vec* kept, const T* w, long w_stride, const float* x, long x_stride, long from, long to,
                           long k, float* out, long out_stride, const T* ahead) {
  vec sum[TILE_W][X] = {};
  if (from) std::memcpy(sum, kept, sizeof sum);
  add_products<TILE_W, X, P>(sum, w, w_stride, x, x_stride, from, to, ahead);
  if (k - to < LANES) finish<TILE_W, X>(sum, w, w_stride, x, x_stride, to, k, out, out_stride);
  else std::memcpy(kept, sum, sizeof sum);
}

template <int P, class T>
static inline void stretch_of(long rows, vec* kept, const T* w, long w_stride, const float* x, long x_stride, long from,
                              long to, long k, float* out, long out_stride, const T* ahead) {
  if (rows >= 3) stretch<3, P>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
  else if (rows == 2) stretch<2, P>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
  else stretch<1, P>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
}

constexpr long ROWS = 96;                         // of input at a time: they fit a core's second cache
constexpr long STRETCH = 24576 / TILE_W / 4;      // of TILE_W rows of weights: they fit its first
static_assert(STRETCH % LANES == 0, "whole vectors");

// TILE_W rows of weights by up to ROWS rows of input, three at a time. Each time fetches its share of the TILE_W rows
// that come next, so that memory is read as evenly as sums are computed: a core has few requests open at a time.
template <class T>
static inline void band(const T* w, long w_stride, const float* x, long x_stride, long rows, long k, float* out,
                        long out_stride) {
  vec kept[(ROWS + 2) / 3][TILE_W * 3];
  const long tiles = (rows + 2) / 3, whole = k / LANES * LANES;
  const long stretch_size = tiles == 1 ? std::max<long>(whole, 1) : STRETCH;
  for (long from = 0; from == 0 || from < whole; from += stretch_size) {
    const long to = std::min(whole, from + stretch_size);
    for (long tile = 0, row = 0; tile < tiles; tile++) {
      const long some = (rows - row + tiles - tile - 1) / (tiles - tile);
      const float* mine = x + row * x_stride;
      float* target = out + row * out_stride;
      const long first = TILE_W * tile / tiles, fetched = TILE_W * (tile + 1) / tiles - first;
      const T* next = w + (TILE_W + first) * w_stride;
      vec* sums = kept[tile];
      if (fetched == 0)
        stretch_of<0>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else if (fetched == 1)
        stretch_of<1>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else if (fetched == 2)
        stretch_of<2>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else if (fetched <= 4)
        stretch_of<4>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
      else
        stretch_of<8>(some, sums, w, w_stride, mine, x_stride, from, to, k, target, out_stride, next);
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
