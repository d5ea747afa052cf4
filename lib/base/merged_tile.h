// Adds the product of two matrices to a part of a matrix.
#pragma once

#include <cstddef>

#include "dsckpt/dtype.h"

namespace dsckpt {

struct MergedTile {
  const float* base;   // rows x columns
  double scale;        // of the product
  const float* left;   // rows x rank
  const float* right;  // rank rows, of `columns` elements each, `pitch` apart
  size_t rows;
  size_t rank;
  size_t columns;
  size_t pitch;
  double right_norm;  // largest_column_norm() of `right`, or of more columns
};

// The largest Euclidean norm of a column of a matrix: infinite or NaN if an element is.
double largest_column_norm(const float* matrix, size_t rows, size_t columns);

// merged[i * columns + j] = base[i * columns + j] + scale * the sum of left[i * rank + k] * right[k
// * pitch + j] over rising k. It is in float64, where each product is exact and every other result
// is rounded one by one, so all processors give the same.
void merge_tile(const MergedTile& tile, double* merged);

// Writes the elements of merge_tile(), rounded by round_float64().
void merge_rounded(const MergedTile& tile, DType to, std::byte* target);

}  // namespace dsckpt
