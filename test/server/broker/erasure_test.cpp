// Objects that are destroyed while their callbacks are pending: the address sanitizer finds each use after the
// destruction.
#include <csignal>
#include <memory>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <doctest/doctest.h>
#include <spdlog/spdlog.h>

#include "server/broker/connection/identity_watch.hpp"
#include "server/broker/limits.hpp"
#include "server/broker/worker/worker_pool.hpp"
#include "server/identity/administration.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace gpuwire::test;

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// A pool whose workers cannot be started.
struct Pool {
  explicit Pool(asio::io_context& io) {
    spdlog::set_level(spdlog::level::off);
    WorkerPool::Events events{.ready = [](const Inventory&) {},
                              .hopeless = [](const std::string&) {},
                              .reserved = [](scheduler::SessionId, pid_t) {},
                              .refused = [](scheduler::SessionId, RefusalCause, const std::string&) {},
                              .begun = [](scheduler::SessionId, const std::string&) {},
                              .on_message = [](scheduler::SessionId, ipc::Message&) {},
                              .over = [](scheduler::SessionId, uint32_t, const std::string&) {},
                              .idle = [] {}};
    pool = std::make_unique<WorkerPool>(io, WorkerCommand{"/nonexistent/worker", {}, {}}, shares, unread, starts, 1,
                                        std::move(events));
  }
  ShareTable shares{share_limits(1024)};
  UnreadDescriptors unread;
  WorkerStarts starts;
  std::unique_ptr<WorkerPool> pool;
};

}  // namespace

TEST_CASE("a pool of workers may go between a signal and its handler") {
  asio::io_context io(1);
  asio::signal_set before(io, SIGCHLD);
  Pool pool(io);
  asio::signal_set after(io, SIGCHLD);
  auto erase = [&](error_code, int) { pool.pool.reset(); };
  before.async_wait(erase);
  after.async_wait(erase);
  ::raise(SIGCHLD);
  while (pool.pool) io.run_one();
  io.poll();
  CHECK_FALSE(pool.pool);
}

TEST_CASE("a pool of workers may go between the end of its timer and the handler") {
  asio::io_context io(1);
  asio::steady_timer first(io, asio::steady_timer::clock_type::now());
  Pool pool(io);
  pool.pool->start_one();  // the start fails, and is repeated after kRestartDelayMinMs
  first.async_wait([&](error_code) { pool.pool.reset(); });
  // Both timers expire before either handler runs; this one's runs first.
  asio::io_context elsewhere(1);
  asio::steady_timer(elsewhere, std::chrono::milliseconds(kRestartDelayMinMs + 1)).wait();
  while (pool.pool) io.run_one();
  io.poll();
  CHECK_FALSE(pool.pool);
}

TEST_CASE("the identity's observer may be destroyed while it reports a change") {
  TemporaryDirectory temporary;
  auto folder = temporary.path() / "identity";
  auto now = std::chrono::system_clock::now();
  REQUIRE(init_identity(folder, {.hosts = {"localhost"}}, now));
  asio::io_context io(1);
  std::unique_ptr<IdentityWatch> watch;
  watch = std::make_unique<IdentityWatch>(io, folder, [&] { watch.reset(); });
  REQUIRE(watch->start());
  REQUIRE(add_token(folder, "anna", 10, {}, now));
  while (watch) io.run_one();
  io.poll();
  CHECK_FALSE(watch);
}
