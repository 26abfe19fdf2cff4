// One step of the skirmish worlds: orders, the fight, the outcome, new episodes, observations, masks and states.
// Environments are in the last axis, along which all loops run.
//
// The functions are those of coterie/envs/worlds/skirmish: combat.py, battle.py (and duel.py) and observations.py.
// Results have the bits of PyTorch's operators there: a sum has the same order, and a product is rounded before it is
// added except where PyTorch fuses both (`addcmul`, and `add` with alpha).
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <algorithm>
#include "memory.hpp"
#include "pool.hpp"

namespace coterie {
namespace {

constexpr int64_t kLanes = 32;             // environments that are advanced together
constexpr int64_t kMinParallel = 1 << 14;  // pairs of units that are worth several threads
constexpr int64_t kMoves = 4;              // actions that move, after the first two
constexpr int64_t kFirstTarget = 2 + kMoves;

// PyTorch adds the rows of kColumns environments at a time one after the other, or of kFewColumns if there are fewer than
// kNarrow environments. Every kFlush rows it begins another partial sum. The rest has an order of its own.
constexpr int64_t kColumns = 32, kFewColumns = 4, kNarrow = 8, kFlush = 16;

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
constexpr bool kFuses = true;
#else
constexpr bool kFuses = false;
#endif

constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum Sheet { kPace, kReach, kHeal, kWound, kHit };

// `Sizes` of skirmish.py, which explains them, with the number of environments before and those of the lists after them.
struct Sizes {
  int64_t envs, rows, allies, size, choices, enemy_orders, slots, kinds, points, heals, ally_shields, enemy_shields,
      scripted, weakest, walled, shaped, columns, state_columns, num_beams, num_healers, num_teammates;

  int64_t enemies() const { return size - allies; }
  int64_t cooldown_row() const { return 2 + points; }
  int64_t order_row() const { return 3 + points; }
  int64_t calm_row() const { return 4 + points; }
  int64_t energy_row() const { return rows - 1; }
  int64_t order_entry(int64_t unit) const {
    return unit < allies ? unit * choices : allies * choices + (unit - allies) * enemy_orders;
  }
  int64_t entries() const { return order_entry(size); }
};

// `Numbers` of skirmish.py.
struct Numbers {
  float substeps, ticks, step, size, push, beam_depth, away, near, same, close;  // combat.py
  float health_for_energy, energy_growth, energy, shield_delay, shield_growth;   // units.py
  float wall_x, wall_gap, wall_margin, wall_low, wall_high;                      // `Wall`
  float sight, sight2, inverse_sight, aim, margin;                               // observations.py
  float first, whole, nobody, home_x, home_y;                                    // `Enemy`
  float kill, win, best, total, all_kills, scale;                                // the reward
};

// Null where there is nothing of the kind.
struct Data {
  // SkirmishTables
  const float *sheet, *shift, *period, *full, *inverse_full, *contact, *radius, *beam_width, *beam, *park, *unfit,
      *reach2, *types, *per_period, *per_energy;
  const bool *armed, *fit;
  const int64_t *target, *slot;
  // BattleInputs
  const float* units;
  const int64_t *choices, *enemy_choices;
  const float *enemy_damage, *begun;
  const bool* resetting;
  const float* initial;
  // BattleOutputs
  float *after, *reward, *obs, *state, *metrics;
  bool *ended, *died, *alive, *mask;
  int64_t* invalid;
};

using Row = float*;
using ConstRow = const float*;

// x * y + z as in PyTorch's kernels, which fuse if the processor can.
inline float fused(float x, float y, float z) { return kFuses ? std::fma(x, y, z) : x * y + z; }

// The smaller and the larger number, or x if it is NaN, by one instruction each.
inline float least(float x, float y) { return y < x ? y : x; }
inline float greatest(float x, float y) { return y > x ? y : x; }
inline float sign(float x) { return float(x > 0) - float(x < 0); }

// A number as the sum of two.
struct Pair {
  float high, low;
};

inline Pair add(Pair x, Pair y) {
  const float s = x.high + y.high, v = s - x.high;
  return {s, (x.high - (s - v)) + (y.high - v) + (x.low + y.low)};
}

inline Pair multiply(Pair x, Pair y) {
  const float s = x.high * y.high;
  return {s, std::fma(x.high, y.low, std::fma(x.low, y.high, std::fma(x.high, y.high, -s)))};
}

// Length of a finite vector, as `torch.hypot` computes it for several numbers at once: Sleef's hypotf with 0.5 ULP.
// The C library's differs in about one of 20 million results.
inline float hypot(float x, float y) {
  if (!kFuses) return float(std::sqrt(double(x) * x + double(y) * y));
  x = std::fabs(x), y = std::fabs(y);
  const float low = least(x, y), high = greatest(x, y);
  const float inverse = 1 / high, s = low * inverse;
  const Pair ratio{s, std::fma(s, std::fma(-high, inverse, 1.0f), std::fma(inverse, low, -s))};
  const float square = ratio.high * ratio.high;
  const Pair squared{square, std::fma(ratio.high + ratio.high, ratio.low, std::fma(ratio.high, ratio.high, -square))};
  const float sum = squared.high + 1, v = sum - squared.high;
  const Pair total{sum, (squared.high - (sum - v)) + (1 - v) + squared.low};
  const float root = std::sqrt(total.high + total.low), root2 = root * root, per_root = 1 / root;
  const Pair twice = multiply(add(total, {root2, std::fma(root, root, -root2)}),
                              {per_root, per_root * std::fma(-root, per_root, 1.0f)});
  const float exact = twice.high * 0.5f, found = exact * high;
  const float length = found + std::fma(twice.low * 0.5f, high, std::fma(exact, high, -found));
  return low == 0 ? high : length;
}

// Advances kLanes environments at a time in memory of its own, whose rows have kLanes numbers. Lanes beyond the last
// environment are computed from zeros or former environments, and ignored.
class Battle {
 public:
  Battle(const Sizes& w, const int64_t* lists, const Numbers& k, const Data& d)
      : w_(w), k_(k), d_(d), beams_(lists), healers_(beams_ + w.num_beams), teammates_(healers_ + w.num_healers),
        memory_((3 * w.rows * w.size + (kSheet + 15) * w.size + w.slots + kWorking) * kLanes),
        block_(std::max(w.columns, w.state_columns) * kLanes), targets_(w.size * kLanes), touches_(w.size) {
    Row at = memory_;
    const auto take = [&](int64_t rows) {
      const Row found = at;
      at += rows * kLanes;
      return found;
    };
    const int64_t F = w.rows, U = w.size;
    before_ = take(F * U), after_ = take(F * U), view_ = take(F * U);
    sheet_ = take(kSheet * U), point_ = take(2 * U), offset_ = take(2 * U), distance_ = take(U), gap_ = take(U);
    fires_ = take(U), taken_ = take(2 * U), walked_ = take(2 * U), hit_ = take(U), given_ = take(U), healed_ = take(U);
    overlap_ = take(U), available_ = take(w.slots), working_ = take(kWorking);
    std::memset(memory_.get(), 0, size_t(at - memory_.get()) * sizeof(float));
    std::memset(targets_.get(), 0, size_t(U * kLanes) * sizeof(int32_t));
  }

  // Environments `from` to `from + count`, count <= kLanes. Returns true if a choice is invalid.
  bool step(int64_t from, int64_t count) {
    from_ = from, count_ = count, invalid_ = false;
    const int64_t together = w_.envs < kNarrow ? kFewColumns : kColumns;
    in_columns_ = std::min(std::max(w_.envs - w_.envs % together - from, int64_t(0)), kLanes);
    for (int64_t r = 0; r < w_.rows * w_.size; r++)
      std::memcpy(before_ + r * kLanes, d_.units + r * w_.envs + from, size_t(count) * sizeof(float));
    std::memcpy(after_, before_, size_t(w_.rows * w_.size * kLanes) * sizeof(float));
    order();
    fight();
    outcome();
    if (d_.resetting != nullptr) start_episodes();
    for (int64_t r = 0; r < w_.rows * w_.size; r++)
      std::memcpy(d_.after + r * w_.envs + from, after_ + r * kLanes, size_t(count) * sizeof(float));
    observe(after_, 0);
    if (!w_.scripted) {
      mirror();
      observe(view_, w_.envs);
    }
    return invalid_;
  }

 private:
  static constexpr int64_t kSheet = 5, kWorking = 16;

  static Row row(Row memory, int64_t k) { return memory + k * kLanes; }
  static ConstRow row(ConstRow memory, int64_t k) { return memory + k * kLanes; }
  Row x(int64_t i) const { return row(after_, i); }
  Row y(int64_t i) const { return row(after_, w_.size + i); }
  Row feature(int64_t r, int64_t i) const { return row(after_, r * w_.size + i); }
  Row health(int64_t i) const { return feature(2, i); }
  Row sheet(Sheet r, int64_t i) const { return row(sheet_, r * w_.size + i); }
  Row working(int64_t k) const { return row(working_, k); }

  template <class Body>
  static void each_lane(Body&& body) {
#pragma GCC ivdep
    for (int64_t b = 0; b < kLanes; b++) body(b);
  }

  template <class Body>
  static bool any_lane(Body&& body) {
    int32_t found = 0;
    for (int64_t b = 0; b < kLanes; b++) found |= int32_t(body(b));
    return found != 0;
  }

  // Adds rows 0 .. count - 1 in the order of PyTorch's sum over an axis before the last. `add(k, to)` adds row k.
  template <class Add>
  void sum_rows(int64_t count, Row to, Add&& add) {
    if (in_columns_ > 0) sum_all(0, 1, count, to, add);
    if (in_columns_ >= count_) return;
    // The other lanes: four partial sums over every fourth row.
    const Row partial = working(0), total = working(4);
    for (int64_t part = 0; part < 4; part++) sum_all(part, 4, count / 4, row(partial, part), add);
    for (int64_t k = count / 4 * 4; k < count; k++) add(k, partial);
    each_lane([&](int64_t b) {
      total[b] = ((partial[b] + partial[kLanes + b]) + partial[2 * kLanes + b]) + partial[3 * kLanes + b];
    });
    for (int64_t b = in_columns_; b < kLanes; b++) to[b] = total[b];
  }

  // Rows first, first + stride, .., `count` of them: partial sums of kFlush rows each, which are added to `to`.
  template <class Add>
  void sum_all(int64_t first, int64_t stride, int64_t count, Row to, Add&& add) {
    const Row part = working(5), whole = working(6);
    std::memset(part, 0, 2 * kLanes * sizeof(float));
    for (int64_t k = 0; k < count; k++) {
      add(first + k * stride, part);
      if ((k + 1) % kFlush != 0) continue;
      each_lane([&](int64_t b) { whole[b] += part[b], part[b] = 0; });
    }
    each_lane([&](int64_t b) { to[b] = part[b] + whole[b]; });
  }

  // ------------------------------------------------------------------------------------------------- orders

  // `Skirmish._orders` and `Duel._orders`: the actions of allies, and those of the other side or its own targets.
  void order() {
    const int64_t n = w_.allies;
    for (int64_t i = 0; i < n; i++) obey(i, d_.choices + from_ * n + i, n);
    for (int64_t i = n; i < w_.size; i++) {
      if (w_.scripted)
        choose(i);
      else
        obey(i, d_.enemy_choices + from_ * w_.enemies() + i - n, w_.enemies());
    }
  }

  // Orders of a unit by its actions.
  void obey(int64_t i, const int64_t* action, int64_t stride) {
    alignas(64) int32_t entry[kLanes] = {};
    const Row code = feature(w_.order_row(), i), shift_x = working(0), shift_y = working(1);
    const ConstRow alive = health(i);
    for (int64_t b = 0; b < count_; b++) {
      const int64_t chosen = action[b * stride];
      const bool valid = uint64_t(chosen) < uint64_t(w_.choices);
      invalid_ |= !valid;
      entry[b] = valid ? int32_t(chosen) : 0;
    }
    for (int64_t b = 0; b < kLanes; b++) code[b] = alive[b] > 0 ? float(entry[b]) : 0.0f;  // dead units have no orders
    look_up(i, entry);
    const ConstRow dx = d_.shift + w_.order_entry(i), dy = dx + w_.entries();
    for (int64_t b = 0; b < kLanes; b++) shift_x[b] = dx[entry[b]], shift_y[b] = dy[entry[b]];
    const Row to_x = row(point_, i), to_y = row(point_, w_.size + i);
    const ConstRow own_x = x(i), own_y = y(i);
    each_lane([&](int64_t b) { to_x[b] = shift_x[b] + own_x[b], to_y[b] = shift_y[b] + own_y[b]; });
  }

  // The sheet and the target of a unit's order in each environment.
  void look_up(int64_t i, const int32_t* entry) {
    for (int64_t r = 0; r < kSheet; r++) {
      const ConstRow table = d_.sheet + r * w_.entries() + w_.order_entry(i);
      const Row to = sheet(Sheet(r), i);
      each_lane([&](int64_t b) { to[b] = table[entry[b]]; });
    }
    const int64_t* target = d_.target + w_.order_entry(i);
    int32_t* to = targets_ + i * kLanes;
    each_lane([&](int64_t b) { to[b] = int32_t(target[entry[b]] * kLanes + b); });
  }

  // `Enemy.choose` and `Enemy.detour`: the target of an enemy, and its orders.
  void choose(int64_t i) {
    alignas(64) int32_t chosen[kLanes];
    if (std::find(healers_, teammates_, i) != teammates_)
      choose_teammate(i, chosen);
    else
      choose_ally(i, chosen);
    const Row to_x = row(point_, i), to_y = row(point_, w_.size + i), code = feature(w_.order_row(), i);
    each_lane([&](int64_t b) { to_x[b] = k_.home_x, to_y[b] = k_.home_y; });
    if (w_.walled) detour(i, chosen);
    each_lane([&](int64_t b) { code[b] = float(chosen[b]); });
    look_up(i, chosen);
    const Row wound = sheet(kWound, i), hit = sheet(kHit, i);
    ConstRow damage = d_.enemy_damage + from_;
    for (int64_t b = 0; b < count_; b++) wound[b] *= damage[b], hit[b] *= damage[b];
  }

  void choose_ally(int64_t i, int32_t* __restrict chosen) {
    const int64_t e = i - w_.allies;
    const int32_t nobody = int32_t(w_.size);
    const ConstRow own_x = x(i), own_y = y(i);
    const Row nearest = working(0);
    each_lane([&](int64_t b) { nearest[b] = kInfinity, chosen[b] = nobody; });
    for (int64_t j = 0; j < w_.allies; j++) {
      const ConstRow to_x = x(j), to_y = y(j), left = health(j), shield = feature(1 + w_.points, j);
      const float unfit = d_.unfit == nullptr ? 0.0f : d_.unfit[e * w_.allies + j], reach2 = d_.reach2[e * w_.allies + j];
      const bool two = w_.points > 1, weakest = w_.weakest;
      each_lane([&](int64_t b) {
        const float dx = own_x[b] - to_x[b], dy = own_y[b] - to_y[b];
        const float square = dx * dx + dy * dy + unfit;
        const float points = (two ? left[b] + shield[b] : left[b]) - k_.first;
        const float rank = weakest && square <= reach2 ? points : square;
        const bool nearer = rank < nearest[b];
        nearest[b] = nearer ? rank : nearest[b];
        chosen[b] = nearer ? int32_t(j) : chosen[b];
      });
    }
    each_lane([&](int64_t b) { chosen[b] = nearest[b] >= k_.sight2 ? nobody : chosen[b]; });
  }

  // `Enemy._with_healer_targets`.
  void choose_teammate(int64_t i, int32_t* __restrict chosen) {
    const int32_t nobody = int32_t(w_.size);
    const ConstRow own_x = x(i), own_y = y(i);
    const Row nearest = working(0);
    each_lane([&](int64_t b) { nearest[b] = kInfinity, chosen[b] = nobody; });
    for (int64_t t = 0; t < w_.num_teammates; t++) {
      const int64_t j = teammates_[t];
      const ConstRow to_x = x(j), to_y = y(j), left = health(j);
      const float full = d_.full[j];
      each_lane([&](int64_t b) {
        const float dx = own_x[b] - to_x[b], dy = own_y[b] - to_y[b];
        const float rank = dx * dx + dy * dy + (left[b] >= full ? k_.whole : 0.0f);
        const bool nearer = rank < nearest[b];
        nearest[b] = nearer ? rank : nearest[b];
        chosen[b] = nearer ? int32_t(j) : chosen[b];
      });
    }
    each_lane([&](int64_t b) { chosen[b] = nearest[b] >= k_.nobody ? nobody : chosen[b]; });
  }

  // `Enemy.detour` with `Wall.way`: a unit whose goal is behind the wall walks to the gap, then through it.
  void detour(int64_t i, int32_t* chosen) {
    const int32_t nobody = int32_t(w_.size);
    const ConstRow own_x = x(i), own_y = y(i), all_x = after_;
    const Row to_x = row(point_, i), to_y = row(point_, w_.size + i);
    for (int64_t b = 0; b < kLanes; b++) {
      const float goal_x = chosen[b] < nobody ? all_x[chosen[b] * kLanes + b] : to_x[b];
      const float here = own_x[b] - k_.wall_x, there = goal_x - k_.wall_x;
      const float gap_y = least(greatest(own_y[b], k_.wall_low), k_.wall_high);
      const bool lined_up = std::fabs(own_y[b] - gap_y) < k_.wall_margin / 2, behind = here * there <= 0;
      const float way_x = lined_up ? k_.wall_x + sign(there) : k_.wall_x + 0.5f * sign(here);
      chosen[b] = behind ? nobody : chosen[b];
      to_x[b] = behind ? way_x : to_x[b], to_y[b] = behind ? gap_y : to_y[b];
    }
  }

  // -------------------------------------------------------------------------------------------------- fight

  // `Combat.fight`.
  void fight() {
    for (int64_t i = 0; i < w_.size; i++) {
      const Row pace = sheet(kPace, i);
      each_lane([&](int64_t b) { pace[b] *= k_.ticks; });
    }
    std::memset(hit_, 0, size_t(w_.size * kLanes) * sizeof(float));
    for (int64_t s = 0; s < int64_t(k_.substeps); s++) {
      for (int64_t i = 0; i < w_.size; i++) aim(i);
      attack();
      for (int64_t i = 0; i < w_.size; i++) apply_damage(i);
      if (w_.heals) heal();
      for (int64_t i = 0; i < w_.size; i++) walk(i);
      for (int64_t i = 0; i < w_.size; i++) resolve_collisions(i);
      std::swap_ranges(after_, after_ + 2 * w_.size * kLanes, offset_);
    }
    if (w_.points > 1)
      for (int64_t i = 0; i < w_.size; i++) recover(i);
  }

  // Offset and distance of a unit's goal, and whether the unit attacks.
  void aim(int64_t i) {
    const ConstRow own_x = x(i), own_y = y(i), all_x = after_, all_y = y(0), reach = sheet(kReach, i);
    const ConstRow to_x = row(point_, i), to_y = row(point_, w_.size + i), cooldown = feature(w_.cooldown_row(), i);
    const int32_t* target = targets_ + i * kLanes;
    const Row dx = row(offset_, i), dy = row(offset_, w_.size + i);
    const Row distance = row(distance_, i), gap = row(gap_, i), fires = row(fires_, i);
    each_lane([&](int64_t b) {
      const float goal_x = all_x[target[b]], goal_y = all_y[target[b]];
      dx[b] = (reach[b] > -kInfinity ? goal_x : to_x[b]) - own_x[b], dy[b] = (reach[b] > -kInfinity ? goal_y : to_y[b]) - own_y[b];
    });
    each_lane([&](int64_t b) {
      distance[b] = hypot(dx[b], dy[b]), gap[b] = distance[b] - reach[b];
      fires[b] = float((gap[b] <= k_.close) & (cooldown[b] < k_.ticks));
    });
  }

  // `Combat._attacks`: damage to each unit.
  void attack() {
    std::memset(taken_, 0, size_t(2 * w_.size * kLanes) * sizeof(float));
    for (int64_t i = 0; i < w_.size; i++) {
      const ConstRow fires = row(fires_, i), wound = sheet(kWound, i), hit = sheet(kHit, i);
      if (!any_lane([&](int64_t b) { return fires[b] > 0; })) continue;
      const int32_t* target = targets_ + i * kLanes;
      for (int64_t b = 0; b < kLanes; b++) taken_[target[b]] += fires[b] * wound[b];
      if (w_.points < 2) continue;
      for (int64_t b = 0; b < kLanes; b++) taken_[w_.size * kLanes + target[b]] += fires[b] * hit[b];
    }
    for (int64_t k = 0; k < w_.num_beams; k++) beam_damage(beams_[k]);
  }

  // `Combat._beam_damage`.
  void beam_damage(int64_t i) {
    const ConstRow fires = row(fires_, i), dx = row(offset_, i), dy = row(offset_, w_.size + i);
    if (!any_lane([&](int64_t b) { return fires[b] > 0; })) return;
    const int64_t start = i < w_.allies ? w_.allies : 0, stop = i < w_.allies ? w_.size : w_.allies;
    const ConstRow own_x = x(i), own_y = y(i), distance = row(distance_, i);
    const Row along_x = working(0), along_y = working(1), to_x = working(2), to_y = working(3);
    each_lane([&](int64_t b) {
      const float length = greatest(distance[b], k_.near);
      along_x[b] = dx[b] / length, along_y[b] = dy[b] / length;
      to_x[b] = own_x[b] + dx[b], to_y[b] = own_y[b] + dy[b];
    });
    for (int64_t j = start; j < stop; j++) {
      const ConstRow at_x = x(j), at_y = y(j);
      const Row wound = row(taken_, j), hit = row(taken_, w_.size + j);
      const float depth = k_.beam_depth + d_.radius[j], width = d_.beam_width[i];
      const float to_health = d_.beam[i * w_.size + j], to_shield = d_.beam[(w_.size + i) * w_.size + j];
      each_lane([&](int64_t b) {
        const float apart_x = at_x[b] - to_x[b], apart_y = at_y[b] - to_y[b];
        const float ahead = apart_x * along_x[b] + apart_y * along_y[b];
        const float aside = apart_x * along_y[b] - apart_y * along_x[b];
        const bool other = (apart_x != 0) | (apart_y != 0);
        const bool burnt = other & (std::fabs(ahead) <= depth) & (std::fabs(aside) <= width);
        const float burns = burnt ? fires[b] : 0.0f;
        wound[b] += burns * to_health, hit[b] += burns * to_shield;
      });
    }
  }

  // `Combat._apply_damage`.
  void apply_damage(int64_t i) {
    const Row left = health(i), shield = feature(3, i), was_hit = row(hit_, i);
    const ConstRow wound = row(taken_, i), hit = row(taken_, w_.size + i);
    if (w_.points < 2) {
      each_lane([&](int64_t b) { left[b] = greatest(left[b] - wound[b], 0.0f); });
      return;
    }
    each_lane([&](int64_t b) {
      const float absorbed = least(shield[b], hit[b]), through = 1 - absorbed / greatest(hit[b], k_.near);
      left[b] = greatest(fused(-wound[b], through, left[b]), 0.0f);
      shield[b] = (shield[b] - absorbed) * (left[b] > 0 ? 1.0f : 0.0f);
      was_hit[b] = hit[b] > 0 ? 1.0f : was_hit[b];
    });
  }

  // `Combat._heal`.
  void heal() {
    const ConstRow all_health = health(0);
    std::memset(healed_, 0, size_t(w_.size * kLanes) * sizeof(float));
    for (int64_t i = 0; i < w_.size; i++) {
      const ConstRow energy = feature(w_.energy_row(), i), gap = row(gap_, i), heals = sheet(kHeal, i);
      const int32_t* target = targets_ + i * kLanes;
      const Row given = row(given_, i);
      for (int64_t b = 0; b < kLanes; b++) {
        const float needed = d_.full[target[b] / kLanes] - all_health[target[b]];
        const float most = least(heals[b] * k_.ticks * (gap[b] <= k_.close ? 1.0f : 0.0f), needed);
        given[b] = least(most, energy[b] * k_.health_for_energy);
        healed_[target[b]] += given[b];
      }
    }
    for (int64_t i = 0; i < w_.size; i++) {
      const Row left = health(i), energy = feature(w_.energy_row(), i);
      const ConstRow given = row(given_, i), healed = row(healed_, i);
      const float full = d_.full[i];
      each_lane([&](int64_t b) {
        left[b] = least(left[b] + healed[b] * (left[b] > 0 ? 1.0f : 0.0f), full);
        energy[b] = least(energy[b] - given[b] / k_.health_for_energy + k_.energy_growth, k_.energy);
      });
    }
  }

  // The cooldown of a unit, and its position after walking.
  void walk(int64_t i) {
    const ConstRow own_x = x(i), own_y = y(i), fires = row(fires_, i), gap = row(gap_, i), pace = sheet(kPace, i);
    const ConstRow distance = row(distance_, i), dx = row(offset_, i), dy = row(offset_, w_.size + i);
    const Row to_x = row(walked_, i), to_y = row(walked_, w_.size + i), cooldown = feature(w_.cooldown_row(), i);
    const float period = d_.period[i];
    each_lane([&](int64_t b) {
      cooldown[b] = greatest(fused(fires[b], period, cooldown[b]) - k_.ticks, 0.0f);
      const float length = distance[b] > k_.away ? 0.0f : least(greatest(gap[b], 0.0f), pace[b]);
      const float part = length / greatest(distance[b], k_.near);
      to_x[b] = fused(dx[b], part, own_x[b]), to_y[b] = fused(dy[b], part, own_y[b]);
    });
  }

  // `Combat._resolve_collisions`: from `walked_` to `offset_`.
  void resolve_collisions(int64_t i) {
    const ConstRow own_x = row(walked_, i), own_y = row(walked_, w_.size + i), left = health(i);
    const Row push_x = working(7), push_y = working(8);
    measure_overlaps(i);
    for (int64_t axis = 0; axis < 2; axis++) {
      const ConstRow own = axis == 0 ? own_x : own_y, all = row(walked_, axis * w_.size);
      sum_rows(w_.size, axis == 0 ? push_x : push_y, [&](int64_t j, Row to) {
        if (!touches_[j]) return;
        const ConstRow other = row(all, j), overlap = row(overlap_, j);
        each_lane([&](int64_t b) { to[b] += (own[b] - other[b]) * overlap[b]; });
      });
    }
    const ConstRow before_x = x(i);
    const Row to_x = row(offset_, i), to_y = row(offset_, w_.size + i);
    const float park_x = d_.park[i], park_y = d_.park[w_.size + i];
    const bool walled = w_.walled;
    each_lane([&](int64_t b) {
      float moved_x = least(greatest(fused(push_x[b], k_.push, own_x[b]), 0.0f), k_.size);
      const float moved_y = least(greatest(fused(push_y[b], k_.push, own_y[b]), 0.0f), k_.size);
      // `Wall.stop`.
      const bool crosses = (before_x[b] - k_.wall_x) * (moved_x - k_.wall_x) <= 0;
      const bool blocked = walled & crosses & (std::fabs(moved_y - k_.size / 2) > k_.wall_gap);
      moved_x = blocked ? before_x[b] : moved_x;
      to_x[b] = left[b] > 0 ? moved_x : park_x, to_y[b] = left[b] > 0 ? moved_y : park_y;
    });
  }

  // reach / d - 1 for a unit and all others, at least zero, and which of them overlap in any environment.
  void measure_overlaps(int64_t i) {
    const ConstRow own_x = row(walked_, i), own_y = row(walked_, w_.size + i);
    for (int64_t j = 0; j < w_.size; j++) {
      const ConstRow to_x = row(walked_, j), to_y = row(walked_, w_.size + j);
      const Row overlap = row(overlap_, j);
      const float contact = d_.contact[i * w_.size + j];
      each_lane([&](int64_t b) {
        const float dx = own_x[b] - to_x[b], dy = own_y[b] - to_y[b];
        overlap[b] = greatest((dx * dx + dy * dy) * contact, k_.same);
      });
      touches_[j] = j != i && any_lane([&](int64_t b) { return overlap[b] < 1; });
      if (touches_[j]) each_lane([&](int64_t b) { overlap[b] = greatest(1 / std::sqrt(overlap[b]) - 1, 0.0f); });
    }
  }

  // `Combat._recover`.
  void recover(int64_t i) {
    const Row shield = feature(3, i), calm = feature(w_.calm_row(), i);
    const ConstRow left = health(i), hit = row(hit_, i);
    const float full = d_.full[w_.size + i];
    each_lane([&](int64_t b) {
      calm[b] = hit[b] > 0 ? 0.0f : calm[b] + k_.step;
      const bool grows = (calm[b] >= k_.shield_delay) & (left[b] > 0);
      shield[b] = least(shield[b] + (grows ? k_.shield_growth : 0.0f), full);
    });
  }

  // ------------------------------------------------------------------------------------------------ outcome

  // Flags, metrics and reward of `Skirmish.step` and `Duel.step`.
  void outcome() {
    const int64_t n = w_.allies;
    const Row left_fights = working(9), right_fights = working(10), left_dead = working(11), right_dead = working(12);
    const Row left_won = working(13), right_won = working(14), killed = working(15);
    std::memset(left_fights, 0, 7 * kLanes * sizeof(float));
    for (int64_t i = 0; i < w_.size; i++) {
      const ConstRow was = row(before_, 2 * w_.size + i), left = health(i);
      const Row fights = i < n ? left_fights : right_fights, dead = i < n ? left_dead : right_dead;
      const float armed = d_.armed[i] ? 1.0f : 0.0f, enemy = i < n ? 0.0f : 1.0f;
      const Row died = working(8);
      each_lane([&](int64_t b) {
        const float lives = left[b] > 0 ? 1.0f : 0.0f;
        died[b] = was[b] > 0 ? 1 - lives : 0.0f;
        fights[b] = greatest(fights[b], lives * armed), dead[b] += 1 - lives, killed[b] += died[b] * enemy;
      });
      bool* to = d_.died + i * w_.envs + from_;
      for (int64_t b = 0; b < count_; b++) to[b] = died[b] > 0;
    }
    each_lane([&](int64_t b) {
      left_won[b] = left_fights[b] * (1 - right_fights[b]), right_won[b] = right_fights[b] * (1 - left_fights[b]);
    });
    for (int64_t b = 0; b < count_; b++) d_.ended[from_ + b] = left_fights[b] * right_fights[b] == 0;
    ConstRow const metrics[] = {left_won, right_won, left_dead, right_dead};
    for (int64_t k = 0; k < 4; k++)
      std::memcpy(d_.metrics + k * w_.envs + from_, metrics[k], size_t(count_) * sizeof(float));
    if (w_.scripted)
      reward_team(left_won, killed, right_dead);
    else
      reward_sides(left_won, right_won);
  }

  // Points that a unit lost in this step.
  float lost(int64_t point, int64_t i, int64_t b) const {
    const int64_t at = ((2 + point) * w_.size + i) * kLanes + b;
    return before_[at] - after_[at];
  }

  // `Skirmish._reward`.
  void reward_team(ConstRow won, ConstRow killed, ConstRow dead) {
    const Row taken = working(7);
    const int64_t m = w_.enemies();
    if (w_.shaped)
      sum_rows(w_.points * m, taken, [&](int64_t k, Row to) {
        each_lane([&](int64_t b) { to[b] += lost(k / m, w_.allies + k % m, b); });
      });
    for (int64_t b = 0; b < count_; b++) {
      if (!w_.shaped) {
        const bool lost = d_.ended[from_ + b] && won[b] == 0 && dead[b] < float(m);
        d_.reward[from_ + b] = won[b] - (lost ? 1.0f : 0.0f);
        continue;
      }
      float scale = k_.scale;
      if (d_.begun != nullptr) scale = 1 / (k_.total * d_.begun[from_ + b] + k_.all_kills + k_.win) * k_.best;
      d_.reward[from_ + b] = (taken[b] + k_.kill * killed[b] + k_.win * won[b]) * scale;
    }
  }

  // The reward of `Duel.step`: the difference of what both sides earn.
  void reward_sides(ConstRow left_won, ConstRow right_won) {
    const int64_t n = w_.allies;
    const Row gain = working(7), worth = working(8);
    for (const bool right : {false, true}) {
      const ConstRow won = right ? right_won : left_won;
      if (w_.shaped)
        sum_rows(n, worth, [&](int64_t k, Row to) {
          const int64_t i = right ? k : n + k;
          const ConstRow was = row(before_, 2 * w_.size + i), left = health(i);
          each_lane([&](int64_t b) {
            const float points = w_.points > 1 ? lost(0, i, b) + lost(1, i, b) : lost(0, i, b);
            to[b] += points + (was[b] > 0 && !(left[b] > 0) ? k_.kill : 0.0f);
          });
        });
      each_lane([&](int64_t b) {
        const float earned = w_.shaped ? (won[b] * k_.win + worth[b]) * k_.scale : won[b];
        gain[b] = right ? gain[b] - earned : earned;
      });
    }
    for (int64_t b = 0; b < count_; b++)
      d_.reward[2 * (from_ + b)] = gain[b], d_.reward[2 * (from_ + b) + 1] = -gain[b];
  }

  void start_episodes() {
    for (int64_t b = 0; b < count_; b++)
      if (d_.resetting[from_ + b])
        for (int64_t r = 0; r < w_.rows * w_.size; r++) after_[r * kLanes + b] = d_.initial[r * w_.envs + from_ + b];
  }

  // ------------------------------------------------------------------------------------------- observations

  // `Duel._mirrored`: the battle as the second side observes it.
  void mirror() {
    for (int64_t r = 0; r < w_.rows; r++)
      for (int64_t i = 0; i < w_.size; i++) {
        const ConstRow from = feature(r, (i + w_.allies) % w_.size);
        const Row to = row(view_, r * w_.size + i);
        each_lane([&](int64_t b) { to[b] = r == 0 ? k_.size - from[b] : from[b]; });
      }
  }

  // Results of the environments begin at `first`.
  void observe(ConstRow units, int64_t first) {
    if (first == 0) observe_alive();
    for (int64_t i = 0; i < w_.allies; i++) build(units, i, first + from_);
    if (w_.state_columns > 0) build_state(units, first + from_);
  }

  void observe_alive() {
    for (int64_t i = 0; i < w_.size; i++) {
      const ConstRow left = health(i);
      bool* to = d_.alive + i * w_.envs + from_;
      for (int64_t b = 0; b < count_; b++) to[b] = left[b] > 0;
    }
  }

  // `ObservationBuilder.build`: observations and actions of an ally.
  void build(ConstRow units, int64_t i, int64_t first) {
    const int64_t U = w_.size, columns = w_.columns;
    const ConstRow own_x = row(units, i), own_y = row(units, U + i), alive = row(units, 2 * U + i);
    for (int64_t j = 0; j < U; j++) {
      const ConstRow to_x = row(units, j), to_y = row(units, U + j);
      const Row distance = row(distance_, j);
      each_lane([&](int64_t b) { distance[b] = hypot(to_x[b] - own_x[b], to_y[b] - own_y[b]); });
    }
    Row to = block_;
    const auto next = [&] {
      const Row found = to;
      to += kLanes;
      return found;
    };
    const float far = k_.size - k_.margin, near = k_.margin;
    const Row north = next(), south = next(), east = next(), west = next();
    each_lane([&](int64_t b) {
      const float lives = alive[b] > 0 ? 1.0f : 0.0f;
      north[b] = own_y[b] < far ? lives : 0.0f, south[b] = own_y[b] > near ? lives : 0.0f;
      east[b] = own_x[b] < far ? lives : 0.0f, west[b] = own_x[b] > near ? lives : 0.0f;
    });
    for (int64_t k = 0; k < w_.slots; k++) available(i, k, row(available_, k));
    for (int64_t k = 0; k < w_.enemies(); k++) {
      std::memcpy(next(), row(available_, k), kLanes * sizeof(float));
      features(units, i, w_.allies + k, next);
    }
    for (int64_t j = 0; j < w_.allies; j++) {
      if (j == i) continue;
      const ConstRow distance = row(distance_, j);
      const Row seen = next();
      each_lane([&](int64_t b) { seen[b] = distance[b] < k_.sight ? 1.0f : 0.0f; });
      features(units, i, j, next);
    }
    for (int64_t f = 0; f < 1 + w_.ally_shields; f++) share(units, f, i, next());
    for (int64_t kind = 0; kind < w_.kinds; kind++) {
      const float type = d_.types[kind * U + i];
      const Row own = next();
      each_lane([&](int64_t b) { own[b] = alive[b] > 0 ? type : 0.0f; });
    }
    const int64_t stride = w_.allies * columns;
    write_transposed<float>(block_, kLanes, columns, count_, d_.obs + first * stride + i * columns, stride);
    mask(i, alive, first);
  }

  // `ObservationBuilder._available`: 1 where the target of an action is near enough.
  void available(int64_t i, int64_t k, Row to) {
    const int64_t place = i * w_.slots + k, j = d_.fit == nullptr ? w_.allies + k : d_.slot[place];
    const ConstRow distance = row(distance_, j);
    const float fits = d_.fit == nullptr || d_.fit[place] ? 1.0f : 0.0f;
    each_lane([&](int64_t b) { to[b] = distance[b] <= k_.aim ? fits : 0.0f; });
  }

  // What ally i observes of unit j, if it sees it.
  template <class Next>
  void features(ConstRow units, int64_t i, int64_t j, Next& next) {
    const int64_t U = w_.size;
    const ConstRow distance = row(distance_, j), own_x = row(units, i), own_y = row(units, U + i);
    const ConstRow to_x = row(units, j), to_y = row(units, U + j);
    const Row seen = working(0), points = working(1);
    const Row far = next(), dx = next(), dy = next();
    each_lane([&](int64_t b) {
      const bool sees = distance[b] < k_.sight;
      seen[b] = sees ? 1.0f : 0.0f;
      const float scale = sees ? k_.inverse_sight : 0.0f;
      far[b] = distance[b] * scale, dx[b] = (to_x[b] - own_x[b]) * scale, dy[b] = (to_y[b] - own_y[b]) * scale;
    });
    for (int64_t f = 0; f < 1 + (j < w_.allies ? w_.ally_shields : w_.enemy_shields); f++) {
      share(units, f, j, points);
      const Row to = next();
      each_lane([&](int64_t b) { to[b] = points[b] * seen[b]; });
    }
    for (int64_t kind = 0; kind < w_.kinds; kind++) {
      const float type = d_.types[kind * U + j];
      const Row to = next();
      each_lane([&](int64_t b) { to[b] = type * seen[b]; });
    }
  }

  // Fraction of the health (f = 0) or shield (f = 1) of a unit.
  void share(ConstRow units, int64_t f, int64_t i, Row to) const {
    const ConstRow points = row(units, (2 + f) * w_.size + i);
    const float inverse = d_.inverse_full[f * w_.size + i];
    each_lane([&](int64_t b) { to[b] = points[b] * inverse; });
  }

  // `ObservationBuilder._mask`, after the features of the agent.
  void mask(int64_t i, ConstRow alive, int64_t first) {
    bool* to = d_.mask + (first * w_.allies + i) * w_.choices;
    for (int64_t b = 0; b < count_; b++, to += w_.allies * w_.choices) {
      const bool fallen = !(alive[b] > 0);
      to[0] = fallen, to[1] = true;
      for (int64_t move = 0; move < kMoves; move++) to[2 + move] = fallen || block_[move * kLanes + b] > 0;
      for (int64_t k = 0; k < w_.slots; k++) to[kFirstTarget + k] = fallen || available_[k * kLanes + b] > 0;
    }
  }

  // `ObservationBuilder.state`.
  void build_state(ConstRow units, int64_t first) {
    const int64_t U = w_.size, columns = w_.state_columns;
    Row to = block_;
    const auto next = [&] {
      const Row found = to;
      to += kLanes;
      return found;
    };
    for (int64_t i = 0; i < U; i++) {
      const bool ally = i < w_.allies;
      const ConstRow own_x = row(units, i), own_y = row(units, U + i), alive = row(units, 2 * U + i);
      const Row lives = working(0);
      each_lane([&](int64_t b) { lives[b] = alive[b] > 0 ? 1.0f : 0.0f; });
      share(units, 0, i, next());
      if (ally) {
        const ConstRow cooldown = row(units, w_.cooldown_row() * U + i);
        const ConstRow energy = row(units, (w_.heals ? w_.energy_row() : w_.cooldown_row()) * U + i);
        const float per_period = d_.per_period[i], per_energy = w_.heals ? d_.per_energy[i] : 0.0f;
        const Row ready = next();
        each_lane([&](int64_t b) { ready[b] = (cooldown[b] * per_period + energy[b] * per_energy) * lives[b]; });
      }
      const Row at_x = next(), at_y = next();
      each_lane([&](int64_t b) {
        at_x[b] = (own_x[b] / k_.size - 0.5f) * lives[b], at_y[b] = (own_y[b] / k_.size - 0.5f) * lives[b];
      });
      if (ally ? w_.ally_shields : w_.enemy_shields) share(units, 1, i, next());
      for (int64_t kind = 0; kind < w_.kinds; kind++) {
        const float type = d_.types[kind * U + i];
        const Row own = next();
        each_lane([&](int64_t b) { own[b] = type * lives[b]; });
      }
    }
    for (int64_t i = 0; i < w_.allies; i++) {
      const ConstRow code = row(units, w_.order_row() * U + i);
      for (int64_t choice = 0; choice < w_.choices; choice++) {
        const Row acted = next();
        each_lane([&](int64_t b) { acted[b] = code[b] == float(choice) ? 1.0f : 0.0f; });
      }
    }
    write_transposed<float>(block_, kLanes, columns, count_, d_.state + first * columns, columns);
  }

  const Sizes& w_;
  const Numbers& k_;
  const Data& d_;
  const int64_t *beams_, *healers_, *teammates_;  // each ends where the next one begins
  Buffer<float> memory_, block_;
  Buffer<int32_t> targets_;
  Buffer<bool> touches_;
  Row before_, after_, view_;                    // [F, U]: the battle before and after the step, and as observed
  Row sheet_, point_;                            // orders [R, U] and destinations [2, U]
  Row offset_, distance_, gap_, fires_, taken_;  // [U], or [2, U]
  Row walked_, hit_, given_, healed_, overlap_, available_, working_;
  int64_t from_ = 0, count_ = 0, in_columns_ = 0;
  bool invalid_ = false;
};

template <class T>
T read(const void* from) {
  T found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

}  // namespace
}  // namespace coterie

// n: `Sizes`; then the units with a beam, the healers of a scripted side, and the units that they heal.
// c: `Numbers`.
// p: `Data`.
COTERIE_API void coterie_skirmish_step_f32(const int64_t* n, const float* c, void* const* p, int threads) {
  using namespace coterie;
  const auto w = read<Sizes>(n);
  const auto k = read<Numbers>(c);
  const auto d = read<Data>(p);
  const int64_t* lists = n + sizeof w / sizeof *n;
  std::atomic<bool> invalid{false};
  const bool large = w.envs * w.size * w.size >= kMinParallel;
  const auto make_battle = [&] { return Battle(w, lists, k, d); };
  parallel_for({ceil_div(w.envs, kLanes), large ? threads : 1}, make_battle, [&](int64_t part, Battle& battle) {
    const int64_t from = part * kLanes, left = w.envs - from;
    if (battle.step(from, left < kLanes ? left : kLanes)) invalid = true;
  });
  *d.invalid = invalid;
}
