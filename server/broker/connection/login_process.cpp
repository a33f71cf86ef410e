#include "server/broker/connection/login_process.hpp"

#include <algorithm>
#include <csignal>
#include <thread>

#include <spdlog/spdlog.h>
#include <sys/wait.h>

#include "server/broker/limits.hpp"
#include "server/broker/worker/spawn.hpp"

namespace gpuwire::server {
namespace {

constexpr uint32_t kLoginExitStepMs = 2;

}  // namespace

LoginProcess::LoginProcess(boost::asio::io_context& io, std::string program, Events events)
    : io_(io), program_(std::move(program)), events_(std::move(events)), children_(io, SIGCHLD), restart_timer_(io) {
  await_children();
}

// The process exits when it has sent all its refusals.
LoginProcess::~LoginProcess() {
  channel_.reset();
  for (uint32_t waited_ms = 0; pid_ >= 0; waited_ms += kLoginExitStepMs) {
    if (waited_ms >= kLoginExitMs) ::kill(pid_, SIGKILL);
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(kLoginExitStepMs));
  }
  if (output_) output_->read_rest();
}

void LoginProcess::start() {
  started_ = std::chrono::steady_clock::now();
  OwnedDescriptor ours, theirs;
  if (!ipc::open_pair(ours, theirs)) {
    spdlog::error("no socket pair for the login process");
    return start_later();
  }
  auto pipe = ChildPipe::open();
  auto pid = pipe.and_then([&](ChildPipe& one) { return spawn_child(program_, {}, theirs.get(), one.writes.get()); });
  if (!pid) {
    spdlog::error("{}", pid.error());
    return start_later();
  }
  pid_ = *pid;
  try {
    output_ = std::make_unique<ChildOutput>(io_, std::move(pipe->reads), [](const std::string& line) {
      spdlog::warn("the login process wrote: {}", line);
    });
    channel_ = std::make_unique<ipc::EventChannel>(
        io_, std::move(ours), ipc::Speaker::auth_server, ipc::kAuthWaitingMax, ipc::EventChannel::Trust::full,
        ipc::EventChannel::Events{.on_message = [this](ipc::Message message) { on_message(std::move(message)); },
                                  .over =
                                      [this](const std::string& what) {
                                        if (!what.empty()) kill("it has said " + what);
                                      }});
  } catch (const boost::system::system_error& error) {
    // The user has no inotify or epoll watch left. Another process is started when this one has been reaped.
    return kill("it cannot be watched: " + error.code().message());
  }
  events_.started();
}

bool LoginProcess::available() const { return channel_ && channel_->waiting() < kLoginBacklogMax; }

// --- messages ------------------------------------------------------------------------------------------------------

void LoginProcess::send(ipc::Message message) {
  if (channel_ && !channel_->send(std::move(message)) && channel_->waiting() >= ipc::kAuthWaitingMax)
    kill("it does not read");
}

// The process is reaped and restarted, as after any other end.
void LoginProcess::kill(const std::string& why) {
  spdlog::error("the login process is ended: {}", why);
  channel_.reset();
  if (pid_ >= 0) ::kill(pid_, SIGKILL);
}

void LoginProcess::arrive(ipc::Arrival arrival) {
  arrival.connection = ++last_;
  send(std::move(arrival));
}

void LoginProcess::queued(ipc::Queued place) { send(std::move(place)); }

void LoginProcess::admitted(ipc::ConnectionId connection) { send(ipc::Admitted{connection}); }

void LoginProcess::refused(ipc::ConnectionId connection, const std::string& reason) {
  requested_.close(connection);
  send(ipc::Refused{connection, reason});
}

void LoginProcess::told(ipc::ConnectionId connection, const std::string& text) {
  requested_.close(connection);
  for (size_t at = 0; at == 0 || at < text.size(); at += ipc::kToldBytesMax)
    send(ipc::Told{connection, text.substr(at, ipc::kToldBytesMax), at + ipc::kToldBytesMax >= text.size()});
}

void LoginProcess::on_message(ipc::Message message) {
  std::visit(ipc::Match{[&](ipc::IdentityRead& read) { events_.identity_read(read.error); },
                        [&](ipc::Login& login) {
                          if (requested_.open_as(login.connection, {})) events_.requested(std::move(login));
                        },
                        [&](ipc::Gone& gone) {
                          if (requested_.close(gone.connection)) events_.gone(gone.connection, gone.why);
                        },
                        [&](ipc::Passed& passed) {
                          if (requested_.close(passed.connection)) events_.passed(std::move(passed));
                        },
                        [&](ipc::TurnedAway& refusal) { events_.turned_away(refusal); }, [](auto&) {}},
             message);
}

// --- its end -------------------------------------------------------------------------------------------------------

void LoginProcess::await_children() {
  children_.async_wait(lifetime_.guard([this](boost::system::error_code error, int) {
    if (error) return;
    int status = 0;
    if (pid_ >= 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      ended(describe_status(status));
    }
    await_children();
  }));
}

void LoginProcess::ended(const std::string& how) {
  if (output_) output_->read_rest();
  output_.reset();
  spdlog::error("the login process ended with {}; it is started again", how);
  channel_.reset();
  requested_.abandon(
      [this](ipc::ConnectionId connection, Requested) { events_.gone(connection, "the login process ended"); });
  start_later();
}

// The first restart is immediate: a client that connects in between does not notice.
void LoginProcess::start_later() {
  bool lived = std::chrono::steady_clock::now() - started_ > std::chrono::milliseconds(kLoginLivedMs);
  failures_ = lived ? 0 : failures_ + 1;
  uint32_t delay_ms =
      failures_ == 0 ? 0 : std::min(kRestartDelayMinMs << std::min(failures_ - 1, 16u), kRestartDelayMaxMs);
  restart_timer_.expires_after(std::chrono::milliseconds(delay_ms));
  restart_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) start();
  }));
}

}  // namespace gpuwire::server
