// Attention of token-tree rows over their slots' caches.
//
// A row sees its slot's cached cells, then its ancestors in its own tree, whose cells come after the cached ones.
// Probabilities are stored and summed by position, not by cell, and a cell that a row does not see adds a zero. So the
// result has the same bits wherever the row's text is stored, in the cache or in a tree, and regardless of other rows.
#pragma once

#include <limits>

#include "products.h"

// Which rows see which in a forward. Must match library.py field by field.
struct Sight {
  long rows, slots, capacity;
  long before;  // further rows of each slot, which come before these rows in ``reach`` and are in the cache already
  long offset;  // slots of the cache before the first one
  const int32_t* slot;    // [rows]; ``slots`` for padding
  const int32_t* first;   // [slots], first row of each slot
  const int32_t* count;   // [slots], rows of each slot
  const int32_t* length;  // [slots], cached tokens of each slot
  const int32_t* start;   // [slots], cell in which each slot's first row is stored
  const int32_t* depth;   // [rows]
  const uint8_t* reach;   // [all, all] with all = rows + slots * before, whether row j is row i or its ancestor
  // Filled by look(): row i sees the first run[i] rows of its tree, and the rows rest[more[i]..more[i + 1]] after them.
  int32_t* run;   // [rows]
  int32_t* more;  // [rows + 1]
  int32_t* rest;  // ranks (row indices within the tree)
};

static inline bool padding(const Sight& see, long row) { return see.slot[row] >= see.slots; }

// Most entries of ``rest`` that a forward can need.
static long further(const Sight& see) {
  long places = 0;
  for (long row = 0; row < see.rows; row++) places += see.depth[row] + 1;
  return places;
}

static void look(Sight& see) {
  int32_t places = 0;
  for (long row = 0; row < see.rows; row++) {
    see.more[row] = places;
    see.run[row] = 0;
    if (padding(see, row)) continue;
    const long slot = see.slot[row], first = see.first[slot] + slot * see.before;
    const long rank = see.before + row - see.first[slot];
    const uint8_t* mine = see.reach + (first + rank) * (see.rows + see.slots * see.before) + first;
    const long all = see.before + see.count[slot];  // a row of a masked block may see later rows, without a gap
    long at = 0;
    while (at < all && mine[at]) at++;
    see.run[row] = static_cast<int32_t>(at);
    for (; at <= rank; at++)
      if (mine[at]) see.rest[places++] = static_cast<int32_t>(at);
  }
  see.more[see.rows] = places;
}

template <class A>
struct Cache {
  A* keys;    // [slots, KV heads, capacity, key size]
  A* values;  // [slots, KV heads, capacity, value size]
};

struct Heads {
  long heads, kv_heads, size, value_size, window;  // window 0: no limit
  float scale;
};

// A query sees the cells [0, prefix) and those in ``rest``; it attends to the positions [begin, end) of its text.
struct Query {
  long row, head, begin, prefix, end;
};

constexpr long QUERIES = 12;  // queries at a time, of one slot and KV head

// out[q] = sum over cells [from, to) of probability[q][cell] * values[cell], for V vectors of a head's values.
template <int Q, int V, class A>
static inline void weigh(const float* probability, long p_stride, const A* values, long size, long from, long to,
                         float* out, long out_stride) {
  vec sum[Q][V] = {};
  for (long cell = from; cell < to; cell++) {
    vec value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) value[v] = load(values + cell * size + v * LANES);
#pragma GCC unroll 8
    for (int q = 0; q < Q; q++) {
      const vec p = splat(probability[q * p_stride + cell]);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[q][v] = fused(p, value[v], sum[q][v]);
    }
  }
  for (int q = 0; q < Q; q++)
    for (int v = 0; v < V; v++) store(out + q * out_stride + v * LANES, sum[q][v]);
}

template <int Q, class A>
static inline void weigh_all(const float* probability, long p_stride, const A* values, long size, long from, long to,
                             float* out, long out_stride) {
  long at = 0;
  for (; at + 4 * LANES <= size; at += 4 * LANES)
    weigh<Q, 4>(probability, p_stride, values + at, size, from, to, out + at, out_stride);
  for (; at + LANES <= size; at += LANES)
    weigh<Q, 1>(probability, p_stride, values + at, size, from, to, out + at, out_stride);
  for (; at < size; at++)
    for (int q = 0; q < Q; q++) {
      float sum = 0;
      for (long cell = from; cell < to; cell++)
        sum = fused(probability[q * p_stride + cell], load_one(values + cell * size + at), sum);
      out[q * out_stride + at] = sum;
    }
}

// Turn a query's scores [begin, end) into probabilities that are not yet divided by their sum, and return the sum. The
// range is extended to whole vectors with zeros. A position is always summed in the same lane.
static inline float soften(float* scores, long begin, long end) {
  const float nothing = -std::numeric_limits<float>::infinity();
  const long from = begin / LANES * LANES, to = (end + LANES - 1) / LANES * LANES;
  for (long at = from; at < begin; at++) scores[at] = nothing;
  for (long at = end; at < to; at++) scores[at] = nothing;
  vec most = splat(nothing);
  for (long at = from; at < to; at += LANES) {
    const vec some = load(scores + at);
    most = some > most ? some : most;
  }
  float top = most[0];
  for (int lane = 1; lane < LANES; lane++) top = std::max(top, most[lane]);
  vec sum = {};
  for (long at = from; at < to; at += LANES) {
    const vec p = exponential(load(scores + at) - top);
    store(scores + at, p);
    sum += p;
  }
  return hsum(sum);
}

// Attention of up to QUERIES queries of one slot and KV head.
template <class A>
static void attend(const Heads& shape, const Sight& see, const Query* query, long queries, const float* q_rows,
                   long q_stride, const A* keys, const A* values, float* scores, long s_stride, float* out,
                   long out_stride) {
  float q[QUERIES * 512], sums[QUERIES], attended[QUERIES * 512];
  const long size = shape.size, value_size = shape.value_size;
  long from = query[0].begin, to = 0;
  for (long i = 0; i < queries; i++) {
    const float* mine = q_rows + query[i].row * q_stride + query[i].head * size;
    for (long j = 0; j < size; j++) q[i * size + j] = mine[j] * shape.scale;
    from = std::min(from, query[i].begin);
    to = std::max(to, query[i].prefix);
  }
  long cell = from;
  for (; cell + TILE_W <= to; cell += TILE_W)
    for (long i = 0; i < queries; i += 3)
      dots_of<TILE_W, 0>(queries - i, keys + cell * size, size, q + i * size, size, size, scores + i * s_stride + cell,
                         s_stride, keys);
  for (; cell < to; cell++)
    for (long i = 0; i < queries; i += 3)
      dots_of<1, 0>(queries - i, keys + cell * size, size, q + i * size, size, size, scores + i * s_stride + cell,
                    s_stride, keys);
  for (long i = 0; i < queries; i++) {
    float* mine = scores + i * s_stride;
    const long row = query[i].row, length = see.length[see.slot[row]];
    for (long e = see.more[row], at = query[i].prefix; e < see.more[row + 1]; e++, at++)
      dots<1, 1, 0>(keys + (length + see.rest[e]) * size, size, q + i * size, size, size, mine + at, s_stride, keys);
    sums[i] = soften(mine, query[i].begin, query[i].end);
    for (long at = from; at < query[i].begin; at++) mine[at] = 0;
  }
  // Probabilities of ancestors after the prefix are at indices that are cells for other queries: move them aside.
  float* aside = scores + QUERIES * s_stride;
  for (long i = 0; i < queries; i++) {
    float* mine = scores + i * s_stride;
    for (long at = query[i].prefix; at < query[i].end; at++) aside[i * s_stride + at - query[i].prefix] = mine[at];
    for (long at = query[i].prefix; at < to; at++) mine[at] = 0;
  }
  for (long i = 0; i < queries; i += 3) {
    const long some = std::min<long>(3, queries - i);
    const float* p = scores + i * s_stride;
    float* sum = attended + i * value_size;
    if (some == 3) weigh_all<3>(p, s_stride, values, value_size, from, to, sum, value_size);
    else if (some == 2) weigh_all<2>(p, s_stride, values, value_size, from, to, sum, value_size);
    else weigh_all<1>(p, s_stride, values, value_size, from, to, sum, value_size);
  }
  for (long i = 0; i < queries; i++) {
    const long row = query[i].row, length = see.length[see.slot[row]];
    float* sum = attended + i * value_size;
    for (long e = see.more[row], at = 0; e < see.more[row + 1]; e++, at++) {
      const long position = query[i].prefix + at;
      if (position < query[i].begin) continue;
      const A* value = values + (length + see.rest[e]) * value_size;
      const float p = aside[i * s_stride + at];
      for (long j = 0; j < value_size; j++) sum[j] = fused(p, load_one(value + j), sum[j]);
    }
    float* to_row = out + row * out_stride + query[i].head * value_size;
    const float over = 1 / sums[i];
    for (long j = 0; j < value_size; j++) to_row[j] = sum[j] * over;
  }
}
