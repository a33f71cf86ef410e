// A CUPTI for machines without a GPU: the functions that the worker calls, with records of the software device's work,
// or of what a test says (fake_cupti.hpp). A thread of its own passes on buffers, as in CUPTI. GPUWIRE_FAKE_CUPTI: the
// faults, separated by commas:
//   version=N       what cuptiGetVersion() says
//   refuse=KIND:N   cuptiActivityEnable(KIND) answers N
//   full=N          a buffer is full with N records
//   damage=N        the Nth record, and every Nth after it, is of no known kind: nothing behind it can be read
//   lose=N          no record of the Nth piece of work, and every Nth after it: dropped, and counted
//   timeless=N      the Nth piece of work, and every Nth after it, has no times; the one before it ends before it
//   begins
#include "test/server/profiler/fake_cupti.hpp"

#include <dlfcn.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/profiler/cupti/interface.hpp"
#include "server/software_device/driver/stream/work_observer.hpp"

namespace gpuwire::test {
namespace {

using namespace server::cupti;
using software_device::ObservedWork;
using software_device::WorkObserver;

constexpr Result kInvalidKind = 21, kQueueEmpty = 18, kNotInitialized = 15;
constexpr uint32_t kApiVersion = 130'001;
constexpr uint32_t kNoKind = 0x7777;

// The sizes of CUPTI 13.0's records.
constexpr size_t kKernelBytes = 216, kCopyBytes = 96, kMemsetBytes = 88, kGraphBytes = 56, kCallBytes = 40;

size_t bytes_of(uint32_t kind) {
  switch (kind) {
    case kConcurrentKernel: return kKernelBytes;
    case kMemcpy:
    case kMemcpyPeer: return kCopyBytes;
    case kMemset: return kMemsetBytes;
    case kGraphTrace: return kGraphBytes;
    case kDriver: return kCallBytes;
    case kExternalCorrelation: return sizeof(ExternalCorrelationActivity);
    default: return 0;
  }
}

class Fake {
 public:
  uint64_t word(const std::string& name, uint64_t none = 0) const {
    const char* words = std::getenv("GPUWIRE_FAKE_CUPTI");
    for (std::string rest = words ? words : ""; !rest.empty();) {
      const std::string one = rest.substr(0, rest.find(','));
      rest.erase(0, one.size() + 1);
      if (one.starts_with(name + "=")) return std::strtoull(one.c_str() + name.size() + 1, nullptr, 10);
    }
    return none;
  }

  void begin(BufferRequested requested, BufferCompleted completed) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return full_.empty() && !handing_over_; });
    requested_ = requested;
    completed_ = completed;
    buffer_ = nullptr;
    dropped_ = records_ = works_ = 0;
    kinds_.clear();
    if (!thread_.joinable()) thread_ = std::thread([this] { hand_over(); });
  }

  Result enable(uint32_t kind) {
    const char* words = std::getenv("GPUWIRE_FAKE_CUPTI");
    const std::string refused = "refuse=" + std::to_string(kind) + ":";
    if (const char* at = words ? std::strstr(words, refused.c_str()) : nullptr)
      return int(std::strtol(at + refused.size(), nullptr, 10));
    observe();
    std::lock_guard lock(mutex_);
    kinds_.insert(kind);
    return kSuccess;
  }
  void disable(uint32_t kind) {
    std::lock_guard lock(mutex_);
    kinds_.erase(kind);
  }
  void clock(Timestamp clock) {
    std::lock_guard lock(mutex_);
    clock_ = clock;
  }

  uint64_t given(const uint64_t* external) {
    std::unique_lock lock(mutex_);
    const uint32_t correlation = ++correlation_;
    // External correlations come only with the records of calls.
    if (kinds_.contains(kDriver) && kinds_.contains(kExternalCorrelation) && external) {
      ExternalCorrelationActivity link{kExternalCorrelation, kCorrelationCustom0, *external, correlation, 0};
      append(lock, &link, sizeof link);
    }
    if (kinds_.contains(kDriver)) {
      uint32_t call[kCallBytes / sizeof(uint32_t)] = {kDriver};
      append(lock, call, sizeof call);
    }
    return correlation;
  }

  void done(const ObservedWork& work) {
    std::unique_lock lock(mutex_);
    ++works_;
    const uint64_t lose = word("lose"), timeless = word("timeless");
    if (lose && works_ % lose == 0) {
      ++dropped_;
      return;
    }
    uint64_t start = work.start_ns + offset(), end = work.end_ns + offset();
    if (timeless && works_ % timeless == 0) start = end = 0;
    if (timeless && works_ % timeless == timeless - 1) std::swap(++start, end);
    const auto correlation = uint32_t(work.number);
    if (work.kind == software_device::kObservedKernel) {
      alignas(8) char space[kKernelBytes] = {};
      auto& record = *new (space) KernelActivity{};
      record.kind = kConcurrentKernel;
      record.start = start;
      record.end = end;
      record.correlation = correlation;
      record.name = names_.insert(work.name ? work.name : "").first->c_str();
      append(lock, space, sizeof space);
    } else if (work.kind == software_device::kObservedGraph) {
      alignas(8) char space[kGraphBytes] = {};
      new (space) GraphActivity{kGraphTrace, correlation, start, end};
      append(lock, space, sizeof space);
    } else {
      const bool copy = work.kind == software_device::kObservedCopy;
      alignas(8) char space[kCopyBytes] = {};
      auto& record = *new (space) CopyActivity{};
      record.kind = copy ? kMemcpy : kMemset;
      record.bytes = work.bytes;
      record.start = start;
      record.end = end;
      record.correlation = correlation;
      append(lock, space, copy ? kCopyBytes : kMemsetBytes);
    }
  }

  void flush() {
    std::unique_lock lock(mutex_);
    put_aside();
    changed_.wait(lock, [&] { return full_.empty() && !handing_over_; });
  }

  size_t dropped() {
    std::lock_guard lock(mutex_);
    return std::exchange(dropped_, 0);
  }

 private:
  struct Buffer {
    uint8_t* data;
    size_t bytes, used;
  };

  // Times are of CLOCK_REALTIME, unless a clock was registered: the worker's, which the software device uses, too.
  uint64_t offset() const {
    if (clock_) return 0;
    timespec real{}, monotonic{};
    ::clock_gettime(CLOCK_REALTIME, &real);
    ::clock_gettime(CLOCK_MONOTONIC, &monotonic);
    return uint64_t(real.tv_sec - monotonic.tv_sec) * 1'000'000'000;
  }

  static void observe() {
    void* device = ::dlopen("libgpuwire_software_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!device) return;  // a test submits the work itself
    auto* observe = reinterpret_cast<void (*)(const WorkObserver*)>(::dlsym(device, "gpuwire_software_observe_work"));
    const WorkObserver observer{.given = [](void*) { return fake_cupti_given(); },
                                .done = [](void*, const ObservedWork* work) { fake_cupti_done(work); },
                                .user = nullptr};
    if (observe) observe(&observer);
  }

  void append(std::unique_lock<std::mutex>& lock, const void* record, size_t bytes) {
    if (!kinds_.contains(*static_cast<const uint32_t*>(record))) return;
    const uint64_t full = word("full"), damage = word("damage");
    if (buffer_ && (used_ + bytes > bytes_ || (full && in_buffer_ >= full))) put_aside();
    if (!buffer_) {
      // The callback may take locks of its own.
      uint8_t* fresh = nullptr;
      size_t size = 0, records_max = 0;
      lock.unlock();
      requested_(&fresh, &size, &records_max);
      lock.lock();
      if (!fresh || buffer_) {  // no buffer, or another thread was faster
        if (fresh) {
          full_.push_back({fresh, size, 0});
          changed_.notify_all();
        }
        if (!buffer_) {
          ++dropped_;
          return;
        }
      } else {
        buffer_ = fresh;
        bytes_ = size;
        used_ = in_buffer_ = 0;
      }
    }
    std::memcpy(buffer_ + used_, record, bytes);
    if (damage && ++records_ % damage == 0) std::memcpy(buffer_ + used_, &kNoKind, sizeof kNoKind);
    used_ += bytes;
    ++in_buffer_;
  }

  void put_aside() {
    if (!buffer_) return;
    full_.push_back({buffer_, bytes_, used_});
    buffer_ = nullptr;
    changed_.notify_all();
  }

  void hand_over() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !full_.empty(); });
      const Buffer buffer = full_.front();
      full_.pop_front();
      handing_over_ = true;
      lock.unlock();
      completed_(nullptr, 0, buffer.data, buffer.bytes, buffer.used);
      lock.lock();
      handing_over_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  BufferRequested requested_ = nullptr;
  BufferCompleted completed_ = nullptr;
  Timestamp clock_ = nullptr;
  std::set<uint32_t> kinds_;
  std::set<std::string> names_;
  uint8_t* buffer_ = nullptr;
  size_t bytes_ = 0, used_ = 0, in_buffer_ = 0;
  std::deque<Buffer> full_;
  uint32_t correlation_ = 0;
  size_t dropped_ = 0, records_ = 0, works_ = 0;
  bool handing_over_ = false;
  std::thread thread_;
};

// Never destroyed: device threads may end work until the process has gone.
Fake& fake() {
  static auto* fake = new Fake;
  return *fake;
}

thread_local std::vector<uint64_t> pushed;

}  // namespace
}  // namespace gpuwire::test

using namespace gpuwire::test;
using namespace gpuwire::server::cupti;

extern "C" {

uint64_t fake_cupti_given() { return fake().given(pushed.empty() ? nullptr : &pushed.back()); }
void fake_cupti_done(const gpuwire::software_device::ObservedWork* work) { fake().done(*work); }

Result cuptiGetVersion(uint32_t* version) {
  *version = uint32_t(fake().word("version", kApiVersion));
  return kSuccess;
}
Result cuptiGetResultString(Result result, const char** text) {
  static const std::set<std::pair<Result, const char*>> kTexts{{35, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"},
                                                               {39, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"}};
  for (const auto& [code, name] : kTexts) {
    if (code != result) continue;
    *text = name;
    return kSuccess;
  }
  return 1;
}
Result cuptiActivityRegisterTimestampCallback(Timestamp clock) {
  fake().clock(clock);
  return kSuccess;
}
Result cuptiActivityRegisterCallbacks(BufferRequested requested, BufferCompleted completed) {
  fake().begin(requested, completed);
  return kSuccess;
}
Result cuptiActivityEnable(uint32_t kind) { return fake().enable(kind); }
Result cuptiActivityDisable(uint32_t kind) {
  fake().disable(kind);
  return kSuccess;
}
Result cuptiActivityFlushAll(uint32_t) {
  fake().flush();
  return kSuccess;
}
Result cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes, Activity** record) {
  if (!buffer) return kNotInitialized;
  auto* at = reinterpret_cast<uint8_t*>(*record);
  at = at ? at + bytes_of((*record)->kind) : buffer;
  if (at + sizeof(Activity) > buffer + valid_bytes) return kMaxLimitReached;
  auto* next = reinterpret_cast<Activity*>(at);
  if (bytes_of(next->kind) == 0) return kInvalidKind;
  *record = next;
  return kSuccess;
}
Result cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = fake().dropped();
  return kSuccess;
}
Result cuptiActivityPushExternalCorrelationId(uint32_t, uint64_t id) {
  pushed.push_back(id);
  return kSuccess;
}
Result cuptiActivityPopExternalCorrelationId(uint32_t, uint64_t* last) {
  if (pushed.empty()) return kQueueEmpty;
  if (last) *last = pushed.back();
  pushed.pop_back();
  return kSuccess;
}

}  // extern "C"
