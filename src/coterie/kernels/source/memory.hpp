// Working memory, and the fixed partition of rows that makes results independent of the number of threads.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <new>
#include "vectors.hpp"

#define COTERIE_API extern "C" __attribute__((visibility("default")))

namespace coterie {

// Uninitialized memory, aligned to cache lines.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t size) {
    const size_t bytes = (size_t(size > 0 ? size : 1) * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return data_; }
  operator T*() const { return data_; }

 private:
  T* data_;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t kTile = 48;         // rows whose intermediate results stay in the first-level cache
constexpr int64_t kMinSplit = 1 << 20;  // multiplications that are worth several threads for fewer rows than a tile
constexpr int64_t kFetch = 6;          // rows that are processed in the time of fetching the weights from the cache
constexpr int64_t kMinChunk = 5 * kTile;  // rows whose gradients are summed in one buffer, at least
constexpr int64_t kMaxChunks = 16;

// Rows of a chunk. Depends on the number of rows alone.
constexpr int64_t chunk_rows(int64_t rows) {
  const int64_t even = ceil_div(ceil_div(rows, kMaxChunks), kTile) * kTile;
  return even < kMinChunk ? kMinChunk : even;
}

constexpr int64_t num_chunks(int64_t rows) { return rows == 0 ? 0 : ceil_div(rows, chunk_rows(rows)); }

constexpr int64_t kPieces[] = {kTile, 42, 36, 30, 24, 18, 16, 12, 8};

// Rows of each of `sets` batches that one thread processes at a time: a tile, or fewer if that ends earlier.
constexpr int64_t piece_rows(int64_t sets, int64_t rows, int64_t multiplications, int threads) {
  if (sets * rows * multiplications < kMinSplit) return kTile;
  int64_t best = kTile, least = INT64_MAX;
  for (const int64_t piece : kPieces) {
    const int64_t pieces_per_thread = ceil_div(sets * ceil_div(rows, piece), threads);
    const int64_t time = pieces_per_thread * ((rows < piece ? rows : piece) + kFetch);
    if (time < least) best = piece, least = time;
  }
  return best;
}

// out [rows, columns] = the sum over parts, in their order, of buffers with rows of `ld` numbers.
template <class T>
void sum_parts(const T* parts, int64_t count, int64_t stride, int64_t rows, int64_t columns, int64_t ld, T* out) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < columns; j++) {
      T total = 0;
      for (int64_t p = 0; p < count; p++) total += parts[p * stride + r * ld + j];
      out[r * columns + j] = total;
    }
}

}  // namespace coterie
