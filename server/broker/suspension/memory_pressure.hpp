// MemoryPressure decides when idle sessions are suspended without an administrator: for sessions that wait for memory
// of a GPU, and for tenants whose idle sessions are to be suspended anyway. The choice is scheduler/suspension.hpp's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "scheduler/placement.hpp"
#include "scheduler/suspension.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/admission/tenants.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/suspension/suspension_memory.hpp"
#include "server/broker/suspension/suspensions.hpp"

namespace gpuwire::server {

// The parts of the broker that it uses; all outlive it.
struct PressureParts {
  boost::asio::io_context& io;
  SessionRegistry& registry;
  const TenantDirectory& tenants;
  Suspensions& suspensions;
  const SuspensionMemory& memory;
  // Returns the session's idle time; nothing: it works.
  std::function<std::optional<scheduler::Duration>(scheduler::SessionId)> idle;
  // Returns the sessions in the queue that lack nothing but memory, in the queue's order.
  std::function<std::vector<scheduler::MemoryWait>()> queue;
  // Sessions are being suspended for one in the queue; may be empty.
  std::function<void()> queue_changed = {};
  std::function<scheduler::Time()> now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
};

// Three kinds of askers wait for memory: suspended sessions that return, programs in the queue, and allocations of
// running sessions. Sessions are suspended for one asker of a GPU at a time, so that none is suspended for memory that
// another victim frees, too. The broker's thread only.
class MemoryPressure final : public SessionAttachments {
 public:
  explicit MemoryPressure(PressureParts parts);

  // Suspends sessions for all askers that can be helped, and idle sessions of tenants that want that.
  void poll();
  // The same for an allocation of a running session, which waits unless there is no relief.
  SuspensionRelief relieve(scheduler::SessionId session, scheduler::DeviceIndex device, uint64_t bytes);
  // Whether no session is being suspended for another asker on the devices of a session that returns.
  bool may_return(const SessionRecord& session) const;
  // Whether sessions are being suspended for this asker.
  bool suspends_for(scheduler::SessionId asker) const;

  tl::expected<void, std::string> attach(const SessionRecord&, SessionSpec&, ipc::SessionDescriptors&) override {
    return {};
  }
  void tenants_changed(const TenantDirectory&) override { wake(); }
  void ended(const SessionRecord& session) override;

 private:
  using SessionId = scheduler::SessionId;
  using DeviceIndex = scheduler::DeviceIndex;
  struct Victim {
    std::optional<SessionId> asker;  // nothing: its idle time is the reason
    std::vector<DeviceIndex> devices;
  };
  // A victim that could not be suspended.
  struct Refusal {
    unsigned count = 0;
    scheduler::Time until{};  // the next attempt
  };
  // The memory of one device that an asker needs.
  struct Need {
    const SessionRecord& asker;
    bool begun;  // else it waits in the queue
    DeviceIndex device;
    uint64_t bytes;
  };
  struct Choice {
    enum class Kind : uint8_t {
      hopeless,  // no suspension helps
      enough,    // it is free, or on its way
      suspend,   // with these victims
      rests,     // a possible victim has just returned
      not_quiet  // a possible victim could not be suspended a moment ago
    } kind = Kind::hopeless;
    bool waits() const { return kind == Kind::hopeless || kind == Kind::rests || kind == Kind::not_quiet; }
    std::vector<SessionId> victims = {};
    uint64_t bytes = 0;  // of the victims, for comparison
  };

  // Whether a tenant has this setting, or a wider one.
  bool anybody_has(scheduler::Suspend least) const;
  // `chosen`: victims for the same asker on other devices.
  Choice choose(const Need& need, const std::vector<SessionId>& chosen) const;
  Choice choose_for_return(const SessionRecord& session) const;
  Choice choose_for_queue(const SessionRecord& session, const scheduler::MemoryWait& wait) const;
  // Returns the devices' sessions, without those that are certain to stay. `refused`: also those whose suspension was
  // refused a moment ago.
  std::vector<scheduler::SuspendableSession> candidates(const Need& need, MemoryShortage::Of of,
                                                        const std::vector<SessionId>& chosen, bool refused) const;
  scheduler::SuspendableSession suspendable(const SessionRecord& session, std::optional<DeviceIndex> device) const;
  std::map<scheduler::TenantId, scheduler::SuspensionTenant> tenants_on(DeviceIndex device) const;
  // Whether sessions are being suspended for another asker on one of the devices.
  bool others_are_served(SessionId asker, const std::vector<DeviceIndex>& devices) const;
  void serve(const SessionRecord& asker, const std::vector<DeviceIndex>& devices, const Choice& choice, bool returns);
  void suspend(SessionId victim, std::optional<SessionId> asker, const SuspensionRequester& requester);
  void suspend_idle();
  void wake();
  void poll_later(uint32_t ms);

  const PressureParts parts_;
  std::map<SessionId, Victim> victims_;  // being suspended
  std::map<SessionId, Refusal> refusals_;
  boost::asio::steady_timer timer_;
  bool woken_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
