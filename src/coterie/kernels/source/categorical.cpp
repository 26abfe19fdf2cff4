// Independent categorical choices with masks: log-probabilities, entropies, samples and gradients.
#include <atomic>

#include "memory.hpp"
#include "pool.hpp"

namespace coterie {

// A batch of rows: logits [rows, columns] of `components` choices, whose sizes sum to `columns`.
template <class T>
struct Choices {
  int64_t rows, columns, components;
  const int64_t* sizes;
  const T* logits;
  const bool* mask;  // null: all are available
};

// log_p and p [count, columns] of some rows: the logarithm of the softmax of every component, and the softmax. Masked
// logits count as the lowest finite number.
template <class T>
void log_softmax(const Choices<T>& c, int64_t first, int64_t count, T* log_p, T* p) {
  constexpr T lowest = std::numeric_limits<T>::lowest();
  constexpr int W = kWidth<T>;
  const int64_t total = count * c.columns;
  const T* logits = c.logits + first * c.columns;
  const bool* mask = c.mask == nullptr ? nullptr : c.mask + first * c.columns;
  for (int64_t i = 0; i < total; i++) log_p[i] = mask == nullptr || mask[i] ? logits[i] : lowest;
  for (int64_t r = 0; r < count; r++) {
    T* row = log_p + r * c.columns;
    for (int64_t k = 0; k < c.components; row += c.sizes[k++]) {
      T highest = row[0];
      for (int64_t j = 1; j < c.sizes[k]; j++) highest = row[j] > highest || row[j] != row[j] ? row[j] : highest;
      for (int64_t j = 0; j < c.sizes[k]; j++) row[j] -= highest;
    }
  }
  for (int64_t i = 0; i < total; i += W) {
    const Vec<T> x = load<T>(log_p + i);
    store<T>(p + i, x < fill<T>(Lanes<T>::kLow) ? fill<T>(0) : exp<T>(x));
  }
  for (int64_t r = 0; r < count; r++) {
    T *row = log_p + r * c.columns, *e = p + r * c.columns;
    for (int64_t k = 0; k < c.components; row += c.sizes[k], e += c.sizes[k++]) {
      T sum = 0;
      for (int64_t j = 0; j < c.sizes[k]; j++) sum += e[j];
      const T log_sum = std::log(sum), scale = 1 / sum;
      for (int64_t j = 0; j < c.sizes[k]; j++) row[j] -= log_sum, e[j] *= scale;
    }
  }
}

constexpr int64_t kBatch = 64;    // rows whose intermediate results stay in cache
constexpr int64_t kTogether = 4;  // batches that a thread takes at a time

template <class T, class F>
void for_batches(const Choices<T>& c, int threads, F&& work_on) {
  struct Memory {
    Buffer<T> log_p, p;
    explicit Memory(int64_t size) : log_p(size), p(size) { std::memset(log_p.get(), 0, size_t(size) * sizeof(T)); }
  };
  const int64_t batches = ceil_div(c.rows, kBatch);
  const auto make_memory = [&] { return Memory(kBatch * c.columns + 64); };
  parallel_for({batches, batches > 16 ? threads : 1, kTogether}, make_memory, [&](int64_t batch, Memory& memory) {
    const int64_t first = batch * kBatch;
    work_on(first, c.rows - first < kBatch ? c.rows - first : kBatch, memory.log_p.get(), memory.p.get());
  });
}

// Sets `invalid` to 1 if an action is not one of the choices, to 0 otherwise. The results of such rows have no meaning.
template <class T>
void evaluate(const Choices<T>& c, const int64_t* action, T* log_prob, T* entropy, int64_t* invalid, int threads) {
  std::atomic<bool> found{false};
  for_batches(c, threads, [&](int64_t first, int64_t count, T* log_p, T* p) {
    log_softmax(c, first, count, log_p, p);
    for (int64_t r = 0; r < count; r++) {
      T chosen = 0, spread = 0;
      const T *row = log_p + r * c.columns, *q = p + r * c.columns;
      for (int64_t k = 0; k < c.components; row += c.sizes[k], q += c.sizes[k++]) {
        const int64_t choice = action[(first + r) * c.components + k];
        if (uint64_t(choice) < uint64_t(c.sizes[k])) chosen += row[choice];
        else found = true;
        for (int64_t j = 0; j < c.sizes[k]; j++) spread -= q[j] * row[j];
      }
      log_prob[first + r] = chosen, entropy[first + r] = spread;
    }
  });
  *invalid = found;
}

template <class T>
void evaluate_backward(const Choices<T>& c, const int64_t* action, const T* log_prob_grad, const T* entropy_grad,
                       T* logits_grad, int64_t* invalid, int threads) {
  std::atomic<bool> found{false};
  for_batches(c, threads, [&](int64_t first, int64_t count, T* log_p, T* p) {
    log_softmax(c, first, count, log_p, p);
    for (int64_t r = 0; r < count; r++) {
      const T d_log_prob = log_prob_grad[first + r], d_entropy = entropy_grad[first + r];
      int64_t at = r * c.columns;
      for (int64_t k = 0; k < c.components; at += c.sizes[k++]) {
        T spread = 0;
        for (int64_t j = 0; j < c.sizes[k]; j++) spread -= p[at + j] * log_p[at + j];
        const int64_t chosen = action[(first + r) * c.components + k];
        if (uint64_t(chosen) >= uint64_t(c.sizes[k])) found = true;
        for (int64_t j = 0; j < c.sizes[k]; j++) {
          const T q = p[at + j], d = d_log_prob * (T(j == chosen) - q) - d_entropy * q * (log_p[at + j] + spread);
          const int64_t to = first * c.columns + at + j;
          logits_grad[to] = c.mask == nullptr || c.mask[to] ? d : T(0);
        }
      }
    }
  });
  *invalid = found;
}

template <class T>
void sample(const Choices<T>& c, const T* noise, int64_t noise_row, int64_t* action, T* log_prob, int threads) {
  for_batches(c, threads, [&](int64_t first, int64_t count, T* log_p, T* p) {
    log_softmax(c, first, count, log_p, p);
    for (int64_t r = 0; r < count; r++) {
      T total = 0;
      const T* row = log_p + r * c.columns;
      const T* own = noise == nullptr ? nullptr : noise + (first + r) * noise_row;
      for (int64_t k = 0; k < c.components; k++) {
        int64_t best = 0;
        T highest = row[0] + (own == nullptr ? T(0) : own[0]);
        for (int64_t j = 1; j < c.sizes[k]; j++) {
          const T score = row[j] + (own == nullptr ? T(0) : own[j]);
          if (score > highest || (score != score && highest == highest)) highest = score, best = j;
        }
        action[(first + r) * c.components + k] = best;
        total += row[best];
        row += c.sizes[k];
        if (own != nullptr) own += c.sizes[k];
      }
      log_prob[first + r] = total;
    }
  });
}

}  // namespace coterie

// sizes: rows, columns, components, stride of the noise by row; then the size of each component.
#define COTERIE_CATEGORICAL(T, SUFFIX)                                                                                 \
  COTERIE_API void coterie_categorical_##SUFFIX(const int64_t* s, const T* logits, const bool* mask,                   \
                                                const int64_t* action, T* log_prob, T* entropy, int64_t* invalid,      \
                                                int threads) {                                                         \
    coterie::evaluate<T>({s[0], s[1], s[2], s + 4, logits, mask}, action, log_prob, entropy, invalid, threads);        \
  }                                                                                                                    \
  COTERIE_API void coterie_categorical_backward_##SUFFIX(const int64_t* s, const T* logits, const bool* mask,          \
                                                         const int64_t* action, const T* log_prob_grad,                \
                                                         const T* entropy_grad, T* logits_grad, int64_t* invalid,      \
                                                         int threads) {                                                \
    coterie::evaluate_backward<T>({s[0], s[1], s[2], s + 4, logits, mask}, action, log_prob_grad, entropy_grad,        \
                                  logits_grad, invalid, threads);                                                      \
  }                                                                                                                    \
  COTERIE_API void coterie_categorical_sample_##SUFFIX(const int64_t* s, const T* logits, const bool* mask,            \
                                                       const T* noise, int64_t* action, T* log_prob, int threads) {    \
    coterie::sample<T>({s[0], s[1], s[2], s + 4, logits, mask}, noise, s[3], action, log_prob, threads);               \
  }
COTERIE_CATEGORICAL(float, f32)
COTERIE_CATEGORICAL(double, f64)
