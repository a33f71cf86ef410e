#include "client_stub/driver/state/host_memory/memory_rights.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "client_stub/driver/state/host_memory/host_regions.hpp"

namespace gpuwire::client {
namespace {

// MADV_POPULATE_READ and MADV_POPULATE_WRITE, of Linux 5.14.
constexpr int kPopulateRead = 22, kPopulateWrite = 23;

// 0: all pages of the range are mapped and permit the use. EINVAL: they do not, or the system lacks the flag.
int populate(uint64_t address, uint64_t bytes, Use use) noexcept {
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t begin = address & ~(kPageBytes - 1);
  while (madvise(reinterpret_cast<void*>(begin), address + bytes - begin,
                 use == Use::reading ? kPopulateRead : kPopulateWrite) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

bool knows_populate() noexcept {
  static const bool knows = [] {
    const char here = 0;
    return populate(reinterpret_cast<uint64_t>(&here), 1, Use::reading) == 0;
  }();
  return knows;
}

// The process's memory as a file, whose reads and writes ignore the rights of private mappings.
int open_memory(int flags) noexcept { return ::open("/proc/self/mem", flags | O_CLOEXEC); }

// Returns the number of bytes that were moved before the first failure. `move` is pread() or pwrite().
template <class Move>
size_t move_all(size_t bytes, Move move) noexcept {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t moved = move(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) break;
    done += size_t(moved);
  }
  return done;
}

struct Mapping {
  uint64_t begin = 0, end = 0;
  bool readable = false, writable = false;

  bool allows(Use use) const noexcept { return use == Use::reading ? readable : writable; }
};

// A line of /proc/self/maps, from its beginning: "55d0c000-55d0d000 rw-p ...".
std::optional<Mapping> parse(std::string_view line) noexcept {
  Mapping mapping;
  const char* const last = line.data() + line.size();
  auto begin = std::from_chars(line.data(), last, mapping.begin, 16);
  if (begin.ec != std::errc() || begin.ptr == last || *begin.ptr != '-') return std::nullopt;
  auto end = std::from_chars(begin.ptr + 1, last, mapping.end, 16);
  if (end.ec != std::errc() || last - end.ptr < 3) return std::nullopt;
  mapping.readable = end.ptr[1] == 'r';
  mapping.writable = end.ptr[2] == 'w';
  return mapping;
}

// PROCMAP_QUERY, as <linux/fs.h> of Linux 6.11 defines it.
struct MappingQuery {
  uint64_t size;
  uint64_t query_flags;
  uint64_t query_addr;
  uint64_t vma_start, vma_end;
  uint64_t vma_flags;
  uint64_t vma_page_size, vma_offset, inode;
  uint32_t dev_major, dev_minor;
  uint32_t vma_name_size, build_id_size;
  uint64_t vma_name_addr, build_id_addr;
};
constexpr unsigned long kMappingQuery = _IOWR('f', 17, MappingQuery);
constexpr uint64_t kReadable = 0x01, kWritable = 0x02, kCoveringOrNext = 0x10;

}  // namespace

std::optional<bool> allowed_by_query(int mappings, uint64_t address, uint64_t bytes, Use use) noexcept {
  for (uint64_t at = address; at < address + bytes;) {
    MappingQuery query{};
    query.size = sizeof query;
    query.query_flags = kCoveringOrNext;
    query.query_addr = at;
    if (::ioctl(mappings, kMappingQuery, &query) != 0) {
      if (errno == ENOENT) return true;  // no mapping from here on
      return std::nullopt;
    }
    if (query.vma_start >= address + bytes) return true;
    if (!(query.vma_flags & (use == Use::reading ? kReadable : kWritable))) return false;
    at = query.vma_end;
  }
  return true;
}

bool allowed_by_list(int mappings, uint64_t address, uint64_t bytes, Use use) noexcept {
  char text[16 * 1024];  // a line has a path of at most 4096 bytes
  size_t held = 0;
  bool allowed = true, over = false;
  for (ssize_t got = 0; !over && (got = ::read(mappings, text + held, sizeof text - held)) > 0;) {
    held += size_t(got);
    const std::string_view all(text, held);
    size_t at = 0;
    for (size_t end = 0; !over && (end = all.find('\n', at)) != std::string_view::npos; at = end + 1) {
      const auto mapping = parse(all.substr(at, end - at));
      if (!mapping || mapping->end <= address) continue;
      over = mapping->begin >= address + bytes;
      if (!over) allowed = allowed && mapping->allows(use);
      over = over || !allowed;
    }
    if (at == 0 && held == sizeof text) break;  // not a line of the kernel's
    std::memmove(text, text + at, held - at);
    held -= at;
  }
  return allowed;
}

namespace {

// Returns true if the system cannot answer.
bool is_allowed(uint64_t address, uint64_t bytes, Use use) noexcept {
  const int file = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  const std::optional<bool> known = allowed_by_query(file, address, bytes, use);
  const bool allowed = known ? *known : allowed_by_list(file, address, bytes, use);
  ::close(file);
  return allowed;
}

}  // namespace

bool is_usable(uint64_t address, uint64_t bytes, Use use) noexcept {
  if (!knows_populate()) return is_mapped(address, bytes);
  const int error = populate(address, bytes, use);
  // populate() does not fault in pages of a device, whatever their rights.
  return error == 0 || (error == EINVAL && is_allowed(address, bytes, use));
}

bool read_without_rights(uint64_t address, std::span<std::byte> out) noexcept {
  const int file = open_memory(O_RDONLY);
  if (file < 0) return false;
  const size_t read = move_all(out.size(), [&](size_t done) {
    return ::pread(file, out.data() + done, out.size() - done, off_t(address + done));
  });
  ::close(file);
  return read == out.size();
}

bool write_without_rights(uint64_t address, std::span<const std::byte> bytes, std::span<uint8_t> mask) noexcept {
  const int file = open_memory(O_WRONLY);
  if (file < 0) return false;
  auto marked = [&](size_t at) { return (mask[at / 8] >> (at % 8) & 1) != 0; };
  bool all = true;
  for (size_t first = 0, end = 0; all && first < bytes.size(); first = end) {
    end = first + 1;
    if (!marked(first)) continue;
    while (end < bytes.size() && marked(end)) ++end;
    const size_t written = move_all(end - first, [&](size_t done) {
      return ::pwrite(file, bytes.data() + first + done, end - first - done, off_t(address + first + done));
    });
    for (size_t at = first; at < first + written; ++at) mask[at / 8] &= uint8_t(~(1u << at % 8));
    all = written == end - first;
  }
  ::close(file);
  return all;
}

bool may_be_written(uint64_t address, uint64_t bytes) noexcept { return is_allowed(address, bytes, Use::writing); }

}  // namespace gpuwire::client
