#include "callbacks.hpp"

#include <cuda.h>

#include <atomic>
#include <stdexcept>

#include "tasks.hpp"

namespace differential {
namespace {

// Written on the driver's threads, read after a synchronisation.
std::atomic<unsigned> g_host{0}, g_stream{0}, g_destroyed{0};
std::atomic<int> g_status{0};

void CUDA_CB on_host(void*) { ++g_host; }
void CUDA_CB on_stream(CUstream, CUresult status, void*) {
  g_status = status;
  ++g_stream;
}
void CUDA_CB on_destroy(void*) { ++g_destroyed; }
void CUDA_CB on_write(void* task) { static_cast<Task*>(task)->write(); }
void CUDA_CB on_read(void* task) { static_cast<Task*>(task)->read(); }
void CUDA_CB on_log(void*, CUlogLevel, char*, size_t) {}

}  // namespace

uint64_t callback_address(std::string_view name) {
  if (name == "host") return reinterpret_cast<uint64_t>(&on_host);
  if (name == "stream") return reinterpret_cast<uint64_t>(&on_stream);
  if (name == "destroy") return reinterpret_cast<uint64_t>(&on_destroy);
  if (name == "write") return reinterpret_cast<uint64_t>(&on_write);
  if (name == "read") return reinterpret_cast<uint64_t>(&on_read);
  if (name == "log") return reinterpret_cast<uint64_t>(&on_log);
  throw std::runtime_error("an unknown function");
}

CallbackCounts callback_counts() { return {g_host, g_stream, g_destroyed, g_status}; }

void reset_callback_counts() {
  g_host = g_stream = g_destroyed = 0;
  g_status = 0;
}

}  // namespace differential
