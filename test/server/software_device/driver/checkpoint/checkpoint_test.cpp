// Checkpoints of one process by another: the victim is a second process of this program, which obeys orders.
#include <spawn.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

extern char** environ;

using namespace gpuwire::software_device::test;

namespace {

constexpr const char* kVictimCase = "The victim of other tests' checkpoints";
constexpr size_t kBig = size_t{4} << 20, kSmall = 1000;
constexpr unsigned kLockMs = 200;

unsigned expected_word(size_t i) { return static_cast<unsigned>(i * 2654435761u + 17); }

std::vector<unsigned> pattern(size_t bytes) {
  std::vector<unsigned> words(bytes / sizeof(unsigned));
  for (size_t i = 0; i < words.size(); ++i) words[i] = expected_word(i);
  return words;
}

// A process of this program that runs the victim's case. Its answers are lines with "= " before them.
class Victim {
 public:
  explicit Victim(bool takes_part = true) {
    int to[2], from[2];
    REQUIRE(pipe(to) == 0);
    REQUIRE(pipe(from) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    const std::string only = std::string("--test-case=") + kVictimCase;
    char* arguments[] = {const_cast<char*>("/proc/self/exe"), const_cast<char*>("--no-skip"),
                         const_cast<char*>(only.c_str()), nullptr};
    setenv("GPUWIRE_SOFTWARE_CHECKPOINTS", takes_part ? "1" : "0", 1);
    REQUIRE(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ) == 0);
    unsetenv("GPUWIRE_SOFTWARE_CHECKPOINTS");
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    in_ = fdopen(to[1], "w");
    out_ = fdopen(from[0], "r");
  }
  ~Victim() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    fclose(in_);
    fclose(out_);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  int pid() const { return pid_; }
  void tell(const std::string& line) {
    std::fprintf(in_, "%s\n", line.c_str());
    std::fflush(in_);
  }
  std::string answer() {
    char line[256];
    while (std::fgets(line, sizeof line, out_) != nullptr) {
      if (std::strncmp(line, "= ", 2) == 0) return std::string(line + 2, std::strcspn(line + 2, "\n"));
    }
    return "";
  }
  std::string ask(const std::string& line) {
    tell(line);
    return answer();
  }
  uint64_t ask_number(const std::string& line) { return std::strtoull(ask(line).c_str(), nullptr, 0); }

 private:
  pid_t pid_ = -1;
  FILE *in_ = nullptr, *out_ = nullptr;
};

CUprocessState state_of(const Victim& victim) {
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  CHECK(cuCheckpointProcessGetState(victim.pid(), &state) == CUDA_SUCCESS);
  return state;
}

CUresult lock(const Victim& victim, unsigned timeout_ms) {
  CUcheckpointLockArgs args{};
  args.timeoutMs = timeout_ms;
  return cuCheckpointProcessLock(victim.pid(), &args);
}

void suspend(const Victim& victim) {
  REQUIRE(cuCheckpointProcessLock(victim.pid(), nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCheckpointProcessCheckpoint(victim.pid(), nullptr) == CUDA_SUCCESS);
}
void resume(const Victim& victim) {
  REQUIRE(cuCheckpointProcessRestore(victim.pid(), nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCheckpointProcessUnlock(victim.pid(), nullptr) == CUDA_SUCCESS);
}

// Whether the process has readable memory at this address.
bool readable_there(const Victim& victim, uint64_t address) {
  char byte = 0;
  iovec here{&byte, 1}, there{reinterpret_cast<void*>(address), 1};
  return process_vm_readv(victim.pid(), &here, 1, &there, 1, 0) == 1;
}

// --- the victim

void say(const std::string& text) {
  std::printf("= %s\n", text.c_str());
  std::fflush(stdout);
}

CUdeviceptr make_mapped(size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  REQUIRE(cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(address, bytes, 0, handle, 0) == CUDA_SUCCESS);
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(cuMemSetAccess(address, bytes, &access, 1) == CUDA_SUCCESS);
  return address;
}

class VictimPart {
 public:
  VictimPart() : add_one_(function(load(), "add_one")), hang_(function(load(), "hang")) {
    counter_ = allocate(sizeof(unsigned));
    write(counter_, {0});
    make_graph();
    make_array();
  }

  void obey() {
    char line[256];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      const std::string word(line, std::strcspn(line, " \n"));
      const size_t bytes = std::strtoull(line + word.size(), nullptr, 0);
      if (word == "alloc") keep(allocate(bytes), bytes);
      else if (word == "map") keep(make_mapped(bytes), bytes);
      else if (word == "managed") manage(bytes);
      else if (word == "check") say(whole() ? "whole" : "changed");
      else if (word == "graph") replay();
      else if (word == "free") say_free();
      else if (word == "hang") hang();
      else if (word == "release") release();
      else say("what?");
    }
  }

 private:
  void keep(CUdeviceptr address, size_t bytes) {
    write(address, pattern(bytes));
    kept_[address] = bytes;
    say(std::to_string(address));
  }
  void manage(size_t bytes) {
    REQUIRE(cuMemAllocManaged(&managed_, bytes, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    say("managed");
  }
  bool whole() {
    std::vector<unsigned> image(64 * 64);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array_;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = image.data();
    copy.WidthInBytes = copy.dstPitch = 64 * sizeof(unsigned);
    copy.Height = 64;
    REQUIRE(cuMemcpy2D(&copy) == CUDA_SUCCESS);
    bool same = image == pattern(image.size() * sizeof(unsigned));
    for (const auto& [address, bytes] : kept_) same = same && read(address, bytes / sizeof(unsigned)) == pattern(bytes);
    return same;
  }
  // Each launch adds one; the event is older.
  void replay() {
    REQUIRE(cuGraphLaunch(graph_, stream_) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream_) == CUDA_SUCCESS);
    REQUIRE(cuEventQuery(event_) == CUDA_SUCCESS);
    say(std::to_string(read(counter_, 1)[0]));
  }
  void say_free() {
    size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
    say(std::to_string(free));
  }
  void hang() {
    REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&flag_), sizeof *flag_, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
    *flag_ = 0;
    CUdeviceptr flag = reinterpret_cast<CUdeviceptr>(flag_);
    void* parameters[] = {&flag};
    REQUIRE(launch(hang_, parameters, stream_) == CUDA_SUCCESS);
    say("hangs");
  }
  void release() {
    *static_cast<volatile unsigned*>(flag_) = 1;
    REQUIRE(cuStreamSynchronize(stream_) == CUDA_SUCCESS);
    say("released");
  }
  void make_graph() {
    REQUIRE(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuEventCreate(&event_, 0) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event_, stream_) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    REQUIRE(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
    REQUIRE(launch_add_one(add_one_, counter_, stream_) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiate(&graph_, graph, 0) == CUDA_SUCCESS);
  }
  void make_array() {
    CUDA_ARRAY_DESCRIPTOR description{64, 64, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    REQUIRE(cuArrayCreate(&array_, &description) == CUDA_SUCCESS);
    const std::vector<unsigned> image = pattern(64 * 64 * sizeof(unsigned));
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = image.data();
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array_;
    copy.WidthInBytes = copy.srcPitch = 64 * sizeof(unsigned);
    copy.Height = 64;
    REQUIRE(cuMemcpy2D(&copy) == CUDA_SUCCESS);
  }

  const CurrentContext context_;
  const CUfunction add_one_, hang_;
  CUdeviceptr counter_ = 0, managed_ = 0;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  CUgraphExec graph_ = nullptr;
  CUarray array_ = nullptr;
  unsigned* flag_ = nullptr;
  std::map<CUdeviceptr, size_t> kept_;
};

}  // namespace

TEST_CASE("The victim of other tests' checkpoints" * doctest::skip()) { VictimPart().obey(); }

TEST_CASE("A checkpoint takes all device memory off the device, and a restore brings every byte back to its address") {
  Victim victim;
  const uint64_t big = victim.ask_number("alloc " + std::to_string(kBig)),
                 mapped = victim.ask_number("map " + std::to_string(kBig));
  victim.ask("alloc " + std::to_string(kSmall));
  CHECK(victim.ask("graph") == "1");
  const uint64_t free = victim.ask_number("free");
  CHECK(readable_there(victim, big));
  for (unsigned round = 0; round < 3; ++round) {
    suspend(victim);
    CHECK(state_of(victim) == CU_PROCESS_STATE_CHECKPOINTED);
    CHECK_FALSE(readable_there(victim, big));
    resume(victim);
    CHECK(state_of(victim) == CU_PROCESS_STATE_RUNNING);
    CHECK(victim.ask("check") == "whole");
    CHECK(victim.ask("graph") == std::to_string(round + 2));
    CHECK(victim.ask_number("free") == free);
  }
  CHECK(readable_there(victim, mapped));
}

TEST_CASE("A call that comes while the process is locked waits until it is unlocked, and then succeeds") {
  Victim victim;
  victim.ask("alloc " + std::to_string(kBig));
  suspend(victim);
  victim.tell("check");
  auto answer = std::async(std::launch::async, [&] { return victim.answer(); });
  CHECK(cuCheckpointProcessRestore(victim.pid(), nullptr) == CUDA_SUCCESS);
  CHECK(state_of(victim) == CU_PROCESS_STATE_LOCKED);
  CHECK(answer.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  CHECK(cuCheckpointProcessUnlock(victim.pid(), nullptr) == CUDA_SUCCESS);
  CHECK(answer.get() == "whole");
}

TEST_CASE("A process whose kernel does not end is left running, and is locked when it has ended") {
  Victim victim;
  CHECK(victim.ask("hang") == "hangs");
  CHECK(lock(victim, kLockMs) == CUDA_ERROR_NOT_READY);
  CHECK(state_of(victim) == CU_PROCESS_STATE_RUNNING);
  CHECK(victim.ask("release") == "released");
  suspend(victim);
  resume(victim);
  CHECK(victim.ask("check") == "whole");
}

TEST_CASE("A process with managed memory is not checkpointed, and goes on unharmed") {
  Victim victim;
  victim.ask("alloc " + std::to_string(kBig));
  CHECK(victim.ask("managed 4096") == "managed");
  REQUIRE(lock(victim, 0) == CUDA_SUCCESS);
  CHECK(cuCheckpointProcessCheckpoint(victim.pid(), nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(state_of(victim) == CU_PROCESS_STATE_LOCKED);
  CHECK(cuCheckpointProcessUnlock(victim.pid(), nullptr) == CUDA_SUCCESS);
  CHECK(victim.ask("check") == "whole");
}

TEST_CASE("Each step is refused in a state that it does not begin in, and wrong arguments anywhere") {
  Victim victim;
  victim.ask("free");  // the victim has begun
  const int pid = victim.pid();
  CHECK(cuCheckpointProcessCheckpoint(pid, nullptr) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(cuCheckpointProcessRestore(pid, nullptr) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(cuCheckpointProcessUnlock(pid, nullptr) == CUDA_ERROR_ILLEGAL_STATE);
  suspend(victim);
  CHECK(cuCheckpointProcessLock(pid, nullptr) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(cuCheckpointProcessCheckpoint(pid, nullptr) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(cuCheckpointProcessUnlock(pid, nullptr) == CUDA_ERROR_ILLEGAL_STATE);
  resume(victim);
  CUcheckpointLockArgs args{};
  args.reserved1[3] = 1;
  CHECK(cuCheckpointProcessLock(pid, &args) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCheckpointProcessGetState(pid, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCheckpointProcessLock(0, nullptr) == CUDA_ERROR_INVALID_VALUE);
  int tid = 0;
  CHECK(cuCheckpointProcessGetRestoreThreadId(pid, &tid) == CUDA_SUCCESS);
  CHECK(access(("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid)).c_str(), F_OK) == 0);
}

TEST_CASE("A process that does not take part is answered for as one without a driver, and one that is gone as none") {
  Victim victim(false);
  victim.ask("free");
  CHECK(cuCheckpointProcessLock(victim.pid(), nullptr) == CUDA_ERROR_NOT_INITIALIZED);
  int gone = 0;
  {
    Victim short_lived;
    gone = short_lived.pid();
  }
  CHECK(cuCheckpointProcessLock(gone, nullptr) == CUDA_ERROR_INVALID_VALUE);
}
