// The software device's engine: PTX text in, grids of threads out. It knows nothing of contexts, streams or handles;
// those live in ../driver, which is its only user.
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

// Grid, block or cluster extent; x varies fastest.
struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

// A kernel parameter as the PTX declares it. Offsets follow the CUDA ABI: each parameter at the next multiple of its
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
  uint32_t registers_per_thread = 0;      // an estimate: the executor has no register file to fill
  uint32_t max_threads_per_block = 1024;  // lowered by .maxntid
  Dim3 required_cluster{0, 0, 0};         // .reqnctapercluster; zero: any
};

enum class VariableSpace : uint8_t { global, constant };

// A module-scope variable. The driver gives it memory, then copies `initial` there (shorter than size_bytes: the rest
// is zero) and writes the addresses that `pointers` asks for.
struct VariableInfo {
  std::string name;
  VariableSpace space = VariableSpace::global;
  uint64_t size_bytes = 0;
  uint32_t alignment_bytes = 1;
  bool managed = false;   // .attribute(.managed)
  bool visible = false;   // .visible or .weak: cuModuleGetGlobal finds it
  bool external = false;  // .extern: has to be found in another image of the link
  std::vector<uint8_t> initial;
  struct Pointer {
    uint64_t offset_bytes = 0;  // where in this variable the address is stored (8 bytes)
    std::string target;         // a variable or a function of the same program
    int64_t addend = 0;
  };
  std::vector<Pointer> pointers;
};

struct CompileError {
  enum class Kind { invalid_ptx, unsupported } kind = Kind::invalid_ptx;
  std::string log;  // lines of the form "ptx:LINE: error: ...", as a JIT error log shows them
};

// A compiled PTX module. Immutable, shared by all its instances, safe to use from every thread.
class Program {
 public:
  virtual ~Program() = default;
  virtual const std::vector<KernelInfo>& kernels() const noexcept = 0;
  virtual const std::vector<VariableInfo>& variables() const noexcept = 0;
  virtual uint32_t ptx_version() const noexcept = 0;  // 90 for ".version 9.0"
  virtual uint32_t target_sm() const noexcept = 0;    // 75 for ".target sm_75"
  // The value of a device-side function pointer of that name, which VariableInfo::Pointer to a function needs. 0: no
  // such function.
  virtual uint64_t function_address(std::string_view name) const noexcept = 0;
};

// Compiles PTX text. Several texts are linked: .extern symbols of one are found in the others.
// Whatever it does not know, it refuses with the line and the instruction's name (CompileError::Kind::unsupported).
tl::expected<std::shared_ptr<const Program>, CompileError> compile_ptx(std::span<const std::string_view> texts);

// Which addresses a kernel may touch. Implemented by the driver over its table of allocations; asked from many executor
// threads at once, so it must be lock-free or nearly so (the engine caches the last hit range per thread).
class DeviceMemory {
 public:
  struct Range {
    uint64_t begin = 0, end = 0;  // [begin, end); begin == end: not accessible
    bool writable = true;
  };
  virtual ~DeviceMemory() = default;
  // The largest accessible range that holds `address`. Device addresses are host addresses of this process: the engine
  // loads and stores through them directly once the range is known.
  virtual Range find(uint64_t address) const noexcept = 0;
  // Changes whenever a range is taken away, so that cached ranges are dropped. Relaxed reads are enough inside a
  // launch: to free memory under a running kernel is a bug of the program.
  virtual uint64_t generation() const noexcept = 0;
};

// malloc() and free() of device code.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  virtual uint64_t allocate(uint64_t bytes) noexcept = 0;  // 0 when full
  virtual void free(uint64_t address) noexcept = 0;
};

enum class Fault : uint8_t {
  none,
  illegal_address,        // CUDA_ERROR_ILLEGAL_ADDRESS (700)
  misaligned_address,     // CUDA_ERROR_MISALIGNED_ADDRESS (716)
  invalid_address_space,  // CUDA_ERROR_INVALID_ADDRESS_SPACE (717)
  invalid_pc,             // CUDA_ERROR_INVALID_PC (718): an indirect call to no function
  assert_failed,          // CUDA_ERROR_ASSERT (710)
  trap,                   // CUDA_ERROR_LAUNCH_FAILED (719): trap
  stack_overflow,         // CUDA_ERROR_LAUNCH_FAILED (719)
  illegal_instruction,    // CUDA_ERROR_ILLEGAL_INSTRUCTION (715)
  cancelled,              // the context was destroyed under the launch
};

struct LaunchResult {
  Fault fault = Fault::none;
  std::string message;  // the fault, the kernel, the PTX line, block and thread; empty without a fault
};

struct Launch {
  const Program* program = nullptr;
  size_t kernel = 0;  // index into program->kernels()
  Dim3 grid, block;
  Dim3 cluster;                   // in blocks; divides the grid
  bool explicit_cluster = false;  // asked for, by the kernel or by the launch
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;             // all blocks are resident at once, so that they may wait for each other
  std::span<const uint8_t> parameters;  // packed as KernelInfo::parameters says
  std::span<const uint64_t>
      variable_addresses;  // by index of program->variables(): where this instance's variables are
  const DeviceMemory* memory = nullptr;
  DeviceHeap* heap = nullptr;
  const ImageTable* images = nullptr;   // null: there are no textures or surfaces
  uint64_t stack_bytes_per_thread = 0;  // bound of .local memory and calls
  // Output of printf and the text of a failed assert, one whole formatted message a call. Called from executor threads,
  // possibly at once.
  std::function<void(std::string_view)> print;
  // cudaGraphSetConditional. As print.
  std::function<void(uint64_t handle, uint32_t value)> set_condition;
  std::function<bool()> cancelled;        // polled now and then
  uint32_t sm_count = 0, device_sm = 75;  // for %nsmid and the like
  uint32_t processors = ~0u;              // which of them the blocks say they run on (%smid), as bits
};

// Runs grids on all cores. Several launches (of different streams) may run at once; they share the threads.
class Engine {
 public:
  virtual ~Engine() = default;
  // Returns when every thread of the grid has ended, or one faulted and the others were stopped. Blocking, reentrant
  // from many threads.
  virtual LaunchResult run(const Launch& launch) = 0;
};

// threads == 0: one per core.
std::unique_ptr<Engine> make_engine(unsigned threads = 0);

}  // namespace gpuwire::software_device
