// The gpuwire-web process beside a server: the web page.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/broker/worker/child_output.hpp"
#include "server/cli/serve/page_certificate.hpp"
#include "server/control/web/web_channel.hpp"

namespace gpuwire::server {

inline constexpr uint32_t kWebRestartMinMs = 500, kWebRestartMaxMs = 60'000;  // doubles with each end ...
inline constexpr std::chrono::minutes kWebLived{5};  // ... for one that has not lived this long
inline constexpr uint32_t kWebAddressWaitMs = 3000, kWebAddressStepMs = 50;
inline constexpr int kWebBacklog = 128;  // connections that wait while the process is started again

// Owns the page's listening socket, which stays open while the process is started again. Used on the thread that runs
// the io_context.
class WebProcess {
 public:
  struct Listening {
    OwnedDescriptor socket;
    std::string url;
  };
  // Waits briefly for an address that the previous server process is about to release. `text`: web_listen. `https`:
  // with web_certificate. The error names the key, the address and the cause.
  static tl::expected<Listening, std::string> listen(const std::string& text, bool https);

  // Each answers one line: `page` of the process that serves the page, `certificate` of the one that uses TLS.
  struct Answers {
    WebChannel::Answer page, certificate;
  };
  // `certificate`: null: the page speaks HTTP without encryption. It is used until this object goes.
  WebProcess(boost::asio::io_context& io, std::string program, Listening listening, Answers answers,
             const PageCertificate* certificate);
  ~WebProcess();
  WebProcess(const WebProcess&) = delete;
  WebProcess& operator=(const WebProcess&) = delete;

  const std::string& url() const { return listening_.url; }
  // The process is started anew, with the certificate as it is now. Visitors stay signed in.
  void use_new_certificate();

 private:
  void start();
  tl::expected<void, std::string> start_now();
  bool hand_over_sockets(int pair, int front) const;
  void ended();
  void all_ended();
  void again(const std::string& why);

  boost::asio::io_context& io_;
  const std::string program_;
  const Listening listening_;
  const Answers answers_;
  const PageCertificate* const certificate_;
  // A pidfd.
  boost::asio::posix::stream_descriptor process_;
  boost::asio::steady_timer again_timer_;
  std::unique_ptr<WebChannel> channel_;
  // Null: no TLS, or its process has ended.
  std::unique_ptr<WebChannel> front_channel_;
  std::unique_ptr<ChildOutput> output_;
  pid_t pid_ = -1;
  // The exit status of the process that has ended last.
  int status_ = 0;
  std::chrono::steady_clock::time_point started_;
  uint32_t delay_ms_ = kWebRestartMinMs;
  // The process was ended for another with the new certificate.
  bool renewing_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
