#include "client_stub/driver/state/host_memory/memory_rights.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace gpuwire::client {
namespace {

constexpr size_t kPages = 6;

// Adjacent pages: some writable, others read-only, and one unmapped.
struct Pages {
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  std::byte* const begin = static_cast<std::byte*>(
      ::mmap(nullptr, kPages* page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Pages() {
    REQUIRE(begin != MAP_FAILED);
    REQUIRE(::mprotect(begin + 2 * page, page, PROT_READ) == 0);
    REQUIRE(::munmap(begin + 4 * page, page) == 0);
  }
  ~Pages() { ::munmap(begin, kPages * page); }
  uint64_t at(size_t number, size_t offset = 0) const {
    return reinterpret_cast<uint64_t>(begin) + number * page + offset;
  }
};

}  // namespace

TEST_CASE("memory may be written where all of its mappings may, whichever way the system is asked") {
  Pages pages;
  struct Row {
    size_t first, offset, bytes;
    bool writable;
  };
  const size_t page = pages.page;
  for (const Row& row : {Row{0, 0, 2 * page, true}, Row{0, 8, 2 * page - 8, true}, Row{0, 0, 2 * page + 1, false},
                         Row{2, 0, page, false}, Row{2, page - 1, 1, false}, Row{3, 0, page, true},
                         Row{1, 0, 3 * page, false}, Row{3, 0, 3 * page, true}, Row{4, 0, page, true}}) {
    CAPTURE(row.first);
    CAPTURE(row.bytes);
    const uint64_t address = pages.at(row.first, row.offset);
    CHECK(may_be_written(address, row.bytes) == row.writable);
    const int list = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    REQUIRE(list >= 0);
    CHECK(allowed_by_list(list, address, row.bytes, Use::writing) == row.writable);
    // Older kernels do not have the query.
    if (auto known = allowed_by_query(list, address, row.bytes, Use::writing)) CHECK(*known == row.writable);
    ::close(list);
  }
}

TEST_CASE("a file that is no list of mappings answers no question") {
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  CHECK_FALSE(allowed_by_query(file, 0x1000, 1, Use::writing));
  CHECK(allowed_by_list(file, 0x1000, 1, Use::writing));
  ::close(file);
}

TEST_CASE("memory is usable where an ordinary access would succeed, and private memory is used without rights, too") {
  Pages pages;
  const size_t page = pages.page;
  REQUIRE(::mprotect(pages.begin + 3 * page, page, PROT_NONE) == 0);
  CHECK(is_usable(pages.at(0, 8), 2 * page - 8, Use::writing));
  CHECK(is_usable(pages.at(0), 3 * page, Use::reading));
  CHECK_FALSE(is_usable(pages.at(0), 3 * page, Use::writing));
  CHECK_FALSE(is_usable(pages.at(2), 2 * page, Use::reading));
  CHECK_FALSE(is_usable(pages.at(4), 1, Use::reading));
  const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  for (size_t number : {0, 2, 3}) {
    CAPTURE(number);
    std::array<std::byte, 3> read{};
    std::array<uint8_t, 1> mask{0b111};
    REQUIRE(write_without_rights(pages.at(number, 10), bytes, mask));
    CHECK(mask[0] == 0);
    REQUIRE(read_without_rights(pages.at(number, 10), read));
    CHECK(read == bytes);
  }
  std::array<std::byte, 3> read{};
  CHECK_FALSE(read_without_rights(pages.at(4), read));
  std::array<uint8_t, 1> mask{0b111};
  CHECK_FALSE(write_without_rights(pages.at(4), bytes, mask));
  CHECK(mask[0] == 0b111);
}

TEST_CASE("Bytes are written without rights one by one: those between them, and behind one that cannot be, stay") {
  Pages pages;
  std::array<std::byte, 16> bytes;
  bytes.fill(std::byte{9});
  // The page behind the first eight bytes is unmapped.
  std::array<uint8_t, 2> mask{0b1011'0001, 0b0000'0011};
  CHECK_FALSE(write_without_rights(pages.at(4) - 8, bytes, mask));
  CHECK(mask == std::array<uint8_t, 2>{0, 0b11});
  const std::byte* memory = pages.begin + 4 * pages.page - 8;
  for (size_t at = 0; at < 8; ++at) {
    CAPTURE(at);
    CHECK(memory[at] == std::byte((0b1011'0001 >> at & 1) ? 9 : 0));
  }
}

TEST_CASE("memory behind the end of its file is not usable, nor is a shared mapping written without its rights") {
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  const int file = ::memfd_create("short", MFD_CLOEXEC);
  REQUIRE(::ftruncate(file, off_t(page)) == 0);
  void* mapped = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(mapped != MAP_FAILED);
  const auto address = reinterpret_cast<uint64_t>(mapped);
  CHECK(is_usable(address, page, Use::writing));
  CHECK_FALSE(is_usable(address, 2 * page, Use::reading));
  REQUIRE(::mprotect(mapped, page, PROT_READ) == 0);
  CHECK(is_usable(address, page, Use::reading));
  CHECK_FALSE(is_usable(address, page, Use::writing));
  std::array<uint8_t, 1> mask{1};
  CHECK_FALSE(write_without_rights(address, std::array{std::byte{1}}, mask));
  CHECK(mask[0] == 1);
  ::munmap(mapped, 2 * page);
  ::close(file);
}

}  // namespace gpuwire::client
