// The two events of a whole session, its end and fork(), reach every part of it.
#include "client_stub/driver/state/session/server_session.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <type_traits>
#include <vector>

#include "client_stub/driver/calls/call/entry.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/managed_memory/managed_faults.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/stream/stream.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/session/device_output.hpp"
#include "client_stub/driver/state/composition/notices.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "test/client_stub/driver/fixture.hpp"
#include "client_stub/driver/state/profile/gpu_spans.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/driver/state/graph/user_objects.hpp"
#include "client_stub/driver/state/memory/shares.hpp"
#include "client_stub/driver/state/graph/graph.hpp"
#include "client_stub/driver/state/managed_memory/managed_allocations.hpp"
#include "client_stub/driver/state/module/image_uploads.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/array/array_shapes.hpp"
#include "client_stub/driver/state/memory/allocation_handle.hpp"

namespace gpuwire::client {
namespace {

// A part needs a session's list, and handlers of both events.
static_assert(!std::is_default_constructible_v<SessionPart> && std::is_abstract_v<SessionPart>);
template <class... Parts>
constexpr bool all_are_told = (std::is_base_of_v<SessionPart, Parts> && ...) &&
                              !(std::is_default_constructible_v<Parts> || ...);
static_assert(all_are_told<ManagedMemory, PinnedPointers, HostRegions, PendingCopies, Captures, GraphMemory,
                           GraphRecords, NodeStorages, UserObjects, HostCallbacks, ManagedAllocations, DeviceOutput,
                           Shares, AllocationHolders, ArrayShapes, ImageUploads>);

struct Told final : SessionPart {
  Told(SessionParts& parts, std::vector<std::string>& log, std::string name)
      : SessionPart(parts), log(log), name(std::move(name)) {}
  void ended(SessionEnd how) noexcept override {
    log.push_back(name + (how == SessionEnd::lost ? " lost" : " closed"));
  }
  void after_fork_in_child() noexcept override { log.push_back(name + " forked"); }
  std::vector<std::string>& log;
  std::string name;
};

// Whether the program can read this address without one of the stub's fault handlers: the kernel tells it without a
// fault.
bool is_open(uint64_t address) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const bool open = ::write(ends[1], reinterpret_cast<const void*>(address), 1) == 1;
  for (int end : ends) ::close(end);
  return open;
}

// One object of each kind by which the process refers to a session.
struct Belongings {
  Belongings(ServerSession& owner, uint64_t place) : server(owner), base(place) {
    context.server = &server;
    stream.context = &context;
    stream.flags = CU_STREAM_NON_BLOCKING;
    event = handles().create(wire::HandleKind::event, &server, this);
    wire_stream = handles().create(wire::HandleKind::stream, &server, &stream);
    stream.handle = wire_stream;
    REQUIRE(event != 0);
    REQUIRE(wire_stream != 0);
    REQUIRE(server.managed_memory.map(base, kBytes, true) == ManagedMemory::Mapped::yes);
    address_map().insert({.base = base, .bytes = kBytes, .kind = RangeKind::managed, .device = 0, .server = &server});
    address_map().insert({.base = base + kBytes, .bytes = kBytes, .device = 0, .server = &server});
    server.pinned_pointers.add(base + 2 * kBytes, 4096);
    REQUIRE(server.captures.add({.context = &context, .origin = wire_stream}, stream) == CUDA_SUCCESS);
    server.managed_memory.hand_over();  // handed over to the device: not accessible now
  }
  ~Belongings() {
    Capture capture;
    if (server.captures.find(stream, capture)) server.captures.remove(capture);
    server.managed_memory.unmap(base);
    address_map().take_all([&](const AddressRange& range) { return range.server == &server; },
                           [](const AddressRange&) {});
    handles().forget(wire::HandleKind::event, event);
    handles().forget(wire::HandleKind::stream, wire_stream);
  }
  Belongings(const Belongings&) = delete;

  bool entries_lead_here() const {
    AddressRange managed, plain;
    return handles().session(wire::HandleKind::event, event) == &server &&
           handles().object(wire::HandleKind::event, event) == this &&
           handles().session(wire::HandleKind::stream, wire_stream) == &server &&
           address_map().find(base + 8, managed) && managed.server == &server &&
           address_map().find(base + kBytes, plain) && plain.server == &server;
  }
  bool nothing_has_changed() {
    return entries_lead_here() && server.connection().state() == CUDA_SUCCESS && server.pinned_pointers.any() &&
           server.captures.status(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE && server.managed_memory.any() &&
           managed_faults().holder(base) == &server.managed_memory && (g_entry.load() & kManaged) != 0 &&
           !is_open(base);
  }

  static constexpr uint64_t kBytes = 65536;
  ServerSession& server;
  const uint64_t base;
  ContextState context;
  StreamState stream;
  uint64_t event = 0, wire_stream = 0;
};

// Another server of the same process.
struct SecondSession {
  SecondSession() {
    auto made = std::make_unique<test::FakeSession>(test::fake_facts(1));
    session = made.get();
    server.adopt(std::move(made));
  }
  ServerSession server;
  test::FakeSession* session = nullptr;
};

constexpr uint64_t kFirstPlace = 0x5288'0000'0000, kSecondPlace = 0x5289'0000'0000;

}  // namespace

TEST_CASE("a part of a session is told of its end and of fork because it exists") {
  std::vector<std::string> log;
  SessionParts parts;
  parts.notify_ended(SessionEnd::lost);
  CHECK(log.empty());
  Told first(parts, log, "first"), second(parts, log, "second");
  parts.notify_ended(SessionEnd::lost);
  parts.notify_ended(SessionEnd::closed);
  parts.notify_forked();
  CHECK(log == std::vector<std::string>{"first lost", "second lost", "first closed", "second closed", "first forked",
                                        "second forked"});
}

TEST_CASE("a session that breaks off expects no copies any more, and has no memory to make known") {
  test::FakeProcess process;
  ServerSession& session = test::server_session();
  char destination[8];
  session.pending_copies.expect(7, {.data = destination, .bytes = sizeof destination, .scatter = {}});
  session.pinned_pointers.add(0x5300'0000'0000, 4096);
  session.notices.ended(CUDA_ERROR_DEVICE_UNAVAILABLE, "gone");
  CHECK_FALSE(session.pending_copies.touches(destination, sizeof destination));
  CHECK_FALSE(session.pinned_pointers.any());
  CHECK_FALSE(session.host_regions.any());
}

TEST_CASE("the end of a session closes the connection, writes what was printed, and leaves managed memory open") {
  test::FakeProcess process;
  ServerSession& session = test::server_session();
  constexpr uint64_t kBase = 0x5288'0000'0000;
  REQUIRE(session.managed_memory.map(kBase, 65536, true) == ManagedMemory::Mapped::yes);
  auto* memory = reinterpret_cast<volatile char*>(kBase);
  memory[3] = 3;
  session.managed_memory.hand_over();
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  session.device_output.keep(true, std::as_bytes(std::span("printed", 7)));
  session.end();
  ::dup2(before, STDERR_FILENO);
  char text[16] = {};
  CHECK(::read(ends[0], text, sizeof text) == 7);
  CHECK(std::string(text) == "printed");
  for (int descriptor : {before, ends[0], ends[1]}) ::close(descriptor);
  CHECK(process.session->closed());
  CHECK(memory[3] == 3);
  session.managed_memory.hand_over();
  memory[4] = 4;  // nothing closes it again
}

TEST_CASE("a child after fork() has none of the parent's managed memory, and no call looks for any") {
  test::FakeProcess process;
  ServerSession& session = test::server_session();
  REQUIRE(session.managed_memory.map(0x5288'0000'0000, 65536, true) == ManagedMemory::Mapped::yes);
  REQUIRE((g_entry.load() & kManaged) != 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(120);
    managed_faults().after_fork_in_child();
    session.after_fork_in_child();
    bool good = !(g_entry.load() & kManaged) && !session.managed_memory.any();
    good = good && managed_faults().holder(0x5288'0000'0000) == nullptr;
    good = good && !session.managed_memory.anything_to_hand_over();
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("The end or loss of one of a process's two sessions takes nothing of the other's with it") {
  for (bool breaks_off : {false, true}) {
    CAPTURE(breaks_off);
    test::FakeProcess process;
    SecondSession second;
    Belongings kept(test::server_session(), kFirstPlace), ended(second.server, kSecondPlace);
    REQUIRE(kept.nothing_has_changed());
    REQUIRE(ended.nothing_has_changed());
    if (breaks_off) second.server.notices.ended(CUDA_ERROR_DEVICE_UNAVAILABLE, "gone");
    else second.server.end();
    CHECK(second.session->closed() == !breaks_off);
    CHECK(is_open(kSecondPlace) == !breaks_off);
    CHECK_FALSE(second.server.pinned_pointers.any());
    CHECK(ended.entries_lead_here());  // its calls fail in this session, and do not reach the other one
    CHECK_FALSE(process.session->closed());
    CHECK(kept.nothing_has_changed());
  }
}

TEST_CASE("A child that leaves one of a process's two sessions takes nothing of the other's with it") {
  test::FakeProcess process;
  SecondSession second;
  Belongings kept(test::server_session(), kFirstPlace), left(second.server, kSecondPlace);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(120);
    second.server.after_fork_in_child();
    bool good = !second.server.managed_memory.any() && !second.server.managed_memory.anything_to_hand_over();
    good = good && kept.nothing_has_changed() && kept.server.managed_memory.any();
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  // Nor has the parent lost anything.
  CHECK(kept.nothing_has_changed());
  CHECK(left.nothing_has_changed());
}

}  // namespace gpuwire::client
