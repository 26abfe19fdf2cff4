// Losses of clipped policy gradients with their gradients, and Adam over flat buffers. Sums are in double precision,
// over parts of fixed size in their order.
#include "memory.hpp"
#include "pool.hpp"

namespace coterie {

constexpr int64_t kPart = 2048;
constexpr int64_t kTogether = 2;  // parts that a thread takes at a time

// Returns the sums over i < count of the numbers that `term` writes into three variables.
struct Sums {
  double a, b, c;
};

template <class F>
Sums ordered_sums(int64_t count, int threads, F&& term) {
  const int64_t parts = ceil_div(count, kPart);
  Buffer<Sums> partial(parts);
  parallel_for({parts, threads, kTogether}, [&](int64_t p) {
    Sums s{0, 0, 0};
    for (int64_t i = p * kPart; i < count && i < (p + 1) * kPart; i++) term(i, s);
    partial[p] = s;
  });
  Sums total{0, 0, 0};
  for (int64_t p = 0; p < parts; p++) total.a += partial[p].a, total.b += partial[p].b, total.c += partial[p].c;
  return total;
}

inline double count_valid(const bool* valid, int64_t count) {
  if (valid == nullptr) return double(count);
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) found += valid[i];
  return double(found);
}

// out: loss, estimated KL divergence, fraction of ratios outside the clip range. grad: of the loss by log_prob.
template <class T>
void clipped_policy_loss(int64_t count, double clip_eps, const T* log_prob, const T* old_log_prob, const T* advantage,
                         const bool* valid, T* out, T* grad, int threads) {
  constexpr int W = kWidth<T>;
  const double number = count_valid(valid, count), scale = 1 / (number > 1 ? number : 1);
  const T low = T(1 - clip_eps), high = T(1 + clip_eps);
  const Sums total = ordered_sums(ceil_div(count, W), threads, [&](int64_t block, Sums& s) {
    const int64_t first = block * W, n = count - first < W ? count - first : W;
    T log_ratio[W] = {};
    for (int64_t i = 0; i < n; i++)
      if (valid == nullptr || valid[first + i]) log_ratio[i] = log_prob[first + i] - old_log_prob[first + i];
    const Vec<T> ratios = exp<T>(load<T>(log_ratio));
    for (int64_t i = 0; i < n; i++) {
      const int64_t at = first + i;
      if (valid != nullptr && !valid[at]) {
        grad[at] = 0;
        continue;
      }
      const T ratio = log_ratio[i] > Lanes<T>::kHigh ? std::numeric_limits<T>::infinity() : ratios[int(i)];
      const T clipped = ratio < low ? low : ratio > high ? high : ratio;
      const T free = ratio * advantage[at], bound = clipped * advantage[at];
      s.a -= double(bound < free ? bound : free);
      s.b += double(ratio - 1 - log_ratio[i]);
      s.c += double(std::fabs(ratio - 1) > T(clip_eps));
      grad[at] = bound < free ? T(0) : T(-scale) * free;
    }
  });
  out[0] = T(total.a * scale), out[1] = T(total.b * scale), out[2] = T(total.c * scale);
}

// Half the squared error, or the Huber loss, and its derivative.
template <class T>
inline T value_error(T difference, double huber_delta, T* derivative) {
  const T size = std::fabs(difference), delta = T(huber_delta);
  if (huber_delta > 0 && size > delta) {
    *derivative = difference > 0 ? delta : -delta;
    return delta * (size - T(0.5) * delta);
  }
  *derivative = difference;
  return T(0.5) * difference * difference;
}

// Values [count, signals]; valid [count]. Zero or negative `clip_eps` and `huber_delta` stand for none.
template <class T>
void clipped_value_loss(int64_t count, int64_t signals, double clip_eps, double huber_delta, const T* value,
                        const T* old_value, const T* target, const bool* valid, T* out, T* grad, int threads) {
  const double number = count_valid(valid, count), scale = 1 / ((number > 1 ? number : 1) * double(signals));
  const Sums total = ordered_sums(count * signals, threads, [&](int64_t i, Sums& s) {
    if (valid != nullptr && !valid[i / signals]) {
      grad[i] = 0;
      return;
    }
    T derivative, clipped_derivative;
    T error = value_error<T>(value[i] - target[i], huber_delta, &derivative);
    if (clip_eps > 0) {
      const T eps = T(clip_eps), change = value[i] - old_value[i];
      const bool inside = change >= -eps && change <= eps;
      const T clipped = old_value[i] + (change < -eps ? -eps : change > eps ? eps : change);
      const T other = value_error<T>(clipped - target[i], huber_delta, &clipped_derivative);
      if (!inside) clipped_derivative = 0;
      if (other > error || other != other) error = other, derivative = clipped_derivative;
      else if (other == error) derivative = T(0.5) * (derivative + clipped_derivative);
    }
    s.a += double(error);
    grad[i] = derivative * T(scale);
  });
  out[0] = T(total.a * scale);
}

constexpr int64_t kChains = 8;  // sums that a processor adds to in the time of one addition

// The sum of squares, in the order of `ordered_sums`. Several parts at a time, as every addition to one of them waits
// for the one before.
template <class T>
double sum_of_squares(int64_t count, const T* x, int threads) {
  const int64_t parts = ceil_div(count, kPart);
  Buffer<double> partial(parts);
  parallel_for({ceil_div(parts, kChains), threads}, [&](int64_t task) {
    const int64_t p = task * kChains, start = p * kPart, end = start + kChains * kPart, whole = end <= count ? kPart : 0;
    double sums[kChains] = {};
    const auto add = [&](int64_t j, int64_t i) { sums[j] += double(x[start + i]) * double(x[start + i]); };
    for (int64_t i = 0; i < whole; i++)
      for (int64_t j = 0; j < kChains; j++) add(j, j * kPart + i);
    if (whole == 0)
      for (int64_t i = 0; start + i < count; i++) add(i / kPart, i);
    for (int64_t j = 0; j < kChains && p + j < parts; j++) partial[p + j] = sums[j];
  });
  double total = 0;
  for (int64_t p = 0; p < parts; p++) total += partial[p];
  return total;
}

template <class T>
struct AdamFactors {
  T scale, step_size, correction2, b2, rest1, rest2, weight_decay, eps;
};

// A function of its own, so that the compiler knows that the factors do not change. Without `kDivides`, parameters
// follow the momentum alone.
template <class T, bool kDivides>
void adam_part(const AdamFactors<T> f, int64_t count, T* parameter, T* grad, T* average, T* square) {
  for (int64_t i = 0; i < count; i++) {
    grad[i] *= f.scale;
    const T g = grad[i] + f.weight_decay * parameter[i];
    average[i] += f.rest1 * (g - average[i]);
    square[i] = f.b2 * square[i] + f.rest2 * g * g;
    const T step = f.step_size * average[i];
    parameter[i] -= kDivides ? step / (std::sqrt(square[i]) / f.correction2 + f.eps) : step;
  }
}

// RAdam's length of the average of squares, rho, at a step. Up to 5, the squares are too uncertain to divide by.
//
//     rho_inf = 2 / (1 - beta2) - 1,    rho = rho_inf - 2 t beta2^t / (1 - beta2^t)
inline double averaged_length(double beta2, double step) {
  const double power = std::pow(beta2, step);
  return 2 / (1 - beta2) - 1 - 2 * step * power / (1 - power);
}

// One step of Adam or, if `rectify`, of RAdam with the gradient clipped to a norm, in place; norm: the norm before
// clipping. A step of RAdam with rho > 5 is one of Adam with another learning rate and epsilon:
//
//     lr' = lr sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)),    eps' = eps / sqrt(1 - beta2^t)
template <class T>
void adam(int64_t count, const double* s, double lr, double step, T* parameter, T* grad, T* average, T* square, T* norm,
          int threads) {
  const double beta1 = s[0], beta2 = s[1], weight_decay = s[3], max_norm = s[4];
  double eps = s[2];
  bool divides = true;
  if (s[5] != 0) {
    const double longest = 2 / (1 - beta2) - 1, rho = averaged_length(beta2, step);
    divides = rho > 5;
    if (divides) {
      lr *= std::sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho));
      eps /= std::sqrt(1 - std::pow(beta2, step));
    }
  }
  norm[0] = T(std::sqrt(sum_of_squares(count, grad, threads)));
  T scale = 1;
  if (max_norm > 0) {
    scale = T(max_norm) / (norm[0] + T(1e-6));
    if (scale > 1) scale = 1;
  }
  const T step_size = T(lr / (1 - std::pow(beta1, step))), correction2 = T(std::sqrt(1 - std::pow(beta2, step)));
  const T rest1 = T(1 - beta1), rest2 = T(1 - beta2);  // 1 - 0.999 would lose half of its digits in float
  const AdamFactors<T> factors{scale, step_size, correction2, T(beta2), rest1, rest2, T(weight_decay), T(eps)};
  const int64_t length = kChains * kPart;
  parallel_for({ceil_div(count, length), count > 2 * length ? threads : 1}, [&](int64_t task) {
    const int64_t i = task * length, left = count - i, part = left < length ? left : length;
    if (divides)
      adam_part<T, true>(factors, part, parameter + i, grad + i, average + i, square + i);
    else
      adam_part<T, false>(factors, part, parameter + i, grad + i, average + i, square + i);
  });
}

}  // namespace coterie

#define COTERIE_LOSSES(T, SUFFIX)                                                                                      \
  COTERIE_API void coterie_clipped_policy_loss_##SUFFIX(const int64_t* n, const double* s, const T* log_prob,          \
                                                        const T* old_log_prob, const T* advantage, const bool* valid,  \
                                                        T* out, T* grad, int threads) {                                \
    coterie::clipped_policy_loss<T>(n[0], s[0], log_prob, old_log_prob, advantage, valid, out, grad, threads);         \
  }                                                                                                                    \
  COTERIE_API void coterie_clipped_value_loss_##SUFFIX(const int64_t* n, const double* s, const T* value,              \
                                                       const T* old_value, const T* target, const bool* valid, T* out, \
                                                       T* grad, int threads) {                                         \
    coterie::clipped_value_loss<T>(n[0], n[1], s[0], s[1], value, old_value, target, valid, out, grad, threads);       \
  }                                                                                                                    \
  COTERIE_API void coterie_adam_##SUFFIX(const int64_t* n, const double* s, const double* lr, const float* step,       \
                                         T* parameter, T* grad, T* average, T* square, T* norm, int threads) {         \
    coterie::adam<T>(n[0], s, lr[0], step[0], parameter, grad, average, square, norm, threads);                        \
  }
COTERIE_LOSSES(float, f32)
COTERIE_LOSSES(double, f64)
