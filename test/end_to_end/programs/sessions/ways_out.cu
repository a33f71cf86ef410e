// A program leaves calls without a return, and changes its own process: threads are cancelled, handlers jump out of
// calls and exit, descriptors are closed, limits are set, memory is protected. It gets the same results as natively,
// and can continue where it could. Arguments: the way, a seed, how often.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

namespace {

__global__ void add(unsigned* value, unsigned by) { atomicAdd(value, by); }

std::mt19937 g_random;
unsigned below(unsigned bound) { return g_random() % bound; }

[[noreturn]] void fail(const char* what, long value = 0) {
  std::printf("%s (%ld)\nFAILED\n", what, value);
  std::fflush(stdout);
  _exit(1);
}

unsigned* counter() {
  unsigned* device = nullptr;
  CHECK_RUNTIME(cudaMalloc(&device, sizeof *device));
  CHECK_RUNTIME(cudaMemset(device, 0, sizeof *device));
  return device;
}

unsigned read(unsigned* device) {
  unsigned value = 0;
  CHECK_RUNTIME(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

// One call of a typical loop; waits are rare.
void one_call(unsigned* device, unsigned choice, std::vector<unsigned>& host) {
  switch (choice % 8) {
    case 5: CHECK_RUNTIME(cudaMemcpy(device + 1, host.data(), host.size() / 2 * 4, cudaMemcpyHostToDevice)); break;
    case 6: CHECK_RUNTIME(cudaMemcpy(host.data(), device + 1, 256, cudaMemcpyDeviceToHost)); break;
    case 7: CHECK_RUNTIME(cudaDeviceSynchronize()); break;
    default: add<<<1, 1>>>(device, 1); break;
  }
}

struct Loop {
  unsigned* device;
  unsigned seed;
  std::atomic<unsigned> calls{0}, launches{0};
  std::vector<unsigned> host;

  Loop(unsigned seed) : seed(seed), host(64 * 1024) {
    CHECK_RUNTIME(cudaMalloc(&device, 4 * (1 + host.size())));
    CHECK_RUNTIME(cudaMemset(device, 0, 4));
  }
  // Between two calls the thread can be cancelled, and nowhere else: what it has counted is what it has done.
  void run(unsigned calls_max = ~0u) {
    std::mt19937 random(seed);
    for (unsigned made = 0; made < calls_max; ++made) {
      const unsigned choice = random();
      one_call(device, choice, host);
      if (choice % 8 < 5) launches.fetch_add(1, std::memory_order_relaxed);
      calls.fetch_add(1, std::memory_order_release);
      pthread_testcancel();
    }
  }
  void await(unsigned calls_made) const {
    while (calls.load(std::memory_order_acquire) < calls_made) sched_yield();
  }
};

// --- cancellation ---------------------------------------------------------------------------------------------------

void cancelled(unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    Loop loop(g_random());
    pthread_t thread;
    pthread_create(
        &thread, nullptr, [](void* user) -> void* { return static_cast<Loop*>(user)->run(), nullptr; }, &loop);
    loop.await(below(200));
    pthread_cancel(thread);
    void* result = nullptr;
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED) fail("the thread ended by itself");
    CHECK_RUNTIME(cudaDeviceSynchronize());
    if (read(loop.device) != loop.launches) fail("launches were lost or made twice", read(loop.device));
    CHECK_RUNTIME(cudaFree(loop.device));
  }
}

// --- jumping out of waits --------------------------------------------------------------------------------------

sigjmp_buf g_back;
std::atomic<bool> g_armed{false}, g_standing{false}, g_released{false};

void jump(int) {
  if (g_armed.exchange(false)) siglongjmp(g_back, 1);
}

void CUDART_CB wait_for_release(void*) {
  g_standing = true;
  while (!g_released) sched_yield();
}

// Returns how often the thread has gone to sleep in the system, if it sleeps now; otherwise nothing.
std::optional<long> times_asleep(pid_t thread) {
  char path[64], text[4096];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/status", int(thread));
  const int file = open(path, O_RDONLY);
  const ssize_t bytes = ::read(file, text, sizeof text - 1);
  close(file);
  if (bytes <= 0) return std::nullopt;
  text[bytes] = 0;
  const char *state = std::strstr(text, "\nState:\t"), *times = std::strstr(text, "\nvoluntary_ctxt_switches:\t");
  if (!state || !times || state[8] != 'S') return std::nullopt;
  return std::atol(std::strchr(times, '\t'));
}

// Whether the thread sleeps in a wait that does not end. A thread that waits for another one's lock sleeps, too, but is
// woken when others have had their turns.
bool sleeps(pid_t thread) {
  constexpr int kTurns = 100;
  const std::optional<long> times = times_asleep(thread);
  for (int turn = 0; times && turn < kTurns; ++turn) {
    sched_yield();
    if (times_asleep(thread) != times) return false;
  }
  return times.has_value();
}

// Waits in one of several ways, while the stream is blocked.
void wait_somehow(unsigned choice, cudaStream_t stream, cudaEvent_t event, unsigned* device, unsigned* host) {
  switch (choice % 4) {
    case 0: cudaStreamSynchronize(stream); break;
    case 1: cudaDeviceSynchronize(); break;
    case 2: cudaEventSynchronize(event); break;
    default: cudaMemcpy(host, device, sizeof *host, cudaMemcpyDeviceToHost); break;
  }
}

void jumped(unsigned rounds) {
  struct sigaction action {};
  action.sa_handler = jump;
  sigaction(SIGUSR1, &action, nullptr);
  const pthread_t self = pthread_self();
  const pid_t id = pid_t(syscall(SYS_gettid));
  unsigned* device = counter();
  cudaStream_t stream;
  cudaEvent_t event;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaEventCreate(&event));
  static unsigned host;  // a copy that was left may still come
  for (unsigned round = 1; round <= rounds; ++round) {
    g_released = g_standing = false;
    const unsigned choice = g_random();
    CHECK_RUNTIME(cudaLaunchHostFunc(stream, wait_for_release, nullptr));
    add<<<1, 1, 0, stream>>>(device, 1);
    CHECK_RUNTIME(cudaEventRecord(event, stream));
    std::atomic<bool> over{false};
    std::thread signaller([&] {
      while (!over) {
        // Once the stream stands nothing comes any more, and a thread that sleeps stays where it is.
        while (!over && !(g_standing && g_armed && sleeps(id))) sched_yield();
        if (!over) pthread_kill(self, SIGUSR1);
      }
    });
    if (sigsetjmp(g_back, 1) == 0) {
      g_armed = true;
      wait_somehow(choice, stream, event, device, &host);
      if (g_armed.exchange(false)) fail("what stands was waited for", long(choice % 4));
    }
    over = true;
    signaller.join();
    g_released = true;
    // From another depth of the stack than the call that was left, or the same.
    if (choice & 16) CHECK_RUNTIME(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    if (read(device) != round) fail("a launch was lost or made twice", read(device));
  }
}

// --- exit in a handler ----------------------------------------------------------------------------------------------

constexpr int kExitCode = 7;
void leave(int) { exit(kExitCode); }

void exits() {
  struct sigaction action {};
  action.sa_handler = leave;
  sigaction(SIGUSR1, &action, nullptr);
  static Loop loop(g_random());
  const pthread_t self = pthread_self();
  const unsigned calls = below(400), more = below(2000);
  // One-time initialisation uses the C library's allocator, whose locks the runtime's exit handlers take, too: exit()
  // inside of it deadlocks, whichever library called it.
  constexpr unsigned kCallsBefore = 32;
  loop.run(kCallsBefore);
  std::thread([=] {
    loop.await(kCallsBefore + calls);
    for (volatile unsigned i = 0; i < more; i = i + 1) {}
    pthread_kill(self, SIGUSR1);
  }).detach();
  loop.run();
}

// --- fork -----------------------------------------------------------------------------------------------------------

void forked(unsigned rounds) {
  static Loop loop(g_random());
  pthread_t thread;
  pthread_create(
      &thread, nullptr, [](void*) -> void* { return loop.run(), nullptr; }, nullptr);
  for (unsigned round = 0; round < rounds; ++round) {
    loop.await(loop.calls + below(50));
    const pid_t child = fork();
    if (child == 0) {
      void* memory = nullptr;
      const bool told = cudaMalloc(&memory, 16) == cudaErrorInitializationError;
      round % 2 ? exit(told ? 0 : 1) : _exit(told ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) fail("the child", status);
  }
  pthread_cancel(thread);
  pthread_join(thread, nullptr);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  if (read(loop.device) != loop.launches) fail("launches were lost or made twice", read(loop.device));
}

// --- descriptors ----------------------------------------------------------------------------------------------------

// The program's own files, under all numbers that it has closed. The libraries must not write to them or read from
// them.
struct OwnFiles {
  static constexpr char kText[] = "the program's own";
  std::vector<int> files, sockets;

  explicit OwnFiles(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      if (i % 2) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) break;
        if (write(ends[1], kText, sizeof kText) < 0) fail("write", errno);
        sockets.push_back(ends[0]);
        sockets.push_back(ends[1]);
      } else {
        const int file = memfd_create("program", 0);
        if (file < 0) break;
        files.push_back(file);
      }
    }
  }
  void check() const {
    for (int file : files) {
      struct stat now {};
      if (fstat(file, &now) != 0) fail("a file was closed", file);
      if (now.st_size != 0) fail("a file was written to", file);
    }
    for (size_t i = 0; i < sockets.size(); i += 2) {
      char text[256];
      if (recv(sockets[i], text, sizeof text, MSG_DONTWAIT) != sizeof kText) fail("bytes of a socket", sockets[i]);
      if (recv(sockets[i + 1], text, sizeof text, MSG_DONTWAIT) >= 0) fail("a socket got bytes", sockets[i + 1]);
      if (errno != EAGAIN) fail("a socket was shut or closed", sockets[i + 1]);
    }
  }
};

// Closes foreign descriptors from 3 on, and opens files of its own.
void closes(unsigned last) {
  unsigned* device = counter();
  void* pinned = nullptr;
  CHECK_RUNTIME(cudaMallocHost(&pinned, 1 << 16));
  for (unsigned i = 0; i < 50; ++i) add<<<1, 1>>>(device, 1);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  usleep(20000);  // so that the session's thread sleeps, and has to be woken
  for (unsigned number = 3; number <= last; ++number) close(int(number));
  OwnFiles own(last > 1000 ? 900 : 200);
  cudaError_t first = cudaSuccess;
  for (unsigned i = 0; i < 20; ++i) {
    add<<<1, 1>>>(device, 1);
    if (!first) first = cudaGetLastError();
    cudaError_t copied = cudaMemcpy(pinned, device, 4, cudaMemcpyDeviceToHost);
    if (!first) first = copied;
  }
  own.check();
  // The session's descriptors have numbers that programs do not close one by one. A program that closes all has closed
  // its device.
  if (last < 900 && (first || read(device) != 70)) fail("the session is lost", first);
  std::printf("after closing: %s\n", cudaGetErrorName(first));
}

// --- limits ---------------------------------------------------------------------------------------------------------

void file_limit() {
  unsigned* device = counter();
  const rlimit limit{4096, 4096};
  setrlimit(RLIMIT_FSIZE, &limit);
  for (size_t bytes : {size_t(4096), size_t(1) << 16, size_t(1) << 20, size_t(8) << 20}) {
    unsigned* pinned = nullptr;
    CHECK_RUNTIME(cudaMallocHost(&pinned, bytes));
    std::memset(pinned, 1, bytes);
    unsigned* there = nullptr;
    CHECK_RUNTIME(cudaMalloc(&there, bytes));
    CHECK_RUNTIME(cudaMemcpy(there, pinned, bytes, cudaMemcpyHostToDevice));
    std::vector<unsigned> pageable(bytes / 4);
    CHECK_RUNTIME(cudaMemcpy(pageable.data(), there, bytes, cudaMemcpyDeviceToHost));
    for (unsigned word : pageable)
      if (word != 0x01010101) fail("bytes of pinned memory", word);
    CHECK_RUNTIME(cudaMemcpy(there, pageable.data(), bytes, cudaMemcpyHostToDevice));
    // The device is told its address.
    unsigned* mapped = nullptr;
    CHECK_RUNTIME(cudaHostGetDevicePointer(reinterpret_cast<void**>(&mapped), pinned, 0));
    add<<<1, 1>>>(mapped, 1);
    CHECK_RUNTIME(cudaDeviceSynchronize());
    if (*pinned != 0x01010102) fail("a kernel's word", *pinned);
    CHECK_RUNTIME(cudaFreeHost(pinned));
    CHECK_RUNTIME(cudaFree(there));
  }
  add<<<1, 1>>>(device, 1);
  if (read(device) != 1) fail("the counter");
}

// --- rights ---------------------------------------------------------------------------------------------------------

enum GivenUp : unsigned { kEnvironment = 1, kRootFolder = 2, kUser = 4 };

// After that the session loses its connection, and gets another one.
void gives_up(unsigned what) {
  unsigned* device = counter();
  add<<<1, 1>>>(device, 1);
  if (read(device) != 1) fail("the counter");
  if (what & kEnvironment) clearenv();
  char folder[] = "/tmp/ways_out.XXXXXX";
  if (what & kRootFolder && (!mkdtemp(folder) || chroot(folder) != 0 || chdir("/") != 0)) fail("chroot", errno);
  if (what & kUser && (setgid(65534) != 0 || setuid(65534) != 0)) fail("setuid", errno);
  std::printf("given up %s\n", folder);
  std::fflush(stdout);
  if (std::getchar() != '\n') fail("nobody has cut the connection");
  for (unsigned i = 0; i < 10; ++i) add<<<1, 1>>>(device, 1);
  if (read(device) != 11) fail("a launch was lost or made twice", read(device));
}

// --- errno ----------------------------------------------------------------------------------------------------------

void errnos(unsigned rounds) {
  constexpr int kOwn = ENOTTY;
  unsigned* device = counter();
  static unsigned host[1 << 18];
  cudaStream_t stream;
  cudaEvent_t event;
  unsigned line = 0;
#define KEEPS_ERRNO(call)                                     \
  do {                                                        \
    errno = kOwn;                                             \
    const cudaError_t result = (call);                        \
    const int now = errno;                                    \
    line = __LINE__;                                          \
    CHECK_RUNTIME(result);                                    \
    if (now != kOwn) fail("errno has changed in line", line); \
  } while (false)
  for (unsigned round = 0; round < rounds; ++round) {
    void *memory = nullptr, *pinned = nullptr;
    KEEPS_ERRNO(cudaStreamCreate(&stream));
    KEEPS_ERRNO(cudaEventCreate(&event));
    KEEPS_ERRNO(cudaMalloc(&memory, sizeof host));
    KEEPS_ERRNO(cudaMallocHost(&pinned, 1 << 16));
    KEEPS_ERRNO(cudaMemcpy(memory, host, sizeof host, cudaMemcpyHostToDevice));
    KEEPS_ERRNO(cudaMemcpyAsync(pinned, memory, 1 << 16, cudaMemcpyDeviceToHost, stream));
    KEEPS_ERRNO((add<<<1, 1, 0, stream>>>(device, 1), cudaGetLastError()));
    KEEPS_ERRNO(cudaEventRecord(event, stream));
    KEEPS_ERRNO(cudaEventSynchronize(event));
    KEEPS_ERRNO(cudaStreamSynchronize(stream));
    KEEPS_ERRNO(cudaMemcpy(host, memory, sizeof host, cudaMemcpyDeviceToHost));
    KEEPS_ERRNO(cudaFreeHost(pinned));
    KEEPS_ERRNO(cudaFree(memory));
    KEEPS_ERRNO(cudaEventDestroy(event));
    KEEPS_ERRNO(cudaStreamDestroy(stream));
    KEEPS_ERRNO(cudaDeviceSynchronize());
  }
}

// --- memory that faults ---------------------------------------------------------------------------------------------

std::byte* g_guarded = nullptr;
size_t g_guarded_bytes = 0;
std::atomic<unsigned> g_faults{0};

// A write barrier, as collectors of garbage have it: the page is noted, and open from then on.
void open_page(int, siginfo_t* info, void*) {
  auto* at = static_cast<std::byte*>(info->si_addr);
  if (at < g_guarded || at >= g_guarded + g_guarded_bytes) _exit(3);
  g_faults.fetch_add(1, std::memory_order_relaxed);
  auto page = reinterpret_cast<uintptr_t>(at) & ~uintptr_t(4095);
  if (mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE) != 0) _exit(4);
}

void barriers(unsigned rounds) {
  struct sigaction action {};
  action.sa_sigaction = open_page;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  g_guarded_bytes = 24u << 20;
  g_guarded = static_cast<std::byte*>(
      mmap(nullptr, g_guarded_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::byte* device = nullptr;
  CHECK_RUNTIME(cudaMalloc(&device, g_guarded_bytes));
  std::vector<std::byte> compare(g_guarded_bytes);
  for (unsigned round = 0; round < rounds; ++round) {
    for (size_t bytes : {size_t(100), size_t(4096) * 3, size_t(1) << 18, size_t(1) << 20, size_t(20) << 20}) {
      const size_t offset = below(4096 * 8);
      for (size_t i = 0; i < bytes; i += 512) g_guarded[offset + i] = std::byte(g_random());
      // From memory that may not be read yet.
      for (size_t i = 0; i < g_guarded_bytes; i += 4096)
        if (below(4) == 0) mprotect(g_guarded + i, 4096, PROT_NONE);
      CHECK_RUNTIME(cudaMemcpy(device, g_guarded + offset, bytes, cudaMemcpyHostToDevice));
      mprotect(g_guarded, g_guarded_bytes, PROT_READ | PROT_WRITE);
      CHECK_RUNTIME(cudaMemcpy(compare.data(), device, bytes, cudaMemcpyDeviceToHost));
      if (std::memcmp(compare.data(), g_guarded + offset, bytes) != 0) fail("what was sent", long(bytes));
      // Into pages that may not be written to yet.
      std::memset(g_guarded, 0, g_guarded_bytes);
      mprotect(g_guarded, g_guarded_bytes, PROT_READ);
      CHECK_RUNTIME(cudaMemcpy(g_guarded + offset, device, bytes, cudaMemcpyDeviceToHost));
      if (std::memcmp(compare.data(), g_guarded + offset, bytes) != 0) fail("what was fetched", long(bytes));
      mprotect(g_guarded, g_guarded_bytes, PROT_READ | PROT_WRITE);
    }
  }
  if (g_faults == 0) fail("no page was ever closed");
}

// Without a handler: a fault of the program, or an error of the call and a session that goes on.
void bad_memory(bool fetches, size_t bytes) {
  unsigned* device = counter();
  std::byte* there = nullptr;
  CHECK_RUNTIME(cudaMalloc(&there, bytes));
  // Longer than its file.
  const int file = memfd_create("short", 0);
  if (ftruncate(file, 4096) != 0) fail("ftruncate", errno);
  void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const cudaError_t result = fetches ? cudaMemcpy(host, there, bytes, cudaMemcpyDeviceToHost)
                                     : cudaMemcpy(there, host, bytes, cudaMemcpyHostToDevice);
  if (result == cudaSuccess) fail("a copy of memory that is not there");
  add<<<1, 1>>>(device, 1);
  if (read(device) != 1) fail("the counter");
  std::printf("an error: %s\n", cudaGetErrorName(result));
}

// --- rights of registered memory -----------------------------------------------------------------------------------

// The device's work on this and on other memory does not depend on the rights of the program's mapping.
void rights(unsigned rounds) {
  constexpr size_t kBytes = 1 << 16, kCount = kBytes / 4;
  unsigned* device = counter();
  const int file = memfd_create("registered", 0);
  if (ftruncate(file, kBytes) != 0) fail("ftruncate", errno);
  for (bool shared : {false, true}) {
    auto* memory =
        static_cast<unsigned*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                    shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, shared ? file : -1, 0));
    unsigned *there = nullptr, launches = 0, expected = 0;
    CHECK_RUNTIME(cudaHostRegister(memory, kBytes, cudaHostRegisterMapped));
    CHECK_RUNTIME(cudaHostGetDevicePointer(reinterpret_cast<void**>(&there), memory, 0));
    for (unsigned round = 0; round < rounds; ++round) {
      const unsigned at = below(kCount), by = 1 + below(1000);
      expected = memory[at] + by;
      if (mprotect(memory, kBytes, round % 2 ? PROT_NONE : PROT_READ) != 0) fail("mprotect", errno);
      add<<<1, 1>>>(there + at, by);
      CHECK_RUNTIME(cudaDeviceSynchronize());
      add<<<1, 1>>>(device, 1);
      CHECK_RUNTIME(cudaDeviceSynchronize());
      ++launches;
      if (mprotect(memory, kBytes, PROT_READ | PROT_WRITE) != 0) fail("mprotect", errno);
      // Of a shared mapping the next call brings what could not be written.
      add<<<1, 1>>>(device, 1);
      CHECK_RUNTIME(cudaDeviceSynchronize());
      ++launches;
      if (memory[at] != expected) fail("what the device wrote without rights", memory[at]);
      memory[at] = round;
      add<<<1, 1>>>(there + at, 1);
      CHECK_RUNTIME(cudaDeviceSynchronize());
      if (memory[at] != round + 1) fail("what the program wrote afterwards", memory[at]);
    }
    if (shared && ftruncate(file, 4096) != 0) fail("ftruncate", errno);
    add<<<1, 1>>>(device, 1);
    if (read(device) != launches + 1) fail("the counter", read(device));
    CHECK_RUNTIME(cudaMemset(device, 0, sizeof *device));
    CHECK_RUNTIME(cudaHostUnregister(memory));
    munmap(memory, kBytes);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const std::string way = arguments[1];
  g_random.seed(unsigned(std::atoi(arguments[2])));
  const unsigned rounds = unsigned(std::atoi(arguments[3]));
  if (way == "cancelled") cancelled(rounds);
  else if (way == "jumped") jumped(rounds);
  else if (way == "exits") exits();
  else if (way == "forked") forked(rounds);
  else if (way == "closes") closes(255);
  else if (way == "closes_all") closes(4095);
  else if (way == "file_limit") file_limit();
  else if (way == "gives_up") gives_up(rounds);
  else if (way == "errno") errnos(rounds);
  else if (way == "rights") rights(rounds);
  else if (way == "barriers") barriers(rounds);
  else if (way == "sends_bad_memory") bad_memory(false, rounds);
  else if (way == "fetches_bad_memory") bad_memory(true, rounds);
  else return 2;
  std::printf("PASSED\n");
  return 0;
}
