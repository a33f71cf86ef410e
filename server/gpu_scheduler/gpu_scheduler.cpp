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

#include "protocol/threads/looking.hpp"
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

// Nobody waits for longer than a wake-up of this thread takes.
void hurry() {
  ::pthread_setname_np(::pthread_self(), "GPU scheduler");
  ::prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
  ::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone, on Linux
}

// What has been done since an earlier observation of the same session; both only grow.
scheduler::Observation since(const scheduler::Observation& before, scheduler::Observation seen) {
  seen.busy -= before.busy;
  seen.quiet -= before.quiet;
  seen.bursts -= before.bursts;
  seen.submissions -= before.submissions;
  seen.completions -= before.completions;
  return seen;
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
  PageReader::Said said;
  scheduler::Gate gate{.open = false};
  Regime regime = Regime::free;
  uint32_t word = GateWord::of(false, true, {});
  uint32_t opening = 0;
  uint32_t attention = 0;  // the page's when the word was changed last
  bool changed = false;    // since wake_sleepers()
  PageTime opened_at{}, closed_at{};
  PageTime answer_until{};  // zero: nothing is to be answered
  bool draining = false;    // it was closed with work in flight
  uint64_t rings = 0;
  bool ended = false;  // its end was asked for because of its page
  PageTime police_at{};
  bool active = false;  // as share_copies() has seen it
  uint64_t submissions_shared = 0;

  PageTime began;
  scheduler::Observation before;  // what it had done under an earlier broker: nobody's turn pays for that now

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
    // Edge-triggered: a ring is news once, and nothing has to be read.
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
    policy_.set_tenant(tenant, policy);
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
  policy_.add_session(session->id, session->tenant, session->devices, now);
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
  if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, ends.doorbell.get(), &event) != 0)
    return tl::unexpected(fmt::format("no doorbell for the GPU scheduler: {}", std::strerror(errno)));
  {
    Turn turn(*this);
    PageTime now = page_now();
    auto session = std::make_unique<Session>(std::clamp(began, PageTime{}, now), now);
    session->id = id;
    session->tenant = tenant;
    session->devices.assign(devices.begin(), devices.end());
    session->page = std::move(*page);
    session->doorbell = std::move(ends.doorbell);
    // What it says of an opening is about one of these.
    session->opening = session->page->opening.load(std::memory_order_relaxed);
    session->before = session->reader.read(*session->page.get(), session->opening, now, false, false, now).seen;
    // Closed until the next decision, as every session that comes. Nobody has counted what it has in flight.
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
    Turn turn(*this);
    auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    // The worker's copy of the doorbell keeps it in the set otherwise.
    ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, found->second->doorbell.get(), nullptr);
    policy_.remove_session(id, page_now());
    sessions_.erase(found);
    share_spin();
  }
  wake();
}

// --- the thread ----------------------------------------------------------------------------------------------------

void GpuScheduler::run() {
  hurry();
  std::unique_lock lock(mutex_);
  while (!quit_) {
    PageTime now = page_now();
    observe(now);
    if (settings_.scheduling) {
      for (const scheduler::GateChange& change : policy_.decide(now)) apply(change, now);
      wake_sleepers();
    }
    hint_soon();
    police(now);
    count_regimes(now);
    share_copies(now);
    std::optional<PageTime> next = settings_.scheduling ? policy_.next_decision() : std::nullopt;
    if (police_at_ != PageTime{}) next = next ? std::min(*next, police_at_) : police_at_;
    wait(lock, next ? std::max(*next, now + kLookAgainMin) : PageTime{});
  }
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
    if (settings_.scheduling) policy_.observe(id, since(session->before, seen), now);
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
  // Only what is counted can be seen to hang.
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

// After all gates have changed: who waits awake goes on at once, and a system call that wakes another thread takes
// longer than all else here.
void GpuScheduler::wake_sleepers() {
  for (auto& [id, session] : sessions_) {
    if (!std::exchange(session->changed, false)) continue;
    futex_wake(session->page->gate);
    futex_wake(session->page->attention);
  }
}

// Who waits is told while the work of another on its devices drains: its turn may be next.
void GpuScheduler::hint_soon() {
  auto draining_on = [&](scheduler::DeviceIndex device) {
    return std::ranges::any_of(sessions_, [&](const auto& other) {
      return other.second->draining && std::ranges::count(other.second->devices, device) != 0;
    });
  };
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
      if (verdict.kind == RunawayWatch::Verdict::Kind::end) hooks_.end(id, verdict.text);
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

// Who has worked since the last time shares the link with the others that did.
void GpuScheduler::share_copies(PageTime now) {
  if (now - copies_shared_ < kCopiesEvery) return;
  copies_shared_ = now;
  size_t active = 0;
  for (auto& [id, session] : sessions_) {
    session->active = session->regime != Regime::free && session->said.seen.submissions != session->submissions_shared;
    session->submissions_shared = session->said.seen.submissions;
    active += session->active;
  }
  for (auto& [id, session] : sessions_) {
    session->page->copy_bytes_per_ms.store(session->active && active > 1 ? kCopyBytesPerMs / active : 0,
                                           std::memory_order_relaxed);
  }
}

void GpuScheduler::share_spin() {
  auto prompt = [&](const auto& entry) {
    auto tenant = tenants_.find(entry.second->tenant);
    return tenant != tenants_.end() && tenant->second.policy.service_class <= scheduler::ServiceClass::interactive;
  };
  auto count = size_t(std::ranges::count_if(sessions_, prompt));
  bool room = settings_.cores >= kSchedulerCoreMin && count <= settings_.cores / kPromptPart;
  for (const auto& entry : sessions_)
    entry.second->page->spin_us.store(room && prompt(entry) ? uint32_t(kPromptLook.count()) : 0,
                                      std::memory_order_relaxed);
}

bool GpuScheduler::rung() const {
  return std::ranges::any_of(sessions_, [](const auto& entry) {
    return entry.second->page->rings.load(std::memory_order_relaxed) != entry.second->rings;
  });
}

// Zero: until somebody rings.
void GpuScheduler::wait(std::unique_lock<std::mutex>& lock, PageTime until) {
  if (contended_ && settings_.cores >= kSchedulerSpinCoresMin) {
    // With the mutex, which guards the pages' lives; whoever wants it says so first.
    bool own_core = settings_.cores >= kSchedulerCoreMin && leasing_;
    PageTime spins = page_now() + (settings_.cores >= kSchedulerCoreMin ? kSchedulerSpinLong : kSchedulerSpin);
    if (until != PageTime{}) spins = std::min(spins, until);
    while (page_now() < spins) {
      if (wanted_.load(std::memory_order_relaxed) != 0) break;
      if (rung()) return;
      relax();
    }
    if (own_core || (until != PageTime{} && page_now() >= until)) return let_others(lock);
  }
  itimerspec timer{};
  if (until != PageTime{}) {
    int64_t ns = std::max<int64_t>(until.count(), 1);
    timer.it_value = {time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &timer, nullptr);
  lock.unlock();
  epoll_event events[kDoorbellsAtOnce];
  while (::epoll_wait(poll_.get(), events, kDoorbellsAtOnce, -1) < 0 && errno == EINTR) {}
  lock.lock();
}

GpuScheduler::Turn::Turn(GpuScheduler& scheduler) : scheduler_(scheduler) {
  scheduler_.wanted_.fetch_add(1, std::memory_order_relaxed);
  lock_ = std::unique_lock(scheduler_.mutex_);
  scheduler_.wanted_.fetch_sub(1, std::memory_order_relaxed);
}

void GpuScheduler::let_others(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  for (unsigned tries = 0; wanted_.load(std::memory_order_relaxed) != 0 && tries < kYieldsMax; ++tries) ::sched_yield();
  lock.lock();
}

// --- figures -------------------------------------------------------------------------------------------------------

GpuSchedulerSnapshot GpuScheduler::snapshot() {
  Turn turn(*this);
  PageTime now = page_now();
  count_regimes(now);
  GpuSchedulerSnapshot snapshot;
  for (auto& [id, session] : sessions_) {
    SessionPage& page = *session->page.get();
    auto said = session->reader.read(page, session->opening, session->opened_at, false,
                                     session->answer_until != PageTime{}, now);
    snapshot.sessions.push_back(
        {.id = id,
         .gate = session->gate,
         .account = policy_.account(id),
         .busy = said.seen.busy,
         .in_flight =
             nanoseconds(int64_t(std::min<uint64_t>(page.in_flight_ns.load(std::memory_order_relaxed), INT64_MAX))),
         .waited = nanoseconds(int64_t(std::min<uint64_t>(page.waited_ns.load(std::memory_order_relaxed), INT64_MAX))),
         .waits = page.waits.load(std::memory_order_relaxed),
         .bursts = said.seen.bursts,
         .submissions = said.seen.submissions,
         .waiting = said.seen.waiting,
         .working = said.seen.in_flight,
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
  return {policy_.gpu_time(tenant, device), policy_.granted(tenant, device)};
}

}  // namespace gpuwire::server
