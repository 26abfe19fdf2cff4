// Level-based foraging: a step with the starts of new episodes and observations, and initial states. Functions bear the
// names of those of envs/worlds/foraging/foraging.py and spawn.py and return the same bits. No product of real numbers
// is added to anything, so that there is nothing to fuse.
#include <algorithm>
#include <initializer_list>
#include "memory.hpp"
#include "pool.hpp"

namespace coterie {
namespace {

constexpr int64_t kFields = 64;       // environments that are read and written together
constexpr int64_t kManyFields = 512;  // environments above which several threads are worth it

// Tensors of the state, with environments in the last axis: players [2, P, B], levels [P, B], food [2, F, B],
// food_level [F, B], spawned [B].
struct State {
  int64_t *players, *levels, *food, *food_level, *spawned;
};

// The state of one environment.
struct Field {
  int64_t *row, *column, *level, *food_row, *food_column, *food_level, *spawned;
};

// Up to kFields environments, with the numbers of each adjacent in memory.
class Fields {
 public:
  Fields(int64_t envs, int64_t players, int64_t foods)
      : envs_(envs), players_(players), foods_(foods), size_(3 * players + 3 * foods + 1), memory_(kFields * size_) {}

  Field operator[](int64_t b) const {
    int64_t* at = memory_ + b * size_;
    int64_t* food = at + 3 * players_;
    return {at, at + players_, at + 2 * players_, food, food + foods_, food + 2 * foods_, food + 3 * foods_};
  }

  // Reads environments `from` to `from + count`, from `initial` where `resetting` [B] if there is any.
  void read(int64_t from, int64_t count, const State& now, const bool* resetting, const State& initial) {
    visit(now, [&](int64_t row, const int64_t* data) {
      for (int64_t b = 0; b < count; b++) memory_[b * size_ + row] = data[from + b];
    });
    if (resetting == nullptr || std::find(resetting + from, resetting + from + count, true) == resetting + from + count)
      return;
    visit(initial, [&](int64_t row, const int64_t* data) {
      for (int64_t b = 0; b < count; b++)
        if (resetting[from + b]) memory_[b * size_ + row] = data[from + b];
    });
  }

  void write(int64_t from, int64_t count, const State& to) const {
    visit(to, [&](int64_t row, int64_t* data) {
      for (int64_t b = 0; b < count; b++) data[from + b] = memory_[b * size_ + row];
    });
  }

 private:
  // Calls body(row, data [B]) for all rows of the state.
  template <class Body>
  void visit(const State& state, Body&& body) const {
    int64_t row = 0;
    const auto all = [&](int64_t* data, int64_t rows) {
      for (int64_t r = 0; r < rows; r++) body(row++, data + r * envs_);
    };
    all(state.players, 2 * players_), all(state.levels, players_);
    all(state.food, 2 * foods_), all(state.food_level, foods_), all(state.spawned, 1);
  }

  int64_t envs_, players_, foods_, size_;
  Buffer<int64_t> memory_;
};

// Calls body(from, count, memory) for parts of all environments, see `parallel_for`.
template <class Make, class Body>
void for_each_part(int64_t envs, int threads, Make&& make_memory, Body&& body) {
  const Tasks parts{ceil_div(envs, kFields), envs > kManyFields ? threads : 1};
  parallel_for(parts, make_memory, [&](int64_t part, auto& memory) {
    const int64_t from = part * kFields;
    body(from, std::min(kFields, envs - from), memory);
  });
}

// ---------------------------------------------------------------------------------------------------- foraging.py

struct Sizes {
  int64_t envs, side, players, foods, sight, with_levels, grid, normalized, actions, load;
  const int64_t* moves;  // change of row and of column by each action [2, actions]

  int64_t entries() const { return with_levels ? 3 : 2; }  // numbers per agent in a list
  int64_t window() const { return 2 * sight + 1; }
  int64_t columns() const { return grid ? 3 * window() * window() : 3 * foods + entries() * players; }
};

// Null where there is nothing of the kind.
struct Data {
  State now;
  const int64_t* action;  // [B, P]
  const int64_t *size, *sight;  // [B], of the next state
  const float* penalty;         // [B], of the next state
  const bool* resetting;        // [B]
  State initial, after;
  float *reward, *obs, *global, *metrics;  // [B, P], [B, P, columns], [B, 3 F + 3 P], [2, B]
  bool *done, *mask;                       // [B], [B, P, actions]
  int64_t* invalid;
};

// A list of `count` entries with row, column and, if `size` is 3, level. Absent ones are -1, -1, 0 at its end.
class List {
 public:
  List(float* to, int64_t count, int64_t size) : at_(to), end_(to + count * size), size_(size) {}
  void add(int64_t row, int64_t column, int64_t level) {
    at_[0] = float(row), at_[1] = float(column);
    if (size_ == 3) at_[2] = float(level);
    at_ += size_;
  }
  float* finish() {
    for (; at_ < end_; at_ += size_) {
      at_[0] = at_[1] = -1;
      if (size_ == 3) at_[2] = 0;
    }
    return end_;
  }

 private:
  float *at_, *end_;
  int64_t size_;
};

class Stepper {
 public:
  Stepper(const Sizes& w, float penalty, bool penalized, const Data& d)
      : w_(w), d_(d), penalty_(penalty), penalized_(penalized), fields_(w.envs, w.players, w.foods),
        target_row_(w.players), target_column_(w.players), strength_(w.foods),
        layers_(w.grid ? 3 * width() * width() : 0) {}

  // Environments `from` to `from + count`. Returns true if an action, size or square is invalid.
  bool run(int64_t from, int64_t count) {
    invalid_ = false;
    fields_.read(from, count, d_.now, d_.resetting, d_.initial);
    for (int64_t b = 0; b < count; b++) {
      field_ = fields_[b], size_ = d_.size == nullptr ? w_.side : d_.size[from + b];
      if (size_ < 1 || size_ > w_.side) return true;
      step(from + b, d_.resetting != nullptr && d_.resetting[from + b]);
      observe(from + b);
    }
    fields_.write(from, count, d_.after);
    return invalid_;
  }

 private:
  int64_t width() const { return w_.side + 2 * w_.sight; }

  // An environment that starts an episode does not move and earns nothing.
  void step(int64_t env, bool starts) {
    const int64_t* action = d_.action + env * w_.players;
    float* reward = d_.reward + env * w_.players;
    for (int64_t i = 0; i < w_.players; i++) {
      invalid_ |= uint64_t(action[i]) >= uint64_t(w_.actions);
      reward[i] = 0;
    }
    if (!starts && !invalid_) {
      load(action, reward, d_.penalty == nullptr ? penalty_ : d_.penalty[env]);
      move(action);
      collect();
    }
    int64_t remaining = 0;
    for (int64_t f = 0; f < w_.foods; f++) remaining += field_.food_level[f];
    d_.done[env] = remaining == 0;
    d_.metrics[env] = 1 - float(remaining) / float(std::max(*field_.spawned, int64_t(1)));
    d_.metrics[w_.envs + env] = remaining == 0;
  }

  // Sets the levels that load each food, and the rewards.
  void load(const int64_t* action, float* reward, float penalty) {
    std::fill_n(strength_.get(), w_.foods, 0);
    for (int64_t i = 0; i < w_.players; i++)
      if (action[i] == w_.load)
        for (int64_t f = 0; f < w_.foods; f++)
          if (next_to(i, f)) strength_[f] += field_.level[i];
    for (int64_t i = 0; i < w_.players; i++) {
      if (action[i] != w_.load) continue;
      bool fails = false;
      for (int64_t f = 0; f < w_.foods; f++) {
        if (!next_to(i, f)) continue;
        if (collected(f)) {
          const float share = float(field_.level[i] * field_.food_level[f]);
          reward[i] += w_.normalized ? share / float(std::max(strength_[f] * *field_.spawned, int64_t(1))) : share;
        } else {
          fails = true;
        }
      }
      if (fails && penalized_) reward[i] = -penalty;
    }
  }

  bool collected(int64_t f) const { return strength_[f] >= field_.food_level[f] && strength_[f] > 0; }

  bool next_to(int64_t i, int64_t f) const {
    return std::abs(field_.row[i] - field_.food_row[f]) + std::abs(field_.column[i] - field_.food_column[f]) == 1;
  }

  void move(const int64_t* action) {
    for (int64_t i = 0; i < w_.players; i++) set_target(i, action[i]);
    for (int64_t i = 0; i < w_.players; i++) {
      int64_t rivals = 0;
      for (int64_t j = 0; j < w_.players; j++)
        rivals += target_row_[j] == target_row_[i] && target_column_[j] == target_column_[i];
      if (rivals == 1) field_.row[i] = target_row_[i], field_.column[i] = target_column_[i];
    }
  }

  // The square that an agent wants to enter or keep, see `_targets`.
  void set_target(int64_t i, int64_t action) {
    const int64_t row = std::clamp(field_.row[i] + w_.moves[action], int64_t(0), size_ - 1);
    const int64_t column = std::clamp(field_.column[i] + w_.moves[w_.actions + action], int64_t(0), size_ - 1);
    bool occupied = false;
    for (int64_t f = 0; f < w_.foods; f++) occupied |= row == field_.food_row[f] && column == field_.food_column[f];
    target_row_[i] = occupied ? field_.row[i] : row, target_column_[i] = occupied ? field_.column[i] : column;
  }

  void collect() {
    for (int64_t f = 0; f < w_.foods; f++)
      if (collected(f)) field_.food_row[f] = field_.food_column[f] = -1, field_.food_level[f] = 0;
  }

  void observe(int64_t env) {
    float* obs = d_.obs + env * w_.players * w_.columns();
    if (w_.grid) {
      square_layers(obs);
    } else {
      entity_lists(obs, d_.sight == nullptr ? w_.sight : d_.sight[env]);
    }
    if (d_.global != nullptr) whole_field(d_.global + env * 3 * (w_.foods + w_.players));
    if (d_.mask != nullptr) legal(d_.mask + env * w_.players * w_.actions);
  }

  void entity_lists(float* to, int64_t reach) const {
    for (int64_t i = 0; i < w_.players; i++) {
      const int64_t row = std::max(field_.row[i] - reach, int64_t(0));  // the first row in sight
      const int64_t column = std::max(field_.column[i] - reach, int64_t(0));
      List foods(to, w_.foods, 3);
      for (int64_t f = 0; f < w_.foods; f++)
        if (field_.food_level[f] > 0 && std::abs(field_.food_row[f] - field_.row[i]) <= reach &&
            std::abs(field_.food_column[f] - field_.column[i]) <= reach)
          foods.add(field_.food_row[f] - row, field_.food_column[f] - column, field_.food_level[f]);
      List players(foods.finish(), w_.players, w_.entries());
      players.add(field_.row[i] - row, field_.column[i] - column, field_.level[i]);
      for (int64_t j = 0; j < w_.players; j++) {
        const int64_t down = field_.row[j] - row, across = field_.column[j] - column;
        if (j != i && std::min(down, across) >= 0 && std::max(down, across) <= 2 * reach)
          players.add(down, across, field_.level[j]);
      }
      to = players.finish();
    }
  }

  void whole_field(float* to) const {
    List foods(to, w_.foods, 3);
    for (int64_t f = 0; f < w_.foods; f++)
      if (field_.food_level[f] > 0) foods.add(field_.food_row[f], field_.food_column[f], field_.food_level[f]);
    List players(foods.finish(), w_.players, 3);
    for (int64_t i = 0; i < w_.players; i++) players.add(field_.row[i], field_.column[i], field_.level[i]);
  }

  void square_layers(float* to) {
    const int64_t stride = 3 * width(), line = 3 * w_.window();
    std::fill_n(layers_.get(), width() * stride, 0.0f);
    for (int64_t row = 0; row < size_; row++)
      for (int64_t column = 0; column < size_; column++) square(row, column)[2] = 1;
    for (int64_t i = 0; i < w_.players; i++) {
      if (!inside(field_.row[i], field_.column[i])) return;
      float* at = square(field_.row[i], field_.column[i]);
      at[0] = w_.with_levels ? float(field_.level[i]) : 1, at[2] = 0;
    }
    for (int64_t f = 0; f < w_.foods; f++) {
      if (field_.food_level[f] == 0) continue;
      if (!inside(field_.food_row[f], field_.food_column[f])) return;
      float* at = square(field_.food_row[f], field_.food_column[f]);
      at[1] = float(field_.food_level[f]), at[2] = 0;
    }
    for (int64_t i = 0; i < w_.players; i++) {
      const float* from = square(field_.row[i] - w_.sight, field_.column[i] - w_.sight);
      for (int64_t r = 0; r < w_.window(); r++, to += line) std::copy_n(from + r * stride, line, to);
    }
  }

  float* square(int64_t row, int64_t column) const {
    return layers_ + 3 * ((row + w_.sight) * width() + column + w_.sight);
  }

  bool inside(int64_t row, int64_t column) {
    const bool is_inside = uint64_t(row) < uint64_t(w_.side) && uint64_t(column) < uint64_t(w_.side);
    invalid_ |= !is_inside;
    return is_inside;
  }

  void legal(bool* mask) {
    for (int64_t i = 0; i < w_.players; i++, mask += w_.actions) {
      for (int64_t action = 0; action < w_.actions; action++) {
        set_target(i, action);
        mask[action] = action == 0 || target_row_[i] != field_.row[i] || target_column_[i] != field_.column[i];
      }
      mask[w_.load] = false;
      for (int64_t f = 0; f < w_.foods; f++) mask[w_.load] |= next_to(i, f);
    }
  }

  const Sizes& w_;
  const Data& d_;
  const float penalty_;
  const bool penalized_;
  Fields fields_;
  Buffer<int64_t> target_row_, target_column_, strength_;
  Buffer<float> layers_;
  Field field_{};
  int64_t size_ = 0;
  bool invalid_ = false;
};

void step(const Sizes& w, float penalty, bool penalized, const Data& d, int threads) {
  std::atomic<bool> invalid{false};
  const auto make_stepper = [&] { return Stepper(w, penalty, penalized, d); };
  for_each_part(w.envs, threads, make_stepper, [&](int64_t from, int64_t count, Stepper& stepper) {
    if (stepper.run(from, count)) invalid = true;
  });
  *d.invalid = invalid;
}

// ---------------------------------------------------------------------------------------------------- spawn.py

// The attributes of `Rules`. Those that vary are null or [B].
struct Rules {
  int64_t envs, side, players, foods;
  int64_t size, present, min_player_level, max_player_level, min_food_level, max_food_level, coop, exclusive;
  int64_t around, straight;  // distance between food in both axes, and in one row or column
  const int64_t *sizes, *presents, *max_player_levels;
  const bool* coops;
};

// Maps uniform noise in [0, 1) to 0 .. count - 1.
inline int64_t scaled(float noise, int64_t count) {
  return std::clamp(int64_t(noise * float(count)), int64_t(0), count - 1);
}

class Spawner {
 public:
  explicit Spawner(const Rules& rules)
      : r_(rules), inner_(rules.side - 2), reach_(std::max(rules.around, rules.straight)),
        fields_(rules.envs, rules.players, rules.foods),
        squares_(rules.side * rules.side), lowest_(rules.players), free_(inner_), near_(reach_ + 1) {
    for (int64_t down = 0; down <= reach_; down++) {
      near_[down] = 0;
      for (int64_t across = -reach_; across <= reach_; across++) {
        const int64_t nearer = std::min(down, std::abs(across)), farther = std::max(down, std::abs(across));
        if (farther <= r_.around || (nearer == 0 && farther <= r_.straight))
          near_[down] |= uint64_t(1) << (across + reach_);
      }
    }
  }

  // Environments `from` to `from + count`. Returns true if a size is invalid.
  bool run(int64_t from, int64_t count, const float* noise, const State& out) {
    bool invalid = false;
    for (int64_t b = 0; b < count; b++) {
      const int64_t env = from + b, size = r_.sizes == nullptr ? r_.size : r_.sizes[env];
      if (size < 3 || size > r_.side || size * size < r_.players) {
        invalid = true;
        continue;
      }
      spawn(env, size, noise + env * 2 * (r_.players + r_.foods), fields_[b]);
    }
    fields_.write(from, count, out);
    return invalid;
  }

 private:
  void spawn(int64_t env, int64_t size, const float* noise, const Field& field) {
    const float *levels = noise + r_.players, *food_places = levels + r_.players, *food_levels = food_places + r_.foods;
    draw_players(noise, size, field);
    const int64_t most = r_.max_player_levels == nullptr ? r_.max_player_level : r_.max_player_levels[env];
    for (int64_t i = 0; i < r_.players; i++)
      lowest_[i] = field.level[i] = r_.min_player_level + scaled(levels[i], most - r_.min_player_level + 1);
    draw_foods(food_places, size, r_.presents == nullptr ? r_.present : r_.presents[env], field);
    const bool coop = r_.coops == nullptr ? r_.coop : r_.coops[env];
    draw_food_levels(food_levels, coop, field);
    sort_by_square(field);
    *field.spawned = 0;
    for (int64_t f = 0; f < r_.foods; f++) *field.spawned += field.food_level[f];
  }

  // The first swaps of a Fisher-Yates shuffle.
  void draw_players(const float* noise, int64_t size, const Field& field) {
    const int32_t width = int32_t(size);
    const int64_t total = size * size;
    for (int64_t k = 0; k < total; k++) squares_[k] = int16_t(k);
    for (int64_t k = 0; k < r_.players; k++) {
      std::swap(squares_[k], squares_[k + scaled(noise[k], total - k)]);
      field.row[k] = squares_[k] / width, field.column[k] = squares_[k] % width;
    }
  }

  // Draws squares for food among those that agents and earlier food leave free, not in the outermost rows and columns.
  void draw_foods(const float* noise, int64_t size, int64_t present, const Field& field) {
    const uint64_t whole_row = (uint64_t(1) << (size - 2)) - 1;
    for (int64_t row = 0; row < inner_; row++) free_[row] = row < size - 2 ? whole_row : 0;
    for (int64_t i = 0; i < r_.players; i++)
      if (is_inner(field.row[i] - 1) && is_inner(field.column[i] - 1))
        free_[field.row[i] - 1] &= ~(uint64_t(1) << (field.column[i] - 1));
    for (int64_t f = 0; f < r_.foods; f++) {
      int64_t count = 0;
      for (int64_t row = 0; row < inner_; row++) count += num_free(row);
      field.food_row[f] = field.food_column[f] = -1;
      if (count > 0 && f < present) draw_food(scaled(noise[f], count), field.food_row[f], field.food_column[f]);
    }
  }

  // Finds a free square by its number among them. It and those near it are no longer free.
  void draw_food(int64_t number, int64_t& food_row, int64_t& food_column) {
    int64_t row = 0;
    for (; number >= num_free(row); row++) number -= num_free(row);
    uint64_t left = free_[row];
    for (; number > 0; number--) left &= left - 1;
    const int64_t column = __builtin_ctzll(left);
    food_row = row + 1, food_column = column + 1;
    for (int64_t down = -reach_; down <= reach_; down++)
      if (is_inner(row + down)) free_[row + down] &= ~(near_[std::abs(down)] << column >> reach_);
  }

  bool is_inner(int64_t line) const { return uint64_t(line) < uint64_t(inner_); }

  int64_t num_free(int64_t row) const { return __builtin_popcountll(free_[row]); }

  void draw_food_levels(const float* noise, bool coop, const Field& field) {
    const int64_t few = std::min(r_.players, int64_t(3));
    if (few < r_.players) std::partial_sort(lowest_.get(), lowest_ + few, lowest_ + r_.players);
    int64_t highest = r_.max_food_level;
    if (highest == 0)
      for (int64_t i = 0; i < few; i++) highest += lowest_[i];
    const int64_t count = std::max(highest - r_.min_food_level + !r_.exclusive, int64_t(1));
    for (int64_t f = 0; f < r_.foods; f++) {
      const int64_t drawn = coop ? highest : r_.min_food_level + scaled(noise[f], count);
      field.food_level[f] = field.food_row[f] < 0 ? 0 : drawn;
    }
  }

  // Sorts food by its square, absent food to the end.
  void sort_by_square(const Field& field) const {
    const auto square = [&](int64_t f) {
      return field.food_row[f] < 0 ? r_.side * r_.side : field.food_row[f] * r_.side + field.food_column[f];
    };
    for (int64_t k = 1; k < r_.foods; k++)
      for (int64_t f = k; f > 0 && square(f) < square(f - 1); f--)
        for (int64_t* number : {field.food_row, field.food_column, field.food_level})
          std::swap(number[f], number[f - 1]);
  }

  const Rules& r_;
  const int64_t inner_;  // rows and columns for food
  const int64_t reach_;  // rows and columns around food that others may be too close in
  Fields fields_;
  Buffer<int16_t> squares_;
  Buffer<int64_t> lowest_;
  Buffer<uint64_t> free_;  // a bit for every square of each inner row
  Buffer<uint64_t> near_;  // bits of squares near food, by the distance of rows; the food's column is bit `reach_`
};

void spawn(const Rules& rules, const float* noise, const State& out, int64_t* invalid, int threads) {
  std::atomic<bool> any_invalid{false};
  const auto make_spawner = [&] { return Spawner(rules); };
  for_each_part(rules.envs, threads, make_spawner, [&](int64_t from, int64_t count, Spawner& spawner) {
    if (spawner.run(from, count, noise, out)) any_invalid = true;
  });
  *invalid = any_invalid;
}

// Takes addresses one after another.
struct Reader {
  void* const* at;
  template <class T>
  void take(T*& pointer) {
    pointer = static_cast<T*>(*at++);
  }
  void take(State& state) {
    take(state.players), take(state.levels), take(state.food), take(state.food_level), take(state.spawned);
  }
};

}  // namespace
}  // namespace coterie

// n: the numbers of `Sizes` in their order, 1 if there is a penalty; then the changes of row and column by each action.
// c: the penalty.
// p: addresses in the order of `Data`.
COTERIE_API void coterie_foraging_step_f32(const int64_t* n, const double* c, void* const* p, int threads) {
  coterie::Sizes w{};
  for (int64_t* number : {&w.envs, &w.side, &w.players, &w.foods, &w.sight, &w.with_levels, &w.grid, &w.normalized,
                          &w.actions, &w.load})
    *number = *n++;
  const bool penalized = *n++;
  w.moves = n;
  coterie::Data d{};
  coterie::Reader reader{p};
  reader.take(d.now), reader.take(d.action), reader.take(d.size), reader.take(d.sight), reader.take(d.penalty);
  reader.take(d.resetting), reader.take(d.initial), reader.take(d.after);
  reader.take(d.reward), reader.take(d.obs), reader.take(d.global), reader.take(d.metrics);
  reader.take(d.done), reader.take(d.mask), reader.take(d.invalid);
  coterie::step(w, float(c[0]), penalized || d.penalty != nullptr, d, threads);
}

// n: the numbers of `Rules` in their order; max_food_level is 0 for the sum of the three lowest levels.
// p: addresses of the noise, of the rules that vary in their order, of the results, and of a number that is set to 1
//    for an invalid size, else to 0.
COTERIE_API void coterie_foraging_spawn_f32(const int64_t* n, void* const* p, int threads) {
  coterie::Rules r{};
  for (int64_t* number : {&r.envs, &r.side, &r.players, &r.foods, &r.size, &r.present, &r.min_player_level,
                          &r.max_player_level, &r.min_food_level, &r.max_food_level, &r.coop, &r.exclusive, &r.around,
                          &r.straight})
    *number = *n++;
  coterie::State out{};
  const float* noise;
  int64_t* invalid;
  coterie::Reader reader{p};
  reader.take(noise), reader.take(r.sizes), reader.take(r.presents), reader.take(r.max_player_levels);
  reader.take(r.coops), reader.take(out), reader.take(invalid);
  coterie::spawn(r, noise, out, invalid, threads);
}
