#include "server/cli/serve/web_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/transport/descriptor_passing.hpp"
#include "server/broker/worker/spawn.hpp"
#include "server/config/listen_address.hpp"

namespace gpuwire::server {

namespace {

bool make_pair_of(OwnedDescriptor& ours, OwnedDescriptor& theirs) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  ours.reset(ends[0]);
  theirs.reset(ends[1]);
  return true;
}

}  // namespace

tl::expected<WebProcess::Listening, std::string> WebProcess::listen(const std::string& text, bool https) {
  using boost::asio::ip::tcp;
  auto where = parse_listen_address(text);
  if (!where) return tl::unexpected("web_listen: " + where.error());
  boost::asio::io_context io;
  for (unsigned waited_ms = 0;; waited_ms += kWebAddressStepMs) {
    tcp::acceptor acceptor(io);
    boost::system::error_code error;
    acceptor.open(where->protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(*where, error);
    if (!error) acceptor.listen(kWebBacklog, error);
    if (!error) {
      std::string url = fmt::format("{}://{}/", https ? "https" : "http", text_of(acceptor.local_endpoint()));
      return Listening{OwnedDescriptor(acceptor.release()), std::move(url)};
    }
    if (error != boost::asio::error::address_in_use || waited_ms >= kWebAddressWaitMs)
      return tl::unexpected(fmt::format("web_listen: cannot listen on {}: {}", text, error.message()));
    std::this_thread::sleep_for(std::chrono::milliseconds(kWebAddressStepMs));
  }
}

WebProcess::WebProcess(boost::asio::io_context& io, std::string program, Listening listening, Answers answers,
                       const PageCertificate* certificate)
    : io_(io),
      program_(std::move(program)),
      listening_(std::move(listening)),
      answers_(std::move(answers)),
      certificate_(certificate),
      process_(io),
      again_timer_(io) {
  spdlog::info("web page at {}", listening_.url);
  start();
}

WebProcess::~WebProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);  // it has no state to clean up
  ::waitpid(pid_, nullptr, 0);
}

void WebProcess::start() {
  if (auto started = start_now(); !started) again(started.error());
}

tl::expected<void, std::string> WebProcess::start_now() {
  started_ = std::chrono::steady_clock::now();
  OwnedDescriptor ours, theirs, our_front, their_front;
  if (!make_pair_of(ours, theirs) || (certificate_ && !make_pair_of(our_front, their_front)))
    return tl::unexpected(fmt::format("no pair of sockets: {}", std::strerror(errno)));
  if (!hand_over_sockets(ours.get(), their_front.get()))
    return tl::unexpected(fmt::format("sendmsg: {}", std::strerror(errno)));
  auto pipe = ChildPipe::open();
  if (!pipe) return tl::unexpected(pipe.error());
  auto pid = spawn_child(program_, {}, theirs.get(), pipe->writes.get());
  if (!pid) return tl::unexpected(pid.error());
  pid_ = *pid;
  output_ = std::make_unique<ChildOutput>(io_, std::move(pipe->reads), [](const std::string& line) {
    spdlog::warn("the web page's process wrote: {}", line);
  });
  // When its socket pair is closed, the process ends by itself, and is then started again.
  auto over = [this] {
    if (pid_ >= 0) ::kill(pid_, SIGKILL);
  };
  channel_ = std::make_unique<WebChannel>(io_, std::move(ours), answers_.page, over);
  if (our_front) {
    front_channel_ = std::make_unique<WebChannel>(io_, std::move(our_front), answers_.certificate, [this, over] {
      over();
      front_channel_.reset();
      if (pid_ < 0) all_ended();
    });
  }
  OwnedDescriptor process(int(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!process) {
    const int error = errno;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    front_channel_.reset();
    return tl::unexpected(fmt::format("pidfd_open: {}", std::strerror(error)));
  }
  process_.assign(process.release());
  process_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      lifetime_.guard([this](boost::system::error_code error) {
                        if (!error) ended();
                      }));
  return {};
}

// The first byte on the pair carries the sockets and files, in the order in which gpuwire-web takes them.
bool WebProcess::hand_over_sockets(int pair, int front) const {
  char byte = 0;
  const iovec part{&byte, 1};
  std::vector<int> descriptors{listening_.socket.get()};
  if (certificate_) {
    descriptors.push_back(front);
    for (const OwnedDescriptor& file : certificate_->descriptors()) descriptors.push_back(file.get());
  }
  return transport::send_with_descriptors(pair, {&part, 1}, descriptors) == 1;
}

void WebProcess::use_new_certificate() {
  spdlog::info("web page: the new certificate is used");
  if (pid_ < 0) return;  // it is about to be started
  renewing_ = true;
  ::kill(pid_, SIGKILL);
}

void WebProcess::ended() {
  status_ = 0;
  if (::waitpid(std::exchange(pid_, -1), &status_, 0) < 0) status_ = 0;
  process_.close();
  channel_.reset();
  // The process that uses TLS ends with this one, but later, and accepts visitors until then: with the old certificate.
  if (!front_channel_) all_ended();
}

void WebProcess::all_ended() {
  if (output_) output_->read_rest();
  output_.reset();
  if (std::exchange(renewing_, false)) return start();
  again("ended with " + describe_status(status_));
}

void WebProcess::again(const std::string& why) {
  if (std::chrono::steady_clock::now() - started_ > kWebLived) delay_ms_ = kWebRestartMinMs;
  spdlog::error("the web page's process: {}; again in {} ms", why, delay_ms_);
  again_timer_.expires_after(std::chrono::milliseconds(delay_ms_));
  again_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) start();
  }));
  delay_ms_ = std::min(delay_ms_ * 2, kWebRestartMaxMs);
}

}  // namespace gpuwire::server
