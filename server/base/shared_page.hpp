// Memory that processes share: one structure in a memfd, which a process passes on as a descriptor.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tl/expected.hpp>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// The first words of each page, written before another process gets the page.
struct PageHead {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t bytes = 0;
};

// A page mapped into this process. The destructor unmaps it. `Page` begins with a PageHead called head, has the same
// meaning when all other words are zero, and has kMagic, kVersion and, for errors, kName. A reader copies another
// process's writes, then checks them, then uses them; this class does so only for the head, which it reads once.
template <class Page>
class SharedPage {
 public:
  // Makes a new page with a sealed size: if one end could shorten the file, the other would die of SIGBUS. The error
  // names the call.
  static tl::expected<SharedPage, std::string> create();
  // Maps a page that this end has received. The error describes the fault.
  static tl::expected<SharedPage, std::string> map(OwnedDescriptor descriptor);
  // Maps a page that this end may have received. Without a descriptor, the result is no page.
  static tl::expected<SharedPage, std::string> map_if_any(OwnedDescriptor descriptor) {
    if (!descriptor) return SharedPage();
    return map(std::move(descriptor));
  }

  SharedPage() = default;
  SharedPage(SharedPage&& other) noexcept
      : page_(std::exchange(other.page_, nullptr)), descriptor_(std::move(other.descriptor_)) {}
  SharedPage& operator=(SharedPage&& other) noexcept {
    std::swap(page_, other.page_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~SharedPage() {
    if (page_) ::munmap(page_, kBytes);
  }

  Page* get() const { return page_; }
  Page* operator->() const { return page_; }
  Page& operator*() const { return *page_; }
  // To be handed on.
  int descriptor() const { return descriptor_.get(); }

 private:
  static_assert(std::is_standard_layout_v<Page> && std::is_trivially_destructible_v<Page>);
  static constexpr size_t kBytes = (sizeof(Page) + 4095) & ~size_t(4095);

  static tl::unexpected<std::string> failed(const char* call) {
    return tl::unexpected(fmt::format("{}: {}: {}", Page::kName, call, std::strerror(errno)));
  }
  // Maps the page. False: errno has the reason.
  bool map_memory() {
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
    if (memory == MAP_FAILED) return false;
    page_ = static_cast<Page*>(memory);
    return true;
  }

  Page* page_ = nullptr;
  OwnedDescriptor descriptor_;
};

template <class Page>
tl::expected<SharedPage<Page>, std::string> SharedPage<Page>::create() {
  SharedPage page;
  page.descriptor_.reset(
      ::memfd_create(fmt::format("gpuwire {}", Page::kName).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!page.descriptor_) return failed("memfd_create");
  if (::ftruncate(page.descriptor_.get(), off_t(kBytes)) != 0) return failed("ftruncate");
  if (::fcntl(page.descriptor_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed("sealing");
  if (!page.map_memory()) return failed("mmap");
  page->head = {Page::kMagic, Page::kVersion, uint32_t(sizeof(Page))};
  return page;
}

template <class Page>
tl::expected<SharedPage<Page>, std::string> SharedPage<Page>::map(OwnedDescriptor descriptor) {
  SharedPage page;
  page.descriptor_ = std::move(descriptor);
  struct stat facts {};
  if (::fstat(page.descriptor_.get(), &facts) != 0) return failed("fstat");
  if (size_t(facts.st_size) != kBytes)
    return tl::unexpected(fmt::format("{}: {} bytes instead of {}", Page::kName, facts.st_size, kBytes));
  if (!page.map_memory()) return failed("mmap");
  const PageHead head = page->head;
  if (head.magic != Page::kMagic || head.bytes != sizeof(Page))
    return tl::unexpected(fmt::format("{}: it is another one", Page::kName));
  if (head.version != Page::kVersion)
    return tl::unexpected(fmt::format("{}: version {} instead of {}", Page::kName, head.version, Page::kVersion));
  return page;
}

}  // namespace gpuwire::server
