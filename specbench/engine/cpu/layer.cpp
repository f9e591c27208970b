// Decoder layers like Llama's over the rows of token trees, all layers in one call.
//
// A layer does little work between two matrix products, but as about forty torch operators this work takes more than
// half the time of the products. Here a call is one parallel region, and rows stay in cached buffers between its parts.

#include <omp.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "attention.h"
#include "products.h"
#include "rows.h"
#include "team.h"

extern "C" {

// Must match library.py field by field.
struct Layer {
  Norm before_attention, of_query, of_key, after_attention, before_mlp, after_mlp;
  Linear inputs[3];  // query, key and value; or all of them in the first
  Linear output;
  Linear gate, up;  // or both in gate
  Linear down;
  Heads heads;
  long hidden, inner;
  int activation, type;  // type of hidden states and cache: FLOAT32 or BFLOAT16
  void *keys, *values;
};
}

namespace {

struct Buffer {
  float* at = nullptr;
  long size = 0;

  float* of(long wanted) {
    if (wanted > size) {
      std::free(at);
      at = nullptr;
      size = 0;
      void* found = nullptr;
      if (posix_memalign(&found, 64, wanted * sizeof(float))) throw std::bad_alloc();
      at = static_cast<float*>(found);
      size = wanted;
    }
    return at;
  }
  ~Buffer() { std::free(at); }
};

// Data that the layers of a forward share; buffers grow to the largest number of rows so far.
struct Work {
  Sight see{};
  std::vector<int32_t> run, more, rest;
  Buffer residual, normed, projected, attended, product, inner, scratch;
  std::vector<std::unique_ptr<void, decltype(&std::free)>> halves;  // weights in bf16, see work_halve
};

struct Shares {
  long tile, pieces;
  std::vector<long> before;  // pieces before each slot's
};

Shares share_attention(const Sight& see, const Heads& heads, int threads) {
  Shares found;
  const long group = heads.heads / heads.kv_heads;
  long queries = 0;
  for (long slot = 0; slot < see.slots; slot++) queries += see.count[slot] * heads.heads;
  found.tile = std::min(QUERIES, std::max<long>(1, (queries + 4 * threads - 1) / (4 * threads)));
  found.before.resize(see.slots + 1);
  for (long slot = 0; slot < see.slots; slot++) {
    const long tiles = (see.count[slot] * group + found.tile - 1) / found.tile;
    found.before[slot + 1] = found.before[slot] + tiles * heads.kv_heads;
  }
  found.pieces = found.before[see.slots];
  return found;
}

template <class A>
void attention_piece(const Layer& layer, const Sight& see, const Shares& shares, long piece, const float* queries,
                     long stride, float* scores, float* out) {
  const Heads& heads = layer.heads;
  const long group = heads.heads / heads.kv_heads;
  const long slot = std::upper_bound(shares.before.begin(), shares.before.end(), piece) - shares.before.begin() - 1;
  const long tiles = (shares.before[slot + 1] - shares.before[slot]) / heads.kv_heads;
  const long mine = piece - shares.before[slot], kv_head = mine / tiles;
  const long begin = mine % tiles * shares.tile, end = std::min(begin + shares.tile, see.count[slot] * group);
  Query some[QUERIES];
  for (long i = begin; i < end; i++) {
    const long row = see.first[slot] + i / group, text = see.length[slot] + see.depth[row] + 1;
    const long prefix = see.length[slot] + see.run[row];
    some[i - begin] = {row, kv_head * group + i % group, heads.window ? std::max<long>(0, text - heads.window) : 0,
                       prefix, prefix + see.more[row + 1] - see.more[row]};
  }
  const long head = (see.offset + slot) * heads.kv_heads + kv_head;
  const A* keys = static_cast<const A*>(layer.keys) + head * see.capacity * heads.size;
  const A* values = static_cast<const A*>(layer.values) + head * see.capacity * heads.value_size;
  attend(heads, see, some, end - begin, queries, stride, keys, values, scores, see.capacity + LANES, out,
         heads.heads * heads.value_size);
}

// Normalize and rotate a row's heads from ``first`` on, queries before keys, and store its keys and values in its cell.
template <class A>
void place(const Layer& layer, const Sight& see, long row, float* projected, const A* cosine, const A* sine,
           long turned, long first) {
  const Heads& heads = layer.heads;
  for (long head = first; head < heads.heads + heads.kv_heads; head++) {
    float* mine = projected + head * heads.size;
    const Norm& norm = head < heads.heads ? layer.of_query : layer.of_key;
    if (norm.weight) rms_norm(norm, mine, mine, heads.size);
    rotate(mine, cosine, sine, turned);
  }
  if (padding(see, row)) return;
  const long slot = see.slot[row], cell = see.start[slot] + row - see.first[slot];
  const float *key = projected + heads.heads * heads.size, *value = key + heads.kv_heads * heads.size;
  for (long head = 0; head < heads.kv_heads; head++) {
    const long at = ((see.offset + slot) * heads.kv_heads + head) * see.capacity + cell;
    narrow(key + head * heads.size, static_cast<A*>(layer.keys) + at * heads.size, heads.size);
    narrow(value + head * heads.value_size, static_cast<A*>(layer.values) + at * heads.value_size, heads.value_size);
  }
}

// Call ``each`` for all rows, in pieces of several rows to reduce the overhead.
template <class Do>
void each_row(const Seat& seat, long part, long rows, Do each) {
  constexpr long some = 4;
  seat.share(part, (rows + some - 1) / some, [&](long piece) {
    for (long row = piece * some; row < std::min(rows, (piece + 1) * some); row++) each(row);
  });
}

// Products of one input with the weights of up to three linear layers, concatenated in ``out``.
void products(const Seat& seat, long part, const Linear* linears, long count, const float* x, long rows, float* out,
              long stride) {
  long before[4] = {};
  for (long i = 0; i < count; i++) before[i + 1] = before[i] + Pieces(linears[i], rows).count;
  seat.share(part, before[count], [&](long piece) {
    long which = 0, at = 0;
    while (piece >= before[which + 1]) at += linears[which++].out;
    const Linear& linear = linears[which];
    const Pieces pieces(linear, rows);
    const long mine = piece - before[which], row = pieces.row(mine);
    linear_part(linear, pieces.begin(mine), pieces.end(mine), x + row * linear.in, linear.in, pieces.some(mine),
                out + row * stride + at, stride);
  });
}

// Gated MLP: a piece computes the same outputs of gate and up, and combines them while they are in cache.
void gated(const Seat& seat, long part, const Layer& layer, const float* x, long rows, float* other, float* out) {
  Linear gate = layer.gate, up = layer.up;
  if (!up.weight) {  // both in one: gates first
    up = without(gate, layer.inner);
    up.out = gate.out = layer.inner;
  }
  const Pieces pieces(gate, rows);
  seat.share(part, pieces.count, [&](long piece) {
    const long begin = pieces.begin(piece), end = pieces.end(piece), row = pieces.row(piece), some = pieces.some(piece);
    const float* from = x + row * gate.in;
    float* to = out + row * layer.inner;
    linear_part(gate, begin, end, from, gate.in, some, to, layer.inner);
    linear_part(up, begin, end, from, up.in, some, other - begin, pieces.width);
    for (long i = 0; i < some; i++)
      gate_by(to + i * layer.inner + begin, other + i * pieces.width, end - begin, layer.activation);
  });
}

// Memory of a forward, large enough for its largest layer.
struct Space {
  Space(Work& work, const Layer* layers, long count, long rows, int threads) {
    long wide = 0, values = 0, inner_size = 0, read = layers->hidden;
    for (const Layer* layer = layers; layer < layers + count; layer++) {
      const Pieces pieces(layer->gate, rows);
      wide = std::max(wide, width(layer->heads));
      values = std::max(values, layer->heads.heads * layer->heads.value_size);
      inner_size = std::max(inner_size, layer->inner);
      read = std::max(read, layer->inputs->in);
      own = std::max({own, 2 * QUERIES * (work.see.capacity + LANES), pieces.width * ROWS});
    }
    const long size = layers->hidden;
    residual = work.residual.of(rows * size);
    normed = work.normed.of(rows * read);
    projected = work.projected.of(rows * wide);
    attended = work.attended.of(rows * values);
    product = work.product.of(rows * size);
    inner = work.inner.of(rows * inner_size);
    scratch = work.scratch.of(own * threads);
  }

  static long width(const Heads& heads) {
    return heads.heads * heads.size + heads.kv_heads * (heads.size + heads.value_size);
  }

  float *residual, *normed, *projected, *attended, *product, *inner, *scratch;
  long own = 0;  // scratch of a thread
};

void add(const Norm& norm, float* added, float* to, long size) {
  if (norm.weight) rms_norm(norm, added, added, size);
  for (long i = 0; i < size; i++) to[i] += added[i];
}

// A thread's share of a layer's attention, from ``normed`` to ``product``, in four parts from ``part`` on.
template <class A>
void attention_parts(const Seat& seat, long part, const Sight& see, const Space& space, const Layer& layer,
                     const Shares& shares, const A* cosine, const A* sine, long turned, float* mine) {
  const long rows = see.rows, wide = Space::width(layer.heads), values = layer.heads.heads * layer.heads.value_size;
  float* projected = space.projected;
  products(seat, part, layer.inputs, layer.inputs[1].weight ? 3 : 1, space.normed, rows, projected, wide);
  each_row(seat, part + 1, rows, [&](long row) {
    place(layer, see, row, projected + row * wide, cosine + row * turned, sine + row * turned, turned, 0);
    if (padding(see, row)) std::fill_n(space.attended + row * values, values, 0.0f);
  });
  seat.share(part + 2, shares.pieces, [&](long piece) {
    attention_piece<A>(layer, see, shares, piece, projected, wide, mine, space.attended);
  });
  products(seat, part + 3, &layer.output, 1, space.attended, rows, space.product, layer.hidden);
}

constexpr long PARTS = 9;  // parts of a layer

// A thread's share of a layer, in PARTS parts from ``part`` on; reads and updates the residual stream.
template <class A>
void layer_parts(const Seat& seat, long part, const Sight& see, const Space& space, const Layer& layer, const Shares& shares,
                 const A* cosine, const A* sine, long turned, float* mine, A* out) {
  const long rows = see.rows, size = layer.hidden;
  float *residual = space.residual, *normed = space.normed, *product = space.product;
  each_row(seat, part, rows, [&](long row) {
    rms_norm(layer.before_attention, residual + row * size, normed + row * size, size);
  });
  attention_parts(seat, part + 1, see, space, layer, shares, cosine, sine, turned, mine);
  each_row(seat, part + 5, rows, [&](long row) {
    float* to = residual + row * size;
    add(layer.after_attention, product + row * size, to, size);
    rms_norm(layer.before_mlp, to, normed + row * size, size);
  });
  gated(seat, part + 6, layer, normed, rows, mine, space.inner);
  products(seat, part + 7, &layer.down, 1, space.inner, rows, product, size);
  each_row(seat, part + 8, rows, [&](long row) {
    float* to = residual + row * size;
    add(layer.after_mlp, product + row * size, to, size);
    // Between two layers numbers are rounded to the model's precision, even if the output is not read.
    for (long i = 0; i < size; i++) to[i] = rounded<A>(to[i]);
    if (out) narrow(to, out + row * size, size);
  });
}

template <class A>
void run(Work& work, const Layer* layers, long count, const A* hidden, void* const* outs, const A* cosine,
         const A* sine, long turned, int threads) {
  const Sight& see = work.see;
  const Space space(work, layers, count, see.rows, threads);
  std::vector<Shares> shares;
  for (const Layer* layer = layers; layer < layers + count; layer++)
    shares.push_back(share_attention(see, layer->heads, threads));
  Team team(1 + count * PARTS, threads);
#pragma omp parallel num_threads(threads)
  {
    const Seat seat{team, omp_get_thread_num()};
    float* mine = space.scratch + seat.thread * space.own;
    each_row(seat, 0, see.rows, [&](long row) {
      widen(hidden + row * layers->hidden, space.residual + row * layers->hidden, layers->hidden);
    });
    for (long at = 0; at < count; at++)
      layer_parts(seat, 1 + at * PARTS, see, space, layers[at], shares[at], cosine, sine, turned, mine,
                  static_cast<A*>(outs[at]));
  }
}

// The attention of a layer over rows x [rows, width] without norms and residual; without ``out``, only stores their keys
// and values.
template <class A>
void run_attention(Work& work, const Layer& layer, const A* x, A* out, const A* cosine, const A* sine, long turned,
                   int threads) {
  const Sight& see = work.see;
  const Heads& heads = layer.heads;
  const long rows = see.rows, width = layer.inputs->in, wide = Space::width(heads);
  const long apart = !out && layer.inputs[1].weight;  // queries are a product of their own, which is left out
  const Space space(work, &layer, 1, rows, threads);
  const Shares shares = share_attention(see, heads, threads);
  Team team(6, threads);
#pragma omp parallel num_threads(threads)
  {
    const Seat seat{team, omp_get_thread_num()};
    each_row(seat, 0, rows, [&](long row) { widen(x + row * width, space.normed + row * width, width); });
    if (out) {
      attention_parts(seat, 1, see, space, layer, shares, cosine, sine, turned,
                      space.scratch + seat.thread * space.own);
      each_row(seat, 5, rows, [&](long row) {
        narrow(space.product + row * layer.hidden, out + row * layer.hidden, layer.hidden);
      });
    } else {
      products(seat, 1, layer.inputs + apart, apart ? 2 : 1, space.normed, rows,
               space.projected + apart * heads.heads * heads.size, wide);
      each_row(seat, 2, rows, [&](long row) {
        place(layer, see, row, space.projected + row * wide, cosine + row * turned, sine + row * turned, turned,
              heads.heads);
      });
    }
  }
}

// The gated MLP of a layer: out = MLP of x, both [rows, hidden].
template <class A>
void run_mlp(Work& work, const Layer& layer, const A* x, A* out, long rows, int threads) {
  const long size = layer.hidden;
  const Space space(work, &layer, 1, rows, threads);
  Team team(4, threads);
#pragma omp parallel num_threads(threads)
  {
    const Seat seat{team, omp_get_thread_num()};
    each_row(seat, 0, rows, [&](long row) { widen(x + row * size, space.normed + row * size, size); });
    gated(seat, 1, layer, space.normed, rows, space.scratch + seat.thread * space.own, space.inner);
    products(seat, 2, &layer.down, 1, space.inner, rows, space.product, size);
    each_row(seat, 3, rows, [&](long row) { narrow(space.product + row * size, out + row * size, size); });
  }
}

// total = x + added, or x without ``added``; out = norm of total. All are [rows, size].
template <class A>
void run_norm(Work& work, const Norm& norm, const A* x, const A* added, A* total, A* out, long rows, long size) {
  float* wide = work.normed.of(size);
  for (long at = 0; at < rows * size; at += size) {
    widen(x + at, wide, size);
    if (added)
      for (long i = 0; i < size; i++) {
        wide[i] = rounded<A>(wide[i] + load_one(added + at + i));
        store_one(total + at + i, wide[i]);
      }
    rms_norm(norm, wide, wide, size);
    narrow(wide, out + at, size);
  }
}

// The ``count`` largest of a row's scores in descending order, and their logarithms of softmax over the row.
void best_of(const float* scores, long size, long count, float* top, int64_t* ids) {
  long found = 0;
  const auto insert = [&](long id) {
    long at = std::min(found, count - 1);
    if (found < count) found++;
    for (; at > 0 && top[at - 1] < scores[id]; at--) top[at] = top[at - 1], ids[at] = ids[at - 1];
    top[at] = scores[id], ids[at] = id;
  };
  long id = 0;
  while (found < count) insert(id++);
  constexpr long SOME = 4 * LANES;
  for (; id + SOME <= size; id += SOME) {
    vec most = load(scores + id);
    for (long i = LANES; i < SOME; i += LANES) {
      const vec some = load(scores + id + i);
      most = some > most ? some : most;
    }
    float least = most[0];
    for (int lane = 1; lane < LANES; lane++) least = std::max(least, most[lane]);
    if (least > top[count - 1])
      for (long i = id; i < id + SOME; i++)
        if (scores[i] > top[count - 1]) insert(i);
  }
  for (; id < size; id++)
    if (scores[id] > top[count - 1]) insert(id);
  vec sums = {};
  const float most = top[0];
  for (id = 0; id + LANES <= size; id += LANES) sums += exponential(load(scores + id) - most);
  float sum = hsum(sums);
  for (; id < size; id++) sum += std::exp(scores[id] - most);
  const float all = most + std::log(sum);
  for (long i = 0; i < count; i++) top[i] -= all;
}

}  // namespace

extern "C" {

Work* work_new() { return new (std::nothrow) Work(); }
void work_free(Work* work) { delete work; }

// Copy weights to bf16, in huge pages, if that holds all of them exactly. Returns null if it does not, or without memory.
const void* work_halve(Work* work, const float* weight, long count) {
  const uint32_t* from = reinterpret_cast<const uint32_t*>(weight);
  uint32_t lost = 0;
  for (long i = 0; i < count; i++) lost |= from[i] & 0xFFFF;
  constexpr long PAGE = 2 << 20;
  const long bytes = count * 2;
  void* found = nullptr;
  if (lost || posix_memalign(&found, bytes < PAGE ? 64 : PAGE, bytes)) return nullptr;
#ifdef MADV_HUGEPAGE
  madvise(found, bytes / PAGE * PAGE, MADV_HUGEPAGE);
#endif
  for (long i = 0; i < count; i++) static_cast<uint16_t*>(found)[i] = from[i] >> 16;
  work->halves.emplace_back(found, &std::free);
  return found;
}

// Set which rows see which in the next layers. Returns 0, or 1 if memory runs out.
int work_aim(Work* work, const Sight* see) try {
  work->see = *see;
  work->run.resize(see->rows);
  work->more.resize(see->rows + 1);
  work->rest.resize(further(*see));
  work->see.run = work->run.data();
  work->see.more = work->more.data();
  work->see.rest = work->rest.data();
  look(work->see);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// Run some layers one after the other. hidden: [rows, hidden]; outs: memory for each layer's output [rows, hidden], or
// null; cosine, sine: [rows, turned].
int layers_run(Work* work, const Layer* layers, long count, const void* hidden, void* const* outs, const void* cosine,
               const void* sine, long turned, int threads) try {
  if (layers->type == FLOAT32)
    run(*work, layers, count, static_cast<const float*>(hidden), outs, static_cast<const float*>(cosine),
        static_cast<const float*>(sine), turned, threads);
  else
    run(*work, layers, count, static_cast<const bf16*>(hidden), outs, static_cast<const bf16*>(cosine),
        static_cast<const bf16*>(sine), turned, threads);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// The attention of a layer for the rows of ``work_aim``, see run_attention; x, out, cosine and sine have the layer's type.
int attention_run(Work* work, const Layer* layer, const void* x, void* out, const void* cosine, const void* sine,
                  long turned, int threads) try {
  const auto run = [&](auto of) {
    using A = decltype(of);
    run_attention(*work, *layer, static_cast<const A*>(x), static_cast<A*>(out), static_cast<const A*>(cosine),
                  static_cast<const A*>(sine), turned, threads);
  };
  layer->type == FLOAT32 ? run(float()) : run(bf16());
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int mlp_run(Work* work, const Layer* layer, const void* x, void* out, long rows, int threads) try {
  if (layer->type == FLOAT32)
    run_mlp(*work, *layer, static_cast<const float*>(x), static_cast<float*>(out), rows, threads);
  else run_mlp(*work, *layer, static_cast<const bf16*>(x), static_cast<bf16*>(out), rows, threads);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// See run_norm; ``type`` is that of all tensors.
int norm_run(Work* work, const Norm* norm, const void* x, const void* added, int type, void* total, void* out, long rows,
             long size) try {
  const auto run = [&](auto of) {
    using A = decltype(of);
    run_norm(*work, *norm, static_cast<const A*>(x), static_cast<const A*>(added), static_cast<A*>(total),
             static_cast<A*>(out), rows, size);
  };
  type == FLOAT32 ? run(float()) : run(bf16());
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// See best_of; scores [rows, size], logp and ids [rows, count] with count at most size.
int best_run(const float* scores, long rows, long size, long count, float* logp, int64_t* ids, int threads) try {
  Team team(1, threads);
#pragma omp parallel num_threads(threads)
  Seat{team, omp_get_thread_num()}.share(0, rows, [&](long row) {
    best_of(scores + row * size, size, count, logp + row * count, ids + row * count);
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// out [rows, linear.out] = linear layer of x [rows, linear.in]; x has the given type, out is float.
int linear_run(Work* work, const Linear* linear, const void* x, int type, float* out, long rows, int threads) try {
  const float* from = static_cast<const float*>(x);
  if (type != FLOAT32) {
    float* wide = work->inner.of(rows * linear->in);
    widen(static_cast<const bf16*>(x), wide, rows * linear->in);
    from = wide;
  }
  Team team(1, threads);
#pragma omp parallel num_threads(threads)
  products(Seat{team, omp_get_thread_num()}, 0, linear, 1, from, rows, out, linear->out);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
}
