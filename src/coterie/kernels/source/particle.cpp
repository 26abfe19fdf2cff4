// One step of the particle worlds: actions, motion, new episodes, distances of all measured pairs, damping and contact
// forces, the reward for coverage, and observations. Environments are in the last axis, along which all loops run.
#include <initializer_list>
#include "memory.hpp"
#include "pool.hpp"

namespace coterie {

constexpr int64_t kEnvs = 128;    // environments whose numbers stay in the first-level cache
constexpr int64_t kTogether = 4;  // such parts that a thread takes at a time, which it fetches in advance

// Roles whose agents choose an action each. The tables hold for every choice the change of velocity (x, then y) and the
// entries of the message.
struct Roles {
  int64_t count;
  const int64_t *agents, *choices, *move, *speech;  // by role; offsets of the tables, -1 for none
  const int64_t *mover_role, *mover_agent;          // by moving body, -1 for no role
  const int64_t *speaker_role, *speaker_agent;
};

// Bodies: `movers` moving ones, then `resting` ones. Rows of the flat state [F, B]: positions of the movers (x, y),
// their velocities, messages, positions of the resting bodies, further parts.
struct Sizes {
  int64_t envs, movers, resting, symbols, speakers, rest, pairs, contacts, velocity_first;
  int64_t columns;                               // numbers that all agents of an environment observe
  int64_t agents, landmarks, cover, shared, ends;  // reward for coverage; `cover`: its first pair
  const int64_t *first, *second;                 // bodies of each pair, contacts before the others
  const int64_t *terms, *source;                 // first term of each column, and the row of each term
  Roles roles;

  int64_t rows() const { return 4 * movers + symbols * speakers + rest; }
  int64_t position_row(int64_t body, int64_t axis) const {
    return body < movers ? axis * movers + body : 4 * movers + symbols * speakers + axis * resting + body - movers;
  }
};

// Null where there is nothing of the kind.
template <class T>
struct Data {
  const T *flat, *coasting, *returns, *thrust, *messages, *table, *scale, *max_speed, *damping;
  const T *contact_distance, *inverse_mass, *weight, *bias;
  const bool* resetting;
  const T *initial, *local_ratio, *collision_weight;
  T *after, *next_coasting, *next_returns, *distance, *penetration, *obs, *reward, *counts;
  bool* terminated;
  int64_t* invalid;
  const int64_t* const* choices;  // by role [B, n]
};

template <class T>
struct Constants {
  T dt, kept, force_margin, inverse_margin, min_distance, covered;
};

// log(1 + e^x) without overflow, by the series of the larger part.
template <class T>
inline T softplus(T x) {
  return x > T(20) ? x : std::log1p(std::exp(x));
}

// The smaller number, or NaN if one is.
template <class T>
inline T least(T x, T y) {
  return x < y || x != x ? x : y;
}

// Advances some environments at a time in memory of its own, whose rows have kEnvs numbers: the state, the velocity
// after damping and contact, the distances, the number of contacts of each moving body, and working memory.
template <class T>
class Stepper {
 public:
  Stepper(const Sizes& w, const Constants<T>& k, const Data<T>& d)
      : w_(w), k_(k), d_(d), memory_((w.rows() + 3 * w.movers + w.pairs + kWorking) * kEnvs),
        block_(w.columns * kWidth<T>) {
    state_ = memory_, coasting_ = state_ + w.rows() * kEnvs, distance_ = coasting_ + 2 * w.movers * kEnvs;
    touching_ = distance_ + w.pairs * kEnvs, working_ = touching_ + w.movers * kEnvs;
    std::memset(memory_.get(), 0, size_t(working_ + kWorking * kEnvs - state_) * sizeof(T));
  }

  // Environments `from` to `from + count`, count <= kEnvs. Returns true if a choice is invalid.
  bool step(int64_t from, int64_t count) {
    from_ = from, count_ = count, lanes_ = padded<T>(count), invalid_ = false;
    prefetch();
    read(d_.flat, 0, w_.rows()), read(d_.coasting, w_.rows(), 2 * w_.movers);
    for (int64_t i = 0; i < w_.movers; i++) move(i);
    speak();
    if (d_.resetting != nullptr) start_episodes();
    for (int64_t i = 0; i < w_.movers; i++) coast(i);
    std::memset(touching_, 0, size_t(w_.movers * kEnvs) * sizeof(T));
    for (int64_t p = 0; p < w_.pairs; p++) measure(p);
    write(state_, w_.rows(), d_.after), write(coasting_, 2 * w_.movers, d_.next_coasting);
    if (d_.distance != nullptr) write(distance_, w_.pairs, d_.distance);
    if (d_.reward != nullptr) reward_coverage();
    if (d_.obs != nullptr) observe();
    return invalid_;
  }

 private:
  static constexpr int64_t kWorking = 7;

  // Fetches the results' memory, and the next environments' state, while these are computed.
  void prefetch() const {
    if (from_ + 2 * kEnvs > w_.envs) return;
    constexpr int64_t line = 64 / int64_t(sizeof(T));
    for (int64_t r = 0; r < w_.rows() + 2 * w_.movers; r++) {
      const bool moves = r >= w_.rows();
      const int64_t place = (moves ? r - w_.rows() : r) * w_.envs + from_;
      const T *from = (moves ? d_.coasting : d_.flat) + place + kEnvs;
      const T* to = (moves ? d_.next_coasting : d_.after) + place;
      for (int64_t b = 0; b < kEnvs; b += line) __builtin_prefetch(from + b), __builtin_prefetch(to + b, 1);
    }
  }

  void read(const T* from, int64_t row, int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
      std::memcpy(state_ + (row + r) * kEnvs, from + r * w_.envs + from_, size_t(count_) * sizeof(T));
  }

  void write(const T* from, int64_t rows, T* to) {
    for (int64_t r = 0; r < rows; r++)
      std::memcpy(to + r * w_.envs + from_, from + r * kEnvs, size_t(count_) * sizeof(T));
  }

  // The choice of an agent in the environment `b` of this part; 0 if it is invalid.
  int64_t choice(int64_t role, int64_t agent, int64_t b) {
    const int64_t found = d_.choices[role][(from_ + b) * w_.roles.agents[role] + agent];
    const bool valid = uint64_t(found) < uint64_t(w_.roles.choices[role]);
    invalid_ |= !valid;
    return valid ? found : 0;
  }

  // The change of velocity by the action of a moving body.
  void decode_move(int64_t mover, T* __restrict x, T* __restrict y) {
    const int64_t role = w_.roles.mover_role[mover], agent = w_.roles.mover_agent[mover];
    for (int64_t b = 0; b < count_; b++) {
      const int64_t chosen = role < 0 ? 0 : choice(role, agent, b);
      x[b] = role < 0 ? T(0) : d_.table[w_.roles.move[role] + chosen];
      y[b] = role < 0 ? T(0) : d_.table[w_.roles.move[role] + w_.roles.choices[role] + chosen];
    }
  }

  void move(int64_t i) {
    const int64_t M = w_.movers;
    T *__restrict u = working_, *__restrict v = working_ + kEnvs, *__restrict factor = working_ + 2 * kEnvs;
    if (d_.thrust == nullptr) {
      decode_move(i, u, v);
    } else {
      std::memcpy(u, d_.thrust + i * w_.envs + from_, size_t(count_) * sizeof(T));
      std::memcpy(v, d_.thrust + (M + i) * w_.envs + from_, size_t(count_) * sizeof(T));
    }
    for (int64_t b = 0; b < count_; b++) factor[b] = d_.scale == nullptr ? T(1) : d_.scale[i * w_.envs + from_ + b];
    const T *slow_x = coasting_ + i * kEnvs, *slow_y = coasting_ + (M + i) * kEnvs;
    for (int64_t b = 0; b < lanes_; b++) u[b] = slow_x[b] + u[b] * factor[b], v[b] = slow_y[b] + v[b] * factor[b];
    if (d_.max_speed != nullptr)
      for (int64_t b = 0; b < count_; b++) {
        const T ratio = d_.max_speed[i] * factor[b] / std::hypot(u[b], v[b]), shrink = ratio > 1 ? T(1) : ratio;
        u[b] *= shrink, v[b] *= shrink;
      }
    T *__restrict x = state_ + i * kEnvs, *__restrict y = state_ + (M + i) * kEnvs;
    T *__restrict vx = state_ + (2 * M + i) * kEnvs, *__restrict vy = state_ + (3 * M + i) * kEnvs;
    const T *by_x = w_.velocity_first ? vx : u, *by_y = w_.velocity_first ? vy : v;
    for (int64_t b = 0; b < lanes_; b++) x[b] += k_.dt * by_x[b], y[b] += k_.dt * by_y[b];
    for (int64_t b = 0; b < lanes_; b++) vx[b] = u[b], vy[b] = v[b];
  }

  // Velocity after damping.
  void coast(int64_t mover) {
    T* __restrict kept = working_;
    for (int64_t b = 0; b < count_; b++) kept[b] = d_.damping == nullptr ? k_.kept : 1 - d_.damping[from_ + b];
    for (int64_t row : {mover, w_.movers + mover}) {
      const T* velocity = state_ + (2 * w_.movers + row) * kEnvs;
      T* __restrict to = coasting_ + row * kEnvs;
      for (int64_t b = 0; b < lanes_; b++) to[b] = kept[b] * velocity[b];
    }
  }

  void speak() {
    for (int64_t symbol = 0; symbol < w_.symbols; symbol++)
      for (int64_t s = 0; s < w_.speakers; s++) {
        const int64_t message = symbol * w_.speakers + s;
        T* to = state_ + (4 * w_.movers + message) * kEnvs;
        if (d_.messages != nullptr) {
          std::memcpy(to, d_.messages + message * w_.envs + from_, size_t(count_) * sizeof(T));
          continue;
        }
        const int64_t role = w_.roles.speaker_role[s], agent = w_.roles.speaker_agent[s];
        const T* table = d_.table + w_.roles.speech[role] + symbol * w_.roles.choices[role];
        for (int64_t b = 0; b < count_; b++) to[b] = table[choice(role, agent, b)];
      }
  }

  void start_episodes() {
    for (int64_t b = 0; b < count_; b++)
      if (d_.resetting[from_ + b])
        for (int64_t r = 0; r < w_.rows(); r++) state_[r * kEnvs + b] = d_.initial[r * w_.envs + from_ + b];
  }

  void measure(int64_t p) {
    const int64_t a = w_.first[p], c = w_.second[p];
    const T *ax = state_ + w_.position_row(a, 0) * kEnvs, *ay = state_ + w_.position_row(a, 1) * kEnvs;
    const T *cx = state_ + w_.position_row(c, 0) * kEnvs, *cy = state_ + w_.position_row(c, 1) * kEnvs;
    T* __restrict distance = distance_ + p * kEnvs;
    for (int64_t b = 0; b < lanes_; b++) {
      const T dx = ax[b] - cx[b], dy = ay[b] - cy[b];
      distance[b] = std::sqrt(dx * dx + dy * dy);
    }
    if (p >= w_.contacts) return;
    T *__restrict depth = working_, *__restrict dx = working_ + kEnvs, *__restrict dy = working_ + 2 * kEnvs;
    const T reach = d_.contact_distance[p];
    T highest = -1;
    for (int64_t b = 0; b < lanes_; b++) {
      depth[b] = reach - distance[b], dx[b] = ax[b] - cx[b], dy[b] = ay[b] - cy[b];
      highest = depth[b] > highest ? depth[b] : highest;
    }
    T* __restrict touching_a = touching_ + a * kEnvs;
    for (int64_t b = 0; b < lanes_; b++) touching_a[b] += depth[b] > 0 ? T(1) : T(0);
    if (c < w_.movers) {
      T* __restrict touching_c = touching_ + c * kEnvs;
      for (int64_t b = 0; b < lanes_; b++) touching_c[b] += depth[b] > 0 ? T(1) : T(0);
    }
    if (d_.penetration != nullptr) write(depth, 1, d_.penetration + p * w_.envs);
    for (int64_t b = 0; b < count_; b++) {
      const T scaled = depth[b] * k_.inverse_margin;
      if (scaled < T(-100)) continue;  // softplus is 0 in single precision, and less than 1e-43 in double
      const T apart = distance[b] < k_.min_distance ? k_.min_distance : distance[b];
      push(a, c, b, k_.force_margin * softplus(scaled) / apart);
    }
  }

  // Pushes two bodies apart. Resting bodies do not move.
  void push(int64_t a, int64_t c, int64_t b, T amount) {
    const int64_t M = w_.movers;
    const T fx = working_[kEnvs + b] * amount, fy = working_[2 * kEnvs + b] * amount;
    coasting_[a * kEnvs + b] += fx * d_.inverse_mass[a], coasting_[(M + a) * kEnvs + b] += fy * d_.inverse_mass[a];
    if (c >= M) return;
    coasting_[c * kEnvs + b] -= fx * d_.inverse_mass[c], coasting_[(M + c) * kEnvs + b] -= fy * d_.inverse_mass[c];
  }

  // Negative mean of the sum over landmarks of the distance to the nearest agent, and of each agent's contacts.
  void reward_coverage() {
    const int64_t N = w_.agents, L = w_.landmarks;
    T *__restrict total = working_, *__restrict ratio = working_ + kEnvs, *__restrict weight = working_ + 2 * kEnvs;
    T *__restrict shared = working_ + 3 * kEnvs, *__restrict nearest = working_ + 4 * kEnvs;
    T *__restrict covered = working_ + 5 * kEnvs, *__restrict touching = working_ + 6 * kEnvs;
    for (int64_t b = 0; b < lanes_; b++) total[b] = shared[b] = covered[b] = touching[b] = 0, weight[b] = 1;
    std::memcpy(ratio, d_.local_ratio + from_, size_t(count_) * sizeof(T));
    if (d_.collision_weight != nullptr) std::memcpy(weight, d_.collision_weight + from_, size_t(count_) * sizeof(T));
    for (int64_t l = 0; l < L; l++) {
      const T* distance = distance_ + (w_.cover + l) * kEnvs;
      for (int64_t b = 0; b < lanes_; b++) nearest[b] = distance[b];
      for (int64_t i = 1; i < N; i++)
        for (int64_t b = 0; b < lanes_; b++) nearest[b] = least(distance[i * L * kEnvs + b], nearest[b]);
      for (int64_t b = 0; b < lanes_; b++) total[b] += nearest[b], covered[b] += nearest[b] < k_.covered ? T(1) : T(0);
    }
    for (int64_t i = 0; i < N; i++) {
      T* __restrict own = touching_ + i * kEnvs;  // becomes the reward
      for (int64_t b = 0; b < lanes_; b++) {
        const T collisions = (own[b] + T(w_.shared)) * weight[b], gap = collisions - total[b];
        shared[b] -= collisions + total[b], touching[b] += own[b] * T(0.5);  // each pair counts for both
        own[b] = -(ratio[b] < T(0.5) ? total[b] + ratio[b] * gap : collisions - gap * (1 - ratio[b]));
      }
    }
    if (d_.terminated != nullptr)
      for (int64_t b = 0; b < count_; b++) d_.terminated[from_ + b] = covered[b] == T(L);
    write(covered, 1, d_.counts), write(touching, 1, d_.counts + w_.envs);
    for (int64_t i = 0; i < N; i++) pay(i, w_.shared ? shared : touching_ + i * kEnvs);
  }

  // Writes the reward of an agent, and its sum over the episode.
  void pay(int64_t agent, const T* amount) {
    const T* before = d_.returns + agent * w_.envs + from_;
    T *after = d_.next_returns + agent * w_.envs + from_, *reward = d_.reward + from_ * w_.agents + agent;
    for (int64_t b = 0; b < count_; b++) {
      const bool starts = d_.resetting != nullptr && d_.resetting[from_ + b];
      reward[b * w_.agents] = starts ? T(0) : amount[b];
      after[b] = starts ? T(0) : before[b] + amount[b];
    }
  }

  // obs [B, columns] = bias + the sum of the column's terms.
  void observe() {
    constexpr int64_t W = kWidth<T>;
    for (int64_t b = 0; b < count_; b += W) {
      for (int64_t j = 0; j < w_.columns; j++) {
        Vec<T> total = fill<T>(d_.bias == nullptr ? T(0) : d_.bias[j]);
        for (int64_t t = w_.terms[j]; t < w_.terms[j + 1]; t++)
          total += fill<T>(d_.weight[t]) * load<T>(state_ + w_.source[t] * kEnvs + b);
        store<T>(block_ + j * W, total);
      }
      const int64_t rows = count_ - b < W ? count_ - b : W;
      write_transposed<T>(block_, W, w_.columns, rows, d_.obs + (from_ + b) * w_.columns, w_.columns);
    }
  }

  const Sizes& w_;
  const Constants<T>& k_;
  const Data<T>& d_;
  Buffer<T> memory_, block_;
  T *state_, *coasting_, *distance_, *touching_, *working_;
  int64_t from_ = 0, count_ = 0, lanes_ = 0;
  bool invalid_ = false;
};

template <class T>
void particle_step(const Sizes& w, const Constants<T>& k, const Data<T>& d, int threads) {
  std::atomic<bool> invalid{false};
  const auto make_stepper = [&] { return Stepper<T>(w, k, d); };
  const Tasks parts{ceil_div(w.envs, kEnvs), w.envs > 1024 ? threads : 1, kTogether};
  parallel_for(parts, make_stepper, [&](int64_t part, Stepper<T>& stepper) {
    const int64_t from = part * kEnvs, left = w.envs - from;
    if (stepper.step(from, left < kEnvs ? left : kEnvs)) invalid = true;
  });
  *d.invalid = invalid;
}

// Takes arrays one after another.
struct Reader {
  const int64_t* at;
  const int64_t* take(int64_t count) {
    const int64_t* found = at;
    at += count;
    return found;
  }
};

inline Sizes read_sizes(const int64_t* n) {
  Sizes w{};
  for (int64_t* number : {&w.envs, &w.movers, &w.resting, &w.symbols, &w.speakers, &w.rest, &w.pairs, &w.contacts,
                          &w.velocity_first, &w.columns, &w.agents, &w.landmarks, &w.cover, &w.shared, &w.ends})
    *number = *n++;
  w.roles.count = *n++;
  Reader reader{n};
  w.first = reader.take(w.pairs), w.second = reader.take(w.pairs);
  for (const int64_t** field : {&w.roles.agents, &w.roles.choices, &w.roles.move, &w.roles.speech})
    *field = reader.take(w.roles.count);
  w.roles.mover_role = reader.take(w.movers), w.roles.mover_agent = reader.take(w.movers);
  w.roles.speaker_role = reader.take(w.speakers), w.roles.speaker_agent = reader.take(w.speakers);
  w.terms = reader.take(w.columns + 1), w.source = reader.at;
  return w;
}

template <class T>
Data<T> read_data(void* const* p) {
  Data<T> d;
  for (const T** field : {&d.flat, &d.coasting, &d.returns, &d.thrust, &d.messages, &d.table, &d.scale, &d.max_speed,
                          &d.damping, &d.contact_distance, &d.inverse_mass, &d.weight, &d.bias})
    *field = static_cast<const T*>(*p++);
  d.resetting = static_cast<const bool*>(*p++);
  for (const T** field : {&d.initial, &d.local_ratio, &d.collision_weight}) *field = static_cast<const T*>(*p++);
  for (T** field : {&d.after, &d.next_coasting, &d.next_returns, &d.distance, &d.penetration, &d.obs, &d.reward,
                    &d.counts})
    *field = static_cast<T*>(*p++);
  d.terminated = static_cast<bool*>(*p++);
  d.invalid = static_cast<int64_t*>(*p++);
  d.choices = reinterpret_cast<const int64_t* const*>(p);
  return d;
}

}  // namespace coterie

// n: the numbers of `Sizes` in their order, number of roles; then the arrays in the order of `read_sizes`.
// c: dt, fraction of velocity that is kept, dt x force x margin, 1 / margin, least distance, distance of coverage.
// p: addresses in the order of `read_data`, then the choices of each role.
#define COTERIE_PARTICLE(T, SUFFIX)                                                                                    \
  COTERIE_API void coterie_particle_step_##SUFFIX(const int64_t* n, const double* c, void* const* p, int threads) {    \
    const coterie::Constants<T> k{T(c[0]), T(c[1]), T(c[2]), T(c[3]), T(c[4]), T(c[5])};                               \
    coterie::particle_step<T>(coterie::read_sizes(n), k, coterie::read_data<T>(p), threads);                           \
  }
COTERIE_PARTICLE(float, f32)
COTERIE_PARTICLE(double, f64)
