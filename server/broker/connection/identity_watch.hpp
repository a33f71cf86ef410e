// IdentityWatch is the broker's view of the identity folder: it notices changes, has the valid credentials, and opens
// descriptors for the login process.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <sys/stat.h>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/ipc/message.hpp"
#include "server/identity/register.hpp"

namespace gpuwire::server {

// The broker's thread only. Reads the register, never a key.
class IdentityWatch {
 public:
  // `changed`: called after one of the files was replaced and credentials() was read again. It may destroy the watch.
  IdentityWatch(boost::asio::io_context& io, std::filesystem::path directory, std::function<void()> changed);

  // The error names the file and the reason.
  tl::expected<void, std::string> start();
  const std::filesystem::path& directory() const { return directory_; }

  // Checks the files, and calls `changed` before it returns if one has changed. It is cheap and called before each
  // decision, so that a change by `gpuwire admin` applies at once, whether or not the kernel has reported it yet.
  void refresh();
  const Register& credentials() const { return credentials_; }
  // Opens the files for the login process.
  tl::expected<ipc::Identity, std::string> open_files() const;

 private:
  struct Stamp {
    dev_t device = 0;
    ino_t file = 0;
    int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  // The number of files of ipc::Identity.
  static constexpr size_t kFileCount = 4;
  using Stamps = std::array<Stamp, kFileCount>;
  Stamps stamps() const;
  tl::expected<void, std::string> read();
  void listen();

  const std::filesystem::path directory_;
  const std::function<void()> changed_;
  // Inotify; without it refresh() alone notices changes.
  boost::asio::posix::stream_descriptor changes_;
  Stamps read_{};
  Register credentials_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
