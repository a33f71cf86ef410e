// The broker's view of the identity folder: notices changes, has the valid credentials, and opens descriptors for the
// login process.
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
  // `changed`: one of the files is another one now; credentials() are those of now. May destroy the watch.
  IdentityWatch(boost::asio::io_context& io, std::filesystem::path directory, std::function<void()> changed);

  // The error names the file and the reason.
  tl::expected<void, std::string> start();
  const std::filesystem::path& directory() const { return directory_; }

  // Checks the files; calls `changed` if need be, before it returns. Cheap: called before each decision, so that a
  // change by `gpuwire admin` counts at once, whether or not the kernel has reported it yet.
  void refresh();
  const Register& credentials() const { return credentials_; }
  // Opened for the login process.
  tl::expected<ipc::Identity, std::string> open_files() const;

 private:
  struct Stamp {
    dev_t device = 0;
    ino_t file = 0;
    int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  static constexpr size_t kFileCount = 4;  // of ipc::Identity
  using Stamps = std::array<Stamp, kFileCount>;
  Stamps stamps() const;
  tl::expected<void, std::string> read();
  void listen();

  const std::filesystem::path directory_;
  const std::function<void()> changed_;
  boost::asio::posix::stream_descriptor changes_;  // inotify; may be missing, then refresh() alone finds out
  Stamps read_{};
  Register credentials_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
