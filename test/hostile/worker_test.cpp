// A compromised worker in a real server with real confinement: it finds no data of another session, and affects no
// other session.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <cuda.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "schema/api_memory.capnp.h"
#include "schema/session.capnp.h"
#include "server/host_guard/host_guard.hpp"
#include "server/module_cache/digest.hpp"
#include "test/hostile/worker_orders.hpp"
#include "test/server/worker/server_process.hpp"
#include "test/server/worker/wire_client.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::FrameKind;
using wire::SessionOrdinal;
namespace fs = std::filesystem;

namespace {

constexpr uint32_t kMemAlloc = 1800;  // protocol/api/memory.toml
constexpr uint64_t kMiB = 1u << 20;

bool kernel_has_landlock() { return ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1) > 0; }

struct Allocated {
  int32_t result = -1;
  uint64_t address = 0;
};

// Two tenants: unauthenticated users of this machine, of whom one is hostile, and this user, by a Unix socket, who is
// the victim.
struct Fixture {
  TemporaryDirectory folder;
  fs::path cache = folder.path() / "cache", socket = folder.path() / "socket";
  std::vector<std::byte> image = std::vector<std::byte>(5000, std::byte{7});
  fs::path image_file;
  std::unique_ptr<ServerProcess> server;

  Fixture() {
    std::ofstream(folder.path() / "server.toml") << fmt::format(
        "[server]\nopen_tenant = \"strangers\"\n[tenants.strangers]\nhost_memory = \"256MiB\"\nmemory.limit = "
        "\"6GiB\"\n"
        "[tenants.neighbour]\nunix_users = [\"{}\"]\nmemory.limit = \"1GiB\"\n",
        ::geteuid());
    std::string owner = "tenant neighbour";
    fs::path own = cache / "tenants" / ("t-" + server::hex(server::sha256(std::as_bytes(std::span(owner)))));
    image_file = own / server::hex(server::sha256(image));
    // The hostile worker's knowledge of others, from whatever source.
    std::string targets;
    for (const fs::path& path : {image_file, own, cache, cache / "tenants", cache / "compiled",
                                 folder.path() / "server.toml", socket, folder.path(), fs::path("/etc/shadow")})
      targets += path.string() + ":";
    ::setenv("GPUWIRE_TEST_TARGETS", targets.c_str(), 1);
    ::setenv("GPUWIRE_TEST_ROUNDS",
             std::getenv("GPUWIRE_HOSTILE_ROUNDS") ? std::getenv("GPUWIRE_HOSTILE_ROUNDS") : "20000", 1);
    server = std::make_unique<ServerProcess>(std::vector<std::string>{
        "--listen", "unix:" + socket.string(), "--config", (folder.path() / "server.toml").string(), "--device",
        "software", "--software-library", GPUWIRE_TEST_HOSTILE_DRIVER, "--module-cache", cache.string()});
    REQUIRE_MESSAGE(server->port() != 0, server->log());
  }

  void begin_neighbour(WireClient& client) {
    std::string text;
    REQUIRE(client.connect_unix(socket.string()));
    REQUIRE_MESSAGE(client.log_in(text), text);
    REQUIRE(client.send_hello());
    REQUIRE(client.receive());
  }
  static Allocated allocate(WireClient& client, uint32_t context, uint64_t bytes) {
    Allocated allocated;
    auto answer = client.reply(client.send_call<schema::CuMemAllocV2Params>(
        FrameKind::called, kMemAlloc, context, [&](auto params) { params.setBytesize(bytes); }));
    if (answer)
      answer->with<schema::CuMemAllocV2Results>([&](auto results) {
        allocated = {results.getResult(), results.getDptr()};
      });
    return allocated;
  }
  static uint64_t order(WireClient& client, Order what) {
    return allocate(client, client.retain_primary(), uint64_t(what)).address;
  }

  // The neighbour's image reaches the cache.
  void keep_image(WireClient& client) {
    server::Digest digest = server::sha256(image);
    auto name = kj::arrayPtr(digest.data(), digest.size());
    REQUIRE(client.reply(client.send_call<schema::ModuleOffer>(
        FrameKind::called, uint32_t(SessionOrdinal::module_offer), 0, [&](auto params) {
          params.setDigest(name);
          params.setBytes(image.size());
        })));
    client.send_call<schema::ModuleData>(
        FrameKind::posted, uint32_t(SessionOrdinal::module_data), 0,
        [&](auto params) {
          params.setDigest(name);
          params.setLast(true);
        },
        image);
    REQUIRE(client.ping() == 0);
    REQUIRE(fs::exists(image_file));
  }
  // The neighbour's work continues undisturbed.
  void check_undisturbed(WireClient& neighbour) {
    CHECK(neighbour.ping() == 0);
    Allocated allocated = allocate(neighbour, neighbour.retain_primary(), 16 * kMiB);
    CHECK(allocated.result == CUDA_SUCCESS);
    WireClient next;
    begin_neighbour(next);
    CHECK(next.ping() == 0);
  }
};

}  // namespace

TEST_CASE_FIXTURE(
    Fixture, "a worker that was taken over reaches no file of another tenant, of the server or of another process") {
  if (!kernel_has_landlock()) return;
  WireClient neighbour, hostile;
  begin_neighbour(neighbour);
  keep_image(neighbour);
  REQUIRE(hostile.open_session(server->port()));
  CHECK(order(hostile, Order::reach_for_files) == 1);
  CHECK(fs::file_size(image_file) == image.size());
  check_undisturbed(neighbour);
  CHECK(hostile.ping() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a worker that reaches for other processes or the network ends, and its session alone") {
  WireClient neighbour;
  begin_neighbour(neighbour);
  for (Order what : {Order::attach_to_broker, Order::open_a_socket, Order::signal_the_broker, Order::start_a_process,
                     Order::use_watches, Order::send_to_an_address}) {
    CAPTURE(uint64_t(what));
    WireClient hostile;
    REQUIRE(hostile.open_session(server->port()));
    hostile.send_call<schema::CuMemAllocV2Params>(FrameKind::called, kMemAlloc, hostile.retain_primary(),
                                                  [&](auto params) { params.setBytesize(uint64_t(what)); });
    CHECK(hostile.closed_by_server());
  }
  CHECK(server->log_gets(fmt::format("signal {}", SIGSYS)));
  check_undisturbed(neighbour);
}

TEST_CASE_FIXTURE(
    Fixture,
    "a worker that was taken over changes nothing of the broker that the kernel lets a process change of another") {
  WireClient neighbour, hostile;
  begin_neighbour(neighbour);
  REQUIRE(hostile.open_session(server->port()));
  CHECK(order(hostile, Order::weaken_the_broker) == 1);
  check_undisturbed(neighbour);
  CHECK(hostile.ping() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a worker that was taken over changes the mode or owner of no file, and makes nobody wait") {
  WireClient neighbour, hostile;
  begin_neighbour(neighbour);
  REQUIRE(hostile.open_session(server->port()));
  CHECK(order(hostile, Order::change_modes) == 1);
  CHECK(order(hostile, Order::make_others_wait) == 1);
  check_undisturbed(neighbour);
  CHECK(hostile.ping() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a worker that was taken over forges no line of the server's log, and takes none away") {
  WireClient neighbour, hostile;
  begin_neighbour(neighbour);
  REQUIRE(hostile.open_session(server->port()));
  const std::string before = server->log();
  // At least the pipe to the log accepted it.
  CHECK(order(hostile, Order::forge_the_log) > 1);
  CHECK(server->log_gets("its process wrote: " + std::string(kForgedLine).substr(1, 20)));
  const std::string after = server->log();
  CHECK(after.starts_with(before));
  CHECK(after.find(kForgedLine) == std::string::npos);
  check_undisturbed(neighbour);
  CHECK(hostile.ping() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a worker that starts threads without end is ended, and its session alone") {
  WireClient neighbour, hostile;
  begin_neighbour(neighbour);
  REQUIRE(hostile.open_session(server->port()));
  // If the machine itself allows fewer, the worker stays below the limit and is not ended.
  const uint64_t started = order(hostile, Order::start_threads);
  CHECK((started < server::kWorkerThreadsMax || hostile.closed_by_server()));
  check_undisturbed(neighbour);
}

TEST_CASE_FIXTURE(Fixture,
                  "whatever a worker writes in the memory that it shares with the broker, others get what is theirs") {
  WireClient neighbour;
  begin_neighbour(neighbour);
  {
    WireClient hostile;
    REQUIRE(hostile.open_session(server->port()));
    // 1, the tenant's page and the session's; or the broker has detected an impossible value and ended the worker
    // before its answer.
    uint64_t found = order(hostile, Order::scribble);
    CAPTURE(found);
    CHECK((found == 3 || hostile.closed_by_server()));
    check_undisturbed(neighbour);
  }
  check_undisturbed(neighbour);
  // After the worker's end the invalid data are gone, for its own tenant too.
  WireClient again;
  CHECK(eventually([&] {
    WireClient fresh;
    return fresh.open_session(server->port()) &&
           allocate(fresh, fresh.retain_primary(), 16 * kMiB).result == CUDA_SUCCESS;
  }));
}

TEST_CASE_FIXTURE(Fixture, "messages without end or sense from a worker keep the broker from nobody") {
  WireClient neighbour, hostile;
  begin_neighbour(neighbour);
  REQUIRE(hostile.open_session(server->port()));
  hostile.send_call<schema::CuMemAllocV2Params>(
      FrameKind::called, kMemAlloc, hostile.retain_primary(),
      [](auto params) { params.setBytesize(uint64_t(Order::flood_the_broker)); });
  check_undisturbed(neighbour);
  hostile.close();
  check_undisturbed(neighbour);
}

TEST_CASE_FIXTURE(Fixture,
                  "a worker gets no more private memory than its tenant may have and the slack that each worker has") {
  WireClient hostile;
  REQUIRE(hostile.open_session(server->port()));
  // 256 MiB of the tenant's, 2 GiB of slack, and the mock's two devices, which are this machine's memory.
  uint64_t mib = order(hostile, Order::take_memory);
  CHECK(mib >= 256);
  CHECK(mib <= (256 + 2048 + 2 * 8192));
}
