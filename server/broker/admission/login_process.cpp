#include "server/broker/admission/login_process.hpp"

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

// It leaves when it has told everybody whom it is refusing why.
LoginProcess::~LoginProcess() {
  channel_.reset();
  for (uint32_t waited_ms = 0; pid_ >= 0; waited_ms += kLoginExitStepMs) {
    if (waited_ms >= kLoginExitMs) ::kill(pid_, SIGKILL);
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(kLoginExitStepMs));
  }
}

void LoginProcess::start() {
  started_ = std::chrono::steady_clock::now();
  OwnedDescriptor ours, theirs;
  if (!open_ipc_message(ours, theirs)) {
    spdlog::error("no socket pair for the login process");
    return start_later();
  }
  auto pid = spawn_child(program_, {}, theirs.get());
  if (!pid) {
    spdlog::error("{}", pid.error());
    return start_later();
  }
  pid_ = *pid;
  channel_ = std::make_unique<MessageChannel>(
      io_, std::move(ours), [this](IpcMessage message) { heard(std::move(message)); }, [] {});
  events_.started();
}

bool LoginProcess::available() const { return channel_ && channel_->backlog() < kLoginBacklogMax; }

// --- what is said
// -------------------------------------------------------------------------------------------------------------------------------

void LoginProcess::send(IpcMessage message) {
  if (channel_) channel_->send(std::move(message));
}

ConnectionId LoginProcess::arrive(const Arrival& arrival, OwnedDescriptor socket) {
  IpcMessage message = login_message(LoginKind::arrival, ++last_, encode(arrival));
  message.socket = std::move(socket);
  send(std::move(message));
  return last_;
}

void LoginProcess::queued(ConnectionId connection, const LoginQueued& place) {
  send(login_message(LoginKind::queued, connection, encode(place)));
}

void LoginProcess::admitted(ConnectionId connection) { send(login_message(LoginKind::admitted, connection)); }

void LoginProcess::refused(ConnectionId connection, const std::string& reason) {
  requested_.erase(connection);
  send(login_message(LoginKind::refused, connection, reason));
}

void LoginProcess::heard(IpcMessage message) {
  const ConnectionId connection = connection_of(message);
  switch (login_kind(message)) {
    case LoginKind::identity_read: return events_.identity_read(message.number ? std::string() : message.text);
    case LoginKind::request: {
      LoginRequestMessage request;
      if (!decode(message.text, request) || !requested_.insert(connection).second) return;
      return events_.requested(connection, std::move(request));
    }
    case LoginKind::gone:
      if (requested_.erase(connection)) events_.gone(connection, message.text);
      return;
    case LoginKind::passed:
      if (requested_.erase(connection)) events_.passed(connection, std::move(message.socket), std::move(message.text));
      return;
    case LoginKind::turned_away: {
      LoginRefusal refusal;
      if (decode(message.text, refusal)) events_.turned_away(refusal, message.number);
      return;
    }
    default: return;
  }
}

// --- its end
// ------------------------------------------------------------------------------------------------------------------------------------

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
  spdlog::error("the login process ended with {}; it is started again", how);
  channel_.reset();
  for (ConnectionId connection : std::exchange(requested_, {})) events_.gone(connection, "the login process ended");
  start_later();
}

// At once the first time: who connects in between does not notice.
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
