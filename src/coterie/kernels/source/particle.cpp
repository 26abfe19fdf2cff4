// One step of the particle worlds' physics: motion, distances of all measured pairs, damping and contact forces.
// Environments are in the last axis, along which all loops run.
#include "memory.hpp"

namespace coterie {

// Bodies: `movers` moving ones, then `resting` ones. Rows of the flat state [F, B]: positions of the movers (x, y),
// their velocities, messages, positions of the resting bodies, further parts.
template <class T>
struct Particles {
  int64_t envs, movers, resting, messages, rest, pairs, contacts;
  const int64_t *first, *second;  // bodies of each pair, contacts before the others
  bool velocity_first;            // positions move with the velocity before the step

  int64_t position_row(int64_t body, int64_t axis) const {
    return body < movers ? axis * movers + body : 4 * movers + messages + axis * resting + body - movers;
  }
};

template <class T>
struct ParticleConstants {
  T dt, kept, force_margin, inverse_margin, min_distance;
};

// log(1 + e^x) without overflow, by the series of the larger part.
template <class T>
inline T softplus(T x) {
  return x > T(20) ? x : std::log1p(std::exp(x));
}

// after [F, B]: the state with moved bodies and new messages. distance [pairs, B], penetration [contacts, B].
// coasting [2, movers, B]: velocity after damping and contact forces, before the next thrust.
template <class T>
void particle_step(const Particles<T>& w, const ParticleConstants<T>& k, const T* flat, const T* coasting,
                   const T* thrust, const T* messages, const T* scale, const T* max_speed, const T* damping,
                   const T* contact_distance, const T* inverse_mass, T* after, T* distance, T* penetration,
                   T* next_coasting, int threads) {
  const int64_t B = w.envs, M = w.movers;
#pragma omp parallel for num_threads(threads) if (threads > 1 && B > 1024) schedule(static)
  for (int64_t part = 0; part < ceil_div(B, 256); part++) {
    const int64_t from = part * 256, to = from + 256 < B ? from + 256 : B;
    for (int64_t i = 0; i < M; i++) {
      const int64_t x = i * B, y = (M + i) * B, vx = (2 * M + i) * B, vy = (3 * M + i) * B;
      for (int64_t b = from; b < to; b++) {
        const T factor = scale == nullptr ? T(1) : scale[x + b];
        T u = coasting[x + b] + thrust[x + b] * factor, v = coasting[y + b] + thrust[y + b] * factor;
        if (max_speed != nullptr) {
          const T ratio = max_speed[i] * factor / std::hypot(u, v), shrink = ratio > 1 ? T(1) : ratio;
          u *= shrink, v *= shrink;
        }
        after[x + b] = flat[x + b] + k.dt * (w.velocity_first ? flat[vx + b] : u);
        after[y + b] = flat[y + b] + k.dt * (w.velocity_first ? flat[vy + b] : v);
        after[vx + b] = u, after[vy + b] = v;
        const T kept = damping == nullptr ? k.kept : 1 - damping[b];
        next_coasting[x + b] = kept * u, next_coasting[y + b] = kept * v;
      }
    }
    for (int64_t r = 0; r < w.messages; r++)
      std::memcpy(after + (4 * M + r) * B + from, messages + r * B + from, size_t(to - from) * sizeof(T));
    for (int64_t r = 4 * M + w.messages; r < 4 * M + w.messages + w.rest; r++)
      std::memcpy(after + r * B + from, flat + r * B + from, size_t(to - from) * sizeof(T));
    for (int64_t p = 0; p < w.pairs; p++) {
      const int64_t a = w.first[p], c = w.second[p];
      const T *ax = after + w.position_row(a, 0) * B, *ay = after + w.position_row(a, 1) * B;
      const T *cx = after + w.position_row(c, 0) * B, *cy = after + w.position_row(c, 1) * B;
      for (int64_t b = from; b < to; b++) {
        const T dx = ax[b] - cx[b], dy = ay[b] - cy[b];
        distance[p * B + b] = std::sqrt(dx * dx + dy * dy);
      }
      if (p >= w.contacts) continue;
      for (int64_t b = from; b < to; b++) {
        const T d = distance[p * B + b], depth = contact_distance[p] - d;
        penetration[p * B + b] = depth;
        const T scaled = depth * k.inverse_margin;
        if (scaled < T(-100)) continue;  // softplus is 0 in single precision, and less than 1e-43 in double
        const T push = k.force_margin * softplus(scaled) / (d < k.min_distance ? k.min_distance : d);
        const T fx = (ax[b] - cx[b]) * push, fy = (ay[b] - cy[b]) * push;
        next_coasting[a * B + b] += fx * inverse_mass[a], next_coasting[(M + a) * B + b] += fy * inverse_mass[a];
        if (c >= M) continue;
        next_coasting[c * B + b] -= fx * inverse_mass[c], next_coasting[(M + c) * B + b] -= fy * inverse_mass[c];
      }
    }
  }
}

}  // namespace coterie

// n: environments, movers, resting bodies, rows of messages, rows after the messages, pairs, contacts, 1 if positions
// move with the velocity before the step; then the first and the second body of each pair.
// c: dt, fraction of velocity that is kept, dt x force x margin, 1 / margin, least distance.
#define COTERIE_PARTICLE(T, SUFFIX)                                                                                    \
  COTERIE_API void coterie_particle_step_##SUFFIX(                                                                     \
      const int64_t* n, const double* c, const T* flat, const T* coasting, const T* thrust, const T* messages,         \
      const T* scale, const T* max_speed, const T* damping, const T* contact_distance, const T* inverse_mass,          \
      T* after, T* distance, T* penetration, T* next_coasting, int threads) {                                          \
    const coterie::Particles<T> w{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n + 8, n + 8 + n[5], n[7] != 0};           \
    const coterie::ParticleConstants<T> k{T(c[0]), T(c[1]), T(c[2]), T(c[3]), T(c[4])};                                \
    coterie::particle_step<T>(w, k, flat, coasting, thrust, messages, scale, max_speed, damping, contact_distance,     \
                              inverse_mass, after, distance, penetration, next_coasting, threads);                     \
  }
COTERIE_PARTICLE(float, f32)
COTERIE_PARTICLE(double, f64)
