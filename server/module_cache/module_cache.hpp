// Program images on disk, named by their SHA-256, kept across sessions and shared by the worker processes of a host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "server/module_cache/digest.hpp"
#include "server/module_cache/module_image.hpp"

namespace gpuwire::server {

// The prefix of files that are being written, beside complete ones.
inline constexpr std::string_view kTemporaryPrefix = ".new-";

struct ModuleCacheSettings {
  // Created with mode 0700; must belong to the user, and not be writable by others.
  std::filesystem::path directory;
  // The bound of all images together (CacheKeeper enforces it); no image may be larger.
  uint64_t bytes_max = uint64_t{8} << 30;
};

// Stands in place of a folder: images are stored only during a session.
inline constexpr const char* kNoModuleCache = "none";

// Returns $XDG_CACHE_HOME/gpuwire; without it /var/cache/gpuwire for root, else ~/.cache/gpuwire, else a folder of the
// user below the temporary folder.
std::filesystem::path default_module_cache_directory();

// Any thread, and any number of processes on one directory. A tenant cannot detect another's images: each tenant has
// its own files, so that neither an answer nor its time depends on other tenants' images.
class ModuleCache {
 public:
  // Fails if the directory cannot be made, or others may write to it.
  static tl::expected<std::unique_ptr<ModuleCache>, std::string> open(ModuleCacheSettings settings);

  // Finds an image that this tenant has inserted, and checks its digest. A changed file is removed, and counts as not
  // found.
  std::shared_ptr<const ModuleImage> find(std::string_view tenant, const Digest& digest);
  // Stores an image for this tenant, whose digest the caller has checked. False: the image could not be written, or is
  // larger than the cache's limit. Does not wait for an eviction, which the keeper makes afterwards.
  bool insert(std::string_view tenant, const Digest& digest, std::span<const std::byte> bytes);

  // Returns the only folder that find() and insert() need for this tenant, and makes it if it is missing. The process
  // may then give up access to all other folders.
  std::filesystem::path prepare(std::string_view tenant) const;

 private:
  explicit ModuleCache(ModuleCacheSettings settings) : settings_(std::move(settings)) {}
  std::filesystem::path folder_of(std::string_view tenant) const;
  std::filesystem::path object(std::string_view tenant, const Digest& digest) const;
  std::filesystem::path write_temporary(const std::filesystem::path& folder, std::span<const std::byte> bytes);

  ModuleCacheSettings settings_;
};

}  // namespace gpuwire::server
