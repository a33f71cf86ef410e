#include "server/module_cache/cache_keeper.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "server/module_cache/clear_folder.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

// A temporary file older than this was left by a process that died.
constexpr auto kTemporaryAgeMax = std::chrono::hours(1);
// A tenant's folder that has been empty for so long is not about to be written in.
constexpr auto kEmptyFolderAgeMax = std::chrono::hours(24);
// Of what the cache may hold, this part is free after making room.
constexpr uint64_t kSpareFraction = 16;
// What the names of files that workers make begin with (module_cache.cpp, server/worker/compiled_code.cpp).
constexpr std::string_view kTemporaryPrefix = ".new-", kLinkPrefix = "worker-", kOwnPrefix = "of-worker-";

struct Object {
  timespec used;
  uint64_t bytes;
  fs::path path;
};

bool older(const timespec& time, std::chrono::seconds than) {
  return std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(time.tv_sec) > than;
}

// The folder, with all that is in it: whoever made it may have been anybody.
void remove_folder(const fs::path& folder) {
  clear_folder(folder, kRemovedPerLookMax);
  ::rmdir(folder.c_str());
}

// All images. Clears away what is none on the way.
std::vector<Object> objects_of(const fs::path& directory) {
  std::vector<Object> objects;
  std::error_code error;
  for (const auto& tenant : fs::directory_iterator(directory / "tenants", error)) {
    std::error_code left;
    size_t before = objects.size();
    for (const auto& entry : fs::directory_iterator(tenant.path(), left)) {
      struct stat status {};
      if (lstat(entry.path().c_str(), &status) != 0) continue;
      if (S_ISDIR(status.st_mode)) {
        remove_folder(entry.path());
        continue;
      }
      bool temporary = entry.path().filename().string().starts_with(kTemporaryPrefix);
      if (temporary && older(status.st_mtim, kTemporaryAgeMax)) unlink(entry.path().c_str());
      else objects.push_back({status.st_mtim, uint64_t(status.st_size), entry.path()});
    }
    struct stat folder {};
    if (objects.size() == before && lstat(tenant.path().c_str(), &folder) == 0 &&
        older(folder.st_mtim, kEmptyFolderAgeMax))
      rmdir(tenant.path().c_str());
  }
  return objects;
}

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

// More than the driver would keep, or nothing that it makes.
bool too_much(const fs::path& folder, uint64_t bytes_max) {
  constexpr uint64_t kBlockBytes = 512;  // of stat
  uint64_t bytes = 0;
  size_t files = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    struct stat status {};
    if (lstat(entry->path().c_str(), &status) != 0) continue;
    bytes += uint64_t(status.st_blocks) * kBlockBytes;
    if (bytes > bytes_max || ++files > kCompiledFilesMax || entry.depth() >= kCompiledDepthMax) return true;
  }
  return bool(error);  // it cannot be read
}

void keep_compiled(const fs::path& compiled, uint64_t bytes_max) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(compiled, error)) {
    const fs::path& path = entry.path();
    const pid_t worker = worker_of(path.filename().string());
    struct stat status {};
    if (lstat(path.c_str(), &status) != 0) continue;
    const bool folder = S_ISDIR(status.st_mode);
    if (worker > 0 && ::kill(worker, 0) != 0 && errno == ESRCH) {
      if (folder) remove_folder(path);
      else ::unlink(path.c_str());
    } else if (folder && too_much(path, bytes_max)) {
      clear_folder(path, kRemovedPerLookMax);
    }
  }
}

// Changes with every file that comes or goes: the newest time of the folders, and how many there are.
std::tuple<time_t, long, size_t> state_of(const fs::path& directory) {
  time_t seconds = 0;
  long nanoseconds = 0;
  size_t folders = 0;
  for (const char* of : {"tenants", "compiled"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory / of, error)) {
      struct stat status {};
      if (lstat(entry.path().c_str(), &status) != 0) continue;
      ++folders;
      std::tie(seconds, nanoseconds) =
          std::max(std::tuple(seconds, nanoseconds), std::tuple(status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
    }
  }
  return {seconds, nanoseconds, folders};
}

}  // namespace

CacheContents keep_cache(const fs::path& directory, uint64_t bytes_max, uint64_t compiled_bytes_max) {
  keep_compiled(directory / "compiled", compiled_bytes_max);
  std::vector<Object> objects = objects_of(directory);
  CacheContents left{0, objects.size()};
  for (const Object& object : objects) left.bytes += object.bytes;
  if (left.bytes <= bytes_max && left.images <= kCachedImagesMax) return left;
  std::ranges::sort(objects, {},
                    [](const Object& object) { return std::tuple(object.used.tv_sec, object.used.tv_nsec); });
  uint64_t bytes_wanted = bytes_max - bytes_max / kSpareFraction,
           images_wanted = kCachedImagesMax - kCachedImagesMax / kSpareFraction;
  for (const Object& object : objects) {
    if (left.bytes <= bytes_wanted && left.images <= images_wanted) break;
    unlink(object.path.c_str());
    left.bytes -= object.bytes;
    --left.images;
  }
  return left;
}

CacheKeeper::CacheKeeper(fs::path directory, uint64_t bytes_max)
    : directory_(std::move(directory)), bytes_max_(bytes_max), thread_([this] { run(); }) {}

CacheKeeper::~CacheKeeper() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ending_changed_.notify_one();
  thread_.join();
}

void CacheKeeper::run() {
  auto seen = state_of(directory_);
  keep_cache(directory_, bytes_max_);
  std::unique_lock lock(mutex_);
  for (unsigned looks = 1; !ending_changed_.wait_for(lock, std::chrono::seconds(kCacheLookS), [&] { return ending_; });
       ++looks) {
    auto now = state_of(directory_);
    if (now == seen && looks % kLooksAtCompiled != 0) continue;
    seen = now;
    keep_cache(directory_, bytes_max_);
  }
}

}  // namespace gpuwire::server
