// The broker's side of the cache: keeps it within its bound and clears away what workers have left. No worker can reach
// what it does.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <thread>

namespace gpuwire::server {

// Images kept at once, whatever they take: each costs an inode and a part of each look.
inline constexpr uint64_t kCachedImagesMax = 65536;

// What the driver is told to keep of a tenant's compiled code, and when the keeper finds that it has not kept to it, or
// that it was not the driver: a folder of so much, of so many files or with folders so deep in it is emptied.
inline constexpr uint64_t kDriverCompiledBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kCompiledBytesMax = 2 * kDriverCompiledBytesMax;
inline constexpr size_t kCompiledFilesMax = 65536;
inline constexpr int kCompiledDepthMax = 4;
// Entries of a folder that are removed in one look; the next one goes on.
inline constexpr size_t kRemovedPerLookMax = 1 << 20;

struct CacheContents {
  uint64_t bytes = 0, images = 0;
};

// Removes the images that were used longest ago, of whichever tenant, until `bytes_max` and kCachedImagesMax are kept
// with some to spare, and what processes that are gone have left: half-written files, folders and links of their own.
// Empties folders of compiled code with more than `compiled_bytes_max` in them. Gives what images are there afterwards.
// Any number of workers may use the cache meanwhile.
CacheContents keep_cache(const std::filesystem::path& directory, uint64_t bytes_max,
                         uint64_t compiled_bytes_max = kCompiledBytesMax);

// A thread that does so at its start and whenever something in the cache has changed, looked at every kCacheLookS
// seconds, and at each kLooksAtCompiled-th look: what grows deep in a folder changes none that is looked at.
class CacheKeeper {
 public:
  CacheKeeper(std::filesystem::path directory, uint64_t bytes_max);
  ~CacheKeeper();
  CacheKeeper(const CacheKeeper&) = delete;
  CacheKeeper& operator=(const CacheKeeper&) = delete;

 private:
  void run();

  const std::filesystem::path directory_;
  const uint64_t bytes_max_;
  std::mutex mutex_;
  std::condition_variable ending_changed_;
  bool ending_ = false;  // under mutex_
  std::thread thread_;
};

inline constexpr uint32_t kCacheLookS = 2;
inline constexpr unsigned kLooksAtCompiled = 30;

}  // namespace gpuwire::server
