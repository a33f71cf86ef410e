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
  std::filesystem::path directory;         // created with mode 0700; must be the user's own and nobody else's to write
  uint64_t bytes_max = uint64_t{8} << 30;  // of all images together (CacheKeeper keeps them so); no image may be larger
};

// In place of a folder: images are kept as long as a session only.
inline constexpr const char* kNoModuleCache = "none";

// $XDG_CACHE_HOME/gpuwire, for root without it /var/cache/gpuwire, else ~/.cache/gpuwire, else a folder of the user's
// below the temporary one.
std::filesystem::path default_module_cache_directory();

// Any thread and any number of processes on one directory. No tenant learns of another's images: each has files of its
// own, so that neither an answer nor its time depends on other tenants' images.
class ModuleCache {
 public:
  // Fails when the directory cannot be made or others may write it.
  static tl::expected<std::unique_ptr<ModuleCache>, std::string> open(ModuleCacheSettings settings);

  // An image that this tenant has inserted. Its digest has been checked; a file that has changed is removed and not
  // found.
  std::shared_ptr<const ModuleImage> find(std::string_view tenant, const Digest& digest);
  // Keeps an image, whose digest the caller has checked, for this tenant. False: it could not be written, or is larger
  // than all the cache may hold. Waits for nobody: making room is the keeper's, afterwards.
  bool insert(std::string_view tenant, const Digest& digest, std::span<const std::byte> bytes);

  // The one folder that find() and insert() need for this tenant; made when it is missing. All else may be out of reach
  // from then on.
  std::filesystem::path prepare(std::string_view tenant) const;

 private:
  explicit ModuleCache(ModuleCacheSettings settings) : settings_(std::move(settings)) {}
  std::filesystem::path folder_of(std::string_view tenant) const;
  std::filesystem::path object(std::string_view tenant, const Digest& digest) const;
  std::filesystem::path write_temporary(const std::filesystem::path& folder, std::span<const std::byte> bytes);

  ModuleCacheSettings settings_;
};

}  // namespace gpuwire::server
