// Weights in blocks, as GGUF files store them: a block of a row has one scale, and some formats a smallest value.
//
// Each type here is used like a pointer to weights. Unpacking gives the floats that dequantising the file gives, so products
// with packed weights have the bits of products with dequantised ones.
#pragma once

#include "vectors.h"

struct half {
  uint16_t bits;
};

static inline float value(float number) { return number; }

static inline float value(half number) {
#if defined(__F16C__)
  return _cvtsh_ss(number.bits);
#elif defined(__aarch64__)
  __fp16 wide;
  std::memcpy(&wide, &number, 2);
  return wide;
#else
  const uint32_t sign = (number.bits & 0x8000u) << 16, rest = number.bits & 0x7FFFu;
  const uint32_t shifted = rest << 13;
  float found;
  std::memcpy(&found, &shifted, 4);
  found *= 5.192296858534828e33f;  // 2^112: the difference of the exponents' offsets, right for subnormal numbers too
  if (rest >= 0x7C00u) found = rest > 0x7C00u ? NAN : INFINITY;
  uint32_t bits;
  std::memcpy(&bits, &found, 4);
  bits |= sign;
  std::memcpy(&found, &bits, 4);
  return found;
#endif
}

// Convert the first ``count`` of some scales to floats.
static inline void widen_scales(const float* scales, float* to, long count) { std::memcpy(to, scales, count * 4); }

static inline void widen_scales(const half* scales, float* to, long count) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16)
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + i))));
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + i))));
#endif
  for (; i < count; i++) to[i] = value(scales[i]);
}

template <class T>
static inline const void* address(const T* at) {
  return at;
}

// Weights of 8 bits: scale * q. A block has 2^SHIFT of them, at least 16.
template <class S, int SHIFT>
struct Block8 {
  static constexpr int shift = SHIFT;
  static constexpr bool has_least = false;
  const int8_t* q;
  const S* scale;
  const S* least = nullptr;
  long at = 0;

  Block8(const void* weight, const void* scale)
      : q(static_cast<const int8_t*>(weight)), scale(static_cast<const S*>(scale)) {}

  Block8 operator+(long by) const {
    Block8 moved = *this;
    moved.at += by;
    return moved;
  }
};

template <class S, int SHIFT>
static inline const void* address(const Block8<S, SHIFT>& from) {
  return from.q + from.at;
}

// The numbers of the block at ``from``, without its scale.
template <class S, int SHIFT, int V>
static inline void unpack(const Block8<S, SHIFT>& from, vec (&q)[V]) {
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) q[v] = load(from.q + from.at + v * LANES);
}

template <class S, int SHIFT>
static inline float load_one(const Block8<S, SHIFT>& from) {
  return from.q[from.at] * value(from.scale[from.at >> SHIFT]);
}

// Weights of 4 bits in blocks of 32: byte i of a block holds weight i in its low and weight 16 + i in its high bits. They
// are scale * q + least with q from 0 to 15, or without smallest values scale * (q - 8).
template <class S, bool LEAST>
struct Block4 {
  static constexpr int shift = 5;
  static constexpr bool has_least = LEAST;
  const uint8_t* q;
  const S* scale;
  const S* least;
  long at = 0;

  Block4(const void* weight, const void* scale, const void* least)
      : q(static_cast<const uint8_t*>(weight)),
        scale(static_cast<const S*>(scale)),
        least(static_cast<const S*>(least)) {}

  Block4 operator+(long by) const {
    Block4 moved = *this;
    moved.at += by;
    return moved;
  }

  const uint8_t* bytes_at() const { return q + (at >> 5) * 16 + (at & 15); }
};

template <class S, bool LEAST>
static inline const void* address(const Block4<S, LEAST>& from) {
  return from.bytes_at();
}

#if !defined(__AVX512F__)
// Four bits of LANES bytes as floats.
static inline vec four_bits(const uint8_t* from, bool high) {
#if defined(__AVX2__)
  __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  wide = high ? _mm256_srli_epi32(wide, 4) : _mm256_and_si256(wide, _mm256_set1_epi32(15));
  return (vec)_mm256_cvtepi32_ps(wide);
#else
  vec found;
  for (int i = 0; i < LANES; i++) found[i] = static_cast<float>(high ? from[i] >> 4 : from[i] & 15);
  return found;
#endif
}
#endif

template <class S, bool LEAST, int V>
static inline void unpack(const Block4<S, LEAST>& from, vec (&q)[V]) {
#if defined(__AVX512F__)  // a register holds the 16 values that four bits can stand for
  const vec low = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, values = LEAST ? low : low - 8.0f;
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from.bytes_at())));
  q[0] = (vec)_mm512_permutexvar_ps(wide, (__m512)values);
  q[1] = (vec)_mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), (__m512)values);
#else
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) {
    q[v] = four_bits(from.bytes_at() + (v * LANES & 15), v * LANES >= 16);
    if (!LEAST) q[v] -= 8.0f;
  }
#endif
}

template <class S, bool LEAST>
static inline float load_one(const Block4<S, LEAST>& from) {
  const long block = from.at >> 5;
  const float q = static_cast<float>(from.at & 16 ? *from.bytes_at() >> 4 : *from.bytes_at() & 15);
  if (!LEAST) return (q - 8.0f) * value(from.scale[block]);
  volatile float product = q * value(from.scale[block]);
  return product + value(from.least[block]);
}

// Scales and smallest values of W rows, from element ``start`` of each row on.
template <int W, class P>
struct Scales {
  static constexpr long SPAN = 1024, BLOCKS = SPAN >> P::shift;  // elements at a time

  Scales(P w, long w_stride, long start, long blocks) {
    for (int a = 0; a < W; a++) {
      const long first = (w.at + a * w_stride + start) >> P::shift;
      widen_scales(w.scale + first, scale[a], blocks);
      if (P::has_least) widen_scales(w.least + first, least[a], blocks);
    }
  }

  // The weights of block ``n`` of row ``a``, which begins at ``from``.
  template <int V>
  void weights(P from, int a, long n, vec (&found)[V]) const {
    unpack(from, found);
    const vec factor = splat(scale[a][n]);
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      found[v] *= factor;
      if (P::has_least) {
        separate(found[v]);  // rounded before the addition, as where a file is dequantised
        found[v] += splat(least[P::has_least ? a : 0][n]);
      }
    }
  }

  float scale[W][BLOCKS];
  float least[P::has_least ? W : 1][BLOCKS];
};
