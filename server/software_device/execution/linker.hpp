// Joins the modules of one compilation into a program: symbols, constants, errors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/software_device/execution/program.hpp"
#include "server/software_device/ptx/module.hpp"

namespace gpuwire::software_device {

// The functions that the device itself provides. A call of one becomes an op.
enum class Intrinsic : uint8_t { none, vprintf, assert_fail, malloc, free, set_condition };
Intrinsic intrinsic_named(std::string_view name);

class Linker {
 public:
  explicit Linker(std::vector<ptx::Module> modules);
  tl::expected<std::shared_ptr<const Program>, CompileError> run();

  // Used by lowering.
  Ref constant(uint64_t bits, uint32_t bytes);
  // Returns -1 for an unknown name. Local (not visible) names of `module` take precedence.
  int64_t symbol(uint32_t module, std::string_view name);
  int64_t local_shared_symbol(const void* function, uint32_t variable, const ptx::Variable& declared);
  int64_t function(uint32_t module, std::string_view name) const;
  const ptx::Function* declaration(uint32_t module, std::string_view name) const;
  const ptx::Function& body(uint32_t function) const { return *bodies_[function].source; }
  void fail(bool unsupported, uint32_t line, std::string message);
  CompiledProgram& program() { return *program_; }

 private:
  struct Key {
    uint32_t module;  // kShared for names that are visible everywhere
    std::string_view name;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return std::hash<std::string_view>{}(key.name) * 31 + key.module; }
  };
  static constexpr uint32_t kEveryModule = 0xffffffff;

  void collect_functions();
  void collect_variables();
  void collect_aliases();
  void add_variable(uint32_t module, const ptx::Variable& variable);
  void lower_functions();
  void make_kernels();
  void make_kernel(uint32_t module, const ptx::Function& source, uint32_t function);
  void find_reachable(uint32_t function, std::vector<uint32_t>& reachable) const;
  uint64_t deepest_local(uint32_t function, std::vector<int64_t>& memo, std::vector<uint8_t>& state, bool& recursive,
                         uint32_t depth);
  bool failed() const { return !error_.log.empty(); }

  std::vector<ptx::Module> modules_;
  std::shared_ptr<CompiledProgram> program_;
  struct Body {
    uint32_t module;
    const ptx::Function* source;
  };
  std::vector<Body> bodies_;  // by function index
  std::unordered_map<Key, uint32_t, KeyHash> function_index_;
  std::unordered_map<Key, const ptx::Function*, KeyHash> declarations_;
  std::unordered_map<Key, uint32_t, KeyHash> symbol_index_;
  std::map<std::pair<const void*, uint32_t>, uint32_t> local_shared_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constant_offsets_;
  CompileError error_;
  uint32_t error_count_ = 0;
};

}  // namespace gpuwire::software_device
