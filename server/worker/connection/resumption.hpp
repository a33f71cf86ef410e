// Replaces the present or lost connection of a running session, and adds lanes to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/link/link.hpp"
#include "protocol/resume/exchange.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// The broker passes the connections on, and knows that their clients belong to the session's tenant. A thread for each
// connection checks the proof that it is the session's own client before it changes the session: a wrong proof has no
// effect.
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
    // Called before a proved connection of the session's own client replaces the present one, with the client's
    // description of its end. Any thread, one at a time.
    std::function<void(const transport::Transport&, const resume::Request&)> proved;
    // Called when a client without a valid proof has tried. Any thread.
    std::function<void(std::string why)> refused;
    // Called when the client's request is invalid and the session has to end. Any thread.
    std::function<void(std::string why)> fault;
    // Returns the number of lanes that the session may have. Any thread.
    std::function<unsigned()> lanes_max = [] { return 0u; };
  };
  explicit Resumption(Parts parts) : parts_(std::move(parts)) {}
  // Waits for unfinished attempts: at most a few kHandshakeTimeoutMs.
  ~Resumption();
  Resumption(const Resumption&) = delete;
  Resumption& operator=(const Resumption&) = delete;

  // Starts an attempt with a connection that may resume the session. Does not block; beyond kResumesMax concurrent
  // attempts the connection is dropped. One thread.
  void arrive(OwnedDescriptor socket, std::string tls_key);

 private:
  struct Attempt {
    std::thread thread;
    // The thread sets it last. Relaxed, because the thread is joined afterwards.
    std::atomic<bool> over{false};
  };
  void attempt(OwnedDescriptor socket, std::string tls_key);
  void carry_on(std::unique_ptr<transport::Transport> connection, const resume::Request& request);
  void join(std::unique_ptr<transport::Transport> connection, const resume::Request& request);
  std::string why_no_lane(const resume::Request& request) const REQUIRES(replacing_);

  const Parts parts_;
  std::list<Attempt> attempts_;
  // Held while a proved connection replaces another, so that replacements are serialised. Only the link's locks are
  // taken under it.
  Mutex replacing_;
  uint64_t last_attempt_ GUARDED_BY(replacing_) = 0;
  // The lanes of an incomplete set.
  uint32_t lane_set_ GUARDED_BY(replacing_) = 0;
  std::vector<std::unique_ptr<transport::Transport>> lanes_ GUARDED_BY(replacing_);
};

}  // namespace gpuwire::server
