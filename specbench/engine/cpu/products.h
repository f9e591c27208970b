// Products of input rows and weight rows. Weights keep torch's layout [out, in], and each weight row is read from
// memory once for all rows of a draft.
#pragma once

#include <algorithm>

#include <type_traits>

#include "blocks.h"
#include "team.h"
#include "vectors.h"

// BLOCK8 and BLOCK4 are weights in blocks of a row, each with a scale: see blocks.h.
enum Type { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, BLOCK8 = 3, BLOCK4 = 4 };

struct Linear {
  const void* weight;  // [out, in]
  const float* bias;   // [out], or null
  const void* scale;   // float [out] for int8; [out, in / block] for blocks, else null
  const void* least;   // [out, in / block], the smallest value of each block of BLOCK4; or null
  long out, in;
  int type;
  int shift;  // a block has 2^shift weights
  int wide;   // scales and smallest values of blocks are float, else half
};

// Bits of a weight, without scales.
static inline long bits_of(const Linear& linear) {
  return linear.type == FLOAT32 ? 32 : linear.type == BFLOAT16 ? 16 : linear.type == BLOCK4 ? 4 : 8;
}

// The linear layer without its first outputs.
static inline Linear without(Linear linear, long outputs) {
  linear.weight = static_cast<const char*>(linear.weight) + outputs * linear.in * bits_of(linear) / 8;
  if (linear.bias) linear.bias += outputs;
  const long scales = linear.type == INT8 ? outputs * 4 : outputs * (linear.in >> linear.shift) * (linear.wide ? 4 : 2);
  if (linear.scale) linear.scale = static_cast<const char*>(linear.scale) + scales;
  if (linear.least) linear.least = static_cast<const char*>(linear.least) + scales;
  linear.out -= outputs;
  return linear;
}

// For weights in blocks, of which from..to are whole ones: see add_products.
template <int W, int X, int F, class P>
static inline void add_blocks(vec (&sum)[W][X], P w, long w_stride, const float* x, long x_stride, long from, long to,
                              P ahead) {
  constexpr int V = (1 << P::shift) / LANES;
  for (long start = from; start < to; start += Scales<W, P>::SPAN) {
    const long blocks = (std::min(to, start + Scales<W, P>::SPAN) - start) >> P::shift;
    const Scales<W, P> scales(w, w_stride, start, blocks);
    for (long n = 0; n < blocks; n++) {
      const long i = start + (n << P::shift);
#pragma GCC unroll 8
      for (int a = 0; a < W; a++) {
        vec weight[V];
        scales.weights(w + (a * w_stride + i), a, n, weight);
        if (a < F) __builtin_prefetch(address(ahead + (a * w_stride + i)), 0, 2);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          in_register(weight[v]);
#pragma GCC unroll 8
          for (int b = 0; b < X; b++)
            sum[a][b] = fused(weight[v], load(x + b * x_stride + i + v * LANES), sum[a][b]);
        }
      }
    }
  }
}

// Add elements from..to (whole vectors) to the sums of W weight rows and X input rows, lane by lane. Meanwhile prefetch
// F weight rows at ``ahead``, so that memory is busy while sums are computed.
template <int W, int X, int F, class P>
static inline void add_products(vec (&sum)[W][X], P w, long w_stride, const float* x, long x_stride, long from,
                                long to, P ahead) {
  if constexpr (!std::is_pointer<P>::value) {
    add_blocks<W, X, F>(sum, w, w_stride, x, x_stride, from, to, ahead);
  } else {
    for (long i = from; i < to; i += LANES) {
      vec input[X];
#pragma GCC unroll 8
      for (int b = 0; b < X; b++) input[b] = load(x + b * x_stride + i);
#pragma GCC unroll 8
      for (int a = 0; a < W; a++) {
        vec weight = load(w + (a * w_stride + i));
        in_register(weight);
        if (a < F) __builtin_prefetch(address(ahead + (a * w_stride + i)), 0, 2);
#pragma GCC unroll 8
        for (int b = 0; b < X; b++) sum[a][b] = fused(weight, input[b], sum[a][b]);
      }
    }
  }
}

// Add up all lanes and the remaining elements from ``rest`` on: out[x * out_stride + w].
template <int W, int X, class P>
static inline void finish(const vec (&sum)[W][X], P w, long w_stride, const float* x, long x_stride, long rest,
                          long k, float* out, long out_stride) {
#pragma GCC unroll 8
  for (int b = 0; b < X; b++) {
    float total[W];
    vec column[W];
#pragma GCC unroll 8
    for (int a = 0; a < W; a++) column[a] = sum[a][b];
    hsums<W>(column, total);
    for (long j = rest; j < k; j++)
      for (int a = 0; a < W; a++) total[a] = fused(load_one(w + (a * w_stride + j)), x[b * x_stride + j], total[a]);
#pragma GCC unroll 8
    for (int a = 0; a < W; a++) out[b * out_stride + a] = total[a];
  }
}

// Dot products of W weight rows and X input rows.
template <int W, int X, int F, class P>
static inline void dots(P w, long w_stride, const float* x, long x_stride, long k, float* out, long out_stride,
                        P ahead) {
  vec sum[W][X] = {};
  const long rest = k / LANES * LANES;
  add_products<W, X, F>(sum, w, w_stride, x, x_stride, 0, rest, ahead);
  finish<W, X>(sum, w, w_stride, x, x_stride, rest, k, out, out_stride);
}

// The same for up to three input rows.
template <int W, int F, class P>
static inline void dots_of(long rows, P w, long w_stride, const float* x, long x_stride, long k, float* out,
                           long out_stride, P ahead) {
  if (rows >= 3) dots<W, 3, F>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else if (rows == 2) dots<W, 2, F>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
  else dots<W, 1, F>(w, w_stride, x, x_stride, k, out, out_stride, ahead);
}

// A part of the same sums, which are saved in ``kept`` until the next part.
template <int X, int F, class P>
static inline void chunk(vec* kept, P w, long w_stride, const float* x, long x_stride, long from, long to,
                           long k, float* out, long out_stride, P ahead) {
  vec sum[TILE_W][X] = {};
  if (from) std::memcpy(sum, kept, sizeof sum);
  add_products<TILE_W, X, F>(sum, w, w_stride, x, x_stride, from, to, ahead);
  if (k - to < LANES) finish<TILE_W, X>(sum, w, w_stride, x, x_stride, to, k, out, out_stride);
  else std::memcpy(kept, sum, sizeof sum);
}

template <int F, class P>
static inline void chunk_of(long rows, vec* kept, P w, long w_stride, const float* x, long x_stride, long from,
                              long to, long k, float* out, long out_stride, P ahead) {
  if (rows >= 3) chunk<3, F>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
  else if (rows == 2) chunk<2, F>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
  else chunk<1, F>(kept, w, w_stride, x, x_stride, from, to, k, out, out_stride, ahead);
}

constexpr long SHORT = 896;                       // numbers of a weight row that a core overlaps with the next rows
constexpr long ROWS = 96;                         // input rows at a time: they fit a core's L2 cache
constexpr long CHUNK = 24576 / TILE_W / 4;        // elements of TILE_W weight rows at a time: they fit its L1 cache
static_assert(CHUNK % LANES == 0, "whole vectors");

// Elements from..to of TILE_W weight rows by all input rows, three at a time. With AHEAD, each time a share of the next
// TILE_W weight rows is prefetched, so that memory is read evenly during the computation: a core can have only few open
// memory requests.
template <bool AHEAD, class P>
static inline void tiles_of(long tiles, vec (*kept)[TILE_W * 3], P w, long w_stride, const float* x, long x_stride,
                            long rows, long from, long to, long k, float* out, long out_stride) {
  for (long tile = 0, row = 0; tile < tiles; tile++) {
    const long some = (rows - row + tiles - tile - 1) / (tiles - tile);
    const float* mine = x + row * x_stride;
    float* target = out + row * out_stride;
    const long first = TILE_W * tile / tiles, fetched = AHEAD ? TILE_W * (tile + 1) / tiles - first : 0;
    const P next = w + (TILE_W + first) * w_stride;
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

// The same for weights in blocks: for more than three rows they are unpacked once for all.
template <class P>
static inline void unpacked_tiles_of(long tiles, vec (*kept)[TILE_W * 3], P w, long w_stride, const float* x,
                                     long x_stride, long rows, long from, long to, long k, float* out,
                                     long out_stride) {
  if (tiles == 1) return tiles_of<true>(tiles, kept, w, w_stride, x, x_stride, rows, from, to, k, out, out_stride);
  constexpr int V = (1 << P::shift) / LANES;
  float plain[TILE_W * CHUNK];
  static_assert(CHUNK <= Scales<TILE_W, P>::SPAN * 2, "two parts of a chunk");
  for (long start = from; start < to; start += Scales<TILE_W, P>::SPAN) {
    const long blocks = (std::min(to, start + Scales<TILE_W, P>::SPAN) - start) >> P::shift;
    const Scales<TILE_W, P> scales(w, w_stride, start, blocks);
    for (int a = 0; a < TILE_W; a++)
      for (long n = 0; n < blocks; n++) {
        const long i = start + (n << P::shift);
        vec weight[V];
        scales.weights(w + (a * w_stride + i), a, n, weight);
        __builtin_prefetch(address(w + ((TILE_W + a) * w_stride + i)), 0, 2);
        for (int v = 0; v < V; v++) store(plain + a * CHUNK + i - from + v * LANES, weight[v]);
      }
  }
  const float* shifted = plain - from;
  tiles_of<false>(tiles, kept, shifted, CHUNK, x, x_stride, rows, from, to, k, out, out_stride);
}

// TILE_W weight rows by up to ROWS input rows.
template <class P>
static inline void band(P w, long w_stride, const float* x, long x_stride, long rows, long k, float* out,
                        long out_stride) {
  vec kept[(ROWS + 2) / 3][TILE_W * 3];
  const long tiles = (rows + 2) / 3, whole = k / LANES * LANES;
  const long chunk_size = tiles == 1 ? std::max<long>(whole, 1) : CHUNK;
  for (long from = 0; from == 0 || from < whole; from += chunk_size)
    if constexpr (std::is_pointer<P>::value)
      tiles_of<true>(tiles, kept, w, w_stride, x, x_stride, rows, from, std::min(whole, from + chunk_size), k, out,
                     out_stride);
    else
      unpacked_tiles_of(tiles, kept, w, w_stride, x, x_stride, rows, from, std::min(whole, from + chunk_size), k, out,
                        out_stride);
}

// One input row by short weight rows goes row by row: memory that is read strictly in order comes fastest, and a core has
// begun the next rows' sums before it ends one. Measured: longer rows, int8, and bf16 in narrower registers are slower so.
template <class P>
static void outputs(const Linear& linear, P weight, long begin, long end, const float* x, long x_stride, long rows, float* out,
                    long out_stride) {
  const long k = linear.in;
  long at = begin;
  constexpr bool fast = std::is_same<P, const float*>::value || (std::is_same<P, const bf16*>::value && LANES == 16);
  const bool in_order = fast && rows == 1 && k <= SHORT;
  for (; !in_order && at + TILE_W <= end; at += TILE_W) band(weight + at * k, k, x, x_stride, rows, k, out + at, out_stride);
  for (; at < end; at++)
    for (long row = 0; row < rows; row++)
      dots<1, 1, 0>(weight + at * k, k, x + row * x_stride, x_stride, k, out + row * out_stride + at, out_stride,
                    weight);
  const float* scale = linear.type == INT8 ? static_cast<const float*>(linear.scale) : nullptr;
  if (!linear.bias && !scale) return;
  for (long row = 0; row < rows; row++) {
    float* to = out + row * out_stride;
    if (scale)
      for (long i = begin; i < end; i++) to[i] *= scale[i];
    if (linear.bias)
      for (long i = begin; i < end; i++) to[i] += linear.bias[i];
  }
}

// Compute outputs begin..end of a linear layer for some rows: out[row * out_stride + output].
static inline void linear_part(const Linear& linear, long begin, long end, const float* x, long x_stride, long rows,
                               float* out, long out_stride) {
  const auto run = [&](auto weight) { outputs(linear, weight, begin, end, x, x_stride, rows, out, out_stride); };
  if (linear.type == FLOAT32) run(static_cast<const float*>(linear.weight));
  else if (linear.type == BFLOAT16) run(static_cast<const bf16*>(linear.weight));
  else if (linear.type == INT8) run(static_cast<const int8_t*>(linear.weight));
  else if (linear.type == BLOCK8 && linear.wide && linear.shift == 4) run(Block8<float, 4>(linear.weight, linear.scale));
  else if (linear.type == BLOCK8 && linear.wide) run(Block8<float, 5>(linear.weight, linear.scale));
  else if (linear.type == BLOCK8) run(Block8<half, 5>(linear.weight, linear.scale));
  else if (linear.wide) run(Block4<float, true>(linear.weight, linear.scale, linear.least));
  else if (linear.least) run(Block4<half, true>(linear.weight, linear.scale, linear.least));
  else run(Block4<half, false>(linear.weight, linear.scale, nullptr));
}

// Pieces of a product, each with some outputs for some rows: input rows that fit a core's cache, and enough weights
// that the overhead of a piece does not matter.
struct Pieces {
  static constexpr long BYTES = 96 << 10;

  Pieces(const Linear& linear, long rows) : outs(linear.out), rows(rows) {
    const long row_bytes = linear.in * bits_of(linear) / 8;
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
