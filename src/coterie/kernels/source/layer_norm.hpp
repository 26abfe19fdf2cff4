// Layer normalization of rows with a learned scale and shift.
#pragma once
#include "vectors.hpp"

namespace coterie {

template <class T>
struct RowMoments {
  T mean, inverse_std;
};

template <class T>
RowMoments<T> row_moments(const T* x, int64_t columns) {
  T mean = 0, variance = 0;
  for (int64_t j = 0; j < columns; j++) mean += x[j];
  mean /= T(columns);
  for (int64_t j = 0; j < columns; j++) variance += (x[j] - mean) * (x[j] - mean);
  return {mean, T(1) / std::sqrt(variance / T(columns) + T(1e-5))};
}

// out = (x - mean) / std * scale + shift for rows of `ld` numbers; parameters: scale [ld], shift [ld]. The surplus
// columns of the output are zero. `out` may be `x`.
template <class T>
void layer_norm(const T* x, int64_t rows, int64_t columns, int64_t ld, const T* parameters, T* out) {
  for (int64_t r = 0; r < rows; r++) {
    const T* from = x + r * ld;
    T* to = out + r * ld;
    const RowMoments<T> m = row_moments(from, columns);
    for (int64_t j = 0; j < columns; j++) to[j] = (from[j] - m.mean) * m.inverse_std * parameters[j] + parameters[ld + j];
    for (int64_t j = columns; j < ld; j++) to[j] = 0;
  }
}

// Replaces gradients `g` of the output with those of the input `x`, and adds those of scale and shift to `sums`.
template <class T>
void layer_norm_backward(const T* x, int64_t rows, int64_t columns, int64_t ld, const T* parameters, T* g, T* sums) {
  for (int64_t r = 0; r < rows; r++) {
    const T* from = x + r * ld;
    T* d = g + r * ld;
    const RowMoments<T> m = row_moments(from, columns);
    T mean = 0, along = 0;
    for (int64_t j = 0; j < columns; j++) {
      const T unit = (from[j] - m.mean) * m.inverse_std;
      sums[j] += d[j] * unit;
      sums[ld + j] += d[j];
      d[j] *= parameters[j];
      mean += d[j];
      along += d[j] * unit;
    }
    mean /= T(columns), along /= T(columns);
    for (int64_t j = 0; j < columns; j++)
      d[j] = m.inverse_std * (d[j] - mean - (from[j] - m.mean) * m.inverse_std * along);
    for (int64_t j = columns; j < ld; j++) d[j] = 0;
  }
}

// The same with sums by vectors, which is several times as fast and rounds otherwise. Rows have `ld` numbers, a multiple
// of the vector width, and the surplus columns of `g` and of the parameters are zero.
template <class T>
RowMoments<T> vector_row_moments(const T* x, int64_t columns) {
  const int64_t whole = columns / kWidth<T> * kWidth<T>;
  Vec<T> total{}, squares{};
  for (int64_t j = 0; j < whole; j += kWidth<T>) total += load<T>(x + j);
  T mean = sum<T>(total), variance = 0;
  for (int64_t j = whole; j < columns; j++) mean += x[j];
  mean /= T(columns);
  for (int64_t j = 0; j < whole; j += kWidth<T>) {
    const Vec<T> d = load<T>(x + j) - fill<T>(mean);
    squares += d * d;
  }
  variance = sum<T>(squares);
  for (int64_t j = whole; j < columns; j++) variance += (x[j] - mean) * (x[j] - mean);
  return {mean, T(1) / std::sqrt(variance / T(columns) + T(1e-5))};
}

template <class T>
void vector_layer_norm(const T* x, int64_t rows, int64_t columns, int64_t ld, const T* parameters, T* out) {
  for (int64_t r = 0; r < rows; r++) {
    const T* from = x + r * ld;
    const RowMoments<T> m = vector_row_moments(from, columns);
    for (int64_t j = 0; j < ld; j += kWidth<T>) {
      const Vec<T> unit = (load<T>(from + j) - fill<T>(m.mean)) * fill<T>(m.inverse_std);
      store<T>(out + r * ld + j, unit * load<T>(parameters + j) + load<T>(parameters + ld + j));
    }
  }
}

template <class T>
void vector_layer_norm_backward(const T* x, int64_t rows, int64_t columns, int64_t ld, const T* parameters, T* g,
                                T* sums) {
  for (int64_t r = 0; r < rows; r++) {
    const T* from = x + r * ld;
    T* d = g + r * ld;
    const RowMoments<T> m = vector_row_moments(from, columns);
    Vec<T> total{}, along{};
    for (int64_t j = 0; j < ld; j += kWidth<T>) {
      const Vec<T> unit = (load<T>(from + j) - fill<T>(m.mean)) * fill<T>(m.inverse_std), grad = load<T>(d + j);
      store<T>(sums + j, load<T>(sums + j) + grad * unit);
      store<T>(sums + ld + j, load<T>(sums + ld + j) + grad);
      const Vec<T> scaled = grad * load<T>(parameters + j);
      total += scaled;
      along += scaled * unit;
      store<T>(d + j, scaled);
    }
    const Vec<T> mean = fill<T>(sum<T>(total) / T(columns)), slope = fill<T>(sum<T>(along) / T(columns));
    for (int64_t j = 0; j < ld; j += kWidth<T>) {
      const Vec<T> unit = (load<T>(from + j) - fill<T>(m.mean)) * fill<T>(m.inverse_std);
      store<T>(d + j, fill<T>(m.inverse_std) * (load<T>(d + j) - mean - unit * slope));
    }
    for (int64_t j = columns; j < ld; j++) d[j] = 0;
  }
}

}  // namespace coterie
