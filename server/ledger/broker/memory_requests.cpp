// The requests of workers for more memory: answered at once, or when there is memory for them.
#include <algorithm>
#include <map>
#include <utility>

#include "server/ledger/broker/broker_ledger.hpp"

namespace gpuwire::server {

namespace {

using scheduler::DeviceIndex;
using scheduler::SessionId;
using scheduler::TenantId;

}  // namespace

bool BrokerLedger::on_message(const SessionRecord& session, ipc::Message& message) {
  auto* wanted = std::get_if<ipc::MemoryWanted>(&message);
  if (!wanted) return false;
  if (!ledger_ || wanted->column >= ledger_->device_count() || wanted->column >= kPageDevicesMax) {
    answer(session.number, wanted->request, false);
    return true;
  }
  Raised raised = raise(session.tenant_id, session.number, wanted->column, wanted->bytes, wanted->ahead);
  const size_t of_session = waiters_.count_if([&](const Waiter& waiter) { return waiter.session == session.number; });
  std::chrono::milliseconds most = raised == Raised::prewarmed_end ? kPrewarmedEnd : settings_.shortage;
  if (raised == Raised::short_of_memory)
    most = std::max<std::chrono::milliseconds>(most, held_ahead_by_others(session.tenant_id));
  const auto now = std::chrono::steady_clock::now();
  Waiter waiter{session.number, session.tenant_id, wanted->column, wanted->bytes, wanted->request, now, now + most};
  const bool may_wait = raised != Raised::yes && !wanted->ahead && of_session < kMemoryWaitersPerSessionMax;
  // Prewarmed workers that were told to end free enough.
  const auto relief = may_wait && raised != Raised::prewarmed_end ? relieve(waiter) : std::chrono::milliseconds(0);
  extend(waiter, relief);
  const bool waits = may_wait && (relief.count() != 0 || may_come(raised)) && waiters_.open(waiter);
  if (waits) await_next_poll();
  else answer(session.number, wanted->request, raised == Raised::yes);
  return true;
}

void BrokerLedger::answer(SessionId session, ipc::RequestId request, bool yes) {
  control_.send(session,
                ipc::Answer{request, yes, {}});  // a worker that cannot be notified is ending, or gives up waiting
}

std::chrono::milliseconds BrokerLedger::relieve(const Waiter& waiter) {
  switch (relieve_ ? relieve_(waiter.session, waiter.column, waiter.bytes) : SuspensionRelief::none) {
    case SuspensionRelief::none: break;
    case SuspensionRelief::perhaps: return kQuietWait;
    case SuspensionRelief::coming: return kSuspensionWait;
  }
  return std::chrono::milliseconds(0);
}

void BrokerLedger::extend(Waiter& waiter, std::chrono::milliseconds relief) const {
  if (relief.count() == 0) return;
  const auto later = std::min(std::chrono::steady_clock::now() + settings_.shortage, waiter.since + relief);
  waiter.until = std::max(waiter.until, later);
}

void BrokerLedger::poll_waiters() {
  Poll poll(this);
  const auto now = std::chrono::steady_clock::now();
  // A request that is as large as a refused one of the same tenant, or larger, cannot be met either, and no more
  // sessions are suspended for it.
  struct Refused {
    uint64_t least_bytes = UINT64_MAX;
    std::chrono::milliseconds relief{0};
  };
  std::map<std::pair<TenantId, uint32_t>, Refused> all_refused;
  waiters_.visit_all([&](ipc::RequestId, Waiter& waiter) {
    Refused& refused = all_refused[{waiter.tenant, waiter.column}];
    const bool as_before = waiter.bytes >= refused.least_bytes &&
                           !beyond_limit(waiter.tenant, waiter.column, waiter.bytes) &&
                           !beyond_user_limit(tenants_[waiter.tenant], waiter.session, waiter.column, waiter.bytes);
    const Raised raised =
        as_before ? Raised::short_of_memory : raise(waiter.tenant, waiter.session, waiter.column, waiter.bytes, false);
    if (!as_before && raised != Raised::yes && raised != Raised::prewarmed_end) refused.relief = relieve(waiter);
    const bool may = raised != Raised::yes && (may_come(raised) || refused.relief.count() != 0);
    if (may) {
      refused.least_bytes = std::min(refused.least_bytes, waiter.bytes);
      extend(waiter, refused.relief);
      if (now < waiter.until) return false;
    }
    answer(waiter.session, waiter.request, raised == Raised::yes);
    return true;
  });
  await_next_poll();
}

void BrokerLedger::await_next_poll() {
  if (waiters_.empty() || polling_) return;
  polling_ = true;
  timer_.expires_after(kMemoryShortagePoll);
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    polling_ = false;
    if (!error) poll_waiters();
  }));
}

// Tenants take and release lent memory without a message. If there are several tenants, the broker repeatedly updates
// the reach of each.
void BrokerLedger::keep_reach_fresh() {
  auto pages = std::count_if(tenants_.begin(), tenants_.end(), [](const auto& one) { return bool(one.second.page); });
  if (reach_polling_ || pages < 2 || reservations_.empty()) return;
  reach_polling_ = true;
  reach_timer_.expires_after(kReachPoll);
  reach_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    reach_polling_ = false;
    if (error) return;
    refresh();
    keep_reach_fresh();
  }));
}

void BrokerLedger::refresh() {
  for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) write_metrics(device);
}

}  // namespace gpuwire::server
