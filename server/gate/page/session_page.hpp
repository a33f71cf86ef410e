// The memory behind a SessionPage.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "server/base/owned_descriptor.hpp"
#include "server/gate/page/page.hpp"

namespace gpuwire::server {

// A page mapped into this process, shared with whoever else has its descriptor.
class MappedPage {
 public:
  // Of a size that nobody can change, so that neither end finds memory missing. The error names the call.
  static tl::expected<MappedPage, std::string> create();
  // Of a descriptor that the other end has given. The error says what cannot be.
  static tl::expected<MappedPage, std::string> map(OwnedDescriptor descriptor);

  MappedPage() = default;
  MappedPage(MappedPage&& other) noexcept
      : page_(std::exchange(other.page_, nullptr)), descriptor_(std::move(other.descriptor_)) {}
  MappedPage& operator=(MappedPage&& other) noexcept;
  ~MappedPage();

  SessionPage* get() const { return page_; }
  SessionPage* operator->() const { return page_; }
  // For the other end.
  int descriptor() const { return descriptor_.get(); }

 private:
  SessionPage* page_ = nullptr;
  OwnedDescriptor descriptor_;
};

}  // namespace gpuwire::server
