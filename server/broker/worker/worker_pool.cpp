#include "server/broker/worker/worker_pool.hpp"

#include <algorithm>
#include <csignal>

#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/broker/keeper/kept_session.hpp"
#include "server/broker/limits.hpp"
#include "server/ipc/limits.hpp"
#include "server/ipc/end_cause.hpp"

namespace gpuwire::server {
WorkerPool::WorkerPool(boost::asio::io_context& io, WorkerCommand command, ShareTable& shares, Events events,
                       EntryStore* keeping)
    : io_(io),
      command_(std::move(command)),
      events_(std::move(events)),
      children_(io, SIGCHLD),
      retry_timer_(io),
      late_timer_(io),
      shares_(shares),
      keeping_(keeping) {
  await_children();
}

void WorkerPool::keep_spares(unsigned spares) {
  spares_ = std::min(spares, kSpareWorkersMax);
  trim();
  fill();
}

void WorkerPool::start_one_more() {
  if (workers_.empty()) start_one();
}

// Ends the spares beyond those wanted. Those that are still starting are looked at when they are ready.
void WorkerPool::trim() {
  size_t ready = count(WorkerProcess::State::ready);
  for (auto& worker : workers_) {
    if (ready <= spares_ + waiting_.size()) break;
    if (worker->state != WorkerProcess::State::ready) continue;
    worker->state = WorkerProcess::State::ending;
    worker->reason = "it is not needed";
    worker->kill_after(0);
    --ready;
  }
}

size_t WorkerPool::count(WorkerProcess::State state) const {
  return size_t(
      std::count_if(workers_.begin(), workers_.end(), [&](const auto& worker) { return worker->state == state; }));
}

// --- starting
// --------------------------------------------------------------------------------------------------------------------------------

void WorkerPool::fill() {
  if (closed_ || retrying_ || failures_ != 0) return;
  size_t wanted = spares_ + waiting_.size();
  for (size_t have = count(WorkerProcess::State::starting) + count(WorkerProcess::State::ready);
       have < wanted && failures_ == 0; ++have)
    start_one();
}

WorkerProcess::Events WorkerPool::worker_events() {
  return {.said = [this](WorkerProcess& from, IpcMessage message) { said(from, std::move(message)); },
          .floods = [](WorkerProcess& from) { end_flood(from); },
          .gone = [this] { boost::asio::post(io_, lifetime_.guard([this] { reap(); })); }};
}

void WorkerPool::start_one() {
  auto worker = WorkerProcess::spawn(io_, command_, worker_events());
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
  refuse_all(RefusalCause::no_device, fmt::format("the server cannot open its device: {}", reason));
  events_.hopeless(reason);
}

void WorkerPool::retry_later() {
  if (retrying_) return;
  retrying_ = true;
  uint32_t delay_ms = std::min(kRestartDelayMinMs << std::min(failures_ - 1, 16u), kRestartDelayMaxMs);
  retry_timer_.expires_after(std::chrono::milliseconds(delay_ms));
  retry_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (error) return;
    retrying_ = false;
    if (!closed_) start_one();
  }));
}

// --- clients
// ----------------------------------------------------------------------------------------------------------------------------------

void WorkerPool::want(SessionId session, std::string label, std::string tenant) {
  if (closed_) {
    events_.refused(session, RefusalCause::shutting_down, "the server is shutting down");
    return;
  }
  waiting_.push_back({session, std::move(label), std::move(tenant),
                      std::chrono::steady_clock::now() + std::chrono::milliseconds(kWorkerWaitMs)});
  match();
  if (failures_ >= kStartAttemptsMax) {
    failures_ = kStartAttemptsMax - 1;  // this session is reason for one more attempt
    start_one();
  }
}

void WorkerPool::match() {
  match_again_ = true;
  if (matching_) return;  // an event of the loop below has led back here
  matching_ = true;
  while (std::exchange(match_again_, false)) {
    for (auto worker = workers_.begin(); worker != workers_.end() && !waiting_.empty(); ++worker) {
      if ((*worker)->state != WorkerProcess::State::ready) continue;
      Waiting one = std::move(waiting_.front());
      waiting_.pop_front();
      reserve(**worker, std::move(one));
    }
  }
  matching_ = false;
  trim();
  refuse_late();
  fill();
}

void WorkerPool::reserve(WorkerProcess& worker, Waiting one) {
  worker.state = WorkerProcess::State::reserved;
  worker.session = one.session;
  worker.label = std::move(one.label);
  worker.tenant = std::move(one.tenant);
  if (!one.client) return events_.reserved(one.session, worker.pid());
  hand_over(worker, std::move(*one.client));
  if (!one.stop_reason.empty()) stop(one.session, one.stop_reason);
}

WorkerProcess* WorkerPool::worker_of(SessionId session) {
  for (auto& worker : workers_) {
    bool busy = worker->state == WorkerProcess::State::reserved || worker->state == WorkerProcess::State::serving;
    if (busy && worker->session == session) return worker.get();
  }
  return nullptr;
}

void WorkerPool::give(SessionId session, IpcMessage client) {
  WorkerProcess* worker = worker_of(session);
  if (worker && worker->state == WorkerProcess::State::reserved) hand_over(*worker, std::move(client));
}

void WorkerPool::hand_over(WorkerProcess& worker, IpcMessage client) {
  if (events_.serving) events_.serving(worker.session, worker, client);
  if (worker.send(client)) {
    worker.state = WorkerProcess::State::serving;
    spdlog::info("{}: worker {}", worker.label, worker.pid());
    return;
  }
  // It died a moment ago. Its end is on its way here; the client goes to the next one.
  worker.state = WorkerProcess::State::ending;
  worker.kill_after(0);
  waiting_.push_front({worker.session, worker.label, worker.tenant,
                       std::chrono::steady_clock::now() + std::chrono::milliseconds(kWorkerWaitMs), std::move(client)});
  match();
}

void WorkerPool::adopt(SessionId session, std::string label, std::string tenant, OwnedDescriptor worker,
                       OwnedDescriptor process, pid_t pid) {
  auto adopted = WorkerProcess::adopt(io_, std::move(worker), std::move(process), pid, worker_events());
  adopted->state = WorkerProcess::State::serving;
  adopted->session = session;
  adopted->label = std::move(label);
  adopted->tenant = std::move(tenant);
  workers_.push_back(std::move(adopted));
}

void WorkerPool::let_go() {
  for (auto& worker : workers_) {
    if (worker->state == WorkerProcess::State::serving) worker->let_go();
  }
}

void WorkerPool::release(SessionId session) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.session == session; });
  WorkerProcess* worker = worker_of(session);
  if (!worker || worker->state != WorkerProcess::State::reserved) return;
  worker->state = WorkerProcess::State::ready;
  worker->label = fmt::format("worker {}", worker->pid());
  if (closed_) worker->kill_after(0);
  match();
}

bool WorkerPool::send(SessionId session, const IpcMessage& message) {
  WorkerProcess* worker = worker_of(session);
  return worker && worker->state == WorkerProcess::State::serving && worker->send(message);
}

bool WorkerPool::stop(SessionId session, const std::string& reason) {
  auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                              [&](const Waiting& one) { return one.session == session && one.client; });
  if (waiting != waiting_.end()) {
    waiting->stop_reason = reason;
    return true;
  }
  WorkerProcess* worker = worker_of(session);
  if (!worker || worker->state != WorkerProcess::State::serving) return false;
  IpcMessage stop;
  stop.kind = IpcMessageKind::stop;
  stop.text = reason;
  worker->stop_reason = reason;
  worker->send(stop);
  worker->kill_after(kWorkerExitMs);
  return true;
}

void WorkerPool::refuse_late() {
  auto now = std::chrono::steady_clock::now();
  while (!waiting_.empty() && waiting_.front().until <= now) {
    SessionId session = waiting_.front().session;
    waiting_.pop_front();
    events_.refused(session, RefusalCause::busy, fmt::format("no worker was ready within {} s", kWorkerWaitMs / 1000));
  }
  if (waiting_.empty()) {
    late_timer_.cancel();
    return;
  }
  late_timer_.expires_at(waiting_.front().until);
  late_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) refuse_late();
  }));
}

void WorkerPool::refuse_all(RefusalCause cause, const std::string& reason) {
  std::deque<Waiting> waiting = std::exchange(waiting_, {});
  late_timer_.cancel();
  for (Waiting& one : waiting) events_.refused(one.session, cause, reason);
}

// --- what workers say
// ------------------------------------------------------------------------------------------------------------------------

void WorkerPool::said(WorkerProcess& worker, IpcMessage message) {
  switch (message.kind) {
    case IpcMessageKind::ready: worker_ready(worker, message); break;
    case IpcMessageKind::failed:
      worker.reason = message.text;
      worker.kill_after(kWorkerExitMs);
      break;
    case IpcMessageKind::begun:
      spdlog::info("{}: {}", worker.label, message.text);
      if (worker.state == WorkerProcess::State::serving) events_.begun(worker.session, message.text);
      break;
    case IpcMessageKind::note:
      if (++worker.notes <= kWorkerNotesMax) spdlog::warn("{}: {}", worker.label, message.text);
      if (worker.notes == kWorkerNotesMax) spdlog::warn("{}: what it says from here on is not logged", worker.label);
      break;
    case IpcMessageKind::ended:
      worker.reason = message.text;
      worker.end_cause = message.number;
      worker.kill_after(kWorkerExitMs);
      break;
    case IpcMessageKind::share:
    case IpcMessageKind::claim: answer_share(worker, std::move(message)); break;
    case IpcMessageKind::withdraw:
      if (shares_.withdraw(&worker, message.id) && keeping_) keeping_->remove(kept_name(message.id));
      break;
    case IpcMessageKind::session:
    case IpcMessageKind::stop:
    case IpcMessageKind::memory_answer:
    case IpcMessageKind::share_answer: break;  // the broker's own
    default:
      if (worker.state == WorkerProcess::State::serving) events_.heard(worker.session, message);
  }
}

void WorkerPool::end_flood(WorkerProcess& worker) {
  worker.end_cause = uint32_t(EndCause::internal);
  worker.reason = fmt::format("its worker sent the broker more than {} messages a second", kWorkerMessagesPerSecond);
  worker.kill_after(0);
}

void WorkerPool::answer_share(WorkerProcess& worker, IpcMessage question) {
  IpcMessage answer;
  answer.kind = IpcMessageKind::share_answer;
  answer.id = question.id;
  // The worker says who shares among the tenant's users; whose tenant's it is, is not for it to say.
  ShareGroup group{worker.tenant, std::move(question.text)};
  if (question.kind == IpcMessageKind::share) {
    OwnedDescriptor kept(keeping_ ? ::fcntl(question.socket.get(), F_DUPFD_CLOEXEC, 0) : -1);
    std::string user = group.user;
    // The answer to a first question may have been an earlier broker's, and lost with it.
    answer.number = shares_.has(&worker, question.id) ||
                    shares_.add(&worker, question.id, question.number, std::move(group), std::move(question.socket));
    if (answer.number && kept) keep_share(worker.session, question.id, question.number, user, std::move(kept));
  } else if (int kept = shares_.find(question.id, question.number, group); kept >= 0) {
    answer.socket.reset(::fcntl(kept, F_DUPFD_CLOEXEC, 0));
    answer.number = bool(answer.socket);
  }
  worker.send(answer);  // one that cannot be told is ending, or gives up waiting
}

void WorkerPool::keep_share(SessionId session, const ShareToken& token, uint32_t kind, const std::string& user,
                            OwnedDescriptor descriptor) {
  KeptEntry entry{
      .session = false, .name = kept_name(token), .text = encode(KeptShare{session, kind, user}), .descriptors = {}};
  entry.descriptors.push_back(std::move(descriptor));
  keeping_->put(std::move(entry));
}

void WorkerPool::share_again(SessionId session, const ShareToken& token, uint32_t kind, std::string user,
                             OwnedDescriptor descriptor) {
  WorkerProcess* worker = worker_of(session);
  if (!worker || !shares_.add(worker, token, kind, {worker->tenant, std::move(user)}, std::move(descriptor)))
    keeping_->remove(kept_name(token));
}

void WorkerPool::worker_ready(WorkerProcess& worker, const IpcMessage& message) {
  if (worker.state != WorkerProcess::State::starting) return;
  worker.state = WorkerProcess::State::ready;
  worker.cancel_kill();
  failures_ = 0;
  if (closed_) {
    worker.kill_after(0);
    return;
  }
  events_.ready(message);
  match();
}

// --- the end of workers
// -----------------------------------------------------------------------------------------------------------------------

void WorkerPool::await_children() {
  children_.async_wait(lifetime_.guard([this](boost::system::error_code error, int) {
    if (error) return;
    reap();
    await_children();
  }));
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
  if (idle()) events_.idle();
}

void WorkerPool::ended(WorkerProcess& worker, const std::string& how) {
  for (const ShareToken& token : shares_.forget(&worker)) {
    if (keeping_) keeping_->remove(kept_name(token));
  }
  switch (worker.state) {
    case WorkerProcess::State::starting:
      start_failed(worker.reason.empty() ? fmt::format("the process ended with {}", how) : worker.reason);
      break;
    case WorkerProcess::State::ready:
      if (!closed_) spdlog::warn("{} ended unused with {}", worker.label, how);
      break;
    case WorkerProcess::State::reserved:
      spdlog::error("{}: its process ended unused with {}", worker.label, how);
      events_.over(worker.session, SessionEvent::kDied, fmt::format("the worker ended unused with {}", how));
      break;
    case WorkerProcess::State::serving:
    case WorkerProcess::State::ending:
      if (worker.reason.empty()) ended_silently(worker, how);
      else spdlog::info("{}: ended: {}", worker.label, worker.reason);
      if (worker.state == WorkerProcess::State::serving) events_.over(worker.session, worker.end_cause, worker.reason);
      break;
  }
}

// A kernel that never ends holds up the worker that is told to stop, until its process is killed: that is no death of
// its own.
void WorkerPool::ended_silently(WorkerProcess& worker, const std::string& how) {
  worker.reason = fmt::format("its process ended with {}", how);
  spdlog::error("{}: {}", worker.label, worker.reason);
  if (worker.stop_reason.empty()) return;
  worker.end_cause = uint32_t(EndCause::stopped);
  worker.reason = fmt::format("{} ({})", worker.stop_reason, worker.reason);
}

void WorkerPool::close(const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  retry_timer_.cancel();
  refuse_all(RefusalCause::shutting_down, reason);
  for (auto& worker : workers_) {
    if (worker->state == WorkerProcess::State::serving || worker->state == WorkerProcess::State::reserved) continue;
    worker->kill_after(0);
  }
}

}  // namespace gpuwire::server
