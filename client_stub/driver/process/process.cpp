#include "client_stub/driver/process/process.hpp"

namespace gpuwire::client {

// Published by publish_process() with release after the object is complete; partner: process().
constinit std::atomic<Process*> g_process{nullptr};

namespace {

// The reason why g_process is null. Stored before g_process is cleared.
constinit std::atomic<int32_t> g_absent{CUDA_ERROR_NOT_INITIALIZED};

}  // namespace

CUresult absent_process() noexcept { return CUresult(g_absent.load(std::memory_order_acquire)); }

void publish_process(Process& process) noexcept { g_process.store(&process, std::memory_order_release); }

void withdraw_process(CUresult why) noexcept {
  g_absent.store(why, std::memory_order_release);
  g_process.store(nullptr, std::memory_order_release);
}

}  // namespace gpuwire::client
