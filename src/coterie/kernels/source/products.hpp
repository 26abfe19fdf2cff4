// Matrix products of small matrices in registers. Every sum runs over its terms in the order of their indices, so that
// results depend neither on the number of threads nor on the number of rows that are processed together.
#pragma once
#include <type_traits>
#include "vectors.hpp"

namespace coterie {

enum class Start { kZero, kBias, kAdd };

// Rows of the block of C that stays in registers, by the number of its vectors per row.
constexpr int block_rows(int vectors) {
  return kRegisters == 32 ? (vectors == 1 ? 12 : vectors == 2 ? 12 : vectors == 3 ? 8 : 6)
                          : (vectors == 1 ? 8 : vectors == 2 ? 6 : 4);
}
constexpr int kMaxVectors = kRegisters == 32 ? 4 : 3;

template <class T>
void copy_rows(const T* from, int64_t ldf, int64_t rows, int64_t columns, T* to, int64_t ldt) {
  for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * ldt, from + r * ldf, size_t(columns) * sizeof(T));
}

// Copies [rows, columns] into rows of `ldt` numbers, the surplus of which is zero.
template <class T>
void pad_rows(const T* from, int64_t ldf, int64_t rows, int64_t columns, T* to, int64_t ldt) {
  for (int64_t r = 0; r < rows; r++) {
    std::memcpy(to + r * ldt, from + r * ldf, size_t(columns) * sizeof(T));
    for (int64_t j = columns; j < ldt; j++) to[r * ldt + j] = 0;
  }
}

// Copies the transpose of [rows, columns] into `columns` rows of `ldt` numbers, the surplus of which is zero.
template <class T>
void pad_transposed(const T* from, int64_t ldf, int64_t rows, int64_t columns, T* to, int64_t ldt) {
  constexpr int W = kWidth<T>;
  const int64_t whole_rows = rows / W * W, whole_columns = columns / W * W;
  for (int64_t j = 0; j < whole_columns; j += W)
    for (int64_t r = 0; r < whole_rows; r += W) {
      Vec<T> block[W];
      for (int i = 0; i < W; i++) block[i] = load<T>(from + (r + i) * ldf + j);
      transpose<T>(block);
      for (int i = 0; i < W; i++) store<T>(to + (j + i) * ldt + r, block[i]);
    }
  for (int64_t j = 0; j < columns; j++) {
    for (int64_t r = j < whole_columns ? whole_rows : 0; r < rows; r++) to[j * ldt + r] = from[r * ldf + j];
    for (int64_t r = rows; r < ldt; r++) to[j * ldt + r] = 0;
  }
}

template <class T, int M, int N>
inline void product_block(const T* __restrict a, int64_t lda, const T* __restrict b, int64_t ldb, int64_t depth,
                          T* __restrict c, int64_t ldc, Start start, const T* __restrict bias) {
  constexpr int W = kWidth<T>;
  Vec<T> acc[M][N];
#pragma GCC unroll 12
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++)
      acc[i][j] = start == Start::kZero ? Vec<T>{} : load<T>(start == Start::kBias ? bias + j * W : c + i * ldc + j * W);
  for (int64_t k = 0; k < depth; k++) {
    Vec<T> row[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) row[j] = load<T>(b + k * ldb + j * W);
#pragma GCC unroll 12
    for (int i = 0; i < M; i++) {
      const Vec<T> x = fill<T>(a[i * lda + k]);
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) acc[i][j] += x * row[j];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) store<T>(c + i * ldc + j * W, acc[i][j]);
}

template <class T, int N>
void product_columns(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t rows, int64_t depth, T* c, int64_t ldc,
                     Start start, const T* bias) {
  constexpr int M = block_rows(N);
  int64_t r = 0;
  for (; r + M <= rows; r += M) product_block<T, M, N>(a + r * lda, lda, b, ldb, depth, c + r * ldc, ldc, start, bias);
  for (; r + 4 <= rows; r += 4) product_block<T, 4, N>(a + r * lda, lda, b, ldb, depth, c + r * ldc, ldc, start, bias);
  for (; r < rows; r++) product_block<T, 1, N>(a + r * lda, lda, b, ldb, depth, c + r * ldc, ldc, start, bias);
}

constexpr int64_t kLarge = 1 << 20;  // bytes of B that stay in the second-level cache
constexpr int64_t kDepth = 96;       // terms of a sum that are added at a time if B is larger

// The product of N vectors per row of a B whose rows `copy(first, count, to)` copies next to each other, a few at a time.
// Every row of blocks of C would fetch them from memory again; there, they stay in the first-level cache.
template <class T, int N, class Copy>
void product_copied(const T* a, int64_t lda, Copy&& copy, int64_t rows, int64_t depth, T* c, int64_t ldc, Start start,
                    const T* bias) {
  constexpr int64_t columns = N * kWidth<T>;
  alignas(64) T copied[kDepth * columns];
  for (int64_t k = 0; k == 0 || k < depth; k += kDepth) {
    const int64_t terms = k + kDepth < depth ? kDepth : depth - k;
    copy(k, terms, copied);
    product_columns<T, N>(a + k, lda, copied, columns, rows, terms, c, ldc, k == 0 ? start : Start::kAdd, bias);
  }
}

// Calls f with `count`, 1 to 4, as a constant.
template <class F>
inline void with_constant(int64_t count, F&& f) {
  if (count == 4) f(std::integral_constant<int, 4>{});
  if (count == 3) f(std::integral_constant<int, 3>{});
  if (count == 2) f(std::integral_constant<int, 2>{});
  if (count == 1) f(std::integral_constant<int, 1>{});
}

// C = start + A B with A [rows, depth], B [depth, columns] and C [rows, columns]; `columns` is a multiple of the vector
// width. B may consist of some columns of a larger matrix.
template <class T>
void product(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t rows, int64_t depth, int64_t columns, T* c,
             int64_t ldc, Start start, const T* bias = nullptr) {
  constexpr int W = kWidth<T>;
  const bool copied = depth * ldb * int64_t(sizeof(T)) > kLarge && rows > block_rows(kMaxVectors);
  // Rows that fit into one block of fewer vectors read B once.
  const int64_t most = rows > block_rows(kMaxVectors) && rows <= block_rows(3) ? 3 : kMaxVectors;
  int64_t n = columns / W;
  while (n > 0) {
    const int64_t take = n < most ? n : most;
    const auto copy = [=](int64_t k, int64_t terms, T* to) {
      copy_rows(b + k * ldb, ldb, terms, kMaxVectors * W, to, kMaxVectors * W);
    };
    if (copied && take == kMaxVectors)
      product_copied<T, kMaxVectors>(a, lda, copy, rows, depth, c, ldc, start, bias);
    else if (take == 4)
      product_columns<T, 4>(a, lda, b, ldb, rows, depth, c, ldc, start, bias);
    else if (take == 3)
      product_columns<T, 3>(a, lda, b, ldb, rows, depth, c, ldc, start, bias);
    else if (take == 2)
      product_columns<T, 2>(a, lda, b, ldb, rows, depth, c, ldc, start, bias);
    else
      product_columns<T, 1>(a, lda, b, ldb, rows, depth, c, ldc, start, bias);
    b += take * W, c += take * W, n -= take;
    if (bias != nullptr) bias += take * W;
  }
}

// C = A B^T with A [rows, depth], B [columns, depth] and C [rows, padded], the surplus columns of which are zero; `padded`
// is a multiple of the vector width. B may have no columns.
template <class T>
void product_transposed(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t rows, int64_t depth, int64_t columns,
                        int64_t padded, T* c, int64_t ldc) {
  constexpr int64_t W = kWidth<T>, most = kMaxVectors * W;
  for (int64_t j = 0; j < padded; j += most) {
    const int64_t left = columns > j ? columns - j : 0, count = left < most ? left : most;
    with_constant((j + most < padded ? most : padded - j) / W, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      const auto copy = [&](int64_t k, int64_t terms, T* to) {
        pad_transposed(b + j * ldb + k, ldb, count, terms, to, N * W);
      };
      product_copied<T, N>(a, lda, copy, rows, depth, c + j, ldc, Start::kZero, nullptr);
    });
  }
}

template <class T, int M, int N>
inline void outer_block(const T* __restrict a, int64_t lda, const T* __restrict g, int64_t ldg, int64_t rows,
                        T* __restrict c, int64_t ldc) {
  constexpr int W = kWidth<T>;
  Vec<T> acc[M][N];
#pragma GCC unroll 12
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) acc[i][j] = load<T>(c + i * ldc + j * W);
  for (int64_t r = 0; r < rows; r++) {
    Vec<T> row[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) row[j] = load<T>(g + r * ldg + j * W);
#pragma GCC unroll 12
    for (int i = 0; i < M; i++) {
      const Vec<T> x = fill<T>(a[r * lda + i]);
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) acc[i][j] += x * row[j];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < M; i++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) store<T>(c + i * ldc + j * W, acc[i][j]);
}

template <class T, int N>
void outer_columns(const T* a, int64_t lda, const T* g, int64_t ldg, int64_t rows, int64_t depth, T* c, int64_t ldc) {
  constexpr int M = block_rows(N);
  int64_t i = 0;
  for (; i + M <= depth; i += M) outer_block<T, M, N>(a + i, lda, g, ldg, rows, c + i * ldc, ldc);
  for (; i + 4 <= depth; i += 4) outer_block<T, 4, N>(a + i, lda, g, ldg, rows, c + i * ldc, ldc);
  for (; i < depth; i++) outer_block<T, 1, N>(a + i, lda, g, ldg, rows, c + i * ldc, ldc);
}

// C += A^T G with A [rows, depth], G [rows, columns] and C [depth, columns].
template <class T>
void add_outer(const T* a, int64_t lda, const T* g, int64_t ldg, int64_t rows, int64_t depth, int64_t columns, T* c,
               int64_t ldc) {
  constexpr int W = kWidth<T>;
  int64_t n = columns / W;
  while (n > 0) {
    const int64_t take = n < kMaxVectors ? n : kMaxVectors;
    if (take == 4) outer_columns<T, 4>(a, lda, g, ldg, rows, depth, c, ldc);
    if (take == 3) outer_columns<T, 3>(a, lda, g, ldg, rows, depth, c, ldc);
    if (take == 2) outer_columns<T, 2>(a, lda, g, ldg, rows, depth, c, ldc);
    if (take == 1) outer_columns<T, 1>(a, lda, g, ldg, rows, depth, c, ldc);
    g += take * W, c += take * W, n -= take;
  }
}

// c [columns] += the sum of the rows of G.
template <class T>
void add_rows(const T* g, int64_t ldg, int64_t rows, int64_t columns, T* c) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < columns; j += W) {
    Vec<T> total = load<T>(c + j);
    for (int64_t r = 0; r < rows; r++) total += load<T>(g + r * ldg + j);
    store<T>(c + j, total);
  }
}

}  // namespace coterie
