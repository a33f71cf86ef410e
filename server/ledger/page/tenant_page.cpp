#include "server/ledger/page/tenant_page.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace gpuwire::server {
namespace {

constexpr off_t kRecordBytes = kPageDevicesMax * sizeof(uint64_t);

TenantPage* map(int descriptor) {
  void* memory = ::mmap(nullptr, sizeof(TenantPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<TenantPage*>(memory);
}

tl::unexpected<std::string> failed(const char* what) {
  return tl::unexpected(fmt::format("tenant page: {}: {}", what, std::strerror(errno)));
}

}  // namespace

tl::expected<PageMapping, std::string> PageMapping::create() {
  OwnedDescriptor descriptor(::memfd_create("gpuwire-tenant", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) return failed("memfd_create");
  if (::ftruncate(descriptor.get(), sizeof(TenantPage)) != 0) return failed("ftruncate");
  // A worker that cut the file short would have the broker die of SIGBUS.
  if (::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return failed("seals");
  TenantPage* page = map(descriptor.get());
  if (!page) return failed("mmap");
  page->magic = kTenantPageMagic;
  page->version = kTenantPageVersion;
  page->bytes = sizeof(TenantPage);
  PageMapping mapping(page);
  mapping.descriptor_ = std::move(descriptor);
  return mapping;
}

tl::expected<PageMapping, std::string> PageMapping::open(int descriptor) {
  struct stat file {};
  if (::fstat(descriptor, &file) != 0) return failed("fstat");
  if (size_t(file.st_size) != sizeof(TenantPage))
    return tl::unexpected(fmt::format("tenant page: {} bytes instead of {}", file.st_size, sizeof(TenantPage)));
  TenantPage* page = map(descriptor);
  if (!page) return failed("mmap");
  PageMapping mapping(page);
  if (page->magic != kTenantPageMagic || page->version != kTenantPageVersion || page->bytes != sizeof(TenantPage))
    return tl::unexpected(std::string("tenant page: of another version"));
  return mapping;
}

tl::expected<PageMapping, std::string> PageMapping::adopt(OwnedDescriptor descriptor) {
  auto mapping = open(descriptor.get());
  if (mapping) mapping->descriptor_ = std::move(descriptor);
  return mapping;
}

tl::expected<AllowanceRecord, std::string> AllowanceRecord::create() {
  OwnedDescriptor descriptor(::memfd_create("gpuwire-allowances", MFD_CLOEXEC));
  if (!descriptor || ::ftruncate(descriptor.get(), kRecordBytes) != 0) return failed("memfd_create");
  return adopt(std::move(descriptor));
}

tl::expected<AllowanceRecord, std::string> AllowanceRecord::adopt(OwnedDescriptor descriptor) {
  struct stat file {};
  if (::fstat(descriptor.get(), &file) != 0 || file.st_size != kRecordBytes)
    return tl::unexpected(std::string("a tenant's allowances: of another size"));
  void* memory = ::mmap(nullptr, kRecordBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (memory == MAP_FAILED) return failed("mmap");
  return AllowanceRecord(static_cast<uint64_t*>(memory), std::move(descriptor));
}

AllowanceRecord::~AllowanceRecord() {
  if (bytes_) ::munmap(bytes_, kRecordBytes);
}

PageMapping::PageMapping(PageMapping&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)), descriptor_(std::move(other.descriptor_)) {}

PageMapping& PageMapping::operator=(PageMapping&& other) noexcept {
  std::swap(page_, other.page_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

PageMapping::~PageMapping() {
  if (page_) ::munmap(page_, sizeof(TenantPage));
}

uint64_t used_by_all(const TenantPage& page, uint32_t column) {
  uint32_t slots = std::min(page.slots.load(), kPageSlotsMax);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < slots; ++i) sum += bounded(page.column[column].used[i].load());
  return bounded(sum);
}

// A reserving worker adds to its word and then reads the allowance; here the allowance is written and then the words
// are read. All of these are sequentially consistent, so either the sum below has what the worker added, or the worker
// sees the lower allowance and takes it back.
uint64_t lower_allowance(TenantPage& page, uint32_t column, uint64_t target) {
  std::atomic<uint64_t>& allowance = page.column[column].allowance;
  uint64_t before = allowance.load();
  if (target >= before) return before;
  allowance.store(target);
  uint64_t used = used_by_all(page, column);
  if (used <= target) return target;
  uint64_t held = std::min(used, before);
  allowance.store(held);
  return held;
}

void clear_slot(TenantPage& page, uint32_t slot) {
  for (PageColumn& column : page.column) {
    uint64_t left = std::min(bounded(column.shared[slot].load()), bounded(column.used[slot].load()));
    // First there, then gone here: the sum is too large for a moment and never too small.
    column.used[kLeftSlot].store(bounded(bounded(column.used[kLeftSlot].load()) + left));
    column.used[slot].store(0);
    column.shared[slot].store(0);
    column.peak[slot].store(0);
  }
  page.slot[slot].imports.store(0);
  page.slot[slot].client_pid.store(0);
  page.slot[slot].session.store(0);
  uint32_t its_turn = slot + 1;
  page.turn.compare_exchange_strong(its_turn, 0);
}

}  // namespace gpuwire::server
