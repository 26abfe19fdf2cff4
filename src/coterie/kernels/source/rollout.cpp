// Several timesteps of a policy in a particle world in which all environments' episodes begin and end together. It calls
// the functions that act and step one at a time, so that the results are theirs.
#include "memory.hpp"
#include "pool.hpp"

#define COTERIE_DECLARE(T, SUFFIX)                                                                                     \
  COTERIE_API void coterie_mlp_forward_##SUFFIX(const int64_t*, const T*, const T* const*, T*, T*, int);               \
  COTERIE_API void coterie_gru_forward_##SUFFIX(const int64_t*, const T*, const bool*, const T*, const T*, const T*,   \
                                                const T*, const T*, const T*, T*, T*, T*, int);                        \
  COTERIE_API void coterie_categorical_sample_##SUFFIX(const int64_t*, const T*, const bool*, const T*, int64_t*, T*,  \
                                                       int);                                                           \
  COTERIE_API void coterie_particle_step_##SUFFIX(const int64_t*, const double*, void* const*, int);                   \
  namespace coterie {                                                                                                  \
  template <>                                                                                                          \
  struct Steps<T> {                                                                                                    \
    static constexpr auto mlp = coterie_mlp_forward_##SUFFIX;                                                          \
    static constexpr auto gru = coterie_gru_forward_##SUFFIX;                                                          \
    static constexpr auto sample = coterie_categorical_sample_##SUFFIX;                                                \
    static constexpr auto world = coterie_particle_step_##SUFFIX;                                                      \
  };                                                                                                                   \
  }

namespace coterie {
template <class T>
struct Steps;
}
COTERIE_DECLARE(float, f32)
COTERIE_DECLARE(double, f64)

namespace coterie {

enum Rule { kEpsilonGreedy = 0, kCategorical = 1 };

struct RolloutSizes {
  int64_t steps, envs, agents, observed, last, ids, inputs, features, hidden, columns, components, rule;
  const int64_t* choices;  // of each component
  int64_t rows() const { return envs * agents; }
};

// Null where there is nothing of the kind.
template <class T>
struct RolloutData {
  const T* obs;       // of the first timestep [B, N, D]
  const bool *first, *mask;  // [B, N] and [B, N, A]
  const T *mean, *std;
  const T *h, *last;  // before the first timestep [B, N, H] and [B, N, A]
  const int64_t *body_sizes, *rnn_sizes, *head_sizes;
  const T *const *body, *const *rnn, *const *head;
  const T* const* noise;  // of each timestep
  int64_t* action;        // [T, B, N, K]
  T *log_prob, *h_after, *last_after;
  // Null to act only. Arguments of a step in the present episode, then in that of each step; those that differ between
  // steps are replaced. In the first step of another episode they are its initial state, which is observed.
  void* const* const* episodes;
  const int64_t* world_sizes;
  const double* world_numbers;
  // Of the first timestep and after each step: the state and the observations, the first of which are not here; after the
  // last two steps: `coasting` and `returns`; of each step: the others.
  T *flat, *coasting, *returns, *after_obs, *reward, *counts;
};

// The index of the highest number, the first NaN if there is one. Where `mask` is False the number is `lowest`.
template <class T>
int64_t argmax(const T* x, const bool* mask, T lowest, int64_t count) {
  const auto value = [&](int64_t j) { return mask == nullptr || mask[j] ? x[j] : lowest; };
  int64_t best = 0;
  T highest = value(0);
  for (int64_t j = 1; j < count; j++) {
    const T other = value(j);
    if (other > highest || (other != other && highest == highest)) highest = other, best = j;
  }
  return best;
}

template <class T>
class Rollout {
 public:
  Rollout(const RolloutSizes& n, const RolloutData<T>& d, T epsilon, T clip, int threads)
      : n_(n), d_(d), epsilon_(epsilon), clip_(clip), threads_(threads), x_(n.rows() * n.inputs),
        features_(n.rows() * n.features), hidden_(2 * n.rows() * n.hidden), out_(n.rows() * n.columns),
        last_(n.rows() * n.last), first_(n.rows()), sample_sizes_(4 + n.components) {
    int64_t* s = sample_sizes_;
    s[0] = n.rows(), s[1] = n.columns, s[2] = n.components, s[3] = n.columns;
    for (int64_t k = 0; k < n.components; k++) s[4 + k] = n.choices[k];
    if (n.last > 0) std::memcpy(last_.get(), d.last, size_t(n.rows() * n.last) * sizeof(T));
  }

  void run() {
    for (int64_t t = 0; t < n_.steps; t++) {
      if (t == 0)
        std::memcpy(first_, d_.first, size_t(n_.rows()));
      else
        std::memset(first_, begins(t - 1), size_t(n_.rows()));
      act(t, t == 0 ? d_.obs : d_.after_obs + t * n_.rows() * n_.observed);
      if (d_.episodes != nullptr) step(t);
    }
    if (n_.hidden > 0) std::memcpy(d_.h_after, hidden(n_.steps - 1), size_t(n_.rows() * n_.hidden) * sizeof(T));
    if (n_.last > 0) std::memcpy(d_.last_after, last_.get(), size_t(n_.rows() * n_.last) * sizeof(T));
  }

 private:
  T* hidden(int64_t t) { return hidden_ + t % 2 * n_.rows() * n_.hidden; }

  // True if the step leads to the initial state of another episode.
  bool begins(int64_t t) const { return d_.episodes[t + 1] != d_.episodes[t]; }

  // What the network reads of each agent: its observation, its last action, and who it is.
  const T* inputs(const T* obs) {
    if (n_.inputs == n_.observed && d_.mean == nullptr) return obs;
    for_rows([&](int64_t r) {
      const T* from = obs + r * n_.observed;
      T* to = x_ + r * n_.inputs;
      for (int64_t j = 0; j < n_.observed; j++) to[j] = d_.mean == nullptr ? from[j] : scaled(from[j], j);
      to += n_.observed;
      for (int64_t j = 0; j < n_.last; j++) to[j] = first_[r] ? T(0) : last_[r * n_.last + j];
      to += n_.last;
      for (int64_t j = 0; j < n_.ids; j++) to[j] = T(j == r % n_.agents);
    });
    return x_;
  }

  template <class F>
  void for_rows(F&& work_on) const {
    constexpr int64_t kTogether = 512;  // rows that a thread takes at a time
    const int64_t parts = ceil_div(n_.rows(), kTogether);
    parallel_for({parts, parts > 4 ? threads_ : 1}, [&](int64_t part) {
      const int64_t end = (part + 1) * kTogether;
      for (int64_t r = part * kTogether; r < end && r < n_.rows(); r++) work_on(r);
    });
  }

  T scaled(T x, int64_t column) const {
    const T y = (x - d_.mean[column]) / d_.std[column];
    return y < -clip_ ? -clip_ : y > clip_ ? clip_ : y;
  }

  void act(int64_t t, const T* obs) {
    const T* x = inputs(obs);
    if (n_.hidden == 0) {
      Steps<T>::mlp(d_.body_sizes, x, d_.body, out_, nullptr, threads_);
    } else {
      Steps<T>::mlp(d_.body_sizes, x, d_.body, features_, nullptr, threads_);
      Steps<T>::gru(d_.rnn_sizes, features_, first_, t == 0 ? d_.h : hidden(t - 1), nullptr, d_.rnn[0], d_.rnn[1],
                    d_.rnn[2], d_.rnn[3], hidden(t), nullptr, nullptr, threads_);
      Steps<T>::mlp(d_.head_sizes, hidden(t), d_.head, out_, nullptr, threads_);
    }
    int64_t* action = d_.action + t * n_.rows() * n_.components;
    const T* noise = d_.noise == nullptr ? nullptr : d_.noise[t];
    if (n_.rule == kCategorical)
      Steps<T>::sample(sample_sizes_, out_, d_.mask, noise, action, d_.log_prob + t * n_.rows(), threads_);
    else
      choose(noise, action);
    if (n_.last > 0) encode(action);
  }

  // Greedy choices, or those of the highest noise where its first number is below epsilon.
  void choose(const T* noise, int64_t* action) {
    for_rows([&](int64_t r) {
      const T* own = noise == nullptr ? nullptr : noise + r * (1 + n_.columns);
      const bool explores = own != nullptr && own[0] < epsilon_;
      const T* score = explores ? own + 1 : out_ + r * n_.columns;
      const bool* mask = d_.mask == nullptr ? nullptr : d_.mask + r * n_.columns;
      const T lowest = explores ? T(-1) : std::numeric_limits<T>::lowest();
      for (int64_t k = 0; k < n_.components; k++) {
        action[r * n_.components + k] = argmax(score, mask, lowest, n_.choices[k]);
        score += n_.choices[k], mask += mask == nullptr ? 0 : n_.choices[k];
      }
    });
  }

  void encode(const int64_t* action) {
    std::memset(last_.get(), 0, size_t(n_.rows() * n_.last) * sizeof(T));
    for (int64_t r = 0; r < n_.rows(); r++) {
      int64_t at = r * n_.last;
      for (int64_t k = 0; k < n_.components; at += n_.choices[k++]) last_[at + action[r * n_.components + k]] = 1;
    }
  }

  // Replaces the arguments of a step that differ from those of the one before, see `read_data` in particle.cpp.
  void step(int64_t t) {
    constexpr int kFlat = 0, kCoasting = 1, kReturns = 2, kAfter = 17, kNextCoasting = 18, kNextReturns = 19,
                  kObs = 22, kReward = 23, kCounts = 24, kChoices = 27;
    const int64_t* w = d_.world_sizes;
    const int64_t rows = 4 * w[1] + w[3] * w[4] + w[5], flat = rows * n_.envs, moving = 2 * w[1] * n_.envs;
    const int64_t observed = n_.rows() * n_.observed;
    T *after = d_.flat + (t + 1) * flat, *obs = d_.after_obs + (t + 1) * observed, *reward = d_.reward + t * n_.rows();
    T *coasting = d_.coasting + t % 2 * moving, *returns = d_.returns + t % 2 * n_.rows();
    void* p[kChoices + 1];
    std::memcpy(p, d_.episodes[t + 1], sizeof p);
    if (begins(t)) {
      copy(p[kFlat], flat, after), copy(p[kCoasting], moving, coasting), copy(p[kReturns], n_.rows(), returns);
      copy(p[kObs], observed, obs), std::memset(reward, 0, size_t(n_.rows()) * sizeof(T));
      return;
    }
    if (t > 0) {
      p[kFlat] = d_.flat + t * flat;
      p[kCoasting] = d_.coasting + (t - 1) % 2 * moving, p[kReturns] = d_.returns + (t - 1) % 2 * n_.rows();
    }
    p[kAfter] = after, p[kNextCoasting] = coasting, p[kNextReturns] = returns, p[kObs] = obs, p[kReward] = reward;
    p[kCounts] = d_.counts + t * 2 * n_.envs;
    p[kChoices] = d_.action + t * n_.rows() * n_.components;
    Steps<T>::world(w, d_.world_numbers, p, threads_);
  }

  static void copy(const void* from, int64_t count, T* to) { std::memcpy(to, from, size_t(count) * sizeof(T)); }

  const RolloutSizes n_;
  const RolloutData<T> d_;
  const T epsilon_, clip_;
  const int threads_;
  Buffer<T> x_, features_, hidden_, out_, last_;
  Buffer<bool> first_;  // where the hidden state is reset
  Buffer<int64_t> sample_sizes_;
};

template <class T>
RolloutData<T> read_rollout(void* const* p) {
  const auto numbers = [&] { return static_cast<T*>(*p++); };
  const auto sizes = [&] { return static_cast<const int64_t*>(*p++); };
  const auto lists = [&] { return static_cast<const T* const*>(*p++); };
  RolloutData<T> d;
  d.obs = numbers(), d.first = static_cast<const bool*>(*p++), d.mask = static_cast<const bool*>(*p++);
  d.mean = numbers(), d.std = numbers(), d.h = numbers(), d.last = numbers();
  d.body_sizes = sizes(), d.rnn_sizes = sizes(), d.head_sizes = sizes();
  d.body = lists(), d.rnn = lists(), d.head = lists(), d.noise = lists();
  d.action = static_cast<int64_t*>(*p++);
  d.log_prob = numbers(), d.h_after = numbers(), d.last_after = numbers();
  d.episodes = static_cast<void* const* const*>(*p++);
  d.world_sizes = sizes(), d.world_numbers = static_cast<const double*>(*p++);
  d.flat = numbers(), d.coasting = numbers(), d.returns = numbers(), d.after_obs = numbers(), d.reward = numbers();
  d.counts = numbers();
  return d;
}

}  // namespace coterie

// n: the numbers of `RolloutSizes` in their order, then the choices of each component. c: epsilon, clip.
// p: addresses in the order of `read_rollout`. The world has one role, whose agents move.
#define COTERIE_ROLLOUT(T, SUFFIX)                                                                                     \
  COTERIE_API void coterie_rollout_##SUFFIX(const int64_t* n, const double* c, void* const* p, int threads) {          \
    const coterie::RolloutSizes sizes{n[0], n[1], n[2], n[3], n[4],  n[5], n[6],                                       \
                                      n[7], n[8], n[9], n[10], n[11], n + 12};                                         \
    coterie::Rollout<T>(sizes, coterie::read_rollout<T>(p), T(c[0]), T(c[1]), threads).run();                          \
  }
COTERIE_ROLLOUT(float, f32)
COTERIE_ROLLOUT(double, f64)
