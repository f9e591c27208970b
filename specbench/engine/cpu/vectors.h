// Vectors of floats that fill a register of this machine, and conversion of each weight type to floats.
//
// Uses the vector types of GCC and Clang, so that one source works for AVX-512, AVX2, NEON and SSE. All sums go lane by
// lane and then through hsum(), in an order that depends only on the length of the sum, not on how many rows are
// computed together: a row's result has the same bits alone and in a tree.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

// Sums held in registers: TILE_W weight rows by TILE_X input rows.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TILE_W = 8, TILE_X = 3;
#else
constexpr int TILE_W = 4, TILE_X = 3;
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float loose_vec __attribute__((vector_size(LANES * 4), aligned(1), may_alias));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef uint16_t loose_halves __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
typedef int8_t bytes __attribute__((vector_size(LANES)));
typedef int8_t loose_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

struct bf16 {
  uint16_t bits;
};

static inline vec load(const float* from) { return *reinterpret_cast<const loose_vec*>(from); }

// Compilers generate slow code for widening small integers.
#if defined(__AVX512F__)
static inline vec load(const bf16* from) {
  const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(packed), 16);
}

static inline vec load(const int8_t* from) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(packed));
}
#elif defined(__AVX2__)
static inline vec load(const bf16* from) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16);
}

static inline vec load(const int8_t* from) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(packed));
}
#else
static inline vec load(const bf16* from) {
  const halves packed = *reinterpret_cast<const loose_halves*>(from);
  return (vec)(__builtin_convertvector(packed, words) << 16);  // reinterprets the bits
}

static inline vec load(const int8_t* from) {
  const bytes packed = *reinterpret_cast<const loose_bytes*>(from);
  return __builtin_convertvector(__builtin_convertvector(packed, ints), vec);
}
#endif

static inline float load_one(const float* from) { return *from; }

static inline float load_one(const int8_t* from) { return static_cast<float>(*from); }

static inline float load_one(const bf16* from) {
  const uint32_t shifted = static_cast<uint32_t>(from->bits) << 16;
  float value;
  std::memcpy(&value, &shifted, 4);
  return value;
}

static inline void store(float* to, vec value) { *reinterpret_cast<loose_vec*>(to) = value; }

static inline void store_one(float* to, float value) { *to = value; }

// Round to nearest, ties to even; NaN stays NaN.
static inline void store_one(bf16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  to->bits = std::isnan(value) ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// a * b + c, rounded once if the machine supports it. A compiler might round once in one loop and twice in another,
// which would give different bits.
static inline vec fused(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

static inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Keep the compiler from loading a value again for each use: a core can do only few loads at a time.
static inline void in_register(vec& value) {
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__AVX__)
  asm("" : "+x"(value));
#else
  (void)value;
#endif
}

static inline vec splat(float value) { return vec{} + value; }

// Keep the compiler from combining a product with a following sum, which would round once instead of twice.
static inline void separate(vec& value) {
#if defined(__AVX__)
  in_register(value);
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
}

// Sum of all lanes: repeatedly adds the upper half to the lower half.
template <int N>
struct Lanes {
  typedef float type __attribute__((vector_size(N * 4)));

  static inline float sum(type value) {
    typename Lanes<N / 2>::type half[2];
    std::memcpy(half, &value, sizeof value);
    return Lanes<N / 2>::sum(half[0] + half[1]);
  }
};

template <>
struct Lanes<1> {
  typedef float type;

  static inline float sum(float value) { return value; }
};

static inline float hsum(vec value) { return Lanes<LANES>::sum(value); }

// Sums of N vectors. If N is half the number of lanes, two vectors are folded at a time: the same additions in fewer
// instructions.
template <int N>
static inline void hsums(const vec* values, float* sums) {
  for (int i = 0; i < N; i++) sums[i] = hsum(values[i]);
}

#if defined(__AVX512F__)
template <>
inline void hsums<8>(const vec* v, float* sums) {
  __m512 pair[4], four[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m512 a = (__m512)v[2 * i], b = (__m512)v[2 * i + 1];
    pair[i] = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xEE);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++)
    four[i] = _mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0x88) +
              _mm512_shuffle_f32x4(pair[2 * i], pair[2 * i + 1], 0xDD);
  const __m512d low = (__m512d)four[0], high = (__m512d)four[1];
  const __m512 eight = (__m512)_mm512_unpacklo_pd(low, high) + (__m512)_mm512_unpackhi_pd(low, high);
  const __m512 sum = eight + _mm512_permute_ps(eight, 0xB1);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(sums, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sum)));
}
#elif defined(__AVX2__)
template <>
inline void hsums<4>(const vec* v, float* sums) {
  const __m256 a = (__m256)v[0], b = (__m256)v[1], c = (__m256)v[2], d = (__m256)v[3];
  const __m256d low = (__m256d)(_mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31));
  const __m256d high = (__m256d)(_mm256_permute2f128_ps(c, d, 0x20) + _mm256_permute2f128_ps(c, d, 0x31));
  const __m256 four = (__m256)_mm256_unpacklo_pd(low, high) + (__m256)_mm256_unpackhi_pd(low, high);
  const __m256 sum = four + _mm256_permute_ps(four, 0xB1);
  sums[0] = sum[0], sums[1] = sum[4], sums[2] = sum[2], sums[3] = sum[6];
}
#endif

// e^x with an error of up to two units in the last place; 0 below -87, and x is clamped to 88 (Cody and Waite's
// reduction, and the polynomial of Cephes' expf).
static inline vec exponential(vec x) {
  const vec low = splat(-87.0f), high = splat(88.0f);
  const ints under = x < low;
  x = (x < low) ? low : x;
  x = (x > high) ? high : x;
  const vec shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const vec n = (x * 1.44269504088896341f + shifter) - shifter;
  vec r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const ints power = (__builtin_convertvector(n, ints) + 127) << 23;
  return under ? vec{} : p * (vec)power;
}
