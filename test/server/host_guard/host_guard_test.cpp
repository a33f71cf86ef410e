// Tenants that take too much of the server's memory, with real processes.
#include "server/host_guard/host_guard.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/base/machine.hpp"
#include "test/support/temporary_directory.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;
using scheduler::SessionId;

constexpr uint64_t kMiB = 1u << 20;
constexpr std::chrono::seconds kTimeout{120};

// A process that allocates memory on order, and keeps it.
class Worker {
 public:
  explicit Worker(const char* name = "worker") {
    REQUIRE(::pipe2(orders_, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(answers_, O_CLOEXEC) == 0);
    pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid != 0) return;
    ::prctl(PR_SET_NAME, name);
    obey();
  }
  ~Worker() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    for (int end : {orders_[0], orders_[1], answers_[0], answers_[1]}) ::close(end);
  }
  void take(uint64_t bytes) { order(bytes); }
  void start_threads(unsigned count) { order(kThreads + count); }
  std::string kill_order() const {
    std::string adjustment;
    std::ifstream("/proc/" + std::to_string(pid) + "/oom_score_adj") >> adjustment;
    return adjustment;
  }
  bool killed() const {
    siginfo_t how{};
    return ::waitid(P_PID, id_t(pid), &how, WEXITED | WNOHANG | WNOWAIT) == 0 && how.si_pid == pid;
  }

  pid_t pid;

 private:
  static constexpr uint64_t kThreads = uint64_t{1} << 40;  // more than any order's bytes

  void order(uint64_t what) {
    REQUIRE(::write(orders_[1], &what, sizeof what) == sizeof what);
    char done;
    REQUIRE(::read(answers_[0], &done, 1) == 1);
  }
  [[noreturn]] void obey() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    uint64_t bytes = 0;
    while (::read(orders_[0], &bytes, sizeof bytes) == sizeof bytes) {
      if (bytes > kThreads) {
        for (; bytes > kThreads; --bytes) std::thread(::pause).detach();
        if (::write(answers_[1], "d", 1) != 1) ::_exit(1);
        continue;
      }
      void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) ::_exit(1);
      std::memset(memory, 1, bytes);
      if (::write(answers_[1], "d", 1) != 1) ::_exit(1);
    }
    ::_exit(0);
  }
  int orders_[2], answers_[2];
};

class Control final : public SessionControl {
 public:
  bool send(SessionId, ipc::Message) override { return true; }
  void warn(SessionId, const std::string&) override {}
  bool stop(SessionId session, const StopOrder& order) override {
    stopped[session] = order.why;
    return true;
  }
  void reconsider_waiting() override {}
  std::map<SessionId, std::string> stopped;
};

TenantConfiguration tenant(const std::string& name, uint64_t host_bytes) {
  TenantConfiguration settings{.name = name};
  settings.host_memory_bytes = host_bytes;
  return settings;
}

struct Fixture {
  boost::asio::io_context io;
  Control control;
  TenantDirectory tenants{{tenant("greedy", 32 * kMiB), tenant("modest", 32 * kMiB)}};
  HostGuard guard{io,
                  control,
                  {.machine_bytes = 1024 * kMiB,
                   .slack_bytes = 8 * kMiB,
                   .session_slack_bytes = kMiB,
                   .threads_max = 20,
                   .poll = std::chrono::milliseconds(1),
                   .charged = [this](const SessionRecord& session) { return charged[session.number]; }}};
  uint64_t number = 0;
  std::map<SessionId, uint64_t> charged;

  Fixture() { guard.tenants_changed(tenants); }
  SessionRecord begin(const std::string& name, const Worker& worker) {
    SessionRecord record;
    record.number = SessionId(++number);
    record.tenant = name;
    record.tenant_id = tenants.find(name)->id;
    record.worker_pid = worker.pid;
    SessionSpec spec;
    ipc::SessionDescriptors descriptors;
    REQUIRE(guard.attach(record, spec, descriptors));
    return record;
  }
  // Lets the guard poll until the condition holds.
  template <class Condition>
  bool soon(Condition&& condition) {
    auto until = std::chrono::steady_clock::now() + kTimeout;
    while (!condition() && std::chrono::steady_clock::now() < until) io.run_one_for(std::chrono::milliseconds(100));
    return condition();
  }
  // Waits for so many polls.
  void poll(unsigned times) {
    for (unsigned i = 0; i < times; ++i) io.run_one_for(kTimeout);
  }
};

std::string contents(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a worker with more threads than any session needs is ended with the reason, and no other") {
  Worker usual, taken_over;
  SessionRecord first = begin("modest", usual), second = begin("greedy", taken_over);
  usual.start_threads(15);
  poll(3);
  CHECK(control.stopped.empty());
  taken_over.start_threads(25);
  CHECK(soon([&] { return !control.stopped.empty(); }));
  poll(3);
  REQUIRE(control.stopped.size() == 1);
  CHECK(control.stopped.begin()->first == second.number);
  CHECK(control.stopped.begin()->second.find("threads") != std::string::npos);
  CHECK(!taken_over.killed());
  // The compromised worker continues all the same.
  taken_over.start_threads(40);
  CHECK(soon([&] { return taken_over.killed(); }));
  for (const SessionRecord& record : {first, second}) guard.ended(record);
}

TEST_CASE_FIXTURE(Fixture,
                  "the largest session of a tenant that takes too much is ended with the reason, and no other") {
  Worker small, large, other;
  SessionRecord first = begin("greedy", small), second = begin("greedy", large), third = begin("modest", other);
  small.take(20 * kMiB);
  other.take(30 * kMiB);
  poll(3);
  CHECK(control.stopped.empty());
  large.take(40 * kMiB);
  CHECK(soon([&] { return !control.stopped.empty(); }));
  poll(3);
  REQUIRE(control.stopped.size() == 1);
  CHECK(control.stopped.begin()->first == second.number);
  CHECK(control.stopped.begin()->second.find("host_memory") != std::string::npos);
  for (const SessionRecord& record : {first, second, third}) guard.ended(record);
}

TEST_CASE_FIXTURE(Fixture, "the margin above the charged memory is the tenant's, however many sessions it has") {
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<SessionRecord> records;
  for (unsigned i = 0; i < 4; ++i) {
    workers.push_back(std::make_unique<Worker>());
    records.push_back(begin("greedy", *workers.back()));
  }
  // 36 MiB of 32 MiB, 8 MiB beside them, and 4 for four sessions.
  for (auto& worker : workers) worker->take(9 * kMiB);
  poll(3);
  CHECK(control.stopped.empty());
  for (auto& worker : workers) worker->take(4 * kMiB);
  CHECK(soon([&] { return !control.stopped.empty(); }));
  for (const SessionRecord& record : records) guard.ended(record);
}

// Returns the kernel's score, in thousandths of the machine.
int badness(const Worker& worker) {
  return std::stoi(worker.kill_order()) + int(1000 * own_bytes(worker.pid).value_or(0) / (1024 * kMiB));
}

TEST_CASE_FIXTURE(Fixture,
                  "the kernel is told to kill those first whose tenant has what it is not charged, however much more "
                  "others have") {
  Worker uncharged, within;
  SessionRecord first = begin("greedy", uncharged), second = begin("modest", within);
  charged[second.number] = 34 * kMiB;
  within.take(33 * kMiB);
  uncharged.take(6 * kMiB);
  CHECK(soon([&] { return badness(uncharged) > badness(within); }));
  poll(3);
  CHECK(badness(uncharged) > badness(within));
  CHECK(std::stoi(within.kill_order()) < 2 * kKillOrderOfWorkers);
  CHECK(control.stopped.empty());
  guard.ended(first);
  guard.ended(second);
}

TEST_CASE("a tenant that has used up its slack goes before a worker that has the whole machine") {
  constexpr uint64_t kMachine = 1000 * kMiB;
  auto sum = [&](uint64_t process, uint64_t excess) {
    return kill_order({kMachine, process, process, excess, 100 * kMiB}) + int(1000 * process / kMachine);
  };
  CHECK(sum(110 * kMiB, 100 * kMiB) > sum(1000 * kMiB, 0));
  CHECK(sum(60 * kMiB, 50 * kMiB) > sum(500 * kMiB, 0));
  // The kernel kills the largest of the charged workers first, and all of them before the broker.
  for (uint64_t part = 0; part < 1000; part += 10) CHECK(sum((part + 10) * kMiB, 0) >= sum(part * kMiB, 0));
  CHECK(sum(0, 0) == kKillOrderOfWorkers);
}

TEST_CASE_FIXTURE(Fixture, "a worker cannot hide what it has behind a claim beyond what its tenant may have") {
  Worker worker;
  SessionRecord record = begin("greedy", worker);
  charged[record.number] = UINT64_MAX;
  worker.take(39 * kMiB);
  CHECK(soon([&] { return std::stoi(worker.kill_order()) > 3 * kKillOrderOfWorkers; }));
  guard.ended(record);
}

TEST_CASE_FIXTURE(Fixture, "a worker that takes far more than it may is killed without being asked") {
  Worker worker, other;
  SessionRecord record = begin("greedy", worker), neighbour = begin("modest", other);
  worker.take(120 * kMiB);
  CHECK(soon([&] { return worker.killed(); }));
  CHECK_FALSE(other.killed());
  guard.ended(record);
  guard.ended(neighbour);
}

TEST_CASE_FIXTURE(Fixture, "a worker's use before its session is nobody's") {
  Worker worker;
  worker.take(200 * kMiB);
  SessionRecord record = begin("modest", worker);
  poll(3);
  CHECK(control.stopped.empty());
  guard.ended(record);
}

TEST_CASE_FIXTURE(Fixture, "the kernel is told to kill those first who have most") {
  Worker small, large;
  SessionRecord first = begin("modest", small), second = begin("greedy", large);
  large.take(20 * kMiB);
  CHECK(soon([&] { return small.kill_order() != "0" && large.kill_order() != "0"; }));
  poll(3);
  CHECK(std::stoi(large.kill_order()) > std::stoi(small.kill_order()));
  CHECK(std::stoi(small.kill_order()) > 0);  // the process's own base memory is not counted
  guard.ended(first);
  guard.ended(second);
}

TEST_CASE_FIXTURE(Fixture, "a worker that is gone is not mistaken for another process") {
  auto worker = std::make_unique<Worker>();
  SessionRecord record = begin("greedy", *worker);
  worker.reset();
  poll(3);
  CHECK(control.stopped.empty());
  guard.ended(record);
}

// A folder that plays the service's control group.
struct Group : test::TemporaryDirectory {
  explicit Group(const char* controllers = "cpu memory pids\n") {
    std::ofstream(path() / "cgroup.controllers") << controllers;
  }
};

TEST_CASE("the groups of the tenants are made beside the server's own, with their bounds, and go with them") {
  Group folder;
  for (const char* file : {"cgroup.subtree_control", "cgroup.procs"}) std::ofstream(folder.path() / file);
  const fs::path broker = folder.path() / "gpuwire-broker", group = folder.path() / WorkerGroups::name_of("anna");
  // The kernel creates these files by itself; the test creates them before.
  for (const fs::path& place : {broker, group}) {
    fs::create_directory(place);
    for (const char* file : {"cgroup.procs", "memory.max", "memory.swap.max", "pids.max", "cpu.weight"})
      std::ofstream(place / file);
  }
  auto groups = WorkerGroups::open(folder.path());
  REQUIRE_MESSAGE(groups, (groups ? "" : groups.error()));
  CHECK(contents(broker / "cgroup.procs") == std::to_string(::getpid()));
  // Each value is a separate write; in a plain file the last one is left.
  CHECK(contents(folder.path() / "cgroup.subtree_control") == "+cpu");
  CHECK(contents(broker / "cpu.weight") == std::to_string(kBrokerWeight));
  CHECK(groups->bound("anna", UINT64_MAX));
  CHECK(contents(group / "memory.max") == "max");
  CHECK(groups->bound("anna", 123 * kMiB));
  CHECK(groups->weigh("anna", scheduler::ServiceClass::interactive));
  CHECK(groups->join("anna", 4711));
  CHECK(contents(group / "memory.max") == std::to_string(123 * kMiB));
  CHECK(contents(group / "cpu.weight") == std::to_string(processor_weight(scheduler::ServiceClass::interactive)));
  CHECK(contents(group / "memory.swap.max") == "0");
  CHECK(contents(group / "cgroup.procs") == "4711");
}

TEST_CASE("a tenant's group is its own under every configuration, and empty ones of an earlier server go") {
  using scheduler::ServiceClass;
  Group folder;
  for (const char* file : {"cgroup.subtree_control", "cgroup.procs"}) std::ofstream(folder.path() / file);
  fs::create_directory(folder.path() / "gpuwire-broker");
  std::ofstream(folder.path() / "gpuwire-broker" / "cgroup.procs");
  // The kernel keeps charging these groups for processes started in them.
  const std::string ben = WorkerGroups::name_of("ben"), gone = WorkerGroups::name_of("gone");
  for (const std::string& name : {ben, gone}) fs::create_directory(folder.path() / name);
  std::ofstream(folder.path() / ben / "cgroup.procs");
  auto groups = WorkerGroups::open(folder.path());
  REQUIRE(groups);
  CHECK_FALSE(fs::exists(folder.path() / gone));
  CHECK(fs::exists(folder.path() / ben));
  // Regardless of other tenants and their order.
  CHECK(WorkerGroups::name_of("anna") != ben);
  CHECK(WorkerGroups::name_of("ben") == ben);
  // No name leads outside the folder.
  CHECK(WorkerGroups::name_of("../../etc").find('/') == std::string::npos);
  for (auto higher : {ServiceClass::realtime, ServiceClass::interactive, ServiceClass::batch})
    CHECK(processor_weight(higher) > processor_weight(ServiceClass(uint8_t(higher) + 1)));
}

TEST_CASE_FIXTURE(Fixture, "where there are no groups, every thread of a scavenger's worker is nicer than the broker") {
  Worker worker, other;
  worker.start_threads(3);
  tenants.replace({tenant("greedy", 32 * kMiB), tenant("modest", 32 * kMiB)});
  SessionRecord record;
  record.number = SessionId(77);
  record.tenant = "greedy";
  record.tenant_id = tenants.find("greedy")->id;
  record.service_class = scheduler::ServiceClass::scavenger;
  record.worker_pid = worker.pid;
  SessionSpec spec;
  ipc::SessionDescriptors descriptors;
  REQUIRE(guard.attach(record, spec, descriptors));
  SessionRecord usual = begin("modest", other);
  const int own = ::getpriority(PRIO_PROCESS, id_t(::getpid()));
  unsigned threads = 0;
  for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(worker.pid) + "/task")) {
    ++threads;
    CHECK(::getpriority(PRIO_PROCESS, id_t(std::stoi(thread.path().filename()))) == std::min(own + 10, 19));
  }
  CHECK(threads == 4);
  CHECK(::getpriority(PRIO_PROCESS, id_t(other.pid)) == own);
  guard.ended(record);
  guard.ended(usual);
}

TEST_CASE("only processes that an earlier server has left in the group to be divided move out of it") {
  Group folder;
  std::ofstream(folder.path() / "cgroup.subtree_control");
  const fs::path broker = folder.path() / "gpuwire-broker";
  fs::create_directory(broker);
  std::ofstream(broker / "cgroup.procs");
  Worker left("gpuwire-keeper"), stranger;
  left.take(kMiB);  // the process has its name
  std::ofstream(folder.path() / "cgroup.procs") << left.pid << '\n' << stranger.pid << '\n';
  REQUIRE(WorkerGroups::open(folder.path()));
  CHECK(contents(broker / "cgroup.procs") == std::to_string(left.pid));  // the last that was written
}

TEST_CASE("where groups may not be made the reason names the file") {
  Group folder;
  auto groups = WorkerGroups::open(folder.path());
  REQUIRE_FALSE(groups);
  CHECK(groups.error().find("gpuwire-broker/cgroup.procs") != std::string::npos);
  CHECK_FALSE(fs::exists(folder.path() / "gpuwire-broker"));
}

TEST_CASE("where the kernel bounds no memory of groups, none are made, and the reason says so") {
  Group folder("cpu pids\n");
  auto groups = WorkerGroups::open(folder.path());
  REQUIRE_FALSE(groups);
  CHECK(groups.error().find("cgroup.controllers: no controller \"memory\"") != std::string::npos);
  CHECK_FALSE(fs::exists(folder.path() / "gpuwire-broker"));
}

TEST_CASE("the machine says how much memory it has, and what a process has of it") {
  CHECK(machine_bytes() > 64 * kMiB);
  Worker worker;
  uint64_t before = own_bytes(worker.pid).value_or(0);
  worker.take(64 * kMiB);
  CHECK(own_bytes(worker.pid).value_or(0) >= before + 64 * kMiB);
  CHECK_FALSE(own_bytes(-1));
  CHECK_FALSE(ProcessStatus(-1).read());
}

TEST_CASE("one descriptor tells of a process again and again, and of nobody once the process is gone") {
  std::optional<Worker> worker(std::in_place);
  const ProcessStatus status(worker->pid);
  const auto before = status.read();
  REQUIRE(before);
  CHECK(before->threads == 1);
  worker->take(64 * kMiB);
  worker->start_threads(3);
  const auto now = status.read();
  REQUIRE(now);
  CHECK(now->own_bytes >= before->own_bytes + 64 * kMiB);
  CHECK(now->threads == 4);
  worker.reset();
  CHECK_FALSE(status.read());
}

}  // namespace gpuwire::server
