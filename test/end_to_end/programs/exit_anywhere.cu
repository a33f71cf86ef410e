// A handler ends the program by exit() at any point of a call. A thread's locks change at instructions that lock the
// bus and at system calls: the test steps a process to such a point, sends the signal right before or after it, and the
// process must end as it would natively. Arguments: a seed, how many places of calls to choose ("all": each place of
// each call), and how many seconds a process may take to end. GPUWIRE_TEST_CALL: all places of this call alone.
// GPUWIRE_TEST_KEEP: a process that does not end is kept for a debugger.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../../../examples/check.hpp"
#include "stepper.hpp"

namespace {

constexpr int kExitCode = 7;
// A waiting call polls for a while, which repeats the same points.
constexpr unsigned kPlacesMax = 600;
constexpr unsigned kPlacesTried = 80;  // the range of chosen places

__global__ void add(unsigned* value, unsigned by) { atomicAdd(value, by); }

// --- the process that is ended --------------------------------------------------------------------------------------

struct Program {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUgraphExec graph = nullptr;
  unsigned* device = nullptr;
  void* pinned = nullptr;
  std::vector<unsigned> host = std::vector<unsigned>(64 * 1024);

  CUdeviceptr words() const { return reinterpret_cast<CUdeviceptr>(device); }
};

void prepare(Program& program) {
  CHECK_RUNTIME(cudaMalloc(&program.device, program.host.size() * 4));
  CHECK_RUNTIME(cudaMallocHost(&program.pinned, 1 << 16));
  CHECK_RUNTIME(cudaStreamCreate(&program.stream));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&program.event, cudaEventDisableTiming));
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaStreamBeginCapture(program.stream, cudaStreamCaptureModeRelaxed));
  add<<<1, 1, 0, program.stream>>>(program.device, 1);
  CHECK_RUNTIME(cudaMemcpyAsync(program.pinned, program.device, 256, cudaMemcpyDeviceToHost, program.stream));
  CHECK_RUNTIME(cudaStreamEndCapture(program.stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&program.graph, graph, 0));
}

void launch(Program& program) { add<<<1, 1>>>(program.device, 1); }
void upload(Program& program) { cuMemcpyHtoD(program.words(), program.host.data(), program.host.size() * 2); }
void upload_pinned(Program& program) { cuMemcpyHtoDAsync(program.words(), program.pinned, 4096, program.stream); }
void download(Program& program) { cuMemcpyDtoH(program.host.data(), program.words(), 256); }
void download_much(Program& program) { cuMemcpyDtoH(program.host.data(), program.words(), program.host.size() * 4); }
void download_later(Program& program) { cuMemcpyDtoHAsync(program.pinned, program.words(), 4096, program.stream); }
void synchronize(Program&) { cuCtxSynchronize(); }
void record(Program& program) {
  cuEventRecord(program.event, program.stream);
  cuStreamQuery(program.stream);
}
void replay(Program& program) {
  cuGraphLaunch(program.graph, program.stream);
  cuStreamSynchronize(program.stream);
}
void allocate(Program&) {
  CUdeviceptr memory = 0;
  cuMemAlloc(&memory, 3 << 20);
  cuMemFree(memory);
}
void pin(Program&) {
  void* memory = nullptr;
  cuMemAllocHost(&memory, 1 << 14);
  cuMemFreeHost(memory);
}
void call_back(Program& program) {
  cuLaunchHostFunc(
      program.stream, [](void*) {}, nullptr);
}
void make_stream(Program&) {
  CUstream stream = nullptr;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamDestroy(stream);
}
void fail(Program&) { cuMemFree(1); }

struct Call {
  const char* name;
  void (*make)(Program&);
  bool first = false;  // nothing was launched before
};
constexpr Call kCalls[] = {{"launch", launch},
                           {"upload", upload},
                           {"upload_pinned", upload_pinned},
                           {"download", download},
                           {"download_much", download_much},
                           {"download_later", download_later},
                           {"synchronize", synchronize},
                           {"record", record},
                           {"replay", replay},
                           {"allocate", allocate},
                           {"pin", pin},
                           {"call_back", call_back},
                           {"make_stream", make_stream},
                           {"fail", fail},
                           {"first_launch", launch, true}};
constexpr unsigned kCallCount = sizeof kCalls / sizeof *kCalls;

void leave(int) { exit(kExitCode); }

// Traps mark the begin and the end of the call. Earlier work is not all sent when the call begins.
[[noreturn]] void run_program(const Call& call) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction action {};
  action.sa_handler = leave;
  sigaction(SIGUSR1, &action, nullptr);
  static Program program;
  if (call.first) {
    CHECK_RUNTIME(cudaMalloc(&program.device, program.host.size() * 4));
  } else {
    prepare(program);
    for (unsigned round = 0; round < 2; ++round)
      for (const Call& each : kCalls) each.make(program);
    for (unsigned i = 0; i < 3; ++i) launch(program);
  }
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(3);
  stop_here();
  call.make(program);
  stop_here();
  exit(0);
}

// --- who steps it ---------------------------------------------------------------------------------------------------

pid_t start(const Call& call) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) run_program(call);
  return child;
}

// Tracks whether the process is inside the C library's allocator. The allocator has locks that exit handlers of the
// runtime and of programs take: an exit inside of it deadlocks, whichever library called it.
class Allocator {
 public:
  // Called at each instruction.
  void look(const Stepper& stepper) {
    if (returns_to_) {
      if (stepper.at() == returns_to_ && stepper.stack() > entered_with_) returns_to_ = 0;
    } else if (std::find(std::begin(functions_), std::end(functions_), stepper.at()) != std::end(functions_)) {
      entered_with_ = stepper.stack();
      returns_to_ = stepper.word(entered_with_);
    }
  }
  bool is_inside() const { return returns_to_ != 0; }

 private:
  static uint64_t function(const char* name) { return reinterpret_cast<uint64_t>(dlsym(RTLD_DEFAULT, name)); }
  const uint64_t functions_[6] = {function("malloc"), function("calloc"),        function("realloc"),
                                  function("free"),   function("aligned_alloc"), function("posix_memalign")};
  uint64_t returns_to_ = 0, entered_with_ = 0;
};

// Steps to the next point outside the allocator. False: the call is over.
bool to_next_point(Stepper& stepper, Allocator& allocator, bool there) {
  for (;; there = false) {
    if (!there && !stepper.step()) return false;
    const bool point = stepper.next().is_point();
    allocator.look(stepper);
    if (point && !allocator.is_inside()) return true;
  }
}

// Returns the number of places: two for each point of the call, before and after it.
unsigned places_of(const Call& call) {
  const pid_t child = start(call);
  Stepper stepper(child);
  Allocator allocator;
  unsigned places = 0;
  if (!stepper.go_on()) return 0;
  for (bool there = true; places < kPlacesMax && to_next_point(stepper, allocator, there); there = false) places += 2;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return places;
}

// Returns the mapping of an address, with its offset in the file.
std::string name_of(pid_t child, uint64_t address) {
  std::ifstream maps("/proc/" + std::to_string(child) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, offset = 0;
    int path = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %*s %n", &begin, &end, &offset, &path) < 3) continue;
    if (address < begin || address >= end) continue;
    char text[32];
    std::snprintf(text, sizeof text, "+0x%lx", (unsigned long)(address - begin + offset));
    return line.substr(size_t(path)) + text;
  }
  return "?";
}

// Returns false if the process does not end, or ends in another way than expected.
bool ends_at(const Call& call, unsigned place, int limit_s) {
  const pid_t child = start(call);
  Stepper stepper(child);
  if (!stepper.go_on()) {
    std::printf("%s: it has not come to the call\n", call.name);
    return false;
  }
  Allocator allocator;
  bool over = !to_next_point(stepper, allocator, true);
  for (unsigned point = 0; !over && point < place / 2; ++point) over = !to_next_point(stepper, allocator, false);
  if (!over && place % 2) stepper.step();
  stepper.next();
  const std::string where = name_of(child, stepper.at());
  stepper.let_go(SIGUSR1);
  pollfd ended{int(syscall(SYS_pidfd_open, child, 0)), POLLIN, 0};
  const bool in_time = poll(&ended, 1, limit_s * 1000) == 1;
  close(ended.fd);
  if (!in_time) {
    std::printf("%s, place %u (%s): process %d does not end\n", call.name, place, where.c_str(), child);
    if (std::getenv("GPUWIRE_TEST_KEEP")) {  // for a debugger
      std::fflush(stdout);
      pause();
    }
    kill(child, SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!in_time) return false;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitCode) return true;
  std::printf("%s, place %u (%s): status %x\n", call.name, place, where.c_str(), unsigned(status));
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  std::mt19937 random(unsigned(std::atoi(arguments[1])));
  const bool all = std::string(arguments[2]) == "all";
  const int limit_s = std::atoi(arguments[3]);
  const char* only = std::getenv("GPUWIRE_TEST_CALL");
  unsigned bad = 0;
  if (!all) {
    // If the call ends before the place, the signal comes after it, which is valid, too.
    for (int i = 0; i < std::atoi(arguments[2]); ++i)
      bad += !ends_at(kCalls[random() % kCallCount], random() % kPlacesTried, limit_s);
  }
  for (const Call& call : kCalls) {
    if (!all || (only && std::strcmp(only, call.name) != 0)) continue;
    const unsigned places = places_of(call);
    std::printf("%s: %u places\n", call.name, places);
    bad += places == 0;
    for (unsigned place = 0; place < places; ++place) bad += !ends_at(call, place, limit_s);
  }
  std::printf("%s\n", bad ? "FAILED" : "PASSED");
  return bad ? 1 : 0;
}
