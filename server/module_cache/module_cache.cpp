#include "server/module_cache/module_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace gpuwire::server {

namespace fs = std::filesystem;

namespace {

// A temporary file older than this was left by a process that died.
constexpr auto kTemporaryAgeMax = std::chrono::hours(1);
// Of what the cache may hold, this part is free after making room.
constexpr uint64_t kSpareFraction = 16;
constexpr int kFolderAttemptsMax = 4;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  explicit operator bool() const { return value_ >= 0; }

 private:
  int value_;
};

// At most so much is in the cache: rooms are booked before the files are written, and what is removed otherwise than for room stays booked
// until the next look at the files.
struct Booked {
  uint64_t bytes = 0, images = 0;
};

// Held by the process that books or removes, so that two do not evict for the same room; its contents are what is booked. Let go when the
// process dies.
class DirectoryLock {
 public:
  explicit DirectoryLock(const fs::path& directory) : file_(::open((directory / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    if (file_) while (flock(file_.get(), LOCK_EX) != 0 && errno == EINTR) {}
  }
  bool read(Booked& booked) const { return pread(file_.get(), &booked, sizeof booked, 0) == ssize_t(sizeof booked); }
  bool write(const Booked& booked) const { return pwrite(file_.get(), &booked, sizeof booked, 0) == ssize_t(sizeof booked); }

 private:
  Descriptor file_;
};

struct Object {
  timespec used;
  uint64_t bytes;
  fs::path path;
};

std::vector<Object> objects_of(const fs::path& directory) {
  std::vector<Object> objects;
  std::error_code error;
  for (const auto& tenant : fs::directory_iterator(directory / "tenants", error)) {
    std::error_code left;
    for (const auto& entry : fs::directory_iterator(tenant.path(), left)) {
      struct stat status{};
      if (lstat(entry.path().c_str(), &status) == 0) objects.push_back({status.st_mtim, uint64_t(status.st_size), entry.path()});
    }
  }
  return objects;
}

// Removes the least recently used until there is room for `bytes` more, and some to spare: a full cache must not be looked through for each
// image that comes.
Booked evict(const ModuleCacheSettings& settings, uint64_t bytes) {
  std::vector<Object> objects = objects_of(settings.directory);
  std::sort(objects.begin(), objects.end(), [](const Object& a, const Object& b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec) < std::tie(b.used.tv_sec, b.used.tv_nsec);
  });
  Booked left;
  for (const Object& object : objects) left.bytes += object.bytes;
  left.images = objects.size();
  uint64_t spare = settings.bytes_max / kSpareFraction;
  uint64_t bytes_wanted = settings.bytes_max - std::min(settings.bytes_max, std::max(bytes, spare));
  uint64_t images_wanted = kCachedImagesMax - kCachedImagesMax / kSpareFraction;
  for (const Object& object : objects) {
    if (left.bytes <= bytes_wanted && left.images <= images_wanted) break;
    unlink(object.path.c_str());
    rmdir(object.path.parent_path().c_str());  // only succeeds when that was the tenant's last one
    left.bytes -= object.bytes;
    --left.images;
  }
  return left;
}

std::string error_text(std::string_view what, const fs::path& path) {
  return std::string(what) + " " + path.string() + ": " + std::strerror(errno);
}

tl::expected<void, std::string> make_private_directory(const fs::path& path) {
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return tl::unexpected(error_text("cannot create", path));
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) return tl::unexpected(error_text("cannot inspect", path));
  if (!S_ISDIR(status.st_mode)) return tl::unexpected(path.string() + " is not a directory");
  if (status.st_uid != geteuid()) return tl::unexpected(path.string() + " belongs to another user");
  if (status.st_mode & 022) return tl::unexpected(path.string() + " may be written by other users");
  return {};
}

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = write(descriptor, bytes.data(), std::min<size_t>(bytes.size(), 64u << 20));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(size_t(written));
  }
  return true;
}

// Tenants' names are theirs to choose; a path must not be.
std::string tenant_folder(std::string_view tenant) {
  if (tenant.empty()) return "nameless";
  return "t-" + hex(sha256(std::as_bytes(std::span(tenant.data(), tenant.size()))));
}

}  // namespace

fs::path default_module_cache_directory() {
  auto absolute = [](const char* value) { return value && value[0] == '/'; };
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); absolute(cache)) return fs::path(cache) / "gpuwire";
  if (geteuid() == 0) return "/var/cache/gpuwire";
  if (const char* home = std::getenv("HOME"); absolute(home)) return fs::path(home) / ".cache" / "gpuwire";
  std::error_code ignored;
  fs::path temporary = fs::temp_directory_path(ignored);
  return (temporary.empty() ? fs::path("/tmp") : temporary) / ("gpuwire-" + std::to_string(geteuid()));
}

tl::expected<std::unique_ptr<ModuleCache>, std::string> ModuleCache::open(ModuleCacheSettings settings) {
  for (const fs::path& path : {settings.directory, settings.directory / "tenants", settings.directory / "tmp"}) {
    if (auto made = make_private_directory(path); !made) return tl::unexpected(made.error());
  }
  std::unique_ptr<ModuleCache> cache(new ModuleCache(std::move(settings)));
  cache->remove_stale_temporaries();
  return cache;
}

fs::path ModuleCache::object(std::string_view tenant, const Digest& digest) const {
  return settings_.directory / "tenants" / tenant_folder(tenant) / hex(digest);
}

std::shared_ptr<const ModuleImage> ModuleCache::find(std::string_view tenant, const Digest& digest) {
  fs::path path = object(tenant, digest);
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status{};
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  auto image = status.st_size > 0 ? ModuleImage::map(file.get(), size_t(status.st_size)) : nullptr;
  if (!image || sha256(image->bytes()) != digest) {
    unlink(path.c_str());
    return nullptr;
  }
  // The time of last use, by which evict() chooses.
  futimens(file.get(), nullptr);
  return image;
}

bool ModuleCache::insert(std::string_view tenant, const Digest& digest, std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > settings_.bytes_max) return false;
  fs::path path = object(tenant, digest);
  struct stat status{};
  // A file of another size is not what was written there; the right one takes its place.
  if (lstat(path.c_str(), &status) == 0 && uint64_t(status.st_size) == bytes.size()) {
    utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    return true;
  }
  if (!make_room(bytes.size())) return false;
  fs::path temporary = write_temporary(digest, bytes);
  if (temporary.empty()) return false;
  // Evicting may take the tenant's folder away between the two.
  for (int attempt = 0; attempt < kFolderAttemptsMax; ++attempt) {
    mkdir(path.parent_path().c_str(), 0700);
    if (rename(temporary.c_str(), path.c_str()) == 0) return true;
  }
  unlink(temporary.c_str());
  return false;
}

bool ModuleCache::make_room(uint64_t bytes) {
  DirectoryLock lock(settings_.directory);
  Booked booked;
  bool known = lock.read(booked);
  if (!known || booked.bytes > settings_.bytes_max - bytes || booked.images >= kCachedImagesMax) booked = evict(settings_, bytes);
  booked.bytes += bytes;
  ++booked.images;
  return lock.write(booked);
}

// Empty: it could not be written.
fs::path ModuleCache::write_temporary(const Digest& digest, std::span<const std::byte> bytes) {
  // Names one temporary of this process; nothing else depends on its order.
  static std::atomic<uint64_t> counter{0};
  fs::path temporary = settings_.directory / "tmp" /
                       (hex(digest).substr(0, 16) + "." + std::to_string(getpid()) + "." +
                        std::to_string(counter.fetch_add(1, std::memory_order_relaxed)));
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return {};
  // Not synced: after a crash the digest tells a torn file from a good one.
  if (write_all(file.get(), bytes)) return temporary;
  unlink(temporary.c_str());
  return {};
}

uint64_t ModuleCache::bytes() const {
  uint64_t total = 0;
  for (const Object& object : objects_of(settings_.directory)) total += object.bytes;
  return total;
}

void ModuleCache::remove_stale_temporaries() {
  DirectoryLock lock(settings_.directory);
  auto now = std::chrono::system_clock::now();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(settings_.directory / "tmp", error)) {
    struct stat status{};
    if (lstat(entry.path().c_str(), &status) != 0) continue;
    if (now - std::chrono::system_clock::from_time_t(status.st_mtime) > kTemporaryAgeMax) unlink(entry.path().c_str());
  }
}

}  // namespace gpuwire::server
