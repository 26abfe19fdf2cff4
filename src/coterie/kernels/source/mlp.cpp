// Multilayer perceptrons over tiles of rows: hidden layers with tanh, ReLU or SiLU, optional layer normalization after every
// activation and of the input, or before every activation, optional linear last layers, and an optional leading axis of
// parameter sets.
#include "layer_norm.hpp"
#include "mlp.hpp"
#include "mlp_wide.hpp"
#include "pool.hpp"

namespace coterie {

template <class T>
void pack_norms(const Mlp<T>& net, int64_t set, const T* const* scales, const T* const* shifts, T* out) {
  for (int64_t l = 0; l < net.num_norms(); l++) {
    const int64_t n = net.width(net.normed(l)), ld = net.pad(net.normed(l));
    pad_rows(scales[l] + set * n, n, 1, n, out + net.norm(l), ld);
    pad_rows(shifts[l] + set * n, n, 1, n, out + net.norm(l) + ld, ld);
  }
}

// The output of layer l from its products, if these are saved.
template <class T>
void normalize_and_activate(const Mlp<T>& net, const T* product, int64_t l, int64_t rows, const T* norms, T* out) {
  const int64_t columns = net.pad(l + 1);
  if (net.normalization == kBefore)
    vector_layer_norm(product, rows, net.width(l + 1), columns, norms + net.norm(l), out);
  else
    std::memcpy(out, product, size_t(rows * columns) * sizeof(T));
  activate(out, rows, columns, columns, net.activation);
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
    const int64_t set = task / pieces, first = task % pieces * piece;
    const int64_t rows = first + piece <= net.rows ? piece : net.rows - first;
    const T* const* p = packed + set * 2 * last;
    const T* n = norms + set * norm_size;
    const T* in = x + set * x_set + first * x_row;
    int64_t ld = x_row;
    if (net.normalization == kAfter) {
      pad_rows(in, ld, rows, net.width(0), buffers + 2 * kTile * widest, net.pad(0));
      layer_norm(buffers + 2 * kTile * widest, rows, net.width(0), net.pad(0), n, buffers + 2 * kTile * widest);
      in = buffers + 2 * kTile * widest, ld = net.pad(0);
    }
    for (int64_t l = 0; l < last; l++) {
      const int64_t columns = net.pad(l + 1), stride = net.stride(l + 1);
      T* to = buffers + (l % 2) * kTile * widest;
      if (saved != nullptr && l < net.activated) to = net.of_layer(saved, l, set, first);
      product(in, ld, p[2 * l], columns, rows, net.width(l), columns, to, stride, Start::kBias, p[2 * l + 1]);
      in = to, ld = stride;
      if (l >= net.activated) continue;
      T* normed = buffers + 2 * kTile * widest;
      if (net.keeps_inputs()) {
        normalize_and_activate(net, to, l, rows, n, normed);
        in = normed;
        continue;
      }
      activate(to, rows, columns, stride, net.activation);
      if (net.normalization == kAfter) {
        layer_norm(to, rows, net.width(l + 1), columns, n + net.norm(l + 1), normed);
        in = normed;
      }
    }
    copy_rows(in, ld, rows, net.width(last), out + (set * net.rows + first) * net.width(last), net.width(last));
  });
}

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
      if (net.normalization == kAfter)
        layer_norm_backward(a, rows, net.width(l + 1), columns, norms + net.norm(l + 1), g,
                            norm_sums + net.norm(l + 1));
      if (net.normalization == kBefore) {  // layer l + 1, if there is one, has left its input
        if (l == last - 1) normalize_and_activate(net, saved[l], l, rows, norms, input);
        a = input;
      }
      activation_gradient(a, g, rows, columns, columns, net.activation);
      if (net.normalization == kBefore)
        vector_layer_norm_backward(saved[l], rows, net.width(l + 1), columns, norms + net.norm(l), g,
                                   norm_sums + net.norm(l));
    }
    const T* in = l == 0 ? x : saved[l - 1];
    int64_t ld = l == 0 ? x_row : net.pad(l);
    if (net.keeps_inputs() && l > 0) {
      normalize_and_activate(net, in, l - 1, rows, norms, input);
      in = input;
    }
    if (net.normalization == kAfter && l <= net.activated) {
      pad_rows(in, ld, rows, net.width(l), input, net.pad(l));
      layer_norm(input, rows, net.width(l), net.pad(l), norms + net.norm(l), input);
      in = input, ld = net.pad(l);
    }
    T* dw = sums + net.packed(l);
    add_outer(in, ld, g, columns, rows, net.width(l), columns, dw, columns);
    add_rows(g, columns, rows, columns, dw + net.width(l) * columns);
    if (l == 0 && x_grad == nullptr && net.normalization != kAfter) return;
    product(g, columns, transposed + net.transposed(l), net.pad(l), rows, net.width(l + 1), net.pad(l), other,
            net.pad(l), Start::kZero);
    T* swap = g;
    g = other, other = swap;
  }
  if (net.normalization == kAfter) {
    pad_rows(x, x_row, rows, net.width(0), input, net.pad(0));
    layer_norm_backward(input, rows, net.width(0), net.pad(0), norms, g, norm_sums);
  }
  if (x_grad != nullptr) copy_rows(g, net.pad(0), rows, net.width(0), x_grad, net.width(0));
}

template <class T>
void mlp_backward(const Mlp<T>& net, const T* x, int64_t x_set, int64_t x_row, const T* const* weights,
                  const T* const* scales, const T* const* shifts, const T* grad_out, T* saved,
                  const MlpGradients<T>& grads, int threads) {
  const int64_t widest = net.widest(), last = net.layers;
  const int64_t transposed_size = net.transposed(last), norm_size = net.norm(net.num_norms());
  const int64_t sums_size = net.packed(last) + norm_size, chunks = num_chunks(net.rows);
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
    const int64_t set = task / chunks, stop = chunk_start(net.rows, task % chunks + 1);
    T* mine = sums + task * sums_size;
    std::memset(mine, 0, size_t(sums_size) * sizeof(T));
    for (int64_t first = chunk_start(net.rows, task % chunks); first < stop; first += kTile) {
      const int64_t rows = first + kTile <= stop ? kTile : stop - first, at = set * net.rows + first;
      for (int64_t l = 0; l < net.activated; l++) work.activations[l] = net.of_layer(saved, l, set, first);
      mlp_backward_tile(net, x + set * x_set + first * x_row, x_row, rows, transposed + set * transposed_size,
                        norms + set * norm_size, grad_out + at * net.width(last), work.activations.get(),
                        grads.x == nullptr ? nullptr : grads.x + at * net.width(0), mine, work.buffers.get());
    }
  });
  for (int64_t s = 0; s < net.sets; s++) {
    T* total = sums + s * chunks * sums_size;
    sum_parts<T>(total, chunks, sums_size, threads);
    for (int64_t l = 0; l < last; l++) {
      const int64_t in = net.width(l), cols = net.width(l + 1), ld = net.pad(l + 1);
      copy_rows<T>(total + net.packed(l), ld, in, cols, grads.weights[l] + s * in * cols, cols);
      copy_rows<T>(total + net.packed(l) + in * ld, ld, 1, cols, grads.biases[l] + s * cols, cols);
    }
    for (int64_t l = 0; l < net.num_norms(); l++) {
      const int64_t n = net.width(net.normed(l)), ld = net.pad(net.normed(l)), at = net.packed(last) + net.norm(l);
      copy_rows<T>(total + at, ld, 1, n, grads.scales[l] + s * n, n);
      copy_rows<T>(total + at + ld, ld, 1, n, grads.shifts[l] + s * n, n);
    }
  }
}

}  // namespace coterie

// sizes: sets, rows, layers, activated layers, activation, normalization, stride of x by set and by row; then the widths.
// Parameters are in the order weights, biases (not for the backward pass), scales, shifts; so are their gradients.
#define COTERIE_MLP(T, SUFFIX)                                                                                         \
  COTERIE_API void coterie_mlp_forward_##SUFFIX(const int64_t* s, const T* x, const T* const* parameters, T* out,      \
                                                T* saved, int threads) {                                               \
    coterie::Mlp<T> net{s[0], s[1], s[2], s[3], s[4], s + 8, s[5]};                                               \
    const T *const *biases = parameters + s[2], *const *scales = biases + s[2], *const *shifts = scales + net.num_norms(); \
    if (net.large())                                                                                                   \
      coterie::wide_mlp_forward<T>(net, x, s[6], s[7], parameters, biases, out, saved, threads);                       \
    else                                                                                                               \
      coterie::mlp_forward<T>(net, x, s[6], s[7], parameters, biases, scales, shifts, out, saved, threads);            \
  }                                                                                                                    \
  COTERIE_API void coterie_mlp_backward_##SUFFIX(const int64_t* s, const T* x, const T* const* parameters,             \
                                                 const T* grad_out, T* saved, T* x_grad, T* const* found,              \
                                                 int threads) {                                                        \
    coterie::Mlp<T> net{s[0], s[1], s[2], s[3], s[4], s + 8, s[5]};                                               \
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
