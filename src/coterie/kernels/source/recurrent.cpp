// GRU and LSTM over sequences with resets. Rows (environments, agents) are independent: a block of them passes through
// all timesteps before the next, so that threads never wait for each other.
#include "memory.hpp"
#include "pool.hpp"
#include "products.hpp"

namespace coterie {

// x [T, G, M, D] and hidden states [G, M, H] for G sets of parameters.
template <class T>
struct Sequences {
  int64_t steps, sets, rows, inputs, units;
  const T* x;
  const bool* first;  // [T, G, M], True where the hidden state is reset
  const T* weights;   // [G, D, gates H], of the inputs
  const T* recurrent; // [G, H, gates H]
  const T* bias;      // [G, gates H]
  const T* extra;     // [G, H], added to the last gate's product with the hidden state; null without

  int64_t block() const { return rows >= 4 * kTile ? kTile : kTile / 2; }
  int64_t blocks() const { return ceil_div(rows, block()); }
  // Blocks whose gradients are summed in one buffer, in their order.
  int64_t together() const { return ceil_div(blocks(), kMaxChunks); }
  int64_t groups() const { return blocks() == 0 ? 0 : ceil_div(blocks(), together()); }
  int64_t row(int64_t t, int64_t g, int64_t m) const { return (t * sets + g) * rows + m; }
};

// h = n + z (h' - n) with r, z = sigmoid(..), n = tanh(x_n + r (h' W_n + b)).
template <class T>
struct Gru {
  static constexpr int kGates = 3, kSaved = 4;
  static constexpr bool kSeparate = true, kHasCell = false;

  // gates and products [3 units] and before [units] of a row give the new h; saved: r, z, n, h' W_n + b.
  static void forward(int64_t units, const T* gates, const T* products, const T* before, const T*, T* after, T*,
                      T* saved) {
    constexpr int W = kWidth<T>;
    for (int64_t j = 0; j < units; j += W) {
      const Vec<T> r = sigmoid<T>(load<T>(gates + j) + load<T>(products + j));
      const Vec<T> z = sigmoid<T>(load<T>(gates + units + j) + load<T>(products + units + j));
      const Vec<T> product = load<T>(products + 2 * units + j);
      const Vec<T> n = tanh<T>(load<T>(gates + 2 * units + j) + r * product);
      store<T>(after + j, n + z * (load<T>(before + j) - n));
      if (saved == nullptr) continue;
      store<T>(saved + j, r), store<T>(saved + units + j, z);
      store<T>(saved + 2 * units + j, n), store<T>(saved + 3 * units + j, product);
    }
  }

  // From the gradient `d_h` of h: of the gates, of the products, and the direct part of that of h'.
  static void backward(int64_t units, const T* saved, const T* before, const T*, const T* d_h, T*, T* d_gates,
                       T* d_products, T* d_before) {
    constexpr int W = kWidth<T>;
    const Vec<T> one = fill<T>(1);
    for (int64_t j = 0; j < units; j += W) {
      const Vec<T> r = load<T>(saved + j), z = load<T>(saved + units + j), n = load<T>(saved + 2 * units + j);
      const Vec<T> product = load<T>(saved + 3 * units + j), g = load<T>(d_h + j);
      const Vec<T> d_n = g * (one - z) * (one - n * n);
      const Vec<T> d_r = d_n * product * r * (one - r), d_z = g * (load<T>(before + j) - n) * z * (one - z);
      store<T>(d_gates + j, d_r), store<T>(d_gates + units + j, d_z), store<T>(d_gates + 2 * units + j, d_n);
      store<T>(d_products + j, d_r), store<T>(d_products + units + j, d_z);
      store<T>(d_products + 2 * units + j, d_n * r);
      store<T>(d_before + j, g * z);
    }
  }
};

// c = f c' + i g, h = o tanh(c) with i, f, o = sigmoid(..), g = tanh(..).
template <class T>
struct Lstm {
  static constexpr int kGates = 4, kSaved = 6;
  static constexpr bool kSeparate = false, kHasCell = true;

  // saved: i, f, o, g, tanh c, c'.
  static void forward(int64_t units, const T* gates, const T*, const T*, const T* c_before, T* after, T* c_after,
                      T* saved) {
    constexpr int W = kWidth<T>;
    for (int64_t j = 0; j < units; j += W) {
      const Vec<T> i = sigmoid<T>(load<T>(gates + j)), f = sigmoid<T>(load<T>(gates + units + j));
      const Vec<T> o = sigmoid<T>(load<T>(gates + 2 * units + j)), g = tanh<T>(load<T>(gates + 3 * units + j));
      const Vec<T> old = load<T>(c_before + j), c = f * old + i * g, tanh_c = tanh<T>(c);
      store<T>(after + j, o * tanh_c), store<T>(c_after + j, c);
      if (saved == nullptr) continue;
      store<T>(saved + j, i), store<T>(saved + units + j, f), store<T>(saved + 2 * units + j, o);
      store<T>(saved + 3 * units + j, g), store<T>(saved + 4 * units + j, tanh_c), store<T>(saved + 5 * units + j, old);
    }
  }

  static void backward(int64_t units, const T* saved, const T*, const T*, const T* d_h, T* d_c, T* d_gates, T*,
                       T* d_before) {
    constexpr int W = kWidth<T>;
    const Vec<T> one = fill<T>(1);
    for (int64_t j = 0; j < units; j += W) {
      const Vec<T> i = load<T>(saved + j), f = load<T>(saved + units + j), o = load<T>(saved + 2 * units + j);
      const Vec<T> g = load<T>(saved + 3 * units + j), tanh_c = load<T>(saved + 4 * units + j);
      const Vec<T> d = load<T>(d_h + j), c = load<T>(d_c + j) + d * o * (one - tanh_c * tanh_c);
      store<T>(d_gates + j, c * g * i * (one - i));
      store<T>(d_gates + units + j, c * load<T>(saved + 5 * units + j) * f * (one - f));
      store<T>(d_gates + 2 * units + j, d * tanh_c * o * (one - o));
      store<T>(d_gates + 3 * units + j, c * i * (one - g * g));
      store<T>(d_c + j, c * f), store<T>(d_before + j, Vec<T>{});
    }
  }
};

// Packs rows of `gates` groups of H numbers into groups of `units` numbers, the surplus of which is zero.
template <class T>
void pack_gates(const T* from, int64_t rows, int64_t gates, int64_t h, int64_t units, T* to) {
  for (int64_t r = 0; r < rows; r++) pad_rows(from + r * gates * h, h, gates, h, to + r * gates * units, units);
}

template <class T>
void unpack_gates(const T* from, int64_t rows, int64_t gates, int64_t h, int64_t units, T* to) {
  for (int64_t r = 0; r < rows; r++) copy_rows(from + r * gates * units, units, gates, h, to + r * gates * h, h);
}

template <class T, class Cell>
struct Packed {
  int64_t units, width, x_size, h_size, size;
  Packed(const Sequences<T>& s)
      : units(padded<T>(s.units)),
        width(Cell::kGates * units),
        x_size(s.inputs * width),
        h_size(s.units * width),
        size(x_size + h_size + 2 * width) {}

  // Weights of the inputs, of the hidden state, bias of the gates, bias of the products.
  void pack(const Sequences<T>& s, int64_t g, T* to) const {
    const int64_t columns = Cell::kGates * s.units;
    pack_gates(s.weights + g * s.inputs * columns, s.inputs, Cell::kGates, s.units, units, to);
    pack_gates(s.recurrent + g * s.units * columns, s.units, Cell::kGates, s.units, units, to + x_size);
    pack_gates(s.bias + g * columns, 1, Cell::kGates, s.units, units, to + x_size + h_size);
    T* extra = to + x_size + h_size + width;
    std::memset(extra, 0, size_t(width) * sizeof(T));
    if (s.extra != nullptr) std::memcpy(extra + width - units, s.extra + g * s.units, size_t(s.units) * sizeof(T));
  }
};

template <class T>
void masked_state(const Sequences<T>& s, int64_t t, int64_t g, int64_t m, int64_t count, int64_t units, T* state) {
  for (int64_t r = 0; r < count; r++)
    if (s.first[s.row(t, g, m + r)]) std::memset(state + r * units, 0, size_t(units) * sizeof(T));
}

// Working memory of `recurrent_forward_block`.
template <class T, class Cell>
struct ForwardWork {
  Buffer<T> gates, products, state, cell;
  ForwardWork(const Sequences<T>& s, const Packed<T, Cell>& p)
      : gates(s.block() * p.width),
        products(s.block() * p.width),
        state(s.block() * p.units),
        cell(s.block() * p.units) {}
};

// One block of rows through all timesteps, with the packed weights `w`.
template <class T, class Cell>
void recurrent_forward_block(const Sequences<T>& s, const Packed<T, Cell>& p, int64_t g, int64_t m, int64_t count,
                             const T* w, const T* h, const T* c, T* out, T* last_c, T* saved,
                             const ForwardWork<T, Cell>& work) {
  const int64_t units = p.units, start = (g * s.rows + m) * s.units;
  const T* bias = w + p.x_size + p.h_size;
  T *gates = work.gates, *products = work.products, *state = work.state, *cell = work.cell;
  pad_rows(h + start, s.units, count, s.units, state, units);
  if (Cell::kHasCell) pad_rows(c + start, s.units, count, s.units, cell, units);
  for (int64_t t = 0; t < s.steps; t++) {
    const int64_t at = s.row(t, g, m);
    masked_state(s, t, g, m, count, units, state);
    if (Cell::kHasCell) masked_state(s, t, g, m, count, units, cell);
    product(s.x + at * s.inputs, s.inputs, w, p.width, count, s.inputs, p.width, gates, p.width, Start::kBias, bias);
    if (Cell::kSeparate)
      product<T>(state, units, w + p.x_size, p.width, count, s.units, p.width, products, p.width, Start::kBias,
                 bias + p.width);
    else
      product<T>(state, units, w + p.x_size, p.width, count, s.units, p.width, gates, p.width, Start::kAdd);
    for (int64_t r = 0; r < count; r++)
      Cell::forward(units, gates + r * p.width, products + r * p.width, state + r * units, cell + r * units,
                    state + r * units, cell + r * units,
                    saved == nullptr ? nullptr : saved + (at + r) * Cell::kSaved * units);
    copy_rows(state, units, count, s.units, out + at * s.units, s.units);
  }
  if (Cell::kHasCell) copy_rows(cell, units, count, s.units, last_c + start, s.units);
}

// out [T, G, M, H]; last_c [G, M, H] for cells that have one; saved [T, G, M, kSaved units], null if not needed.
template <class T, class Cell>
void recurrent_forward(const Sequences<T>& s, const T* h, const T* c, T* out, T* last_c, T* saved, int threads) {
  const Packed<T, Cell> p(s);
  const int64_t block = s.block(), blocks = s.blocks();
  Buffer<T> weights(s.sets * p.size);
  for (int64_t g = 0; g < s.sets; g++) p.pack(s, g, weights + g * p.size);
  using Work = ForwardWork<T, Cell>;
  parallel_for({s.sets * blocks, threads}, [&] { return Work(s, p); }, [&](int64_t task, const Work& work) {
    const int64_t g = task / blocks, m = task % blocks * block, count = s.rows - m < block ? s.rows - m : block;
    recurrent_forward_block<T, Cell>(s, p, g, m, count, weights + g * p.size, h, c, out, last_c, saved, work);
  });
}

template <class T>
struct SequenceGradients {
  T *x, *h, *c, *weights, *recurrent, *bias, *extra;  // x may be null
};

constexpr int64_t kSteps = 4;  // timesteps whose weight gradients are added at once, which spares memory traffic

// Working memory of `recurrent_backward_block`: some numbers of the last kSteps timesteps, and of one.
template <class T, class Cell>
struct BackwardWork {
  Buffer<T> d_gates, d_products, before, x, d_x, d_h, d_before, d_c;
  BackwardWork(const Sequences<T>& s, const Packed<T, Cell>& p)
      : d_gates(kSteps * s.block() * p.width),
        d_products(Cell::kSeparate ? kSteps * s.block() * p.width : 0),
        before(kSteps * s.block() * p.units),
        x(kSteps * s.block() * s.inputs),
        d_x(kSteps * s.block() * padded<T>(s.inputs)),
        d_h(s.block() * p.units),
        d_before(s.block() * p.units),
        d_c(s.block() * p.units) {}
  T* products() const { return Cell::kSeparate ? d_products.get() : d_gates.get(); }
};

// Adds the gradients of the parameters over some timesteps, t and later, and writes those of the inputs.
template <class T, class Cell>
void add_gradients(const Sequences<T>& s, const Packed<T, Cell>& p, int64_t t, int64_t steps, int64_t g, int64_t m,
                   int64_t count, const T* transposed, const BackwardWork<T, Cell>& work, T* x_grad, T* sums) {
  const int64_t units = p.units, inputs = padded<T>(s.inputs), rows = steps * count;
  const T *d_gates = work.d_gates, *d_products = work.products();
  for (int64_t k = 0; k < steps; k++)
    copy_rows(s.x + s.row(t + steps - 1 - k, g, m) * s.inputs, s.inputs, count, s.inputs,
              work.x.get() + k * count * s.inputs, s.inputs);
  add_outer<T>(work.x, s.inputs, d_gates, p.width, rows, s.inputs, p.width, sums, p.width);
  add_outer<T>(work.before, units, d_products, p.width, rows, s.units, p.width, sums + p.x_size, p.width);
  add_rows(d_gates, p.width, rows, p.width, sums + p.x_size + p.h_size);
  if (Cell::kSeparate) add_rows(d_products + p.width - units, p.width, rows, units, sums + p.size - units);
  if (x_grad == nullptr) return;
  product<T>(d_gates, p.width, transposed, inputs, rows, p.width, inputs, work.d_x, inputs, Start::kZero);
  for (int64_t k = 0; k < steps; k++)
    copy_rows(work.d_x.get() + k * count * inputs, inputs, count, s.inputs,
              x_grad + s.row(t + steps - 1 - k, g, m) * s.inputs, s.inputs);
}

// One block of rows backward through time; adds to `sums`: inputs, hidden state, bias of gates, bias of products.
template <class T, class Cell>
void recurrent_backward_block(const Sequences<T>& s, const Packed<T, Cell>& p, int64_t g, int64_t m, int64_t count,
                              const T* transposed, const T* h, const T* out, const T* saved, const T* d_out,
                              const T* d_last_c, const SequenceGradients<T>& grads, T* sums,
                              const BackwardWork<T, Cell>& work) {
  const int64_t units = p.units, inputs = padded<T>(s.inputs), start = (g * s.rows + m) * s.units;
  T *d_h = work.d_h, *d_before = work.d_before, *d_c = work.d_c;
  std::memset(d_before, 0, size_t(count * units) * sizeof(T));
  if (Cell::kHasCell) pad_rows(d_last_c + start, s.units, count, s.units, d_c, units);
  for (int64_t t = s.steps - 1; t >= 0; t--) {
    const int64_t at = s.row(t, g, m), slot = (s.steps - 1 - t) % kSteps;
    T *before = work.before + slot * count * units, *d_gates = work.d_gates + slot * count * p.width;
    T* d_products = work.products() + slot * count * p.width;
    pad_rows(t == 0 ? h + start : out + s.row(t - 1, g, m) * s.units, s.units, count, s.units, before, units);
    masked_state(s, t, g, m, count, units, before);
    pad_rows(d_out + at * s.units, s.units, count, s.units, d_h, units);
    for (int64_t i = 0; i < count * units; i++) d_h[i] += d_before[i];
    for (int64_t r = 0; r < count; r++)
      Cell::backward(units, saved + (at + r) * Cell::kSaved * units, before + r * units, nullptr, d_h + r * units,
                     d_c + r * units, d_gates + r * p.width, d_products + r * p.width, d_before + r * units);
    product(d_products, p.width, transposed + p.width * inputs, units, count, p.width, units, d_before, units,
            Start::kAdd);
    masked_state(s, t, g, m, count, units, d_before);
    if (Cell::kHasCell) masked_state(s, t, g, m, count, units, d_c);
    if (slot == kSteps - 1 || t == 0)
      add_gradients(s, p, t, slot + 1, g, m, count, transposed, work, grads.x, sums);
  }
  copy_rows(d_before, units, count, s.units, grads.h + start, s.units);
  if (Cell::kHasCell) copy_rows(d_c, units, count, s.units, grads.c + start, s.units);
}

template <class T, class Cell>
void recurrent_backward(const Sequences<T>& s, const T* h, const T* out, const T* saved, const T* d_out,
                        const T* d_last_c, const SequenceGradients<T>& grads, int threads) {
  const Packed<T, Cell> p(s);
  const int64_t units = p.units, inputs = padded<T>(s.inputs), block = s.block(), groups = s.groups();
  const int64_t transposed_size = p.width * (inputs + units);
  Buffer<T> packed(p.size), transposed(s.sets * transposed_size), sums(s.sets * (groups > 0 ? groups : 1) * p.size);
  for (int64_t g = 0; g < s.sets; g++) {
    p.pack(s, g, packed);
    T* to = transposed + g * transposed_size;
    pad_transposed<T>(packed, p.width, s.inputs, p.width, to, inputs);
    pad_transposed<T>(packed + p.x_size, p.width, s.units, p.width, to + p.width * inputs, units);
  }
  using Work = BackwardWork<T, Cell>;
  parallel_for({s.sets * groups, threads}, [&] { return Work(s, p); }, [&](int64_t task, const Work& work) {
    const int64_t g = task / groups, start = task % groups * s.together() * block;
    T* mine = sums + task * p.size;
    std::memset(mine, 0, size_t(p.size) * sizeof(T));
    for (int64_t m = start; m < start + s.together() * block && m < s.rows; m += block)
      recurrent_backward_block<T, Cell>(s, p, g, m, s.rows - m < block ? s.rows - m : block,
                                        transposed + g * transposed_size, h, out, saved, d_out, d_last_c, grads, mine,
                                        work);
  });
  const int64_t columns = Cell::kGates * s.units;
  for (int64_t g = 0; g < s.sets; g++) {
    T* total = sums + g * groups * p.size;
    sum_parts<T>(total, groups, p.size, threads);
    unpack_gates(total, s.inputs, Cell::kGates, s.units, units, grads.weights + g * s.inputs * columns);
    unpack_gates(total + p.x_size, s.units, Cell::kGates, s.units, units, grads.recurrent + g * s.units * columns);
    unpack_gates(total + p.x_size + p.h_size, 1, Cell::kGates, s.units, units, grads.bias + g * columns);
    if (Cell::kSeparate)
      std::memcpy(grads.extra + g * s.units, total + p.size - units, size_t(s.units) * sizeof(T));
  }
}

}  // namespace coterie

// n: steps, sets, rows, inputs, units. Gradients: x, h, c, weights, recurrent weights, bias, extra bias.
#define COTERIE_RECURRENT(T, SUFFIX, CELL, NAME)                                                                       \
  COTERIE_API void coterie_##NAME##_forward_##SUFFIX(                                                                  \
      const int64_t* n, const T* x, const bool* first, const T* h, const T* c, const T* weights, const T* recurrent,   \
      const T* bias, const T* extra, T* out, T* last_c, T* saved, int threads) {                                       \
    const coterie::Sequences<T> s{n[0], n[1], n[2], n[3], n[4], x, first, weights, recurrent, bias, extra};            \
    coterie::recurrent_forward<T, coterie::CELL<T>>(s, h, c, out, last_c, saved, threads);                             \
  }                                                                                                                    \
  COTERIE_API void coterie_##NAME##_backward_##SUFFIX(                                                                 \
      const int64_t* n, const T* x, const bool* first, const T* h, const T* weights, const T* recurrent,               \
      const T* bias, const T* extra, const T* out, const T* saved, const T* d_out, const T* d_last_c,                  \
      T* const* grads, int threads) {                                                                                  \
    const coterie::Sequences<T> s{n[0], n[1], n[2], n[3], n[4], x, first, weights, recurrent, bias, extra};            \
    coterie::recurrent_backward<T, coterie::CELL<T>>(                                                                  \
        s, h, out, saved, d_out, d_last_c,                                                                             \
        {grads[0], grads[1], grads[2], grads[3], grads[4], grads[5], grads[6]}, threads);                              \
  }
COTERIE_RECURRENT(float, f32, Gru, gru)
COTERIE_RECURRENT(double, f64, Gru, gru)
COTERIE_RECURRENT(float, f32, Lstm, lstm)
COTERIE_RECURRENT(double, f64, Lstm, lstm)
