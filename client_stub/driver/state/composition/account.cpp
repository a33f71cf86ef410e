#include "client_stub/driver/state/call/account.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "client/session_sends.hpp"
#include "client_stub/account/account_channel.hpp"
#include "client_stub/account/account_page.hpp"
#include "client_stub/account/account_text.hpp"
#include "client_stub/driver/process/clock.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/chunked_uploads.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/session/environment.hpp"
#include "client_stub/session/file_limit.hpp"
#include "client_stub/session/road.hpp"
#include "protocol/transport/own_descriptor.hpp"
#include "schema/session.capnp.h"
#include "wire/session_messages.hpp"

namespace gpuwire::client {

namespace {

constinit ImageTraffic g_images;

// Set before the library's first call can be made, by begin_account_from_environment(); then constant, but in a child
// of fork(), which has one thread.
constinit AccountPage* g_page = nullptr;  // null: nothing is counted
constinit AccountDepth g_depth = AccountDepth::none;

// The page's descriptor, until the process has passed it to the watch.
constinit transport::LastingDescriptor g_file;

// Written by ask_server_account() and read by print_account(), both on the thread that ends the program.
constinit AccountEnd g_end;

// Maps a page for this process; in a child of fork(), at the address of the parent's page. If shared memory is
// unavailable, the page is private, and only the program itself can print it.
AccountPage* make_page(AccountPage* place) noexcept {
  g_file.it.close();
  if (setting(kAccountsVariable) && may_grow_to(sizeof(AccountPage))) {
    const int made = ::memfd_create("gpuwire account", MFD_CLOEXEC);
    if (made >= 0 && ::ftruncate(made, sizeof(AccountPage)) == 0) g_file.it = transport::OwnDescriptor(made);
    else if (made >= 0) ::close(made);
  }
  const int kind = g_file.it ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory =
      ::mmap(place, sizeof(AccountPage), PROT_READ | PROT_WRITE, kind | (place ? MAP_FIXED : 0), g_file.it.get(), 0);
  if (memory == MAP_FAILED) {
    g_file.it.close();
    return nullptr;
  }
  auto* page = static_cast<AccountPage*>(memory);
  page->depth = g_depth;
  page->started_ns = monotonic_ns();
  return page;
}

// A child counts only its own calls, in its own memory.
void count_in_child() noexcept {
  g_file.it.close();
  g_page = make_page(g_page);
}

// Runs after each call, because no later call may follow.
void note_session(AccountPage& page, const Process& owner) noexcept {
  auto value = [](const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  const SessionStats& stats = owner.server->connection().stats();
  SessionCounts& counts = page.session;
  raise_to(counts.waits, value(stats.waits));
  raise_to(counts.wait_ns, value(stats.wait_ns));
  raise_to(counts.bytes_sent, value(stats.bytes_sent));
  raise_to(counts.bytes_received, value(stats.bytes_received));
  raise_to(counts.flushes, value(stats.flushes));
  raise_to(counts.losses, value(stats.losses));
  raise_to(counts.detached_ns, value(stats.detached_ns));
  raise_to(counts.bytes_sent_again, value(stats.bytes_sent_again));
  if (Road* road = road_of(owner.server->connection())) {
    const Road::Lanes lanes = road->lanes();
    std::atomic_ref(counts.lanes_opened).store(lanes.opened, std::memory_order_relaxed);
    std::atomic_ref(counts.lanes_in_use).store(lanes.in_use, std::memory_order_relaxed);
    raise_to(counts.lane_bytes, lanes.bytes);
  }
  ChunkTraffic& chunks = owner.server->chunked_uploads.traffic();
  raise_to(counts.chunk_bytes_asked, value(chunks.asked_bytes));
  raise_to(counts.chunk_bytes_found, value(chunks.found_bytes));
  StagedTraffic& staged = owner.server->shared_staging.traffic();
  raise_to(counts.staged_to_device, value(staged.to_device_bytes));
  raise_to(counts.staged_from_device, value(staged.from_device_bytes));
  raise_to(counts.images_used, value(g_images.used));
  raise_to(counts.images_sent, value(g_images.sent));
  raise_to(counts.image_bytes_sent, value(g_images.sent_bytes));
}

// The program and the server of the account.
void describe(AccountPage& page, const Process& owner) {
  const ServerFacts& server = owner.server->connection().facts();
  const Road* road = road_of(owner.server->connection());
  page.process_id = getpid();
  put_text(page.program, sizeof page.program, program_invocation_short_name);
  put_text(page.server, sizeof page.server,
           server.address + " over " + (road ? road->road_name() : "?") + ", release " + server.release + ", driver " +
               server.driver_name);
  page.device_count = uint32_t(std::min(owner.devices.size(), kAccountDevicesMax));
  for (size_t i = 0; i < page.device_count; ++i)
    put_text(page.devices[i], sizeof page.devices[i], owner.devices[i].facts->name.str());
  page.magic = kAccountMagic;
}

}  // namespace

thread_local constinit bool t_pageable __attribute__((tls_model("initial-exec"))) = false;

ImageTraffic& image_traffic() noexcept { return g_images; }

bool begin_account_from_environment() noexcept {
  g_depth = account_depth(setting("GPUWIRE_STATS"));
  if (g_depth == AccountDepth::none) return false;
  g_page = make_page(nullptr);
  if (g_page) pthread_atfork(nullptr, nullptr, count_in_child);
  return g_page != nullptr;
}

void account_call(const char* name, CallClass call_class, const ThreadTraffic& before, const ThreadTraffic& after,
                  uint64_t ns) noexcept {
  AccountPage* page = g_page;
  if (!page) return;
  count(page->by_class[unsigned(call_class)], 1);
  if (FunctionCosts* costs = costs_of(*page, name)) {
    count(costs->calls, 1);
    count(costs->waits, after.waits - before.waits);
    if (t_pageable) count(costs->pageable_waits, after.waits - before.waits);
    count(costs->stalls, after.stalls - before.stalls);
    count(costs->wait_ns, after.wait_ns - before.wait_ns);
    count(costs->ns, ns);
    count(costs->sent, after.bytes_sent - before.bytes_sent);
    count(costs->received, after.bytes_received - before.bytes_received);
  }
  if (const Process* owner = process()) note_session(*page, *owner);
}

void share_account(const Process& owner) noexcept {
  if (!g_page) return;
  try {
    describe(*g_page, owner);
    const char* name = setting(kAccountsVariable);
    if (name && g_file.it.is_ours()) hand_account_over(name, g_file.it.get());
  } catch (...) {}
  g_file.it.close();
}

void ask_server_account(const Process& owner) noexcept {
  // The server answers at once, so the shortest of several requests is the connection's round trip.
  constexpr int kAsked = 3;
  if (!g_page) return;
  g_end.elapsed_ns = monotonic_ns() - g_page->started_ns;
  note_session(*g_page, owner);
  Session& session = owner.server->connection();
  if (g_depth != AccountDepth::why || session.state() != CUDA_SUCCESS) return;
  if (!session.facts().knows(uint32_t(wire::SessionOrdinal::session_account))) return;
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
    if (i == 0) g_end.server = times;
    if (i == 0 || took < g_end.round_trip_ns) g_end.round_trip_ns = took;
  }
}

void print_account(const Process& owner) noexcept {
  if (!g_page) return;
  try {
    // The end of the session has costs, too; the requests that the account itself sends do not count.
    if (g_depth != AccountDepth::why) note_session(*g_page, owner);
    describe(*g_page, owner);
    const std::string text = account_text(*g_page, g_end);
    // One write without stdio: the program may hold stdio's lock, or have closed the stream.
    if (!may_write(STDERR_FILENO, text.size())) return;
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    std::atomic_ref(g_page->told).store(1, std::memory_order_relaxed);
  } catch (...) {}
}

}  // namespace gpuwire::client
