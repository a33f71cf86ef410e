// Code inside a worker's confinement that executes orders: linked into the mock driver, it simulates a compromised
// worker.
#include "test/hostile/worker_orders.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cuda_names.hpp"
#include "server/ipc/channel.hpp"

namespace {

using namespace gpuwire;
using test::Order;

constexpr unsigned kFloodMessages = 20'000;
constexpr size_t kTakenAtOnceBytes = size_t{64} << 20, kTakenBytesMax = size_t{64} << 30;
constexpr uint64_t kSeed = 20261;

std::vector<std::string> targets() {
  std::vector<std::string> found;
  std::stringstream stream(std::getenv("GPUWIRE_TEST_TARGETS") ?: "");
  for (std::string target; std::getline(stream, target, ':');) found.push_back(target);
  std::string broker = "/proc/" + std::to_string(::getppid());
  for (const char* secret : {"/mem", "/environ", "/maps", "/fd", "/task"}) found.push_back(broker + secret);
  return found;
}

unsigned opened(int descriptor) {
  if (descriptor < 0) return 0;
  ::flock(descriptor, LOCK_EX | LOCK_NB);
  ::close(descriptor);
  return 1;
}

uint64_t reach_for_files() {
  unsigned reached = 0;
  for (const std::string& target : targets()) {
    reached += opened(::open(target.c_str(), O_RDONLY | O_CLOEXEC));
    reached += opened(::open(target.c_str(), O_RDWR | O_CLOEXEC));
    if (DIR* folder = ::opendir(target.c_str())) {
      ++reached;
      ::closedir(folder);
    }
    reached += opened(::open((target + "/mine").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    reached += ::rename(target.c_str(), (target + ".gone").c_str()) == 0;
    reached += ::symlink("/etc", (target + ".link").c_str()) == 0;
    reached += ::unlink(target.c_str()) == 0;
  }
  return 1 + reached;
}

struct SharedPage {
  uint64_t* words;
  size_t count;
};

// The memory files from the broker, by their names.
std::vector<SharedPage> shared_pages() {
  std::vector<SharedPage> pages;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char rights[5] = {};
    if (line.find("memfd:gpuwire") == std::string::npos ||
        std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3 || rights[1] != 'w')
      continue;
    pages.push_back({reinterpret_cast<uint64_t*>(begin), (end - begin) / sizeof(uint64_t)});
  }
  return pages;
}

// Words that may cause faults: small numbers, all ones, single bits, random values.
uint64_t any_word(std::mt19937_64& random) {
  switch (random() % 4) {
    case 0: return random() % 1024;
    case 1: return ~uint64_t{0} - random() % 2;
    case 2: return uint64_t{1} << (random() % 64);
    default: return random();
  }
}

uint64_t scribble() {
  const char* rounds_text = std::getenv("GPUWIRE_TEST_ROUNDS");
  uint64_t rounds = rounds_text ? std::strtoull(rounds_text, nullptr, 10) : 1000;
  std::vector<SharedPage> pages = shared_pages();
  std::mt19937_64 random(kSeed);
  for (uint64_t round = 0; round < rounds; ++round) {
    for (const SharedPage& page : pages) {
      // Most words of a page are never read; its head always is.
      size_t at = random() % 2 ? random() % page.count : random() % std::min<size_t>(page.count, 64);
      __atomic_store_n(&page.words[at], any_word(random), __ATOMIC_SEQ_CST);
    }
  }
  return 1 + pages.size();
}

std::string any_text(std::mt19937_64& random) {
  std::string text(random() % 512, ' ');
  for (char& c : text) c = char(random());
  return text;
}

// The messages that a worker may send, except for its end, so that the worker stays alive and the test can check the
// effects on others.
server::ipc::Message any_message(std::mt19937_64& random) {
  namespace ipc = server::ipc;
  ipc::ShareToken token;
  for (uint8_t& byte : token) byte = uint8_t(random());
  switch (random() % 10) {
    case 0: return ipc::Ready{{any_text(random), {{.bytes = any_word(random), .name = any_text(random)}}}};
    case 1: return ipc::Begun{any_text(random)};
    case 2: return ipc::Note{any_text(random)};
    case 3: return ipc::Share{any_word(random), token, uint32_t(any_word(random)), any_text(random), {}};
    case 4: return ipc::Claim{any_word(random), token, uint32_t(any_word(random)), any_text(random)};
    case 5: return ipc::Withdraw{token};
    case 6: return ipc::MemoryWanted{any_word(random), uint32_t(any_word(random)), any_word(random)};
    case 7: return ipc::Detached{uint32_t(any_word(random)), any_text(random)};
    case 8: return ipc::Attached{};
    default: return ipc::ResumeRefused{any_text(random)};
  }
}

uint64_t flood_the_broker() {
  std::mt19937_64 random(kSeed);
  uint64_t taken = 0;
  server::ipc::Channel broker(server::OwnedDescriptor(::fcntl(server::ipc::kDescriptor, F_DUPFD_CLOEXEC, 0)),
                              server::ipc::Speaker::broker, 0);
  for (unsigned i = 0; i < kFloodMessages; ++i) taken += broker.send(any_message(random));
  return 1 + taken;
}

uint64_t take_memory() {
  uint64_t bytes = 0;
  while (bytes < kTakenBytesMax && ::mmap(nullptr, kTakenAtOnceBytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED)
    bytes += kTakenAtOnceBytes;
  return bytes >> 20;
}

// Every successful action is undone, so that a broker without the defence survives and the test can report it. The
// signals end no process.
uint64_t weaken_the_broker() {
  const pid_t broker = ::getppid();
  unsigned worked = 0;
  rlimit limit{};
  worked +=
      ::prlimit(broker, RLIMIT_NOFILE, nullptr, &limit) == 0 && ::prlimit(broker, RLIMIT_NOFILE, &limit, nullptr) == 0;
  worked += ::setpriority(PRIO_PROCESS, id_t(broker), ::getpriority(PRIO_PROCESS, id_t(broker))) == 0;
  worked += ::setpriority(PRIO_USER, ::getuid(), 0) == 0;
  cpu_set_t processors;
  if (::sched_getaffinity(broker, sizeof processors, &processors) == 0)
    worked += ::sched_setaffinity(broker, sizeof processors, &processors) == 0;
  const sched_param usual{};
  worked += ::sched_setscheduler(broker, SCHED_OTHER, &usual) == 0;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1 + worked;
  worked += ::fcntl(ends[0], F_SETSIG, SIGURG) == 0;
  worked += ::fcntl(ends[0], F_SETOWN, broker) == 0;
  worked += ::ioctl(ends[0], FIOSETOWN, &broker) == 0;
  worked += ::ioctl(ends[0], SIOCSPGRP, &broker) == 0;
  for (int end : ends) ::close(end);
  return 1 + worked;
}

void use_watches() {
  const int poll = ::epoll_create1(EPOLL_CLOEXEC);
  int ends[2];
  if (::pipe(ends) != 0) return;
  epoll_event event{.events = EPOLLIN, .data = {}};
  ::epoll_ctl(poll, EPOLL_CTL_ADD, ends[0], &event);
}

void send_to_an_address() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  const sockaddr_un log{.sun_family = AF_UNIX, .sun_path = "/dev/log"};
  ::sendto(ends[0], "forged", 6, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&log), sizeof log);
}

uint64_t change_modes() {
  unsigned worked = 0;
  std::vector<std::string> files = targets();
  for (const char* own : {"/proc/self/exe", "/usr/bin/env", "/usr"}) files.emplace_back(own);
  for (const std::string& file : files) {
    struct stat facts {};
    // Also tries paths that cannot be listed.
    const mode_t mode = ::stat(file.c_str(), &facts) == 0 ? facts.st_mode & 07777 : 0644;
    worked += ::chmod(file.c_str(), mode) == 0;
    worked += ::fchmodat(AT_FDCWD, file.c_str(), mode, 0) == 0;
    worked += ::chown(file.c_str(), ::getuid(), ::getgid()) == 0;
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    worked += descriptor >= 0 && ::fchmod(descriptor, mode) == 0;
    if (descriptor >= 0) ::close(descriptor);
  }
  return 1 + worked;
}

constexpr int kDescriptorsTried = 1024;

uint64_t make_others_wait() {
  unsigned worked = 0;
  const linger long_time{1, 3600}, usual{0, 0};
  for (int descriptor = 0; descriptor < kDescriptorsTried; ++descriptor) {
    if (::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time) != 0) continue;
    ++worked;
    ::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &usual, sizeof usual);
  }
  const int memory = ::memfd_create("room", MFD_CLOEXEC);
  worked += ::fallocate(memory, FALLOC_FL_KEEP_SIZE, 0, 1 << 20) == 0;
  ::close(memory);
  return 1 + worked;
}

uint64_t forge_the_log() {
  unsigned took = 0;
  const std::string_view line = test::kForgedLine;
  for (int descriptor = 0; descriptor < kDescriptorsTried; ++descriptor) {
    struct stat facts {};
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || ::fstat(descriptor, &facts) != 0) continue;
    // Another order covers shared memory.
    if (!S_ISFIFO(facts.st_mode) && !(S_ISREG(facts.st_mode) && facts.st_nlink > 0)) continue;
    took += S_ISREG(facts.st_mode) && ::ftruncate(descriptor, 0) == 0;
    ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
    took += ::write(descriptor, line.data(), line.size()) > 0;
    ::fcntl(descriptor, F_SETFL, flags);
  }
  return 1 + took;
}

void* wait_for_the_end(void*) {
  for (;;) ::pause();
}

uint64_t start_threads() {
  pthread_attr_t small;
  ::pthread_attr_init(&small);
  ::pthread_attr_setstacksize(&small, size_t{64} << 10);
  ::pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  unsigned started = 0;
  for (pthread_t thread; started < test::kThreadsOrdered; ++started)
    if (::pthread_create(&thread, &small, wait_for_the_end, nullptr) != 0) break;
  ::pthread_attr_destroy(&small);
  return 1 + started;
}

}  // namespace

extern "C" bool obey_order(size_t bytes, CUdeviceptr* answer) {
  switch (Order(bytes)) {
    case Order::reach_for_files: *answer = reach_for_files(); return true;
    case Order::attach_to_broker: ::ptrace(PTRACE_ATTACH, ::getppid(), nullptr, nullptr); return true;
    case Order::open_a_socket: ::socket(AF_INET, SOCK_STREAM, 0); return true;
    case Order::signal_the_broker: ::kill(::getppid(), SIGTERM); return true;
    case Order::start_a_process: ::execl("/bin/true", "true", nullptr); return true;
    case Order::scribble: *answer = scribble(); return true;
    case Order::flood_the_broker: *answer = flood_the_broker(); return true;
    case Order::take_memory: *answer = take_memory(); return true;
    case Order::weaken_the_broker: *answer = weaken_the_broker(); return true;
    case Order::start_threads: *answer = start_threads(); return true;
    case Order::use_watches: use_watches(); return true;
    case Order::send_to_an_address: send_to_an_address(); return true;
    case Order::change_modes: *answer = change_modes(); return true;
    case Order::make_others_wait: *answer = make_others_wait(); return true;
    case Order::forge_the_log: *answer = forge_the_log(); return true;
  }
  return false;
}
