#include "server/chunk_store/chunk_store.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace gpuwire::server {

ChunkStore::ChunkStore(std::vector<ChunkFile> files, HostMemory* account, uint64_t uncharged_bytes, Counters counters)
    : files_(std::move(files)),
      counters_(std::move(counters)),
      parallel_(helpers_here(kChunkHelpersMax), kChunkPoll),
      charge_(account),
      uncharged_bytes_(uncharged_bytes) {}

ChunkStore::~ChunkStore() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

bool ChunkStore::holds(const digest::Digest& digest) const {
  return std::any_of(files_.begin(), files_.end(), [&](const ChunkFile& file) { return file.holds(digest); });
}

bool ChunkStore::fetch_one(const digest::Digest& digest, std::span<std::byte> out) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!files_[i].read(digest, out)) continue;
    if (digest::blake3(out, key()) != digest) {
      files_[i].forget(digest);
      continue;
    }
    for (size_t faster = 0; faster < i; ++faster) files_[faster].write(digest, out);
    return true;
  }
  return false;
}

std::vector<bool> ChunkStore::fetch(std::span<const digest::Digest> digests, std::span<std::byte> out) {
  std::vector<char> found(digests.size());  // not bool: several threads write
  auto chunk = [&](size_t i) {
    size_t at = i * wire::kChunkBytes;
    return out.subspan(at, std::min(wire::kChunkBytes, out.size() - at));
  };
  parallel_.run(digests.size(), [&](size_t i) { found[i] = fetch_one(digests[i], chunk(i)); });
  uint64_t chunks = 0, bytes = 0;
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i]) ++chunks, bytes += chunk(i).size();
  if (chunks) counters_.found(chunks, bytes);
  return {found.begin(), found.end()};
}

// If the bytes cannot be stored, a client sends them again next time.
void ChunkStore::keep(std::span<const std::byte> bytes) noexcept try {
  while (!bytes.empty()) {
    std::span<const std::byte> chunk = bytes.first(std::min(wire::kChunkBytes, bytes.size()));
    bytes = bytes.subspan(chunk.size());
    std::unique_ptr<std::byte[]> memory;
    {
      MutexLock lock(mutex_);
      if (ending_ || !charge_.grow(uncharged_bytes_)) return;
      uncharged_bytes_ = 0;
      if (!free_.empty()) {
        memory = std::move(free_.back());
        free_.pop_back();
      } else if (allocated_bytes_ + wire::kChunkBytes > kChunkQueueBytesMax || !charge_.grow(wire::kChunkBytes)) {
        return;
      } else {
        allocated_bytes_ += wire::kChunkBytes;
      }
    }
    if (!memory) memory = std::make_unique_for_overwrite<std::byte[]>(wire::kChunkBytes);
    std::memcpy(memory.get(), chunk.data(), chunk.size());
    MutexLock lock(mutex_);
    waiting_.push_back({std::move(memory), chunk.size()});
    if (!writer_.joinable()) writer_ = std::thread([this] { write_waiting(); });
    changed_.notify_all();
  }
} catch (const std::exception&) {  // no memory, no thread
}

void ChunkStore::write_waiting() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-chunks");
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Waiting chunk = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    std::span<const std::byte> bytes(chunk.memory.get(), chunk.bytes);
    digest::Digest digest = digest::blake3(bytes, key());
    bool written = false;
    for (const ChunkFile& file : files_) written |= file.write(digest, bytes);
    if (written) counters_.kept(bytes.size());
    lock.lock();
    busy_ = false;
    try {
      free_.push_back(std::move(chunk.memory));
    } catch (const std::exception&) {
      allocated_bytes_ -= wire::kChunkBytes;
      charge_.shrink(wire::kChunkBytes);
    }
    changed_.notify_all();
  }
}

void ChunkStore::finish() {
  MutexLock lock(mutex_);
  changed_.wait_for(lock.native(), kChunkQueueEnd, [this]() REQUIRES(mutex_) { return waiting_.empty() && !busy_; });
  ending_ = true;
  waiting_.clear();
  lock.unlock();
  changed_.notify_all();
}

}  // namespace gpuwire::server
