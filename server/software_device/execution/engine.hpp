// The software device's engine: it compiles PTX text and executes grids of threads. It does not know contexts, streams
// or handles; these belong to ../driver, its only user.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "server/software_device/execution/image.hpp"

namespace gpuwire::software_device {

// The extent of a grid, block or cluster; x varies fastest.
struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

// A kernel parameter as declared in PTX. Offsets follow the CUDA ABI: each parameter is at the next multiple of its
// alignment.
struct ParameterInfo {
  uint32_t offset_bytes = 0;
  uint32_t size_bytes = 0;
  uint32_t alignment_bytes = 1;
};

struct KernelInfo {
  std::string name;
  std::vector<ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t local_bytes_per_thread = 0;
  uint32_t registers_per_thread = 0;      // an estimate, because the executor has no register file
  uint32_t max_threads_per_block = 1024;  // lowered by .maxntid
  Dim3 required_cluster{0, 0, 0};         // .reqnctapercluster; zero: any
};

enum class VariableSpace : uint8_t { global, constant };

// A module-scope variable. The driver allocates it, copies `initial` to it (if shorter than size_bytes, the rest is
// zero) and writes the addresses in `pointers`.
struct VariableInfo {
  std::string name;
  VariableSpace space = VariableSpace::global;
  uint64_t size_bytes = 0;
  uint32_t alignment_bytes = 1;
  bool managed = false;   // .attribute(.managed)
  bool visible = false;   // .visible or .weak: cuModuleGetGlobal finds it
  bool external = false;  // .extern: must be defined in another image of the link
  std::vector<uint8_t> initial;
  struct Pointer {
    uint64_t offset_bytes = 0;  // the offset in this variable at which the address is stored (8 bytes)
    std::string target;         // a variable or a function of the same program
    int64_t addend = 0;
  };
  std::vector<Pointer> pointers;
};

struct CompileError {
  enum class Kind { invalid_ptx, unsupported } kind = Kind::invalid_ptx;
  std::string log;  // lines of the form "ptx:LINE: error: ...", like a JIT error log
};

// A compiled PTX module. Immutable and shared by all its instances. Thread: any.
class Program {
 public:
  virtual ~Program() = default;
  virtual const std::vector<KernelInfo>& kernels() const noexcept = 0;
  virtual const std::vector<VariableInfo>& variables() const noexcept = 0;
  virtual uint32_t ptx_version() const noexcept = 0;  // 90: ".version 9.0"
  virtual uint32_t target_sm() const noexcept = 0;    // 75: ".target sm_75"
  // Returns the value of a device-side pointer to the function of that name, for VariableInfo::Pointer. 0: no such
  // function.
  virtual uint64_t function_address(std::string_view name) const noexcept = 0;
};

// Compiles PTX text. Several texts are linked: .extern symbols of one are looked up in the others. Unknown features are
// refused with the line and the instruction's name (CompileError::Kind::unsupported).
tl::expected<std::shared_ptr<const Program>, CompileError> compile_ptx(std::span<const std::string_view> texts);

// The addresses that a kernel may access. The driver implements it with its table of allocations. Many executor threads
// call it at once, so it must be lock-free or nearly so (the engine caches the last range for each thread).
class DeviceMemory {
 public:
  struct Range {
    uint64_t begin = 0, end = 0;  // [begin, end); begin == end: not accessible
    bool writable = true;
  };
  virtual ~DeviceMemory() = default;
  // Returns the largest accessible range that contains `address`. Device addresses are host addresses of this process,
  // and the engine loads and stores through them directly when the range is known.
  virtual Range find(uint64_t address) const noexcept = 0;
  // Returns a number that changes whenever a range is removed, so that cached ranges are dropped. Relaxed loads are
  // enough during a launch: a program may not free memory under a running kernel.
  virtual uint64_t generation() const noexcept = 0;
};

// malloc() and free() of device code.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  virtual uint64_t allocate(uint64_t bytes) noexcept = 0;  // 0: the heap is full
  virtual void free(uint64_t address) noexcept = 0;
};

enum class Fault : uint8_t {
  none,
  illegal_address,        // CUDA_ERROR_ILLEGAL_ADDRESS (700)
  misaligned_address,     // CUDA_ERROR_MISALIGNED_ADDRESS (716)
  invalid_address_space,  // CUDA_ERROR_INVALID_ADDRESS_SPACE (717)
  invalid_pc,             // CUDA_ERROR_INVALID_PC (718): an indirect call to an address that is not a function
  assert_failed,          // CUDA_ERROR_ASSERT (710)
  trap,                   // CUDA_ERROR_LAUNCH_FAILED (719): trap
  stack_overflow,         // CUDA_ERROR_LAUNCH_FAILED (719)
  illegal_instruction,    // CUDA_ERROR_ILLEGAL_INSTRUCTION (715)
  cancelled,              // the context was destroyed during the launch
};

struct LaunchResult {
  Fault fault = Fault::none;
  std::string message;  // the fault, the kernel, the PTX line, block and thread; empty if there is no fault
};

struct Launch {
  const Program* program = nullptr;
  size_t kernel = 0;  // index into program->kernels()
  Dim3 grid, block;
  Dim3 cluster;                   // in blocks; divides the grid
  bool explicit_cluster = false;  // requested by the kernel or by the launch
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;             // all blocks are resident at once, so that they may wait for each other
  std::span<const uint8_t> parameters;  // packed according to KernelInfo::parameters
  // Addresses of this instance's variables, by index in program->variables().
  std::span<const uint64_t> variable_addresses;
  const DeviceMemory* memory = nullptr;
  DeviceHeap* heap = nullptr;
  const ImageTable* images = nullptr;   // null: there are no textures or surfaces
  uint64_t stack_bytes_per_thread = 0;  // limit of .local memory and calls
  // Receives the output of printf and the text of a failed assert, one complete formatted message per call. Called from
  // executor threads, possibly at the same time.
  std::function<void(std::string_view)> print;
  // cudaGraphSetConditional. Called like `print`.
  std::function<void(uint64_t handle, uint32_t value)> set_condition;
  std::function<bool()> cancelled;        // polled regularly
  uint32_t sm_count = 0, device_sm = 75;  // for %nsmid and similar registers
  uint32_t processors = ~0u;              // bits of the multiprocessors on which the blocks report to run (%smid)
};

// Runs grids on all cores. Several launches (of different streams) may run at once; they share the threads.
class Engine {
 public:
  virtual ~Engine() = default;
  // Returns when every thread of the grid has ended, or when one has faulted and the others were stopped. Thread: any;
  // many may call it at once, and each call blocks.
  virtual LaunchResult run(const Launch& launch) = 0;
};

// threads == 0: one per core.
std::unique_ptr<Engine> make_engine(unsigned threads = 0);

}  // namespace gpuwire::software_device
