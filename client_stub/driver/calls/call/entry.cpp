#include "client_stub/driver/calls/call/entry.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "client/trace.hpp"
#include "client_stub/driver/state/call/account.hpp"
#include "client_stub/driver/process/clock.hpp"
#include "client_stub/driver/process/error_log.hpp"
#include "client_stub/driver/process/error_text.hpp"
#include "client_stub/driver/state/managed_memory/managed_faults.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/process/profile_file.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/session/device_output.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/session/environment.hpp"
#include "client_stub/session/file_limit.hpp"
#include "protocol/transport/own_descriptor.hpp"

namespace gpuwire::client {
namespace {

// Longer lines are truncated.
constexpr unsigned kTraceLineBytesMax = 2048;
constexpr unsigned kTracePathShownMax = 512;

// observe_from_environment() sets these variables before the library's first call; afterwards they are constant.
constinit transport::LastingDescriptor g_trace;
bool g_profile = false;
uint64_t g_started_ns = 0;

// The session's frames of each kind, and the thread's traffic, at the beginning of the thread's call. One value per
// thread is enough, because calls do not nest: host functions of the program run on a thread of their own.
struct Sent {
  uint64_t posted, called;
};
thread_local constinit Sent t_before __attribute__((tls_model("initial-exec"))) = {0, 0};
thread_local constinit ThreadTraffic t_traffic_before __attribute__((tls_model("initial-exec"))) = {};

Sent sent_so_far() noexcept {
  Process* owner = process();
  if (!owner) return {0, 0};
  SessionStats& stats = owner->connection->stats();
  return {stats.posted.load(std::memory_order_relaxed), stats.called.load(std::memory_order_relaxed)};
}

// Returns the class that the call turned out to have, because a call may send less than its description allows. Frames
// that other threads send meanwhile can only raise the result, at most to the described class.
CallClass actual_class(CallClass described) noexcept {
  Sent now = sent_so_far();
  if (described == CallClass::local || (now.posted == t_before.posted && now.called == t_before.called))
    return CallClass::local;
  return now.called == t_before.called ? CallClass::posted : described;
}

const char* class_name(CallClass call_class) noexcept {
  switch (call_class) {
    case CallClass::local: return "local";
    case CallClass::posted: return "posted";
    case CallClass::called: return "called";
  }
  return "";
}

// Writes the call as an event with its sent and received bytes. Its waits are separate spans within the event's time.
void profile_call(uint64_t started, uint64_t ended, const char* name, CallClass call_class, CUresult result) noexcept {
  char text[256];
  size_t length = 0;
  auto add = [&](const char* format, auto value) {
    const int more = std::snprintf(text + length, sizeof text - length, format, value);
    if (more > 0) length = std::min(length + size_t(more), sizeof text - 1);
  };
  add(R"("class":"%s")", class_name(call_class));
  const char* error = result == CUDA_SUCCESS ? nullptr : error_name(result);
  if (result != CUDA_SUCCESS) add(R"(,"result":"%s")", error ? error : "?");
  const uint64_t sent = t_traffic.bytes_sent - t_traffic_before.bytes_sent;
  const uint64_t received = t_traffic.bytes_received - t_traffic_before.bytes_received;
  if (sent) add(R"(,"bytes_sent":%llu)", static_cast<unsigned long long>(sent));
  if (received) add(R"(,"bytes_received":%llu)", static_cast<unsigned long long>(received));
  profile_span("api", name, started, ended, {text, length});
}

}  // namespace

void observe_from_environment() noexcept {
  transport::share_numbers_with_program();
  g_started_ns = monotonic_ns();
  const bool accounts = begin_account_from_environment();
  if (const char* path = setting("GPUWIRE_TRACE"); path && *path) {
    // The file is opened for appending and each line is one write, so threads, forked children and child programs can
    // share the file.
    g_trace.it = transport::OwnDescriptor(::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!g_trace.it) {
      int error = errno;
      char line[kTracePathShownMax + 128];
      std::snprintf(line, sizeof line, "cannot write the trace file %.*s: %s", int(kTracePathShownMax), path,
                    std::strerror(error));
      log_stderr(line);
    }
  }
  g_profile = begin_profile_from_environment();
  if (accounts || g_trace.it || g_profile) g_entry.fetch_or(kObserved, std::memory_order_relaxed);
}

uint64_t observe_begin() noexcept {
  t_before = sent_so_far();
  t_pageable = false;
  t_traffic_before = t_traffic;
  return monotonic_ns();
}

void observe_end(uint64_t started, const char* name, CallClass described, CUresult result, ArgumentPrinter print,
                 const void* arguments) noexcept {
  uint64_t ended = monotonic_ns();
  CallClass call_class = actual_class(described);
  account_call(name, call_class, t_traffic_before, t_traffic, ended - started);
  if (g_profile) profile_call(started, ended, name, call_class, result);
  if (!g_trace.it) return;
  char text[kTraceLineBytesMax];
  text[0] = 0;
  if (print) print(arguments, text, sizeof text);
  text[sizeof text - 1] = 0;
  char line[kTraceLineBytesMax + 256];
  const char* result_name = error_name(result);
  int length = std::snprintf(line, sizeof line, "%.6f %ld %s(%s) %s = %s %.1f us\n",
                             double(started - g_started_ns) / 1e9, long(::syscall(SYS_gettid)), name, text,
                             class_name(call_class), result_name ? result_name : "?", double(ended - started) / 1e3);
  if (length <= 0 || !g_trace.it.is_ours()) return;
  const size_t bytes = std::min(size_t(length), sizeof line - 1);
  if (!may_write(g_trace.it.get(), bytes)) return;
  [[maybe_unused]] ssize_t written = ::write(g_trace.it.get(), line, bytes);
}

namespace {

bool hold_one(uint64_t address) noexcept {
  ManagedMemory* memory = managed_faults().holder(address);
  return memory && memory->hold(address);
}

}  // namespace

void HeldArguments::hold(const void* arguments) noexcept {
  // An upper bound of the memory that a call accesses at one pointer. A longer list ends in memory that is already
  // accessible, or faults before the call takes a lock.
  constexpr uint64_t kReachBytes = 4096;
  if (!process()) return;
  const auto& call = *static_cast<const trace::Arguments<1>*>(arguments);
  const uint64_t* words = call.words;
  for (unsigned i = 0; i < call.layout->count && count_ + 2 <= kHeldMax; ++i) {
    if (call.layout->parameters[i].format != trace::Format::memory) continue;
    uint64_t first = words[i], last = words[i] + kReachBytes;
    if (!hold_one(first)) continue;
    held_[count_++] = first;
    bool another = first / ManagedSegment::kChunkBytes != last / ManagedSegment::kChunkBytes;
    if (another && hold_one(last)) held_[count_++] = last;
  }
}

void HeldArguments::release() noexcept {
  while (count_) {
    const uint64_t address = held_[--count_];
    if (ManagedMemory* memory = managed_faults().holder(address)) memory->release(address);
  }
}

// Text of device code arrives until the connection is closed; the process writes the last of it when it exits.
void write_device_output() noexcept {
  if (Process* owner = process()) owner->server->device_output.write();
}

void note_failure(const char* name, CUresult result) noexcept { error_log().note(name, result); }

}  // namespace gpuwire::client
