// cuSOLVER: Cholesky, LU, QR, singular values and eigenvalues of dense matrices in double, each checked by putting the
// factors together again.
#include <algorithm>

#include <cusolverDn.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr int kSize = 96, kSides = 4;
constexpr double kTolerance = 1e-11;
using Matrix = std::vector<double>;

Matrix transposed(const Matrix& a) {
  Matrix t(a.size());
  for (int row = 0; row < kSize; ++row)
    for (int column = 0; column < kSize; ++column) t[size_t(row) * kSize + column] = a[size_t(column) * kSize + row];
  return t;
}
Matrix times(const Matrix& a, const Matrix& b, int columns = kSize) {
  return check::product(a, b, kSize, columns, kSize);
}
Matrix identity() {
  Matrix one(size_t(kSize) * kSize);
  for (int i = 0; i < kSize; ++i) one[size_t(i) * kSize + i] = 1;
  return one;
}
Matrix scaled_columns(Matrix a, const Matrix& factors) {
  for (int column = 0; column < kSize; ++column)
    for (int row = 0; row < kSize; ++row) a[size_t(column) * kSize + row] *= factors[column];
  return a;
}

struct Solver {
  cusolverDnHandle_t handle;
  check::Random random{7};
  check::Device<int> info{1};
  Solver() { CHECK_LIBRARY(cusolverDnCreate(&handle)); }
  ~Solver() { cusolverDnDestroy(handle); }
  Matrix matrix(int columns = kSize) { return random.values<double>(size_t(kSize) * columns); }
  Matrix positive() {
    const Matrix a = matrix();
    Matrix product = times(a, transposed(a));
    for (int i = 0; i < kSize; ++i) product[size_t(i) * kSize + i] += kSize;
    return product;
  }
  void succeeded() { EXPECT(info.host()[0] == 0); }
};

void cholesky(Solver& solver) {
  const Matrix a = solver.positive(), x = solver.matrix(kSides);
  check::Device<double> factor(a), b(times(a, x, kSides));
  int count = 0;
  CHECK_LIBRARY(cusolverDnDpotrf_bufferSize(solver.handle, CUBLAS_FILL_MODE_LOWER, kSize, factor.get(), kSize, &count));
  check::Device<double> work(count + 1);
  CHECK_LIBRARY(cusolverDnDpotrf(solver.handle, CUBLAS_FILL_MODE_LOWER, kSize, factor.get(), kSize, work.get(), count,
                                 solver.info.get()));
  solver.succeeded();
  CHECK_LIBRARY(cusolverDnDpotrs(solver.handle, CUBLAS_FILL_MODE_LOWER, kSize, kSides, factor.get(), kSize, b.get(),
                                 kSize, solver.info.get()));
  solver.succeeded();
  check::close("Cholesky", b.host(), x, kTolerance);
}

void lu(Solver& solver) {
  const Matrix a = solver.matrix(), x = solver.matrix(kSides);
  check::Device<double> factors(a), b(times(a, x, kSides));
  check::Device<int> pivots(kSize);
  int count = 0;
  CHECK_LIBRARY(cusolverDnDgetrf_bufferSize(solver.handle, kSize, kSize, factors.get(), kSize, &count));
  check::Device<double> work(count + 1);
  CHECK_LIBRARY(
      cusolverDnDgetrf(solver.handle, kSize, kSize, factors.get(), kSize, work.get(), pivots.get(), solver.info.get()));
  solver.succeeded();
  CHECK_LIBRARY(cusolverDnDgetrs(solver.handle, CUBLAS_OP_N, kSize, kSides, factors.get(), kSize, pivots.get(), b.get(),
                                 kSize, solver.info.get()));
  check::close("LU", b.host(), x, 1e-9);
}

void qr(Solver& solver) {
  const Matrix a = solver.matrix();
  check::Device<double> factors(a), tau(kSize), q(identity());
  int first = 0, second = 0;
  CHECK_LIBRARY(cusolverDnDgeqrf_bufferSize(solver.handle, kSize, kSize, factors.get(), kSize, &first));
  CHECK_LIBRARY(cusolverDnDormqr_bufferSize(solver.handle, CUBLAS_SIDE_LEFT, CUBLAS_OP_N, kSize, kSize, kSize,
                                            factors.get(), kSize, tau.get(), q.get(), kSize, &second));
  const int count = std::max(first, second);
  check::Device<double> work(count + 1);
  CHECK_LIBRARY(cusolverDnDgeqrf(solver.handle, kSize, kSize, factors.get(), kSize, tau.get(), work.get(), count,
                                 solver.info.get()));
  solver.succeeded();
  CHECK_LIBRARY(cusolverDnDormqr(solver.handle, CUBLAS_SIDE_LEFT, CUBLAS_OP_N, kSize, kSize, kSize, factors.get(),
                                 kSize, tau.get(), q.get(), kSize, work.get(), count, solver.info.get()));
  solver.succeeded();
  Matrix r = factors.host();
  for (int column = 0; column < kSize; ++column)
    for (int row = column + 1; row < kSize; ++row) r[size_t(column) * kSize + row] = 0;
  check::close("QR", times(q.host(), r), a, kTolerance);
  check::close("Q is orthogonal", times(transposed(q.host()), q.host()), identity(), kTolerance);
}

void singular_values(Solver& solver) {
  const Matrix a = solver.matrix();
  check::Device<double> data(a), values(kSize), u(a.size()), v(a.size());
  int count = 0;
  CHECK_LIBRARY(cusolverDnDgesvd_bufferSize(solver.handle, kSize, kSize, &count));
  check::Device<double> work(count + 1);
  CHECK_LIBRARY(cusolverDnDgesvd(solver.handle, 'A', 'A', kSize, kSize, data.get(), kSize, values.get(), u.get(), kSize,
                                 v.get(), kSize, work.get(), count, nullptr, solver.info.get()));
  solver.succeeded();
  const Matrix singular = values.host();
  EXPECT(std::is_sorted(singular.rbegin(), singular.rend()) && singular.back() >= 0);
  check::close("SVD", times(scaled_columns(u.host(), singular), v.host()), a, kTolerance);
}

void eigenvalues(Solver& solver) {
  const Matrix a = solver.positive();
  check::Device<double> vectors(a), values(kSize);
  int count = 0;
  CHECK_LIBRARY(cusolverDnDsyevd_bufferSize(solver.handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, kSize,
                                            vectors.get(), kSize, values.get(), &count));
  check::Device<double> work(count + 1);
  CHECK_LIBRARY(cusolverDnDsyevd(solver.handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, kSize, vectors.get(),
                                 kSize, values.get(), work.get(), count, solver.info.get()));
  solver.succeeded();
  const Matrix w = vectors.host();
  check::close("eigenvalues", times(scaled_columns(w, values.host()), transposed(w)), a, kTolerance);
}

// The library writes the number of the non-positive leading minor to device memory.
void not_positive_definite(Solver& solver) {
  Matrix a = identity();
  a[size_t(5) * kSize + 5] = -1;
  check::Device<double> factor(a);
  int count = 0;
  CHECK_LIBRARY(cusolverDnDpotrf_bufferSize(solver.handle, CUBLAS_FILL_MODE_LOWER, kSize, factor.get(), kSize, &count));
  check::Device<double> work(count + 1);
  CHECK_LIBRARY(cusolverDnDpotrf(solver.handle, CUBLAS_FILL_MODE_LOWER, kSize, factor.get(), kSize, work.get(), count,
                                 solver.info.get()));
  EXPECT(solver.info.host()[0] == 6);
}

}  // namespace

int main() {
  Solver solver;
  cholesky(solver);
  lu(solver);
  qr(solver);
  singular_values(solver);
  eigenvalues(solver);
  not_positive_definite(solver);
  std::printf("PASSED\n");
}
