// Takes over the sessions that an earlier broker has left with the keeper.
#pragma once

#include <string>
#include <vector>

#include "server/ipc/inventory.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/keeper/kept_session.hpp"
#include "server/broker/session/sessions.hpp"
#include "server/broker/admission/tenants.hpp"

namespace gpuwire::server {

// One use, when the devices are known and nobody has been let in yet. The broker's thread.
class Adoption {
 public:
  struct Parts {
    EntryStore& keeping;
    SessionRegistry& registry;
    TenantDirectory& tenants;
    Sessions& sessions;
  };
  Adoption(Parts parts, std::vector<KeptEntry> entries);

  // The GPUs that sessions have and that are not among these, a line; empty: none. Asked as often as devices change.
  std::string missing(const std::vector<ServerDevice>& devices) const;
  // How the devices were before sessions took of them, where they are the same ones. Without sessions: `devices` as
  // they are.
  std::vector<ServerDevice> devices(std::vector<ServerDevice> devices) const;
  // Tells the parts of the devices, and carries all sessions on. How many.
  size_t carry_on(const std::vector<ServerDevice>& devices);

 private:
  struct Found {
    KeptSession session;
    KeptEntry entry;
  };
  void read(KeptEntry entry);
  std::string unfit(const KeptSession& session, const std::vector<ServerDevice>& devices) const;
  void share_again();
  void queue_again();

  const Parts parts_;
  std::vector<Found> sessions_;
  std::vector<KeptSession> places_;  // in the queue
  std::vector<KeptEntry> shares_, totals_, others_;
  std::vector<ServerDevice> devices_before_;
  uint64_t last_number_ = 0;
};

}  // namespace gpuwire::server
