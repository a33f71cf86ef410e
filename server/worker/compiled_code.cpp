#include "server/worker/compiled_code.hpp"

#include <cerrno>
#include <cstdlib>
#include <span>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

#include "server/module_cache/cache_keeper.hpp"
#include "server/module_cache/digest.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLinkPrefix = "worker-", kOwnPrefix = "of-worker-";

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
  std::string process = std::to_string(::getpid());
  own_ = folder_ / (std::string(kOwnPrefix) + process);
  link_ = folder_ / (std::string(kLinkPrefix) + process);
  // An earlier process with this process ID may have left its folder, with another tenant's code.
  forget();
  ::mkdir(own_.c_str(), 0700);
  [[maybe_unused]] int failed = ::symlink(own_.c_str(), link_.c_str());
  ::setenv("CUDA_CACHE_PATH", link_.c_str(), 1);
  ::setenv("CUDA_CACHE_MAXSIZE", std::to_string(kDriverCompiledBytesMax).c_str(), 1);
}

// CacheKeeper removes files that are inaccessible by then, after the process has ended.
void CompiledCode::forget() {
  if (link_.empty()) return;
  ::unlink(link_.c_str());
  std::error_code ignored;
  fs::remove_all(own_, ignored);
}

fs::path CompiledCode::belongs_to(std::string_view tenant) {
  if (link_.empty() || tenant.empty()) return own_;  // no tenant's: compiled code goes with the worker's own folder
  fs::path target = folder_ / hex(sha256(std::as_bytes(std::span(tenant))));
  if (::mkdir(target.c_str(), 0700) != 0 && errno != EEXIST) return own_;
  // The link is replaced by rename, so that the driver finds the old or the new one at any time.
  fs::path fresh = own_.string() + ".link";
  if (::symlink(target.c_str(), fresh.c_str()) != 0 || ::rename(fresh.c_str(), link_.c_str()) != 0) return own_;
  return target;
}

}  // namespace gpuwire::server
