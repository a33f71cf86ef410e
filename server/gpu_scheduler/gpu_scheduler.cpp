#include "server/gpu_scheduler/gpu_scheduler.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "protocol/threads/polling.hpp"
#include "server/gate/page/futex.hpp"

namespace gpuwire::server {

using scheduler::Regime;
using std::chrono::nanoseconds;

namespace {

constexpr int kNice = -10;  // where the process may
constexpr unsigned kYieldsMax = 100;
constexpr nanoseconds kCopiesEvery = 100ms;

OwnedDescriptor checked(int descriptor, const char* what) {
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), what);
  return OwnedDescriptor(descriptor);
}

// No thread waits for longer than a wake-up of this thread takes.
void hurry() {
  ::pthread_setname_np(::pthread_self(), "GPU scheduler");
  ::prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
  ::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone, on Linux
}

// Returns the work done since an earlier observation of the same session; both only grow.
scheduler::Observation since(const scheduler::Observation& before, scheduler::Observation seen) {
  seen.busy -= before.busy;
  seen.quiet -= before.quiet;
  seen.bursts -= before.bursts;
  seen.submissions -= before.submissions;
  seen.completions -= before.completions;
  return seen;
}

// For the policy, a tenant's sessions that are served as scavengers belong to another tenant, whose number is beyond
// those of any configuration.
scheduler::TenantId as_scavenger(scheduler::TenantId tenant) {
  return scheduler::TenantId(uint32_t(tenant) | uint32_t(1) << 31);
}

}  // namespace

struct GpuScheduler::Session {
  scheduler::SessionId id{};
  scheduler::TenantId tenant{};
  std::vector<scheduler::DeviceIndex> devices;
  SharedPage<SessionPage> page;
  OwnedDescriptor doorbell;
  PageReader reader;
  RunawayWatch runaway;
  PageReader::Reading said;
  scheduler::Gate gate{.open = false};
  Regime regime = Regime::free;
  uint32_t word = GateWord::of(false, true, {});
  uint32_t opening = 0;
  uint32_t attention = 0;  // the page's when the word was changed last
  bool changed = false;    // since wake_sleepers()
  PageTime opened_at{}, closed_at{};
  PageTime answer_until{};  // zero: no answer is pending
  bool draining = false;    // it was closed with work in flight
  uint64_t rings = 0;
  bool ended = false;  // its end was requested because of its page
  PageTime police_at{};
  bool active = false;  // as share_copies() has seen it
  uint64_t submissions_shared = 0;

  PageTime began;
  scheduler::Observation before;  // its work under an earlier broker, which is not charged to a turn now
  nanoseconds charged_before{};   // and its charge for that work
  bool scavenger = false;         // whatever its tenant's class is

  // The tenant to the policy.
  scheduler::TenantId policy_tenant() const { return scavenger ? as_scavenger(tenant) : tenant; }

  Session(PageTime made, PageTime now) : reader(made), opened_at(now), closed_at(now), began(made) {}
};

GpuScheduler::GpuScheduler(GpuSchedulerSettings settings, Hooks hooks)
    : settings_(std::move(settings)),
      hooks_(std::move(hooks)),
      poll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      timer_(checked(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create")),
      changed_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      policy_(settings_.policy) {
  for (int descriptor : {timer_.get(), changed_.get()}) {
    // Edge-triggered: each ring is reported once, and nothing has to be read.
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.fd = descriptor}};
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0)
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
  thread_ = std::thread([this] { run(); });
}

GpuScheduler::~GpuScheduler() {
  {
    Turn turn(*this);
    quit_ = true;
  }
  wake();
  thread_.join();
}

void GpuScheduler::wake() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(changed_.get(), &one, sizeof one);
}

// --- sessions ------------------------------------------------------------------------------------------------------

void GpuScheduler::set_tenant(scheduler::TenantId tenant, const scheduler::TenantPolicy& policy,
                              const SessionLimits& limits) {
  {
    Turn turn(*this);
    tenants_[tenant] = {policy, limits};
    set_policy(tenant);
    PageTime now = page_now();
    for (auto& [id, session] : sessions_) {
      if (session->tenant != tenant) continue;
      session->police_at = now;
      set_gate(*session, now);
    }
    wake_sleepers();
    share_spin();
  }
  wake();
}

void GpuScheduler::set_policy(scheduler::TenantId tenant) {
  scheduler::TenantPolicy policy = tenants_[tenant].policy;
  policy_.set_tenant(tenant, policy);
  if (!fallen_.contains(tenant)) return;
  policy.service_class = scheduler::ServiceClass::scavenger;
  policy_.set_tenant(as_scavenger(tenant), policy);
}

// The policy treats it as a new session of another tenant, like an adopted one: others wait for its work in flight, and
// its work until now is not charged to a turn.
void GpuScheduler::set_scavenger(scheduler::SessionId id, bool scavenger) {
  {
    Turn turn(*this);
    auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second->scavenger == scavenger) return;
    Session& session = *found->second;
    PageTime now = page_now();
    poll_and_decide(now);  // all work so far is charged to the former tenant
    apply({.session = id, .gate = {.open = false}, .regime = session.regime}, now);
    session.charged_before += policy_.remove_session(id, now);
    session.before = session.said.seen;
    session.scavenger = scavenger;
    if (fallen_.insert(session.tenant).second) set_policy(session.tenant);
    policy_.add_session(id, session.policy_tenant(), session.devices, now);
    if (!settings_.scheduling) set_gate(session, now);
    wake_sleepers();
    share_spin();
  }
  wake();
}

tl::expected<GpuScheduler::Ends, std::string> GpuScheduler::add(scheduler::SessionId id, scheduler::TenantId tenant,
                                                                std::span<const scheduler::DeviceIndex> devices) {
  auto page = SharedPage<SessionPage>::create();
  if (!page) return tl::unexpected(page.error());
  OwnedDescriptor doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Ends ends{OwnedDescriptor(::dup(page->descriptor())), OwnedDescriptor(doorbell ? ::dup(doorbell.get()) : -1)};
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.fd = doorbell.get()}};
  if (!ends.page || !ends.doorbell || ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, doorbell.get(), &event) != 0)
    return tl::unexpected(fmt::format("no descriptors for the GPU scheduler: {}", std::strerror(errno)));
  {
    Turn turn(*this);
    PageTime now = page_now();
    auto session = std::make_unique<Session>(now, now);
    session->id = id;
    session->tenant = tenant;
    session->devices.assign(devices.begin(), devices.end());
    session->page = std::move(*page);
    session->doorbell = std::move(doorbell);
    session->page->gate.store(session->word, std::memory_order_seq_cst);
    enter(std::move(session), now);
  }
  wake();
  return ends;
}

void GpuScheduler::enter(std::unique_ptr<Session> session, PageTime now) {
  session->police_at = now;
  for (scheduler::DeviceIndex device : session->devices) {
    auto [entry, fresh] = devices_.try_emplace(device);
    if (fresh) entry->second.figures.index = device, entry->second.counted = now;
  }
  policy_.add_session(session->id, session->policy_tenant(), session->devices, now);
  if (!settings_.scheduling) set_gate(*session, now);
  sessions_[session->id] = std::move(session);
  share_spin();
}

tl::expected<void, std::string> GpuScheduler::adopt(scheduler::SessionId id, scheduler::TenantId tenant,
                                                    std::span<const scheduler::DeviceIndex> devices, Ends ends,
                                                    PageTime began) {
  auto page = SharedPage<SessionPage>::map(std::move(ends.page));
  if (!page) return tl::unexpected(page.error());
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.fd = ends.doorbell.get()}};
  // This is no reason to end a running session: without watches this process ends, and the next one adopts the session.
  if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, ends.doorbell.get(), &event) != 0)
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  {
    Turn turn(*this);
    PageTime now = page_now();
    auto session = std::make_unique<Session>(std::clamp(began, PageTime{}, now), now);
    session->id = id;
    session->tenant = tenant;
    session->devices.assign(devices.begin(), devices.end());
    session->page = std::move(*page);
    session->doorbell = std::move(ends.doorbell);
    // The worker's report of an opening refers to one of these.
    session->opening = session->page->opening.load(std::memory_order_relaxed);
    session->before = session->reader.read(*session->page.get(), session->opening, now, false, false, now).seen;
    const auto most = uint64_t((now - session->began).count()) * session->devices.size();
    session->charged_before =
        nanoseconds(int64_t(std::min(session->page->charged_ns.load(std::memory_order_relaxed), most)));
    // The gate is closed until the next decision, like that of every new session. The session's work in flight was not
    // counted.
    session->page->gate.store(session->word, std::memory_order_seq_cst);
    session->attention = session->page->attention.fetch_add(1, std::memory_order_seq_cst) + 1;
    session->answer_until = now + kAnswerTimeout;
    session->said.seen.in_flight = session->draining = session->changed = true;
    enter(std::move(session), now);
    wake_sleepers();
  }
  wake();
  return {};
}

PageTime GpuScheduler::began(scheduler::SessionId id) {
  Turn turn(*this);
  auto found = sessions_.find(id);
  return found == sessions_.end() ? PageTime{} : found->second->began;
}

void GpuScheduler::remove(scheduler::SessionId id) {
  {
    MutexLock lock(leaving_mutex_);
    leaving_.push_back(id);
    anyone_leaves_.store(true, std::memory_order_relaxed);
  }
  wake();
}

void GpuScheduler::let_leave() {
  std::vector<scheduler::SessionId> leaving;
  {
    MutexLock lock(leaving_mutex_);
    leaving.swap(leaving_);
    anyone_leaves_.store(false, std::memory_order_relaxed);
  }
  if (leaving.empty()) return;
  PageTime now = page_now();
  for (scheduler::SessionId id : leaving) {
    auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    // Otherwise the worker's copy of the doorbell would keep it in the set.
    ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, found->second->doorbell.get(), nullptr);
    policy_.remove_session(id, now);
    sessions_.erase(found);
  }
  share_spin();
}

// --- the thread ----------------------------------------------------------------------------------------------------

void GpuScheduler::run() {
  hurry();
  MutexLock lock(mutex_);
  while (!quit_) {
    let_leave();
    PageTime now = page_now();
    poll_and_decide(now);
    hint_soon();
    police(now);
    count_regimes(now);
    share_copies(now);
    std::optional<PageTime> next = policy_.next_decision();
    if (!settings_.scheduling && !sessions_.empty()) next = now + kSettleEvery;
    if (police_at_ != PageTime{}) next = next ? std::min(*next, police_at_) : police_at_;
    wait(next ? std::max(*next, now + kPollAgainMin) : PageTime{});
  }
}

void GpuScheduler::poll_and_decide(PageTime now) {
  observe(now);
  if (!settings_.scheduling) return policy_.settle(now);
  for (const scheduler::GateChange& change : policy_.decide(now)) apply(change, now);
  wake_sleepers();
}

void GpuScheduler::observe(PageTime now) {
  contended_ = leasing_ = false;
  for (auto& [id, session] : sessions_) {
    session->rings = session->page->rings.load(std::memory_order_relaxed);
    if (session->answer_until != PageTime{}) {
      bool answered = int32_t(session->page->answered.load(std::memory_order_acquire) - session->attention) >= 0;
      if (answered || now > session->answer_until) session->answer_until = {};
    }
    session->said = session->reader.read(*session->page.get(), session->opening, session->opened_at, session->word == 0,
                                         session->answer_until != PageTime{}, now);
    if (session->said.damaged && !std::exchange(session->ended, true))
      hooks_.end(id, "its worker's page holds what no worker writes");
    const scheduler::Observation& seen = session->said.seen;
    if (session->draining && !seen.in_flight) note_drain(*session, std::clamp(seen.last_end, session->closed_at, now));
    bool hands_over = session->draining || seen.waiting;
    contended_ |= hands_over || (session->regime != Regime::free && seen.in_flight);
    leasing_ |= hands_over || (session->regime == Regime::lease && seen.in_flight);
    policy_.observe(id, since(session->before, seen), now);
  }
}

void GpuScheduler::apply(const scheduler::GateChange& change, PageTime now) {
  auto found = sessions_.find(change.session);
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  bool opens = change.gate.open && !session.gate.open, closes = !change.gate.open && session.gate.open;
  session.gate = change.gate;
  session.regime = change.regime;
  if (closes) {
    if (session.draining) note_drain(session, now);
    session.closed_at = now;
    session.draining = session.said.seen.in_flight;
  }
  if (opens) {
    session.draining = false;
    session.opened_at = now;
    session.page->opening.store(++session.opening, std::memory_order_release);
    for (scheduler::DeviceIndex index : session.devices) {
      Device& device = devices_[index];
      if (change.regime != Regime::lease || device.holder == session.id) continue;
      device.figures.hand_overs += device.holder != scheduler::SessionId{};
      device.holder = session.id;
    }
  }
  set_gate(session, now);
}

bool GpuScheduler::unhindered(const Session& session) const {
  if (!settings_.scheduling) return true;
  return session.gate.open && session.gate.in_flight_max == nanoseconds{} && session.regime == Regime::free;
}

void GpuScheduler::set_gate(Session& session, PageTime now) {
  auto tenant = tenants_.find(session.tenant);
  // Only counted work can be found to hang.
  bool metered =
      !unhindered(session) || (tenant != tenants_.end() && tenant->second.limits.kernel_time_max.count() != 0);
  bool open = session.gate.open || !settings_.scheduling;
  uint32_t word = GateWord::of(open, metered, open ? session.gate.in_flight_max : nanoseconds{});
  if (word == (session.word & ~GateWord::kSoon)) return;
  SessionPage& page = *session.page.get();
  bool was_uncounted = session.word == 0;
  session.word = word;
  page.gate.store(word, std::memory_order_seq_cst);
  session.attention = page.attention.fetch_add(1, std::memory_order_seq_cst) + 1;
  session.changed = true;
  if (was_uncounted) {
    session.answer_until = now + kAnswerTimeout;
    session.said.seen.in_flight = true;
    if (!open) session.draining = true;
  }
}

// After all gates have changed: a polling thread continues at once, and a system call that wakes another thread takes
// longer than everything else here.
void GpuScheduler::wake_sleepers() {
  for (auto& [id, session] : sessions_) {
    if (!std::exchange(session->changed, false)) continue;
    futex_wake(session->page->gate);
    futex_wake(session->page->attention);
  }
}

// A waiting session is notified while the work of another on its devices drains: its turn may be next.
void GpuScheduler::hint_soon() {
  for (auto& [index, device] : devices_) device.draining = false;
  for (auto& [id, session] : sessions_) {
    if (!session->draining) continue;
    for (scheduler::DeviceIndex index : session->devices) devices_[index].draining = true;
  }
  auto draining_on = [&](scheduler::DeviceIndex index) REQUIRES(mutex_) { return devices_[index].draining; };
  for (auto& [id, session] : sessions_) {
    GateWord before{session->word};
    if (!before.closed()) continue;
    bool soon = session->said.seen.waiting && !session->draining && std::ranges::any_of(session->devices, draining_on);
    if (soon == before.soon()) continue;
    session->word = soon ? before.word | GateWord::kSoon : before.word & ~GateWord::kSoon;
    session->page->gate.store(session->word, std::memory_order_seq_cst);
    if (soon) futex_wake(session->page->gate);
  }
}

void GpuScheduler::note_drain(Session& session, PageTime drained) {
  session.draining = false;
  auto tenant = tenants_.find(session.tenant);
  auto which = size_t(tenant == tenants_.end() ? scheduler::ServiceClass::batch : tenant->second.policy.service_class);
  double us = double((drained - session.closed_at).count()) / 1e3;
  for (scheduler::DeviceIndex index : session.devices) {
    GpuSchedulerSnapshot::Drains& drains = devices_[index].figures.drains[which];
    ++drains.counts[size_t(std::ranges::lower_bound(kDrainBoundsUs, us) - kDrainBoundsUs.begin())];
    drains.sum_us += us;
  }
}

void GpuScheduler::police(PageTime now) {
  police_at_ = {};
  for (auto& [id, session] : sessions_) {
    auto tenant = tenants_.find(session->tenant);
    if (tenant == tenants_.end() || tenant->second.limits == SessionLimits{}) continue;
    if (now >= session->police_at) {
      RunawayWatch::Verdict verdict =
          session->runaway.judge(tenant->second.limits, session->said.stuck_since, session->said.idle_since, now);
      if (verdict.kind == RunawayWatch::Verdict::Kind::warn) hooks_.warn(id, verdict.text);
      if (verdict.kind == RunawayWatch::Verdict::Kind::end) hooks_.end(id, {verdict.text, verdict.stop});
      session->police_at = verdict.next.value_or(PageTime::max());
    }
    if (session->police_at != PageTime::max())
      police_at_ = police_at_ == PageTime{} ? session->police_at : std::min(police_at_, session->police_at);
  }
}

void GpuScheduler::count_regimes(PageTime now) {
  for (auto& [index, device] : devices_) {
    device.figures.in_regime[size_t(device.figures.regime)] += now - device.counted;
    device.counted = now;
    device.figures.regime = Regime::free;
  }
  for (auto& [id, session] : sessions_) {
    for (scheduler::DeviceIndex index : session->devices) devices_[index].figures.regime = session->regime;
  }
}

nanoseconds GpuScheduler::charged(const Session& session) const {
  return session.charged_before + policy_.gpu_time(session.id);
}

// The sessions that have worked since the last call share the links of their GPUs; each GPU has its own link. A copy of
// a session with several GPUs may use any of them.
void GpuScheduler::share_copies(PageTime now) {
  if (now - copies_shared_ < kCopiesEvery) return;
  copies_shared_ = now;
  for (auto& [index, device] : devices_) device.copying = 0;
  for (auto& [id, session] : sessions_) {
    session->active = session->regime != Regime::free && session->said.seen.submissions != session->submissions_shared;
    session->submissions_shared = session->said.seen.submissions;
    for (scheduler::DeviceIndex index : session->devices) devices_[index].copying += session->active;
    session->page->charged_ns.store(uint64_t(charged(*session).count()), std::memory_order_relaxed);
  }
  for (auto& [id, session] : sessions_) {
    size_t sharers = 0;
    for (scheduler::DeviceIndex index : session->devices) sharers = std::max(sharers, devices_[index].copying);
    session->page->copy_bytes_per_ms.store(session->active && sharers > 1 ? kCopyBytesPerMs / sharers : 0,
                                           std::memory_order_relaxed);
  }
}

void GpuScheduler::share_spin() {
  auto prompt = [&](const auto& entry) REQUIRES(mutex_) {
    auto tenant = tenants_.find(entry.second->tenant);
    return !entry.second->scavenger && tenant != tenants_.end() &&
           tenant->second.policy.service_class <= scheduler::ServiceClass::interactive;
  };
  auto count = size_t(std::ranges::count_if(sessions_, prompt));
  bool room = settings_.cores >= kSchedulerCoreMin && count <= settings_.cores / kPromptPart;
  for (const auto& entry : sessions_)
    entry.second->page->spin_us.store(room && prompt(entry) ? uint32_t(kPromptPoll.count()) : 0,
                                      std::memory_order_relaxed);
}

bool GpuScheduler::rung() const {
  return std::ranges::any_of(sessions_, [](const auto& entry) {
    return entry.second->page->rings.load(std::memory_order_relaxed) != entry.second->rings;
  });
}

// Zero: until somebody rings.
void GpuScheduler::wait(PageTime until) {
  if (contended_ && settings_.cores >= kSchedulerSpinCoresMin) {
    // Holds the mutex, which guards the lifetime of the pages; a thread that wants the mutex announces itself first.
    bool own_core = settings_.cores >= kSchedulerCoreMin && leasing_;
    PageTime spins = page_now() + (settings_.cores >= kSchedulerCoreMin ? kSchedulerSpinLong : kSchedulerSpin);
    if (until != PageTime{}) spins = std::min(spins, until);
    while (page_now() < spins) {
      if (wanted_.load(std::memory_order_relaxed) != 0) break;
      if (anyone_leaves_.load(std::memory_order_relaxed) || rung()) return;
      relax();
    }
    if (own_core || (until != PageTime{} && page_now() >= until)) return let_others();
  }
  itimerspec timer{};
  if (until != PageTime{}) {
    int64_t ns = std::max<int64_t>(until.count(), 1);
    timer.it_value = {time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &timer, nullptr);
  mutex_.unlock();
  epoll_event events[kDoorbellsAtOnce];
  while (::epoll_wait(poll_.get(), events, kDoorbellsAtOnce, -1) < 0 && errno == EINTR) {}
  mutex_.lock();
}

GpuScheduler::Turn::Turn(GpuScheduler& scheduler) : scheduler_(scheduler) {
  scheduler_.wanted_.fetch_add(1, std::memory_order_relaxed);
  lock_ = std::unique_lock<std::mutex>(scheduler_.mutex_);
  scheduler_.wanted_.fetch_sub(1, std::memory_order_relaxed);
  scheduler_.let_leave();
}

void GpuScheduler::let_others() {
  mutex_.unlock();
  for (unsigned tries = 0; wanted_.load(std::memory_order_relaxed) != 0 && tries < kYieldsMax; ++tries) ::sched_yield();
  mutex_.lock();
}

// --- figures -------------------------------------------------------------------------------------------------------

GpuSchedulerSnapshot GpuScheduler::snapshot() {
  Turn turn(*this);
  PageTime now = page_now();
  // This charges all work. The thread has to learn of the changed decision.
  poll_and_decide(now);
  wake();
  count_regimes(now);
  GpuSchedulerSnapshot snapshot;
  for (auto& [id, session] : sessions_) {
    SessionPage& page = *session->page.get();
    const scheduler::Observation& seen = session->said.seen;
    snapshot.sessions.push_back(
        {.id = id,
         .gate = session->gate,
         .account = policy_.account(id),
         .charged = charged(*session),
         .in_flight =
             nanoseconds(int64_t(std::min<uint64_t>(page.in_flight_ns.load(std::memory_order_relaxed), INT64_MAX))),
         .waited = nanoseconds(int64_t(std::min<uint64_t>(page.waited_ns.load(std::memory_order_relaxed), INT64_MAX))),
         .waits = page.waits.load(std::memory_order_relaxed),
         .bursts = seen.bursts,
         .submissions = seen.submissions,
         .waiting = seen.waiting,
         .working = seen.in_flight,
         .idle = session->said.idle_since == PageTime{} ? std::nullopt : std::optional(now - session->said.idle_since),
         .bytes_in = page.link.bytes_in.load(std::memory_order_relaxed),
         .bytes_out = page.link.bytes_out.load(std::memory_order_relaxed),
         .replies = page.link.replies.load(std::memory_order_relaxed),
         .chunks_found = page.link.chunks_found.load(std::memory_order_relaxed),
         .chunk_bytes_found = page.link.chunk_bytes_found.load(std::memory_order_relaxed),
         .chunk_bytes_kept = page.link.chunk_bytes_kept.load(std::memory_order_relaxed),
         .round_trip_us = page.link.round_trip_us.load(std::memory_order_relaxed),
         .warning = session->runaway.warning()});
  }
  for (auto& [index, device] : devices_) {
    snapshot.devices.push_back(device.figures);
    snapshot.devices.back().system_time = policy_.system_time(index);
    snapshot.devices.back().co_run = policy_.co_run(index);
  }
  return snapshot;
}

GpuScheduler::TenantTimes GpuScheduler::times(scheduler::TenantId tenant, scheduler::DeviceIndex device) {
  Turn turn(*this);
  const scheduler::TenantId other = as_scavenger(tenant);
  return {policy_.gpu_time(tenant, device) + policy_.gpu_time(other, device),
          policy_.granted(tenant, device) + policy_.granted(other, device)};
}

}  // namespace gpuwire::server
