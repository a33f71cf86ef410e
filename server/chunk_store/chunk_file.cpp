#include "server/chunk_store/chunk_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

namespace gpuwire::server {
namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t index_bytes(size_t slots) {
  return (slots * sizeof(ChunkFile::Entry) + kPageBytes - 1) / kPageBytes * kPageBytes;
}

uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

bool read_all(int file, void* out, size_t bytes, uint64_t at) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = ::pread(file, static_cast<std::byte*>(out) + done, bytes - done, off_t(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += size_t(got);
  }
  return true;
}

bool write_all(int file, const void* from, size_t bytes, uint64_t at) {
  for (size_t done = 0; done < bytes;) {
    ssize_t put = ::pwrite(file, static_cast<const std::byte*>(from) + done, bytes - done, off_t(at + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += size_t(put);
  }
  return true;
}

}  // namespace

size_t ChunkFile::slots_of(uint64_t bytes_max) {
  size_t slots = size_t(bytes_max / (wire::kChunkBytes + sizeof(Entry))) / kSlotsPerSet * kSlotsPerSet;
  while (slots && file_bytes(slots) > bytes_max) slots -= kSlotsPerSet;
  return slots;
}

uint64_t ChunkFile::file_bytes(size_t slots) { return index_bytes(slots) + uint64_t(slots) * wire::kChunkBytes; }

tl::expected<ChunkFile, std::string> ChunkFile::open(OwnedDescriptor file) {
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return tl::unexpected(fmt::format("fstat: {}", std::strerror(errno)));
  size_t slots = slots_of(uint64_t(std::max<off_t>(facts.st_size, 0)));
  if (slots == 0) return tl::unexpected(fmt::format("a chunk store of {} bytes", facts.st_size));
  return ChunkFile(std::move(file), slots / kSlotsPerSet);
}

uint64_t ChunkFile::place_of(size_t slot) const { return index_bytes(slots()) + uint64_t(slot) * wire::kChunkBytes; }

size_t ChunkFile::first_slot(const digest::Digest& digest) const {
  uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof number);
  return size_t(number % sets_) * kSlotsPerSet;
}

bool ChunkFile::read_set(size_t first, Set& set) const {
  return read_all(file_.get(), set, sizeof set, first * sizeof(Entry));
}

bool ChunkFile::write_entry(size_t slot, const Entry& entry) const {
  return write_all(file_.get(), &entry, sizeof entry, slot * sizeof(Entry));
}

bool ChunkFile::find(const digest::Digest& digest, Found& found) const {
  Set set;
  size_t first = first_slot(digest);
  if (!read_set(first, set)) return false;
  for (size_t i = 0; i < kSlotsPerSet; ++i) {
    if (set[i].bytes == 0 || set[i].bytes > wire::kChunkBytes || set[i].digest != digest) continue;
    found = {first + i, set[i]};
    return true;
  }
  return false;
}

bool ChunkFile::holds(const digest::Digest& digest) const {
  Found found;
  return find(digest, found);
}

bool ChunkFile::read(const digest::Digest& digest, std::span<std::byte> out) const {
  Found found;
  if (!find(digest, found) || found.entry.bytes != out.size()) return false;
  if (!read_all(file_.get(), out.data(), out.size(), place_of(found.slot))) return false;
  found.entry.used_ns = now_ns();
  write_entry(found.slot, found.entry);
  return true;
}

bool ChunkFile::write(const digest::Digest& digest, std::span<const std::byte> chunk) const {
  if (chunk.empty() || chunk.size() > wire::kChunkBytes) return true;
  Set set;
  size_t first = first_slot(digest);
  if (!read_set(first, set)) return false;
  size_t place = 0;
  for (size_t i = 0; i < kSlotsPerSet; ++i) {
    if (set[i].bytes == chunk.size() && set[i].digest == digest) {
      set[i].used_ns = now_ns();
      return write_entry(first + i, set[i]);
    }
    auto age = [&](size_t one) { return set[one].bytes == 0 ? 0 : set[one].used_ns; };
    if (age(i) < age(place)) place = i;
  }
  const size_t slot = first + place;
  // An entry is removed before its bytes are overwritten, and a new entry is written after its bytes.
  return write_entry(slot, {}) && write_all(file_.get(), chunk.data(), chunk.size(), place_of(slot)) &&
         write_entry(slot, {.digest = digest, .bytes = uint32_t(chunk.size()), .used_ns = now_ns()});
}

void ChunkFile::forget(const digest::Digest& digest) const {
  if (Found found; find(digest, found)) write_entry(found.slot, {});
}

}  // namespace gpuwire::server
