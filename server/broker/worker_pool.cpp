#include "server/broker/worker_pool.hpp"

#include <algorithm>
#include <csignal>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/broker/limits.hpp"
#include "server/broker/session_order.hpp"

namespace gpuwire::server {
namespace {

std::string label_of(const Handoff& client) {
  std::string id;
  for (size_t i = 0; i < 4; ++i) id += fmt::format("{:02x}", client.id[i]);
  auto order = decode_session_order(client.text);
  return fmt::format("session {} from {}", id, order ? order->peer : "a client");
}

}  // namespace

WorkerPool::WorkerPool(boost::asio::io_context& io, WorkerCommand command, unsigned spares, Events events)
    : io_(io),
      command_(std::move(command)),
      spares_(std::clamp(spares, 0u, kSpareWorkersMax)),
      events_(std::move(events)),
      children_(io, SIGCHLD),
      retry_timer_(io),
      late_timer_(io) {}

void WorkerPool::start(bool first) {
  await_children();
  if (first) start_one();
  fill();
}

size_t WorkerPool::count(WorkerProcess::State state) const {
  return size_t(std::count_if(workers_.begin(), workers_.end(), [&](const auto& worker) { return worker->state == state; }));
}

// --- starting --------------------------------------------------------------------------------------------------------------------------------

void WorkerPool::fill() {
  if (closed_ || retrying_ || failures_ != 0) return;
  size_t wanted = spares_ + waiting_.size();
  for (size_t have = count(WorkerProcess::State::starting) + count(WorkerProcess::State::ready); have < wanted && failures_ == 0; ++have) start_one();
}

void WorkerPool::start_one() {
  auto worker = WorkerProcess::spawn(io_, command_, [this](WorkerProcess& from, Handoff message) { said(from, std::move(message)); });
  if (!worker) {
    start_failed(worker.error());
    return;
  }
  (*worker)->label = fmt::format("worker {}", (*worker)->pid());
  (*worker)->kill_after(kWorkerStartMs);
  workers_.push_back(std::move(*worker));
}

void WorkerPool::start_failed(const std::string& reason) {
  if (closed_) return;
  ++failures_;
  spdlog::error("a worker could not start ({} of {} attempts): {}", failures_, kStartAttemptsMax, reason);
  if (failures_ < kStartAttemptsMax) {
    retry_later();
    return;
  }
  refuse_all(wire::RefusalCode::no_device, fmt::format("the server cannot open its device: {}", reason));
  events_.hopeless(reason);
}

void WorkerPool::retry_later() {
  if (retrying_) return;
  retrying_ = true;
  uint32_t delay_ms = std::min(kRestartDelayMinMs << std::min(failures_ - 1, 16u), kRestartDelayMaxMs);
  retry_timer_.expires_after(std::chrono::milliseconds(delay_ms));
  retry_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    retrying_ = false;
    if (!closed_) start_one();
  });
}

// --- clients ----------------------------------------------------------------------------------------------------------------------------------

void WorkerPool::take(Handoff client) {
  if (closed_) {
    events_.refused(std::move(client), wire::RefusalCode::shutting_down, "the server is shutting down");
    return;
  }
  waiting_.push_back({std::move(client), std::chrono::steady_clock::now() + std::chrono::milliseconds(kWorkerWaitMs)});
  match();
  if (failures_ >= kStartAttemptsMax) {
    failures_ = kStartAttemptsMax - 1;  // this client is reason for one more attempt
    start_one();
  }
}

void WorkerPool::match() {
  for (auto& worker : workers_) {
    if (waiting_.empty()) break;
    if (worker->state != WorkerProcess::State::ready) continue;
    Handoff client = std::move(waiting_.front().client);
    waiting_.pop_front();
    give(*worker, std::move(client));
  }
  refuse_late();
  fill();
}

void WorkerPool::give(WorkerProcess& worker, Handoff client) {
  worker.state = WorkerProcess::State::serving;
  worker.label = label_of(client);
  ++serving_;
  if (worker.send(client)) {
    spdlog::info("{}: worker {}", worker.label, worker.pid());
    return;
  }
  // It died a moment ago. Its end is on its way here; the client goes to the next one.
  --serving_;
  worker.state = WorkerProcess::State::ending;
  worker.kill_after(0);
  waiting_.push_front({std::move(client), std::chrono::steady_clock::now() + std::chrono::milliseconds(kWorkerWaitMs)});
}

void WorkerPool::refuse_late() {
  auto now = std::chrono::steady_clock::now();
  while (!waiting_.empty() && waiting_.front().until <= now) {
    Handoff client = std::move(waiting_.front().client);
    waiting_.pop_front();
    events_.refused(std::move(client), wire::RefusalCode::busy, fmt::format("no worker was ready within {} s", kWorkerWaitMs / 1000));
  }
  if (waiting_.empty()) {
    late_timer_.cancel();
    return;
  }
  late_timer_.expires_at(waiting_.front().until);
  late_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) refuse_late();
  });
}

void WorkerPool::refuse_all(wire::RefusalCode code, const std::string& reason) {
  std::deque<Waiting> waiting = std::exchange(waiting_, {});
  late_timer_.cancel();
  for (Waiting& one : waiting) events_.refused(std::move(one.client), code, reason);
}

// --- what workers say ------------------------------------------------------------------------------------------------------------------------

void WorkerPool::said(WorkerProcess& worker, Handoff message) {
  switch (message.kind) {
    case HandoffKind::ready: worker_ready(worker, message); break;
    case HandoffKind::failed:
      worker.reason = message.text;
      worker.kill_after(kWorkerExitMs);
      break;
    case HandoffKind::begun: spdlog::info("{}: {}", worker.label, message.text); break;
    case HandoffKind::note: spdlog::warn("{}: {}", worker.label, message.text); break;
    case HandoffKind::ended:
      worker.reason = message.text;
      worker.kill_after(kWorkerExitMs);
      break;
    case HandoffKind::share:
    case HandoffKind::claim: answer_share(worker, std::move(message)); break;
    case HandoffKind::withdraw: shares_.withdraw(&worker, message.id); break;
    case HandoffKind::session:
    case HandoffKind::stop:
    case HandoffKind::share_answer: break;  // the broker's own
  }
}

void WorkerPool::answer_share(WorkerProcess& worker, Handoff question) {
  Handoff answer;
  answer.kind = HandoffKind::share_answer;
  answer.id = question.id;
  if (question.kind == HandoffKind::share) {
    answer.number = shares_.add(&worker, question.id, question.number, std::move(question.text), std::move(question.socket));
  } else if (int kept = shares_.find(question.id, question.number, question.text); kept >= 0) {
    answer.socket.reset(::fcntl(kept, F_DUPFD_CLOEXEC, 0));
    answer.number = bool(answer.socket);
  }
  worker.send(answer);  // one that cannot be told is ending, or gives up waiting
}

void WorkerPool::worker_ready(WorkerProcess& worker, const Handoff& message) {
  if (worker.state != WorkerProcess::State::starting) return;
  worker.state = WorkerProcess::State::ready;
  worker.cancel_kill();
  failures_ = 0;
  if (closed_) {
    worker.kill_after(0);
    return;
  }
  events_.ready(message.text);
  match();
}

// --- the end of workers -----------------------------------------------------------------------------------------------------------------------

void WorkerPool::await_children() {
  children_.async_wait([this](boost::system::error_code error, int) {
    if (error) return;
    reap();
    await_children();
  });
}

void WorkerPool::reap() {
  // One signal may stand for several processes.
  for (auto it = workers_.begin(); it != workers_.end();) {
    std::optional<std::string> how = (*it)->reap();
    if (!how) {
      ++it;
      continue;
    }
    std::unique_ptr<WorkerProcess> worker = std::move(*it);
    it = workers_.erase(it);
    ended(*worker, *how);
  }
  match();
}

void WorkerPool::ended(WorkerProcess& worker, const std::string& how) {
  shares_.forget(&worker);
  switch (worker.state) {
    case WorkerProcess::State::starting: start_failed(worker.reason.empty() ? fmt::format("the process ended with {}", how) : worker.reason); break;
    case WorkerProcess::State::ready:
      if (!closed_) spdlog::warn("{} ended unused with {}", worker.label, how);
      break;
    case WorkerProcess::State::serving:
    case WorkerProcess::State::ending:
      if (worker.reason.empty())
        spdlog::error("{}: its process ended with {}", worker.label, how);
      else
        spdlog::info("{}: ended: {}", worker.label, worker.reason);
      if (worker.state == WorkerProcess::State::serving) {
        --serving_;
        events_.session_over();
      }
      break;
  }
}

void WorkerPool::close(const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  retry_timer_.cancel();
  refuse_all(wire::RefusalCode::shutting_down, reason);
  for (auto& worker : workers_) {
    if (worker->state == WorkerProcess::State::serving) continue;
    worker->kill_after(0);
  }
}

void WorkerPool::stop_sessions(const std::string& reason) {
  for (auto& worker : workers_) {
    if (worker->state != WorkerProcess::State::serving) continue;
    Handoff stop;
    stop.kind = HandoffKind::stop;
    stop.text = reason;
    worker->send(stop);
    worker->kill_after(kWorkerExitMs);
  }
}

}  // namespace gpuwire::server
