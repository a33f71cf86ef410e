// Ends an example with the failing call's name: examples check every result.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK_RUNTIME(call)                                                                                \
  do {                                                                                                     \
    cudaError_t check_error = (call);                                                                      \
    if (check_error != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(check_error)); \
      std::exit(EXIT_FAILURE);                                                                             \
    }                                                                                                      \
  } while (0)

#define CHECK_DRIVER(call)                                                                                           \
  do {                                                                                                               \
    CUresult check_result = (call);                                                                                  \
    if (check_result != CUDA_SUCCESS) {                                                                              \
      const char* check_text = nullptr;                                                                              \
      cuGetErrorString(check_result, &check_text);                                                                   \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, check_text ? check_text : "unknown error"); \
      std::exit(EXIT_FAILURE);                                                                                       \
    }                                                                                                                \
  } while (0)
