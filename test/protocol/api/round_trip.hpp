// What the generated round-trip tests (protocol/codegen/emit_mocks.py) are made of: a program that makes calls with
// random arguments, a driver that makes up answers, and traces of what each of them saw, to be compared.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "cuda_names.hpp"
#include "protocol/api/values.hpp"
#include "protocol/wire/frame.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::test {

// Values in the order in which they were seen.
class Trace {
 public:
  void put(const void* data, size_t bytes) {
    if (bytes) bytes_.append(static_cast<const char*>(data), bytes);
  }
  void word(uint64_t word) { put(&word, sizeof word); }
  template <class T>
  void value(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      put(&value, sizeof value);
    } else {
      word(gpuwire::word(value));
    }
  }
  void text(const char* text) { put(text, std::strlen(text) + 1); }
  template <class T>
  void items(const T* items, size_t count) {
    put(items, count * sizeof(T));
  }
  void items(const std::vector<uint64_t>& words, size_t count) { put(words.data(), count * sizeof(uint64_t)); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// A copy with its padding, which takes part in comparisons.
template <class T>
T copy_of(const T& value) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    T copy;
    std::memcpy(&copy, &value, sizeof copy);
    return copy;
  } else {
    return value;
  }
}

// Random values of every kind of parameter.
class Source {
 public:
  explicit Source(uint64_t seed) : random_(seed) {}

  uint64_t bits() { return random_(); }
  bool coin() { return bits() & 1; }
  template <class T>
  T any() {
    if constexpr (std::is_floating_point_v<T>) {
      return T(int32_t(bits())) / T(1024);
    } else if constexpr (std::is_enum_v<T>) {
      return T(bits() & 1);  // in range of every enumeration
    } else {
      return from_word<T>(bits());
    }
  }
  void fill(void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) static_cast<unsigned char*>(data)[i] = static_cast<unsigned char>(bits());
  }
  // Sets an enumeration to one of the numbers.
  template <class Enum>
  void choose(Enum& field, std::initializer_list<int> values) {
    int value = values.begin()[bits() % values.size()];
    std::memcpy(&field, &value, sizeof value);
  }

 private:
  std::mt19937_64 random_;
};

// The program's device 0 is this one of the server.
inline constexpr int32_t kServerDeviceOffset = 4;

class World;

// The driver behind the replay.
class MockDriver : public Source {
 public:
  using Source::Source;
  // The one of the world at work; notes which function is being called.
  static MockDriver& current(const char* function);

  template <class T>
  T native(wire::HandleKind) {
    return from_word<T>(++natives_ << 8 | uint64_t(0x6e61) << 44);
  }
  // An object that the client may already have a handle of.
  template <class T>
  T maybe_known(wire::HandleKind kind) {
    uint64_t known = coin() ? known_native(kind) : 0;
    return known ? from_word<T>(known) : native<T>(kind);
  }
  template <class T>
  void give_value(T* out, std::type_identity_t<T> value) {
    *out = value;
    gave.value(value);
  }
  void give_bytes(void* out, size_t bytes) {
    fill(out, bytes);
    gave.put(out, bytes);
  }
  template <class T>
  void give_natives(wire::HandleKind kind, T* out, size_t count) {
    for (size_t i = 0; i < count; ++i) give_value(&out[i], maybe_known<T>(kind));
  }
  template <class T>
  T at_most(T room) {
    return room && coin() ? room - 1 : room;
  }
  template <class T>
  void set_handle(wire::HandleKind kind, T& field, bool) {
    field = from_word<T>(known_native(kind));
  }
  void set_device(CUdevice& field) { field = CUdevice(kServerDeviceOffset + bits() % 4); }
  template <class T>
  size_t set_list(T*& items) {
    items = nullptr;
    return 0;
  }

  Trace seen, gave;
  CUresult result = CUDA_SUCCESS;
  std::string function;

 private:
  uint64_t known_native(wire::HandleKind kind);
  uint64_t natives_ = 0;
};

// The program that calls.
class Program : public Source {
 public:
  Program(World& world, uint64_t seed) : Source(seed), world_(world) {}

  client::Caller caller();
  unsigned count() { return 3 + bits() % 3; }  // at least 3: some lists are shorter than the parameter that counts them
  CUdevice device() { return CUdevice(bits() % 4); }  // of those that the program sees
  std::string text();
  template <class E>
  E attribute() {
    for (;;) {
      E attribute = E(bits() % 16);
      if (attribute_bytes(attribute)) return attribute;
    }
  }
  template <class T>
  std::vector<T> list(size_t count) {
    std::vector<T> items(count);
    fill(items.data(), count * sizeof(T));
    return items;
  }

  // Handles that client and server know.
  template <class T>
  T handle(wire::HandleKind kind) {
    return from_word<T>(make_handle(kind));
  }
  template <class T>
  T maybe_handle(wire::HandleKind kind) {
    return coin() ? handle<T>(kind) : T{};
  }
  wire::HandleKind function_kind() { return coin() ? wire::HandleKind::function : wire::HandleKind::kernel; }
  template <class T>
  std::vector<T> handles(wire::HandleKind kind, size_t count) {
    std::vector<T> handles(count);
    for (T& handle : handles) handle = this->handle<T>(kind);
    return handles;
  }
  template <class T>
  void set_handle(wire::HandleKind kind, T& field, bool optional) {
    field = optional ? maybe_handle<T>(kind) : handle<T>(kind);
  }
  void set_device(CUdevice& field) { field = device(); }
  static int32_t server_device(CUdevice device) { return device < 0 ? device : device + kServerDeviceOffset; }
  template <class T>
  size_t set_list(T*& items) {
    constexpr size_t kItems = 2;
    auto& storage = storage_.emplace_back(std::make_unique<uint64_t[]>((kItems * sizeof(T) + 7) / 8));
    fill(storage.get(), kItems * sizeof(T));
    items = reinterpret_cast<T*>(storage.get());
    return kItems;
  }

  // The driver's object behind a handle, as the server's table has it; 0: none.
  uint64_t native(wire::HandleKind kind, uint64_t handle);
  template <class T>
  std::vector<uint64_t> natives(wire::HandleKind kind, const std::vector<T>& handles) {
    std::vector<uint64_t> natives;
    for (T handle : handles) natives.push_back(native(kind, word(handle)));
    return natives;
  }
  // The object that was behind a handle that neither side may know any more; ~0: one of them does.
  uint64_t destroyed(wire::HandleKind kind, uint64_t handle);

  bool made_handles() const { return !natives_.empty(); }
  // Did the call come through, so that the traces are to be compared?
  bool succeeded(CUresult result);

  Trace expected, got;
  CUresult result = CUDA_SUCCESS;
  bool reached = false;  // the traces are complete

 private:
  uint64_t make_handle(wire::HandleKind kind);

  World& world_;
  std::map<uint64_t, uint64_t> natives_;
  std::vector<std::unique_ptr<uint64_t[]>> storage_;
};

struct GeneratedCall {
  const char* name;
  uint32_t ordinal;
  bool posted;
  server::ReplayFunction replay;
  void (*call)(Program& program);
};

// Generated.
std::vector<GeneratedCall> generated_calls();
const server::DriverTable& mock_driver_table();

using Words = std::vector<uint64_t>;

// One frame's way through the replay.
struct Outcome {
  bool fault = false;  // ProtocolFault or kj::Exception: the session would end
  bool replied = false;
  CUresult posted_failure = CUDA_SUCCESS;
  std::string unexpected;  // any other exception
  Words reply;
  size_t largest_allocation = 0, allocated = 0;  // bytes
};

// Client and server in one process, with nothing between them but the bytes of frames.
class World {
 public:
  explicit World(uint64_t seed);
  ~World();

  // Runs `call` with random arguments against the mock driver.
  void run(const GeneratedCall& call);
  // Puts a frame into the replay.
  Outcome replay(const GeneratedCall& call, wire::FrameKind kind, const Words& words);

  size_t client_handles() const;  // known to the client
  size_t server_handles(wire::HandleKind kind);
  // Does the last request name an object that the server would have to know?
  bool request_has_handle() const;

  MockDriver driver;
  Program program;
  // What the last call sent and got.
  wire::FrameHeader header;
  Words request;
  Outcome outcome;
  // When set, the reply that the client gets in place of the server's.
  const Words* forged_reply = nullptr;

  struct Parts;
  std::unique_ptr<Parts> parts;
};

}  // namespace gpuwire::test
