// The client's state of modules, libraries and their functions. Handles lead to these objects (handles.hpp).
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/launch/launch_shape.hpp"
#include "client_stub/driver/state/launch/occupancy_answers.hpp"
#include "client_stub/driver/state/warm_start/profiled_occupancy_questions.hpp"
#include "client_stub/driver/state/module/kernel_parameters.hpp"
#include "client_stub/driver/state/warm_start/profiled_kernels.hpp"
#include "client_stub/driver/state/module/program_image.hpp"
#include "wire/session_messages.hpp"

namespace gpuwire::client {

struct ModuleState;
class OccupancyPrefetch;

inline constexpr unsigned kFunctionAttributes = CU_FUNC_ATTRIBUTE_MAX;

// CUfunction_attribute values of a function on one device. Each stands for itself: relaxed reads and writes are enough.
class FunctionAttributes {
 public:
  FunctionAttributes() noexcept { clear(); }
  // False: not known yet. Otherwise `result` is the query's result.
  bool get(unsigned attribute, int& value, CUresult& result) const noexcept {
    int64_t packed = values_[attribute].load(std::memory_order_relaxed);
    value = int32_t(packed);
    result = CUresult(packed >> 32);
    return packed >= 0;
  }
  void set(unsigned attribute, int value, CUresult result) noexcept {
    values_[attribute].store(int64_t(result) << 32 | uint32_t(value), std::memory_order_relaxed);
  }
  void copy(const FunctionAttributes& other) noexcept {
    for (size_t i = 0; i < values_.size(); ++i)
      values_[i].store(other.values_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  void forget(unsigned attribute) noexcept { values_[attribute].store(kUnknown, std::memory_order_relaxed); }
  void clear() noexcept {
    for (auto& value : values_) value.store(kUnknown, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kUnknown = -1;
  std::array<std::atomic<int64_t>, kFunctionAttributes> values_;  // result << 32 | value
};

// The settings of the launch interface of CUDA 3 (cuFuncSetBlockShape() and its kin) for the next launch of a function.
// Without settings it is one thread, as NVIDIA's driver 580 has it.
struct StagedLaunch {
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<std::byte> parameters;
};

// A CUfunction or a CUkernel. All but the caches and `staged` is fixed before the handle is handed out; the parameters
// are before `parameters_known` is true (release, with the module's mutex; know_parameters() acquires), and nothing is
// done with them before know_parameters() has been called.
struct FunctionState {
  uint64_t handle = 0;
  wire::HandleKind kind = wire::HandleKind::none;  // function or kernel
  std::string name;
  ModuleState* module = nullptr;    // of a kernel: its library; of a function made from a kernel: the kernel's library
  FunctionState* kernel = nullptr;  // of a function made from a kernel
  ContextState* context = nullptr;  // of a function; a kernel has none
  fatbin::ParameterLayout parameters;
  // The program's image does not contain them: they are the server's figures, by which only mapped memory is read.
  bool parameters_of_server = false;
  bool parameters_reported = true;  // by the server; false: looked up in a context that had failed
  std::atomic<bool> parameters_known = true;
  std::vector<FunctionAttributes> on_device;  // by the program's ordinal

  std::mutex mutex;  // `functions` and `staged`; no lock but that of `occupancy` within
  std::unordered_map<ContextState*, FunctionState*> functions;  // of a kernel: cuKernelGetFunction
  std::unique_ptr<StagedLaunch> staged;                         // null: nothing was set
  OccupancyAnswers occupancy;

  // The library whose kernel this is under another handle: it was looked up in the module that the library is in a
  // context. Settings there hold here without notice, so no settable value is stored. Null: the function is not of this
  // kind.
  ModuleState* kernels_library() const noexcept;
};

struct Variable {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  bool managed = false;
};

// JIT and library options as they travel, and the program's buffers for the compiler's log.
struct LoadOptions {
  std::vector<wire::message::JitOption> jit, library;
  char* error_log = nullptr;
  char* info_log = nullptr;
  uint32_t error_log_bytes = 0, info_log_bytes = 0;  // sizes of the buffers
  void** error_log_filled = nullptr;                 // places in the program's optionValues where the results belong
  void** info_log_filled = nullptr;
  void** wall_time = nullptr;

  // CUDA_ERROR_INVALID_VALUE, or CUDA_ERROR_NOT_SUPPORTED for options that hold pointers of other meanings.
  static CUresult parse(unsigned count, const CUjit_option* options, void** values, LoadOptions& out);
  // Nothing of the program's own is asked for.
  bool plain() const noexcept { return jit.empty() && library.empty() && !error_log && !info_log && !wall_time; }
  // Puts the compiler's messages where the program asked for them: as much of the texts as its buffers hold.
  void store_logs(std::string_view error_text, std::string_view info_text, float wall_time_ms) const;
};

// A CUmodule or a CUlibrary.
struct ModuleState {
  uint64_t handle = 0;
  wire::HandleKind kind = wire::HandleKind::none;  // module or library
  ContextState* context = nullptr;                 // of a module
  ModuleState* library = nullptr;                  // of a module that cuLibraryGetModule gave

  // Held while the server is asked, so that one thread loads and the others wait for it.
  std::mutex mutex;
  const void* code = nullptr;                 // of a library with CU_LIBRARY_BINARY_IS_PRESERVED, until it is loaded
  std::shared_ptr<const ProgramImage> image;  // of another library, until it is loaded
  LoadOptions options;
  std::optional<CUresult> loaded;                                             // the result of loading it at the server
  std::unordered_map<std::string, std::unique_ptr<FunctionState>> functions;  // by name
  std::vector<std::unique_ptr<FunctionState>> derived;                        // functions made from kernels
  std::unordered_map<std::string, Variable> variables;
  std::unordered_map<ContextState*, uint64_t> modules;  // of a library: cuLibraryGetModule by context
  std::optional<std::vector<std::string>> names;        // of all functions, in the driver's order
  std::shared_ptr<KernelParameters> parameters;         // of its image, from when that is loaded on
  std::optional<ProfiledKernels> known;                 // the same
  std::optional<ProfiledOccupancyQuestions> questions;  // about its functions; set together with `known`
  bool images_prefetched = false;                       // those of `known` have been asked for

  // For a library that the server had loaded before the program asked for it (images_ahead.hpp): its handle there.
  uint64_t came_as = 0;
  uint64_t server_handle() const noexcept { return came_as ? came_as : handle; }
  // An image that may be prefetched for the next run of the program, until it is recorded.
  std::optional<ProgramImage::Digest> unwritten;
};

inline ModuleState* FunctionState::kernels_library() const noexcept { return module ? module->library : nullptr; }

// Attributes of functions that a program can set (section "Execution Control" of the driver API, cuFuncSetAttribute).
bool can_be_set(unsigned attribute) noexcept;

ModuleState* find_module(CUmodule module) noexcept;
ModuleState* find_library(CUlibrary library) noexcept;
FunctionState* find_kernel(CUkernel kernel) noexcept;
// A function or a kernel, by the kind of its handle. Null: neither, or not alive.
inline FunctionState* find_launchable(CUfunction function) noexcept {
  auto handle = reinterpret_cast<uint64_t>(function);
  wire::HandleKind kind = wire::handle_kind(handle);
  if (kind != wire::HandleKind::function && kind != wire::HandleKind::kernel) return nullptr;
  return handles().find<FunctionState>(kind, handle);
}

// Offers the image, and sends it unless the server has it. Blocks.
CUresult deliver_image(const Caller& caller, const ProgramImage& image);

// Which images this process's server can use.
ImageTarget image_target();
// A line for the person at the terminal about an image that cannot be used; returns its error. Libraries try images for
// other GPUs and go on without them, as silently as beside a GPU of the server's kind: only the software device refuses
// images that such a GPU would run.
CUresult log_unusable(const ImageTarget& target, const ImageError& error);

// Look-ups of functions of a module or a library: they leave together, maybe along with the module's loading, and cost
// one round trip. Earlier programs' questions about the occupancy of such functions go with them once prefetch() was
// called. One thread, with the module's mutex; add(), then begin() and finish() in turn.
class FunctionQuestions {
 public:
  explicit FunctionQuestions(ModuleState& module) noexcept;
  FunctionQuestions(const FunctionQuestions&) = delete;
  FunctionQuestions& operator=(const FunctionQuestions&) = delete;
  ~FunctionQuestions();  // ends the handles of those that were not found

  CUresult add(const Caller& caller, std::string_view name);
  // And those that earlier programs used, the first time.
  void prefetch(const Caller& caller);
  bool under_way() const noexcept { return under_way_; }
  // After an error none is under way.
  CUresult begin(const Caller& caller);
  // Adds the found functions. The result is the first look-up's. If the server could not restore the attributes that it
  // tried out for an answer, the module is unusable.
  CUresult finish(const Caller& caller);
  // Reads the answers and forgets them.
  void drop(const Caller& caller);
  // While they are under way: finish() may come much later, on another thread (Session::set_aside()).
  void set_aside(const Caller& caller) const noexcept;
  size_t size() const noexcept;

 private:
  struct Question {
    std::unique_ptr<FunctionState> function;
    uint64_t sequence = 0;
    bool begun = false;
  };
  bool asks(std::string_view name) const noexcept;
  CUresult read(const Caller& caller, Question& question) const;
  void begin_occupancy(const Caller& caller);

  ModuleState& module_;
  std::vector<Question> questions_;
  std::vector<std::unique_ptr<OccupancyPrefetch>> occupancy_;  // about the first this many of them
  int device_ = 0;
  bool under_way_ = false, asks_occupancy_ = false;
};

// From now on `state` knows which of the image's kernels earlier programs used, and the parameters of those.
void note_image(ModuleState& state, const ProgramImage::Digest& image);

// Makes sure the server has the image, and has it loaded under `handle`. Blocks. The result is the server's driver's.
// After CUDA_SUCCESS `along` is under way, after anything else it is not. `meanwhile` is run while the server loads.
CUresult load_image(const Caller& caller, const ProgramImage& image, uint64_t handle, const LoadOptions& options,
                    FunctionQuestions* along = nullptr, const std::function<void()>& meanwhile = {});
// Loads a library that has not been used yet; `state.mutex` must be held. `along` may be under way afterwards if it is
// CUDA_SUCCESS.
CUresult ensure_loaded(const Caller& caller, ModuleState& state, FunctionQuestions* along = nullptr);

// Finds a function or kernel by name, asking the server the first time. Takes state.mutex.
CUresult find_function(const Caller& caller, ModuleState& state, std::string_view name, FunctionState*& out);
// Before any use of the function's parameters: searches for them in its image, and asks the server if it could not
// report them with the function. CUDA_ERROR_INVALID_IMAGE: the image does not contain them, and the server claims more
// than any kernel has.
CUresult know_parameters(const Caller& caller, FunctionState& function);
// How they are read then.
Reading reading_of(const Caller& caller, const FunctionState& function) noexcept;
// As find_function() for each of these names, kPrefetchedKernelsMax in one round trip.
CUresult find_functions(const Caller& caller, ModuleState& state, std::span<const std::string> names,
                        std::vector<FunctionState*>& out);
// All names, then all functions. Takes state.mutex.
CUresult list_names(const Caller& caller, ModuleState& state, std::vector<std::string>& out);
// Takes state.mutex. `managed`: cuLibraryGetManaged.
CUresult find_variable(const Caller& caller, ModuleState& state, std::string_view name, bool managed, Variable& out);

// Takes a module or library out of all tables; its handle and those of its functions end. Its memory lives on for a
// while, because other threads may be using a handle that they looked up before: kRetiredModules more must end first.
void retire_module(ModuleState* state) noexcept;
inline constexpr size_t kRetiredModules = 256;

// One CUfunction_attribute of a function on a device of the program; asks the server the first time.
CUresult function_attribute(const Caller& caller, FunctionState& function, unsigned attribute, int device, int& value);

// The caller that a question about this module should come from: its own context for a module, the current one for a
// library.
Caller caller_for(const Caller& caller, const ModuleState& state) noexcept;

}  // namespace gpuwire::client
