// The mixing network of QMIX: hypernetworks of the state give the weights with which the agents' Q are mixed.
//
//     h1, h2 = relu(s W_h + b_h);  c, v = s W_d + b_d
//     Q_tot = elu(Q |h1 W_1 + b_1| + c) |h2 W_2 + b_2| + relu(v) w + b
#include "memory.hpp"
#include "pool.hpp"
#include "products.hpp"

namespace coterie {

// Shapes, and offsets. A row of intermediate results holds h1, h2, the argument of elu, relu(v), W1 by agent and w2,
// each in whole cache lines. The first four are one product with the state, called the base.
template <class T>
struct Mixing {
  int64_t rows, agents, inputs, hidden, units;

  int64_t h() const { return padded<T>(hidden); }
  int64_t e() const { return padded<T>(units); }
  int64_t base() const { return 2 * h() + 2 * e(); }
  int64_t first() const { return agents * e(); }
  int64_t columns() const { return base() + first() + e(); }
  // Packed weights, each followed by its bias: of the base, of W1, of w2, of the last layer.
  int64_t at_first() const { return (inputs + 1) * base(); }
  int64_t at_second() const { return at_first() + (hidden + 1) * first(); }
  int64_t at_value() const { return at_second() + (hidden + 1) * e(); }
  int64_t packed() const { return at_value() + e() + padded<T>(1); }
};

// Weights and biases of h, W1, w2, (c, v) and the last layer.
enum MixingParameter { kHidden = 0, kFirst = 2, kSecond = 4, kDirect = 6, kValue = 8 };

// Calls f(parameter, rows, groups, columns, offset, stride) for every parameter: `rows` rows of `groups` groups of
// `columns` numbers, packed at `offset` into rows of `stride` numbers.
template <class T, class F>
void for_each_parameter(const Mixing<T>& m, F&& f) {
  const int64_t n = m.inputs, k = m.hidden, h = 2 * m.h();
  f(kHidden, n, 2, k, int64_t(0), m.base());
  f(kHidden + 1, 1, 2, k, n * m.base(), m.base());
  f(kDirect, n, 2, m.units, h, m.base());
  f(kDirect + 1, 1, 2, m.units, n * m.base() + h, m.base());
  f(kFirst, k, m.agents, m.units, m.at_first(), m.first());
  f(kFirst + 1, 1, m.agents, m.units, m.at_first() + k * m.first(), m.first());
  f(kSecond, k, 1, m.units, m.at_second(), m.e());
  f(kSecond + 1, 1, 1, m.units, m.at_second() + k * m.e(), m.e());
  f(kValue, 1, 1, m.units, m.at_value(), m.e());
  f(kValue + 1, 1, 1, int64_t(1), m.at_value() + m.e(), padded<T>(1));
}

template <class T>
void pack(const Mixing<T>& m, const T* const* parameters, T* to) {
  for_each_parameter(m, [&](int p, int64_t rows, int64_t groups, int64_t columns, int64_t offset, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
      pad_rows(parameters[p] + r * groups * columns, columns, groups, columns, to + offset + r * stride,
               padded<T>(columns));
  });
}

template <class T>
void unpack(const Mixing<T>& m, const T* from, T* const* parameters) {
  for_each_parameter(m, [&](int p, int64_t rows, int64_t groups, int64_t columns, int64_t offset, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
      copy_rows(from + offset + r * stride, padded<T>(columns), groups, columns, parameters[p] + r * groups * columns,
                columns);
  });
}

// The sum of term(j) over the first n numbers, where term(j) is the vector of the numbers from j on.
template <class T, class F>
inline T sum_over(int64_t n, F&& term) {
  constexpr int W = kWidth<T>;
  Vec<T> total{};
  int64_t j = 0;
  for (; j + W <= n; j += W) total += term(j);
  T found = sum<T>(total);
  if (j == n) return found;
  const Vec<T> last = term(j);
  for (int i = 0; i < n - j; i++) found += last[i];
  return found;
}

template <class T>
inline Vec<T> absolute(Vec<T> x) {
  return x < fill<T>(0) ? -x : x;
}

template <class T>
inline Vec<T> times_sign(Vec<T> x, Vec<T> of) {  // 0 where `of` is 0
  return of > fill<T>(0) ? x : of < fill<T>(0) ? -x : x * of;
}

template <class T>
void relu_in_place(T* x, int64_t count) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < count; j += W) {
    const Vec<T> v = load<T>(x + j);
    store<T>(x + j, v < fill<T>(0) ? fill<T>(0) : v);
  }
}

// Q_tot of a row, from its intermediate results with c in the place of the argument of elu, which is completed.
template <class T>
T mix_row(const Mixing<T>& m, const T* value, const T* q, T* row) {
  const int64_t e = m.e();
  T *argument = row + 2 * m.h(), *v = argument + e, *w1 = row + m.base(), *w2 = w1 + m.first();
  relu_in_place(v, e);
  const T total = sum_over<T>(m.units, [&](int64_t j) {
    Vec<T> x = load<T>(argument + j);
    for (int64_t n = 0; n < m.agents; n++) x += fill<T>(q[n]) * absolute<T>(load<T>(w1 + n * e + j));
    store<T>(argument + j, x);
    const Vec<T> elu = x > fill<T>(0) ? x : exp<T>(x) - fill<T>(1);
    return elu * absolute<T>(load<T>(w2 + j));
  });
  return total + (sum_over<T>(m.units, [&](int64_t j) { return load<T>(v + j) * load<T>(value + j); }) + value[e]);
}

// chosen [M, N], state [M, S], out [M]; saved [M, columns], null if not needed.
template <class T>
void mix_forward(const Mixing<T>& m, const T* chosen, const T* state, const T* const* parameters, T* out, T* saved,
                 int threads) {
  const int64_t tiles = ceil_div(m.rows, kTile), base = m.base(), columns = m.columns(), h = m.h();
  Buffer<T> w(m.packed());
  pack(m, parameters, w.get());
  const T *first = w + m.at_first(), *second = w + m.at_second();
  const auto make_memory = [&] { return Buffer<T>(saved == nullptr ? kTile * columns : 0); };
  parallel_for({tiles, threads}, make_memory, [&](int64_t tile, T* memory) {
    const int64_t start = tile * kTile, rows = start + kTile <= m.rows ? kTile : m.rows - start;
    T* to = saved == nullptr ? memory : saved + start * columns;
    product(state + start * m.inputs, m.inputs, w.get(), base, rows, m.inputs, base, to, columns, Start::kBias,
            w + m.inputs * base);
    for (int64_t r = 0; r < rows; r++) relu_in_place(to + r * columns, 2 * h);
    product(to, columns, first, m.first(), rows, m.hidden, m.first(), to + base, columns, Start::kBias,
            first + m.hidden * m.first());
    product(to + h, columns, second, m.e(), rows, m.hidden, m.e(), to + base + m.first(), columns, Start::kBias,
            second + m.hidden * m.e());
    for (int64_t r = 0; r < rows; r++)
      out[start + r] = mix_row(m, w + m.at_value(), chosen + (start + r) * m.agents, to + r * columns);
  });
}

// From the gradient `grad` of Q_tot of a row: those of its intermediate results except h1 and h2, those of the agents'
// Q, and, added to `d_value`, those of the last layer.
template <class T>
void mix_row_backward(const Mixing<T>& m, const T* value, T grad, const T* q, const T* row, T* d_row, T* d_q,
                      T* d_value) {
  constexpr int W = kWidth<T>;
  const int64_t e = m.e(), at = 2 * m.h();
  const T *argument = row + at, *v = argument + e, *w1 = row + m.base(), *w2 = w1 + m.first();
  T *d_argument = d_row + at, *d_v = d_argument + e, *d_w1 = d_row + m.base(), *d_w2 = d_w1 + m.first();
  const Vec<T> g = fill<T>(grad), zero = fill<T>(0), one = fill<T>(1);
  for (int64_t j = 0; j < e; j += W) {
    const Vec<T> x = load<T>(argument + j), power = exp<T>(x), weight = load<T>(w2 + j), relu = load<T>(v + j);
    const Vec<T> d_x = g * absolute<T>(weight) * (x <= zero ? power : one);
    store<T>(d_argument + j, d_x);
    store<T>(d_w2 + j, times_sign<T>(g * (x > zero ? x : power - one), weight));
    store<T>(d_v + j, relu <= zero ? zero : g * load<T>(value + j));
    store<T>(d_value + j, load<T>(d_value + j) + g * relu);
    for (int64_t n = 0; n < m.agents; n++)
      store<T>(d_w1 + n * e + j, times_sign<T>(d_x * fill<T>(q[n]), load<T>(w1 + n * e + j)));
  }
  d_value[e] += grad;
  for (int64_t n = 0; n < m.agents; n++)
    d_q[n] = sum_over<T>(m.units, [&](int64_t j) {
      return load<T>(d_argument + j) * absolute<T>(load<T>(w1 + n * e + j));
    });
  if (m.units == e) return;
  for (int64_t n = 0; n < m.agents + 3; n++)
    std::memset(d_argument + n * e + m.units, 0, size_t(e - m.units) * sizeof(T));
}

// Transposed weights: of the base, of W1 and of w2.
template <class T>
struct TransposedMixing {
  Buffer<T> base, first, second;
  TransposedMixing(const Mixing<T>& m, const T* packed, bool needs_state)
      : base(needs_state ? m.base() * padded<T>(m.inputs) : 0), first(m.first() * m.h()), second(m.e() * m.h()) {
    if (needs_state) pad_transposed<T>(packed, m.base(), m.inputs, m.base(), base, padded<T>(m.inputs));
    pad_transposed<T>(packed + m.at_first(), m.first(), m.hidden, m.first(), first, m.h());
    pad_transposed<T>(packed + m.at_second(), m.e(), m.hidden, m.e(), second, m.h());
  }
};

// Gradients of a tile of rows; those of the parameters are added to `sums`, in the layout of the packed weights. `d` is
// memory for intermediate gradients [rows, columns], `d_inputs` for those of the state [rows, padded inputs].
template <class T>
void mix_backward_tile(const Mixing<T>& m, int64_t rows, const T* grad, const T* chosen, const T* state,
                       const T* saved, const T* packed, const TransposedMixing<T>& transposed, T* chosen_grad,
                       T* state_grad, T* sums, T* d, T* d_inputs) {
  constexpr int W = kWidth<T>;
  const int64_t base = m.base(), columns = m.columns(), h = m.h(), inputs = padded<T>(m.inputs);
  for (int64_t r = 0; r < rows; r++)
    mix_row_backward(m, packed + m.at_value(), grad[r], chosen + r * m.agents, saved + r * columns, d + r * columns,
                     chosen_grad + r * m.agents, sums + m.at_value());
  const T *d_first = d + base, *d_second = d_first + m.first();
  T *first = sums + m.at_first(), *second = sums + m.at_second();
  add_outer(saved, columns, d_first, columns, rows, m.hidden, m.first(), first, m.first());
  add_rows(d_first, columns, rows, m.first(), first + m.hidden * m.first());
  add_outer(saved + h, columns, d_second, columns, rows, m.hidden, m.e(), second, m.e());
  add_rows(d_second, columns, rows, m.e(), second + m.hidden * m.e());
  product<T>(d_first, columns, transposed.first, h, rows, m.first(), h, d, columns, Start::kZero);
  product<T>(d_second, columns, transposed.second, h, rows, m.e(), h, d + h, columns, Start::kZero);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = r * columns; j < r * columns + 2 * h; j += W)
      store<T>(d + j, load<T>(saved + j) <= fill<T>(0) ? fill<T>(0) : load<T>(d + j));
  add_outer(state, m.inputs, d, columns, rows, m.inputs, base, sums, base);
  add_rows(d, columns, rows, base, sums + m.inputs * base);
  if (state_grad == nullptr) return;
  product<T>(d, columns, transposed.base, inputs, rows, base, inputs, d_inputs, inputs, Start::kZero);
  copy_rows(d_inputs, inputs, rows, m.inputs, state_grad, m.inputs);
}

// grads: of chosen, of state (null if not needed), then of the parameters.
template <class T>
void mix_backward(const Mixing<T>& m, const T* grad, const T* chosen, const T* state, const T* saved,
                  const T* const* parameters, T* const* grads, int threads) {
  const int64_t chunks = num_chunks(m.rows), size = m.packed(), columns = m.columns();
  Buffer<T> packed(size), sums((chunks > 0 ? chunks : 1) * size);
  pack(m, parameters, packed.get());
  const TransposedMixing<T> transposed(m, packed, grads[1] != nullptr);
  const auto make_memory = [&] { return Buffer<T>(kTile * (columns + padded<T>(m.inputs))); };
  parallel_for({chunks, threads}, make_memory, [&](int64_t chunk, T* memory) {
    const int64_t start = chunk_start(m.rows, chunk), stop = chunk_start(m.rows, chunk + 1);
    T* mine = sums + chunk * size;
    std::memset(mine, 0, size_t(size) * sizeof(T));
    for (int64_t at = start; at < stop; at += kTile)
      mix_backward_tile<T>(m, at + kTile <= stop ? kTile : stop - at, grad + at, chosen + at * m.agents,
                           state + at * m.inputs, saved + at * columns, packed, transposed, grads[0] + at * m.agents,
                           grads[1] == nullptr ? nullptr : grads[1] + at * m.inputs, mine, memory,
                           memory + kTile * columns);
  });
  sum_parts<T>(sums, chunks, size, threads);
  unpack<T>(m, sums, grads + 2);
}

}  // namespace coterie

// n: rows, agents, inputs, hidden units, units of the mixing layer.
#define COTERIE_MIXING(T, SUFFIX)                                                                                      \
  COTERIE_API void coterie_qmix_forward_##SUFFIX(const int64_t* n, const T* chosen, const T* state,                    \
                                                 const T* const* parameters, T* out, T* saved, int threads) {          \
    coterie::mix_forward<T>({n[0], n[1], n[2], n[3], n[4]}, chosen, state, parameters, out, saved, threads);           \
  }                                                                                                                    \
  COTERIE_API void coterie_qmix_backward_##SUFFIX(const int64_t* n, const T* grad, const T* chosen, const T* state,    \
                                                  const T* saved, const T* const* parameters, T* const* grads,         \
                                                  int threads) {                                                       \
    coterie::mix_backward<T>({n[0], n[1], n[2], n[3], n[4]}, grad, chosen, state, saved, parameters, grads, threads);  \
  }
COTERIE_MIXING(float, f32)
COTERIE_MIXING(double, f64)
