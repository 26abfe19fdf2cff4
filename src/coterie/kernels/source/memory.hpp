// Working memory, and the fixed partition of rows that makes results independent of the number of threads.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <new>
#include "pool.hpp"
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
constexpr int64_t kMinShared = 1 << 18;  // numbers to add, or multiplications of a layer, worth several threads
constexpr int64_t kFetch = 6;          // rows that are processed in the time of fetching the weights from the cache
constexpr int64_t kMinChunk = 5 * kTile;  // rows whose gradients are summed in one buffer, as far as there are rows
constexpr int64_t kMaxChunks = 16;

// Number of chunks, an even one, so that two threads have as much to do. It depends on the number of rows alone.
constexpr int64_t num_chunks(int64_t rows) {
  if (rows <= kMinChunk) return rows > 0;
  const int64_t even = 2 * ceil_div(rows, 2 * kMinChunk);
  return even < kMaxChunks ? even : kMaxChunks;
}

// The first row of a chunk; those of all chunks differ by one tile at most.
constexpr int64_t chunk_start(int64_t rows, int64_t chunk) {
  const int64_t start = chunk * ceil_div(rows, kTile) / num_chunks(rows) * kTile;
  return start < rows ? start : rows;
}

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

// Adds `count` buffers of `size` numbers to the first one, in their order. Without any, the sum is zero.
template <class T>
void sum_parts(T* parts, int64_t count, int64_t size, int threads) {
  if (count == 0) std::memset(parts, 0, size_t(size) * sizeof(T));
  if (count <= 1) return;
  constexpr int64_t block = 4096;
  if (count * size < kMinShared) threads = 1;
  parallel_for({ceil_div(size, block), threads}, [=](int64_t task) {
    const int64_t start = task * block, stop = start + block < size ? start + block : size;
    for (int64_t p = 1; p < count; p++)
      for (int64_t i = start; i < stop; i++) parts[i] += parts[p * size + i];
  });
}

}  // namespace coterie
