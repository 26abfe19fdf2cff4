// Multilayer perceptrons over tiles of rows: hidden layers with tanh or ReLU, optional layer normalization of the input
// and of every activation, optional linear last layers, and an optional leading axis of parameter sets.
#include "layer_norm.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "products.hpp"

namespace coterie {

enum Activation { kTanh = 0, kRelu = 1 };

constexpr int64_t kWide = 256;  // columns of a layer; the gradients of wider ones do not fit into the cache
constexpr int64_t kPanel = 48;  // rows of such a gradient that are computed at a time

// Shapes, and offsets into the buffers of one set of parameters.
template <class T>
struct Mlp {
  int64_t sets, rows, layers, activated, activation;
  const int64_t* widths;  // [layers + 1]
  bool normed;

  int64_t width(int64_t l) const { return widths[l]; }
  int64_t pad(int64_t l) const { return padded<T>(widths[l]); }
  // Distance of the rows of a layer's outputs. Rows at multiples of 4 kB would displace each other from the cache.
  int64_t stride(int64_t l) const { return pad(l) > kWide ? pad(l) + padded<T>(1) : pad(l); }
  int64_t widest() const {
    int64_t found = 0;
    for (int64_t l = 0; l <= layers; l++) found = stride(l) > found ? stride(l) : found;
    return found;
  }
  int64_t tiles() const { return ceil_div(rows, kTile); }
  bool wide() const {  // whether the gradients of the weights are too large to be summed tile by tile
    for (int64_t l = 1; l <= layers; l++)
      if (width(l) > kWide) return true;
    return false;
  }
  // Saved activations: for every tile, kTile rows of each activated layer.
  int64_t saved_columns(int64_t before) const {
    int64_t total = 0;
    for (int64_t l = 0; l < before; l++) total += stride(l + 1);
    return total;
  }
  T* saved(T* all, int64_t set, int64_t tile, int64_t layer) const {
    return all + ((set * tiles() + tile) * saved_columns(activated) + saved_columns(layer)) * kTile;
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
    for (int64_t l = 0; normed && l < before; l++) total += 2 * pad(l);
    return total;
  }
  int64_t num_norms() const { return normed ? activated + 1 : 0; }
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
  } else {
    each_vector<T>(rows, columns, stride, [=](int64_t i) {
      const Vec<T> v = load<T>(x + i);
      store<T>(x + i, v < fill<T>(0) ? fill<T>(0) : v);
    });
  }
}

template <class T>
void activation_gradient(const T* a, T* g, int64_t rows, int64_t columns, int64_t stride, int64_t activation) {
  if (activation == kTanh) {
    each_vector<T>(rows, columns, stride, [=](int64_t i) {
      const Vec<T> v = load<T>(a + i);
      store<T>(g + i, load<T>(g + i) * (fill<T>(1) - v * v));
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
void pack_norms(const Mlp<T>& net, int64_t set, const T* const* scales, const T* const* shifts, T* out) {
  for (int64_t l = 0; l < net.num_norms(); l++) {
    const int64_t n = net.width(l), ld = net.pad(l);
    pad_rows(scales[l] + set * n, n, 1, n, out + net.norm(l), ld);
    pad_rows(shifts[l] + set * n, n, 1, n, out + net.norm(l) + ld, ld);
  }
}

template <class T>
void mlp_forward(const Mlp<T>& net, const T* x, int64_t x_set, int64_t x_row, const T* const* weights,
                 const T* const* biases, const T* const* scales, const T* const* shifts, T* out, T* saved, int threads) {
  const int64_t widest = net.widest(), last = net.layers;
  const int64_t packed_size = net.packed(last), norm_size = net.norm(net.num_norms());
  Buffer<T> copies(net.sets * packed_size), norms(net.sets * norm_size);
  Buffer<const T*> packed(net.sets * 2 * last);
  for (int64_t s = 0; s < net.sets; s++) {
    pack(net, s, weights, biases, copies + s * packed_size, packed + s * 2 * last);
    pack_norms(net, s, scales, shifts, norms + s * norm_size);
  }
  const int64_t piece = piece_rows(net.sets, net.rows, packed_size, threads), pieces = ceil_div(net.rows, piece);
  const auto make_memory = [&] { return Buffer<T>(3 * kTile * widest); };
  parallel_for({net.sets * pieces, threads}, make_memory, [&](int64_t task, T* buffers) {
    const int64_t set = task / pieces, first = task % pieces * piece, tile = first / kTile, within = first % kTile;
    const int64_t rows = first + piece <= net.rows ? piece : net.rows - first;
    const int64_t rest = first + rows == net.rows ? kTile - within - rows : 0;  // rows of the tile without input
    const T* const* p = packed + set * 2 * last;
    const T* n = norms + set * norm_size;
    const T* in = x + set * x_set + first * x_row;
    int64_t ld = x_row;
    if (net.normed) {
      pad_rows(in, ld, rows, net.width(0), buffers + 2 * kTile * widest, net.pad(0));
      layer_norm(buffers + 2 * kTile * widest, rows, net.width(0), net.pad(0), n, buffers + 2 * kTile * widest);
      in = buffers + 2 * kTile * widest, ld = net.pad(0);
    }
    for (int64_t l = 0; l < last; l++) {
      const int64_t columns = net.pad(l + 1), stride = net.stride(l + 1);
      T* to = buffers + (l % 2) * kTile * widest;
      if (saved != nullptr && l < net.activated) to = net.saved(saved, set, tile, l) + within * stride;
      product(in, ld, p[2 * l], columns, rows, net.width(l), columns, to, stride, Start::kBias, p[2 * l + 1]);
      in = to, ld = stride;
      if (l >= net.activated) continue;
      if (saved != nullptr) std::memset(to + rows * stride, 0, size_t(rest * stride) * sizeof(T));
      activate(to, rows, columns, stride, net.activation);
      if (net.normed) {
        T* normed = buffers + 2 * kTile * widest;
        layer_norm(to, rows, net.width(l + 1), columns, n + net.norm(l + 1), normed);
        in = normed;
      }
    }
    copy_rows(in, ld, rows, net.width(last), out + (set * net.rows + first) * net.width(last), net.width(last));
  });
}

template <class T>
struct MlpGradients {
  T* x;  // null if not needed
  T* const* weights;
  T* const* biases;
  T* const* scales;
  T* const* shifts;
};

// Gradients of one tile, added to `sums`: packed weights and biases, then packed scales and shifts.
template <class T>
void mlp_backward_tile(const Mlp<T>& net, const T* x, int64_t x_row, int64_t rows, const T* transposed, const T* norms,
                       const T* grad_out, T* const* saved, T* x_grad, T* sums, T* buffers) {
  const int64_t widest = net.widest(), last = net.layers;
  T *g = buffers, *other = buffers + kTile * widest, *input = buffers + 2 * kTile * widest;
  T* norm_sums = sums + net.packed(last);
  pad_rows(grad_out, net.width(last), rows, net.width(last), g, net.pad(last));
  for (int64_t l = last - 1; l >= 0; l--) {
    const int64_t columns = net.pad(l + 1);
    if (l < net.activated) {
      const T* a = saved[l];
      if (net.normed)
        layer_norm_backward(a, rows, net.width(l + 1), columns, norms + net.norm(l + 1), g,
                            norm_sums + net.norm(l + 1));
      activation_gradient(a, g, rows, columns, columns, net.activation);
    }
    const T* in = l == 0 ? x : saved[l - 1];
    int64_t ld = l == 0 ? x_row : net.pad(l);
    if (net.normed && l <= net.activated) {
      pad_rows(in, ld, rows, net.width(l), input, net.pad(l));
      layer_norm(input, rows, net.width(l), net.pad(l), norms + net.norm(l), input);
      in = input, ld = net.pad(l);
    }
    T* dw = sums + net.packed(l);
    add_outer(in, ld, g, columns, rows, net.width(l), columns, dw, columns);
    add_rows(g, columns, rows, columns, dw + net.width(l) * columns);
    if (l == 0 && x_grad == nullptr && !net.normed) return;
    product(g, columns, transposed + net.transposed(l), net.pad(l), rows, net.width(l + 1), net.pad(l), other,
            net.pad(l), Start::kZero);
    T* swap = g;
    g = other, other = swap;
  }
  if (net.normed) {
    pad_rows(x, x_row, rows, net.width(0), input, net.pad(0));
    layer_norm_backward(input, rows, net.width(0), net.pad(0), norms, g, norm_sums);
  }
  if (x_grad != nullptr) copy_rows(g, net.pad(0), rows, net.width(0), x_grad, net.width(0));
}

// Gradients by the outputs of every layer: for every tile, kTile rows of each layer.
template <class T>
struct OutputGradients {
  const Mlp<T>& net;
  Buffer<T> all;

  explicit OutputGradients(const Mlp<T>& net)
      : net(net), all(net.sets * net.tiles() * kTile * net.saved_columns(net.layers)) {}
  T* at(int64_t set, int64_t tile, int64_t layer) const {
    return all + ((set * net.tiles() + tile) * net.saved_columns(net.layers) + net.saved_columns(layer)) * kTile;
  }
};

// Calls work(set, layer, first, memory) for first = 0, kPanel, .. below size(layer), for all layers from `lowest` on. A
// layer of size 0 has one panel, too, for its biases.
template <class T, class Size, class Make, class Work>
void for_each_panel(const Mlp<T>& net, int64_t lowest, Size&& size, int threads, Make&& make_memory, Work&& work) {
  const auto panels = [&](int64_t l) { return size(l) > 0 ? ceil_div(size(l), kPanel) : 1; };
  int64_t per_set = 0;
  for (int64_t l = lowest; l < net.layers; l++) per_set += panels(l);
  parallel_for({net.sets * per_set, threads}, make_memory, [&](int64_t task, auto& memory) {
    int64_t l = lowest, panel = task % per_set;
    while (panel >= panels(l)) panel -= panels(l++);
    work(task / per_set, l, panel * kPanel, memory);
  });
}

template <class T>
void wide_output_gradients(const Mlp<T>& net, const T* const* weights, const T* grad_out, T* saved, T* x_grad,
                           const OutputGradients<T>& found, int threads) {
  const int64_t last = net.layers, size = net.transposed(last), piece = piece_rows(net.sets, net.rows, size, threads);
  const int64_t pieces = ceil_div(net.rows, piece), lowest = x_grad == nullptr ? 1 : 0;
  Buffer<T> transposed(net.sets * size);
  const auto none = [] { return 0; };
  const auto outputs = [&](int64_t l) { return net.width(l + 1); };
  for_each_panel(net, lowest, outputs, threads, none, [&](int64_t s, int64_t l, int64_t first, int) {
    const int64_t in = net.width(l), cols = net.width(l + 1), count = first + kPanel < cols ? kPanel : cols - first;
    pad_transposed(weights[l] + s * in * cols + first, cols, in, count,
                   transposed + s * size + net.transposed(l) + first * net.pad(l), net.pad(l));
  });
  const auto make_memory = [&] { return Buffer<T>(lowest == 0 ? kTile * net.pad(0) : 0); };
  parallel_for({net.sets * pieces, threads}, make_memory, [&](int64_t task, T* inputs) {
    const int64_t set = task / pieces, first = task % pieces * piece, tile = first / kTile, within = first % kTile;
    const int64_t rows = first + piece <= net.rows ? piece : net.rows - first, row = set * net.rows + first;
    T* g = found.at(set, tile, last - 1) + within * net.stride(last);
    pad_rows(grad_out + row * net.width(last), net.width(last), rows, net.width(last), g, net.stride(last));
    for (int64_t l = last - 1; l >= 0; l--) {
      const int64_t columns = net.pad(l + 1), stride = net.stride(l + 1);
      if (l < net.activated)
        activation_gradient(net.saved(saved, set, tile, l) + within * stride, g, rows, columns, stride,
                            net.activation);
      if (l < lowest) break;
      T* to = l == 0 ? inputs : found.at(set, tile, l - 1) + within * net.stride(l);
      const int64_t to_stride = l == 0 ? net.pad(0) : net.stride(l);
      product(g, stride, transposed + set * size + net.transposed(l), net.pad(l), rows, net.width(l + 1), net.pad(l),
              to, to_stride, Start::kZero);
      g = to;
    }
    if (lowest == 0) copy_rows(g, net.pad(0), rows, net.width(0), x_grad + row * net.width(0), net.width(0));
  });
}

// Gradients of the weights of kPanel inputs of a layer, and of its biases, summed over all rows. `sums` holds rows of
// one layer's stride, one for every input and one for the biases.
template <class T>
void wide_weight_gradients(const Mlp<T>& net, const T* x, int64_t x_row, T* saved, const OutputGradients<T>& found,
                           int64_t set, int64_t l, int64_t input, T* weight_grad, T* bias_grad, T* sums) {
  const int64_t in = net.width(l), cols = net.width(l + 1), columns = net.pad(l + 1), stride = net.stride(l + 1);
  const int64_t depth = input + kPanel < in ? kPanel : in - input, lda = l == 0 ? x_row : net.stride(l);
  T* bias_sums = sums + kPanel * stride;
  std::memset(sums, 0, size_t((kPanel + 1) * stride) * sizeof(T));
  for (int64_t tile = 0; tile < net.tiles(); tile++) {
    const int64_t first = tile * kTile, rows = first + kTile <= net.rows ? kTile : net.rows - first;
    const T* a = l == 0 ? x + first * x_row : net.saved(saved, set, tile, l - 1);
    const T* g = found.at(set, tile, l);
    add_outer(a + input, lda, g, stride, rows, depth, columns, sums, stride);
    if (input == 0) add_rows(g, stride, rows, columns, bias_sums);
  }
  copy_rows(sums, stride, depth, cols, weight_grad + input * cols, cols);
  if (input == 0) copy_rows(bias_sums, stride, 1, cols, bias_grad, cols);
}

// The gradients of networks with wide layers and without normalization. A thread sums a part of a gradient over all
// rows, so that there are no partial sums of large matrices.
template <class T>
void wide_mlp_backward(const Mlp<T>& net, const T* x, int64_t x_set, int64_t x_row, const T* const* weights,
                       const T* grad_out, T* saved, const MlpGradients<T>& grads, int threads) {
  const OutputGradients<T> found(net);
  wide_output_gradients(net, weights, grad_out, saved, grads.x, found, threads);
  const auto make_memory = [&] { return Buffer<T>((kPanel + 1) * net.widest()); };
  const auto inputs = [&](int64_t l) { return net.width(l); };
  for_each_panel(net, 0, inputs, threads, make_memory, [&](int64_t s, int64_t l, int64_t first, T* sums) {
    const int64_t in = net.width(l), cols = net.width(l + 1);
    wide_weight_gradients(net, x + s * x_set, x_row, saved, found, s, l, first, grads.weights[l] + s * in * cols,
                          grads.biases[l] + s * cols, sums);
  });
}

template <class T>
void mlp_backward(const Mlp<T>& net, const T* x, int64_t x_set, int64_t x_row, const T* const* weights,
                  const T* const* scales, const T* const* shifts, const T* grad_out, T* saved,
                  const MlpGradients<T>& grads, int threads) {
  const int64_t widest = net.widest(), last = net.layers;
  const int64_t transposed_size = net.transposed(last), norm_size = net.norm(net.num_norms());
  const int64_t sums_size = net.packed(last) + norm_size, chunks = num_chunks(net.rows), length = chunk_rows(net.rows);
  Buffer<T> transposed(net.sets * transposed_size), norms(net.sets * norm_size);
  Buffer<T> sums(net.sets * (chunks > 0 ? chunks : 1) * sums_size);
  for (int64_t s = 0; s < net.sets; s++) {
    for (int64_t l = 0; l < last; l++)
      pad_transposed(weights[l] + s * net.width(l) * net.width(l + 1), net.width(l + 1), net.width(l), net.width(l + 1),
                     transposed + s * transposed_size + net.transposed(l), net.pad(l));
    pack_norms(net, s, scales, shifts, norms + s * norm_size);
  }
  struct Work {
    Buffer<T> buffers;
    Buffer<T*> activations;
  };
  const auto make_memory = [&] { return Work{Buffer<T>(3 * kTile * widest), Buffer<T*>(last)}; };
  parallel_for({net.sets * chunks, threads}, make_memory, [&](int64_t task, Work& work) {
    const int64_t set = task / chunks, start = task % chunks * length;
    T* mine = sums + task * sums_size;
    std::memset(mine, 0, size_t(sums_size) * sizeof(T));
    for (int64_t first = start; first < start + length && first < net.rows; first += kTile) {
      const int64_t rows = first + kTile <= net.rows ? kTile : net.rows - first, at = set * net.rows + first;
      for (int64_t l = 0; l < net.activated; l++) work.activations[l] = net.saved(saved, set, first / kTile, l);
      mlp_backward_tile(net, x + set * x_set + first * x_row, x_row, rows, transposed + set * transposed_size,
                        norms + set * norm_size, grad_out + at * net.width(last), work.activations.get(),
                        grads.x == nullptr ? nullptr : grads.x + at * net.width(0), mine, work.buffers.get());
    }
  });
  for (int64_t s = 0; s < net.sets; s++) {
    const T* mine = sums + s * chunks * sums_size;
    for (int64_t l = 0; l < last; l++) {
      const int64_t in = net.width(l), cols = net.width(l + 1), ld = net.pad(l + 1);
      sum_parts<T>(mine + net.packed(l), chunks, sums_size, in, cols, ld, grads.weights[l] + s * in * cols);
      sum_parts<T>(mine + net.packed(l) + in * ld, chunks, sums_size, 1, cols, ld, grads.biases[l] + s * cols);
    }
    for (int64_t l = 0; l < net.num_norms(); l++) {
      const int64_t n = net.width(l), ld = net.pad(l), at = net.packed(last) + net.norm(l);
      sum_parts<T>(mine + at, chunks, sums_size, 1, n, ld, grads.scales[l] + s * n);
      sum_parts<T>(mine + at + ld, chunks, sums_size, 1, n, ld, grads.shifts[l] + s * n);
    }
  }
}

}  // namespace coterie

// sizes: sets, rows, layers, activated layers, activation, normalized, stride of x by set and by row; then the widths.
// Parameters are in the order weights, biases (not for the backward pass), scales, shifts; so are their gradients.
#define COTERIE_MLP(T, SUFFIX)                                                                                         \
  COTERIE_API void coterie_mlp_forward_##SUFFIX(const int64_t* s, const T* x, const T* const* parameters, T* out,      \
                                                T* saved, int threads) {                                               \
    coterie::Mlp<T> net{s[0], s[1], s[2], s[3], s[4], s + 8, s[5] != 0};                                               \
    const T *const *biases = parameters + s[2], *const *scales = biases + s[2], *const *shifts = scales + net.num_norms(); \
    coterie::mlp_forward<T>(net, x, s[6], s[7], parameters, biases, scales, shifts, out, saved, threads);              \
  }                                                                                                                    \
  COTERIE_API void coterie_mlp_backward_##SUFFIX(const int64_t* s, const T* x, const T* const* parameters,             \
                                                 const T* grad_out, T* saved, T* x_grad, T* const* found,              \
                                                 int threads) {                                                        \
    coterie::Mlp<T> net{s[0], s[1], s[2], s[3], s[4], s + 8, s[5] != 0};                                               \
    const T *const *scales = parameters + s[2], *const *shifts = scales + net.num_norms();                             \
    T *const *biases = found + s[2], *const *scale_grads = biases + s[2];                                              \
    coterie::MlpGradients<T> grads{x_grad, found, biases, scale_grads, scale_grads + net.num_norms()};                 \
    if (net.wide())                                                                                                    \
      coterie::wide_mlp_backward<T>(net, x, s[6], s[7], parameters, grad_out, saved, grads, threads);                  \
    else                                                                                                               \
      coterie::mlp_backward<T>(net, x, s[6], s[7], parameters, scales, shifts, grad_out, saved, grads, threads);       \
  }
COTERIE_MLP(float, f32)
COTERIE_MLP(double, f64)
