// Network makes the connections of a scenario, on its road, and breaks them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/tls/openssl.hpp"
#include "protocol/transport/transport.hpp"
#include "test/simulation/relay.hpp"
#include "test/simulation/world.hpp"

namespace gpuwire::simulation {

// One end of an unused connection.
struct RawEnd {
  std::unique_ptr<transport::Transport> transport;
  uint64_t receives_max = ~0ull;  // the connection breaks once this end has received so many bytes
};

class Network {
 public:
  using Opened = tl::expected<std::unique_ptr<transport::Transport>, std::string>;

  explicit Network(const Scenario& scenario);
  // Precondition: all ends are destroyed.
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Returns the client's end and the server's. One thread at a time.
  std::pair<RawEnd, RawEnd> connect();
  // Sets up the road of one end: waits for the other end. Any thread.
  Opened open_client(RawEnd end) { return open(std::move(end), true); }
  Opened open_server(RawEnd end) { return open(std::move(end), false); }

  unsigned made() const { return made_; }
  // Returns the numbers of bytes in one direction after which connections have broken.
  std::vector<uint64_t> cut_at() const;

 private:
  // The drawn break of the next connection.
  struct Fate {
    uint64_t cut = ~0ull, swallow = ~0ull;
    bool from_client = false;
  };
  using Pair = std::pair<RawEnd, RawEnd>;
  Pair simulated(const Fate& fate);
  Pair shared_memory(const Fate& fate);
  Pair relayed(const Fate& fate);
  Pair by_rdma(const Fate& fate);
  std::function<void()> told(uint64_t cut);
  std::unique_ptr<transport::Transport> breaking(std::unique_ptr<transport::Transport> inside, uint64_t receives,
                                                 bool resets);
  Opened open(RawEnd end, bool client);
  Opened keyed(RawEnd end, bool client);
  Opened over_fabric(RawEnd end, bool client);

  const Scenario& scenario_;
  std::mt19937_64 random_;
  unsigned made_ = 0;
  mutable std::mutex mutex_;
  std::vector<uint64_t> cut_at_;              // under mutex_: connections break on the threads that receive
  std::list<std::unique_ptr<Relay>> relays_;  // used by connect()'s thread
  tls::Context client_context_, server_context_;
  uint64_t records_per_key_ = 0;
};

}  // namespace gpuwire::simulation
