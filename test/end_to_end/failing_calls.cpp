// A library preloaded into `gpuwire-serve`: the Nth call of a kind that the program itself makes fails.
//   GPUWIRE_TEST_FAIL=malloc:N or epoll_ctl:N; 0: none
//   GPUWIRE_TEST_FAIL_COUNTS=FILE: how many there were, of a process that ends by itself, and the first of each place
//   in the program that they came from, as far as kFramesCompared callers tell places apart
// It does not affect other programs, or calls by the C library and other libraries.
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <dlfcn.h>
#include <link.h>
#include <sys/epoll.h>
#include <unwind.h>

extern "C" {
void* __libc_malloc(size_t bytes);                // NOLINT(bugprone-reserved-identifier): the C library's name
void* __libc_calloc(size_t count, size_t bytes);  // NOLINT(bugprone-reserved-identifier)
}

namespace {

uintptr_t program_begins = 0, program_ends = 0;
bool counting = false;  // set before main

// Callers within the program, with `operator new` and containers, whose own frames do not identify a place.
constexpr size_t kFramesCompared = 8;

struct Callers {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  size_t frames = 0;
};

_Unwind_Reason_Code add_caller(_Unwind_Context* frame, void* into) {
  auto& callers = *static_cast<Callers*>(into);
  const uintptr_t at = _Unwind_GetIP(frame);
  if (at < program_begins || at >= program_ends) return _URC_NO_REASON;
  callers.hash = (callers.hash ^ (at - program_begins)) * 1099511628211u;
  return ++callers.frames < kFramesCompared ? _URC_NO_REASON : _URC_END_OF_STACK;
}

// The number of the first call of each place. The table has a fixed size, because nothing may be allocated here;
// further places are dropped.
class Places {
 public:
  void note(uint64_t number) {
    static thread_local bool within = false;  // the unwinder may allocate
    if (!counting || within) return;
    within = true;
    Callers callers;
    _Unwind_Backtrace(add_caller, &callers);
    const uint64_t hash = callers.hash | 1;
    for (size_t tried = 0; tried < kPlacesMax; ++tried) {
      Place& place = places_[(hash + tried) % kPlacesMax];
      uint64_t there = 0;
      // Relaxed: read when the process has one thread left.
      if (place.hash.compare_exchange_strong(there, hash, std::memory_order_relaxed)) {
        place.first = number;
        break;
      }
      if (there == hash) break;
    }
    within = false;
  }
  void print(std::FILE* file) const {
    const char* separator = "";
    for (const Place& place : places_) {
      if (place.first == 0) continue;
      std::fprintf(file, "%s%llu", separator, static_cast<unsigned long long>(place.first));
      separator = ", ";
    }
  }

 private:
  static constexpr size_t kPlacesMax = 1 << 15;
  struct Place {
    std::atomic<uint64_t> hash{0};  // 0: none
    uint64_t first = 0;
  };
  Place places_[kPlacesMax];
};

struct Calls {
  std::atomic<uint64_t> made{0};
  uint64_t fails = 0;  // the number of the failing call; 0: none. Set before main
  Places places;
  bool one_fails() {
    const uint64_t number = made.fetch_add(1, std::memory_order_relaxed) + 1;
    places.note(number);
    return number == fails;
  }
} allocations, watches;

int note_program(dl_phdr_info* info, size_t, void*) {
  // The first object is the program itself.
  program_begins = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (begin < program_begins) program_begins = begin;
    if (begin + segment.p_memsz > program_ends) program_ends = begin + segment.p_memsz;
  }
  return 1;
}

bool by_program(const void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  return address >= program_begins && address < program_ends;
}

__attribute__((constructor)) void begin() {
  const char* what = std::getenv("GPUWIRE_TEST_FAIL");
  if (!what || std::strcmp(program_invocation_short_name, "gpuwire-serve") != 0) return;
  const char* number = std::strchr(what, ':');
  if (!number) return;
  (std::strncmp(what, "malloc", 6) == 0 ? allocations : watches).fails = std::strtoull(number + 1, nullptr, 10);
  ::dl_iterate_phdr(note_program, nullptr);
  counting = std::getenv("GPUWIRE_TEST_FAIL_COUNTS") != nullptr;
}

__attribute__((destructor)) void end() {
  const char* path = std::getenv("GPUWIRE_TEST_FAIL_COUNTS");
  if (!path || program_begins == 0) return;
  if (std::FILE* file = std::fopen(path, "w")) {
    counting = false;
    for (const auto& [name, calls] :
         {std::pair("{\"malloc\": ", &allocations), std::pair(", \"epoll_ctl\": ", &watches)}) {
      std::fprintf(file, "%s{\"calls\": %llu, \"places\": [", name, static_cast<unsigned long long>(calls->made));
      calls->places.print(file);
      std::fputs("]}", file);
    }
    std::fputs("}\n", file);
    std::fclose(file);
  }
}

}  // namespace

extern "C" void* malloc(size_t bytes) {
  if (!by_program(__builtin_return_address(0)) || !allocations.one_fails()) return __libc_malloc(bytes);
  errno = ENOMEM;
  return nullptr;
}

extern "C" void* calloc(size_t count, size_t bytes) {
  if (!by_program(__builtin_return_address(0)) || !allocations.one_fails()) return __libc_calloc(count, bytes);
  errno = ENOMEM;
  return nullptr;
}

// The C library declares the functions above with default visibility, but not this one.
extern "C" __attribute__((visibility("default"))) int epoll_ctl(int poll, int operation, int descriptor,
                                                                epoll_event* event) {
  static const auto real = reinterpret_cast<int (*)(int, int, int, epoll_event*)>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  if (operation == EPOLL_CTL_ADD && by_program(__builtin_return_address(0)) && watches.one_fails()) {
    errno = ENOSPC;
    return -1;
  }
  return real(poll, operation, descriptor, event);
}
