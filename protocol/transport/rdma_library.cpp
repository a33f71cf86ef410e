#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/transport/rdma.hpp"
#include "protocol/transport/rdma_plugin.hpp"

namespace gpuwire::transport {

namespace {

// The settings for UCX, which reads them while it is loaded, before any function of it can be called. UCX runs inside a
// user's program: it must not take the program's signals, print to the program's output, or replace its malloc, mmap
// and CUDA. Other UCX_ variables that the user has set apply.
constexpr const char* kGuestRules[] = {
    "UCX_HANDLE_ERRORS=none",
    "UCX_ERROR_SIGNALS=",
    "UCX_DEBUG_SIGNO=0",
    "UCX_LOG_LEVEL=fatal",
    "UCX_LOG_FILE=stderr",
    "UCX_WARN_UNUSED_ENV_VARS=n",
    "UCX_VFS_ENABLE=n",
    "UCX_MEM_LOG_LEVEL=fatal",
    "UCX_MEM_EVENTS=n",
    "UCX_MEM_MMAP_HOOK_MODE=none",
    "UCX_MEM_MALLOC_HOOKS=n",
    "UCX_MEM_MALLOC_RELOC=n",
    "UCX_MEM_CUDA_HOOK_MODE=none",
    "UCX_MEM_DLOPEN_PROCESS_RPATH=n",
    "UCX_MEM_MODULE_UNLOAD_PREVENT_MODE=none",
    "UCX_MEMTYPE_CACHE=n",
    // These modules would open libcuda.so.1, which is this library.
    "UCX_MODULES=^cuda,cuda_copy,cuda_ipc,gdr_copy,gdrcopy,rocm,ze",
};

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

// Adds these settings to the environment with one store to `environ`: a thread that reads it sees the old or the new
// array, and neither is freed. The destructor restores the old array. If the environment was changed meanwhile, the
// program's new array stays, with the settings.
class GuestRules {
 public:
  GuestRules() : before_(environ) {
    // Guarded by g_loading. Never freed, because other threads may read it.
    static auto& all = *new std::vector<std::unique_ptr<std::vector<char*>>>;
    auto& with = *all.emplace_back(std::make_unique<std::vector<char*>>());
    for (const char* rule : kGuestRules) with.push_back(const_cast<char*>(rule));
    for (char** variable = before_; variable && *variable; ++variable) {
      bool ruled = false;
      for (const char* rule : kGuestRules) ruled = ruled || name_of(rule) == name_of(*variable);
      if (!ruled) with.push_back(*variable);
    }
    with.push_back(nullptr);
    during_ = with.data();
    __atomic_store_n(&environ, during_, __ATOMIC_RELEASE);
  }
  ~GuestRules() {
    if (__atomic_load_n(&environ, __ATOMIC_ACQUIRE) == during_) __atomic_store_n(&environ, before_, __ATOMIC_RELEASE);
  }
  GuestRules(const GuestRules&) = delete;
  GuestRules& operator=(const GuestRules&) = delete;

 private:
  char** const before_;
  char** during_ = nullptr;
};

std::mutex g_loading;

tl::expected<const GpuwireRdmaPlugin*, std::string> load(const std::string& path) {
  std::lock_guard lock(g_loading);
  GuestRules rules;
  // RTLD_NODELETE: UCX leaves threads and exit handlers behind.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* reason = ::dlerror();
    return tl::unexpected(std::string(reason ? reason : path));
  }
  auto get = reinterpret_cast<GpuwireRdmaGetPlugin>(::dlsym(library, kGpuwireRdmaSymbol));
  const GpuwireRdmaPlugin* plugin = get ? get() : nullptr;
  if (!plugin || plugin->version != kGpuwireRdmaVersion || plugin->bytes != sizeof(GpuwireRdmaPlugin))
    return tl::unexpected(path + " is of another release");
  return plugin;
}

}  // namespace

tl::expected<std::shared_ptr<RdmaFabric>, std::string> RdmaFabric::open(const std::string& path, bool confined) {
  auto plugin = load(path);
  if (!plugin) return tl::unexpected(plugin.error());
  char error[256] = "the end of the process";
  GpuwireRdmaFabric* handle = (*plugin)->open(confined, error, sizeof error);
  if (!handle) return tl::unexpected(std::string(error));
  return std::shared_ptr<RdmaFabric>(new RdmaFabric(**plugin, handle));
}

RdmaFabric::~RdmaFabric() { plugin_.close_fabric(handle_); }

}  // namespace gpuwire::transport
