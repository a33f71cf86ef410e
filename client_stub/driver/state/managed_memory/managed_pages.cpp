#include "client_stub/driver/state/managed_memory/managed_pages.hpp"

#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "client_stub/session/file_limit.hpp"
#include "protocol/transport/own_descriptor.hpp"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // Linux 4.17; older kernels take it as a hint, which map() notices
#endif

namespace gpuwire::client {
namespace {

// One shared memory file backs all segments; its offsets are never reused, and unmapped parts are punched out. The
// program may close the descriptor and open another file under its number. The object therefore checks that the file is
// still the same, and otherwise makes another one.
class SharedFile {
 public:
  // Returns a descriptor with room at `offset`, or -1. `file` becomes the file's number.
  int extend(uint64_t bytes, uint64_t& offset, uint64_t& file) noexcept {
    if (current() < 0 && !make()) return -1;
    if (bytes > INT64_MAX - size_ || !may_grow_to(size_ + bytes)) return -1;
    if (ftruncate(file_.get(), off_t(size_ + bytes)) != 0) return -1;
    offset = size_;
    file = number_;
    size_ += bytes;
    return file_.get();
  }
  // Returns the descriptor of file number `file`, or -1 if it is closed.
  int descriptor(uint64_t file) noexcept { return file == number_ ? current() : -1; }

 private:
  int current() noexcept { return file_.is_ours() ? file_.get() : -1; }
  bool make() noexcept {
    file_ = transport::OwnDescriptor(memfd_create("gpuwire-managed", MFD_CLOEXEC));
    if (!file_) return false;
    size_ = 0;
    ++number_;
    return true;
  }

  transport::OwnDescriptor file_;
  uint64_t size_ = 0, number_ = 0;
};

SharedFile& shared_file() noexcept {
  static SharedFile* const file = new SharedFile;  // never destroyed: the program's last exit handlers may still map
  return *file;
}

int protection(PageAccess access) noexcept {
  return access == PageAccess::none ? PROT_NONE : access == PageAccess::read ? PROT_READ : PROT_READ | PROT_WRITE;
}

}  // namespace

MappedPages::Result MappedPages::map(uint64_t begin, uint64_t end, PageAccess access) noexcept {
  uint64_t bytes = end - begin;
  int descriptor = shared_file().extend(bytes, file_offset_, file_);
  if (descriptor < 0) return Result::no_memory;
  void* wanted = reinterpret_cast<void*>(begin);
  void* theirs = mmap(wanted, bytes, protection(access), MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, descriptor,
                      off_t(file_offset_));
  if (theirs != wanted) {
    if (theirs != MAP_FAILED) munmap(theirs, bytes);
    return Result::taken;
  }
  void* ours =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, off_t(file_offset_));
  if (ours == MAP_FAILED) {
    munmap(theirs, bytes);
    return Result::no_memory;
  }
  // A child would share the memory with its parent; natively it does not have the memory.
  madvise(theirs, bytes, MADV_DONTFORK);
  madvise(ours, bytes, MADV_DONTFORK);
  begin_ = begin;
  bytes_ = bytes;
  ours_ = static_cast<std::byte*>(ours);
  return Result::made;
}

MappedPages::~MappedPages() {
  if (!ours_) return;
  munmap(reinterpret_cast<void*>(begin_), bytes_);
  munmap(ours_, bytes_);
  int descriptor = shared_file().descriptor(file_);
  if (descriptor >= 0)
    static_cast<void>(
        fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(file_offset_), off_t(bytes_)));
}

bool MappedPages::protect(uint64_t offset, uint64_t bytes, PageAccess access) noexcept {
  if (offset >= bytes_) return false;
  // Callers pass whole chunks; the last chunk may be shorter.
  bytes = std::min(bytes, bytes_ - offset);
  if (mprotect(reinterpret_cast<void*>(begin_ + offset), bytes, protection(access)) == 0) return true;
  if (access != PageAccess::none) return false;
  // The process has as many mappings as the system permits. Closing the whole segment needs no further mapping; chunks
  // that are closed too early are opened again.
  return mprotect(reinterpret_cast<void*>(begin_), bytes_, PROT_NONE) == 0;
}

bool MappedPages::touched(uint64_t offset, uint64_t& begin, uint64_t& end) noexcept {
  begin = offset;
  end = bytes_;
  int descriptor = shared_file().descriptor(file_);
  if (descriptor < 0) return offset < bytes_;
  off_t data = lseek(descriptor, off_t(file_offset_ + offset), SEEK_DATA);
  if (data < 0 || uint64_t(data) >= file_offset_ + bytes_) return false;
  off_t hole = lseek(descriptor, data, SEEK_HOLE);
  begin = uint64_t(data) - file_offset_;
  if (hole > data) end = std::min(uint64_t(hole) - file_offset_, bytes_);
  return true;
}

}  // namespace gpuwire::client
