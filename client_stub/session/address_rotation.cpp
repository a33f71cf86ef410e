#include "client_stub/session/address_rotation.hpp"

#include <algorithm>
#include <utility>

namespace gpuwire::client {

std::vector<AddressRotation::Address>::iterator AddressRotation::find(const Endpoint& address) {
  return std::find_if(addresses_.begin(), addresses_.end(),
                      [&](const Address& known) { return known.endpoint == address; });
}

std::vector<transport::Endpoint> AddressRotation::in_turn(const std::vector<Endpoint>& found) {
  if (!found.empty()) {
    std::erase_if(addresses_, [&](const Address& known) {
      return std::find(found.begin(), found.end(), known.endpoint) == found.end();
    });
    for (const Endpoint& address : found) {
      if (find(address) != addresses_.end()) continue;
      // The server is most likely at its former address.
      addresses_.insert(address == carrier_ ? addresses_.begin() : addresses_.end(), {address});
    }
  }
  std::vector<Endpoint> order;
  order.reserve(addresses_.size());
  for (const Address& address : addresses_) order.push_back(address.endpoint);
  return order;
}

void AddressRotation::put_behind(const Endpoint& address, Outcome outcome) {
  auto known = find(address);
  if (known == addresses_.end()) return;
  known->outcome = outcome;
  std::rotate(known, known + 1, addresses_.end());
}

void AddressRotation::carries(const Endpoint& address) {
  carrier_ = address;
  for (Address& known : addresses_) known.outcome = Outcome::none;
  if (auto known = find(address); known != addresses_.end()) std::rotate(addresses_.begin(), known, known + 1);
}

bool AddressRotation::exhausted() const noexcept {
  bool all_refused = !addresses_.empty(), all_tried = true, carrier_refused = false;
  for (const Address& known : addresses_) {
    all_refused &= known.outcome == Outcome::refused;
    all_tried &= known.outcome != Outcome::none;
    carrier_refused |= known.outcome == Outcome::refused && known.endpoint == carrier_;
  }
  return all_refused || (carrier_refused && all_tried);
}

}  // namespace gpuwire::client
