// The interfaces between the broker and the parts that account for sessions: the memory ledger and the GPU scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "scheduler/types.hpp"
#include "server/ipc/message.hpp"
#include "server/ipc/inventory.hpp"
#include "server/ipc/kept_entry.hpp"
#include "server/broker/keeper/kept_session.hpp"
#include "server/broker/session/session_registry.hpp"
#include "server/ipc/session_spec.hpp"
#include "server/broker/admission/tenants.hpp"

namespace gpuwire::server {

// A part that adds to sessions before they begin and observes their events. Called on the broker's thread; must not
// block.
class SessionAttachments {
 public:
  virtual ~SessionAttachments() = default;

  // Called once, before all other functions.
  virtual void devices_known(std::span<const ServerDevice> devices) { (void)devices; }
  // Called after devices_known(), and after each reload of the configuration.
  virtual void tenants_changed(const TenantDirectory& tenants) { (void)tenants; }

  // The session has its devices; `spec.devices` holds them in the order in which its worker counts them, without
  // limits. The part fills its fields of the spec and its own of the descriptors. The error refuses the session;
  // ended() is not called for this part then. Not for management sessions.
  virtual tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                                 ipc::SessionDescriptors& descriptors) = 0;
  // As attach(), for a session that asks NVML and has no devices; the part may enter the devices that it may see.
  virtual tl::expected<void, std::string> attach_management(const SessionRecord& session, SessionSpec& spec,
                                                            ipc::SessionDescriptors& descriptors) {
    (void)session, (void)spec, (void)descriptors;
    return {};
  }
  // Fills the part's fields of the session's entry for the next broker. May be called often.
  virtual void note(const SessionRecord& session, KeptSession& kept) const { (void)session, (void)kept; }
  // Called once if an earlier broker has left sessions, after devices_known() and before tenants_changed() and the
  // first adopt(). The part takes its own entries out and applies them. `tenants` has the tenants of all the sessions.
  virtual void restore(std::vector<KeptEntry>& entries, const TenantDirectory& tenants) {
    (void)entries, (void)tenants;
  }
  // Called once with the totals of earlier servers, in entries named by kept_total_name(), before the first adopt();
  // not called without such entries.
  virtual void restore_totals(std::vector<KeptEntry>& entries) { (void)entries; }
  // Adopts one session, for which the earlier broker called attach(); its worker runs, or has ended a moment ago.
  // `descriptors` are from that attach(). The error ends the session; ended() is not called for this part then. Called
  // for management sessions, too.
  virtual tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                                KeptEntry& descriptors) {
    (void)session, (void)kept, (void)descriptors;
    return {};
  }
  // Called after the last adopt(); not called without one.
  virtual void all_adopted() {}
  // The client has sent Hello and the worker serves it.
  virtual void begun(const SessionRecord& session) { (void)session; }
  // Workers have ended; ended() follows for each session of theirs.
  virtual void workers_reaped() {}
  // The session is over, in any way: once for each attach() that succeeded. Its worker's process, if any, is gone.
  virtual void ended(const SessionRecord& session) { (void)session; }
  // The session's worker has sent a message that the broker itself does not handle. Returns true if the part has
  // handled it.
  virtual bool on_message(const SessionRecord& session, ipc::Message& message) {
    (void)session, (void)message;
    return false;
  }
};

// The requests that parts make of the broker. The broker's thread only.
class SessionControl {
 public:
  // Sends to the session's worker. False: it has none, or the worker has not read for long.
  virtual bool send(scheduler::SessionId session, ipc::Message message) = 0;
  // Warns the session's client and the registry's observers. `text`: one line.
  virtual void warn(scheduler::SessionId session, const std::string& text) = 0;
  // Ends the session; its client is told the reason. False: there is no such session.
  virtual bool stop(scheduler::SessionId session, const StopOrder& order) = 0;
  // Returns a descriptor of the process of the session's worker (a pidfd); empty: there is none.
  virtual OwnedDescriptor worker_process(scheduler::SessionId session) {
    (void)session;
    return {};
  }
  // Updates the session's entry for the next broker, whose fields have changed.
  virtual void note(scheduler::SessionId session) { (void)session; }
  // Judges waiting sessions again, after memory was released or a tenant's share has changed.
  virtual void reconsider_waiting() = 0;

 protected:
  ~SessionControl() = default;
};

}  // namespace gpuwire::server
