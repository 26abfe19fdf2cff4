// Calls every kernel on odd shapes with buffers of exactly the right size, for the address, undefined-behavior and thread
// sanitizers: `.ci/sanitize-kernels`. Results are checked in Python; here only that no access is out of bounds.
#include <cmath>
#include <cstdlib>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#define DECLARE(T, S)                                                                                                  \
  extern "C" {                                                                                                         \
  void coterie_mlp_forward_##S(const int64_t*, const T*, const T* const*, T*, T*, int);                                \
  void coterie_mlp_backward_##S(const int64_t*, const T*, const T* const*, const T*, T*, T*, T* const*, int);          \
  void coterie_gru_forward_##S(const int64_t*, const T*, const bool*, const T*, const T*, const T*, const T*,          \
                               const T*, const T*, T*, T*, T*, int);                                                   \
  void coterie_gru_backward_##S(const int64_t*, const T*, const bool*, const T*, const T*, const T*, const T*,         \
                                const T*, const T*, const T*, const T*, const T*, T* const*, int);                     \
  void coterie_lstm_forward_##S(const int64_t*, const T*, const bool*, const T*, const T*, const T*, const T*,         \
                                const T*, const T*, T*, T*, T*, int);                                                  \
  void coterie_lstm_backward_##S(const int64_t*, const T*, const bool*, const T*, const T*, const T*, const T*,        \
                                 const T*, const T*, const T*, const T*, const T*, T* const*, int);                    \
  void coterie_categorical_##S(const int64_t*, const T*, const bool*, const int64_t*, T*, T*, int64_t*, int);          \
  void coterie_categorical_backward_##S(const int64_t*, const T*, const bool*, const int64_t*, const T*, const T*, T*, \
                                        int64_t*, int);                                                                \
  void coterie_categorical_sample_##S(const int64_t*, const T*, const bool*, const T*, int64_t*, T*, int);             \
  void coterie_clipped_policy_loss_##S(const int64_t*, const double*, const T*, const T*, const T*, const bool*, T*,   \
                                       T*, int);                                                                       \
  void coterie_clipped_value_loss_##S(const int64_t*, const double*, const T*, const T*, const T*, const bool*, T*,    \
                                      T*, int);                                                                        \
  void coterie_adam_##S(const int64_t*, const double*, const double*, const float*, T*, T*, T*, T*, T*, int);          \
  void coterie_qmix_forward_##S(const int64_t*, const T*, const T*, const T* const*, T*, T*, int);                     \
  void coterie_qmix_backward_##S(const int64_t*, const T*, const T*, const T*, const T*, const T* const*, T* const*,   \
                                 int);                                                                                 \
  void coterie_particle_step_##S(const int64_t*, const double*, void* const*, int);                                    \
  void coterie_rollout_##S(const int64_t*, const double*, void* const*, int);                                          \
  void coterie_moments_##S(const int64_t*, const T*, const bool*, double* const*, int);                                \
  void coterie_sum_episodes_##S(const int64_t*, const T*, const T*, const bool*, const bool*, double* const*,          \
                                int64_t* const*, int);                                                                 \
  void coterie_attention_forward_##S(const int64_t*, const T*, const bool*, const int64_t*, const T* const*, T*, T*,   \
                                     int);                                                                             \
  void coterie_attention_backward_##S(const int64_t*, const T*, const bool*, const int64_t*, const T* const*, T*,      \
                                      const T*, T* const*, int);                                                       \
  void coterie_attend_forward_##S(const int64_t*, const double*, const T* const*, const bool*, T*, T*, int);           \
  void coterie_attend_backward_##S(const int64_t*, const double*, const T* const*, const bool*, const T*, const T*,    \
                                   T* const*, int);                                                                    \
  }
DECLARE(float, f32)
DECLARE(double, f64)
extern "C" {
void coterie_foraging_step_f32(const int64_t*, const double*, void* const*, int);
void coterie_steps_done_f32(const int64_t*, const bool*, const int64_t*, int64_t*, int);
void coterie_foraging_spawn_f32(const int64_t*, void* const*, int);
void coterie_skirmish_step_f32(const int64_t*, const float*, void* const*, int);
int64_t coterie_exchange_counter_bytes();
void coterie_exchange_start(const int64_t*, int64_t, const void*, int64_t);
int64_t coterie_exchange_wait(const int64_t*, int64_t, double);
int64_t coterie_exchange_count(const int64_t*, int64_t);
void coterie_exchange_read(const int64_t*, int64_t, int64_t, void*, int64_t);
void coterie_exchange_sum_i64(const int64_t*, int64_t, void*, int64_t);
}

namespace {

int64_t line(int64_t n, int64_t size) { return (n * size + 63) / 64 * 64 / size; }

// Heap memory of exactly n numbers, so that the sanitizer sees every access beyond them.
template <class T>
struct Block {
  std::unique_ptr<T[]> data;
  explicit Block(int64_t n, double scale = 1) : data(new T[size_t(n)]) {
    for (int64_t i = 0; i < n; i++) data[size_t(i)] = T(scale * std::sin(double(i) + 1));
  }
  operator T*() const { return data.get(); }
};

std::unique_ptr<bool[]> flags(int64_t n) {
  std::unique_ptr<bool[]> found(new bool[size_t(n)]);
  for (int64_t i = 0; i < n; i++) found[size_t(i)] = i % 3 != 1;
  return found;
}

template <class T>
struct Blocks {
  std::vector<Block<T>> blocks;
  std::vector<T*> pointers;
  void add(int64_t n) { blocks.emplace_back(n), pointers.push_back(blocks.back()); }
};

}  // namespace

#define CHECK(T, S)                                                                                                    \
  void check_mlp_##S(int64_t sets, int64_t rows, std::vector<int64_t> widths, int64_t activated, int64_t activation,   \
                     int64_t normed, int threads) {                                                                    \
    const int64_t layers = int64_t(widths.size()) - 1;                                                                 \
    std::vector<int64_t> n{sets, rows, layers, activated, activation, normed, rows * widths[0], widths[0]};            \
    n.insert(n.end(), widths.begin(), widths.end());                                                                   \
    Blocks<T> w, b, s, h, dw, db, ds, dh;                                                                              \
    int64_t columns = 0;                                                                                               \
    for (int64_t l = 0; l < layers; l++) {                                                                             \
      const int64_t in = widths[size_t(l)], out = widths[size_t(l) + 1];                                               \
      w.add(sets * in * out), dw.add(sets * in * out), b.add(sets * out), db.add(sets * out);                          \
      const int64_t padded = line(out, sizeof(T));                                                                     \
      if (l < activated) columns += padded > 256 ? padded + line(1, sizeof(T)) : padded;                               \
    }                                                                                                                  \
    for (int64_t l = 0; normed && l <= activated; l++)                                                                 \
      for (Blocks<T>* x : {&s, &h, &ds, &dh}) x->add(sets * widths[size_t(l)]);                                        \
    Block<T> x(sets * rows * widths[0]), dx(sets * rows * widths[0]), out(sets * rows * widths.back());                \
    Block<T> saved(sets * rows * columns);                                                                             \
    const auto in_order = [](std::vector<Blocks<T>*> parts) {                                                          \
      std::vector<T*> pointers;                                                                                        \
      for (const Blocks<T>* part : parts) pointers.insert(pointers.end(), part->pointers.begin(), part->pointers.end());\
      return pointers;                                                                                                 \
    };                                                                                                                 \
    const auto all = in_order({&w, &b, &s, &h}), inputs = in_order({&w, &s, &h}), found = in_order({&dw, &db, &ds, &dh});\
    for (T* keep : {static_cast<T*>(nullptr), static_cast<T*>(saved)})                                                 \
      coterie_mlp_forward_##S(n.data(), x, all.data(), out, keep, threads);                                            \
    for (T* grad : {static_cast<T*>(nullptr), static_cast<T*>(dx)})                                                    \
      coterie_mlp_backward_##S(n.data(), x, inputs.data(), out, saved, grad, found.data(), threads);                   \
  }                                                                                                                    \
  void check_recurrent_##S(bool lstm, int64_t t, int64_t g, int64_t m, int64_t d, int64_t h, int threads) {            \
    const std::vector<int64_t> n{t, g, m, d, h};                                                                       \
    const int64_t gates = lstm ? 4 : 3, units = line(h, sizeof(T)), kept = lstm ? 6 : 4;                               \
    Block<T> x(t * g * m * d), h0(g * m * h), c0(g * m * h), w(g * d * gates * h), u(g * h * gates * h);               \
    Block<T> b(g * gates * h), extra(g * h), out(t * g * m * h), c(g * m * h), saved(t * g * m * kept * units);        \
    Block<T> dx(t * g * m * d), dh(g * m * h), dc(g * m * h), dw(g * d * gates * h), du(g * h * gates * h);            \
    Block<T> db(g * gates * h), de(g * h), grad(t * g * m * h);                                                        \
    const auto first = flags(t * g * m);                                                                               \
    T* const grads[] = {dx, dh, dc, dw, du, db, de};                                                                   \
    if (lstm) {                                                                                                        \
      coterie_lstm_forward_##S(n.data(), x, first.get(), h0, c0, w, u, b, nullptr, out, c, saved, threads);            \
      coterie_lstm_backward_##S(n.data(), x, first.get(), h0, w, u, b, nullptr, out, saved, grad, c, grads, threads);  \
    } else {                                                                                                           \
      coterie_gru_forward_##S(n.data(), x, first.get(), h0, nullptr, w, u, b, extra, out, nullptr, saved, threads);    \
      coterie_gru_backward_##S(n.data(), x, first.get(), h0, w, u, b, extra, out, saved, grad, nullptr, grads,         \
                               threads);                                                                               \
    }                                                                                                                  \
  }                                                                                                                    \
  void check_attention_##S(int64_t samples, int64_t entities, int64_t contexts, int threads) {                         \
    const int64_t units = 16, heads = 2, members = 2, queries = contexts * members;                                    \
    const int64_t n[] = {samples, entities, units, heads, contexts, members};                                          \
    std::vector<int64_t> slots;                                                                                        \
    for (int64_t i = 0; i < queries; i++) slots.push_back((3 * i) % entities);                                         \
    Blocks<T> p, d;                                                                                                    \
    d.add(samples * entities * units);                                                                                 \
    for (Blocks<T>* x : {&p, &d}) x->add(units * 3 * units), x->add(3 * units), x->add(units * units), x->add(units);  \
    Block<T> x(samples * entities * units), out(samples * contexts * units), grad(samples * contexts * units);         \
    const int64_t line = 64 / sizeof(T), whole = (samples + line - 1) / line * line;                                   \
    Block<T> saved(whole * (entities * 3 * units + queries * (heads * members + units + 1)));                          \
    const auto some = flags(samples * entities);                                                                       \
    for (const bool* present : {static_cast<const bool*>(nullptr), static_cast<const bool*>(some.get())}) {            \
      for (T* keep : {static_cast<T*>(nullptr), static_cast<T*>(saved)})                                               \
        coterie_attention_forward_##S(n, x, present, slots.data(), p.pointers.data(), out, keep, threads);             \
      T* const of_x = d.pointers[0];                                                                                   \
      for (T* x_grad : {static_cast<T*>(nullptr), of_x}) {                                                             \
        d.pointers[0] = x_grad;                                                                                        \
        coterie_attention_backward_##S(n, x, present, slots.data(), p.pointers.data(), saved, grad, d.pointers.data(), \
                                       threads);                                                                       \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
  void check_attend_##S(int64_t samples, int64_t queries, int64_t members, int threads) {                              \
    const int64_t units = 32, heads = 2;                                                                               \
    const double scale = 0.25;                                                                                         \
    const int64_t n[] = {samples, queries, units, heads, members, queries * units, units, members * units, units,      \
                         queries * members, members, 1, queries * units, units, queries * units, units, members * units,\
                         units};                                                                                       \
    Blocks<T> p, d;                                                                                                    \
    for (Blocks<T>* x : {&p, &d})                                                                                      \
      x->add(samples * queries * units), x->add(samples * members * units), x->add(samples * members * units);         \
    Block<T> out(samples * queries * units), weights(samples * queries * heads * members);                             \
    const auto some = flags(samples * queries * members);                                                              \
    for (const bool* visible : {static_cast<const bool*>(nullptr), static_cast<const bool*>(some.get())}) {            \
      for (T* keep : {static_cast<T*>(nullptr), static_cast<T*>(weights)})                                             \
        coterie_attend_forward_##S(n, &scale, p.pointers.data(), visible, out, keep, threads);                         \
      coterie_attend_backward_##S(n, &scale, p.pointers.data(), visible, weights, out, d.pointers.data(), threads);    \
    }                                                                                                                  \
  }                                                                                                                    \
  void check_mixing_##S(int64_t rows, std::vector<int64_t> widths, int threads) {                                      \
    const int64_t agents = widths[0], inputs = widths[1], hidden = widths[2], units = widths[3];                       \
    const std::vector<int64_t> n{rows, agents, inputs, hidden, units};                                                 \
    Blocks<T> p, d;                                                                                                    \
    d.add(rows * agents), d.add(rows * inputs);                                                                        \
    for (Blocks<T>* x : {&p, &d}) {                                                                                    \
      x->add(inputs * 2 * hidden), x->add(2 * hidden), x->add(hidden * agents * units), x->add(agents * units);        \
      x->add(hidden * units), x->add(units), x->add(inputs * 2 * units), x->add(2 * units), x->add(units), x->add(1);  \
    }                                                                                                                  \
    const int64_t columns = 2 * line(hidden, sizeof(T)) + (agents + 3) * line(units, sizeof(T));                       \
    Block<T> q(rows * agents), state(rows * inputs), out(rows), saved(rows * columns);                                 \
    for (T* keep : {static_cast<T*>(nullptr), static_cast<T*>(saved)})                                                 \
      coterie_qmix_forward_##S(n.data(), q, state, p.pointers.data(), out, keep, threads);                             \
    for (T* state_grad : {static_cast<T*>(nullptr), d.pointers[1]}) {                                                  \
      d.pointers[1] = state_grad;                                                                                      \
      coterie_qmix_backward_##S(n.data(), out, q, state, saved, p.pointers.data(), d.pointers.data(), threads);        \
    }                                                                                                                  \
  }                                                                                                                    \
  void check_rest_##S(int64_t rows, int threads) {                                                                     \
    const std::vector<int64_t> n{rows, 6, 3, 6, 1, 3, 2};                                                              \
    Block<T> logits(rows * 6, 3), a(rows), b(rows), c(rows), d(rows * 6), out(3);                                      \
    std::unique_ptr<int64_t[]> action(new int64_t[size_t(rows * 3)]());                                                \
    const auto mask = flags(rows * 6);                                                                                 \
    for (const bool* given : {static_cast<const bool*>(nullptr), static_cast<const bool*>(mask.get())}) {              \
      for (int64_t wrong : {int64_t(0), int64_t(-1), int64_t(2), int64_t(1) << 62}) {                                  \
        int64_t forward = -1, backward = -1;                                                                           \
        if (rows > 0) action[size_t(rows * 3 - 1)] = wrong;                                                            \
        coterie_categorical_##S(n.data(), logits, given, action.get(), a, b, &forward, threads);                       \
        coterie_categorical_backward_##S(n.data(), logits, given, action.get(), a, b, d, &backward, threads);          \
        if (forward != (rows > 0 && wrong != 0) || backward != forward) std::exit(1);                                  \
      }                                                                                                                \
      coterie_categorical_sample_##S(n.data(), logits, given, d, action.get(), a, threads);                            \
      const double options[] = {0.2, 1.0};                                                                             \
      const int64_t one[] = {rows, 1};                                                                                 \
      coterie_clipped_policy_loss_##S(one, options, a, b, c, given, out, d, threads);                                  \
      coterie_clipped_value_loss_##S(one, options, a, b, c, given, out, d, threads);                                   \
    }                                                                                                                  \
    const int64_t size[] = {rows, 6};                                                                                  \
    Block<double> counts(2), means(12), deviations(12);                                                                \
    double* const moments[] = {counts, means, deviations, counts + 1, means + 6, deviations + 6};                      \
    coterie_moments_##S(size, logits, nullptr, moments, threads);                                                      \
    coterie_moments_##S(size, logits, mask.get(), moments, threads);                                                   \
    const double rate = 0.01;                                                                                          \
    const float step = 7;                                                                                              \
    Block<T> p(rows), g(rows), average(rows), square(rows, 0);                                                         \
    for (double rectify : {0.0, 1.0}) {                                                                                \
      const double adam[] = {0.9, 0.999, 1e-8, 0.1, 0.5, rectify};                                                     \
      coterie_adam_##S(n.data(), adam, &rate, &step, p, g, average, square, out, threads);                             \
    }                                                                                                                  \
  }                                                                                                                    \
  void check_particles_##S(int64_t envs, int kind, int threads) {                                                      \
    std::vector<int64_t> world{envs, 2, 1, 2, 1, 3, 3, 1, 0, 20, 2, 1, 1, kind == 1, 1, 2,                             \
                               0, 0, 1, 1, 2, 2, 1, 1, 5, 2, 0, -1, -1, 10, 0, -1, 0, 0, 1, 0, 0, 1};                  \
    world.insert(world.end(), 19, 3);                                                                                  \
    world.insert(world.end(), {0, 2, 9});                                                                              \
    const double physics[] = {0.1, 0.75, 0.01, 1000, 1e-9, 0.1};                                                       \
    Block<T> flat(13 * envs), v(4 * envs), returns(2 * envs), thrust(4 * envs), messages(2 * envs), table(14);         \
    Block<T> scale(2 * envs), speed(2), damping(envs), contact(1), mass(2), weight(3), bias(20), initial(13 * envs);   \
    Block<T> ratio(envs), cost(envs), after(13 * envs), next(4 * envs), total(2 * envs), distance(3 * envs);           \
    Block<T> depth(envs), obs(20 * envs), reward(2 * envs), counts(2 * envs);                                          \
    std::unique_ptr<int64_t[]> choice(new int64_t[size_t(envs)]());                                                    \
    const auto resetting = flags(envs), ended = flags(envs);                                                           \
    int64_t invalid = -1;                                                                                              \
    T *const none = nullptr, *const moves = kind == 2 ? thrust : none, *const said = kind == 2 ? messages : none;      \
    void* const data[] = {flat, v, returns, moves, said, table, kind == 2 ? scale : none, kind == 2 ? speed : none,    \
                          kind == 2 ? damping : none, contact, mass, weight, kind == 1 ? bias : none,                  \
                          kind == 1 ? resetting.get() : nullptr, initial, ratio, kind == 1 ? cost : none,              \
                          after, next, total, kind == 1 ? none : distance, kind == 1 ? none : depth, obs,              \
                          kind == 1 ? reward : none, counts, kind == 1 ? ended.get() : nullptr, &invalid,              \
                          choice.get(), choice.get()};                                                                 \
    coterie_particle_step_##S(world.data(), physics, data, threads);                                                   \
    if (invalid != 0) std::exit(1);                                                                                    \
  }                                                                                                                    \
  void check_episodes_##S(int64_t steps, int64_t envs, int threads) {                                                  \
    const int64_t n[] = {steps, envs, 3, 2}, columns = 6;                                                              \
    const auto acted = flags(steps * envs), ended = flags(steps * envs);                                               \
    int64_t count = 0;                                                                                                 \
    for (int64_t k = 0; k < steps * envs; k++) count += ended[size_t(k)];                                              \
    Block<T> reward(steps * envs * 3), group(steps * envs * 2);                                                        \
    Block<double> before(envs * columns), after(envs * columns), totals(count * columns);                              \
    Blocks<int64_t> index;                                                                                             \
    index.add(count), index.add(count);                                                                                \
    double* const sums[] = {before, after, totals};                                                                    \
    coterie_sum_episodes_##S(n, reward, group, acted.get(), ended.get(), sums, index.pointers.data(), threads);        \
    std::vector<int64_t> done(size_t((steps + 1) * envs)), first(size_t(envs), 3);                                     \
    coterie_steps_done_f32(n, acted.get(), first.data(), done.data(), threads);                                        \
  }                                                                                                                    \
  void check_rollout_##S(int64_t envs, int64_t steps, int64_t rule, bool noisy, int threads) {                         \
    const int64_t rows = 2 * envs, last = rule == 0 ? 5 : 0, inputs = 3 + last + 2, times = steps == 0 ? 1 : steps;    \
    std::vector<int64_t> n{times, envs, 2, 3, last, 2, inputs, 7, 4, 5, 1, rule, 5};                                   \
    if (steps == 0) n[10] = 2, n[12] = 2, n.push_back(3);                                                              \
    const std::vector<int64_t> body{1, rows, 1, 1, 0, 0, rows * inputs, inputs, inputs, 7}, rnn{1, 1, rows, 7, 4};     \
    const std::vector<int64_t> head{1, rows, 1, 0, 0, 0, rows * 4, 4, 4, 5};                                           \
    Blocks<T> of_body, of_rnn, of_head, noise;                                                                         \
    of_body.add(inputs * 7), of_body.add(7), of_head.add(20), of_head.add(5);                                          \
    of_rnn.add(84), of_rnn.add(48), of_rnn.add(12), of_rnn.add(4);                                                     \
    for (int64_t t = 0; t < times; t++) noise.add(rows * (rule == 0 ? 6 : 5));                                         \
    Block<T> obs(rows * 3), mean(3), std(3), h(rows * 4), before(rows * 5), log_prob(times * rows), h_after(rows * 4); \
    Block<T> after_last(rows * 5), flat(10 * envs), v(4 * envs), returns(2 * envs), table(10), contact(1), mass(2);    \
    Block<T> weight(6), ratio(envs), counts(times * 2 * envs), flats((times + 1) * 10 * envs), coasting(8 * envs);     \
    Block<T> sums(4 * envs), after_obs((times + 1) * rows * 3), reward(times * rows);                                  \
    const auto first = flags(rows), mask = flags(rows * 5);                                                            \
    std::unique_ptr<int64_t[]> action(new int64_t[size_t(times * rows * n[10])]());                                    \
    int64_t invalid = -1;                                                                                              \
    const std::vector<int64_t> world{envs, 2, 1, 0, 0, 2, 3, 1, 0, 6, 2, 1, 1, 0, 0, 1, 0, 0, 1, 1, 2, 2, 2,           \
                                     5, 0, -1, 0, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 8, 9};                     \
    const double physics[] = {0.1, 0.75, 0.01, 1000, 1e-9, 0.1}, numbers[] = {0.3, 10};                                \
    T* const none = nullptr;                                                                                           \
    void* const of_world[] = {flat, v, returns, none, none, table, none, none, none, contact, mass, weight, none, none,\
                              none, ratio, none, none, none, none, none, none, obs, none, none, none, &invalid, none}; \
    std::vector<void*> of_next(std::begin(of_world), std::end(of_world));                                              \
    std::vector<void* const*> episodes(size_t(times) + 1, of_world);                                                   \
    for (size_t t = 3; t < episodes.size(); t++) episodes[t] = of_next.data();                                         \
    const auto data = [](const std::vector<int64_t>& x) { return const_cast<int64_t*>(x.data()); };                    \
    void* const addresses[] = {obs, first.get(), steps == 0 ? mask.get() : nullptr, mean, std, h,                      \
                               rule == 0 ? before : none, data(body), data(rnn), data(head), of_body.pointers.data(),  \
                               of_rnn.pointers.data(), of_head.pointers.data(),                                        \
                               noisy ? noise.pointers.data() : nullptr, action.get(), rule == 1 ? log_prob : none,     \
                               h_after, rule == 0 ? after_last : none,                                                 \
                               steps == 0 ? nullptr : episodes.data(), data(world), const_cast<double*>(physics),      \
                               flats, coasting, sums, after_obs, reward, counts};                                      \
    coterie_rollout_##S(n.data(), numbers, addresses, threads);                                                        \
    if (steps > 0 && invalid != 0) std::exit(1);                                                                       \
  }                                                                                                                    \
  void check_##S() {                                                                                                   \
    for (int threads : {1, 2})                                                                                         \
      for (int64_t rows : {0, 1, 5, 48, 49, 700}) {                                                                    \
        check_rest_##S(rows, threads);                                                                                 \
        for (int64_t steps : {1, 9}) check_episodes_##S(steps, rows, threads);                                         \
        for (int kind : {0, 1, 2}) check_particles_##S(rows, kind, threads);                                           \
        for (int64_t steps : {0, 1, 3})                                                                                \
          for (bool noisy : {false, true})                                                                             \
            for (int64_t rule : {0, 1}) check_rollout_##S(rows, steps, rule, noisy, threads);                          \
        for (int64_t sets : {1, 2})                                                                                    \
          for (int64_t normed : {0, 1}) {                                                                              \
            check_mlp_##S(sets, rows, {3, 65, 17, 5}, 2, 0, normed, threads);                                          \
            check_mlp_##S(sets, rows, {1, 16}, 1, 1, normed, threads);                                                 \
            check_mlp_##S(sets, rows, {7, 1}, 0, 0, 0, threads);                                                       \
            if (!normed) check_mlp_##S(sets, rows, {3, 33, 17, 5}, 2, 2, 0, threads);                                  \
            if (rows < 100 && !normed) check_mlp_##S(sets, rows, {19, 300, 257, 5}, 2, 0, 0, threads);                 \
          }                                                                                                            \
        for (int64_t members : {1, 3, 30}) check_attend_##S(rows, 2, members, threads);                                \
        for (int64_t entities : {1, 5, 30}) check_attention_##S(rows, entities, 3, threads);                           \
        check_mixing_##S(rows, {3, 7, 17, 5}, threads);                                                                \
        check_mixing_##S(rows, {1, 1, 16, 1}, threads);                                                                \
        check_mixing_##S(rows, {2, 16, 1, 33}, threads);                                                               \
        for (bool lstm : {false, true}) {                                                                              \
          check_recurrent_##S(lstm, 6, 1, rows, 3, 5, threads);                                                        \
          check_recurrent_##S(lstm, 1, 2, rows, 1, 16, threads);                                                       \
        }                                                                                                              \
      }                                                                                                                \
  }
CHECK(float, f32)
CHECK(double, f64)

// A map of 2 against 3 units with shields, healers, beams and a wall, and a duel of 3 against 3 without them.
void check_skirmish(int64_t envs, bool scripted, int threads) {
  const int64_t n = scripted ? 2 : 3, m = 3, units = n + m, slots = 3, choices = 6 + slots, kinds = scripted ? 2 : 0;
  const int64_t points = scripted ? 2 : 1, rows = scripted ? 8 : 5, enemy_orders = scripted ? units + 1 : choices;
  const int64_t orders = n * choices + m * enemy_orders, views = scripted ? 1 : 2, extra = points - 1 + kinds;
  const int64_t columns = 4 + m * (5 + extra) + (n - 1) * (5 + extra) + 1 + extra;
  const int64_t state_columns = n * (4 + extra + choices) + m * (3 + extra);
  const std::vector<int64_t> sizes{envs, rows, n, units, choices, enemy_orders, slots, kinds, points, scripted,
                                   scripted, scripted, scripted, scripted, scripted, scripted, columns, state_columns,
                                   scripted ? 2 : 0, scripted, scripted ? 2 : 0, 0, 3, 2, 3, 4};
  std::vector<float> numbers{2, 4, 8, 32, 0.45f, 0.15f, 500, 1e-6f, 1e-4f, 1e-3f};
  numbers.resize(36, 1);
  Block<float> sheet(5 * orders), shift(2 * orders), per_unit(units), full(2 * units), pairs(units * units);
  Block<float> beam(2 * units * units), park(2 * units), unfit(m * n), types(kinds * units), per_ally(n);
  Block<float> battle(rows * units * envs, 20), initial(rows * units * envs), damage(envs), begun(envs);
  Block<float> after(rows * units * envs), reward(views * envs), obs(views * envs * n * columns);
  Block<float> state(views * envs * state_columns), metrics(4 * envs);
  std::vector<int64_t> target(static_cast<size_t>(orders)), slot(static_cast<size_t>(n * slots), 1);
  std::vector<int64_t> action(static_cast<size_t>(m * envs));
  for (size_t i = 0; i < target.size(); i++) target[i] = int64_t(i) % units;
  for (size_t i = 0; i < action.size(); i++) action[i] = int64_t(i) % choices;
  const auto armed = flags(units), fit = flags(n * slots), resetting = flags(envs), ended = flags(envs);
  const auto died = flags(units * envs), alive = flags(units * envs), mask = flags(views * envs * n * choices);
  for (const bool invalid : {false, true}) {
    int64_t found = -1;
    if (invalid && envs > 0) action.back() = choices;
    float* const none = nullptr;
    void* const data[] = {sheet, shift, per_unit, full, full, pairs, per_unit, per_unit, beam, park,
                          scripted ? unfit : none, unfit, types, per_ally, per_ally, armed.get(),
                          scripted ? fit.get() : nullptr, target.data(), slot.data(), battle, action.data(),
                          scripted ? nullptr : action.data(), scripted ? damage : none, scripted ? begun : none,
                          scripted ? resetting.get() : nullptr, initial, after, reward, obs, state, metrics,
                          ended.get(), died.get(), alive.get(), mask.get(), &found};
    coterie_skirmish_step_f32(sizes.data(), numbers.data(), data, threads);
    if (!scripted && found != (invalid && envs > 0)) std::exit(1);
  }
}

// Three ranks, in one thread, exchange as much as fits and less.
void check_exchange() {
  constexpr int64_t ranks = 3, most = 64;
  const int64_t capacity = most * int64_t(sizeof(int64_t));
  const int64_t bytes = ranks * coterie_exchange_counter_bytes() + 2 * ranks * capacity;
  std::unique_ptr<int64_t[]> memory(new int64_t[size_t(bytes) / sizeof(int64_t)]());
  for (int64_t number = 1; number <= 5; number++) {
    const int64_t count = number % 2 ? most : 1;
    std::vector<int64_t> own(size_t(count), number), total(static_cast<size_t>(count));
    for (int64_t rank = 0; rank < ranks; rank++) {
      const int64_t shared[] = {reinterpret_cast<int64_t>(memory.get()), rank, ranks, capacity};
      if (coterie_exchange_wait(shared, number, 0.0) != rank) std::exit(1);
      coterie_exchange_start(shared, number, own.data(), count * int64_t(sizeof(int64_t)));
      if (coterie_exchange_count(shared, rank) != number) std::exit(1);
    }
    const int64_t shared[] = {reinterpret_cast<int64_t>(memory.get()), 0, ranks, capacity};
    if (coterie_exchange_wait(shared, number, 1.0) != -1) std::exit(1);
    coterie_exchange_sum_i64(shared, number, total.data(), count);
    coterie_exchange_read(shared, number, ranks - 1, own.data(), count * int64_t(sizeof(int64_t)));
    if (total.back() != ranks * number || own.back() != number) std::exit(1);
  }
}

// Tensors of the state of a foraging world, in the order of the kernel.
struct ForagingState {
  Blocks<int64_t> tensors;
  ForagingState(int64_t envs, int64_t players, int64_t foods) {
    for (int64_t rows : {2 * players, players, 2 * foods, foods, int64_t(1)}) tensors.add(rows * envs);
  }
  void append_to(std::vector<void*>& pointers) const {
    pointers.insert(pointers.end(), tensors.pointers.begin(), tensors.pointers.end());
  }
};

// Draws initial states on fields of varying and of one size, and advances them by every action.
void check_foraging(int64_t envs, int64_t side, int64_t players, int64_t foods, bool grid, bool varying, int threads) {
  const ForagingState now(envs, players, foods), initial(envs, players, foods), after(envs, players, foods);
  std::vector<int64_t> sizes(static_cast<size_t>(envs)), sight(sizes), levels(sizes), items(sizes);
  Block<float> noise(2 * (players + foods) * envs), penalty(envs);
  const auto resetting = flags(envs), coop = flags(envs);
  for (int64_t b = 0; b < envs; b++) {
    const auto k = static_cast<size_t>(b);
    sizes[k] = b % 2 ? side : 3, sight[k] = 1 + b % side, levels[k] = 1 + b % 3, items[k] = b % (foods + 1);
  }
  for (int64_t k = 0; k < 2 * (players + foods) * envs; k++) noise[k] = std::abs(noise[k]) * 0.999f;
  int64_t invalid = -1;
  const int64_t rules[] = {envs, side, players, foods, side, foods, 1, 2, 1, varying ? 3 : 0, 0, varying, 1, 2};
  void* const parameters[] = {sizes.data(), items.data(), levels.data(), coop.get()};
  for (const ForagingState* state : {&now, &initial}) {
    std::vector<void*> addresses{noise};
    for (void* given : parameters) addresses.push_back(varying ? given : nullptr);
    state->append_to(addresses), addresses.push_back(&invalid);
    coterie_foraging_spawn_f32(rules, addresses.data(), threads);
    if (invalid != 0) std::exit(1);
  }
  const int64_t n[] = {envs, side, players, foods, 2, !varying, grid, varying, 6, 5, 0,
                       0, -1, 1, 0, 0, 0, 0, 0, 0, -1, 1, 0};
  const double numbers[] = {0.5};
  std::vector<int64_t> action(static_cast<size_t>(players * envs));
  Block<float> reward(players * envs), global(3 * (players + foods) * envs), metrics(2 * envs);
  Block<float> obs(players * envs * (grid ? 75 : 3 * foods + (varying ? 2 : 3) * players));
  const auto done = flags(envs), mask = flags(6 * players * envs);
  for (int64_t chosen = 0; chosen <= 6; chosen++) {
    for (size_t k = 0; k < action.size(); k++) action[k] = chosen == 6 ? 6 : (chosen + int64_t(k)) % 6;
    std::vector<void*> addresses;
    now.append_to(addresses);
    addresses.insert(addresses.end(), {action.data(), varying ? sizes.data() : nullptr, varying ? sight.data() : nullptr,
                                       varying ? penalty.data.get() : nullptr, varying ? resetting.get() : nullptr});
    initial.append_to(addresses), after.append_to(addresses);
    addresses.insert(addresses.end(), {reward, obs, varying ? global.data.get() : nullptr, metrics, done.get(),
                                       varying ? mask.get() : nullptr, &invalid});
    coterie_foraging_step_f32(n, numbers, addresses.data(), threads);
    if (invalid != (chosen == 6 && envs > 0)) std::exit(1);
  }
}

void check_foraging() {
  for (int threads : {1, 2})
    for (int64_t envs : {0, 1, 65, 1100})
      for (bool grid : {false, true})
        for (bool varying : {false, true}) {
          check_foraging(envs, 3, 2, 3, grid, varying, threads);
          check_foraging(envs, 8, 5, 4, grid, varying, threads);
          if (envs < 100) check_foraging(envs, 64, 1, 64, grid, varying, threads);
        }
}

int main() {
  check_exchange();
  check_foraging();
  for (const int threads : {1, 2})
    for (const int64_t envs : {0, 1, 5, 32, 49, 700})
      for (const bool scripted : {false, true}) check_skirmish(envs, scripted, threads);
  check_f32();
  check_f64();
  std::puts("no kernel accesses memory out of bounds or has undefined behavior");
}
