#include "client_stub/driver/process/tools.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "client_stub/driver/process/log_stderr.hpp"

namespace gpuwire::client {
namespace {

struct Tool {
  std::string_view library;  // the first letters of its file's name
  const char* line;
  std::atomic_flag said;
};

Tool g_tools[] = {
    {"libcupti.so",
     "CUPTI cannot reach the server's GPU: profilers (torch.profiler, Nsight) record no GPU activity; "
     "`gpuwire run --profile FILE` does",
     {}},
    {"libsanitizer-",
     "compute-sanitizer does not work through gpuwire: nothing is checked; run it on a machine with the GPU",
     {}},
    {"libcuda-injection.so",
     "Nsight Compute does not work through gpuwire: nothing is profiled; run it on a machine with the GPU",
     {}},
    {"libToolsInjection", "Nsight Systems cannot reach the server's GPU: no GPU activity is recorded", {}},
};

// The start of a small file of /proc, as text.
std::string_view read_start(const char* path, char* out, size_t bytes_max) noexcept {
  int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  ssize_t got = ::read(file, out, bytes_max);
  ::close(file);
  return {out, got > 0 ? size_t(got) : 0};
}

// cuda-gdb is several programs, whose names all begin with "cuda-gdb".
bool traced_by_cuda_gdb() noexcept {
  constexpr std::string_view kTracer = "TracerPid:\t", kDebugger = "cuda-gdb";
  char text[2048], path[64];
  std::string_view status = read_start("/proc/self/status", text, sizeof text - 1);
  size_t at = status.find(kTracer);
  if (at == std::string_view::npos) return false;
  text[status.size()] = 0;
  long tracer = std::strtol(text + at + kTracer.size(), nullptr, 10);
  if (tracer <= 0) return false;
  std::snprintf(path, sizeof path, "/proc/%ld/comm", tracer);
  return read_start(path, text, sizeof text).starts_with(kDebugger);
}

}  // namespace

void report_attached_tools() noexcept {
  // The driver would load this library and call into it (CUPTI documentation, "Injection").
  if (const char* injected = std::getenv("CUDA_INJECTION64_PATH"); injected && *injected) {
    try {
      log_stderr("the tool named by CUDA_INJECTION64_PATH is not loaded (" + std::string(injected) +
                 "): compute-sanitizer, Nsight and CUPTI tools do not work through gpuwire");
    } catch (...) {  // no memory
    }
  }
  if (traced_by_cuda_gdb())
    log_stderr("cuda-gdb sees only this program's host code: device code runs on the server, out of its reach");
}

void report_refused_table(const CUuuid* id) noexcept {
  Dl_info holder{};
  if (!::dladdr(id, &holder) || !holder.dli_fname) return;
  const char* slash = std::strrchr(holder.dli_fname, '/');
  std::string_view name = slash ? slash + 1 : holder.dli_fname;
  for (Tool& tool : g_tools) {
    // Relaxed: the first thread prints the line.
    if (name.starts_with(tool.library) && !tool.said.test_and_set(std::memory_order_relaxed)) log_stderr(tool.line);
  }
}

}  // namespace gpuwire::client
