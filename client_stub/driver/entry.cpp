#include "client_stub/driver/entry.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "client_stub/driver/error_text.hpp"
#include "client_stub/driver/process.hpp"
#include "client_stub/driver/say.hpp"

namespace gpuwire::client {

constinit std::atomic<bool> g_observed{false};

namespace {

constexpr unsigned kTraceLineBytesMax = 2048;  // longer lines are cut

// Set before the library's first call can be made, by observe_from_environment(); then constant.
int g_trace = -1;
bool g_stats = false;
uint64_t g_started_ns = 0;

struct alignas(64) Counters {
  std::atomic<uint64_t> by_class[3] = {};  // relaxed: read when the program ends
};
constinit Counters g_counters;

uint64_t now_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

// How many frames of each kind had been sent when the thread's call began. Host functions of the program run on a thread of their own, so
// calls do not nest.
struct Sent {
  uint64_t posted, called;
};
thread_local constinit Sent t_before __attribute__((tls_model("initial-exec"))) = {0, 0};

Sent sent_so_far() noexcept {
  Process* owner = process();
  if (!owner) return {0, 0};
  SessionStats& stats = owner->session->stats();
  return {stats.posted.load(std::memory_order_relaxed), stats.called.load(std::memory_order_relaxed)};
}

// What the description allows a call to send is not always sent: the class that the call turned out to have. Frames of other threads
// in between can only leave it at what is described.
CallClass actual_class(CallClass described) noexcept {
  Sent now = sent_so_far();
  if (described == CallClass::local || (now.posted == t_before.posted && now.called == t_before.called)) return CallClass::local;
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

void print_bytes(char* out, size_t out_bytes, uint64_t bytes) noexcept {
  if (bytes >= 10u << 20) {
    std::snprintf(out, out_bytes, "%.1f MiB", double(bytes) / (1 << 20));
  } else if (bytes >= 10u << 10) {
    std::snprintf(out, out_bytes, "%.1f KiB", double(bytes) / 1024);
  } else {
    std::snprintf(out, out_bytes, "%" PRIu64 " bytes", bytes);
  }
}

}  // namespace

void observe_from_environment() noexcept {
  g_started_ns = now_ns();
  const char* stats = std::getenv("GPUWIRE_STATS");
  g_stats = stats && *stats && *stats != '0';
  if (const char* path = std::getenv("GPUWIRE_TRACE"); path && *path) {
    // Appending: each line is one write, so that threads, forked children and child programs may share the file.
    g_trace = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (g_trace < 0) say("cannot write the trace file named by GPUWIRE_TRACE");
  }
  g_observed.store(g_stats || g_trace >= 0, std::memory_order_relaxed);
}

uint64_t observe_begin() noexcept {
  t_before = sent_so_far();
  return now_ns();
}

void observe_end(uint64_t started, const char* name, CallClass described, CUresult result, ArgumentPrinter print,
                 const void* arguments) noexcept {
  uint64_t ended = now_ns();
  CallClass call_class = actual_class(described);
  g_counters.by_class[unsigned(call_class)].fetch_add(1, std::memory_order_relaxed);
  if (g_trace < 0) return;
  char text[kTraceLineBytesMax];
  text[0] = 0;
  if (print) print(arguments, text, sizeof text);
  text[sizeof text - 1] = 0;
  char line[kTraceLineBytesMax + 256];
  const char* result_name = error_name(result);
  int length = std::snprintf(line, sizeof line, "%.6f %ld %s(%s) %s = %s %.1f us\n", double(started - g_started_ns) / 1e9,
                             long(::syscall(SYS_gettid)), name, text, class_name(call_class), result_name ? result_name : "?",
                             double(ended - started) / 1e3);
  if (length <= 0) return;
  [[maybe_unused]] ssize_t written = ::write(g_trace, line, std::min(size_t(length), sizeof line - 1));
}

void print_account(const Process& owner) noexcept {
  if (!g_stats) return;
  const ServerFacts& server = owner.session->facts();
  SessionStats& stats = owner.session->stats();
  char sent[32], received[32], line[512];
  print_bytes(sent, sizeof sent, stats.bytes_sent.load(std::memory_order_relaxed));
  print_bytes(received, sizeof received, stats.bytes_received.load(std::memory_order_relaxed));
  for (size_t i = 0; i < owner.devices.size(); ++i) {
    std::snprintf(line, sizeof line, "device %zu: %s", i, owner.devices[i].facts->name.c_str());
    say(line);
  }
  std::snprintf(line, sizeof line, "server: %s, release %s, driver %s", server.address.c_str(), server.release.c_str(), server.driver_name.c_str());
  say(line);
  auto count = [](CallClass call_class) { return g_counters.by_class[unsigned(call_class)].load(std::memory_order_relaxed); };
  std::snprintf(line, sizeof line, "calls: %" PRIu64 " local, %" PRIu64 " posted, %" PRIu64 " called", count(CallClass::local),
                count(CallClass::posted), count(CallClass::called));
  say(line);
  std::snprintf(line, sizeof line, "sent %s in %" PRIu64 " writes, received %s", sent, stats.flushes.load(std::memory_order_relaxed), received);
  say(line);
  std::snprintf(line, sizeof line, "waits: %" PRIu64 ", %.2f ms; elapsed %.1f ms", stats.waits.load(std::memory_order_relaxed),
                double(stats.wait_ns.load(std::memory_order_relaxed)) / 1e6, double(now_ns() - g_started_ns) / 1e6);
  say(line);
}

}  // namespace gpuwire::client
