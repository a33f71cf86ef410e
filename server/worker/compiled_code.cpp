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

constexpr std::string_view kLinkPrefix = "worker-", kOwnPrefix = "of-worker-";

// The process that this name is of; 0: it is a tenant's folder.
pid_t worker_of(std::string_view name) {
  for (std::string_view prefix : {kLinkPrefix, kOwnPrefix}) {
    if (!name.starts_with(prefix)) continue;
    pid_t worker = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), worker);
    return worker;
  }
  return 0;
}

// What workers left that were killed.
void remove_stale(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    pid_t worker = worker_of(entry.path().filename().string());
    if (worker <= 0 || ::kill(worker, 0) == 0 || errno != ESRCH) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);  // of a link: the link alone
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
  remove_stale(folder_);
  std::string process = std::to_string(::getpid());
  own_ = folder_ / (std::string(kOwnPrefix) + process);
  link_ = folder_ / (std::string(kLinkPrefix) + process);
  ::mkdir(own_.c_str(), 0700);
  [[maybe_unused]] int failed = ::symlink(own_.c_str(), link_.c_str());
  ::setenv("CUDA_CACHE_PATH", link_.c_str(), 1);
}

void CompiledCode::forget() {
  if (link_.empty()) return;
  ::unlink(link_.c_str());
  std::error_code ignored;
  fs::remove_all(own_, ignored);
}

void CompiledCode::belongs_to(std::string_view tenant) {
  if (link_.empty() || tenant.empty()) return;  // nobody's: what is compiled goes with the folder of its own
  fs::path target = folder_ / hex(sha256(std::as_bytes(std::span(tenant))));
  if (::mkdir(target.c_str(), 0700) != 0 && errno != EEXIST) return;
  // By rename, so that the driver finds one or the other at any time.
  fs::path fresh = own_.string() + ".link";
  if (::symlink(target.c_str(), fresh.c_str()) == 0) ::rename(fresh.c_str(), link_.c_str());
}

}  // namespace gpuwire::server
