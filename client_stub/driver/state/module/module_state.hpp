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
  // Returns false if the value is not known yet; otherwise `result` is the query's result.
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
  // Result << 32 | value.
  std::array<std::atomic<int64_t>, kFunctionAttributes> values_;
};

// The settings of the launch interface of CUDA 3 (cuFuncSetBlockShape() and its kin) for the next launch of a function.
// Without settings it is one thread, as NVIDIA's driver 580 has it.
struct StagedLaunch {
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<std::byte> parameters;
};

// A CUfunction or a CUkernel. All members except the caches and `staged` are fixed before the program gets the handle.
// The parameters are fixed before `parameters_known` is true (release, with the module's mutex; know_parameters()
// acquires), and are used only after know_parameters().
struct FunctionState {
  uint64_t handle = 0;
  // Function or kernel.
  wire::HandleKind kind = wire::HandleKind::none;
  std::string name;
  // A kernel's library; for a function made from a kernel, the kernel's library.
  ModuleState* module = nullptr;
  // The kernel from which a function was made.
  FunctionState* kernel = nullptr;
  // The context of a function; a kernel has none.
  ContextState* context = nullptr;
  fatbin::ParameterLayout parameters;
  // The program's image does not contain the parameters. They are the server's figures, by which only mapped memory is
  // read.
  bool parameters_of_server = false;
  // False if the server did not report the parameters, because the context of the look-up had a fault.
  bool parameters_reported = true;
  std::atomic<bool> parameters_known = true;
  // By the program's ordinal.
  std::vector<FunctionAttributes> on_device;

  // Guards `functions` and `staged`. No lock but that of `occupancy` is taken under it.
  std::mutex mutex;
  // The functions of a kernel, by context (cuKernelGetFunction).
  std::unordered_map<ContextState*, FunctionState*> functions;
  // Null if there are no settings.
  std::unique_ptr<StagedLaunch> staged;
  OccupancyAnswers occupancy;

  // Returns the library whose kernel this is under another handle, because it was looked up in the library's module of
  // a context. Settings of the kernel apply here without notice, so no settable value is stored. Null: the function is
  // not of this kind.
  ModuleState* kernels_library() const noexcept;
};

struct Variable {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  bool managed = false;
};

// The JIT and library options for the server, and the program's buffers for the compiler's log.
struct LoadOptions {
  std::vector<wire::message::JitOption> jit, library;
  char* error_log = nullptr;
  char* info_log = nullptr;
  // The sizes of the buffers.
  uint32_t error_log_bytes = 0, info_log_bytes = 0;
  // The places in the program's optionValues for the results.
  void** error_log_filled = nullptr;
  void** info_log_filled = nullptr;
  void** wall_time = nullptr;

  // Returns CUDA_ERROR_INVALID_VALUE, or CUDA_ERROR_NOT_SUPPORTED for options that hold pointers of other meanings.
  static CUresult parse(unsigned count, const CUjit_option* options, void** values, LoadOptions& out);
  // Returns whether there are no options.
  bool plain() const noexcept { return jit.empty() && library.empty() && !error_log && !info_log && !wall_time; }
  // Stores as much of the compiler's messages as the program's buffers hold.
  void store_logs(std::string_view error_text, std::string_view info_text, float wall_time_ms) const;
};

// A CUmodule or a CUlibrary.
struct ModuleState {
  uint64_t handle = 0;
  // Module or library.
  wire::HandleKind kind = wire::HandleKind::none;
  // The context of a module.
  ContextState* context = nullptr;
  // The library of a module that cuLibraryGetModule returned.
  ModuleState* library = nullptr;

  // Held during a request, so that one thread loads and the others wait for it.
  std::mutex mutex;
  // The image of a library with CU_LIBRARY_BINARY_IS_PRESERVED, until it is loaded.
  const void* code = nullptr;
  // The image of another library, until it is loaded.
  std::shared_ptr<const ProgramImage> image;
  LoadOptions options;
  // The result of the load at the server.
  std::optional<CUresult> loaded;
  // By name.
  std::unordered_map<std::string, std::unique_ptr<FunctionState>> functions;
  // The functions made from kernels.
  std::vector<std::unique_ptr<FunctionState>> derived;
  std::unordered_map<std::string, Variable> variables;
  // The modules of a library, by context (cuLibraryGetModule).
  std::unordered_map<ContextState*, uint64_t> modules;
  // The names of all functions, in the driver's order.
  std::optional<std::vector<std::string>> names;
  // The parameters of the image, once that is loaded.
  std::shared_ptr<KernelParameters> parameters;
  // The kernels of earlier programs, once the image is loaded.
  std::optional<ProfiledKernels> known;
  // The questions about its functions. Set together with `known`.
  std::optional<ProfiledOccupancyQuestions> questions;
  // The kernels in `known` have been requested.
  bool images_prefetched = false;

  // The server's handle of a library that the server had loaded before the program used it (prefetched_images.hpp).
  uint64_t came_as = 0;
  uint64_t server_handle() const noexcept { return came_as ? came_as : handle; }
  // The digest of an image that may be prefetched for the next run of the program, until it is recorded.
  std::optional<ProgramImage::Digest> unwritten;
};

inline ModuleState* FunctionState::kernels_library() const noexcept { return module ? module->library : nullptr; }

// Attributes of functions that a program can set (section "Execution Control" of the driver API, cuFuncSetAttribute).
bool can_be_set(unsigned attribute) noexcept;

ModuleState* find_module(CUmodule module) noexcept;
ModuleState* find_library(CUlibrary library) noexcept;
FunctionState* find_kernel(CUkernel kernel) noexcept;
// Returns a function or a kernel, by the kind of its handle; null if it is neither, or has ended.
inline FunctionState* find_launchable(CUfunction function) noexcept {
  auto handle = reinterpret_cast<uint64_t>(function);
  wire::HandleKind kind = wire::handle_kind(handle);
  if (kind != wire::HandleKind::function && kind != wire::HandleKind::kernel) return nullptr;
  return handles().find<FunctionState>(kind, handle);
}

// Offers the image, and sends it unless the server has it. Blocks.
CUresult deliver_image(const Caller& caller, const ProgramImage& image);

// Returns the kinds of images that this process's server can use.
ImageTarget image_target();
// Logs a line for the user about an image that cannot be used, and returns its error. Libraries try images for other
// GPUs and continue without them, as silently as beside a GPU of the server's kind: only the software device refuses
// images that such a GPU would run.
CUresult log_unusable(const ImageTarget& target, const ImageError& error);

// Look-ups of functions of a module or a library. They leave together, maybe with the module's load, and cost one round
// trip. After prefetch() they include earlier programs' questions about the occupancy of the functions. One thread,
// with the module's mutex; add(), then begin() and finish() in turn.
class FunctionQuestions {
 public:
  explicit FunctionQuestions(ModuleState& module) noexcept;
  FunctionQuestions(const FunctionQuestions&) = delete;
  FunctionQuestions& operator=(const FunctionQuestions&) = delete;
  // Ends the handles of functions that were not found.
  ~FunctionQuestions();

  CUresult add(const Caller& caller, std::string_view name);
  // Adds the functions that earlier programs used, the first time.
  void prefetch(const Caller& caller);
  bool under_way() const noexcept { return under_way_; }
  // Sends the look-ups. After an error none is under way.
  CUresult begin(const Caller& caller);
  // Adds the found functions. The result is the first look-up's. If the server could not restore the attributes that it
  // tried out for an answer, the module is unusable.
  CUresult finish(const Caller& caller);
  // Reads the answers and forgets them.
  void drop(const Caller& caller);
  // Precondition: look-ups are under way. finish() may come much later, on another thread (Session::set_aside()).
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
  // About the first questions_, one for each.
  std::vector<std::unique_ptr<OccupancyPrefetch>> occupancy_;
  int device_ = 0;
  bool under_way_ = false, asks_occupancy_ = false;
};

// Reads which of the image's kernels earlier programs used, and their parameters, into `state`.
void note_image(ModuleState& state, const ProgramImage::Digest& image);

// Makes sure that the server has the image, and has it loaded under `handle`. Blocks. Returns the result of the
// server's driver. After CUDA_SUCCESS `along` is under way, after any error it is not. `meanwhile` runs while the
// server loads.
CUresult load_image(const Caller& caller, const ProgramImage& image, uint64_t handle, const LoadOptions& options,
                    FunctionQuestions* along = nullptr, const std::function<void()>& meanwhile = {});
// Loads a library that has not been used yet. After CUDA_SUCCESS `along` may be under way. Lock: state.mutex.
CUresult ensure_loaded(const Caller& caller, ModuleState& state, FunctionQuestions* along = nullptr);

// Finds a function or kernel by name; the first look-up sends a request. Takes state.mutex.
CUresult find_function(const Caller& caller, ModuleState& state, std::string_view name, FunctionState*& out);
// Called before any use of the function's parameters: searches for them in its image, and asks the server if it could
// not report them with the function. CUDA_ERROR_INVALID_IMAGE: the image does not contain them, and the server claims
// more than any kernel has.
CUresult know_parameters(const Caller& caller, FunctionState& function);
// Returns how the client reads the program's values of these parameters.
Reading reading_of(const Caller& caller, const FunctionState& function) noexcept;
// Finds several functions, kPrefetchedKernelsMax in one round trip.
CUresult find_functions(const Caller& caller, ModuleState& state, std::span<const std::string> names,
                        std::vector<FunctionState*>& out);
// Stores the names of all functions. Takes state.mutex.
CUresult list_names(const Caller& caller, ModuleState& state, std::vector<std::string>& out);
// Finds a variable; `managed`: for cuLibraryGetManaged. Takes state.mutex.
CUresult find_variable(const Caller& caller, ModuleState& state, std::string_view name, bool managed, Variable& out);

// Removes a module or library from all tables; its handle and those of its functions end. Its memory is kept for a
// while, because other threads may be using a handle that they looked up before: it is freed after kRetiredModules more
// have ended.
void retire_module(ModuleState* state) noexcept;
inline constexpr size_t kRetiredModules = 256;

// Stores one CUfunction_attribute of a function on a device of the program; the first query sends a request.
CUresult function_attribute(const Caller& caller, FunctionState& function, unsigned attribute, int device, int& value);

// Returns the caller for a request about this module: its own context for a module, the current one for a library.
Caller caller_for(const Caller& caller, const ModuleState& state) noexcept;

}  // namespace gpuwire::client
