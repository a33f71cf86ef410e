// PageCertificate is the broker's view of the web page's certificate: it opens the files for gpuwire-web, and notices
// when they are replaced.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <sys/types.h>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

struct PageFiles {
  std::filesystem::path certificate, key;
  // The authority of tenants' certificates; empty: visitors are not asked for one.
  std::filesystem::path authority;
};

// Precondition: the configuration has a web_certificate.
PageFiles page_files(const Configuration& configuration);

// Opened files, in the order of PageFiles; without an authority there are two.
using OpenPageFiles = std::vector<OwnedDescriptor>;

// Opens them, if they can be used now. The error names the key or the file, and the reason.
tl::expected<OpenPageFiles, std::string> open_page_files(const PageFiles& files);

// On the thread that runs the io_context.
class PageCertificate {
 public:
  // `renewed`: called after the files have been replaced by others that can be used; by others that cannot, a line in
  // the log says why, and descriptors() stay. The error: they cannot be used.
  static tl::expected<std::unique_ptr<PageCertificate>, std::string> open(boost::asio::io_context& io, PageFiles files,
                                                                          std::function<void()> renewed);

  const OpenPageFiles& descriptors() const { return open_; }

 private:
  struct Stamp {
    dev_t device = 0;
    ino_t file = 0;
    int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::array<Stamp, 3>;
  PageCertificate(boost::asio::io_context& io, PageFiles files, std::function<void()> renewed);
  Stamps stamps() const;
  void watch();
  void listen();
  void refresh();

  const PageFiles files_;
  const std::function<void()> renewed_;
  OpenPageFiles open_;
  Stamps read_{};
  // Inotify.
  boost::asio::posix::stream_descriptor changes_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
