// The broker's side of the cache: keeps it within its bound and removes the remains of workers. No worker can influence
// it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <thread>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

// Images kept at once, whatever they take: each costs an inode and a part of each look.
inline constexpr uint64_t kCachedImagesMax = 65536;

// The driver's bound for a tenant's compiled code. If the driver exceeds it, or another process has written the files,
// the keeper empties a folder of this size, of this many files or with folders this deep in it.
inline constexpr uint64_t kDriverCompiledBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kCompiledBytesMax = 2 * kDriverCompiledBytesMax;
inline constexpr size_t kCompiledFilesMax = 65536;
inline constexpr int kCompiledDepthMax = 4;
// Entries of a folder that are removed in one look; the next one goes on.
inline constexpr size_t kRemovedPerPollMax = 1 << 20;

struct CacheContents {
  uint64_t bytes = 0, images = 0;
};

// Removes images until `bytes_max` and kCachedImagesMax are kept with some to spare: each time the least recently used
// image of the largest tenant, so that a larger tenant evicts no smaller one. Also removes the remains of ended
// processes: half-written files, folders and links of their own. Empties folders of compiled code with more than
// `compiled_bytes_max` in them. Returns the images that exist afterwards. Any number of workers may use the cache
// meanwhile.
CacheContents keep_cache(const std::filesystem::path& directory, uint64_t bytes_max,
                         uint64_t compiled_bytes_max = kCompiledBytesMax);

// A thread that does so at its start and whenever something in the cache has changed, checked every kCachePollS
// seconds, and at each kPollsAtCompiled-th check: growth deep in a folder changes none of the folders that are checked.
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
  Mutex mutex_;
  std::condition_variable ending_changed_;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

inline constexpr uint32_t kCachePollS = 2;
inline constexpr unsigned kPollsAtCompiled = 30;

}  // namespace gpuwire::server
