#include "server/broker/worker/worker_starts.hpp"

#include <algorithm>
#include <utility>

namespace gpuwire::server {
namespace {

uint64_t turn_of(const std::map<std::string, uint64_t>& turns, const std::string& tenant) {
  auto found = turns.find(tenant);
  return found == turns.end() ? 0 : found->second;
}

}  // namespace

template <class Iterator>
Iterator WorkerStarts::least_recent(Iterator begin, Iterator end, const Turns& turns) {
  return std::min_element(
      begin, end, [&](const auto& a, const auto& b) { return turn_of(turns, a->tenant) < turn_of(turns, b->tenant); });
}

void WorkerStarts::wait(Pool pool, SessionId session, std::string tenant, bool first) {
  auto at = waiting_.end();
  if (first) at = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& one) { return one.tenant == tenant; });
  waiting_.insert(at, {session, std::move(tenant), pool});
}

void WorkerStarts::leave(SessionId session) {
  waiting_.remove_if([&](const Waiting& one) { return one.session == session; });
  if (waiting_.empty()) turns_.clear();  // no tenant was passed over
}

std::optional<scheduler::SessionId> WorkerStarts::take(Pool pool) {
  std::vector<std::list<Waiting>::iterator> here;
  for (auto one = waiting_.begin(); one != waiting_.end(); ++one) {
    if (one->pool == pool) here.push_back(one);
  }
  auto chosen = least_recent(here.begin(), here.end(), turns_);
  if (chosen == here.end()) return std::nullopt;
  const SessionId session = (*chosen)->session;
  turns_[(*chosen)->tenant] = ++last_turn_;
  leave(session);
  return session;
}

void WorkerStarts::wish(Pool pool, bool open, size_t prewarmed) { wishes_[pool] = {open, prewarmed}; }

void WorkerStarts::begun(Pool pool, pid_t worker, Time now) { starts_.push_back({worker, pool, now}); }

void WorkerStarts::settled(pid_t worker) {
  std::erase_if(starts_, [&](const Start& start) { return start.worker == worker; });
}

void WorkerStarts::forget(Pool pool) {
  wishes_.erase(pool);
  std::erase_if(starts_, [&](const Start& start) { return start.pool == pool; });
  waiting_.remove_if([&](const Waiting& one) { return one.pool == pool; });
}

std::optional<WorkerStarts::Pool> WorkerStarts::next(Time now) const {
  auto holding = std::count_if(starts_.begin(), starts_.end(),
                               [&](const Start& start) { return now - start.since < limits_.hold; });
  if (size_t(holding) >= limits_.parallel_max) return std::nullopt;
  std::map<Pool, size_t> on_their_way;
  for (const Start& start : starts_) ++on_their_way[start.pool];

  std::vector<const Waiting*> rest;
  for (const Waiting& one : waiting_) rest.push_back(&one);
  // Simulates take() for each session, so that tenants take turns here, too.
  Turns turns = turns_;
  for (uint64_t turn = last_turn_; !rest.empty();) {
    auto one = least_recent(rest.begin(), rest.end(), turns);
    const Pool pool = (*one)->pool;
    turns[(*one)->tenant] = ++turn;
    rest.erase(one);
    if (on_their_way[pool] > 0) --on_their_way[pool];
    else if (auto wish = wishes_.find(pool); wish != wishes_.end() && wish->second.open) return pool;
  }
  const size_t for_prewarmed =
      limits_.parallel_max > limits_.for_sessions ? limits_.parallel_max - limits_.for_sessions : 1;
  if (size_t(holding) >= for_prewarmed) return std::nullopt;
  for (const auto& [pool, wish] : wishes_) {
    if (wish.open && wish.prewarmed > on_their_way[pool]) return pool;
  }
  return std::nullopt;
}

std::optional<WorkerStarts::Time> WorkerStarts::next_change(Time now) const {
  std::optional<Time> first;
  for (const Start& start : starts_) {
    const Time until = start.since + limits_.hold;
    if (until > now && (!first || until < *first)) first = until;
  }
  return first;
}

}  // namespace gpuwire::server
