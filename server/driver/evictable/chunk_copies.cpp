#include "server/driver/evictable/chunk_copies.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "server/driver_table.hpp"

namespace gpuwire::server {
namespace {

// The pieces of all chunks, each of at most kCopyStagingBytes.
std::vector<ChunkCopy> pieces_of(std::span<const ChunkCopy> copies) {
  std::vector<ChunkCopy> pieces;
  for (const ChunkCopy& copy : copies)
    for (uint64_t done = 0; done < copy.bytes; done += kCopyStagingBytes)
      pieces.push_back({copy.context, copy.device + done, copy.host + done,
                        std::min<uint64_t>(copy.bytes - done, kCopyStagingBytes)});
  return pieces;
}

class Copies {
 public:
  Copies(const DriverTable& driver, std::vector<ChunkCopy> pieces, CopyDirection direction)
      : driver_(driver), pieces_(std::move(pieces)), direction_(direction) {}

  // Copies pieces until none is left, or one has failed.
  void work() {
    Staging staging(driver_);
    CUcontext current = nullptr;
    while (result_.load(std::memory_order_relaxed) == CUDA_SUCCESS) {
      const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= pieces_.size()) return;
      const ChunkCopy& piece = pieces_[index];
      if (current != piece.context) {
        if (CUresult error = driver_.cuCtxSetCurrent(piece.context)) return fail(error);
        current = piece.context;
      }
      if (CUresult error = copy(piece, staging.memory())) return fail(error);
    }
  }
  CUresult result() const { return CUresult(result_.load(std::memory_order_relaxed)); }

 private:
  // Pinned memory, allocated in the first context. Without it the driver copies from and to pageable memory.
  class Staging {
   public:
    explicit Staging(const DriverTable& driver) : driver_(driver) {}
    ~Staging() {
      if (memory_) driver_.cuMemFreeHost(memory_);
    }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    void* memory() {
      if (!tried_ && driver_.cuMemHostAlloc(&memory_, kCopyStagingBytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
        memory_ = nullptr;
      tried_ = true;
      return memory_;
    }

   private:
    const DriverTable& driver_;
    void* memory_ = nullptr;
    bool tried_ = false;
  };

  CUresult copy(const ChunkCopy& piece, void* staging) const {
    void* const beside = staging ? staging : piece.host;
    if (direction_ == CopyDirection::to_device) {
      if (staging) std::memcpy(staging, piece.host, piece.bytes);
      return driver_.cuMemcpyHtoD_v2(piece.device, beside, piece.bytes);
    }
    const CUresult result = driver_.cuMemcpyDtoH_v2(beside, piece.device, piece.bytes);
    if (result == CUDA_SUCCESS && staging) std::memcpy(piece.host, staging, piece.bytes);
    return result;
  }
  void fail(CUresult error) {
    int none = CUDA_SUCCESS;
    result_.compare_exchange_strong(none, int(error), std::memory_order_relaxed);
  }

  const DriverTable& driver_;
  const std::vector<ChunkCopy> pieces_;
  const CopyDirection direction_;
  // Relaxed, like result_: pieces_ was written before the threads began, and their end is waited for.
  std::atomic<size_t> next_{0};
  std::atomic<int> result_{CUDA_SUCCESS};
};

}  // namespace

CUresult copy_chunks(const DriverTable& driver, std::span<const ChunkCopy> copies, CopyDirection direction,
                     unsigned threads_max) {
  std::vector<ChunkCopy> pieces = pieces_of(copies);
  if (pieces.empty()) return CUDA_SUCCESS;
  const auto count = unsigned(std::min<size_t>(pieces.size(), std::clamp(threads_max, 1u, kCopyThreadsMax)));
  Copies all(driver, std::move(pieces), direction);
  std::vector<std::thread> threads;
  try {
    threads.reserve(count);
    for (unsigned i = 0; i < count; ++i) threads.emplace_back([&all] { all.work(); });
  } catch (const std::system_error&) {
    // The threads that have begun make all copies.
  }
  const bool none = threads.empty();
  for (std::thread& thread : threads) thread.join();
  return none ? CUDA_ERROR_OPERATING_SYSTEM : all.result();
}

}  // namespace gpuwire::server
