// A driver whose work ends on the test's signal. One object at a time, because a driver table's functions have only
// their arguments.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "server/driver_table.hpp"

// Any thread.
class FakeGpu {
 public:
  FakeGpu();
  ~FakeGpu();
  const gpuwire::server::DriverTable& table() const { return table_; }

  // Pending kernels and the events behind them end in order; words are written in their turn.
  size_t in_flight();
  size_t launched();
  void finish(size_t operations);
  void finish_all();
  // Ends so many of a stream's kernels, and the work behind them. Streams run concurrently; an event for the whole
  // context waits for all earlier work.
  void finish_in(CUstream stream, size_t kernels);
  // Writes only a word in front: the context has got the GPU.
  void begin();
  size_t events_recorded();
  size_t events_alive();
  size_t everything_recorded();  // the number of calls of cuCtxRecordEvent
  bool recorded_into_a_capture();
  // Calls that end a context block, as for its kernels, until they are released.
  void hold_endings(bool hold);
  size_t ending();
  // As if another user retained the primary context, too.
  void share_primary();
  void set_capturing(CUstream stream, bool capturing);
  // Invalidates the capture: its stream stays capturing until the capture or the stream ends.
  void invalidate_capture(CUstream stream);
  // Whether a destroyed stream was asked for its capture.
  bool asked_a_destroyed_stream();

  // Contexts are numbers, so many for each device.
  static constexpr uintptr_t kContextsOfDevice = 0x100000;
  static CUcontext context();
  static CUcontext context(uintptr_t number, int device = 0) {
    return reinterpret_cast<CUcontext>(uintptr_t(device) * kContextsOfDevice + number);
  }
  static CUstream stream(uintptr_t number) { return reinterpret_cast<CUstream>(number); }

 private:
  enum class Kind { work, event, word };
  struct Operation {
    Kind kind;
    CUevent event = nullptr;
    uint32_t* word = nullptr;
    uint32_t value = 0;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    bool everything = false;
  };
  struct Event {
    CUcontext context = nullptr;
    size_t pending = 0;  // the number of its pending records
  };
  struct Calls;
  CUresult add(CUevent event, CUstream stream, bool everything);
  CUresult end(CUcontext context);
  void run(const Operation& operation);

  std::mutex mutex_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> pinned_;
  gpuwire::server::DriverTable table_;
  std::deque<Operation> queue_;
  std::map<CUevent, Event> events_;
  struct Capture {
    CUcontext context = nullptr;
    bool invalidated = false;
  };
  bool is_capturing() const;
  std::map<CUstream, Capture> capturing_;
  std::set<CUstream> destroyed_;
  bool asked_destroyed_ = false;
  uintptr_t next_event_ = 0x1000;
  size_t launched_ = 0, recorded_ = 0, everything_ = 0;
  size_t ending_ = 0, primary_users_ = 1;
  bool hold_endings_ = false;
  std::condition_variable let_go_;
  bool broke_capture_ = false;
};
