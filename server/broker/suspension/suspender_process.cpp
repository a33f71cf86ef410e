#include "server/broker/suspension/suspender_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/broker/limits.hpp"
#include "server/broker/worker/spawn.hpp"

namespace gpuwire::server {

SuspenderProcess::SuspenderProcess(boost::asio::io_context& io, Command command)
    : io_(io), command_(std::move(command)), process_(io), again_timer_(io) {}

// It has no state of its own: the next suspender begins with the processes' states.
SuspenderProcess::~SuspenderProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {}
}

void SuspenderProcess::start(Events events) {
  events_ = std::move(events);
  start_again();
}

void SuspenderProcess::start_again() {
  if (auto started = start_now(); !started) again(started.error());
}

tl::expected<void, std::string> SuspenderProcess::start_now() {
  started_ = std::chrono::steady_clock::now();
  OwnedDescriptor ours, theirs;
  if (!ipc::open_pair(ours, theirs)) return tl::unexpected(fmt::format("socketpair: {}", std::strerror(errno)));
  auto pipe = ChildPipe::open();
  if (!pipe) return tl::unexpected(pipe.error());
  auto pid = spawn_child(command_.program, command_.arguments, theirs.get(), pipe->writes.get());
  if (!pid) return tl::unexpected(pid.error());
  OwnedDescriptor process(int(::syscall(SYS_pidfd_open, *pid, 0)));
  const auto not_watched = [&](const std::string& why) {
    ::kill(*pid, SIGKILL);
    while (::waitpid(*pid, nullptr, 0) < 0 && errno == EINTR) {}
    channel_.reset();
    output_.reset();
    return tl::unexpected("it cannot be watched: " + why);
  };
  if (!process) return not_watched(std::strerror(errno));
  try {
    output_ = std::make_unique<ChildOutput>(io_, std::move(pipe->reads), [](const std::string& line) {
      spdlog::warn("gpuwire-suspender wrote: {}", line);
    });
    channel_ = std::make_unique<ipc::EventChannel>(
        io_, std::move(ours), ipc::Speaker::suspender, kMovesWaitingMax, ipc::EventChannel::Trust::full,
        ipc::EventChannel::Events{.on_message = [this](ipc::Message message) { on_message(std::move(message)); },
                                  .over =
                                      [this](const std::string& what) {
                                        if (!what.empty()) kill("it has said " + what);
                                      }});
    process_.assign(process.get());
    process.release();
  } catch (const boost::system::system_error& error) {
    return not_watched(error.code().message());
  }
  pid_ = *pid;
  process_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      lifetime_.guard([this](boost::system::error_code error) {
                        if (!error) ended();
                      }));
  return {};
}

bool SuspenderProcess::send(scheduler::SessionId, ipc::Move order) {
  return channel_ && why_not_.empty() && channel_->send(std::move(order));
}

void SuspenderProcess::on_message(ipc::Message message) {
  if (auto* ready = std::get_if<ipc::SuspenderReady>(&message)) {
    if (!ready->why.empty() && why_not_ != ready->why) spdlog::info("sessions cannot be suspended: {}", ready->why);
    why_not_ = ready->why;
    if (why_not_.empty()) events_.ready();
  } else if (auto* moved = std::get_if<ipc::Moved>(&message)) {
    events_.moved(*moved);
  }
}

void SuspenderProcess::kill(const std::string& why) {
  spdlog::error("gpuwire-suspender is ended: {}", why);
  if (pid_ >= 0) ::kill(pid_, SIGKILL);
}

void SuspenderProcess::ended() {
  int status = 0;
  if (::waitpid(std::exchange(pid_, -1), &status, 0) < 0) status = 0;
  process_.close();
  channel_.reset();
  if (output_) output_->read_rest();
  output_.reset();
  again("ended with " + describe_status(status));
}

void SuspenderProcess::again(const std::string& why) {
  const bool lived = std::chrono::steady_clock::now() - started_ > std::chrono::milliseconds(kSuspenderLivedMs);
  delay_ms_ = lived ? 0 : std::clamp(delay_ms_ * 2, kRestartDelayMinMs, kRestartDelayMaxMs);
  spdlog::error("gpuwire-suspender: {}; it is started again in {} ms", why, delay_ms_);
  why_not_ = "gpuwire-suspender is starting again";
  events_.gone();
  again_timer_.expires_after(std::chrono::milliseconds(delay_ms_));
  again_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) start_again();
  }));
}

}  // namespace gpuwire::server
