// A driver that executes work at once, or holds its streams' work until the test releases it. Device memory is the
// test's own.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/driver_table.hpp"

namespace gpuwire::test {

// Driver functions are free functions, so there is one fake at a time: they use the one constructed last.
class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();

  server::DriverTable table;
  std::vector<std::string> log;              // one entry for each call that changes something
  std::map<std::string, CUresult> failures;  // by function: its result, instead of an effect
  bool hold = false;                         // stream work waits for release()
  bool capturing = false;                    // the answer of cuStreamIsCapturing
  size_t free_bytes = size_t{1} << 34;       // the answer of cuMemGetInfo
  // Each function calls this first, with its name, on its caller's thread: events during the call.
  std::function<void(std::string_view)> during;

  // Existing objects.
  std::set<void*> events, modules, libraries, contexts, registered;
  std::map<int, int> primaries;  // by device: the number of retains
  CUcontext current = nullptr;
  std::map<CUstream, CUcontext> stream_contexts;      // of streams of other contexts than the current one
  std::vector<std::byte> parameters;                  // of the last launch
  CUlaunchConfig config{};                            // of the last cuLaunchKernelEx
  std::vector<CUlaunchAttribute> attributes;          // of the last cuLaunchKernelEx
  std::vector<std::function<void()>> host_functions;  // queued callbacks, run by the test

  // Runs held work: `count` operations, or all.
  void release(size_t count = ~size_t{0});
  void enqueue(std::function<void()> work);
  // cuStreamWriteValue32_v2 of the present fake. It is not in the table, because it writes to any address.
  static CUresult CUDAAPI write_word(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
  CUresult note(const char* name, const std::string& entry);
  size_t count(const std::string& prefix) const;
  void* make();

  std::map<void*, bool> event_done;
  std::map<std::string, void*> kernels;  // the kernels that were looked up, of any library
  // A test's watcher and waiters may have threads of their own.
  std::recursive_mutex mutex;

 private:
  std::deque<std::function<void()>> held_;
  uintptr_t next_ = 0x1000;
};

}  // namespace gpuwire::test
