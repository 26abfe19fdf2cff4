// Mean and summed squared deviation of the columns of a matrix over valid rows, added to those of older data.
#include "memory.hpp"

namespace coterie {

// Count, mean [D] and deviation [D] in float64. Source: Chan, Golub and LeVeque 1983, parallel variance.
struct Moments {
  double *count, *mean, *deviation;
};

template <class T>
void update_moments(int64_t rows, int64_t columns, const T* x, const bool* valid, const Moments& before,
                    const Moments& after) {
  double count = 0, *mean = after.mean, *deviation = after.deviation;
  for (int64_t j = 0; j < columns; j++) mean[j] = deviation[j] = 0;
  for (int64_t r = 0; r < rows; r++) {
    if (valid != nullptr && !valid[r]) continue;
    count++;
    for (int64_t j = 0; j < columns; j++) mean[j] += double(x[r * columns + j]);
  }
  for (int64_t j = 0; j < columns; j++) mean[j] /= count > 1 ? count : 1;
  for (int64_t r = 0; r < rows; r++) {
    if (valid != nullptr && !valid[r]) continue;
    for (int64_t j = 0; j < columns; j++) {
      const double d = double(x[r * columns + j]) - mean[j];
      deviation[j] += d * d;
    }
  }
  const double sum = *before.count + count, total = sum > 1 ? sum : 1;
  for (int64_t j = 0; j < columns; j++) {
    const double shift = mean[j] - before.mean[j];
    mean[j] = before.mean[j] + shift * count / total;
    deviation[j] += before.deviation[j] + shift * shift * *before.count * count / total;
  }
  *after.count = sum;
}

}  // namespace coterie

// n: rows, columns. p: count, mean and deviation before, and after.
#define COTERIE_MOMENTS(T, SUFFIX)                                                                                     \
  COTERIE_API void coterie_moments_##SUFFIX(const int64_t* n, const T* x, const bool* valid, double* const* p, int) {  \
    coterie::update_moments<T>(n[0], n[1], x, valid, {p[0], p[1], p[2]}, {p[3], p[4], p[5]});                          \
  }
COTERIE_MOMENTS(float, f32)
COTERIE_MOMENTS(double, f64)
