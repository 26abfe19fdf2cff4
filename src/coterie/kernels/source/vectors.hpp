// Vectors of the processor's width, and elementary functions on them. NaN and infinities pass through all of them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace coterie {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
constexpr int kRegisters = 32;
#elif defined(__AVX__)
constexpr int kBytes = 32;
constexpr int kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kBytes = 16;
constexpr int kRegisters = 32;
#else
constexpr int kBytes = 16;
constexpr int kRegisters = 16;
#endif

template <class T>
struct Lanes;

template <>
struct Lanes<float> {
  typedef float V __attribute__((vector_size(kBytes)));
  typedef float U __attribute__((vector_size(kBytes), aligned(4), may_alias));
  typedef uint32_t I __attribute__((vector_size(kBytes)));
  static constexpr int kMantissa = 23;
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr uint32_t kBias = 127;
  static constexpr float kHigh = 88.0f, kLow = -87.0f;
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  static constexpr int kDegree = 7;
};

template <>
struct Lanes<double> {
  typedef double V __attribute__((vector_size(kBytes)));
  typedef double U __attribute__((vector_size(kBytes), aligned(8), may_alias));
  typedef uint64_t I __attribute__((vector_size(kBytes)));
  static constexpr int kMantissa = 52;
  static constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr uint64_t kBias = 1023;
  static constexpr double kHigh = 709.0, kLow = -708.0;
  static constexpr double kLn2High = 6.93145751953125e-1, kLn2Low = 1.42860682030941723212e-6;
  static constexpr int kDegree = 13;
};

template <class T>
using Vec = typename Lanes<T>::V;

template <class T>
constexpr int kWidth = kBytes / int(sizeof(T));

// Columns of a buffer that holds n of them: whole cache lines, which are a multiple of the vector width.
template <class T>
constexpr int64_t padded(int64_t n) {
  constexpr int64_t line = 64 / sizeof(T);
  return (n + line - 1) / line * line;
}

template <class T>
inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename Lanes<T>::U*>(p);
}

template <class T>
inline void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename Lanes<T>::U*>(p) = v;
}

template <class T>
inline Vec<T> fill(T x) {
  return x - Vec<T>{};  // exact for every x, and thus a broadcast; x + 0 is not, because of -0
}

// The sum of the numbers of a vector: its halves are added, then those of the result.
template <class T>
inline T sum(Vec<T> x) {
  alignas(64) T parts[kWidth<T>];
  store<T>(parts, x);
#pragma GCC unroll 4
  for (int step = kWidth<T> / 2; step > 0; step /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < step; i++) parts[i] += parts[i + step];
  return parts[0];
}

// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2) / 2, by the Taylor polynomial of e^r. Beyond the range of the
// type the result is that of its ends.
template <class T>
inline Vec<T> exp(Vec<T> x) {
  using L = Lanes<T>;
  using V = Vec<T>;
  const V high = fill<T>(L::kHigh), low = fill<T>(L::kLow);
  x = x > high ? high : x;
  x = x < low ? low : x;
  const V shifted = x * fill<T>(T(1.44269504088896340736)) + fill<T>(L::kMagic);
  const V n = shifted - fill<T>(L::kMagic);
  const V r = x - n * fill<T>(L::kLn2High) - n * fill<T>(L::kLn2Low);
  T coefficients[L::kDegree + 1];
  coefficients[0] = 1;
  for (int k = 1; k <= L::kDegree; k++) coefficients[k] = coefficients[k - 1] / T(k);
  V p = fill<T>(coefficients[L::kDegree]);
#pragma GCC unroll 13
  for (int k = L::kDegree - 1; k >= 0; k--) p = p * r + fill<T>(coefficients[k]);
  typename L::I bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + L::kBias) << L::kMantissa;
  V scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

template <class T>
inline Vec<T> sigmoid(Vec<T> x) {
  return fill<T>(1) / (fill<T>(1) + exp<T>(-x));
}

template <class T>
inline Vec<T> tanh(Vec<T> x) {
  return fill<T>(2) / (fill<T>(1) + exp<T>(x * fill<T>(-2))) - fill<T>(1);
}

// Transposes a matrix [W, W] of W vectors.
template <class T>
inline void transpose(Vec<T>* x) {
  constexpr int W = kWidth<T>;
  Vec<T> y[W];
#if defined(__clang__)
  for (int i = 0; i < W; i++)
    for (int j = 0; j < W; j++) y[i][j] = x[j][i];
  for (int i = 0; i < W; i++) x[i] = y[i];
#else  // log2(W) perfect shuffles of the two halves of the rows
  typename Lanes<T>::I low, high;
  for (int i = 0; i < W; i++) low[i] = (i % 2) * W + i / 2, high[i] = low[i] + W / 2;
#pragma GCC unroll 4
  for (int width = 1; width < W; width *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; i++) {
      y[2 * i] = __builtin_shuffle(x[i], x[i + W / 2], low);
      y[2 * i + 1] = __builtin_shuffle(x[i], x[i + W / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) x[i] = y[i];
  }
#endif
}

// to[i * to_stride + j] = from[j * from_stride + i] for i < rows, j < columns.
template <class T>
inline void write_transposed(const T* from, int64_t from_stride, int64_t columns, int64_t rows, T* to,
                             int64_t to_stride) {
  constexpr int64_t W = kWidth<T>;
  int64_t i = 0;
  for (; columns >= W && i + W <= rows; i += W)
    for (int64_t j = 0; j < columns; j += W) {
      const int64_t first = j + W > columns ? columns - W : j;
      Vec<T> x[W];
      for (int64_t k = 0; k < W; k++) x[k] = load<T>(from + (first + k) * from_stride + i);
      transpose<T>(x);
      for (int64_t k = 0; k < W; k++) store<T>(to + (i + k) * to_stride + first, x[k]);
    }
  for (; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) to[i * to_stride + j] = from[j * from_stride + i];
}

}  // namespace coterie
