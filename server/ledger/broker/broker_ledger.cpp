#include "server/ledger/broker/broker_ledger.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace gpuwire::server {
namespace {

using scheduler::DeviceIndex;
using scheduler::difference;
using scheduler::SessionId;
using scheduler::TenantId;

// A context takes 616 MiB on an H200. A larger measurement includes the memory of other processes, which may use the
// device, too.
constexpr uint64_t kContextBytesMax = 1u << 30;
// The memory that the driver takes for itself while a device is used: frames of kernels, late-loaded code, unusable
// fragments.
constexpr uint64_t kDriverBytes = 256u << 20;

// The prefix of a keeper entry; the tenant's name follows. The entry has the tenant's pages and the record of its
// allowances.
const std::string kKeptPrefix = "memory/";

}  // namespace

// --- sessions and spares -------------------------------------------------------------------------------------------

void BrokerLedger::devices_known(std::span<const ServerDevice> devices) {
  if (ledger_) return;
  // A ready worker has a context only on its first device; contexts on other devices take as much.
  uint64_t context = devices.empty() ? 0 : std::min(devices[0].taken_bytes, kContextBytesMax);
  // Counts only the permanent prewarmed workers; the contexts of others are optional_bytes of the ledger.
  uint64_t kept = context ? context * settings_.prewarmed_workers + kDriverBytes : 0;
  std::vector<uint64_t> bytes;
  for (const ServerDevice& device : devices) {
    totals_.push_back(device.bytes);
    context_bytes_.push_back(context);
    bytes.push_back(difference(device.bytes, kept + difference(device.taken_bytes, context)));
  }
  ledger_.emplace(std::move(bytes));
}

void BrokerLedger::tenants_changed(const TenantDirectory& tenants) {
  if (!ledger_) return;
  auto share_of = [](const Tenant& tenant, DeviceIndex device) {
    const TenantMemory memory = memory_on(tenant.settings, device);
    return scheduler::MemoryShare{.guaranteed_bytes = memory.guaranteed_bytes,
                                  .limit_bytes = memory.limit_bytes ? memory.limit_bytes : UINT64_MAX};
  };
  // Memory that one tenant's guarantee loses may go to another's, so the losing tenants come first.
  for (bool growing : {false, true}) {
    for (const Tenant& tenant : tenants.all()) {
      TenantState& state = tenants_[tenant.id];
      state.name = tenant.settings.name;
      state.settings = tenant.settings;
      state.host_bytes = tenant.settings.host_memory_bytes ? tenant.settings.host_memory_bytes : settings_.host_bytes;
      for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) {
        scheduler::MemoryShare share =
            tenant.known || !state.slots.empty() ? share_of(tenant, device) : scheduler::MemoryShare{};
        if ((share.guaranteed_bytes > ledger_->share(tenant.id, device).guaranteed_bytes) != growing) continue;
        if (auto error = ledger_->set_tenant(tenant.id, device, share)) {
          spdlog::error("tenant {}: {}: nothing is guaranteed to it there", tenant.settings.name, *error);
          share.guaranteed_bytes = 0;
          static_cast<void>(ledger_->set_tenant(tenant.id, device, share));
        }
      }
    }
  }
  for (auto& [tenant, state] : tenants_) {
    write_host_allowance(state);
    for (const auto& [session, slot] : state.slots) write_user(state, session, slot);
    for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) take_back(tenant, device);
  }
  for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) {
    // A grown guarantee may claim memory of prewarmed contexts.
    if (const uint64_t has = ledger_->optional_bytes(device), may = ledger_->optional_max(device); has > may)
      end_prewarmed(device, has - may);
    write_metrics(device);
  }
  poll_waiters();
}

// --- sessions ------------------------------------------------------------------------------------------------------

tl::expected<BrokerLedger::TenantState*, std::string> BrokerLedger::with_page(TenantId tenant) {
  TenantState& state = tenants_[tenant];
  if (state.page) return &state;
  auto page = SharedPage<TenantPage>::create();
  if (!page) return tl::unexpected(page.error());
  auto users = SharedPage<UserPage>::create();
  if (!users) return tl::unexpected(users.error());
  state.page.emplace(std::move(*page));
  state.users.emplace(std::move(*users));
  TenantPage& fresh = **state.page;
  fresh.slots = state.slots_used = kLeftSlot + 1;
  keep(state);
  for (DeviceIndex device = 0; device < ledger_->device_count() && device < kPageDevicesMax; ++device) {
    write_allowance(state, device, ledger_->allowance(tenant, device));
    fresh.column[device].context_bytes = context_bytes_[device];
    write_metrics(device);
  }
  write_host_allowance(state);
  return &state;
}

void BrokerLedger::write_host_allowance(TenantState& state) {
  if (!state.page) return;
  PageColumn& column = (*state.page)->column[kHostColumn];
  column.limit = state.host_bytes ? state.host_bytes : kPageBytesMax;
  column.allowance = state.host_bytes ? difference(state.host_bytes, state.chunk_bytes) : kPageBytesMax;
}

void BrokerLedger::charge_chunks(TenantId tenant, uint64_t bytes) {
  TenantState& state = tenants_[tenant];
  state.chunk_bytes = bytes;
  write_host_allowance(state);
}

// --- state that outlives the broker --------------------------------------------------------------------------------

// A page without its record counts as one that does not outlive the broker.
void BrokerLedger::keep(TenantState& state) {
  if (!settings_.keeping) return;
  if (!state.kept) {
    auto record = SharedPage<AllowancePage>::create();
    if (record) state.kept.emplace(std::move(*record));
  }
  KeptEntry entry{.session = false, .name = kKeptPrefix + state.name, .text = {}, .descriptors = {}};
  bool all = bool(state.kept);
  for (const int page : {state.page->descriptor(), all ? state.kept->descriptor() : -1, state.users->descriptor()})
    all &= bool(entry.descriptors.emplace_back(::fcntl(page, F_DUPFD_CLOEXEC, 0)));
  if (all) return settings_.keeping->put(std::move(entry));
  state.kept.reset();
  spdlog::warn("tenant {}: no descriptors: its sessions will not outlive this process", state.name);
}

void BrokerLedger::let_page_go(TenantState& state) {
  state.page.reset();
  state.users.reset();
  state.kept.reset();
  if (settings_.keeping) settings_.keeping->remove(kKeptPrefix + state.name);
}

// The record is never lower than the page, so no other tenant gets the difference meanwhile.
void BrokerLedger::write_allowance(TenantState& state, DeviceIndex device, uint64_t bytes) {
  if (device >= kPageDevicesMax) return;
  const bool grows = state.kept && (*state.kept)->bytes[device] < bytes;
  if (grows) (*state.kept)->bytes[device] = bytes;
  (*state.page)->column[device].allowance = bytes;
  if (state.kept && !grows) (*state.kept)->bytes[device] = bytes;
}

void BrokerLedger::note(const SessionRecord& session, KeptSession& kept) const {
  auto tenant = tenants_.find(session.tenant_id);
  if (tenant == tenants_.end()) return;
  if (auto slot = tenant->second.slots.find(session.number); slot != tenant->second.slots.end())
    kept.ledger_slot = slot->second;
}

void BrokerLedger::restore(std::vector<KeptEntry>& entries, const TenantDirectory& tenants) {
  if (!ledger_) return;
  adopting_ = true;
  for (const Tenant& tenant : tenants.all()) {
    auto entry = std::find_if(entries.begin(), entries.end(),
                              [&](const KeptEntry& one) { return one.name == kKeptPrefix + tenant.settings.name; });
    // An entry of an older server has two descriptors, without the users' page: only the tenant's limit applies to its
    // sessions.
    if (entry == entries.end() || entry->descriptors.size() < 2 || entry->descriptors.size() > 3) continue;
    auto page = SharedPage<TenantPage>::map(std::move(entry->descriptors[0]));
    auto record = SharedPage<AllowancePage>::map(std::move(entry->descriptors[1]));
    TenantState& state = tenants_[tenant.id];
    state.name = tenant.settings.name;
    state.settings = tenant.settings;
    auto users = entry->descriptors.size() == 3 ? SharedPage<UserPage>::map(std::move(entry->descriptors[2]))
                                                : SharedPage<UserPage>::create();
    // Without its pages the tenant's sessions are not adopted, and end.
    if (!page || !record || !users) {
      spdlog::error("tenant {}: {}", state.name, !page ? page.error() : !record ? record.error() : users.error());
      continue;
    }
    state.page.emplace(std::move(*page));
    state.users.emplace(std::move(*users));
    state.kept.emplace(std::move(*record));
    if (entry->descriptors.size() == 2) keep(state);
    for (DeviceIndex device = 0; device < ledger_->device_count() && device < kPageDevicesMax; ++device)
      ledger_->restore(tenant.id, device, (*state.kept)->bytes[device]);
  }
}

tl::expected<void, std::string> BrokerLedger::adopt(const SessionRecord& session, const KeptSession& kept, KeptEntry&) {
  auto found = tenants_.find(session.tenant_id);
  if (!ledger_ || found == tenants_.end() || !found->second.page)
    return tl::unexpected(std::string("the server has lost its tenant's account of memory"));
  TenantState& state = found->second;
  bool taken = std::any_of(state.slots.begin(), state.slots.end(),
                           [&](const auto& other) { return other.second == kept.ledger_slot; });
  bool right = session.management ? kept.ledger_slot == kLeftSlot
                                  : kept.ledger_slot != kLeftSlot && kept.ledger_slot < kPageSlotsMax && !taken;
  if (!right) return tl::unexpected(std::string("its account of memory cannot be found again"));
  state.slots[session.number] = kept.ledger_slot;
  if (session.management) return {};
  if (!session.user.empty()) state.user_of[session.number] = session.user;
  write_user(state, session.number, kept.ledger_slot);
  PageSlot& slot = (*state.page)->slot[kept.ledger_slot];
  slot.client_pid = session.client_pid;
  slot.session = uint64_t(session.number);
  // The reservation is restored as it was admitted: the restored allowance has room for it.
  for (DeviceIndex device : session.devices) {
    if (session.memory_bytes && device < kPageDevicesMax)
      state.reserved[device][kept.ledger_slot] = bounded(session.memory_bytes);
  }
  if (session.memory_bytes) reservations_[session.number] = session.tenant_id;
  return {};
}

// Memory without a session is released, whatever the page contains.
void BrokerLedger::all_adopted() {
  adopting_ = false;
  for (auto& [tenant, state] : tenants_) {
    if (!state.page) continue;
    if (state.slots.empty()) {
      let_page_go(state);
      for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) take_back(tenant, device);
      continue;
    }
    std::array<bool, kPageSlotsMax> held{};
    held[kLeftSlot] = true;
    state.slots_used = kLeftSlot + 1;
    for (const auto& [session, slot] : state.slots) {
      held[slot] = true;
      state.slots_used = std::max(state.slots_used, slot + 1);
    }
    TenantPage& page = **state.page;
    for (uint32_t slot = 0; slot < kPageSlotsMax; ++slot) {
      if (held[slot]) continue;
      clear_slot(page, slot);
      (*state.users)->user[slot] = 0;
    }
    page.slots = state.slots_used;
    for (DeviceIndex device = 0; device < ledger_->device_count() && device < kPageDevicesMax; ++device) {
      page.column[device].context_bytes = context_bytes_[device];
      auto reserved = state.reserved.find(device);
      for (uint32_t slot = 0; slot < kPageSlotsMax; ++slot)
        page.column[device].reserved[slot] = reserved == state.reserved.end() ? 0 : reserved->second[slot];
      write_allowance(state, device, ledger_->allowance(tenant, device));
      take_back(tenant, device);
    }
  }
  keep_reach_fresh();
  for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) write_metrics(device);
}

std::optional<uint32_t> BrokerLedger::free_slot(const TenantState& state) const {
  // Decides by the broker's own slots, not by the page, which the tenant's workers can write.
  std::array<bool, kPageSlotsMax> taken{};
  for (const auto& [session, slot] : state.slots) taken[slot] = true;
  taken[kLeftSlot] = true;
  auto free = std::find(taken.begin(), taken.end(), false);
  if (free == taken.end()) return std::nullopt;
  return uint32_t(free - taken.begin());
}

tl::expected<void, std::string> BrokerLedger::hand_page(const SessionRecord& session, uint32_t slot, SessionSpec& spec,
                                                        ipc::SessionDescriptors& descriptors) {
  TenantState& state = tenants_[session.tenant_id];
  descriptors.tenant_page.reset(::fcntl(state.page->descriptor(), F_DUPFD_CLOEXEC, 0));
  if (!descriptors.tenant_page) return tl::unexpected(std::string("no descriptor is left"));
  descriptors.user_page.reset(::fcntl(state.users->descriptor(), F_DUPFD_CLOEXEC, 0));
  if (!descriptors.user_page) return tl::unexpected(std::string("no descriptor is left"));
  spec.ledger_slot = slot;
  spec.ledger_user = user_key(session.user);
  spec.user_limit_bytes = user_limit(state, session.user);
  spec.host_memory_bytes = state.host_bytes;
  for (SessionSpec::Device& device : spec.devices) {
    uint64_t limit = ledger_->share(session.tenant_id, device.index).limit_bytes;
    if (spec.user_limit_bytes) limit = std::min(limit, spec.user_limit_bytes);
    if (device.index < totals_.size() && limit < totals_[device.index]) device.limit_bytes = limit;
  }
  state.slots[session.number] = slot;
  return {};
}

tl::expected<void, std::string> BrokerLedger::attach(const SessionRecord& session, SessionSpec& spec,
                                                     ipc::SessionDescriptors& descriptors) {
  if (!ledger_) return tl::unexpected(std::string("the server does not know its devices yet"));
  auto state = with_page(session.tenant_id);
  if (!state) return tl::unexpected(state.error());
  TenantState& of = **state;
  // A session with a reservation already has its slot.
  auto reserved = of.slots.find(session.number);
  auto slot = reserved == of.slots.end() ? free_slot(of) : std::optional(reserved->second);
  if (!slot) return tl::unexpected(fmt::format("tenant {} has {} sessions already", session.tenant, kPageSlotsMax - 1));
  TenantPage& page = **of.page;
  take_slot(of, session.number, session.user, *slot);
  page.slot[*slot].client_pid = session.client_pid;
  auto handed = hand_page(session, *slot, spec, descriptors);
  if (!handed) give_back_all(session.number, session.tenant_id);
  keep_reach_fresh();
  return handed;
}

// Takes a slot before its worker writes there: sums have to include the slot from now on.
void BrokerLedger::take_slot(TenantState& state, SessionId session, const std::string& user, uint32_t slot) {
  TenantPage& page = **state.page;
  if (!user.empty()) state.user_of[session] = user;
  write_user(state, session, slot);
  state.slots_used = std::max(state.slots_used, slot + 1);
  page.slots = state.slots_used;
  page.slot[slot].session = uint64_t(session);
  state.slots[session] = slot;
}

void BrokerLedger::write_user(TenantState& state, SessionId session, uint32_t slot) {
  if (!state.users || slot == kLeftSlot) return;
  const auto user = state.user_of.find(session);
  const std::string name = user == state.user_of.end() ? std::string() : user->second;
  (*state.users)->limit[slot] = user_limit(state, name);
  (*state.users)->user[slot] = user_key(name);
}

tl::expected<void, std::string> BrokerLedger::attach_management(const SessionRecord& session, SessionSpec& spec,
                                                                ipc::SessionDescriptors& descriptors) {
  if (!ledger_) return {};
  if (auto state = with_page(session.tenant_id); !state) return tl::unexpected(state.error());
  for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) spec.devices.push_back({.index = device});
  return hand_page(session, kLeftSlot, spec, descriptors);
}

void BrokerLedger::ended(const SessionRecord& session) {
  waiters_.drop_if([&](const Waiter& waiter) { return waiter.session == session.number; });
  if (!give_back_all(session.number, session.tenant_id)) return;
  poll_waiters();
  control_.reconsider_waiting();
}

bool BrokerLedger::give_back_all(SessionId session, TenantId tenant) {
  forget_poll();
  reservations_.erase(session);
  auto found = tenants_.find(tenant);
  if (found == tenants_.end() || !found->second.page) return false;
  TenantState& state = found->second;
  TenantPage& page = **state.page;
  auto slot = state.slots.extract(session);
  if (!slot) return false;
  state.user_of.erase(session);
  if (slot.mapped() != kLeftSlot) {
    for (auto& [device, reserved] : state.reserved) reserved[slot.mapped()] = 0;
    clear_slot(page, slot.mapped());
    (*state.users)->user[slot.mapped()] = 0;
  }
  forget_poll();
  bool imports = std::any_of(state.slots.begin(), state.slots.end(),
                             [&](const auto& other) { return page.slot[other.second].imports.load() != 0; });
  if (!imports) {
    for (PageColumn& column : page.column) column.used[kLeftSlot] = 0;
  }
  for (DeviceIndex device = 0; device < ledger_->device_count(); ++device) {
    take_back(tenant, device);
    write_metrics(device);
  }
  if (state.slots.empty()) let_page_go(state);
  return true;
}

// --- reservations --------------------------------------------------------------------------------------------------

bool BrokerLedger::reserve(SessionId session, TenantId tenant, const std::string& user,
                           std::span<const DeviceIndex> devices, uint64_t bytes) {
  if (!ledger_ || bytes >= kPageBytesMax) return false;
  forget_poll();
  auto state = with_page(tenant);
  if (!state) {
    spdlog::error("session {}: no memory can be reserved: {}", uint64_t(session), state.error());
    return false;
  }
  auto slot = free_slot(**state);
  if (!slot) return false;
  take_slot(**state, session, user, *slot);
  bool all = std::all_of(devices.begin(), devices.end(), [&](DeviceIndex device) {
    return device < kPageDevicesMax && reserve_on(**state, tenant, session, device, *slot, bytes);
  });
  if (!all) {
    give_back_all(session, tenant);
    return false;
  }
  reservations_[session] = tenant;
  forget_poll();
  for (DeviceIndex device : devices) write_metrics(device);
  keep_reach_fresh();
  return true;
}

// The page's allowance is lowered by the reservation before the reservation is written to the page, and raised
// afterwards. So workers can never take memory that is about to be reserved, and a worker that is refused meanwhile
// does not report "over the limit" wrongly: it sends a request, which is handled after this call. A user's limit is
// checked before, and again when the reservation is in the page: if a worker of the user takes memory meanwhile, either
// this sum includes it, or the worker has seen the reservation and sends a request, by which it finds a withdrawn
// reservation.
bool BrokerLedger::reserve_on(TenantState& state, TenantId tenant, SessionId session, DeviceIndex device, uint32_t slot,
                              uint64_t bytes) {
  TenantPage& page = **state.page;
  for (unsigned attempt = 0; attempt < kReserveAttemptsMax; ++attempt) {
    const uint64_t has = held(state, device), limit = ledger_->share(tenant, device).limit_bytes;
    if (bytes > limit || has > limit - bytes || beyond_user_limit(state, session, device, bytes)) return false;
    const uint64_t before = ledger_->allowance(tenant, device);
    const auto allowance = raise_in_ledger(tenant, device, has, bytes);
    if (!allowance) return false;
    const uint64_t meanwhile = std::min(before, *allowance - bytes);
    page.column[device].allowance = meanwhile;
    bool there_is_room = held(state, device) <= meanwhile;
    if (there_is_room) {
      state.reserved[device][slot] = bytes;
      page.column[device].reserved[slot] = bytes;
      there_is_room = !beyond_user_limit(state, session, device, 0);
      if (!there_is_room) state.reserved[device][slot] = page.column[device].reserved[slot] = 0;
    }
    write_allowance(state, device, *allowance);
    if (there_is_room) return true;
  }
  return false;
}

void BrokerLedger::release(SessionId session) {
  if (auto found = reservations_.find(session); found != reservations_.end()) {
    const TenantId tenant = found->second;
    give_back_all(session, tenant);
    poll_waiters();
  }
}

uint64_t BrokerLedger::reserved_for(const TenantState& state, DeviceIndex device) const {
  auto found = state.reserved.find(device);
  return found == state.reserved.end() ? 0 : std::accumulate(found->second.begin(), found->second.end(), uint64_t{0});
}

uint64_t BrokerLedger::reserved_bytes(DeviceIndex device) const {
  uint64_t sum = 0;
  for (const auto& [tenant, state] : tenants_) sum += reserved_for(state, device);
  return sum;
}

// --- allowances ----------------------------------------------------------------------------------------------------

uint64_t BrokerLedger::used(TenantId tenant, DeviceIndex device) const {
  auto found = tenants_.find(tenant);
  if (found == tenants_.end() || !found->second.page || device >= kPageDevicesMax) return 0;
  return used_by_all(**found->second.page, device);
}

uint64_t BrokerLedger::held(const TenantState& state, DeviceIndex device) const {
  static const ReservedBytes kNothing{};
  if (!state.page || device >= kPageDevicesMax) return 0;
  auto reserved = state.reserved.find(device);
  ++page_sums_;
  return held_by_all(**state.page, device, reserved == state.reserved.end() ? kNothing : reserved->second);
}

uint64_t BrokerLedger::held_now(const TenantState& state, DeviceIndex device) const {
  if (polls_ == 0) return held(state, device);
  auto [sum, fresh] = sums_.try_emplace({&state, device}, 0);
  if (fresh) sum->second = held(state, device);
  return sum->second;
}

uint64_t BrokerLedger::held_now(TenantId tenant, DeviceIndex device) const {
  auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : held_now(found->second, device);
}

bool BrokerLedger::beyond_limit(TenantId tenant, DeviceIndex device, uint64_t bytes) const {
  const uint64_t limit = ledger_->share(tenant, device).limit_bytes;
  return bytes > limit || held_now(tenant, device) > limit - bytes;
}

uint64_t BrokerLedger::held_of_user(const TenantState& state, const std::string& user, DeviceIndex device) const {
  if (!state.page || device >= kPageDevicesMax) return 0;
  const PageColumn& column = (*state.page)->column[device];
  const auto reserved = state.reserved.find(device);
  uint64_t sum = 0;
  for (const auto& [session, name] : state.user_of) {
    const auto slot = state.slots.find(session);
    if (name != user || slot == state.slots.end() || slot->second == kLeftSlot) continue;
    sum += present(std::max(bounded(column.used[slot->second].load()),
                            reserved == state.reserved.end() ? 0 : reserved->second[slot->second]),
                   bounded(column.away[slot->second].load()));
  }
  return bounded(sum);
}

uint64_t BrokerLedger::used_of_user(const TenantState& state, const std::string& user, DeviceIndex device) const {
  if (!state.page || !state.users || device >= kPageDevicesMax) return 0;
  return used_by_user(**state.page, **state.users, device, user_key(user));
}

bool BrokerLedger::beyond_user_limit(const TenantState& state, SessionId session, DeviceIndex device,
                                     uint64_t bytes) const {
  const auto user = state.user_of.find(session);
  if (user == state.user_of.end()) return false;
  const uint64_t limit = user_limit(state, user->second);
  return limit != 0 && (bytes > limit || held_of_user(state, user->second, device) > limit - bytes);
}

uint64_t BrokerLedger::held_bytes(SessionId session, TenantId tenant, DeviceIndex device) const {
  const auto held = held_by(session, tenant);
  if (!held || device >= kPageDevicesMax) return 0;
  return present(whole_bytes(*held, device), bounded((*held->state->page)->column[device].away[held->slot].load()));
}

std::optional<BrokerLedger::Held> BrokerLedger::held_by(SessionId session, TenantId tenant) const {
  auto found = tenants_.find(tenant);
  if (found == tenants_.end() || !found->second.page) return std::nullopt;
  auto slot = found->second.slots.find(session);
  if (slot == found->second.slots.end() || slot->second == kLeftSlot) return std::nullopt;
  return Held{&found->second, slot->second};
}

uint64_t BrokerLedger::whole_bytes(const Held& of, DeviceIndex device) {
  auto reserved = of.state->reserved.find(device);
  return std::max(bounded((*of.state->page)->column[device].used[of.slot].load()),
                  reserved == of.state->reserved.end() ? 0 : reserved->second[of.slot]);
}

void BrokerLedger::take_back(TenantId tenant, DeviceIndex device) {
  auto found = tenants_.find(tenant);
  if (adopting_ || device >= kPageDevicesMax || found == tenants_.end()) return;
  TenantState& state = found->second;
  uint64_t target = ledger_->lower_target(tenant, device, held_now(state, device));
  if (target >= ledger_->allowance(tenant, device)) return;
  // The result is at least the target, even if the tenant's workers have overwritten the page's copy.
  uint64_t holds =
      state.page ? std::max(target, lower_allowance(**state.page, device, target, state.reserved[device])) : target;
  ledger_->lowered(tenant, device, holds);
  if (found->second.page) write_allowance(found->second, device, ledger_->allowance(tenant, device));
}

BrokerLedger::Raised BrokerLedger::raise(TenantId tenant, SessionId session, DeviceIndex device, uint64_t bytes,
                                         bool ahead) {
  auto found = tenants_.find(tenant);
  if (found == tenants_.end() || !found->second.page) return Raised::over_limit;
  if (beyond_limit(tenant, device, bytes) || beyond_user_limit(found->second, session, device, bytes))
    return Raised::over_limit;
  const uint64_t has = held_now(tenant, device);
  auto allowance = ahead ? ledger_->raise(tenant, device, has, bytes) : raise_in_ledger(tenant, device, has, bytes);
  if (!allowance && ahead) return Raised::over_limit;
  if (!allowance && ledger_->lacking(tenant, device, has, bytes)) return Raised::prewarmed_end;
  if (!allowance) return lent_to_others(tenant, device) ? Raised::short_of_memory : Raised::over_limit;
  write_allowance(found->second, device, *allowance);
  write_metrics(device, {tenant, bytes});
  return Raised::yes;
}

std::chrono::seconds BrokerLedger::held_ahead_by_others(TenantId tenant) const {
  const uint32_t now_s = page_seconds();
  std::chrono::seconds longest{0};
  for (const auto& [other, state] : tenants_) {
    if (other != tenant && state.page) longest = std::max(longest, held_ahead(**state.page, kLeftSlot, now_s));
  }
  return longest;
}

std::optional<uint64_t> BrokerLedger::raise_in_ledger(TenantId tenant, DeviceIndex device, uint64_t has,
                                                      uint64_t bytes) {
  if (auto allowance = ledger_->raise(tenant, device, has, bytes)) return allowance;
  for (auto& [other, state] : tenants_) {
    if (other != tenant && (polls_ == 0 || taken_back_[device].insert(other).second)) take_back(other, device);
  }
  auto allowance = ledger_->raise(tenant, device, has, bytes);
  if (!allowance) {
    if (auto lacking = ledger_->lacking(tenant, device, has, bytes)) end_prewarmed(device, *lacking);
  }
  return allowance;
}

// --- spares --------------------------------------------------------------------------------------------------------

size_t BrokerLedger::prewarmed_max(DeviceIndex device) const {
  if (!ledger_ || device >= context_bytes_.size() || context_bytes_[device] == 0) return SIZE_MAX;
  return settings_.prewarmed_workers + ledger_->optional_max(device) / context_bytes_[device];
}

// Gives memory that has become free to the waiting requests.
void BrokerLedger::prewarmed_changed(DeviceIndex device, size_t contexts) {
  if (!ledger_ || device >= context_bytes_.size()) return;
  prewarmed_[device] = contexts;
  const uint64_t before = ledger_->optional_bytes(device),
                 now = difference(contexts, settings_.prewarmed_workers) * context_bytes_[device];
  if (before == now) return;
  ledger_->set_optional(device, now);
  write_metrics(device);
  if (now > before) return;
  poll_waiters();
  control_.reconsider_waiting();
}

void BrokerLedger::end_prewarmed(DeviceIndex device, uint64_t bytes) {
  const uint64_t context = context_bytes_[device];
  if (!prewarmed_contexts_ || context == 0) return;
  const uint64_t stay = difference(ledger_->optional_bytes(device), bytes) / context;
  prewarmed_contexts_->keep_at_most(device, settings_.prewarmed_workers + stay);
}

// Whether another tenant's allowance exceeds its guarantee: then that tenant may release the excess, and waiting makes
// sense.
bool BrokerLedger::lent_to_others(TenantId tenant, DeviceIndex device) const {
  return std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& other) {
    return other.first != tenant &&
           ledger_->allowance(other.first, device) > ledger_->share(other.first, device).guaranteed_bytes;
  });
}

uint64_t BrokerLedger::free_bytes(TenantId tenant, DeviceIndex device) const {
  if (!ledger_) return 0;
  uint64_t back = ledger_->optional_bytes(device);
  for (const auto& [other, state] : tenants_) {
    if (other != tenant) back += spare(other, device, held_now(state, device));
  }
  return free_beyond(tenant, device, held_now(tenant, device), back);
}

// Returns the memory that could be taken back from a tenant that holds `has` bytes.
uint64_t BrokerLedger::spare(TenantId tenant, DeviceIndex device, uint64_t has) const {
  return ledger_->allowance(tenant, device) - ledger_->lower_target(tenant, device, has);
}

uint64_t BrokerLedger::free_beyond(TenantId tenant, DeviceIndex device, uint64_t has, uint64_t back) const {
  uint64_t room = difference(ledger_->share(tenant, device).limit_bytes, has);
  return std::min(room, ledger_->available(tenant, device, has) + back);
}

// Writes the figures of a device to all pages.
void BrokerLedger::write_metrics(DeviceIndex device, Soon soon) {
  if (device >= kPageDevicesMax) return;
  std::map<TenantId, uint64_t> has;  // read once, since the words change at any time
  uint64_t back = ledger_->optional_bytes(device);
  for (const auto& [tenant, state] : tenants_) {
    has[tenant] = held_now(state, device) + (tenant == soon.tenant ? soon.bytes : 0);
    back += spare(tenant, device, has[tenant]);
  }
  for (auto& [tenant, state] : tenants_) {
    if (!state.page) continue;
    PageColumn& column = (*state.page)->column[device];
    column.limit = std::min(ledger_->share(tenant, device).limit_bytes, kPageBytesMax);
    uint64_t of_others = back - spare(tenant, device, has[tenant]);
    column.reach = std::min(has[tenant] + free_beyond(tenant, device, has[tenant], of_others), kPageBytesMax);
  }
}

// --- figures -------------------------------------------------------------------------------------------------------

uint64_t BrokerLedger::host_bytes(const SessionRecord& session) const {
  auto tenant = tenants_.find(session.tenant_id);
  if (tenant == tenants_.end() || !tenant->second.page) return 0;
  auto slot = tenant->second.slots.find(session.number);
  if (slot == tenant->second.slots.end() || slot->second == kLeftSlot) return 0;
  return bounded((*tenant->second.page)->column[kHostColumn].used[slot->second].load());
}

void BrokerLedger::add(const SessionRecord& session, SessionMetrics& figures) {
  auto tenant = tenants_.find(session.tenant_id);
  if (tenant == tenants_.end() || !tenant->second.page || session.devices.empty()) return;
  scheduler::MemoryShare share = ledger_->share(session.tenant_id, session.devices.front());
  const uint64_t of_user = user_limit(tenant->second, session.user);
  const uint64_t limit = of_user ? std::min(share.limit_bytes, of_user) : share.limit_bytes;
  figures.memory_limit_bytes = limit == UINT64_MAX ? 0 : limit;
  auto slot = tenant->second.slots.find(session.number);
  if (slot == tenant->second.slots.end() || slot->second == kLeftSlot) return;
  for (SessionDeviceMetrics& device : figures.devices) {
    if (device.device >= kPageDevicesMax) continue;
    const PageColumn& column = (*tenant->second.page)->column[device.device];
    device.memory_used_bytes =
        present(bounded(column.used[slot->second].load()), bounded(column.away[slot->second].load()));
    if (auto reserved = tenant->second.reserved.find(device.device); reserved != tenant->second.reserved.end())
      device.memory_reserved_bytes = reserved->second[slot->second];
    device.memory_peak_bytes = bounded(column.peak[slot->second].load(std::memory_order_relaxed));
  }
}

void BrokerLedger::add(const TenantState& state, TenantId tenant, TenantMetrics& figures) const {
  figures.host_memory_limit_bytes = state.host_bytes;
  figures.host_memory_used_bytes = state.chunk_bytes;
  if (state.page) figures.host_memory_used_bytes += used_by_all(**state.page, kHostColumn);
  for (TenantDeviceMetrics& device : figures.devices) {
    scheduler::MemoryShare share = ledger_->share(tenant, device.device);
    device.memory_used_bytes = used(tenant, device.device);
    device.memory_reserved_bytes = reserved_for(state, device.device);
    device.memory_held_bytes = held(state, device.device);
    device.memory_limit_bytes = share.limit_bytes == UINT64_MAX ? 0 : share.limit_bytes;
    device.memory_guaranteed_bytes = share.guaranteed_bytes;
    device.memory_allowance_bytes = ledger_->allowance(tenant, device.device);
  }
  for (UserMetrics& user : figures.users) {
    user.memory_limit_bytes = user_limit(state, user.name);
    for (const TenantDeviceMetrics& device : figures.devices)
      user.memory_used_bytes = std::max(user.memory_used_bytes, used_of_user(state, user.name, device.device));
  }
}

void BrokerLedger::add(Snapshot& snapshot) {
  if (!ledger_) return;
  for (DeviceMetrics& device : snapshot.devices) {
    device.memory_bytes = ledger_->device_bytes(device.index);
    for (const auto& [tenant, state] : tenants_) {
      device.memory_used_bytes += used(tenant, device.index);
      device.memory_held_bytes += held(state, device.index);
    }
    device.memory_reserved_bytes = reserved_bytes(device.index);
    if (auto prewarmed = prewarmed_.find(device.index); prewarmed != prewarmed_.end()) {
      device.prewarmed_workers = prewarmed->second;
      device.prewarmed_memory_bytes = prewarmed->second * context_bytes_[device.index];
    }
  }
  for (TenantMetrics& figures : snapshot.tenants) {
    auto state = std::find_if(tenants_.begin(), tenants_.end(),
                              [&](const auto& tenant) { return tenant.second.name == figures.name; });
    if (state != tenants_.end()) add(state->second, state->first, figures);
  }
}

}  // namespace gpuwire::server
