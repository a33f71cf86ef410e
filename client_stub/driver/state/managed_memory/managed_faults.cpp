#include "client_stub/driver/state/managed_memory/managed_faults.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "client_stub/driver/process/entry_steps.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {
namespace {

// --- managed addresses: read by the handler, which may take no lock -------------------------------------------------

// Two levels over units of 2 MiB of a 47-bit address space. Leaves are never freed: 16 KiB for each 16 GiB that ever
// held managed memory.
constexpr unsigned kUnitBits = 21, kLeafBits = 13, kRootBits = 47 - kUnitBits - kLeafBits;
struct Leaf {
  std::array<std::atomic<uint16_t>, 1u << kLeafBits> segments;  // those with a page in the unit
};
// A leaf is published with release after it was zeroed; partner: the acquire load of the reader. The counts are
// relaxed: a thread that touches managed memory got its address after the count was raised.
constinit std::array<std::atomic<Leaf*>, 1u << kRootBits> g_root{};

std::atomic<uint16_t>* segments_at(uint64_t address, bool make) noexcept {
  uint64_t unit = address >> kUnitBits;
  if (unit >> kLeafBits >= g_root.size()) return nullptr;
  auto& place = g_root[unit >> kLeafBits];
  Leaf* leaf = place.load(std::memory_order_acquire);
  if (!leaf && make) {
    auto* made = new (std::nothrow) Leaf{};
    if (!made) return nullptr;
    if (place.compare_exchange_strong(leaf, made, std::memory_order_acq_rel)) {
      leaf = made;
    } else {
      delete made;
    }
  }
  return leaf ? &leaf->segments[unit & ((1u << kLeafBits) - 1)] : nullptr;
}

bool maybe_managed(uint64_t address) noexcept {
  auto* segments = segments_at(address, false);
  return segments && segments->load(std::memory_order_relaxed) != 0;
}

// --- faults in flight to the thread that serves them ----------------------------------------------------------------

int futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout = nullptr) noexcept {
  return int(syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation | FUTEX_PRIVATE_FLAG, value, timeout,
                     nullptr, 0));
}

// The number of threads that may fault at once; further ones wait for a slot. A program that leaves the handler by
// siglongjmp() from a signal handler of its own, while its fault is served, loses its slot.
constexpr size_t kSlots = 256;

enum SlotState : uint32_t { kFree, kFilling, kPosted, kResolved, kForeign };

// The faulting thread moves a slot from free to filling and posted, the serving thread from posted to resolved or
// foreign, and the faulting thread back to free. Each step is a release, and each wait for a step an acquire, so the
// fields and the opened memory are visible with the state.
struct Slot {
  std::atomic<uint32_t> state{kFree};
  uint64_t address = 0;
  bool write = false;
};
constinit std::array<Slot, kSlots> g_slots;
// Counts the requests for the serving thread, and is its futex. Release / acquire with the slots' states.
constinit std::atomic<uint32_t> g_requests{0};
// Counts slots that became free, for threads that found none.
constinit std::atomic<uint32_t> g_released{0};
// Set before the handler is installed, cleared before the serving thread ends.
constinit std::atomic<bool> g_serving{false};
constinit std::atomic<bool> g_stopping{false};
// All managed memory has been opened for good. Set before g_serving is cleared. Release; partner: the handler's acquire
// of g_serving.
constinit std::atomic<bool> g_opened{false};

// The interval at which a faulting thread checks that the serving thread still exists.
constexpr long kStillServedMs = 100;

Slot* take_slot() noexcept {
  for (;;) {
    uint32_t released = g_released.load(std::memory_order_acquire);
    for (Slot& slot : g_slots) {
      uint32_t free = kFree;
      if (slot.state.load(std::memory_order_relaxed) == kFree &&
          slot.state.compare_exchange_strong(free, kFilling, std::memory_order_acquire)) {
        return &slot;
      }
    }
    if (!g_serving.load(std::memory_order_relaxed)) return nullptr;
    futex(g_released, FUTEX_WAIT, released);
  }
}

// Runs in the signal handler: no lock, no allocation. Returns false if the fault is not in managed memory.
bool resolve_elsewhere(uint64_t address, bool write) noexcept {
  Slot* slot = take_slot();
  if (!slot) return false;
  slot->address = address;
  slot->write = write;
  slot->state.store(kPosted, std::memory_order_release);
  g_requests.fetch_add(1, std::memory_order_release);
  futex(g_requests, FUTEX_WAKE, 1);
  uint32_t state;
  while ((state = slot->state.load(std::memory_order_acquire)) == kPosted) {
    if (!g_serving.load(std::memory_order_acquire)) break;  // it ended without having seen the slot
    const timespec still_served{0, kStillServedMs * 1'000'000};
    futex(slot->state, FUTEX_WAIT, kPosted, &still_served);
  }
  slot->state.store(kFree, std::memory_order_release);
  g_released.fetch_add(1, std::memory_order_release);
  futex(g_released, FUTEX_WAKE, 1);
  return state == kResolved;
}

// --- the handler ---------------------------------------------------------------------------------------------------

// A program may install handlers after the client's. Each time the client's handler is installed again in front of
// them, it is another one of these functions, and function i passes foreign faults to its predecessor, previous i. A
// handler of the program that calls its predecessor, or restores it and raises the signal, then reaches an earlier one
// of these functions and has the native effect.
constexpr uint32_t kHandlersMax = 8;
constinit std::array<struct sigaction, kHandlersMax> g_previous{};
constinit Mutex g_installing;
// The entries of g_previous are complete before their handler is installed, which orders them for the handler.
uint32_t g_installed GUARDED_BY(g_installing) = 0;

// The kernel's action without a handler.
void default_action(int signal, const siginfo_t* info) noexcept {
  struct sigaction none {};
  none.sa_handler = SIG_DFL;
  sigaction(signal, &none, nullptr);
  // The instruction faults again. A signal that a process has sent does not recur, so it is sent once more.
  if (info->si_code <= 0) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
}

void hand_on(struct sigaction& previous, int signal, siginfo_t* info, void* context) noexcept {
  if (previous.sa_handler == SIG_IGN && info->si_code <= 0) return;
  if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) return default_action(signal, info);
  const struct sigaction handler = previous;
  if (handler.sa_flags & SA_RESETHAND) previous.sa_handler = SIG_DFL;
  // The handler runs with the mask that the program requested. It may leave by siglongjmp().
  sigset_t mask = handler.sa_mask, before;
  if (!(handler.sa_flags & SA_NODEFER)) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &before);
  if (handler.sa_flags & SA_SIGINFO) {
    handler.sa_sigaction(signal, info, context);
  } else {
    handler.sa_handler(signal);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool is_write([[maybe_unused]] const void* context) noexcept {
#if defined(__x86_64__)
  constexpr greg_t kWriteAccess = 2;  // of the processor's page fault error code
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteAccess;
#else
  return false;  // a second fault, on readable memory, shows a write
#endif
}

// The program faulted before the memory was opened for good, so its instruction can be repeated. Returns false if the
// page is unmapped. Opening the page once more guarantees that the fault does not recur.
bool opened_meanwhile(uint64_t address) noexcept {
  if (!g_opened.load(std::memory_order_acquire)) return false;
  return mprotect(reinterpret_cast<void*>(address & ~(kPageBytes - 1)), kPageBytes, PROT_READ | PROT_WRITE) == 0;
}

bool serve_fault(uint64_t address, bool write) noexcept {
  if (!maybe_managed(address)) return false;
  if (g_serving.load(std::memory_order_acquire) && resolve_elsewhere(address, write)) return true;
  return opened_meanwhile(address);
}

template <uint32_t kIndex>
void on_fault(int signal, siginfo_t* info, void* context) {
  int kept = errno;
  bool ours = info->si_code == SEGV_ACCERR && serve_fault(reinterpret_cast<uint64_t>(info->si_addr), is_write(context));
  if (!ours) hand_on(g_previous[kIndex], signal, info, context);
  errno = kept;
}

using Handler = void (*)(int, siginfo_t*, void*);
template <uint32_t... kIndices>
constexpr std::array<Handler, kHandlersMax> handlers(std::integer_sequence<uint32_t, kIndices...>) {
  return {&on_fault<kIndices>...};
}
constexpr auto kHandlers = handlers(std::make_integer_sequence<uint32_t, kHandlersMax>());

bool same(const struct sigaction& one, const struct sigaction& other) {
  return one.sa_sigaction == other.sa_sigaction && one.sa_flags == other.sa_flags;
}

void install() noexcept REQUIRES(g_installing) {
  struct sigaction now {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) && std::find(kHandlers.begin(), kHandlers.end(), now.sa_sigaction) != kHandlers.end())
    return;
  uint32_t index = 0;
  while (index < g_installed && !same(g_previous[index], now)) ++index;
  // If a program installs more different handlers than that, its last one stays in front.
  if (index == kHandlersMax) return;
  g_previous[index] = now;
  g_installed = std::max(g_installed, index + 1);
  struct sigaction ours {};
  ours.sa_sigaction = kHandlers[index];
  // Programs may have their own signal stacks, and a handler of the program that interrupts this one may access managed
  // memory itself.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &ours, nullptr);
}

// --- refreshing ----------------------------------------------------------------------------------------------------

// How long memory that was fetched beside running work counts as current while the program polls it.
constexpr unsigned kRefreshMinMs = 1, kRefreshMaxMs = 8;

int64_t now_us() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1'000'000 + time.tv_nsec / 1000;
}

// Later calls report to the program that its memory and the device's differ.
void note_lost_memory(const ServerSession& session) noexcept {
  handles().for_each(wire::HandleKind::context, &session, [&](uint64_t, void* object) {
    auto* context = static_cast<ContextState*>(object);
    int32_t none = 0;
    if (context && context->alive.load(std::memory_order_relaxed)) {
      context->base->sticky.compare_exchange_strong(none, CUDA_ERROR_UNKNOWN, std::memory_order_relaxed);
    }
  });
}

}  // namespace

// Returns false if the fault is the program's own.
bool ManagedFaults::bring(uint64_t address, bool write) noexcept {
  MutexLock serving(serving_);
  ManagedMemory* memory = holder(address);
  if (!memory) return false;
  const ServerSession& session = memory->session();
  if (process() && memory->resolve(address, write)) return true;
  // At the end of the process, destructors and exit handlers still access the memory, although its content on the
  // device is lost. Before the end, the server is lost or refuses: the program continues, as natively, and its next
  // call returns the error.
  if (process() && session.connection().state() != CUDA_ERROR_DEINITIALIZED) {
    log_stderr("managed memory cannot be fetched from the server: the program continues with its last known contents");
    if (session.connection().state() == CUDA_SUCCESS) note_lost_memory(session);
  }
  memory->open_all();
  return true;
}

// Updates early or hidden chunks if `now`. Returns true if there are any, now or later.
bool ManagedFaults::refresh(bool now) noexcept {
  MutexLock serving(serving_);
  bool restless = false;
  for (size_t i = 0;; ++i) {
    ManagedMemory* memory;
    {
      MutexLock lock(memories_mutex_);
      if (i >= memories_.size()) return restless;
      memory = memories_[i];
    }
    if (!memory->needs_refresh()) continue;
    restless = true;
    if (now && process()) memory->refresh();
  }
}

ManagedFaults& managed_faults() noexcept {
  alignas(ManagedFaults) static std::byte storage[sizeof(ManagedFaults)];
  static auto* const faults = new (storage) ManagedFaults;
  return *faults;
}

ManagedMemory* ManagedFaults::holder(uint64_t address) noexcept {
  if (!maybe_managed(address)) return nullptr;
  MutexLock lock(memories_mutex_);
  auto holds = [&](const ManagedMemory* memory) { return memory->holds(address); };
  auto found = std::find_if(memories_.begin(), memories_.end(), holds);
  return found == memories_.end() ? nullptr : *found;
}

void ManagedFaults::leave(ManagedMemory& memory) noexcept {
  MutexLock serving(serving_);
  MutexLock lock(memories_mutex_);
  std::erase(memories_, &memory);
}

void ManagedFaults::count_memories(int change) noexcept {
  MutexLock lock(counting_);
  counted_ += change;
  if (counted_ > 0) {
    g_entry.fetch_or(kManaged, std::memory_order_relaxed);
  } else {
    g_entry.fetch_and(uint8_t(~kManaged), std::memory_order_relaxed);
  }
}

bool ManagedFaults::start(ManagedMemory& memory) noexcept {
  try {
    MutexLock lock(memories_mutex_);
    if (std::find(memories_.begin(), memories_.end(), &memory) == memories_.end()) memories_.push_back(&memory);
  } catch (const std::bad_alloc&) {
    return false;
  }
  MutexLock lock(g_installing);
  if (!started_) {
    if (g_stopping.load(std::memory_order_relaxed)) return false;
    // The program's signals are handled by its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { serve(); });
      started_ = true;
    } catch (...) {}
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!started_) return false;
    g_serving.store(true, std::memory_order_release);
  }
  install();
  return true;
}

void ManagedFaults::stop() noexcept {
  {
    MutexLock lock(g_installing);
    g_stopping.store(true, std::memory_order_release);
    if (!started_) return;
    started_ = false;
  }
  wake();
  thread_.join();
}

void ManagedFaults::after_fork_in_child() noexcept {
  g_entry.fetch_and(uint8_t(~kManaged), std::memory_order_relaxed);
  new (&memories_) std::vector<ManagedMemory*>;
  counted_ = 0;
  for (Mutex* mutex : {&serving_, &memories_mutex_, &counting_}) new (mutex) Mutex;
  g_opened.store(false, std::memory_order_relaxed);
  g_serving.store(false, std::memory_order_relaxed);
  new (&g_installing) Mutex;
}

void ManagedFaults::watch(uint64_t begin, uint64_t end) noexcept {
  for (uint64_t unit = begin >> kUnitBits; unit <= (end - 1) >> kUnitBits; ++unit) {
    if (auto* segments = segments_at(unit << kUnitBits, true)) segments->fetch_add(1, std::memory_order_relaxed);
  }
}

void ManagedFaults::unwatch(uint64_t begin, uint64_t end) noexcept {
  for (uint64_t unit = begin >> kUnitBits; unit <= (end - 1) >> kUnitBits; ++unit) {
    if (auto* segments = segments_at(unit << kUnitBits, false)) segments->fetch_sub(1, std::memory_order_relaxed);
  }
}

bool ManagedFaults::may_watch(uint64_t address) const noexcept { return maybe_managed(address); }

void ManagedFaults::stay_in_front() noexcept {
  MutexLock lock(g_installing);
  if (started_) install();
}

void ManagedFaults::wake() noexcept {
  g_requests.fetch_add(1, std::memory_order_release);
  futex(g_requests, FUTEX_WAKE, 1);
}

void ManagedFaults::serve() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-managed");
  constexpr int64_t kNone = 0;
  unsigned wait_ms = kRefreshMinMs;
  int64_t refresh_at = kNone;
  while (!g_stopping.load(std::memory_order_acquire)) {
    uint32_t seen = g_requests.load(std::memory_order_acquire);
    for (Slot& slot : g_slots) {
      if (slot.state.load(std::memory_order_acquire) != kPosted) continue;
      slot.state.store(bring(slot.address, slot.write) ? kResolved : kForeign, std::memory_order_release);
      futex(slot.state, FUTEX_WAKE, 1);
    }
    if (!refresh(false)) {
      refresh_at = kNone;
      wait_ms = kRefreshMinMs;
      futex(g_requests, FUTEX_WAIT, seen);
      continue;
    }
    int64_t now = now_us();
    if (refresh_at == kNone) refresh_at = now + wait_ms * 1000;
    if (now < refresh_at) {
      timespec wait{0, (refresh_at - now) * 1000};
      futex(g_requests, FUTEX_WAIT, seen, &wait);
      continue;
    }
    refresh(true);
    wait_ms = std::min(wait_ms * 2, kRefreshMaxMs);
    refresh_at = now_us() + wait_ms * 1000;
  }
  g_opened.store(true, std::memory_order_release);
  g_serving.store(false, std::memory_order_release);
  // A thread that posted until then finds the memory open, and a thread that waits for a place passes its fault on.
  for (Slot& slot : g_slots) {
    uint32_t posted = kPosted;
    if (slot.state.compare_exchange_strong(posted, kResolved, std::memory_order_release))
      futex(slot.state, FUTEX_WAKE, 1);
  }
  futex(g_released, FUTEX_WAKE, int(kSlots));
}

}  // namespace gpuwire::client
