#include "client_stub/driver/call/account.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/session_sends.hpp"
#include "client_stub/driver/call/advice.hpp"
#include "client_stub/driver/session/process.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/session/road.hpp"
#include "schema/session.capnp.h"
#include "wire/session_messages.hpp"

namespace gpuwire::client {

namespace {

// More than twice the exported names, so that a search is short. What does not fit is counted with the calls that have
// no name.
constexpr size_t kFunctionsMax = 2048;

// All relaxed: each counter stands for itself and is read when the program ends. `name` is set once, by the thread that
// finds it null.
struct FunctionCosts {
  std::atomic<const char*> name{nullptr};
  std::atomic<uint64_t> calls{0}, waits{0}, wait_ns{0}, ns{0}, sent{0}, received{0}, stalls{0};
  std::atomic<uint64_t> pageable_waits{0};  // of waits
};
constinit std::array<FunctionCosts, kFunctionsMax> g_functions{};
constinit std::array<std::atomic<uint64_t>, 3> g_by_class{};
constinit ImageTraffic g_images;

// Written by ask_server_account() and read by print_account(), both on the thread that ends the program.
struct ServerAccount {
  uint64_t round_trip_ns = 0;
  std::optional<ServerTimes> times;
};
ServerAccount g_server_account;

FunctionCosts* costs_of(const char* name) noexcept {
  size_t at = (reinterpret_cast<uintptr_t>(name) * 0x9E3779B97F4A7C15u) >> 53;
  static_assert(kFunctionsMax == size_t{1} << (64 - 53));
  for (size_t tried = 0; tried < kFunctionsMax; ++tried, at = (at + 1) % kFunctionsMax) {
    const char* there = g_functions[at].name.load(std::memory_order_relaxed);
    if (!there && g_functions[at].name.compare_exchange_strong(there, name, std::memory_order_relaxed))
      return &g_functions[at];
    if (there == name) return &g_functions[at];
  }
  return nullptr;
}

void add(std::atomic<uint64_t>& counter, uint64_t by) noexcept {
  if (by) counter.fetch_add(by, std::memory_order_relaxed);
}

std::string bytes_text(uint64_t bytes) {
  char out[32];
  if (bytes >= 10u << 20) {
    std::snprintf(out, sizeof out, "%.1f MiB", double(bytes) / (1 << 20));
  } else if (bytes >= 10u << 10) {
    std::snprintf(out, sizeof out, "%.1f KiB", double(bytes) / 1024);
  } else {
    std::snprintf(out, sizeof out, "%" PRIu64 " bytes", bytes);
  }
  return out;
}

template <class... Values>
void line(std::string& text, const char* format, Values... values) {
  char out[512];
  std::snprintf(out, sizeof out, format, values...);
  text.append("gpuwire: ").append(out).append("\n");
}

// Plain numbers, so that two functions of one name can be added up.
struct Row {
  std::string_view name;
  uint64_t calls = 0, waits = 0, wait_ns = 0, ns = 0, sent = 0, received = 0, stalls = 0, pageable_waits = 0;
};

std::vector<Row> rows() {
  std::vector<Row> out;
  for (auto& costs : g_functions) {
    const char* name = costs.name.load(std::memory_order_relaxed);
    if (!name) continue;
    auto row = std::find_if(out.begin(), out.end(), [&](const Row& other) { return other.name == name; });
    if (row == out.end()) row = out.insert(out.end(), Row{.name = name});
    row->calls += costs.calls.load(std::memory_order_relaxed);
    row->waits += costs.waits.load(std::memory_order_relaxed);
    row->wait_ns += costs.wait_ns.load(std::memory_order_relaxed);
    row->ns += costs.ns.load(std::memory_order_relaxed);
    row->sent += costs.sent.load(std::memory_order_relaxed);
    row->received += costs.received.load(std::memory_order_relaxed);
    row->stalls += costs.stalls.load(std::memory_order_relaxed);
    row->pageable_waits += costs.pageable_waits.load(std::memory_order_relaxed);
  }
  return out;
}

void table(std::string& text, const SessionStats& stats) {
  std::vector<Row> all = rows();
  Row rest{.name = "(not in a call)"};  // the handshake, callbacks, exit
  rest.waits = stats.waits.load(std::memory_order_relaxed);
  rest.wait_ns = stats.wait_ns.load(std::memory_order_relaxed);
  for (const Row& row : all) {
    rest.waits -= std::min(rest.waits, row.waits);
    rest.wait_ns -= std::min(rest.wait_ns, row.wait_ns);
  }
  if (rest.waits) all.push_back(rest);
  std::sort(all.begin(), all.end(),
            [](const Row& a, const Row& b) { return a.waits != b.waits ? a.waits > b.waits : a.ns > b.ns; });
  line(text, "%-48s %9s %7s %10s %10s %12s %12s", "function", "calls", "waits", "ms waited", "ms in all", "sent",
       "received");
  for (const Row& row : all) {
    line(text, "%-48.*s %9" PRIu64 " %7" PRIu64 " %10.2f %10.2f %12s %12s", int(row.name.size()), row.name.data(),
         row.calls, row.waits, double(row.wait_ns) / 1e6, double(row.ns) / 1e6, bytes_text(row.sent).c_str(),
         bytes_text(row.received).c_str());
  }
}

void summary(std::string& text, const Process& owner, uint64_t elapsed_ns) {
  const ServerFacts& server = owner.server->connection().facts();
  SessionStats& stats = owner.server->connection().stats();
  auto value = [](const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  // Several processes of a program may write to one terminal: each says whose account it is.
  line(text, "account of %s, process %ld", program_invocation_short_name, long(getpid()));
  for (size_t i = 0; i < owner.devices.size(); ++i)
    line(text, "device %zu: %s", i, owner.devices[i].facts->name.c_str());
  Road* road = road_of(owner.server->connection());
  line(text, "server: %s over %s, release %s, driver %s", server.address.c_str(), road ? road->road_name() : "?",
       server.release.c_str(), server.driver_name.c_str());
  auto count = [&](CallClass call_class) { return value(g_by_class[unsigned(call_class)]); };
  line(text, "calls: %" PRIu64 " local, %" PRIu64 " posted, %" PRIu64 " called", count(CallClass::local),
       count(CallClass::posted), count(CallClass::called));
  line(text, "sent %s in %" PRIu64 " writes, received %s", bytes_text(value(stats.bytes_sent)).c_str(),
       value(stats.flushes), bytes_text(value(stats.bytes_received)).c_str());
  if (Road::Lanes lanes = road ? road->lanes() : Road::Lanes(); lanes.bytes)
    line(text, "lanes: %u further connections for bulk, of which the last used %u, %s over them", lanes.opened,
         lanes.in_use, bytes_text(lanes.bytes).c_str());
  if (value(stats.losses))
    line(text, "connections lost: %" PRIu64 ", %.2f ms without one, %s sent again", value(stats.losses),
         double(value(stats.detached_ns)) / 1e6, bytes_text(value(stats.bytes_sent_again)).c_str());
  ChunkTraffic& chunks = owner.server->chunked_uploads.traffic();
  if (value(chunks.asked_bytes))
    line(text, "chunks: %s of copies to the device were asked for, %s were at the server already",
         bytes_text(value(chunks.asked_bytes)).c_str(), bytes_text(value(chunks.found_bytes)).c_str());
  line(text, "images: %" PRIu64 " used, %" PRIu64 " sent (%s)", value(g_images.used), value(g_images.sent),
       bytes_text(value(g_images.sent_bytes)).c_str());
  line(text, "waits: %" PRIu64 ", %.2f ms; elapsed %.1f ms", value(stats.waits), double(value(stats.wait_ns)) / 1e6,
       double(elapsed_ns) / 1e6);
}

void why(std::string& text, const Process& owner, uint64_t elapsed_ns) {
  const SessionStats& stats = owner.server->connection().stats();
  auto value = [](const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  RunFigures figures{.program = program_invocation_short_name,
                     .process_id = long(getpid()),
                     .elapsed_ns = elapsed_ns,
                     .waits = value(stats.waits),
                     .wait_ns = value(stats.wait_ns),
                     .sent = value(stats.bytes_sent),
                     .received = value(stats.bytes_received),
                     .round_trip_ns = g_server_account.round_trip_ns,
                     .server = g_server_account.times,
                     .calls = {}};
  for (const Row& row : rows())
    figures.calls.push_back(
        {row.name, row.waits, row.stalls, row.pageable_waits, row.wait_ns, row.ns, row.sent + row.received});
  for (const std::string& told : explain_run(figures)) line(text, "%s", told.c_str());
}

}  // namespace

AccountDepth account_depth(const char* value) noexcept {
  std::string_view text = value ? value : "";
  if (text.empty() || text[0] == '0') return AccountDepth::none;
  if (text == "why") return AccountDepth::why;
  return text == "calls" ? AccountDepth::calls : AccountDepth::summary;
}

thread_local constinit bool t_pageable __attribute__((tls_model("initial-exec"))) = false;

ImageTraffic& image_traffic() noexcept { return g_images; }

void ask_server_account(Session& session, AccountDepth depth) noexcept {
  // The least of some is the connection's round trip: the answer is at hand.
  constexpr int kAsked = 3;
  if (depth != AccountDepth::why || session.state() != CUDA_SUCCESS) return;
  if (!session.facts().knows(uint32_t(wire::SessionOrdinal::session_account))) return;
  // What is asked for the account's sake is not in it.
  SessionStats& stats = session.stats();
  const uint64_t waits = stats.waits.load(std::memory_order_relaxed);
  const uint64_t wait_ns = stats.wait_ns.load(std::memory_order_relaxed);
  for (int i = 0; i < kAsked; ++i) {
    const uint64_t before = t_traffic.wait_ns;
    ServerTimes times;
    CUresult result = send::call_session_account(session, 0, {}, [&](schema::SessionAccountReply::Reader reply) {
      times = {.age_ns = reply.getAgeNs(),
               .input_ns = reply.getInputNs(),
               .device_ns = reply.getDeviceNs(),
               .held_ns = reply.getHeldNs(),
               .gpu_ns = reply.getGpuNs(),
               .held = reply.getHeld(),
               .gpu_counted = reply.getGpuCounted()};
    });
    if (result != CUDA_SUCCESS) break;
    const uint64_t took = t_traffic.wait_ns - before;
    if (i == 0) g_server_account.times = times;
    if (i == 0 || took < g_server_account.round_trip_ns) g_server_account.round_trip_ns = took;
  }
  stats.waits.store(waits, std::memory_order_relaxed);
  stats.wait_ns.store(wait_ns, std::memory_order_relaxed);
}

void account_call(const char* name, CallClass call_class, const ThreadTraffic& before, const ThreadTraffic& after,
                  uint64_t ns) noexcept {
  add(g_by_class[unsigned(call_class)], 1);
  FunctionCosts* costs = costs_of(name);
  if (!costs) return;
  add(costs->calls, 1);
  add(costs->waits, after.waits - before.waits);
  if (t_pageable) add(costs->pageable_waits, after.waits - before.waits);
  add(costs->stalls, after.stalls - before.stalls);
  add(costs->wait_ns, after.wait_ns - before.wait_ns);
  add(costs->ns, ns);
  add(costs->sent, after.bytes_sent - before.bytes_sent);
  add(costs->received, after.bytes_received - before.bytes_received);
}

void print_account(const Process& owner, AccountDepth depth, uint64_t elapsed_ns) noexcept {
  if (depth == AccountDepth::none) return;
  try {
    std::string text;
    if (depth == AccountDepth::why) why(text, owner, elapsed_ns);
    else summary(text, owner, elapsed_ns);
    if (depth == AccountDepth::calls) table(text, owner.server->connection().stats());
    // One write, not through stdio: the program may hold its lock, or have closed it.
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  } catch (...) {}
}

}  // namespace gpuwire::client
