// Shapes, weights and activations of multilayer perceptrons.
#pragma once
#include "memory.hpp"
#include "products.hpp"

namespace coterie {

enum Activation { kTanh = 0, kRelu = 1, kSilu = 2 };
// Layer normalization of nothing, of the input and the outputs of activations, or of the inputs of activations.
enum Normalization { kNone = 0, kAfter = 1, kBefore = 2 };

constexpr int64_t kWide = 256;  // columns of a layer; the gradients of wider ones do not fit into the cache

// Shapes, and offsets into the buffers of one set of parameters.
template <class T>
struct Mlp {
  int64_t sets, rows, layers, activated, activation;
  const int64_t* widths;  // [layers + 1]
  int64_t normalization;

  int64_t width(int64_t l) const { return widths[l]; }
  int64_t pad(int64_t l) const { return padded<T>(widths[l]); }
  // Distance of the rows of a layer's outputs. Rows at multiples of 4 kB would displace each other from the cache.
  int64_t stride(int64_t l) const { return pad(l) > kWide ? pad(l) + padded<T>(1) : pad(l); }
  int64_t widest() const {
    int64_t found = 0;
    for (int64_t l = 0; l <= layers; l++) found = stride(l) > found ? stride(l) : found;
    return found;
  }
  bool wide() const {  // whether the gradients of the weights are too large to be summed tile by tile
    for (int64_t l = 1; l <= layers; l++)
      if (width(l) > kWide) return true;
    return false;
  }
  bool large() const {  // whether weights of a layer are too large to be read from the cache for every tile
    for (int64_t l = 0; l < layers; l++)
      if (normalization == kNone && width(l) * pad(l + 1) * int64_t(sizeof(T)) > kLarge) return true;
    return false;
  }
  // Whether inputs of activations are saved, not outputs: these are cheaper to compute again than those.
  bool keeps_inputs() const { return normalization == kBefore || activation == kSilu; }
  int64_t saved_columns(int64_t before) const {
    int64_t total = 0;
    for (int64_t l = 0; l < before; l++) total += stride(l + 1);
    return total;
  }
  // Outputs of layer `layer`, [sets, rows, stride], among those of all layers, one after another; or gradients by them.
  T* of_layer(T* all, int64_t layer, int64_t set, int64_t row) const {
    return all + sets * rows * saved_columns(layer) + (set * rows + row) * stride(layer + 1);
  }
  // Packed weights [in, padded out] and bias of every layer.
  int64_t packed(int64_t before) const {
    int64_t total = 0;
    for (int64_t l = 0; l < before; l++) total += (width(l) + 1) * pad(l + 1);
    return total;
  }
  int64_t transposed(int64_t before) const {
    int64_t total = 0;
    for (int64_t l = 0; l < before; l++) total += width(l + 1) * pad(l);
    return total;
  }
  int64_t norm(int64_t before) const {  // packed scales and shifts
    int64_t total = 0;
    for (int64_t k = 0; k < before; k++) total += 2 * pad(normed(k));
    return total;
  }
  int64_t num_norms() const { return normalization == kNone ? 0 : activated + (normalization == kAfter); }
  int64_t normed(int64_t k) const { return k + (normalization == kBefore); }  // index of the width of normalization k
};

// Applies a function to the vectors of rows of `stride` numbers, of which `columns` are used. Rows without surplus are
// processed as one.
template <class T, class F>
inline void each_vector(int64_t rows, int64_t columns, int64_t stride, F function) {
  if (columns == stride) columns *= rows, rows = rows > 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = r * stride; i < r * stride + columns; i += kWidth<T>) function(i);
}

template <class T>
void activate(T* x, int64_t rows, int64_t columns, int64_t stride, int64_t activation) {
  if (activation == kTanh) {
    each_vector<T>(rows, columns, stride, [=](int64_t i) { store<T>(x + i, tanh<T>(load<T>(x + i))); });
  } else if (activation == kSilu) {
    each_vector<T>(rows, columns, stride, [=](int64_t i) {
      const Vec<T> v = load<T>(x + i);
      store<T>(x + i, v * sigmoid<T>(v));
    });
  } else {
    each_vector<T>(rows, columns, stride, [=](int64_t i) {
      const Vec<T> v = load<T>(x + i);
      store<T>(x + i, v < fill<T>(0) ? fill<T>(0) : v);
    });
  }
}

// Multiplies g with the derivative of the activation, from its outputs `a`; of kSilu from its inputs.
template <class T>
void activation_gradient(const T* a, T* g, int64_t rows, int64_t columns, int64_t stride, int64_t activation) {
  if (activation == kTanh) {
    each_vector<T>(rows, columns, stride, [=](int64_t i) {
      const Vec<T> v = load<T>(a + i);
      store<T>(g + i, load<T>(g + i) * (fill<T>(1) - v * v));
    });
  } else if (activation == kSilu) {
    each_vector<T>(rows, columns, stride, [=](int64_t i) {
      const Vec<T> v = load<T>(a + i), s = sigmoid<T>(v), one = fill<T>(1);
      store<T>(g + i, load<T>(g + i) * s * (one + v * (one - s)));
    });
  } else {
    each_vector<T>(rows, columns, stride, [=](int64_t i) {
      const Vec<T> v = load<T>(a + i), d = load<T>(g + i);
      store<T>(g + i, v <= fill<T>(0) ? fill<T>(0) : d);
    });
  }
}

// Weights [in, padded out] and bias of every layer, copied into `out` if they have to be padded.
template <class T>
void pack(const Mlp<T>& net, int64_t set, const T* const* weights, const T* const* biases, T* out, const T** packed) {
  for (int64_t l = 0; l < net.layers; l++) {
    const int64_t in = net.width(l), cols = net.width(l + 1), ld = net.pad(l + 1);
    const T *weight = weights[l] + set * in * cols, *bias = biases[l] + set * cols;
    packed[2 * l] = weight, packed[2 * l + 1] = bias;
    if (cols == ld) continue;
    T* to = out + net.packed(l);
    pad_rows(weight, cols, in, cols, to, ld);
    pad_rows(bias, cols, 1, cols, to + in * ld, ld);
    packed[2 * l] = to, packed[2 * l + 1] = to + in * ld;
  }
}

template <class T>
struct MlpGradients {
  T* x;  // null if not needed
  T* const* weights;
  T* const* biases;
  T* const* scales;
  T* const* shifts;
};

}  // namespace coterie
