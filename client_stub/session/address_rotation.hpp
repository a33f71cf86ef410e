// The order in which a session that has lost its connection tries the addresses of its server's name, and the condition
// under which it gives up.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/transport/tcp.hpp"

namespace gpuwire::client {

// A failed address moves behind the others, so an address that accepts connections without an answer, or where another
// service answers, costs only its attempt. One thread at a time.
class AddressRotation {
 public:
  using Endpoint = transport::Endpoint;

  // `carrier` is the address that has carried the session, if it is known.
  explicit AddressRotation(std::optional<Endpoint> carrier) : carrier_(std::move(carrier)) {}

  // Returns all addresses, in the order of their turns. `found` has the addresses to which the name resolves now; an
  // earlier address keeps its turn and its state. An empty `found` leaves the addresses unchanged.
  std::vector<Endpoint> in_turn(const std::vector<Endpoint>& found);

  // The address did not accept a connection, did not answer, or has no server with the session.
  void failed(const Endpoint& address) { put_behind(address, Outcome::failed); }
  // A server has refused at the address, and would refuse again.
  void refused(const Endpoint& address) { put_behind(address, Outcome::refused); }
  // The session continues over this address, and the state of the other addresses is reset.
  void carries(const Endpoint& address);

  // True if every address has refused, or if the address that carried the session has refused and all others had their
  // turn since.
  bool exhausted() const noexcept;
  const std::optional<Endpoint>& carrier() const noexcept { return carrier_; }

 private:
  enum class Outcome : uint8_t { none, failed, refused };
  struct Address {
    Endpoint endpoint;
    // Since the session was last carried.
    Outcome outcome = Outcome::none;
  };
  void put_behind(const Endpoint& address, Outcome outcome);
  std::vector<Address>::iterator find(const Endpoint& address);

  std::optional<Endpoint> carrier_;
  // In the order of their turns.
  std::vector<Address> addresses_;
};

}  // namespace gpuwire::client
