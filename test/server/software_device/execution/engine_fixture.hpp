// A device made of plain vectors, for tests of the engine.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/software_device/execution/engine.hpp"

namespace gpuwire::software_device::test {

// Memory that a test has allocated. Ranges are never freed during a test.
class TestMemory final : public DeviceMemory {
 public:
  uint64_t allocate(size_t bytes) {
    // A page of distance, so that an access past the end is in no range.
    blocks_.push_back(std::make_unique<uint8_t[]>(bytes + 2 * kAlignment));
    uint64_t begin = (reinterpret_cast<uint64_t>(blocks_.back().get()) + kAlignment - 1) / kAlignment * kAlignment;
    std::memset(reinterpret_cast<void*>(begin), 0, bytes);
    ranges_[begin] = {begin, begin + bytes, true};
    return begin;
  }
  void make_read_only(uint64_t begin) { ranges_[begin].writable = false; }
  Range find(uint64_t address) const noexcept override {
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin()) return {};
    --at;
    return address < at->second.end ? at->second : Range{};
  }
  uint64_t generation() const noexcept override { return 1; }

 private:
  static constexpr size_t kAlignment = 256;
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
  std::map<uint64_t, Range> ranges_;
};

class TestHeap final : public DeviceHeap {
 public:
  explicit TestHeap(TestMemory& memory) : memory_(memory) {}
  uint64_t allocate(uint64_t bytes) noexcept override {
    std::lock_guard lock(mutex_);
    ++allocated;
    return memory_.allocate(bytes);
  }
  void free(uint64_t) noexcept override {
    std::lock_guard lock(mutex_);
    ++freed;
  }
  int allocated = 0, freed = 0;

 private:
  std::mutex mutex_;
  TestMemory& memory_;
};

// A compiled program with its variables in memory.
class TestDevice {
 public:
  explicit TestDevice(unsigned threads = 2) : engine(make_engine(threads)), heap(memory) {}

  // Returns the error log; empty: loaded.
  std::string load(std::string_view text) { return load(std::vector<std::string_view>{text}); }
  std::string load(const std::vector<std::string_view>& texts) {
    auto compiled = compile_ptx(texts);
    if (!compiled) {
      error = compiled.error();
      return error.log;
    }
    program = *compiled;
    place_variables();
    return {};
  }

  uint64_t variable(std::string_view name) const {
    for (size_t i = 0; i < program->variables().size(); ++i) {
      if (program->variables()[i].name == name) return addresses[i];
    }
    return 0;
  }

  size_t kernel(std::string_view name) const {
    for (size_t i = 0; i < program->kernels().size(); ++i) {
      if (program->kernels()[i].name == name) return i;
    }
    return SIZE_MAX;
  }

  template <class... P>
  LaunchResult run(std::string_view name, Dim3 grid, Dim3 block, P... parameters) {
    Launch launch;
    launch.kernel = kernel(name);
    if (launch.kernel == SIZE_MAX) return {Fault::invalid_pc, "no kernel of that name"};
    std::vector<uint8_t> packed(program->kernels()[launch.kernel].parameter_bytes);
    [[maybe_unused]] size_t at = 0;
    (pack(packed, launch.kernel, at, parameters), ...);
    launch.program = program.get();
    launch.grid = grid;
    launch.block = block;
    launch.dynamic_shared_bytes = dynamic_shared_bytes;
    launch.cooperative = cooperative;
    launch.parameters = packed;
    launch.variable_addresses = addresses;
    launch.memory = &memory;
    launch.heap = &heap;
    launch.stack_bytes_per_thread = stack_bytes;
    launch.sm_count = 4;
    launch.cancelled = cancelled;
    launch.print = [this](std::string_view text) {
      std::lock_guard lock(print_mutex);
      printed += text;
    };
    return engine->run(launch);
  }

  template <class T>
  T* array(size_t count) {
    return reinterpret_cast<T*>(memory.allocate(count * sizeof(T)));
  }

  std::unique_ptr<Engine> engine;
  TestMemory memory;
  TestHeap heap;
  std::shared_ptr<const Program> program;
  std::vector<uint64_t> addresses;
  CompileError error;
  std::string printed;
  std::mutex print_mutex;
  std::function<bool()> cancelled;
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;
  uint64_t stack_bytes = 1024;

 private:
  template <class P>
  void pack(std::vector<uint8_t>& packed, size_t kernel_index, size_t& at, const P& value) {
    const auto& formals = program->kernels()[kernel_index].parameters;
    if (at < formals.size())
      std::memcpy(packed.data() + formals[at].offset_bytes, &value,
                  std::min<size_t>(sizeof value, formals[at].size_bytes));
    ++at;
  }

  void place_variables() {
    addresses.clear();
    for (const VariableInfo& info : program->variables()) {
      addresses.push_back(memory.allocate(info.size_bytes));
      if (!info.initial.empty())
        std::memcpy(reinterpret_cast<void*>(addresses.back()), info.initial.data(), info.initial.size());
    }
    for (size_t i = 0; i < addresses.size(); ++i) {
      const VariableInfo& info = program->variables()[i];
      for (const VariableInfo::Pointer& pointer : info.pointers) {
        uint64_t value = variable(pointer.target);
        if (value == 0) value = program->function_address(pointer.target);
        value += static_cast<uint64_t>(pointer.addend);
        std::memcpy(reinterpret_cast<void*>(addresses[i] + pointer.offset_bytes), &value, 8);
      }
      if (info.space == VariableSpace::constant) memory.make_read_only(addresses[i]);
    }
  }
};

// The PTX that nvcc made of kernels/NAME.cu when the tests were built.
std::string nvcc_ptx(const std::string& name);

}  // namespace gpuwire::software_device::test
