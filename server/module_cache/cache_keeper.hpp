// The broker's part of the cache: keeps it within its limit and removes files of dead workers. No worker can influence
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <thread>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

// The largest number of images, whatever their size: each costs an inode and time of each check.
inline constexpr uint64_t kCachedImagesMax = 65536;

// The driver's bound for a tenant's compiled code. If the driver exceeds it, or another process has written the files,
// the keeper empties a folder of this size, of this many files or with folders this deep in it.
inline constexpr uint64_t kDriverCompiledBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kCompiledBytesMax = 2 * kDriverCompiledBytesMax;
inline constexpr size_t kCompiledFilesMax = 65536;
inline constexpr int kCompiledDepthMax = 4;
// The number of a folder's entries that one check removes; the next check continues.
inline constexpr size_t kRemovedPerPollMax = 1 << 20;

struct CacheContents {
  uint64_t bytes = 0, images = 0;
};

// Removes images until the cache is somewhat below `bytes_max` and kCachedImagesMax: each time the least recently used
// image of the largest tenant, so that a larger tenant never evicts images of a smaller one. Also removes what ended
// processes have left (partial files, folders, links), and empties folders of compiled code with more than
// `compiled_bytes_max`. Returns the remaining images. Any number of workers may use the cache meanwhile.
CacheContents keep_cache(const std::filesystem::path& directory, uint64_t bytes_max,
                         uint64_t compiled_bytes_max = kCompiledBytesMax);

// A thread that does so at its start, and when a check every kCachePollS seconds finds a change. At each
// kPollsAtCompiled-th check it does so in any case, because growth deep in a folder changes none of the checked
// folders.
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
  Condition ending_changed_;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

inline constexpr uint32_t kCachePollS = 2;
inline constexpr unsigned kPollsAtCompiled = 30;

}  // namespace gpuwire::server
