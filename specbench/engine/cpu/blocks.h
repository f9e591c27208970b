// Weights in blocks, as GGUF files store them: a block of a row has one scale, and some formats a smallest value.
//
// Each type here is used like a pointer to weights. Loading gives the float that dequantising the file gives, so products
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

template <class T>
static inline const void* address(const T* at) {
  return at;
}

// Weights of 8 bits: scale * q. A block has 2^shift of them, at least 16.
template <class S>
struct Block8 {
  const int8_t* q;
  const S* scale;
  int shift;
  long at = 0;

  Block8(const void* weight, const void* scale, int shift)
      : q(static_cast<const int8_t*>(weight)), scale(static_cast<const S*>(scale)), shift(shift) {}

  Block8 operator+(long by) const {
    Block8 moved = *this;
    moved.at += by;
    return moved;
  }
};

template <class S>
static inline const void* address(const Block8<S>& from) {
  return from.q + from.at;
}

template <class S>
static inline vec load(const Block8<S>& from) {
  return load(from.q + from.at) * splat(value(from.scale[from.at >> from.shift]));
}

template <class S>
static inline float load_one(const Block8<S>& from) {
  return from.q[from.at] * value(from.scale[from.at >> from.shift]);
}

// Weights of 4 bits in blocks of 32: byte i of a block holds weight i in its low and weight 16 + i in its high bits. They
// are scale * q + least with q from 0 to 15, or without smallest values scale * (q - 8).
template <class S, bool LEAST>
struct Block4 {
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

// Four bits of LANES bytes as floats.
static inline vec four_bits(const uint8_t* from, bool high) {
#if defined(__AVX512F__)
  __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  wide = high ? _mm512_srli_epi32(wide, 4) : _mm512_and_si512(wide, _mm512_set1_epi32(15));
  return (vec)_mm512_cvtepi32_ps(wide);
#elif defined(__AVX2__)
  __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  wide = high ? _mm256_srli_epi32(wide, 4) : _mm256_and_si256(wide, _mm256_set1_epi32(15));
  return (vec)_mm256_cvtepi32_ps(wide);
#else
  vec found;
  for (int i = 0; i < LANES; i++) found[i] = static_cast<float>(high ? from[i] >> 4 : from[i] & 15);
  return found;
#endif
}

template <class S, bool LEAST>
static inline vec load(const Block4<S, LEAST>& from) {
  const long block = from.at >> 5;
  const vec q = four_bits(from.bytes_at(), from.at & 16), scale = splat(value(from.scale[block]));
  if (!LEAST) return (q - 8.0f) * scale;
  vec product = q * scale;
  separate(product);  // rounded before the addition, as where a file is dequantised
  return product + splat(value(from.least[block]));
}

template <class S, bool LEAST>
static inline float load_one(const Block4<S, LEAST>& from) {
  const long block = from.at >> 5;
  const float q = static_cast<float>(from.at & 16 ? *from.bytes_at() >> 4 : *from.bytes_at() & 15);
  if (!LEAST) return (q - 8.0f) * value(from.scale[block]);
  volatile float product = q * value(from.scale[block]);
  return product + value(from.least[block]);
}
