// What the parts of the server that watch over sessions (the ledger of memory, the GPU scheduler of time) and the
// broker offer each other.
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

// A part that adds to sessions before they begin and hears of their lives. Called on the broker's thread; must not
// block.
class SessionAttachments {
 public:
  virtual ~SessionAttachments() = default;

  // Once, before anything else is called.
  virtual void devices_known(std::span<const ServerDevice> devices) { (void)devices; }
  // After devices_known(), and after each reload of the configuration.
  virtual void tenants_changed(const TenantDirectory& tenants) { (void)tenants; }

  // The session has its devices; `spec.devices` holds them in the order in which its worker counts them, without
  // limits. The part fills its fields of the spec and its own of the descriptors. The error refuses the session;
  // ended() is not called for this part then. Not for management sessions.
  virtual tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                                 ipc::SessionDescriptors& descriptors) = 0;
  // The same for a session that asks NVML and has no devices; the part may enter those that it is to be shown.
  virtual tl::expected<void, std::string> attach_management(const SessionRecord& session, SessionSpec& spec,
                                                            ipc::SessionDescriptors& descriptors) {
    (void)session, (void)spec, (void)descriptors;
    return {};
  }
  // What the next broker has to know of a session with this part, if this one dies: the part fills its fields. May be
  // asked often.
  virtual void note(const SessionRecord& session, KeptSession& kept) const { (void)session, (void)kept; }
  // An earlier broker has left sessions. Once, after devices_known() and before tenants_changed() and the first
  // adopt(): the part takes its own entries out, and what they say holds. `tenants` knows those of all the sessions.
  virtual void restore(std::vector<KeptEntry>& entries, const TenantDirectory& tenants) {
    (void)entries, (void)tenants;
  }
  // What servers before this one have counted, in the entries that kept_total_name() names. Once, before the first
  // adopt(); not when there are none.
  virtual void restore_totals(std::vector<KeptEntry>& entries) { (void)entries; }
  // One of them, as attach() was called for by the earlier broker; its worker runs, or has ended a moment ago.
  // `descriptors` are of those that attach() made. The error ends the session; ended() is not called for this part
  // then. Management sessions, too.
  virtual tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                                KeptEntry& descriptors) {
    (void)session, (void)kept, (void)descriptors;
    return {};
  }
  // These were all. Not called when there were none.
  virtual void all_adopted() {}
  // Its client has said Hello and the worker serves it.
  virtual void begun(const SessionRecord& session) { (void)session; }
  // Workers have ended; ended() follows for each session of theirs.
  virtual void workers_reaped() {}
  // Over in any way, once for each attach() that succeeded. The worker's process, if it had one, is gone.
  virtual void ended(const SessionRecord& session) { (void)session; }
  // The session's worker says something that the broker itself has no use for. True: it was for this part.
  virtual bool on_message(const SessionRecord& session, ipc::Message& message) {
    (void)session, (void)message;
    return false;
  }
};

// What the broker does for its parts. Its thread only.
class SessionControl {
 public:
  // To the session's worker. False: it has none, or has not read for long.
  virtual bool send(scheduler::SessionId session, ipc::Message message) = 0;
  // Its client is told, and observers of the registry. `text`: one line.
  virtual void warn(scheduler::SessionId session, const std::string& text) = 0;
  // Ends it; its client is told the reason. False: there is no such session.
  virtual bool stop(scheduler::SessionId session, const StopOrder& order) = 0;
  // Memory was given back or a tenant's share has changed: whoever waits is looked at again.
  virtual void reconsider_waiting() = 0;

 protected:
  ~SessionControl() = default;
};

}  // namespace gpuwire::server
