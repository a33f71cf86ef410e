#include "server/software_device/execution/linker.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "server/software_device/execution/lowering.hpp"
#include "server/software_device/ptx/limits.hpp"
#include "server/software_device/ptx/parser.hpp"

namespace gpuwire::software_device {
namespace {

constexpr uint64_t kConstantBytesMax = 256u << 20;

struct IntrinsicRow {
  std::string_view name;
  Intrinsic intrinsic;
};

constexpr IntrinsicRow kIntrinsics[] = {
    {"vprintf", Intrinsic::vprintf},
    {"__assertfail", Intrinsic::assert_fail},
    {"malloc", Intrinsic::malloc},
    {"free", Intrinsic::free},
    {"cudaGraphSetConditional", Intrinsic::set_condition},
};

bool visible_everywhere(bool external, bool visible, bool weak) { return external || visible || weak; }

}  // namespace

Intrinsic intrinsic_named(std::string_view name) {
  for (const IntrinsicRow& row : kIntrinsics) {
    if (row.name == name) return row.intrinsic;
  }
  return Intrinsic::none;
}

tl::expected<std::shared_ptr<const Program>, CompileError> compile_ptx(std::span<const std::string_view> texts) {
  if (texts.size() > ptx::kTextsMax)
    return tl::unexpected(CompileError{CompileError::Kind::invalid_ptx, "too many PTX texts\n"});
  std::vector<ptx::Module> modules;
  for (std::string_view text : texts) {
    auto module = ptx::parse(text);
    if (!module) {
      CompileError error;
      error.kind = module.error().unsupported ? CompileError::Kind::unsupported : CompileError::Kind::invalid_ptx;
      error.log = "ptx:" + std::to_string(module.error().line) + ": error: " + module.error().message + "\n";
      return tl::unexpected(std::move(error));
    }
    modules.push_back(std::move(*module));
  }
  return Linker(std::move(modules)).run();
}

Linker::Linker(std::vector<ptx::Module> modules)
    : modules_(std::move(modules)), program_(std::make_shared<CompiledProgram>()) {}

void Linker::fail(bool unsupported, uint32_t line, std::string message) {
  if (error_.log.empty()) error_.kind = unsupported ? CompileError::Kind::unsupported : CompileError::Kind::invalid_ptx;
  if (error_count_++ >= ptx::kErrorsMax) return;
  error_.log += "ptx:" + std::to_string(line) + ": error: " + message + "\n";
}

tl::expected<std::shared_ptr<const Program>, CompileError> Linker::run() {
  for (const ptx::Module& module : modules_) {
    program_->ptx_version_ = std::max(program_->ptx_version_, module.version);
    program_->target_sm_ = std::max(program_->target_sm_, module.target_sm);
  }
  collect_functions();
  collect_variables();
  collect_aliases();
  if (!failed()) lower_functions();
  if (!failed()) make_kernels();
  if (failed()) return tl::unexpected(std::move(error_));
  return std::shared_ptr<const Program>(program_);
}

void Linker::collect_functions() {
  for (uint32_t m = 0; m < modules_.size(); ++m) {
    for (const ptx::Function& function : modules_[m].functions) {
      uint32_t scope =
          visible_everywhere(function.external, function.visible, function.weak) || function.entry ? kEveryModule : m;
      declarations_.emplace(Key{m, function.name}, &function);
      if (!function.defined) continue;
      auto [at, fresh] = function_index_.emplace(Key{scope, function.name}, static_cast<uint32_t>(bodies_.size()));
      if (!fresh) {
        bool weak = function.weak || bodies_[at->second].source->weak;
        if (!weak) fail(false, function.line, "'" + std::string(function.name.substr(0, 120)) + "' is defined twice");
        continue;
      }
      bodies_.push_back({m, &function});
      program_->functions_.push_back(std::make_unique<CompiledFunction>());
      program_->function_names_.emplace(std::string(function.name), at->second);
    }
  }
}

void Linker::add_variable(uint32_t module, const ptx::Variable& variable) {
  uint32_t scope = visible_everywhere(variable.external, variable.visible, variable.weak) ? kEveryModule : module;
  Symbol symbol;
  symbol.alignment = std::max<uint32_t>(variable.alignment_bytes, 1);
  symbol.bytes = variable.size_bytes;
  if (variable.space == ptx::Space::shared) {
    symbol.kind = variable.unsized ? Symbol::Kind::dynamic_shared : Symbol::Kind::shared;
    if (symbol.bytes > ptx::kSharedBytesMax) return fail(false, variable.line, "shared variable is too large");
  }
  auto known = symbol_index_.find(Key{scope, variable.name});
  if (known != symbol_index_.end() && symbol.kind == Symbol::Kind::variable &&
      program_->symbols_[known->second].kind == Symbol::Kind::variable) {
    VariableInfo& info = program_->variables_[program_->symbols_[known->second].index];
    bool better = info.external || (variable.common && variable.size_bytes > info.size_bytes);
    if (variable.external || (variable.weak && !better)) return;
    if (!better && !variable.weak)
      return fail(false, variable.line, "'" + std::string(variable.name.substr(0, 120)) + "' is defined twice");
  } else if (known != symbol_index_.end()) {
    Symbol& first = program_->symbols_[known->second];
    if (first.kind != symbol.kind)
      return fail(false, variable.line, "'" + std::string(variable.name.substr(0, 120)) + "' is declared twice");
    first.alignment = std::max(first.alignment, symbol.alignment);
    first.bytes = std::max(first.bytes, symbol.bytes);
    return;
  }
  uint32_t at = known != symbol_index_.end() ? known->second : static_cast<uint32_t>(program_->symbols_.size());
  if (known == symbol_index_.end()) {
    symbol_index_.emplace(Key{scope, variable.name}, at);
    if (symbol.kind == Symbol::Kind::variable) {
      symbol.index = static_cast<uint32_t>(program_->variables_.size());
      program_->variables_.emplace_back();
    }
    program_->symbols_.push_back(symbol);
  }
  if (symbol.kind != Symbol::Kind::variable) return;
  VariableInfo& info = program_->variables_[program_->symbols_[at].index];
  info.name = variable.name;
  info.space = variable.space == ptx::Space::constant ? VariableSpace::constant : VariableSpace::global;
  info.size_bytes = variable.size_bytes;
  info.alignment_bytes = symbol.alignment;
  info.managed = variable.managed;
  info.visible = true;
  info.external = variable.external;
  info.initial = variable.initial;
  info.pointers.clear();
  for (const ptx::PointerInitialiser& pointer : variable.pointers) {
    info.pointers.push_back({pointer.offset_bytes, std::string(pointer.target), pointer.addend});
  }
}

void Linker::collect_variables() {
  for (uint32_t m = 0; m < modules_.size(); ++m) {
    for (const ptx::Variable& variable : modules_[m].variables) add_variable(m, variable);
  }
}

void Linker::collect_aliases() {
  for (uint32_t m = 0; m < modules_.size(); ++m) {
    for (const ptx::Alias& alias : modules_[m].aliases) {
      int64_t target = function(m, alias.target);
      if (target < 0) {
        fail(false, 0, "alias of '" + std::string(alias.target.substr(0, 120)) + "', which is not defined");
        continue;
      }
      function_index_.emplace(Key{kEveryModule, alias.name}, static_cast<uint32_t>(target));
      program_->function_names_.emplace(std::string(alias.name), static_cast<uint32_t>(target));
    }
  }
}

int64_t Linker::function(uint32_t module, std::string_view name) const {
  for (uint32_t scope : {module, kEveryModule}) {
    if (auto at = function_index_.find(Key{scope, name}); at != function_index_.end()) return at->second;
  }
  return -1;
}

const ptx::Function* Linker::declaration(uint32_t module, std::string_view name) const {
  auto at = declarations_.find(Key{module, name});
  return at == declarations_.end() ? nullptr : at->second;
}

int64_t Linker::symbol(uint32_t module, std::string_view name) {
  for (uint32_t scope : {module, kEveryModule}) {
    if (auto at = symbol_index_.find(Key{scope, name}); at != symbol_index_.end()) return at->second;
  }
  int64_t index = function(module, name);
  if (index < 0) return -1;
  Symbol symbol;
  symbol.kind = Symbol::Kind::function;
  symbol.index = static_cast<uint32_t>(index);
  uint32_t at = static_cast<uint32_t>(program_->symbols_.size());
  symbol_index_.emplace(Key{module, name}, at);
  program_->symbols_.push_back(symbol);
  return at;
}

int64_t Linker::local_shared_symbol(const void* function, uint32_t variable, const ptx::Variable& declared) {
  auto [at, fresh] =
      local_shared_.emplace(std::pair{function, variable}, static_cast<uint32_t>(program_->symbols_.size()));
  if (fresh) {
    Symbol symbol;
    symbol.kind = declared.unsized ? Symbol::Kind::dynamic_shared : Symbol::Kind::shared;
    symbol.bytes = std::min<uint64_t>(declared.size_bytes, ptx::kSharedBytesMax + 1);
    symbol.alignment = std::max<uint32_t>(declared.alignment_bytes, 1);
    program_->symbols_.push_back(symbol);
  }
  return at->second;
}

Ref Linker::constant(uint64_t bits, uint32_t bytes) {
  if (bytes < 8) bits &= (uint64_t{1} << (8 * bytes)) - 1;
  std::vector<uint64_t>& pool = program_->constants_;
  auto [at, fresh] = constant_offsets_.emplace(std::pair{bits, bytes}, static_cast<uint32_t>(pool.size() * 8));
  if (fresh) {
    if (pool.size() * 8 > kConstantBytesMax) {
      fail(false, 0, "too many different constants");
      return {};
    }
    uint64_t unit = bits;
    for (uint32_t filled = bytes; filled < 8; filled *= 2) unit |= unit << (8 * filled);
    pool.insert(pool.end(), size_t{bytes} * kLanes / 8, unit);
  }
  return {Area::constants, at->second};
}

void Linker::lower_functions() {
  for (size_t i = 0; i < bodies_.size(); ++i) {
    Lowering(*this, *bodies_[i].source, bodies_[i].module, *program_->functions_[i]).run();
    if (error_count_ >= ptx::kErrorsMax) return;
  }
}

void Linker::find_reachable(uint32_t function, std::vector<uint32_t>& reachable) const {
  std::vector<uint8_t> seen(program_->functions_.size());
  std::vector<uint32_t> work{function};
  bool everything = false;
  seen[function] = 1;
  auto visit = [&](uint32_t next) {
    if (!seen[next]) work.push_back(next);
    seen[next] = 1;
  };
  while (!work.empty()) {
    uint32_t here = work.back();
    work.pop_back();
    reachable.push_back(here);
    const CompiledFunction& compiled = *program_->functions_[here];
    for (uint32_t callee : compiled.callees) visit(callee);
    if (!compiled.calls_indirectly || everything) continue;
    everything = true;  // a pointer may come from memory, so any device function is reachable
    for (uint32_t f = 0; f < bodies_.size(); ++f) {
      if (!bodies_[f].source->entry) visit(f);
    }
  }
}

// Returns the most local memory that a chain of calls needs. Recursion is recorded and counted once.
uint64_t Linker::deepest_local(uint32_t function, std::vector<int64_t>& memo, std::vector<uint8_t>& state,
                               bool& recursive, uint32_t depth) {
  if (state[function] == 1 || depth > ptx::kErrorsMax * 50) {
    recursive = true;
    return 0;
  }
  if (state[function] == 2) return static_cast<uint64_t>(memo[function]);
  state[function] = 1;
  uint64_t deepest = 0;
  for (uint32_t callee : program_->functions_[function]->callees) {
    deepest = std::max(deepest, deepest_local(callee, memo, state, recursive, depth + 1));
  }
  state[function] = 2;
  memo[function] = static_cast<int64_t>(deepest + program_->functions_[function]->local_bytes);
  return static_cast<uint64_t>(memo[function]);
}

void Linker::make_kernel(uint32_t module, const ptx::Function& source, uint32_t function) {
  (void)module;
  CompiledKernel kernel;
  kernel.function = function;
  std::vector<uint32_t> reachable;
  find_reachable(function, reachable);
  std::vector<uint32_t> shared;
  std::vector<uint32_t> dynamic;
  for (uint32_t f : reachable) {
    kernel.needs_stack |= program_->functions_[f]->calls_indirectly;
    for (uint32_t s : program_->functions_[f]->symbols) {
      const Symbol& symbol = program_->symbols_[s];
      if (symbol.kind == Symbol::Kind::shared) shared.push_back(s);
      if (symbol.kind == Symbol::Kind::dynamic_shared) dynamic.push_back(s);
    }
  }
  std::sort(shared.begin(), shared.end());
  shared.erase(std::unique(shared.begin(), shared.end()), shared.end());
  uint64_t offset = 0;
  for (uint32_t s : shared) {
    const Symbol& symbol = program_->symbols_[s];
    offset = (offset + symbol.alignment - 1) / symbol.alignment * symbol.alignment;
    kernel.shared_offsets.emplace_back(s, static_cast<uint32_t>(offset));
    offset += symbol.bytes;
    if (offset > ptx::kSharedBytesMax) return fail(false, source.line, "the kernel uses too much shared data");
  }
  for (uint32_t s : dynamic)
    kernel.dynamic_shared_alignment = std::max(kernel.dynamic_shared_alignment, program_->symbols_[s].alignment);
  kernel.static_shared_bytes = static_cast<uint32_t>(offset);
  if (!dynamic.empty()) {
    uint32_t align = std::max(kernel.dynamic_shared_alignment, 16u);
    kernel.dynamic_shared_alignment = align;
    uint32_t begin = (kernel.static_shared_bytes + align - 1) / align * align;
    for (uint32_t s : dynamic) kernel.shared_offsets.emplace_back(s, begin);
  }
  std::vector<int64_t> memo(bodies_.size());
  std::vector<uint8_t> state(bodies_.size());
  bool recursive = false;
  kernel.local_bytes_per_thread = deepest_local(function, memo, state, recursive, 0);
  kernel.needs_stack |= recursive;

  KernelInfo info;
  info.name = source.name;
  uint32_t parameter_offset = 0;
  for (const ptx::Formal& formal : source.parameters) {
    if (formal.in_register) return fail(false, source.line, "a kernel's parameters must be in .param space");
    const ptx::Variable& variable = source.variables[formal.index];
    uint32_t align = std::max<uint32_t>(variable.alignment_bytes, 1);
    parameter_offset = (parameter_offset + align - 1) / align * align;
    info.parameters.push_back({parameter_offset, static_cast<uint32_t>(variable.size_bytes), align});
    parameter_offset += static_cast<uint32_t>(variable.size_bytes);
    if (parameter_offset > ptx::kParameterBytesMax)
      return fail(false, source.line, "the kernel has too many parameters");
  }
  info.parameter_bytes = parameter_offset;
  info.static_shared_bytes = kernel.static_shared_bytes;
  info.local_bytes_per_thread = static_cast<uint32_t>(kernel.local_bytes_per_thread);
  info.registers_per_thread = std::clamp<uint32_t>(program_->functions_[function]->frame_bytes / (4 * kLanes), 8, 255);
  info.max_threads_per_block = source.max_threads_per_block;
  info.required_cluster = {source.cluster[0], source.cluster[1], source.cluster[2]};
  program_->kernels_.push_back(std::move(kernel));
  program_->kernel_infos_.push_back(std::move(info));
}

void Linker::make_kernels() {
  for (uint32_t f = 0; f < bodies_.size(); ++f) {
    if (bodies_[f].source->entry) make_kernel(bodies_[f].module, *bodies_[f].source, f);
  }
}

uint64_t CompiledProgram::function_address(std::string_view name) const noexcept {
  auto at = function_names_.find(std::string(name));
  return at == function_names_.end() ? 0 : kFunctionAddressBase + (at->second + 1) * kFunctionAddressStep;
}

const CompiledFunction* CompiledProgram::function_at(uint64_t address) const noexcept {
  uint64_t offset = address - kFunctionAddressBase;
  if (offset % kFunctionAddressStep != 0 || offset == 0) return nullptr;
  uint64_t index = offset / kFunctionAddressStep - 1;
  return index < functions_.size() ? functions_[index].get() : nullptr;
}

}  // namespace gpuwire::software_device
