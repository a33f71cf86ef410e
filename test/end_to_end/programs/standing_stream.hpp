// A stream that the program blocks and releases, so that work queued behind is certainly in flight.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "../../../examples/check.hpp"

class StandingStream {
 public:
  StandingStream() {
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&writes_, cudaStreamNonBlocking));
    CHECK_RUNTIME(cudaMalloc(&word_, sizeof *word_));
    CHECK_RUNTIME(cudaMemset(word_, 0, sizeof *word_));
    CHECK_RUNTIME(cudaDeviceSynchronize());
  }
  StandingStream(const StandingStream&) = delete;
  StandingStream& operator=(const StandingStream&) = delete;

  operator cudaStream_t() const { return stream_; }
  // Whatever is sent to the stream now waits for go().
  void stand() { CHECK_DRIVER(cuStreamWaitValue32(stream_, address(), ++stands_, CU_STREAM_WAIT_VALUE_GEQ)); }
  void go() { CHECK_DRIVER(cuStreamWriteValue32(writes_, address(), stands_, CU_STREAM_WRITE_VALUE_DEFAULT)); }
  // Replaces the stream by a new one; the old one's work continues.
  void replace() {
    CHECK_RUNTIME(cudaStreamDestroy(stream_));
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

 private:
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(word_); }

  cudaStream_t stream_ = nullptr, writes_ = nullptr;
  unsigned* word_ = nullptr;
  unsigned stands_ = 0;
};
