// Adoption takes over the sessions that an earlier broker has left with the keeper.
#pragma once

#include <string>
#include <vector>

#include "server/ipc/inventory.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/keeper/kept_session.hpp"
#include "server/broker/session/sessions.hpp"
#include "server/broker/admission/tenants.hpp"

namespace gpuwire::server {

// Used once, when the devices are known and no client has been admitted yet. The broker's thread only.
class Adoption {
 public:
  struct Parts {
    EntryStore& keeping;
    SessionRegistry& registry;
    TenantDirectory& tenants;
    Sessions& sessions;
  };
  Adoption(Parts parts, std::vector<KeptEntry> entries);

  // Returns one line with the GPUs of adopted sessions that are not among these; empty: all are present. May be called
  // again after each change of the devices.
  std::string missing(const std::vector<ServerDevice>& devices) const;
  // Returns the devices as they were before sessions used them, where they are the same ones. Without sessions:
  // `devices` unchanged.
  std::vector<ServerDevice> devices(std::vector<ServerDevice> devices) const;
  // Tells the parts the devices, and continues all sessions. Returns their number.
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
  // Waiting sessions.
  std::vector<KeptSession> places_;
  std::vector<KeptEntry> shares_, totals_, others_;
  std::vector<ServerDevice> devices_before_;
  uint64_t last_number_ = 0;
};

}  // namespace gpuwire::server
