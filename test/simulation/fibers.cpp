#include "test/simulation/fibers.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <cxxabi.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "test/simulation/schedule.hpp"

namespace gpuwire::simulation::fibers {

namespace {

constexpr size_t kStackBytes = 512 * 1024, kGuardBytes = 4096;
constexpr uint64_t kStepNs = 20, kPollNs = 1000;
constexpr uint64_t kBeginNs = 1'000'000'000'000, kScenarioNsMax = 3'600'000'000'000;
constexpr uint64_t kLongNs = 1'000'000'000;

// This program's thread-local variables, which lie below the thread pointer (x86-64's ABI for thread-local storage,
// variant II). Each switch swaps them.
struct ThreadLocals {
  std::byte* at = nullptr;
  size_t bytes = 0;
  const void* initial = nullptr;
  size_t initial_bytes = 0;
};

int find_thread_locals(dl_phdr_info* program, size_t, void* out) {
  auto& locals = *static_cast<ThreadLocals*>(out);
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const auto& part = program->dlpi_phdr[i];
    if (part.p_type != PT_TLS) continue;
    locals.bytes = (part.p_memsz + part.p_align - 1) / part.p_align * part.p_align;
    locals.at = static_cast<std::byte*>(__builtin_thread_pointer()) - locals.bytes;
    locals.initial = reinterpret_cast<const void*>(program->dlpi_addr + part.p_vaddr);
    locals.initial_bytes = part.p_filesz;
  }
  return 1;  // the first is the program itself
}

// The C++ runtime's per-thread state: exceptions that are being handled.
struct Exceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};

}  // namespace

struct Fiber {
  enum class State : uint8_t { ready, waits, looks, over };

  State state = State::ready;
  bool timed_out = false, detached = false, entered = false;
  const void* waits_for = nullptr;
  uint64_t deadline = kNever;
  uint64_t looked = 0;  // State::looks: at what turn
  jmp_buf at;
  ucontext_t beginning;
  std::byte* stack = nullptr;
  std::unique_ptr<std::byte[]> locals;
  Exceptions exceptions;
  std::vector<void*> values;     // by key
  std::array<void*, 24> from{};  // the backtrace of its wait, for --explain
  int frames = 0;
  void* (*run)(void*) = nullptr;
  void* argument = nullptr;
  void* result = nullptr;
};

namespace {

struct Scheduler {
  Scheduler() {
    dl_iterate_phdr(find_thread_locals, &locals);
    first.locals = std::make_unique<std::byte[]>(locals.bytes);
    first.entered = true;
    fibers.push_back(&first);
    // A child of fork() has only the calling thread.
    pthread_atfork(nullptr, nullptr, [] { instance().alone = true; });
  }
  static Scheduler& instance() {
    static Scheduler& scheduler = *new Scheduler;  // lives until the process ends
    return scheduler;
  }

  unsigned& waiters_for(const void* what) { return waiters[(reinterpret_cast<uintptr_t>(what) >> 3) % waiters.size()]; }
  void wake(Fiber* fiber) {
    if (fiber->state == Fiber::State::waits) --waiters_for(fiber->waits_for);
    fiber->state = Fiber::State::ready;
  }

  uint64_t draw() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
  void interrupt_after() { steps_left = 1 + draw() % steps_max; }

  void switch_to(Fiber* next) {
    Fiber* from = running;
    if (next == from) return;
    auto* exceptions = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
    std::memcpy(from->locals.get(), locals.at, locals.bytes);
    from->exceptions = *exceptions;
    std::memcpy(locals.at, next->locals.get(), locals.bytes);
    *exceptions = next->exceptions;
    running = next;
    if (_setjmp(from->at) != 0) return;
    if (std::exchange(next->entered, true)) _longjmp(next->at, 1);
    setcontext(&next->beginning);
  }

  // Switches to another fiber. Precondition: the running fiber has set its state.
  void give_way() {
    if (alone) {
      if (running->state == Fiber::State::ready) return;
      _exit(70);  // a child of fork() that waits for a thread of its parent
    }
    ++turn;
    for (;;) {
      candidates.clear();
      Fiber* earliest = nullptr;
      for (Fiber* fiber : fibers) {
        bool waiting = fiber->state == Fiber::State::waits || fiber->state == Fiber::State::looks;
        if (waiting && fiber->deadline <= now) {
          fiber->timed_out = true;
          wake(fiber);
        }
        if (fiber->state == Fiber::State::ready || (fiber->state == Fiber::State::looks && fiber->looked != activity))
          candidates.push_back(fiber);
        else if (waiting && fiber->deadline != kNever && (!earliest || fiber->deadline < earliest->deadline))
          earliest = fiber;
      }
      if (!candidates.empty()) break;
      if (!earliest) over("every thread waits for ever");
      if (explains && earliest->deadline - now >= kLongNs) explain(earliest->deadline - now);
      waited += earliest->deadline - now;
      now = earliest->deadline;
    }
    if (now - kBeginNs > kScenarioNsMax) over("there is no end within an hour");
    Fiber* next = candidates[draw() % candidates.size()];
    if (next->state == Fiber::State::ready) ++activity;
    interrupt_after();
    switch_to(next);
  }

  void note_where() {
    if (!explains) return;
    // backtrace() takes locks, which must not count as steps.
    const uint64_t steps = std::exchange(steps_left, ~0ull), time = now;
    running->frames = ::backtrace(running->from.data(), int(running->from.size()));
    steps_left = steps;
    now = time;
  }
  // Prints the waits, for addr2line.
  void explain(uint64_t ns) {
    std::fprintf(stderr, "nothing happens for %lu ms; threads wait in\n", static_cast<unsigned long>(ns / 1'000'000));
    for (const Fiber* fiber : fibers) {
      std::fprintf(stderr, "---\n");
      ::backtrace_symbols_fd(fiber->from.data(), fiber->frames, STDERR_FILENO);
    }
  }

  [[noreturn]] void over(const char* why) {
    if (explains) explain(0);
    if (stuck) std::exchange(stuck, nullptr)(why);
    std::fprintf(stderr, "%s\n", why);
    std::abort();
  }

  ThreadLocals locals;
  Fiber first;
  Fiber* running = &first;
  std::vector<Fiber*> fibers, candidates;
  std::vector<Fiber*> unused;
  std::vector<void (*)(void*)> keys;  // the destructors of their values
  // The number of waiters for addresses with this remainder: mostly zero.
  std::array<unsigned, 256> waiters{};
  bool alone = false, explains = false;
  // `waited`: the part of the time in which every thread waited.
  uint64_t random = 0x9e3779b97f4a7c15, now = kBeginNs, waited = 0, turn = 0, activity = 1;
  unsigned steps_max = 64;
  uint64_t steps_left = 64;
  void (*stuck)(const char*) = nullptr;
};

Scheduler& all() { return Scheduler::instance(); }

void forget(Fiber* fiber) {
  Scheduler& s = all();
  std::erase(s.fibers, fiber);
  s.unused.push_back(fiber);
}

// Repeats, because a destructor may set another value.
void destroy_values(Fiber& fiber) {
  for (bool found = true; found;) {
    found = false;
    for (size_t key = 0; key < fiber.values.size(); ++key) {
      void* value = std::exchange(fiber.values[key], nullptr);
      if (!value || !all().keys[key]) continue;
      found = true;
      all().keys[key](value);
    }
  }
}

void enter() {
  Fiber* fiber = all().running;
  fiber->result = fiber->run(fiber->argument);
  destroy_values(*fiber);
  fiber->state = Fiber::State::over;
  wake(fiber, ~0u);
  // The fiber uses its stack until the switch; no other fiber takes the stack before.
  if (fiber->detached) forget(fiber);
  all().give_way();
  std::abort();  // never reached
}

}  // namespace

Fiber* current() { return all().running; }

Fiber* create(void* (*run)(void*), void* argument) {
  Scheduler& s = all();
  Fiber* fiber;
  if (s.unused.empty()) {
    fiber = new Fiber;
    void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED || ::mprotect(stack, kGuardBytes, PROT_NONE) != 0) return nullptr;
    fiber->stack = static_cast<std::byte*>(stack);
    fiber->locals = std::make_unique<std::byte[]>(s.locals.bytes);
  } else {
    fiber = s.unused.back();
    s.unused.pop_back();
  }
  fiber->state = Fiber::State::ready;
  fiber->detached = fiber->entered = false;
  fiber->exceptions = {};
  fiber->values.clear();
  fiber->run = run;
  fiber->argument = argument;
  std::memcpy(fiber->locals.get(), s.locals.initial, s.locals.initial_bytes);
  std::memset(fiber->locals.get() + s.locals.initial_bytes, 0, s.locals.bytes - s.locals.initial_bytes);
  getcontext(&fiber->beginning);
  fiber->beginning.uc_stack = {.ss_sp = fiber->stack, .ss_flags = 0, .ss_size = kStackBytes};
  fiber->beginning.uc_link = nullptr;
  makecontext(&fiber->beginning, enter, 0);
  s.fibers.push_back(fiber);
  step();
  return fiber;
}

void* join(Fiber* fiber) {
  while (fiber->state != Fiber::State::over) wait(fiber, kNever);
  void* result = fiber->result;
  forget(fiber);
  return result;
}

void detach(Fiber* fiber) {
  if (fiber->state == Fiber::State::over) return forget(fiber);
  fiber->detached = true;
}

void step() {
  Scheduler& s = all();
  s.now += kStepNs;
  if (--s.steps_left == 0) yield();
}

void yield() {
  all().interrupt_after();
  all().give_way();
}

bool wait(const void* what, uint64_t deadline_ns) {
  Scheduler& s = all();
  Fiber* fiber = s.running;
  fiber->state = Fiber::State::waits;
  fiber->waits_for = what;
  fiber->deadline = deadline_ns;
  fiber->timed_out = false;
  s.note_where();
  ++s.waiters_for(what);
  s.give_way();
  return !fiber->timed_out;
}

unsigned wake(const void* what, unsigned most) {
  Scheduler& s = all();
  if (s.waiters_for(what) == 0) [[likely]]
    return 0;
  s.candidates.clear();
  for (Fiber* fiber : s.fibers)
    if (fiber->state == Fiber::State::waits && fiber->waits_for == what) s.candidates.push_back(fiber);
  unsigned woken = 0;
  for (; woken < most && !s.candidates.empty(); ++woken) {
    // A random one, not the longest waiting one.
    size_t which = most < s.candidates.size() ? s.draw() % s.candidates.size() : s.candidates.size() - 1;
    s.wake(s.candidates[which]);
    s.candidates.erase(s.candidates.begin() + ptrdiff_t(which));
  }
  return woken;
}

bool wait_for_others(uint64_t deadline_ns) {
  Scheduler& s = all();
  Fiber* fiber = s.running;
  fiber->state = Fiber::State::looks;
  fiber->looked = s.activity;
  fiber->deadline = deadline_ns;
  fiber->timed_out = false;
  s.note_where();
  s.give_way();
  fiber->state = Fiber::State::ready;
  return !fiber->timed_out;
}

void found_something() { ++all().activity; }

size_t make_key(void (*destroy)(void*)) {
  all().keys.push_back(destroy);
  return all().keys.size() - 1;
}

void forget_key(size_t key) { all().keys[key] = nullptr; }

void* value_of(size_t key) {
  const auto& values = all().running->values;
  return key < values.size() ? values[key] : nullptr;
}

void set_value_of(size_t key, void* value) {
  auto& values = all().running->values;
  if (key >= values.size()) values.resize(key + 1);
  values[key] = value;
}

uint64_t now_ns() { return all().now; }

uint64_t read_clock() {
  all().now += kPollNs;
  step();
  return all().now;
}

}  // namespace gpuwire::simulation::fibers

namespace gpuwire::simulation {

void begin_schedule(uint64_t seed, void (*stuck)(const char* why), bool explains) {
  auto& s = fibers::all();
  s.random = seed * 0x9e3779b97f4a7c15 | 1;
  for (int i = 0; i < 8; ++i) s.draw();
  constexpr std::array<unsigned, 4> kStepsMax{8, 40, 200, 1000};
  s.steps_max = kStepsMax[s.draw() % kStepsMax.size()];
  s.interrupt_after();
  s.now = fibers::kBeginNs;
  s.waited = 0;
  s.stuck = stuck;
  s.explains = explains;
}

uint64_t scheduled_ns() { return fibers::all().now - fibers::kBeginNs; }
uint64_t scheduled_wait_ns() { return fibers::all().waited; }

}  // namespace gpuwire::simulation
