#include "server/gate/page/session_page.hpp"

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

constexpr size_t kMappedBytes = (sizeof(SessionPage) + 4095) & ~size_t(4095);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

tl::unexpected<std::string> failed(const char* call) {
  return tl::unexpected(fmt::format("session page: {}: {}", call, std::strerror(errno)));
}

void* map_shared(int descriptor) {
  return ::mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
}

}  // namespace

tl::expected<MappedPage, std::string> MappedPage::create() {
  MappedPage page;
  page.descriptor_.reset(::memfd_create("gpuwire session", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!page.descriptor_) return failed("memfd_create");
  if (::ftruncate(page.descriptor_.get(), off_t(kMappedBytes)) != 0) return failed("ftruncate");
  if (::fcntl(page.descriptor_.get(), F_ADD_SEALS, kSeals) != 0) return failed("sealing");
  void* memory = map_shared(page.descriptor_.get());
  if (memory == MAP_FAILED) return failed("mmap");
  page.page_ = new (memory) SessionPage;
  return page;
}

tl::expected<MappedPage, std::string> MappedPage::map(OwnedDescriptor descriptor) {
  struct stat facts {};
  if (::fstat(descriptor.get(), &facts) != 0) return failed("fstat");
  if (size_t(facts.st_size) != kMappedBytes)
    return tl::unexpected(fmt::format("session page: {} bytes instead of {}", facts.st_size, kMappedBytes));
  void* memory = map_shared(descriptor.get());
  if (memory == MAP_FAILED) return failed("mmap");
  MappedPage page;
  page.page_ = std::launder(static_cast<SessionPage*>(memory));
  page.descriptor_ = std::move(descriptor);
  if (page.page_->version != kPageVersion)
    return tl::unexpected(fmt::format("session page: version {} instead of {}", page.page_->version, kPageVersion));
  return page;
}

MappedPage& MappedPage::operator=(MappedPage&& other) noexcept {
  std::swap(page_, other.page_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

MappedPage::~MappedPage() {
  if (page_) ::munmap(page_, kMappedBytes);
}

}  // namespace gpuwire::server
