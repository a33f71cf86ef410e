// A driver that does what it is told at once, or holds the work of its streams until the test lets it go. Device memory
// is the test's own.
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

// Driver functions are free functions, so there is one fake at a time: constructing it makes it the one that they
// reach.
class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();

  server::DriverTable table;
  std::vector<std::string> log;              // one entry for each call that changes something
  std::map<std::string, CUresult> failures;  // by function: what it answers instead of doing anything
  bool hold = false;                         // stream work waits for release()
  bool capturing = false;                    // what cuStreamIsCapturing answers
  size_t free_bytes = size_t{1} << 34;       // what cuMemGetInfo answers
  // Called first by each function, with its name, on the thread that has called it: what happens while a call lasts.
  std::function<void(std::string_view)> during;

  // What exists now.
  std::set<void*> events, modules, libraries, contexts, registered;
  std::map<int, int> primaries;  // by device: how often retained
  CUcontext current = nullptr;
  std::map<CUstream, CUcontext> stream_contexts;      // of streams that are not of the current one
  std::vector<std::byte> parameters;                  // of the last launch
  CUlaunchConfig config{};                            // of the last cuLaunchKernelEx
  std::vector<CUlaunchAttribute> attributes;          // of the last cuLaunchKernelEx
  std::vector<std::function<void()>> host_functions;  // queued callbacks, run by the test

  // Runs what is held: `count` operations, or all.
  void release(size_t count = ~size_t{0});
  void enqueue(std::function<void()> work);
  // cuStreamWriteValue32_v2, of the one there is. Not in the table: it writes wherever it is told to.
  static CUresult CUDAAPI write_word(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
  CUresult note(const char* name, const std::string& entry);
  size_t count(const std::string& prefix) const;
  void* make();

  std::map<void*, bool> event_done;
  std::map<std::string, void*> kernels;  // those that were looked up, of whichever library
  // Watcher and waiters of a test may be threads of their own.
  std::recursive_mutex mutex;

 private:
  std::deque<std::function<void()>> held_;
  uintptr_t next_ = 0x1000;
};

}  // namespace gpuwire::test
