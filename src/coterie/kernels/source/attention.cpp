// Attention of queries to keys and values, see coterie.nets.attention. And residual attention between a team's entities in
// several contexts, and the mean over each, see coterie.nets.entity_critic: a tile of samples passes through all layers
// while it is in the cache.
#include "memory.hpp"
#include "pool.hpp"
#include "products.hpp"

namespace coterie {

// Heads of attention to some members. The units of a head are a multiple of the vector width.
template <class T>
struct Heads {
  int64_t units, count, members;
  T scale;  // of the products of queries and keys

  int64_t size() const { return units / count; }
  int64_t scores() const { return count * members; }
};

template <class T>
struct Team {
  int64_t samples, entities, units, heads, contexts, members;
  const T* x;            // [M, S, E]
  const bool* present;   // [M, S]; null if all are
  const int64_t* slots;  // [C, N], the entities of each context
  const T *project, *project_bias, *mix, *mix_bias;  // [E, 3 E] for queries, keys and values, [3 E], [E, E], [E]

  int64_t queries() const { return contexts * members; }
  int64_t scores() const { return heads * members; }
  int64_t head() const { return units / heads; }
  T scale() const { return T(1) / std::sqrt(T(units)); }  // of the products of queries and keys
  int64_t tile() const { return entities * kWidth<T> < kTile ? kTile / (entities * kWidth<T>) * kWidth<T> : kWidth<T>; }
  int64_t rows() const { return tile() * entities; }
  bool is_present(int64_t m, int64_t entity) const { return present == nullptr || present[m * entities + entity]; }
  // Weight of each present member in the mean of a context.
  T share(int64_t m, int64_t context) const {
    int64_t count = 0;
    for (int64_t n = 0; n < members; n++) count += is_present(m, slots[context * members + n]);
    return T(1) / T(count > 0 ? count : 1);
  }
};

// What the backward pass needs of some samples. Groups of W samples are in columns, see `to_columns`.
template <class T>
struct Kept {
  T* projected;  // queries, keys and values of each group [S, 3 E, W]
  T* weights;    // of the attention of each group [C N, heads, N, W], zero where nothing is attended to
  T* normed;     // the results of the second normalization [C N, E]
  T* scales;     // and what they were multiplied with [C N]
};

// The numbers of `Kept`, which are one array after another, and those of the samples from `m` on.
template <class T>
int64_t kept_size(const Team<T>& s, int64_t samples) {
  return padded<T>(samples) * (s.entities * 3 * s.units + s.queries() * (s.scores() + s.units + 1));
}

template <class T>
Kept<T> kept_from(const Team<T>& s, T* all, int64_t m, int64_t samples) {
  const int64_t width = s.entities * 3 * s.units, queries = s.queries();
  samples = padded<T>(samples);
  T *weights = all + samples * width, *normed = weights + samples * queries * s.scores();
  return {all + m * width, weights + m * queries * s.scores(), normed + m * queries * s.units,
          normed + samples * queries * s.units + m * queries};
}

// Sets the numbers of samples that do not exist, so that all of them are the same in every call.
template <class T>
void clear_rest(const Team<T>& s, T* all) {
  constexpr int W = kWidth<T>;
  const int64_t whole = ceil_div(s.samples, W) * W, groups = padded<T>(s.samples) - whole;
  const int64_t rest = padded<T>(s.samples) - s.samples, queries = s.queries();
  const Kept<T> after = kept_from(s, all, whole, s.samples), end = kept_from(s, all, s.samples, s.samples);
  std::memset(after.projected, 0, size_t(groups * s.entities * 3 * s.units) * sizeof(T));
  std::memset(after.weights, 0, size_t(groups * queries * s.scores()) * sizeof(T));
  std::memset(end.normed, 0, size_t(rest * queries * s.units) * sizeof(T));
  std::memset(end.scales, 0, size_t(rest * queries) * sizeof(T));
}

// The sums of the numbers of each of W vectors, which are overwritten.
template <class T>
inline Vec<T> sums_of_each(Vec<T>* x) {
  transpose<T>(x);
#pragma GCC unroll 4
  for (int step = kWidth<T> / 2; step > 0; step /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < step; i++) x[i] += x[i + step];
  return x[0];
}

constexpr int kSingle = 4;  // up to so many sums are quicker one by one

// Normalizes rows without scale and shift, W at a time; `scales` receives what they are multiplied with.
template <class T>
void plain_norm(const T* x, int64_t rows, int64_t columns, T* out, T* scales) {
  constexpr int W = kWidth<T>;
  Vec<T> parts[W];
  alignas(64) T means[W], squares[W];
  for (int64_t r = 0; r < rows; r += W, x += W * columns, out += W * columns) {
    const int count = rows - r < W ? int(rows - r) : W;
    for (int i = 0; i < W; i++) {
      parts[i] = Vec<T>{};
      for (int64_t j = 0; i < count && j < columns; j += W) parts[i] += load<T>(x + i * columns + j);
    }
    store<T>(means, sums_of_each<T>(parts) / fill<T>(T(columns)));
    for (int i = 0; i < W; i++) {
      const Vec<T> mean = fill<T>(means[i]);
      parts[i] = Vec<T>{};
      for (int64_t j = 0; i < count && j < columns; j += W) {
        const Vec<T> d = load<T>(x + i * columns + j) - mean;
        parts[i] += d * d;
      }
    }
    store<T>(squares, sums_of_each<T>(parts) / fill<T>(T(columns)));
    for (int i = 0; i < count; i++) {
      scales[r + i] = T(1) / std::sqrt(squares[i] + T(1e-5));
      const Vec<T> mean = fill<T>(means[i]), scale = fill<T>(scales[r + i]);
      for (int64_t j = 0; j < columns; j += W)
        store<T>(out + i * columns + j, (load<T>(x + i * columns + j) - mean) * scale);
    }
  }
}

// The gradients of the rows that were normalized to `y`, from those of `y`; `to` may be `grad`.
template <class T>
void plain_norm_gradient(const T* y, const T* scales, const T* grad, int64_t rows, int64_t columns, T* to) {
  constexpr int W = kWidth<T>;
  Vec<T> totals[W], along[W];
  alignas(64) T means[W], slopes[W];
  for (int64_t r = 0; r < rows; r += W, y += W * columns, grad += W * columns, to += W * columns) {
    const int count = rows - r < W ? int(rows - r) : W;
    for (int i = 0; i < W; i++) {
      totals[i] = along[i] = Vec<T>{};
      for (int64_t j = i * columns; i < count && j < (i + 1) * columns; j += W) {
        totals[i] += load<T>(grad + j);
        along[i] += load<T>(grad + j) * load<T>(y + j);
      }
    }
    store<T>(means, sums_of_each<T>(totals) / fill<T>(T(columns)));
    store<T>(slopes, sums_of_each<T>(along) / fill<T>(T(columns)));
    for (int i = 0; i < count; i++) {
      const Vec<T> mean = fill<T>(means[i]), slope = fill<T>(slopes[i]), scale = fill<T>(scales[r + i]);
      for (int64_t j = i * columns; j < (i + 1) * columns; j += W)
        store<T>(to + j, (load<T>(grad + j) - mean - load<T>(y + j) * slope) * scale);
    }
  }
}

// The members that are attended to: their number, their places, and the offsets of their rows among keys and values. And
// memory for the attention of one query.
template <class T>
struct Attended {
  int64_t count = 0;
  Buffer<int64_t> seen, rows;
  Buffer<T> scores;  // [heads, count]
  explicit Attended(const Heads<T>& heads)
      : seen(heads.members), rows(heads.members), scores(padded<T>(heads.scores())) {}

  void add(int64_t place, int64_t row) { seen[count] = place, rows[count] = row, count++; }
};

// scores [heads, count]: the products of a row's heads with those of the members' rows that begin at `others`.
template <class T>
void head_products(const Heads<T>& heads, const T* row, const T* others, Attended<T>& work) {
  constexpr int W = kWidth<T>;
  const int64_t head = heads.size(), products = heads.count * work.count;
  const T* from = row;
  for (int64_t n = 0, start = 0; start < products; start += W) {
    Vec<T> terms[W];
    const int count = products - start < W ? int(products - start) : W;
    for (int i = 0; i < count; i++) {
      terms[i] = Vec<T>{};
      const T* other = others + work.rows[n] + (from - row);
      for (int64_t j = 0; j < head; j += W) terms[i] += load<T>(from + j) * load<T>(other + j);
      if (++n == work.count) n = 0, from += head;
    }
    if (count <= kSingle) {
      for (int i = 0; i < count; i++) work.scores[start + i] = sum<T>(terms[i]);
      continue;
    }
    for (int i = count; i < W; i++) terms[i] = Vec<T>{};
    store<T>(work.scores + start, sums_of_each<T>(terms));
  }
}

// weights [heads, N] of a query: the softmax over the members that are attended to.
template <class T>
void attention_weights(const Heads<T>& heads, const T* query, const T* keys, Attended<T>& work, T* weights) {
  constexpr int W = kWidth<T>;
  const int64_t count = work.count;
  T* scores = work.scores;
  head_products(heads, query, keys, work);
  for (int64_t h = 0; h < heads.count; h++) {
    T* mine = scores + h * count;
    T most = mine[0];
    for (int64_t n = 1; n < count; n++) most = mine[n] > most || mine[n] != mine[n] ? mine[n] : most;
    for (int64_t n = 0; n < count; n++) mine[n] = (mine[n] - most) * heads.scale;
  }
  for (int64_t i = 0; i < heads.count * count; i += W) store<T>(scores + i, exp<T>(load<T>(scores + i)));
  std::memset(weights, 0, size_t(heads.scores()) * sizeof(T));
  for (int64_t h = 0; h < heads.count; h++) {
    const T* mine = scores + h * count;
    T all = 0;
    for (int64_t n = 0; n < count; n++) all += mine[n];
    const T inverse = T(1) / all;
    for (int64_t n = 0; n < count; n++) weights[h * heads.members + work.seen[n]] = mine[n] * inverse;
  }
}

// What a query attends to [E].
template <class T>
void mix_values(const Heads<T>& heads, const T* values, const Attended<T>& work, const T* weights, T* out) {
  constexpr int W = kWidth<T>;
  const int64_t head = heads.size();
  for (int64_t h = 0; h < heads.count; h++)
    for (int64_t j = h * head; j < (h + 1) * head; j += W) {
      Vec<T> total{};
      for (int64_t n = 0; n < work.count; n++)
        total += fill<T>(weights[h * heads.members + work.seen[n]]) * load<T>(values + work.rows[n] + j);
      store<T>(out + j, total);
    }
}

// Where the gradients of a query, and of the keys and values of the members that it attends to, are added.
template <class T>
struct AttendedGradients {
  T *query, *keys, *values;
  const int64_t* rows;  // as those of `Attended`
};

// Adds the gradients by what one query attends to.
template <class T>
void query_gradients(const Heads<T>& heads, const T* query, const T* keys, const T* values, const T* weights,
                     const T* d_mixed, Attended<T>& work, const AttendedGradients<T>& to) {
  constexpr int W = kWidth<T>;
  const int64_t head = heads.size(), count = work.count;
  head_products(heads, d_mixed, values, work);
  T* d = work.scores;
  for (int64_t h = 0; h < heads.count; h++) {
    const T* mine = weights + h * heads.members;
    T along = 0;
    for (int64_t n = 0; n < count; n++) along += mine[work.seen[n]] * d[h * count + n];
    for (int64_t n = 0; n < count; n++)
      d[h * count + n] = mine[work.seen[n]] * (d[h * count + n] - along) * heads.scale;
  }
  for (int64_t h = 0; h < heads.count; h++)
    for (int64_t j = h * head; j < (h + 1) * head; j += W) {
      const Vec<T> q = load<T>(query + j), g = load<T>(d_mixed + j);
      Vec<T> total = load<T>(to.query + j);
      for (int64_t n = 0; n < count; n++) {
        const int64_t at = to.rows[n] + j;
        const Vec<T> d_score = fill<T>(d[h * count + n]);
        const Vec<T> weight = fill<T>(weights[h * heads.members + work.seen[n]]);
        total += d_score * load<T>(keys + work.rows[n] + j);
        store<T>(to.keys + at, load<T>(to.keys + at) + d_score * q);
        store<T>(to.values + at, load<T>(to.values + at) + weight * g);
      }
      store<T>(to.query + j, total);
    }
}

// --------------------------------------------------------------------------------- attention of queries to keys and values

// Where a tensor of samples, tokens and units begins, and its strides; those of the units is 1.
template <class T>
struct Tokens {
  T* data;
  int64_t sample, token;
  int64_t row(int64_t m, int64_t i) const { return m * sample + i * token; }
};

template <class T>
struct Attend {
  int64_t samples, queries;
  Heads<T> heads;
  Tokens<const T> query, key;  // values have the strides of keys
  const T* value;
  const bool* visible;  // null: everything is
  int64_t visible_strides[3];  // of samples, queries and members

  void read(int64_t m, int64_t q, Attended<T>& work) const {
    const int64_t *strides = visible_strides, start = m * strides[0] + q * strides[1];
    work.count = 0;
    for (int64_t n = 0; n < heads.members; n++)
      if (visible == nullptr || visible[start + n * strides[2]]) work.add(n, key.row(0, n));
  }
};

// Samples that a thread takes at a time.
constexpr int64_t kSamples = 32;

// Calls body(m, memory) for every sample; samples are independent of one another.
template <class Make, class Body>
void for_samples(int64_t samples, int threads, Make&& make, Body&& body) {
  parallel_for({ceil_div(samples, kSamples), threads}, make, [&](int64_t task, auto& memory) {
    for (int64_t m = task * kSamples; m < samples && m < (task + 1) * kSamples; m++) body(m, memory);
  });
}

// weights [M, Q, heads, N] of the attention, zero where nothing is attended to; null if they are not needed.
template <class T>
void attend_forward(const Attend<T>& s, const Tokens<T>& out, T* weights, int threads) {
  struct Memory {
    Attended<T> work;
    Buffer<T> weights;
    explicit Memory(const Heads<T>& heads) : work(heads), weights(heads.scores()) {}
  };
  for_samples(s.samples, threads, [&] { return Memory(s.heads); }, [&](int64_t m, Memory& memory) {
    for (int64_t q = 0; q < s.queries; q++) {
      T* mine = weights == nullptr ? memory.weights.get() : weights + (m * s.queries + q) * s.heads.scores();
      s.read(m, q, memory.work);
      const int64_t start = m * s.key.sample;
      if (memory.work.count > 0)
        attention_weights(s.heads, s.query.data + s.query.row(m, q), s.key.data + start, memory.work, mine);
      else
        std::memset(mine, 0, size_t(s.heads.scores()) * sizeof(T));
      mix_values(s.heads, s.value + start, memory.work, mine, out.data + out.row(m, q));
    }
  });
}

// Adds the gradients to `d_query`, and to those of keys and values, which have the same strides.
template <class T>
void attend_backward(const Attend<T>& s, const T* weights, const Tokens<const T>& grad, const Tokens<T>& d_query,
                     const Tokens<T>& d_key, T* d_value, int threads) {
  struct Memory {
    Attended<T> work;
    Buffer<int64_t> rows;
    explicit Memory(const Heads<T>& heads) : work(heads), rows(heads.members) {}
  };
  for_samples(s.samples, threads, [&] { return Memory(s.heads); }, [&](int64_t m, Memory& memory) {
    for (int64_t q = 0; q < s.queries; q++) {
      Attended<T>& work = memory.work;
      s.read(m, q, work);
      if (work.count == 0) continue;
      for (int64_t n = 0; n < work.count; n++) memory.rows[n] = d_key.row(0, work.seen[n]);
      const int64_t from = m * s.key.sample, to = m * d_key.sample;
      query_gradients<T>(s.heads, s.query.data + s.query.row(m, q), s.key.data + from, s.value + from,
                         weights + (m * s.queries + q) * s.heads.scores(), grad.data + grad.row(m, q), work,
                         {d_query.data + d_query.row(m, q), d_key.data + to, d_value + to, memory.rows});
    }
  });
}

// ------------------------------------------------------------------------------------ residual attention between entities

// Columns of W samples: each of their numbers is a vector, so that no sum runs over the numbers of a vector. `row(i)` is
// the row of sample i, null for a column of zeros.
template <class T, class Row>
void to_columns(Row&& row, int64_t units, T* columns) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < units; j += W, columns += W * W) {
    Vec<T> block[W];
    for (int i = 0; i < W; i++) block[i] = row(i) == nullptr ? Vec<T>{} : load<T>(row(i) + j);
    transpose<T>(block);
    for (int i = 0; i < W; i++) store<T>(columns + i * W, block[i]);
  }
}

// Columns to the rows of the first `count` samples, which are `stride` numbers apart.
template <class T>
void from_columns(const T* columns, int64_t units, T* rows, int64_t stride, int64_t count) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < units; j += W, columns += W * W) {
    Vec<T> block[W];
    for (int i = 0; i < W; i++) block[i] = load<T>(columns + i * W);
    transpose<T>(block);
    for (int64_t i = 0; i < count; i++) store<T>(rows + i * stride + j, block[i]);
  }
}

// The attention in W samples: queries, keys and values, and their gradients [S, 3 E, W]; presence [S, W], 1 or 0, null if
// all are present; memory for a query's gradients of its scores [N, W].
template <class T>
struct Group {
  const T *projected, *present;
  T *gradient = nullptr, *d_scores = nullptr;

  const T* of(const Team<T>& s, int64_t entity, int part) const {
    return projected + (3 * entity + part) * s.units * kWidth<T>;
  }
  T* gradient_of(const Team<T>& s, int64_t entity, int part) const {
    return gradient + (3 * entity + part) * s.units * kWidth<T>;
  }
};
constexpr int kQuery = 0, kKey = 1, kValue = 2;

// [W]: the product of a head's vectors.
template <class T>
inline Vec<T> head_product(const T* a, const T* b, int64_t head) {
  constexpr int W = kWidth<T>;
  Vec<T> total{};
  for (int64_t f = 0; f < head; f++) total += load<T>(a + f * W) * load<T>(b + f * W);
  return total;
}

// weights [heads, N, W] of an entity: the softmax over the entities of a context that are present.
template <class T>
void context_weights(const Team<T>& s, const Group<T>& group, int64_t entity, const int64_t* context, T* weights) {
  constexpr int W = kWidth<T>;
  const Vec<T> scale = fill<T>(s.scale()), one = fill<T>(1), far = fill<T>(T(1e30));
  for (int64_t h = 0; h < s.heads; h++, weights += s.members * W) {
    const int64_t start = h * s.head() * W;
    Vec<T> most = -far;
    for (int64_t n = 0; n < s.members; n++) {
      Vec<T> score =
          head_product(group.of(s, entity, kQuery) + start, group.of(s, context[n], kKey) + start, s.head());
      if (group.present != nullptr) score += (load<T>(group.present + context[n] * W) - one) * far;
      store<T>(weights + n * W, score);
      most = score > most ? score : most;
    }
    Vec<T> all{};
    for (int64_t n = 0; n < s.members; n++) {
      Vec<T> weight = exp<T>((load<T>(weights + n * W) - most) * scale);
      if (group.present != nullptr) weight *= load<T>(group.present + context[n] * W);
      store<T>(weights + n * W, weight);
      all += weight;
    }
    if (group.present != nullptr) all = all == Vec<T>{} ? one : all;
    Vec<T> inverse = one / all;
    if (group.present != nullptr) inverse *= load<T>(group.present + entity * W);
    for (int64_t n = 0; n < s.members; n++) store<T>(weights + n * W, load<T>(weights + n * W) * inverse);
  }
}

// What an entity attends to [E, W].
template <class T>
void mix_context(const Team<T>& s, const Group<T>& group, const int64_t* context, const T* weights, T* out) {
  constexpr int W = kWidth<T>;
  for (int64_t h = 0, j = 0; h < s.heads; h++, weights += s.members * W)
    for (const int64_t stop = j + s.head(); j < stop; j++) {
      Vec<T> total{};
      for (int64_t n = 0; n < s.members; n++)
        total += load<T>(weights + n * W) * load<T>(group.of(s, context[n], kValue) + j * W);
      store<T>(out + j * W, total);
    }
}

// Adds the gradients of the units `j` to `j + N`.
template <class T, int N>
inline void add_gradients(const Team<T>& s, const Group<T>& group, int64_t entity, const int64_t* context, int64_t j,
                          const T* weights, const T* d_mixed) {
  constexpr int W = kWidth<T>;
  Vec<T> q[N], g[N], total[N];
  T* d_query = group.gradient_of(s, entity, kQuery) + j * W;
#pragma GCC unroll 4
  for (int i = 0; i < N; i++) {
    q[i] = load<T>(group.of(s, entity, kQuery) + (j + i) * W);
    g[i] = load<T>(d_mixed + (j + i) * W);
    total[i] = load<T>(d_query + i * W);
  }
  for (int64_t n = 0; n < s.members; n++) {
    const Vec<T> d_score = load<T>(group.d_scores + n * W), weight = load<T>(weights + n * W);
    const T* key = group.of(s, context[n], kKey) + j * W;
    T *d_key = group.gradient_of(s, context[n], kKey) + j * W, *d_value = d_key + s.units * W;
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) {
      total[i] += d_score * load<T>(key + i * W);
      store<T>(d_key + i * W, load<T>(d_key + i * W) + d_score * q[i]);
      store<T>(d_value + i * W, load<T>(d_value + i * W) + weight * g[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; i++) store<T>(d_query + i * W, total[i]);
}

// Adds the gradients by what an entity attends to, from those of that [E, W].
template <class T>
void context_gradients(const Team<T>& s, const Group<T>& group, int64_t entity, const int64_t* context,
                       const T* weights, const T* d_mixed) {
  constexpr int W = kWidth<T>;
  T* d = group.d_scores;
  for (int64_t h = 0, j = 0; h < s.heads; h++, weights += s.members * W) {
    Vec<T> along{};
    for (int64_t n = 0; n < s.members; n++) {
      const Vec<T> d_weight = head_product(d_mixed + j * W, group.of(s, context[n], kValue) + j * W, s.head());
      store<T>(d + n * W, d_weight);
      along += load<T>(weights + n * W) * d_weight;
    }
    for (int64_t n = 0; n < s.members; n++)
      store<T>(d + n * W, load<T>(weights + n * W) * (load<T>(d + n * W) - along) * fill<T>(s.scale()));
    const int64_t stop = j + s.head();
    for (; j + 4 <= stop; j += 4) add_gradients<T, 4>(s, group, entity, context, j, weights, d_mixed);
    for (; j < stop; j++) add_gradients<T, 1>(s, group, entity, context, j, weights, d_mixed);
  }
}

// Calls body(first, samples, group) for every group of W of `count` samples from `start` on. `projected` are their queries,
// keys and values in columns, `present` memory for [S, W] numbers.
template <class T, class Body>
void for_groups(const Team<T>& s, int64_t start, int64_t count, const T* projected, T* present, Body&& body) {
  constexpr int W = kWidth<T>;
  for (int64_t m = 0; m < count; m += W) {
    const int64_t samples = count - m < W ? count - m : W;
    if (s.present != nullptr)
      for (int64_t i = 0; i < s.entities * W; i++)
        present[i] = T(i % W < samples && s.is_present(start + m + i % W, i / W));
    body(m, samples, Group<T>{projected + m * s.entities * 3 * s.units, s.present == nullptr ? nullptr : present});
  }
}

// Working memory of a tile of samples.
template <class T>
struct TeamWork {
  Buffer<T> normed, scales, projected, mixed, sums, column, present, kept;
  TeamWork(const Team<T>& s, bool keep)
      : normed(s.rows() * s.units),
        scales(s.rows()),
        projected(s.rows() * 3 * s.units),
        mixed(s.tile() * s.queries() * s.units),
        sums(s.tile() * s.queries() * s.units),
        column(s.units * kWidth<T>),
        present(s.entities * kWidth<T>),
        kept(keep ? 0 : kept_size(s, s.tile())) {}
};

// out [M, C, E]; saved: `kept_size` numbers, null if they are not needed.
template <class T>
void attention_forward(const Team<T>& s, T* out, T* saved, int threads) {
  constexpr int W = kWidth<T>;
  const int64_t tile = s.tile(), units = s.units, width = 3 * units, queries = s.queries();
  if (saved != nullptr) clear_rest(s, saved);
  parallel_for({ceil_div(s.samples, tile), threads}, [&] { return TeamWork<T>(s, saved != nullptr); },
               [&](int64_t task, TeamWork<T>& work) {
    const int64_t start = task * tile, count = s.samples - start < tile ? s.samples - start : tile;
    const Kept<T> kept = saved == nullptr ? kept_from(s, work.kept.get(), 0, tile) : kept_from(s, saved, start, s.samples);
    const int64_t rows = count * s.entities;
    plain_norm<T>(s.x + start * s.entities * units, rows, units, work.normed, work.scales);
    product<T>(work.normed, units, s.project, width, rows, units, width, work.projected, width, Start::kBias,
               s.project_bias);
    for (int64_t m = 0; m < count; m += W)
      for (int64_t entity = 0; entity < s.entities; entity++)
        to_columns([&](int64_t i) -> const T* {
          if (m + i >= count || !s.is_present(start + m + i, entity)) return nullptr;
          return work.projected + ((m + i) * s.entities + entity) * width;
        }, width, kept.projected + (m * s.entities + entity * W) * width);
    for_groups<T>(s, start, count, kept.projected, work.present, [&](int64_t m, int64_t samples, const Group<T>& group) {
      for (int64_t q = 0; q < queries; q++) {
        const int64_t* context = s.slots + q / s.members * s.members;
        T* weights = kept.weights + (m * queries + q * W) * s.scores();
        context_weights(s, group, s.slots[q], context, weights);
        mix_context(s, group, context, weights, work.column.get());
        from_columns<T>(work.column, units, work.mixed + (m * queries + q) * units, queries * units, samples);
      }
    });
    for (int64_t m = 0; m < count; m++)
      for (int64_t q = 0; q < queries; q++) {
        const T* from = work.normed + (m * s.entities + s.slots[q]) * units;
        T* to = work.sums + (m * queries + q) * units;
        for (int64_t j = 0; j < units; j += W) store<T>(to + j, load<T>(from + j) + load<T>(s.mix_bias + j));
      }
    product<T>(work.mixed, units, s.mix, units, count * queries, units, units, work.sums, units, Start::kAdd);
    plain_norm<T>(work.sums, count * queries, units, kept.normed, kept.scales);
    for (int64_t m = 0; m < count; m++)
      for (int64_t c = 0; c < s.contexts; c++) {
        const Vec<T> share = fill<T>(s.share(start + m, c));
        T* to = out + ((start + m) * s.contexts + c) * units;
        for (int64_t j = 0; j < units; j += W) {
          Vec<T> total{};
          for (int64_t n = 0; n < s.members; n++)
            if (s.is_present(start + m, s.slots[c * s.members + n]))
              total += load<T>(kept.normed + (m * queries + c * s.members + n) * units + j);
          store<T>(to + j, total * share);
        }
      }
  });
}

template <class T>
struct TeamGradients {
  T *x, *project, *project_bias, *mix, *mix_bias;  // x may be null
};

// Working memory of the gradients of a tile of samples.
template <class T>
struct TeamGradientWork {
  Buffer<T> normed, scales, mixed, d_sums, d_mixed, d_projected, d_normed, column, present, gradient, d_scores;
  explicit TeamGradientWork(const Team<T>& s)
      : normed(s.rows() * s.units),
        scales(s.rows()),
        mixed(s.tile() * s.queries() * s.units),
        d_sums(s.tile() * s.queries() * s.units),
        d_mixed(s.tile() * s.queries() * s.units),
        d_projected(s.rows() * 3 * s.units),
        d_normed(s.rows() * s.units),
        column(s.units * kWidth<T>),
        present(s.entities * kWidth<T>),
        gradient(s.entities * 3 * s.units * kWidth<T>),
        d_scores(s.members * kWidth<T>) {}
};

// Gradients of samples `start` to `start + count`; adds those of the parameters to `sums`, in their order.
template <class T>
void attention_backward_tile(const Team<T>& s, int64_t start, int64_t count, const T* project_transposed,
                             const T* mix_transposed, const Kept<T>& kept, const T* grad_out, T* x_grad, T* sums,
                             TeamGradientWork<T>& work) {
  constexpr int W = kWidth<T>;
  const int64_t units = s.units, queries = s.queries(), rows = count * s.entities, width = 3 * units;
  plain_norm<T>(s.x + start * s.entities * units, rows, units, work.normed, work.scales);
  std::memset(work.d_normed, 0, size_t(rows * units) * sizeof(T));
  for (int64_t m = 0; m < count; m++)
    for (int64_t q = 0; q < queries; q++) {
      const int64_t c = q / s.members;
      const T* grad = grad_out + ((start + m) * s.contexts + c) * units;
      const Vec<T> weight = s.is_present(start + m, s.slots[q]) ? fill<T>(s.share(start + m, c)) : Vec<T>{};
      T* to = work.d_sums + (m * queries + q) * units;
      for (int64_t j = 0; j < units; j += W) store<T>(to + j, load<T>(grad + j) * weight);
    }
  plain_norm_gradient<T>(kept.normed, kept.scales, work.d_sums, count * queries, units, work.d_sums);
  for (int64_t m = 0; m < count; m++)
    for (int64_t q = 0; q < queries; q++) {
      const T* from = work.d_sums + (m * queries + q) * units;
      T* to = work.d_normed + (m * s.entities + s.slots[q]) * units;
      for (int64_t j = 0; j < units; j += W) store<T>(to + j, load<T>(to + j) + load<T>(from + j));
    }
  product<T>(work.d_sums, units, mix_transposed, units, count * queries, units, units, work.d_mixed, units, Start::kZero);
  for_groups<T>(s, start, count, kept.projected, work.present, [&](int64_t m, int64_t samples, Group<T> group) {
    group.gradient = work.gradient, group.d_scores = work.d_scores;
    std::memset(work.gradient, 0, size_t(s.entities * width * W) * sizeof(T));
    for (int64_t q = 0; q < queries; q++) {
      const int64_t *context = s.slots + q / s.members * s.members, at = (m * queries + q) * units;
      const T* weights = kept.weights + (m * queries + q * W) * s.scores();
      mix_context(s, group, context, weights, work.column.get());
      from_columns<T>(work.column, units, work.mixed + at, queries * units, samples);
      to_columns([&](int64_t i) -> const T* {
        return i < samples ? work.d_mixed + at + i * queries * units : nullptr;
      }, units, work.column.get());
      context_gradients<T>(s, group, s.slots[q], context, weights, work.column);
    }
    for (int64_t entity = 0; entity < s.entities; entity++)
      from_columns<T>(work.gradient + entity * width * W, width, work.d_projected + (m * s.entities + entity) * width,
                      s.entities * width, samples);
  });
  T *d_project = sums, *d_mix = sums + (units + 1) * width;
  add_outer<T>(work.mixed, units, work.d_sums, units, count * queries, units, units, d_mix, units);
  add_rows<T>(work.d_sums, units, count * queries, units, d_mix + units * units);
  add_outer<T>(work.normed, units, work.d_projected, width, rows, units, width, d_project, width);
  add_rows<T>(work.d_projected, width, rows, width, d_project + units * width);
  if (x_grad == nullptr) return;
  product<T>(work.d_projected, width, project_transposed, units, rows, width, units, work.d_normed, units, Start::kAdd);
  plain_norm_gradient<T>(work.normed, work.scales, work.d_normed, rows, units, x_grad + start * s.entities * units);
}

template <class T>
void attention_backward(const Team<T>& s, T* saved, const T* grad_out, const TeamGradients<T>& grads, int threads) {
  const int64_t units = s.units, width = 3 * units, tile = s.tile(), size = (units + 1) * (width + units);
  const int64_t tiles = ceil_div(s.samples, tile), chunks = tiles < kMaxChunks ? tiles : kMaxChunks;
  Buffer<T> project(width * units), mix(units * units), sums((chunks > 0 ? chunks : 1) * size);
  pad_transposed<T>(s.project, width, units, width, project, units);
  pad_transposed<T>(s.mix, units, units, units, mix, units);
  parallel_for({chunks, threads}, [&] { return TeamGradientWork<T>(s); }, [&](int64_t task, TeamGradientWork<T>& work) {
    T* mine = sums + task * size;
    std::memset(mine, 0, size_t(size) * sizeof(T));
    for (int64_t start = task * tiles / chunks * tile; start < (task + 1) * tiles / chunks * tile; start += tile)
      attention_backward_tile<T>(s, start, s.samples - start < tile ? s.samples - start : tile, project, mix,
                                 kept_from(s, saved, start, s.samples), grad_out, grads.x, mine, work);
  });
  sum_parts<T>(sums, chunks, size, threads);
  T* const parts[] = {grads.project, grads.project_bias, grads.mix, grads.mix_bias};
  const int64_t sizes[] = {units * width, width, units * units, units};
  const T* from = sums;
  for (int i = 0; i < 4; from += sizes[i++]) std::memcpy(parts[i], from, size_t(sizes[i]) * sizeof(T));
}

template <class T>
Team<T> team_of(const int64_t* n, const T* x, const bool* present, const int64_t* slots, const T* const* parameters) {
  return {n[0], n[1], n[2],          n[3],          n[4],          n[5],         x,
          present, slots, parameters[0], parameters[1], parameters[2], parameters[3]};
}

template <class T>
Attend<T> attend_of(const int64_t* n, double scale, const T* const* tokens, const bool* visible) {
  return {n[0], n[1], {n[2], n[3], n[4], T(scale)}, {tokens[0], n[5], n[6]}, {tokens[1], n[7], n[8]}, tokens[2],
          visible, {n[9], n[10], n[11]}};
}

}  // namespace coterie

// n: samples, queries, units, heads, members; strides of queries, of keys and values, and of what is visible; then those of
// the result, or of its gradient and those of queries and keys. tokens: queries, keys and values; gradients: theirs.
#define COTERIE_ATTEND(T, SUFFIX)                                                                                      \
  COTERIE_API void coterie_attend_forward_##SUFFIX(const int64_t* n, const double* scale, const T* const* tokens,      \
                                                   const bool* visible, T* out, T* weights, int threads) {             \
    coterie::attend_forward<T>(coterie::attend_of(n, *scale, tokens, visible), {out, n[12], n[13]}, weights, threads); \
  }                                                                                                                    \
  COTERIE_API void coterie_attend_backward_##SUFFIX(const int64_t* n, const double* scale, const T* const* tokens,     \
                                                    const bool* visible, const T* weights, const T* grad,              \
                                                    T* const* gradients, int threads) {                                \
    coterie::attend_backward<T>(coterie::attend_of(n, *scale, tokens, visible), weights, {grad, n[12], n[13]},         \
                                {gradients[0], n[14], n[15]}, {gradients[1], n[16], n[17]}, gradients[2], threads);    \
  }
COTERIE_ATTEND(float, f32)
COTERIE_ATTEND(double, f64)

// n: samples, entities, units, heads, contexts, members. Parameters: projection and its bias, mixture and its bias; found:
// the gradient of x, null if it is not needed, and theirs.
#define COTERIE_ATTENTION(T, SUFFIX)                                                                                   \
  COTERIE_API void coterie_attention_forward_##SUFFIX(const int64_t* n, const T* x, const bool* present,               \
                                                      const int64_t* slots, const T* const* parameters, T* out,        \
                                                      T* saved, int threads) {                                         \
    coterie::attention_forward<T>(coterie::team_of(n, x, present, slots, parameters), out, saved, threads);            \
  }                                                                                                                    \
  COTERIE_API void coterie_attention_backward_##SUFFIX(const int64_t* n, const T* x, const bool* present,              \
                                                       const int64_t* slots, const T* const* parameters, T* saved,     \
                                                       const T* grad_out, T* const* found, int threads) {              \
    coterie::attention_backward<T>(coterie::team_of(n, x, present, slots, parameters), saved, grad_out,                \
                                   {found[0], found[1], found[2], found[3], found[4]}, threads);                       \
  }
COTERIE_ATTENTION(float, f32)
COTERIE_ATTENTION(double, f64)
