// Gives a running session another connection in the place of its present or lost one; and lanes beside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/link/link.hpp"
#include "protocol/resume/exchange.hpp"
#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// Connections come from the broker, which knows that their clients are the session's tenant. That they are the
// session's own client is found out here, by a thread for each connection, before anything happens to the session: a
// wrong proof disturbs nothing.
class Resumption {
 public:
  struct Parts {
    link::Link& link;
    resume::SessionId id{};
    resume::Secret secret{};
    // The handshake of a connection's own TLS, if it has one; bounded in time. Any thread.
    std::function<tl::expected<std::unique_ptr<transport::Transport>, std::string>(OwnedDescriptor socket,
                                                                                   std::string tls_key)>
        open;
    // The connection of the session's own client, which is about to replace the present one; the client's description
    // of its end. Any thread, one at a time.
    std::function<void(const transport::Transport&, const resume::Request&)> proved;
    std::function<void(std::string why)> refused;  // a client without a valid proof has tried; any thread
    std::function<void(std::string why)> fault;    // the client cannot be right: the session has to end; any thread
    std::function<unsigned()> lanes_max = [] { return 0u; };  // how many the session may have; any thread
  };
  explicit Resumption(Parts parts) : parts_(std::move(parts)) {}
  // Waits for connections under way: at most a few kHandshakeTimeoutMs.
  ~Resumption();
  Resumption(const Resumption&) = delete;
  Resumption& operator=(const Resumption&) = delete;

  // A connection that is to carry the session on. Does not block; past kResumesMax at once it is dropped. One thread.
  void arrive(OwnedDescriptor socket, std::string tls_key);

 private:
  struct Attempt {
    std::thread thread;
    std::atomic<bool> over{false};  // the thread's last word; relaxed, it is joined after that
  };
  void attempt(OwnedDescriptor socket, std::string tls_key);
  void carry_on(std::unique_ptr<transport::Transport> connection, const resume::Request& request);
  void join(std::unique_ptr<transport::Transport> connection, const resume::Request& request);
  std::string why_no_lane(const resume::Request& request) const;

  const Parts parts_;
  std::list<Attempt> attempts_;
  // Held while a connection with a right proof takes the place of another: one after the other. Nothing else is taken
  // with it but the link's.
  std::mutex replacing_;
  uint64_t last_attempt_ = 0;  // under replacing_
  // Under replacing_: lanes of one set that have come, until all of them have.
  uint32_t lane_set_ = 0;
  std::vector<std::unique_ptr<transport::Transport>> lanes_;
};

}  // namespace gpuwire::server
