// Ends the program with the place of the failure when a call or a condition fails.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)

#define CUDA(call)                                                                                         \
  do {                                                                                                     \
    const cudaError_t error_of_call = (call);                                                              \
    if (error_of_call != cudaSuccess) {                                                                    \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(error_of_call)); \
      std::exit(1);                                                                                        \
    }                                                                                                      \
  } while (0)
