// Sums of rewards and numbers of steps of the episodes in a rollout, whose timesteps are [T, B].
#include "memory.hpp"

namespace coterie {

struct EpisodeSizes {
  int64_t steps, envs, agents, groups;
  int64_t columns() const { return agents + groups + 1; }  // rewards of agents and groups, and the number of steps
};

// Of each environment [B, columns]: sums over its unfinished episode, before and after the rollout. Of the episodes that
// end [E], by environment and time: sums, environment and step.
struct EpisodeSums {
  const double* before;
  double *after, *totals;
  int64_t *env, *step;
};

// Sums go on over all of the rollout; those up to the last end in the same environment are subtracted at an end.
template <class T>
void sum_episodes(const EpisodeSizes& n, const T* reward, const T* group_reward, const bool* acted, const bool* ended,
                  const EpisodeSums& s) {
  const int64_t K = n.columns(), B = n.envs;
  Buffer<double> subtracted(B * K);
  Buffer<int64_t> place(B + 1);  // of the next end of each environment
  std::memset(subtracted, 0, size_t(B * K) * sizeof(double));
  std::memset(place, 0, size_t(B + 1) * sizeof(int64_t));
  for (int64_t t = 0; t < n.steps; t++)
    for (int64_t b = 0; b < B; b++) place[b + 1] += ended[t * B + b];
  for (int64_t b = 0; b < B; b++) place[b + 1] += place[b];
  std::memcpy(s.after, s.before, size_t(B * K) * sizeof(double));
  for (int64_t t = 0; t < n.steps; t++)
    for (int64_t b = 0; b < B; b++) {
      double* sum = s.after + b * K;
      const int64_t row = t * B + b;
      for (int64_t i = 0; i < n.agents; i++) sum[i] += double(reward[row * n.agents + i]);
      for (int64_t g = 0; g < n.groups; g++) sum[n.agents + g] += double(group_reward[row * n.groups + g]);
      sum[K - 1] += double(acted[row]);
      if (!ended[row]) continue;
      const int64_t e = place[b]++;
      s.env[e] = b, s.step[e] = t;
      for (int64_t k = 0; k < K; k++) s.totals[e * K + k] = sum[k] - subtracted[b * K + k];
      std::memcpy(subtracted + b * K, sum, size_t(K) * sizeof(double));
    }
  for (int64_t k = 0; k < B * K; k++) s.after[k] -= subtracted[k];
}

}  // namespace coterie

// n: the numbers of `EpisodeSizes` in their order. p: sums before and after, totals; index: environment and step.
#define COTERIE_EPISODES(T, SUFFIX)                                                                                    \
  COTERIE_API void coterie_sum_episodes_##SUFFIX(const int64_t* n, const T* reward, const T* group_reward,             \
                                                 const bool* acted, const bool* ended, double* const* p,               \
                                                 int64_t* const* index, int) {                                         \
    coterie::sum_episodes<T>({n[0], n[1], n[2], n[3]}, reward, group_reward, acted, ended,                             \
                             {p[0], p[1], p[2], index[0], index[1]});                                                  \
  }
COTERIE_EPISODES(float, f32)
COTERIE_EPISODES(double, f64)

// The number of steps of its episode before each timestep [T + 1, B]. n: T, B; acted: [T, B]; before: of the first one.
COTERIE_API void coterie_steps_done_f32(const int64_t* n, const bool* acted, const int64_t* before, int64_t* done, int) {
  const int64_t B = n[1];
  for (int64_t b = 0; b < B; b++) done[b] = before[b];
  for (int64_t k = 0; k < n[0] * B; k++) done[B + k] = acted[k] ? done[k] + 1 : 0;
}
