// The two things that happen to a session as a whole, its end and fork(), reach every part of it.
#include "client_stub/driver/session/server_session.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <type_traits>
#include <vector>

#include "client_stub/driver/call/entry.hpp"
#include "client_stub/driver/managed_memory/managed_faults.hpp"
#include "test/client_stub/driver/fixture.hpp"

namespace gpuwire::client {
namespace {

// A part cannot exist without a session's list, nor without saying what it does.
static_assert(!std::is_default_constructible_v<SessionPart> && std::is_abstract_v<SessionPart>);
template <class... Parts>
constexpr bool all_are_told = (std::is_base_of_v<SessionPart, Parts> && ...) &&
                              !(std::is_default_constructible_v<Parts> || ...);
static_assert(all_are_told<ManagedMemory, PinnedPointers, HostRegions, PendingCopies, Captures, GraphMemory,
                           GraphRecords, NodeStorages, UserObjects, HostCallbacks, ManagedAllocations, DeviceOutput,
                           Shares, AllocationHolders, ArrayElements, ImageUploads>);

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

}  // namespace

TEST_CASE("a part of a session is told of its end and of fork because it exists") {
  std::vector<std::string> log;
  SessionParts parts;
  parts.tell_ended(SessionEnd::lost);
  CHECK(log.empty());
  Told first(parts, log, "first"), second(parts, log, "second");
  parts.tell_ended(SessionEnd::lost);
  parts.tell_ended(SessionEnd::closed);
  parts.tell_forked();
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

}  // namespace gpuwire::client
