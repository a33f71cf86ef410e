// The memory of suspended sessions: released for others while it is with the host, and taken again.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "server/ledger/broker/broker_ledger.hpp"

namespace gpuwire::server {

namespace {

using scheduler::DeviceIndex;
using scheduler::difference;

}  // namespace

std::string BrokerLedger::why_not_released(const SessionRecord& session) const {
  const auto held = held_by(session.number, session.tenant_id);
  if (!held) return "it has no account of memory";
  const TenantPage& page = **held->state->page;
  bool shares = page.slot[held->slot].imports.load() != 0;
  for (const PageColumn& column : page.column) shares |= column.shared[held->slot].load() != 0;
  return shares ? "it shares device memory with other sessions" : std::string();
}

// A worker writes its own words: they count as at most the device's memory, because the host guard permits as much of
// the server's own.
uint64_t BrokerLedger::releasable_on(const Held& of, DeviceIndex device) const {
  return std::min(whole_bytes(of, device), device < totals_.size() ? totals_[device] : 0);
}

uint64_t BrokerLedger::releasable_bytes(const SessionRecord& session, DeviceIndex device) const {
  const auto held = held_by(session.number, session.tenant_id);
  return held && device < kPageDevicesMax ? releasable_on(*held, device) : 0;
}

uint64_t BrokerLedger::releasable_bytes(const SessionRecord& session) const {
  uint64_t bytes = 0;
  for (DeviceIndex device : session.devices) bytes += releasable_bytes(session, device);
  return bytes;
}

uint64_t BrokerLedger::away_bytes(const SessionRecord& session, DeviceIndex device) const {
  const auto held = held_by(session.number, session.tenant_id);
  return held && device < kPageDevicesMax ? bounded((*held->state->page)->column[device].away[held->slot].load()) : 0;
}

MemoryShortage BrokerLedger::shortage(const SessionRecord& session, DeviceIndex device, uint64_t bytes) const {
  const auto found = tenants_.find(session.tenant_id);
  if (!ledger_ || found == tenants_.end()) return {MemoryShortage::Of::device, bytes};
  if (const uint64_t limit = session.user.empty() ? 0 : user_limit(found->second, session.user); limit != 0) {
    const uint64_t room = difference(limit, held_of_user(found->second, session.user, device));
    if (bytes > room) return {MemoryShortage::Of::user, bytes - room};
  }
  const uint64_t held = held_now(found->second, device);
  const uint64_t room = difference(ledger_->share(session.tenant_id, device).limit_bytes, held);
  if (bytes > room) return {MemoryShortage::Of::tenant, bytes - room};
  return {MemoryShortage::Of::device, difference(bytes, free_bytes(session.tenant_id, device))};
}

bool BrokerLedger::is_away(scheduler::SessionId session, scheduler::TenantId tenant) const {
  const auto held = held_by(session, tenant);
  if (!held) return false;
  const auto& columns = (*held->state->page)->column;
  return std::any_of(std::begin(columns), std::end(columns),
                     [&](const PageColumn& column) { return column.away[held->slot].load() != 0; });
}

uint64_t BrokerLedger::release_memory(const SessionRecord& session) {
  const auto held = held_by(session.number, session.tenant_id);
  if (!held) return 0;
  TenantPage& page = **tenants_[session.tenant_id].page;
  uint64_t bytes = 0;
  for (DeviceIndex device : session.devices) {
    if (device >= kPageDevicesMax) continue;
    const uint64_t away = releasable_on(*held, device);
    page.column[device].away[held->slot] = away;
    bytes += away;
  }
  forget_poll();
  for (DeviceIndex device : session.devices) write_metrics(device);
  return bytes;
}

void BrokerLedger::offer_memory() {
  poll_waiters();
  control_.reconsider_waiting();
}

bool BrokerLedger::take_memory(const SessionRecord& session) {
  const auto held = held_by(session.number, session.tenant_id);
  if (!held) return false;
  forget_poll();
  TenantState& state = tenants_[session.tenant_id];
  std::vector<std::pair<DeviceIndex, uint64_t>> taken;
  bool all = true;
  for (DeviceIndex device : session.devices) {
    if (device >= kPageDevicesMax) continue;
    const uint64_t away = bounded((*state.page)->column[device].away[held->slot].load());
    all = take_memory_on(state, session, held->slot, device);
    if (!all) break;
    taken.emplace_back(device, away);
  }
  if (!all)
    for (const auto& [device, away] : taken) (*state.page)->column[device].away[held->slot] = away;
  forget_poll();
  for (DeviceIndex device : session.devices) write_metrics(device);
  return all;
}

// As a worker does, the broker first adds the bytes to the held memory, and then checks the sum: a worker of the tenant
// that takes the raised allowance meanwhile has either been counted in this sum, or sees the session's memory in its
// own.
bool BrokerLedger::take_memory_on(TenantState& state, const SessionRecord& session, uint32_t slot, DeviceIndex device) {
  std::atomic<uint64_t>& word = (*state.page)->column[device].away[slot];
  const uint64_t away = bounded(word.load());
  if (away == 0) return true;
  if (raise(session.tenant_id, session.number, device, away, false) != Raised::yes) return false;
  word = 0;
  if (held(state, device) <= ledger_->allowance(session.tenant_id, device) &&
      !beyond_user_limit(state, session.number, device, 0))
    return true;
  word = away;
  return false;
}

}  // namespace gpuwire::server
