// In which order a session that has lost its connection tries the addresses of its server's name, and when none is left
// at which it may find its server.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/transport/tcp.hpp"

namespace gpuwire::client {

// An address that led nowhere goes behind the others, so that one which takes connections and says nothing, or where
// somebody else answers, costs its attempt only. One thread at a time.
class AddressRotation {
 public:
  using Endpoint = transport::Endpoint;

  // `carrier`: the address that has carried the session, if it is known.
  explicit AddressRotation(std::optional<Endpoint> carrier) : carrier_(std::move(carrier)) {}

  // All addresses, the one whose turn it is first. `found` has the addresses to which the name resolves now; an address
  // that the name had before keeps its turn and its state. An empty `found` leaves the addresses as they are.
  std::vector<Endpoint> in_turn(const std::vector<Endpoint>& found);

  // It did not take a connection, or did not answer, or not as a server does that has the session.
  void failed(const Endpoint& address) { put_behind(address, Outcome::failed); }
  // A server answered there, and would answer the same again.
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
    Outcome outcome = Outcome::none;  // since the session was last carried
  };
  void put_behind(const Endpoint& address, Outcome outcome);
  std::vector<Address>::iterator find(const Endpoint& address);

  std::optional<Endpoint> carrier_;
  std::vector<Address> addresses_;  // in the order of their turns
};

}  // namespace gpuwire::client
