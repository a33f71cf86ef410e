#include "server/software_device/driver/checkpoint/device_storage.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "server/software_device/driver/call/driver_state.hpp"

namespace gpuwire::software_device {
namespace {

constexpr uint64_t kMovedAtOnce = uint64_t{1} << 20;
// Overwrites the heap's pieces during a checkpoint, so that a use of them is noticed.
constexpr int kLeft = 0xdb;

bool write_all(int file, const void* from, uint64_t bytes, uint64_t offset) {
  auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t done = pwrite(file, at, std::min(bytes, kMovedAtOnce), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done, offset += static_cast<uint64_t>(done), bytes -= static_cast<uint64_t>(done);
  }
  return true;
}

bool read_all(int file, void* to, uint64_t bytes, uint64_t offset) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t done = pread(file, at, std::min(bytes, kMovedAtOnce), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done, offset += static_cast<uint64_t>(done), bytes -= static_cast<uint64_t>(done);
  }
  return true;
}

bool move_between(int from, uint64_t from_offset, int to, uint64_t to_offset, uint64_t bytes) {
  std::vector<char> buffer(std::min(bytes, kMovedAtOnce));
  for (uint64_t done = 0; done < bytes; done += buffer.size()) {
    const uint64_t now = std::min<uint64_t>(bytes - done, buffer.size());
    if (!read_all(from, buffer.data(), now, from_offset + done) || !write_all(to, buffer.data(), now, to_offset + done))
      return false;
  }
  return true;
}

bool save_piece(const StoragePiece& piece, int file, uint64_t offset) {
  if (piece.kind == StoragePiece::Kind::file) return move_between(piece.file, 0, file, offset, piece.bytes);
  return write_all(file, piece.memory, piece.bytes, offset);
}

// Releases the memory of a piece. A file keeps its length, so that its mappings stay valid.
void let_go(const StoragePiece& piece) {
  switch (piece.kind) {
    case StoragePiece::Kind::pages:
      madvise(piece.memory, piece.mapped_bytes, MADV_DONTNEED);
      mprotect(piece.memory, piece.mapped_bytes, PROT_NONE);
      break;
    case StoragePiece::Kind::heap: std::memset(piece.memory, kLeft, piece.bytes); break;
    case StoragePiece::Kind::file:
      if (ftruncate(piece.file, 0) == 0 && ftruncate(piece.file, static_cast<off_t>(piece.bytes)) == 0) break;
      break;
  }
}

bool bring_back_piece(const StoragePiece& piece, int file, uint64_t offset) {
  if (piece.kind == StoragePiece::Kind::file) return move_between(file, offset, piece.file, 0, piece.bytes);
  const bool usable = piece.kind != StoragePiece::Kind::pages ||
                      mprotect(piece.memory, piece.mapped_bytes, PROT_READ | PROT_WRITE) == 0;
  return usable && read_all(file, piece.memory, piece.bytes, offset);
}

}  // namespace

void DeviceStorage::add(const void* owner, const StoragePiece& piece) {
  const MutexLock lock(mutex_);
  pieces_[owner] = piece;
}

void DeviceStorage::remove(const void* owner) {
  const MutexLock lock(mutex_);
  pieces_.erase(owner);
}

CUresult DeviceStorage::evict() {
  const MutexLock lock(mutex_);
  std::vector<Saved> saved;
  if (const CUresult result = save(saved); result != CUDA_SUCCESS) {
    drop_files();
    return result;
  }
  for (const Saved& one : saved) {
    let_go(one.piece);
    one.piece.device->discharge(one.piece.bytes);
  }
  saved_ = std::move(saved);
  return CUDA_SUCCESS;
}

CUresult DeviceStorage::save(std::vector<Saved>& saved) {
  std::map<const Device*, uint64_t> ends;
  for (const auto& [owner, piece] : pieces_) {
    int& file = files_.try_emplace(piece.device, -1).first->second;
    if (file < 0) file = memfd_create("gpuwire_software_checkpoint", MFD_CLOEXEC);
    uint64_t& end = ends[piece.device];
    if (file < 0 || !save_piece(piece, file, end)) return CUDA_ERROR_OUT_OF_MEMORY;
    saved.push_back({piece, end});
    end += piece.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceStorage::bring_back() {
  const MutexLock lock(mutex_);
  if (!charge(saved_)) return CUDA_ERROR_OUT_OF_MEMORY;
  bool whole = true;
  for (const Saved& one : saved_) whole = bring_back_piece(one.piece, files_.at(one.piece.device), one.offset) && whole;
  saved_.clear();
  drop_files();
  return whole ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

bool DeviceStorage::charge(std::vector<Saved>& saved) {
  for (size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].piece.device->charge(saved[i].piece.bytes)) continue;
    while (i-- > 0) saved[i].piece.device->discharge(saved[i].piece.bytes);
    return false;
  }
  return true;
}

void DeviceStorage::drop_files() {
  for (const auto& [device, file] : files_)
    if (file >= 0) close(file);
  files_.clear();
}

}  // namespace gpuwire::software_device
