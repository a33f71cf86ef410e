#include "server/broker/worker/worker_pool.hpp"

#include <algorithm>
#include <csignal>

#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/broker/keeper/kept_session.hpp"
#include "server/broker/limits.hpp"
#include "server/ipc/end_cause.hpp"

namespace gpuwire::server {
WorkerPool::WorkerPool(boost::asio::io_context& io, WorkerCommand command, ShareTable& shares,
                       UnreadDescriptors& unread, WorkerStarts& starts, WorkerStarts::Pool number, Events events,
                       EntryStore* keeping)
    : io_(io),
      command_(std::move(command)),
      events_(std::move(events)),
      children_(io, SIGCHLD),
      retry_timer_(io),
      late_timer_(io),
      shares_(shares),
      unread_(unread),
      starts_(starts),
      number_(number),
      keeping_(keeping) {
  await_children();
  starts_.wish(number_, true, 0);
}

WorkerPool::~WorkerPool() {
  starts_.forget(number_);
  for (auto& worker : workers_) unread_.forget(worker.get());
}

void WorkerPool::keep_prewarmed(unsigned prewarmed) {
  prewarmed = std::min(prewarmed, kPrewarmedWorkersMax);
  if (prewarmed == prewarmed_) return;
  prewarmed_ = prewarmed;
  trim();
  wish();
}

void WorkerPool::start_one_more() {
  if (workers_.empty()) start_one();
}

// Ends surplus prewarmed workers. Starting workers are checked when they are ready.
void WorkerPool::trim() {
  size_t ready = count(WorkerProcess::State::ready);
  for (auto& worker : workers_) {
    if (ready <= prewarmed_ + waiting_.size()) break;
    if (worker->state != WorkerProcess::State::ready) continue;
    end_unused(*worker);
    --ready;
  }
}

void WorkerPool::end_unused(WorkerProcess& worker) {
  worker.state = WorkerProcess::State::ending;
  worker.reason = "it is not needed";
  worker.kill_after(0);
}

size_t WorkerPool::prewarmed() const {
  const size_t unused = count(WorkerProcess::State::starting) + count(WorkerProcess::State::ready);
  return unused - std::min(unused, waiting_.size());
}

void WorkerPool::end_prewarmed(size_t prewarmed) {
  prewarmed = std::min(prewarmed, this->prewarmed());
  prewarmed_ -= unsigned(std::min<size_t>(prewarmed, prewarmed_));
  for (auto state : {WorkerProcess::State::starting, WorkerProcess::State::ready}) {
    for (auto& worker : workers_) {
      if (prewarmed == 0) break;
      if (worker->state != state) continue;
      end_unused(*worker);
      --prewarmed;
    }
  }
  wish();
}

size_t WorkerPool::count(WorkerProcess::State state) const {
  return size_t(
      std::count_if(workers_.begin(), workers_.end(), [&](const auto& worker) { return worker->state == state; }));
}

// --- starting ------------------------------------------------------------------------------------------------------

void WorkerPool::wish() {
  size_t ready = count(WorkerProcess::State::ready);
  starts_.wish(number_, !closed_ && !retrying_ && failures_ == 0, prewarmed_ - std::min<size_t>(prewarmed_, ready));
  if (events_.starts_changed) events_.starts_changed();
}

WorkerProcess::Events WorkerPool::worker_events() {
  return {.on_message = [this](WorkerProcess& from, ipc::Message message) { on_message(from, std::move(message)); },
          .distrusted = [](WorkerProcess& from, const std::string& what) { end_distrusted(from, what); },
          .unwelcome = [this](OwnedDescriptor descriptor) { closer_.close(std::move(descriptor)); },
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
  (*worker)->start_began = std::chrono::steady_clock::now();
  starts_.begun(number_, (*worker)->pid(), (*worker)->start_began);
  workers_.push_back(std::move(*worker));
}

void WorkerPool::start_failed(const std::string& reason) {
  if (closed_) return;
  ++failures_;
  wish();
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

// --- clients -------------------------------------------------------------------------------------------------------

void WorkerPool::want(SessionId session, std::string label, std::string tenant) {
  if (closed_) {
    events_.refused(session, RefusalCause::shutting_down, "the server is shutting down");
    return;
  }
  if (events_.wanted) events_.wanted();
  starts_.wait(number_, session, tenant);
  waiting_.push_back({session, std::move(label), std::move(tenant), WorkerWait(std::chrono::steady_clock::now())});
  match();
  if (failures_ >= kStartAttemptsMax) {
    failures_ = kStartAttemptsMax - 1;  // so that this session causes one more attempt
    start_one();
  }
}

void WorkerPool::match() {
  match_again_ = true;
  if (matching_) return;  // an event of the loop below has called this again
  matching_ = true;
  while (std::exchange(match_again_, false)) {
    for (auto worker = workers_.begin(); worker != workers_.end() && !waiting_.empty(); ++worker) {
      if ((*worker)->state != WorkerProcess::State::ready) continue;
      auto chosen = starts_.take(number_);
      auto at = std::find_if(waiting_.begin(), waiting_.end(),
                             [&](const Waiting& one) { return chosen && one.session == *chosen; });
      if (at == waiting_.end()) break;
      Waiting one = std::move(*at);
      waiting_.erase(at);
      reserve(**worker, std::move(one));
    }
  }
  matching_ = false;
  trim();
  refuse_late();
  wish();
}

void WorkerPool::reserve(WorkerProcess& worker, Waiting one) {
  worker.state = WorkerProcess::State::reserved;
  worker.session = one.session;
  worker.label = std::move(one.label);
  worker.tenant = std::move(one.tenant);
  if (!one.client) return events_.reserved(one.session, worker.pid());
  hand_over(worker, std::move(*one.client));
  if (!one.stop.why.empty()) stop(one.session, one.stop);
}

WorkerProcess* WorkerPool::worker_of(SessionId session) {
  for (auto& worker : workers_) {
    bool busy = worker->state == WorkerProcess::State::reserved || worker->state == WorkerProcess::State::serving;
    if (busy && worker->session == session) return worker.get();
  }
  return nullptr;
}

void WorkerPool::give(SessionId session, ipc::Serve client) {
  WorkerProcess* worker = worker_of(session);
  if (worker && worker->state == WorkerProcess::State::reserved) hand_over(*worker, std::move(client));
}

void WorkerPool::hand_over(WorkerProcess& worker, ipc::Serve client) {
  if (events_.serving) events_.serving(worker.session, worker, client);
  ipc::Message message(std::move(client));
  if (worker.send(std::move(message))) {
    worker.state = WorkerProcess::State::serving;
    watch(worker);
    spdlog::debug("{}: worker {}", worker.label, worker.pid());
    return;
  }
  // The worker died a moment ago, and its end has not been reaped yet; the client goes to the next worker.
  worker.state = WorkerProcess::State::ending;
  worker.kill_after(0);
  starts_.wait(number_, worker.session, worker.tenant, true);
  waiting_.push_back({worker.session, worker.label, worker.tenant, WorkerWait(std::chrono::steady_clock::now()),
                      std::get<ipc::Serve>(std::move(message))});
  match();
}

void WorkerPool::adopt(SessionId session, std::string label, std::string tenant, OwnedDescriptor worker,
                       OwnedDescriptor process, pid_t pid) {
  auto adopted = WorkerProcess::adopt(io_, std::move(worker), std::move(process), pid, command_.users, worker_events());
  adopted->state = WorkerProcess::State::serving;
  adopted->session = session;
  adopted->label = std::move(label);
  adopted->tenant = std::move(tenant);
  watch(*adopted);
  workers_.push_back(std::move(adopted));
}

void WorkerPool::let_go() {
  for (auto& worker : workers_) {
    if (worker->state == WorkerProcess::State::serving) worker->let_go();
  }
}

void WorkerPool::release(SessionId session) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.session == session; });
  starts_.leave(session);
  WorkerProcess* worker = worker_of(session);
  if (!worker || worker->state != WorkerProcess::State::reserved) return;
  worker->state = WorkerProcess::State::ready;
  worker->label = fmt::format("worker {}", worker->pid());
  if (closed_) worker->kill_after(0);
  match();
}

bool WorkerPool::send(SessionId session, ipc::Message message) {
  WorkerProcess* worker = worker_of(session);
  return worker && worker->state == WorkerProcess::State::serving && worker->send(std::move(message));
}

void WorkerPool::watch(WorkerProcess& worker) {
  unread_.watch(&worker, worker.tenant, [&worker] { return worker.has_read_all(); });
}

bool WorkerPool::takes_descriptor(SessionId session) {
  WorkerProcess* worker = worker_of(session);
  return worker && unread_.room(worker);
}

bool WorkerPool::hand(SessionId session, ipc::Message message) {
  WorkerProcess* worker = worker_of(session);
  return worker && unread_.add(worker) && send(session, std::move(message));
}

OwnedDescriptor WorkerPool::process_of(SessionId session) {
  WorkerProcess* worker = worker_of(session);
  if (!worker || worker->state != WorkerProcess::State::serving) return {};
  return OwnedDescriptor(::fcntl(worker->process(), F_DUPFD_CLOEXEC, 0));
}

bool WorkerPool::stop(SessionId session, const StopOrder& order) {
  auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                              [&](const Waiting& one) { return one.session == session && one.client; });
  if (waiting != waiting_.end()) {
    waiting->stop = order;
    return true;
  }
  WorkerProcess* worker = worker_of(session);
  if (!worker || worker->state != WorkerProcess::State::serving) return false;
  worker->stop_reason = order.why;
  worker->send(ipc::Stop{order.why, order.kind});
  worker->kill_after(kWorkerExitMs);
  return true;
}

void WorkerPool::refuse_late() {
  auto now = std::chrono::steady_clock::now();
  while (!waiting_.empty() && waiting_.front().wait.ends() <= now) {
    SessionId session = waiting_.front().session;
    waiting_.pop_front();
    starts_.leave(session);
    events_.refused(session, RefusalCause::busy, fmt::format("no worker was ready within {} s", kWorkerWaitMs / 1000));
  }
  if (waiting_.empty()) {
    late_timer_.cancel();
    return;
  }
  std::vector<std::pair<SessionId, size_t>> told;
  auto next = waiting_.front().wait.next();
  size_t place = 0;
  for (Waiting& one : waiting_) {
    ++place;
    if (one.wait.must_notify(now)) told.emplace_back(one.session, place);
    next = std::min(next, one.wait.next());
  }
  late_timer_.expires_at(next);
  late_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) refuse_late();
  }));
  for (auto [session, at] : told) {
    if (events_.starting) events_.starting(session, at, place);
  }
}

void WorkerPool::refuse_all(RefusalCause cause, const std::string& reason) {
  std::list<Waiting> waiting = std::exchange(waiting_, {});
  late_timer_.cancel();
  for (const Waiting& one : waiting) starts_.leave(one.session);
  for (Waiting& one : waiting) events_.refused(one.session, cause, reason);
}

// --- what workers say ----------------------------------------------------------------------------------------------

void WorkerPool::on_message(WorkerProcess& worker, ipc::Message message) {
  auto others = [&](auto&) {
    if (worker.state == WorkerProcess::State::serving) events_.on_message(worker.session, message);
  };
  std::visit(ipc::Match{[&](ipc::Ready& ready) { worker_ready(worker, ready.inventory); },
                        [&](ipc::Failed& failed) {
                          worker.reason = failed.why;
                          worker.kill_after(kWorkerExitMs);
                        },
                        [&](ipc::Begun& begun) {
                          if (!std::exchange(worker.begun, true)) spdlog::debug("{}: {}", worker.label, begun.client);
                          if (worker.state == WorkerProcess::State::serving)
                            events_.begun(worker.session, begun.client);
                        },
                        [&](ipc::Note& note) {
                          if (++worker.notes <= kWorkerNotesMax) spdlog::warn("{}: {}", worker.label, note.text);
                        },
                        [&](ipc::Ended& ended) {
                          worker.reason = ended.why;
                          worker.end_cause = ended.cause;
                          worker.kill_after(kWorkerExitMs);
                        },
                        [&](ipc::Share& share) { answer_share(worker, std::move(share)); },
                        [&](ipc::Claim& claim) { answer_claim(worker, claim); },
                        [&](ipc::Withdraw& withdraw) {
                          if (shares_.withdraw(&worker, withdraw.token) && keeping_)
                            keeping_->remove(kept_name(withdraw.token));
                        },
                        others},
             message);
}

void WorkerPool::end_distrusted(WorkerProcess& worker, const std::string& what) {
  worker.end_cause = EndCause::internal;
  worker.reason = "its worker sent the broker " + what;
  worker.kill_after(0);
}

// The worker names the tenant's user of the share; the broker, not the worker, names the tenant.
void WorkerPool::answer_share(WorkerProcess& worker, ipc::Share share) {
  OwnedDescriptor kept(keeping_ ? ::fcntl(share.descriptor.get(), F_DUPFD_CLOEXEC, 0) : -1);
  // An earlier broker may have added the share, and died before its answer arrived.
  bool added = shares_.has(&worker, share.token) ||
               shares_.add(&worker, share.token, share.kind, {worker.tenant, share.user}, std::move(share.descriptor));
  if (added && kept) keep_share(worker.session, share.token, share.kind, share.user, std::move(kept));
  worker.send(ipc::Answer{share.request, added, {}});  // a worker that cannot be told is ending, or stops waiting
}

void WorkerPool::answer_claim(WorkerProcess& worker, const ipc::Claim& claim) {
  ipc::Answer answer{claim.request, false, {}};
  if (int found = shares_.find(claim.token, claim.kind, {worker.tenant, claim.user});
      found >= 0 && unread_.add(&worker)) {
    answer.descriptor.reset(::fcntl(found, F_DUPFD_CLOEXEC, 0));
    answer.yes = bool(answer.descriptor);
  }
  worker.send(std::move(answer));
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

void WorkerPool::worker_ready(WorkerProcess& worker, const Inventory& inventory) {
  if (worker.state != WorkerProcess::State::starting) return;
  starts_.settled(worker.pid());
  worker.state = WorkerProcess::State::ready;
  worker.cancel_kill();
  failures_ = 0;
  if (events_.started) events_.started(std::chrono::steady_clock::now() - worker.start_began);
  if (closed_) {
    worker.kill_after(0);
    return;
  }
  events_.ready(inventory);
  for (Waiting& one : waiting_) one.wait.worker_ready(std::chrono::steady_clock::now());
  match();
}

// --- the end of workers --------------------------------------------------------------------------------------------

void WorkerPool::await_children() {
  children_.async_wait(lifetime_.guard([this](boost::system::error_code error, int) {
    if (error) return;
    reap();
    await_children();
  }));
}

// One SIGCHLD may stand for several processes. All of them are reaped before the first end is reported, so that
// `reaped` observers account for them once.
void WorkerPool::reap() {
  std::list<std::pair<std::unique_ptr<WorkerProcess>, std::string>> reaped;
  for (auto it = workers_.begin(); it != workers_.end();) {
    const pid_t pid = (*it)->pid();
    std::optional<std::string> how = (*it)->reap();
    if (!how) {
      ++it;
      continue;
    }
    reaped.emplace_back(std::move(*it), std::move(*how));
    it = workers_.erase(it);
    starts_.settled(pid);
  }
  if (!reaped.empty() && events_.reaped) events_.reaped();
  for (const auto& [worker, how] : reaped) ended(*worker, how);
  match();
  if (idle()) events_.idle();
}

void WorkerPool::ended(WorkerProcess& worker, const std::string& how) {
  unread_.forget(&worker);
  if (worker.notes > kWorkerNotesMax)
    spdlog::warn("{}: {} more notes of its worker are left out", worker.label, worker.notes - kWorkerNotesMax);
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
      else spdlog::debug("{}: ended: {}", worker.label, worker.reason);
      if (worker.state == WorkerProcess::State::serving)
        events_.over(worker.session, worker.end_cause ? uint32_t(*worker.end_cause) : SessionEvent::kDied,
                     worker.reason);
      break;
  }
}

// A worker that was told to stop may hang in a kernel that never ends, until it is killed: that counts as the ordered
// stop, not as a crash.
void WorkerPool::ended_silently(WorkerProcess& worker, const std::string& how) {
  worker.reason = fmt::format("its process ended with {}", how);
  spdlog::error("{}: {}", worker.label, worker.reason);
  if (worker.stop_reason.empty()) return;
  worker.end_cause = EndCause::stopped;
  worker.reason = fmt::format("{} ({})", worker.stop_reason, worker.reason);
}

void WorkerPool::close(const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  wish();
  retry_timer_.cancel();
  refuse_all(RefusalCause::shutting_down, reason);
  for (auto& worker : workers_) {
    if (worker->state == WorkerProcess::State::serving || worker->state == WorkerProcess::State::reserved) continue;
    worker->kill_after(0);
  }
}

}  // namespace gpuwire::server
