// The compiled form of a program: the ops of each function, and the properties of kernels that a launch needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/software_device/execution/engine.hpp"
#include "server/software_device/execution/op.hpp"

namespace gpuwire::software_device {

// The place of a parameter or result in a frame: 32 lanes of `bytes` each, one lane after the other.
struct FrameSlot {
  Ref ref;
  uint32_t bytes = 0;
};

struct CallSite {
  std::vector<FrameSlot> arguments, results;
};

struct BranchTable {
  std::vector<uint32_t> targets;  // op indices
};

struct CompiledFunction {
  std::string name;
  std::vector<Op> ops;
  uint32_t frame_bytes = 0;
  uint32_t local_bytes = 0;  // .local variables, and the stack of a call
  uint32_t register_count = 0;
  std::vector<FrameSlot> parameters, results;
  std::vector<CallSite> calls;
  std::vector<BranchTable> tables;
  std::vector<uint32_t> callees;  // functions that are called by name or whose address is taken
  std::vector<uint32_t> symbols;  // symbols that the function refers to
  bool calls_indirectly = false;
};

// The objects outside of a function to which its instructions can refer.
struct Symbol {
  enum class Kind : uint8_t { variable, shared, dynamic_shared, function } kind = Kind::variable;
  uint32_t index = 0;      // index of a variable of the program, or of a function
  uint64_t bytes = 0;      // only for shared memory
  uint32_t alignment = 1;  // only for shared memory
};

struct CompiledKernel {
  uint32_t function = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t dynamic_shared_alignment = 1;
  uint64_t local_bytes_per_thread = 0;  // with all functions that it calls by name, if there is no recursion
  bool needs_stack = false;             // recursion or indirect calls: the launch's stack limit is added
  std::vector<std::pair<uint32_t, uint32_t>> shared_offsets;  // symbol to offset in the block's shared memory
};

// Function addresses are a tag that no host address has, plus a number; 16 apart, so that adding a small integer gives
// no valid address.
inline constexpr uint64_t kFunctionAddressBase = uint64_t{0x0600} << 48;
inline constexpr uint64_t kFunctionAddressStep = 16;

class CompiledProgram final : public Program {
 public:
  const std::vector<KernelInfo>& kernels() const noexcept override { return kernel_infos_; }
  const std::vector<VariableInfo>& variables() const noexcept override { return variables_; }
  uint32_t ptx_version() const noexcept override { return ptx_version_; }
  uint32_t target_sm() const noexcept override { return target_sm_; }
  uint64_t function_address(std::string_view name) const noexcept override;

  // Returns nullptr if the address is not a function's.
  const CompiledFunction* function_at(uint64_t address) const noexcept;

  std::vector<KernelInfo> kernel_infos_;
  std::vector<CompiledKernel> kernels_;
  std::vector<VariableInfo> variables_;
  std::vector<std::unique_ptr<CompiledFunction>> functions_;
  std::vector<Symbol> symbols_;
  std::unordered_map<std::string, uint32_t> function_names_;
  std::vector<uint64_t> constants_;  // 32 lanes per value; in units of 8 bytes for alignment
  uint32_t ptx_version_ = 0;
  uint32_t target_sm_ = 0;
};

}  // namespace gpuwire::software_device
