#include "server/module_cache/cache_keeper.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "server/module_cache/clear_folder.hpp"
#include "server/module_cache/module_cache.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

// A temporary file older than this was left by a process that died.
constexpr auto kTemporaryAgeMax = std::chrono::hours(1);
// A tenant's folder that has been empty for this long is not in use by a worker.
constexpr auto kEmptyFolderAgeMax = std::chrono::hours(24);
// This part of the cache's limit is free after an eviction.
constexpr uint64_t kSpareFraction = 16;
// The prefixes of the files that workers make (module_cache.cpp, server/worker/compiled_code.cpp).
constexpr std::string_view kLinkPrefix = "worker-", kOwnPrefix = "of-worker-";

struct Object {
  timespec used;
  uint64_t bytes;
  fs::path path;
};

// The images of one tenant in the cache, the least recently used last.
struct Tenant {
  std::vector<Object> objects;
  uint64_t bytes = 0;
};

bool older(const timespec& time, std::chrono::seconds than) {
  return std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(time.tv_sec) > than;
}

// Removes the folder with all its content, whose creator is not trusted.
void remove_folder(const fs::path& folder) {
  clear_folder(folder, kRemovedPerPollMax);
  ::rmdir(folder.c_str());
}

// Lists all images by tenant, and removes other files on the way.
std::vector<Tenant> tenants_of(const fs::path& directory) {
  std::vector<Tenant> tenants;
  std::error_code error;
  for (const auto& tenant : fs::directory_iterator(directory / "tenants", error)) {
    std::error_code left;
    std::vector<Object> objects;
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
    if (objects.empty() && lstat(tenant.path().c_str(), &folder) == 0 && older(folder.st_mtim, kEmptyFolderAgeMax))
      rmdir(tenant.path().c_str());
    if (objects.empty()) continue;
    std::ranges::sort(objects, std::ranges::greater(),
                      [](const Object& object) { return std::tuple(object.used.tv_sec, object.used.tv_nsec); });
    Tenant& added = tenants.emplace_back(Tenant{std::move(objects)});
    for (const Object& object : added.objects) added.bytes += object.bytes;
  }
  return tenants;
}

// Makes room at the expense of the largest tenant: the tenant with the most bytes (or images) loses its least recently
// used image, until `enough`. A tenant with less than others loses nothing to them.
template <class Measure, class Enough>
void evict(std::vector<Tenant>& tenants, CacheContents& left, Measure&& measure, Enough&& enough) {
  auto less = [&](const Tenant* a, const Tenant* b) { return measure(*a) < measure(*b); };
  std::vector<Tenant*> by_size;  // a heap, whose first element has most
  for (Tenant& tenant : tenants) {
    if (!tenant.objects.empty()) by_size.push_back(&tenant);
  }
  std::ranges::make_heap(by_size, less);
  while (!by_size.empty() && !enough()) {
    std::ranges::pop_heap(by_size, less);
    Tenant& most = *by_size.back();
    const Object& oldest = most.objects.back();
    unlink(oldest.path.c_str());
    most.bytes -= oldest.bytes;
    left.bytes -= oldest.bytes;
    --left.images;
    most.objects.pop_back();
    if (most.objects.empty()) by_size.pop_back();
    else std::ranges::push_heap(by_size, less);
  }
}

// Returns the process to which the name belongs; 0: a tenant's folder.
pid_t worker_of(std::string_view name) {
  for (std::string_view prefix : {kLinkPrefix, kOwnPrefix}) {
    if (!name.starts_with(prefix)) continue;
    pid_t worker = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), worker);
    return worker;
  }
  return 0;
}

// Returns whether the folder has more than the driver would store, or files that the driver does not make.
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
      clear_folder(path, kRemovedPerPollMax);
    }
  }
}

// A value that changes with every added or removed file: the newest time of the folders, and their number.
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
  std::vector<Tenant> tenants = tenants_of(directory);
  CacheContents left;
  for (const Tenant& tenant : tenants) {
    left.bytes += tenant.bytes;
    left.images += tenant.objects.size();
  }
  const uint64_t bytes_wanted = bytes_max - bytes_max / kSpareFraction,
                 images_wanted = kCachedImagesMax - kCachedImagesMax / kSpareFraction;
  if (left.bytes > bytes_max)
    evict(
        tenants, left, [](const Tenant& tenant) { return tenant.bytes; }, [&] { return left.bytes <= bytes_wanted; });
  if (left.images > kCachedImagesMax)
    evict(
        tenants, left, [](const Tenant& tenant) { return uint64_t(tenant.objects.size()); },
        [&] { return left.images <= images_wanted; });
  return left;
}

CacheKeeper::CacheKeeper(fs::path directory, uint64_t bytes_max)
    : directory_(std::move(directory)), bytes_max_(bytes_max), thread_([this] { run(); }) {}

CacheKeeper::~CacheKeeper() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  ending_changed_.notify_one();
  thread_.join();
}

void CacheKeeper::run() {
  auto seen = state_of(directory_);
  keep_cache(directory_, bytes_max_);
  MutexLock lock(mutex_);
  for (unsigned looks = 1; !ending_changed_.wait_for(lock.native(), std::chrono::seconds(kCachePollS),
                                                     [this]() REQUIRES(mutex_) { return ending_; });
       ++looks) {
    auto now = state_of(directory_);
    if (now == seen && looks % kPollsAtCompiled != 0) continue;
    seen = now;
    keep_cache(directory_, bytes_max_);
  }
}

}  // namespace gpuwire::server
