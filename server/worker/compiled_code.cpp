#include "server/worker/compiled_code.hpp"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <span>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

#include "server/module_cache/digest.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLinkPrefix = "worker-";

// What workers left that were killed.
void remove_stale_links(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(kLinkPrefix)) continue;
    pid_t worker = 0;
    auto [end, wrong] = std::from_chars(name.data() + kLinkPrefix.size(), name.data() + name.size(), worker);
    if (wrong != std::errc() || worker <= 0 || ::kill(worker, 0) == 0 || errno != ESRCH) continue;
    ::unlink(entry.path().c_str());
  }
}

}  // namespace

CompiledCode::CompiledCode(fs::path folder) : folder_(std::move(folder)) {
  if (!folder_.empty()) {
    std::error_code ignored;
    fs::create_directories(folder_.parent_path(), ignored);
    if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) folder_.clear();
  }
  if (folder_.empty()) {
    ::setenv("CUDA_CACHE_DISABLE", "1", 1);
    return;
  }
  remove_stale_links(folder_);
  link_ = folder_ / (std::string(kLinkPrefix) + std::to_string(::getpid()));
  ::setenv("CUDA_CACHE_PATH", link_.c_str(), 1);
}

void CompiledCode::forget() {
  if (!link_.empty()) ::unlink(link_.c_str());
}

void CompiledCode::belongs_to(std::string_view tenant) {
  if (link_.empty()) return;
  // Where nothing can be made: the driver then keeps nothing.
  fs::path target = "/dev/null/nobody";
  if (!tenant.empty()) {
    target = folder_ / hex(sha256(std::as_bytes(std::span(tenant))));
    if (::mkdir(target.c_str(), 0700) != 0 && errno != EEXIST) return;
  }
  ::unlink(link_.c_str());
  [[maybe_unused]] int failed = ::symlink(target.c_str(), link_.c_str());
}

}  // namespace gpuwire::server
