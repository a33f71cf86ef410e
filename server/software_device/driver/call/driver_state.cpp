#include "server/software_device/driver/call/driver_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "server/software_device/driver/checkpoint/checkpoint_service.hpp"

namespace gpuwire::software_device {
namespace {

constexpr uint64_t kDefaultMemoryBytes = uint64_t{4} << 30;
constexpr int kFirstPciBus = 0x65;

enum class Status : int { not_initialised, ready, forked };

// Stored with release by the initialising thread and loaded with acquire by callers, so that a caller that sees a ready
// driver also sees its content.
std::atomic<Status> status{Status::not_initialised};
std::mutex initialise_mutex;
Driver* the_driver = nullptr;

// Returns a positive integer from the environment, or the default.
uint64_t setting(const char* name, uint64_t fallback) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == 0) {
    return fallback;
  }
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  return *end == 0 ? value : fallback;
}

// `number` is the machine's number of the device, which CUDA_VISIBLE_DEVICES does not change.
CUuuid make_uuid(int number) {
  CUuuid uuid{};
  std::memcpy(uuid.bytes, "gpuwire-software", sizeof uuid.bytes);
  uuid.bytes[15] = static_cast<char>(number);
  return uuid;
}

// Returns the devices that CUDA_VISIBLE_DEVICES makes visible, in its order: the numbers before the first invalid one,
// or all devices without the variable (CUDA C++ Programming Guide, "CUDA Environment Variables"; forms with UUIDs are
// not supported). `twice`: set if a device is listed twice, which driver 580 treats as an error.
std::vector<int> visible_devices(int count, bool& twice) {
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int number = 0; number < count; ++number) visible.push_back(number);
    return visible;
  }
  while (*text >= '0' && *text <= '9') {
    char* end = nullptr;
    const unsigned long number = std::strtoul(text, &end, 10);
    if (number >= static_cast<unsigned long>(count)) break;
    twice = std::find(visible.begin(), visible.end(), static_cast<int>(number)) != visible.end();
    if (twice) return {};
    visible.push_back(static_cast<int>(number));
    text = *end == ',' ? end + 1 : "";
  }
  return visible;
}

thread_local CUstream thread_default_stream = CU_STREAM_LEGACY;

}  // namespace

bool Device::charge(uint64_t bytes) noexcept {
  uint64_t used = used_bytes.load(std::memory_order_relaxed);
  do {
    if (bytes > total_bytes || used > total_bytes - bytes) {
      return false;
    }
  } while (!used_bytes.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

Driver::Driver()
    : checkpoint(setting("GPUWIRE_SOFTWARE_CHECKPOINTS", 0) != 0),
      slow_work(setting("GPUWIRE_SOFTWARE_SLOW", 0)),
      loads_wait(setting("GPUWIRE_SOFTWARE_LOADS_WAIT", 0) != 0),
      engine(make_engine()) {
  const auto count = std::min<uint64_t>(setting("GPUWIRE_SOFTWARE_DEVICES", 1), kDevicesMax);
  for (const int number : visible_devices(static_cast<int>(count), device_named_twice)) {
    const int ordinal = static_cast<int>(devices.size());
    auto device = std::make_unique<Device>();
    device->ordinal = ordinal;
    device->uuid = make_uuid(number);
    device->pci_bus = kFirstPciBus + number;
    device->total_bytes = setting("GPUWIRE_SOFTWARE_MEMORY_BYTES", kDefaultMemoryBytes);
    device->primary = std::make_shared<ContextSlot>();
    device->primary->handle = contexts.reserve();
    device->primary->device = device.get();
    device->primary->primary = true;
    contexts.insert(device->primary->handle, device->primary);
    device->default_pool = std::make_shared<Pool>();
    device->default_pool->handle = pools.reserve();
    device->default_pool->device = ordinal;
    pools.insert(device->default_pool->handle, device->default_pool);
    device->current_pool = device->default_pool;
    devices.push_back(std::move(device));
  }
}

Driver& driver() noexcept { return *the_driver; }

int driver_version() noexcept {
  static const uint64_t version = setting("GPUWIRE_SOFTWARE_DRIVER_VERSION", kDriverVersionMax);
  return static_cast<int>(std::min<uint64_t>(version, kDriverVersionMax));
}

CUresult initialise_driver() {
  const std::lock_guard lock(initialise_mutex);
  if (status.load(std::memory_order_acquire) == Status::not_initialised) {
    the_driver = new Driver;
    pthread_atfork(nullptr, nullptr, [] {
      if (status.load(std::memory_order_relaxed) == Status::ready) {
        status.store(Status::forked, std::memory_order_relaxed);
      }
    });
    status.store(Status::ready, std::memory_order_release);
    if (setting("GPUWIRE_SOFTWARE_CHECKPOINTS", 0) != 0) serve_checkpoints(the_driver->checkpoint);
  }
  if (const CUresult result = driver_status(); result != CUDA_SUCCESS) {
    return result;
  }
  if (the_driver->device_named_twice) return CUDA_ERROR_INVALID_DEVICE;
  return the_driver->devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult driver_status() noexcept {
  return status.load(std::memory_order_acquire) == Status::ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUstream default_stream() noexcept { return thread_default_stream; }

PerThreadDefaultStream::PerThreadDefaultStream() noexcept : outer_(thread_default_stream) {
  thread_default_stream = CU_STREAM_PER_THREAD;
}
PerThreadDefaultStream::~PerThreadDefaultStream() { thread_default_stream = outer_; }

// The pointer has no destructor, so that calls from exit handlers, which run after the main thread's destructors, find
// a (new) stack.
std::vector<std::shared_ptr<ContextSlot>>& context_stack() noexcept {
  using Stack = std::vector<std::shared_ptr<ContextSlot>>;
  thread_local Stack* stack = nullptr;
  struct Reaper {
    Stack** stack;
    ~Reaper() { delete std::exchange(*stack, nullptr); }
  };
  if (stack == nullptr) {
    stack = new Stack;
    thread_local const Reaper reaper{&stack};
  }
  return *stack;
}

std::shared_ptr<ContextSlot> current_slot() noexcept {
  const auto& stack = context_stack();
  return stack.empty() ? nullptr : stack.back();
}

std::shared_ptr<ContextSlot> green_of(const Stream& stream) noexcept {
  if (stream.kind == Stream::Kind::created) {
    return stream.green;
  }
  auto slot = current_slot();
  return slot != nullptr && slot->green_of != nullptr ? slot : nullptr;
}

}  // namespace gpuwire::software_device
