// Multilayer perceptrons with layers of more than kWide columns, without normalization, layer by layer. A thread
// computes some columns of a layer for many rows, so that few threads read the same weights, and the work is divided
// evenly whatever the number of rows is.
#pragma once
#include "mlp.hpp"
#include "pool.hpp"

namespace coterie {

constexpr int64_t kPanel = 48;       // rows of a gradient of weights that are computed at a time
constexpr int64_t kMostRows = 192;   // rows of a block; a part of their inputs stays in the second-level cache
constexpr int64_t kRowsAtOnce = 96;  // rows that are summed at a time; some of their columns stay in the first
constexpr int64_t kRowUnit = 12;     // such blocks have a multiple of it, as far as there are rows
constexpr int64_t kBlocksPerThread = 8;

// Rows of numbers for each set of parameters.
template <class T>
struct Batch {
  T* data;
  int64_t set, row;  // distances
  T* at(int64_t s, int64_t r) const { return data + s * set + r * row; }
};

template <class T>
Batch<T> layer_of(const Mlp<T>& net, T* all, int64_t layer) {
  return {net.of_layer(all, layer, 0, 0), net.rows * net.stride(layer + 1), net.stride(layer + 1)};
}

// Calls work(set, row, rows, column, columns) for blocks of [rows, columns] of every set. `depth`: multiplications of
// one number.
template <class T, class F>
void for_each_block(const Mlp<T>& net, int64_t depth, int64_t columns, int threads, F&& work) {
  if (net.rows == 0) return;
  if (net.sets * net.rows * depth * columns < kMinShared) threads = 1;
  const int64_t narrow = kMaxVectors * kWidth<T>, across = ceil_div(columns, narrow);
  int64_t down = ceil_div(net.rows, kMostRows);
  if (net.sets * across * down < threads) down = ceil_div(threads, net.sets * across);
  const int64_t high = ceil_div(ceil_div(net.rows, down), kRowUnit) * kRowUnit;
  down = ceil_div(net.rows, high);
  const int64_t wide = narrow * ceil_div(net.sets * across * down, kBlocksPerThread * threads);
  const int64_t blocks = ceil_div(columns, wide);
  parallel_for({net.sets * down * blocks, threads}, [&](int64_t task) {
    const int64_t column = task % blocks * wide, row = task / blocks % down * high;
    work(task / blocks / down, row, row + high < net.rows ? high : net.rows - row, column,
         column + wide < columns ? wide : columns - column);
  });
}

template <class T>
void wide_mlp_forward(const Mlp<T>& net, const T* x, int64_t x_set, int64_t x_row, const T* const* weights,
                      const T* const* biases, T* out, T* saved, int threads) {
  const int64_t last = net.layers, packed_size = net.packed(last), size = net.sets * net.rows * net.widest();
  Buffer<T> copies(net.sets * packed_size), buffers(2 * size);
  Buffer<const T*> packed(net.sets * 2 * last);
  for (int64_t s = 0; s < net.sets; s++) pack(net, s, weights, biases, copies + s * packed_size, packed + s * 2 * last);
  Batch<const T> in{x, x_set, x_row};
  for (int64_t l = 0; l < last; l++) {
    const int64_t columns = net.pad(l + 1), stride = net.stride(l + 1);
    const bool kept = saved != nullptr && l < net.activated;
    const Batch<T> to = kept ? layer_of(net, saved, l) : Batch<T>{buffers + l % 2 * size, net.rows * stride, stride};
    for_each_block(net, net.width(l), columns, threads,
                   [&](int64_t set, int64_t row, int64_t rows, int64_t column, int64_t count) {
      const T* const* p = packed + (set * last + l) * 2;
      T* c = to.at(set, row) + column;
      product(in.at(set, row), in.row, p[0] + column, columns, rows, net.width(l), count, c, stride, Start::kBias,
              p[1] + column);
      if (l < net.activated) activate(c, rows, count, stride, net.activation);
      const int64_t cols = net.width(last);
      if (l == last - 1 && column < cols)
        copy_rows(c, stride, rows, column + count < cols ? count : cols - column,
                  out + (set * net.rows + row) * cols + column, cols);
    });
    in = {to.data, to.set, to.row};
  }
}

// The gradients by the outputs of every layer, in `found`, and those of x.
template <class T>
void wide_output_gradients(const Mlp<T>& net, const T* const* weights, const T* grad_out, T* saved, T* x_grad, T* found,
                           int threads) {
  const int64_t last = net.layers, cols = net.width(last);
  const auto activate_backward = [&](int64_t l, int64_t set, int64_t row, int64_t rows, int64_t column, int64_t count) {
    const Batch<T> g = layer_of(net, found, l), a = layer_of(net, saved, l);
    activation_gradient(a.at(set, row) + column, g.at(set, row) + column, rows, count, g.row, net.activation);
  };
  for (int64_t s = 0; s < net.sets; s++) {
    const Batch<T> g = layer_of(net, found, last - 1);
    pad_rows(grad_out + s * net.rows * cols, cols, net.rows, cols, g.at(s, 0), g.row);
    if (last == net.activated) activate_backward(last - 1, s, 0, net.rows, 0, net.pad(last));
  }
  Buffer<T> inputs(x_grad == nullptr ? 0 : net.sets * net.rows * net.pad(0));
  for (int64_t l = last - 1; l >= (x_grad == nullptr ? 1 : 0); l--) {
    const Batch<T> g = layer_of(net, found, l);
    const Batch<T> to = l == 0 ? Batch<T>{inputs, net.rows * net.pad(0), net.pad(0)} : layer_of(net, found, l - 1);
    for_each_block(net, net.width(l + 1), net.pad(l), threads,
                   [&](int64_t set, int64_t row, int64_t rows, int64_t column, int64_t count) {
      const int64_t depth = net.width(l + 1), in = net.width(l), left = in > column ? in - column : 0;
      const int64_t used = count < left ? count : left;
      T* c = to.at(set, row) + column;
      product_transposed(g.at(set, row), g.row, weights[l] + (set * in + column) * depth, depth, rows, depth, used,
                         count, c, to.row);
      if (l > 0)
        activate_backward(l - 1, set, row, rows, column, count);
      else if (used > 0)
        copy_rows(c, to.row, rows, used, x_grad + (set * net.rows + row) * in + column, in);
    });
  }
}

// Gradients of the weights of kPanel inputs of a layer, and of its biases, summed over all rows. `sums` is memory for
// rows that have to be padded.
template <class T>
void wide_weight_gradients(const Mlp<T>& net, const Batch<const T>& a, const Batch<T>& g, int64_t set, int64_t l,
                           int64_t input, T* weight_grad, T* bias_grad, T* sums) {
  const int64_t in = net.width(l), cols = net.width(l + 1), columns = net.pad(l + 1);
  const int64_t depth = input + kPanel < in ? kPanel : in - input, steps = ceil_div(net.rows, kRowsAtOnce);
  T* to = cols == columns ? weight_grad + (set * in + input) * cols : sums;
  std::memset(to, 0, size_t(depth * columns) * sizeof(T));
  for (int64_t step = 0; step < steps; step++) {
    const int64_t row = step * net.rows / steps, rows = (step + 1) * net.rows / steps - row;
    add_outer(a.at(set, row) + input, a.row, g.at(set, row), g.row, rows, depth, columns, to, columns);
  }
  if (to == sums) copy_rows(sums, columns, depth, cols, weight_grad + (set * in + input) * cols, cols);
  if (input > 0) return;
  std::memset(sums, 0, size_t(columns) * sizeof(T));
  add_rows(g.at(set, 0), g.row, net.rows, columns, sums);
  std::memcpy(bias_grad + set * cols, sums, size_t(cols) * sizeof(T));
}

// The gradients. A thread sums a part of a gradient over all rows, so that there are no partial sums of large matrices.
template <class T>
void wide_mlp_backward(const Mlp<T>& net, const T* x, int64_t x_set, int64_t x_row, const T* const* weights,
                       const T* grad_out, T* saved, const MlpGradients<T>& grads, int threads) {
  Buffer<T> found(net.sets * net.rows * net.saved_columns(net.layers));
  wide_output_gradients(net, weights, grad_out, saved, grads.x, found.get(), threads);
  int64_t per_set = 0;
  const auto panels = [&](int64_t l) { return net.width(l) > 0 ? ceil_div(net.width(l), kPanel) : 1; };
  for (int64_t l = 0; l < net.layers; l++) per_set += panels(l);
  const auto make_memory = [&] { return Buffer<T>(kPanel * net.widest()); };
  parallel_for({net.sets * per_set, threads}, make_memory, [&](int64_t task, T* sums) {
    int64_t l = net.layers - 1, panel = task % per_set;  // the first layer is the last one, and often has small panels
    while (panel >= panels(l)) panel -= panels(l--);
    const Batch<T> before = l > 0 ? layer_of(net, saved, l - 1) : Batch<T>{nullptr, 0, 0};
    const Batch<const T> inputs{x, x_set, x_row}, outputs{before.data, before.set, before.row};
    wide_weight_gradients(net, l > 0 ? outputs : inputs, layer_of(net, found.get(), l), task / per_set, l,
                          panel * kPanel, grads.weights[l], grads.biases[l], sums);
  });
}

}  // namespace coterie
