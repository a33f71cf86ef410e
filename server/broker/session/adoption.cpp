#include "server/broker/session/adoption.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

namespace gpuwire::server {

Adoption::Adoption(Parts parts, std::vector<KeptEntry> entries) : parts_(parts) {
  for (KeptEntry& entry : entries) read(std::move(entry));
}

void Adoption::read(KeptEntry entry) {
  if (is_place(entry.name)) {
    if (auto place = decode_kept_session(entry.text); place && kept_place_name(place->record.number) == entry.name) {
      place->record.state = SessionState::queued;
      place->record.devices.clear();
      place->record.worker_pid = 0;
      return places_.push_back(std::move(*place));
    }
    parts_.keeping.remove(entry.name);
  } else if (is_total(entry.name)) {
    totals_.push_back(std::move(entry));
  } else if (entry.session) {
    auto session = decode_kept_session(entry.text);
    bool whole =
        session && entry.descriptors.size() == kKeptDescriptors && entry.name == kept_name(session->record.number);
    if (whole) return sessions_.push_back({std::move(*session), std::move(entry)});
    // The worker finds its pair closed, and ends the session.
    spdlog::error("what an earlier server has noted as {} cannot be read: {}; the session ends", entry.name,
                  session ? "descriptors are missing" : session.error());
    parts_.keeping.remove(entry.name);
  } else if (token_of(entry.name)) {
    shares_.push_back(std::move(entry));
  } else if (entry.name == kKeptInventory) {
    if (auto inventory = decode_kept_inventory(entry.text)) devices_before_ = std::move(inventory->devices);
  } else if (entry.name == kKeptNumbers) {
    std::from_chars(entry.text.data(), entry.text.data() + entry.text.size(), last_number_);
  } else {
    others_.push_back(std::move(entry));
  }
}

std::string Adoption::missing(const std::vector<ServerDevice>& devices) const {
  std::set<std::string> names;
  for (const Found& found : sessions_) {
    if (found.session.build != kept_build()) continue;  // it ends in any case
    for (size_t i = 0; i < found.session.record.devices.size(); ++i) {
      const scheduler::DeviceIndex index = found.session.record.devices[i];
      if (index < devices.size() && devices[index].uuid == found.session.device_uuids[i]) continue;
      names.insert(fmt::format("GPU {} ({})", index, found.session.device_uuids[i]));
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<ServerDevice> Adoption::devices(std::vector<ServerDevice> devices) const {
  if (sessions_.empty()) return devices;
  for (ServerDevice& device : devices) {
    auto before = std::find_if(devices_before_.begin(), devices_before_.end(), [&](const ServerDevice& one) {
      return one.index == device.index && one.uuid == device.uuid;
    });
    if (before != devices_before_.end()) device.taken_bytes = before->taken_bytes;
  }
  return devices;
}

// Returns the reason; empty: the session can continue. Pages and messages that another release may have laid out are
// not touched.
std::string Adoption::unfit(const KeptSession& session, const std::vector<ServerDevice>& devices) const {
  if (session.build != kept_build())
    return "the server was upgraded, and the new release cannot carry on what the old one has begun";
  for (size_t i = 0; i < session.record.devices.size(); ++i) {
    scheduler::DeviceIndex index = session.record.devices[i];
    if (index >= devices.size() || devices[index].uuid != session.device_uuids[i])
      return fmt::format("the server was started again, and its GPU {} is not the one that the session has", index);
  }
  return {};
}

size_t Adoption::carry_on(const std::vector<ServerDevice>& devices) {
  parts_.registry.numbers_used(last_number_);
  for (Found& found : sessions_) found.session.record.tenant_id = parts_.tenants.remember(found.session.record.tenant);
  if (sessions_.empty()) {
    for (const KeptEntry& entry : others_) parts_.keeping.remove(entry.name);
    others_.clear();
  }
  parts_.sessions.restore(others_, devices, parts_.tenants);
  if (!totals_.empty()) parts_.sessions.restore_totals(totals_);
  for (Found& found : sessions_) {
    const Tenant& tenant = *parts_.tenants.find(found.session.record.tenant_id);
    found.session.record.service_class = tenant.settings.service_class;
    if (!tenant.known && found.session.stop.why.empty())
      found.session.stop = fmt::format("this server has no tenant \"{}\" any more", tenant.settings.name);
    parts_.sessions.adopt(found.session, std::move(found.entry), unfit(found.session, devices));
  }
  if (!sessions_.empty()) parts_.sessions.all_adopted();
  share_again();
  queue_again();
  return sessions_.size();
}

// Queues the places in the order of their arrival. A place whose session has a worker by now is among the sessions
// instead.
void Adoption::queue_again() {
  std::ranges::sort(places_, {}, [](const KeptSession& one) { return one.record.number; });
  for (KeptSession& place : places_) {
    if (parts_.registry.find(place.record.number)) {
      parts_.keeping.remove(kept_place_name(place.record.number));
      continue;
    }
    const Tenant* tenant = parts_.tenants.find(place.record.tenant);
    if (tenant) place.record.tenant_id = tenant->id, place.record.service_class = tenant->settings.service_class;
    else place.record.tenant_id = parts_.tenants.remember(place.record.tenant);
    place.record.place = 1;  // until it is notified; it is not queued for the first time
    parts_.sessions.adopt_waiting(place);
  }
}

void Adoption::share_again() {
  for (KeptEntry& entry : shares_) {
    auto share = decode_kept_share(entry.text);
    if (share && entry.descriptors.size() == 1)
      parts_.sessions.share_again(*share, *token_of(entry.name), std::move(entry.descriptors[0]));
    else parts_.keeping.remove(entry.name);
  }
}

}  // namespace gpuwire::server
