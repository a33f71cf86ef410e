// cuSPARSE's generic interface: CSR matrix times vector and times dense matrix, conversion to dense, against the CPU.
#include <cusparse.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr int kRows = 300, kColumns = 200, kSides = 12;

struct Csr {
  std::vector<int> starts{0}, columns;
  std::vector<float> values;
};

// About one entry in eight, some rows empty.
Csr random_matrix() {
  check::Random random(1);
  Csr matrix;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      if (random.next() < 0.75f || row % 17 == 0) continue;
      matrix.columns.push_back(column);
      matrix.values.push_back(random.next());
    }
    matrix.starts.push_back(int(matrix.columns.size()));
  }
  return matrix;
}

std::vector<double> times(const Csr& matrix, const std::vector<float>& dense, int sides) {
  std::vector<double> out(size_t(kRows) * sides);
  for (int side = 0; side < sides; ++side)
    for (int row = 0; row < kRows; ++row)
      for (int i = matrix.starts[row]; i < matrix.starts[row + 1]; ++i)
        out[size_t(side) * kRows + row] +=
            double(matrix.values[i]) * dense[size_t(side) * kColumns + matrix.columns[i]];
  return out;
}

}  // namespace

int main() {
  const Csr matrix = random_matrix();
  check::Random random(2);
  const auto x = random.values<float>(kColumns), b = random.values<float>(kColumns * kSides);
  check::Device<int> starts(matrix.starts), columns(matrix.columns);
  check::Device<float> values(matrix.values), device_x(x), y(kRows), device_b(b), c(size_t(kRows) * kSides),
      dense(size_t(kRows) * kColumns);

  cusparseHandle_t handle;
  cusparseSpMatDescr_t sparse;
  cusparseDnVecDescr_t vector_x, vector_y;
  cusparseDnMatDescr_t matrix_b, matrix_c, matrix_dense;
  CHECK_LIBRARY(cusparseCreate(&handle));
  CHECK_LIBRARY(cusparseCreateCsr(&sparse, kRows, kColumns, int64_t(matrix.values.size()), starts.get(), columns.get(),
                                  values.get(), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                                  CUDA_R_32F));
  CHECK_LIBRARY(cusparseCreateDnVec(&vector_x, kColumns, device_x.get(), CUDA_R_32F));
  CHECK_LIBRARY(cusparseCreateDnVec(&vector_y, kRows, y.get(), CUDA_R_32F));
  CHECK_LIBRARY(
      cusparseCreateDnMat(&matrix_b, kColumns, kSides, kColumns, device_b.get(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  CHECK_LIBRARY(cusparseCreateDnMat(&matrix_c, kRows, kSides, kRows, c.get(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  CHECK_LIBRARY(
      cusparseCreateDnMat(&matrix_dense, kRows, kColumns, kRows, dense.get(), CUDA_R_32F, CUSPARSE_ORDER_COL));

  const float one = 1, zero = 0;
  size_t bytes = 0;
  CHECK_LIBRARY(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, sparse, vector_x, &zero,
                                        vector_y, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, &bytes));
  {
    check::Device<char> buffer(bytes + 1);
    CHECK_LIBRARY(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, sparse, vector_x, &zero, vector_y,
                               CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, buffer.get()));
    check::close("SpMV", y.host(), times(matrix, x, 1), 1e-5);
    check::checksum("SpMV", y.host());
  }
  CHECK_LIBRARY(cusparseSpMM_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                        &one, sparse, matrix_b, &zero, matrix_c, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG3,
                                        &bytes));
  {
    check::Device<char> buffer(bytes + 1);
    CHECK_LIBRARY(cusparseSpMM(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, sparse,
                               matrix_b, &zero, matrix_c, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG3, buffer.get()));
    check::close("SpMM", c.host(), times(matrix, b, kSides), 1e-5);
    check::checksum("SpMM", c.host());
  }
  CHECK_LIBRARY(
      cusparseSparseToDense_bufferSize(handle, sparse, matrix_dense, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, &bytes));
  {
    check::Device<char> buffer(bytes + 1);
    CHECK_LIBRARY(
        cusparseSparseToDense(handle, sparse, matrix_dense, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, buffer.get()));
    std::vector<float> expected(size_t(kRows) * kColumns);
    for (int row = 0; row < kRows; ++row)
      for (int i = matrix.starts[row]; i < matrix.starts[row + 1]; ++i)
        expected[size_t(matrix.columns[i]) * kRows + row] = matrix.values[i];
    check::close("to dense", dense.host(), expected, 0);
  }
  CHECK_LIBRARY(cusparseDestroySpMat(sparse));
  CHECK_LIBRARY(cusparseDestroy(handle));
  std::printf("PASSED\n");
}
