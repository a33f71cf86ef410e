#include "client_stub/session/rdma_library.hpp"

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "client_stub/session/environment.hpp"
#include "protocol/transport/rdma_plugin.hpp"

namespace gpuwire::client {

namespace {

std::string plugin_path() {
  if (const char* named = setting("GPUWIRE_RDMA_PLUGIN"); named && *named) return named;
  Dl_info holder{};
  if (!::dladdr(reinterpret_cast<const void*>(&rdma_fabric), &holder) || !holder.dli_fname) return kGpuwireRdmaLibrary;
  return (std::filesystem::path(holder.dli_fname).parent_path() / kGpuwireRdmaLibrary).string();
}

std::mutex g_mutex;
// Guarded by the mutex. The sessions own the object.
std::weak_ptr<transport::RdmaFabric> g_fabric;
pid_t g_opened_by = 0;

}  // namespace

tl::expected<std::shared_ptr<transport::RdmaFabric>, std::string> rdma_fabric() {
  std::lock_guard lock(g_mutex);
  // UCX does not survive fork(): its open objects belong to the parent.
  if (g_opened_by != 0 && g_opened_by != ::getpid())
    return tl::unexpected(std::string("the program was forked by one that uses it"));
  if (auto fabric = g_fabric.lock()) return fabric;
  const std::string path = plugin_path();
  // A missing library is the usual case; the environment stays unchanged.
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return tl::unexpected("there is no " + path);
  auto opened = transport::RdmaFabric::open(path);
  if (!opened) return opened;
  g_opened_by = ::getpid();
  g_fabric = *opened;
  return opened;
}

}  // namespace gpuwire::client
