// Operations on a row of numbers between two products.
#pragma once

#include "vectors.h"

enum Activation { SILU = 0, GELU_TANH = 1 };

struct Norm {
  const float* weight;  // null: no norm
  float eps;
};

// Root-mean-square norm (Zhang and Sennrich, 2019).
static inline void rms_norm(const Norm& norm, const float* from, float* to, long size) {
  vec squares = {};
  long i = 0;
  for (; i + LANES <= size; i += LANES) {
    const vec some = load(from + i);
    squares = fused(some, some, squares);
  }
  float sum = hsum(squares);
  for (; i < size; i++) sum = fused(from[i], from[i], sum);
  const float over = 1 / std::sqrt(sum / size + norm.eps);
  for (long j = 0; j < size; j++) to[j] = from[j] * over * norm.weight[j];
}

template <class A>
static inline void widen(const A* from, float* to, long size) {
  for (long i = 0; i < size; i++) to[i] = load_one(from + i);
}

template <class A>
static inline void narrow(const float* from, A* to, long size) {
  for (long i = 0; i < size; i++) store_one(to + i, from[i]);
}

// Round a number to the type A.
template <class A>
static inline float rounded(float value) {
  A held;
  store_one(&held, value);
  return load_one(&held);
}

// Rotary embedding by halves (Su et al., 2021) of the first ``turned`` numbers of a head.
template <class A>
static inline void rotate(float* head, const A* cosine, const A* sine, long turned) {
  const long half = turned / 2;
  for (long i = 0; i < half; i++) {
    const float x = head[i], y = head[i + half];
    head[i] = x * load_one(cosine + i) - y * load_one(sine + i);
    head[i + half] = y * load_one(cosine + i + half) + x * load_one(sine + i + half);
  }
}

static inline vec activate(vec x, int kind) {
  if (kind == SILU) return x / (1.0f + exponential(-x));
  const vec u = 1.59576912160573f * (x + 0.044715f * x * x * x);  // 2 * sqrt(2 / pi)
  return x - x / (1.0f + exponential(u));
}

// gate = activation(gate) * up.
static inline void gate_by(float* gate, const float* up, long size, int kind) {
  long i = 0;
  for (; i + LANES <= size; i += LANES) store(gate + i, activate(load(gate + i), kind) * load(up + i));
  if (i == size) return;
  float last[2][LANES] = {};
  for (long j = i; j < size; j++) last[0][j - i] = gate[j], last[1][j - i] = up[j];
  store(last[0], activate(load(last[0]), kind) * load(last[1]));
  for (long j = i; j < size; j++) gate[j] = last[0][j - i];
}
