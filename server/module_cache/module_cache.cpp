#include "server/module_cache/module_cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

namespace fs = std::filesystem;

namespace {

std::string error_text(std::string_view what, const fs::path& path) {
  return std::string(what) + " " + path.string() + ": " + std::strerror(errno);
}

tl::expected<void, std::string> make_private_directory(const fs::path& path) {
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return tl::unexpected(error_text("cannot create", path));
  struct stat status {};
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

// Tenants choose their names, which must not become paths.
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
  for (const fs::path& path : {settings.directory, settings.directory / "tenants"}) {
    if (auto made = make_private_directory(path); !made) return tl::unexpected(made.error());
  }
  return std::unique_ptr<ModuleCache>(new ModuleCache(std::move(settings)));
}

fs::path ModuleCache::folder_of(std::string_view tenant) const {
  return settings_.directory / "tenants" / tenant_folder(tenant);
}

fs::path ModuleCache::prepare(std::string_view tenant) const {
  fs::path folder = folder_of(tenant);
  // A recent time marks the folder as in use (CacheKeeper removes empty unused ones).
  if (mkdir(folder.c_str(), 0700) != 0) utimensat(AT_FDCWD, folder.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return folder;
}

fs::path ModuleCache::object(std::string_view tenant, const Digest& digest) const {
  return folder_of(tenant) / hex(digest);
}

std::shared_ptr<const ModuleImage> ModuleCache::find(std::string_view tenant, const Digest& digest) {
  fs::path path = object(tenant, digest);
  OwnedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  auto image = status.st_size > 0 ? ModuleImage::map(file.get(), size_t(status.st_size)) : nullptr;
  if (!image || sha256(image->bytes()) != digest) {
    unlink(path.c_str());
    return nullptr;
  }
  // The time of last use, by which the keeper chooses.
  futimens(file.get(), nullptr);
  return image;
}

bool ModuleCache::insert(std::string_view tenant, const Digest& digest, std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > settings_.bytes_max) return false;
  fs::path path = object(tenant, digest);
  struct stat status {};
  // A file of another size was changed; the right one replaces it.
  if (lstat(path.c_str(), &status) == 0 && uint64_t(status.st_size) == bytes.size()) {
    utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    return true;
  }
  prepare(tenant);
  fs::path temporary = write_temporary(path.parent_path(), bytes);
  if (temporary.empty()) return false;
  if (rename(temporary.c_str(), path.c_str()) == 0) return true;
  unlink(temporary.c_str());
  return false;
}

// Empty: the file could not be written.
fs::path ModuleCache::write_temporary(const fs::path& folder, std::span<const std::byte> bytes) {
  // Numbers a temporary file of this process; nothing else depends on its order.
  static std::atomic<uint64_t> counter{0};
  fs::path temporary = folder / (std::string(kTemporaryPrefix) + std::to_string(getpid()) + "." +
                                 std::to_string(counter.fetch_add(1, std::memory_order_relaxed)));
  OwnedDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return {};
  // Not synced: after a crash the digest distinguishes a torn file from a good one.
  if (write_all(file.get(), bytes)) return temporary;
  unlink(temporary.c_str());
  return {};
}

}  // namespace gpuwire::server
