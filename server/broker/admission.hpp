// Who may begin a session: asks the placement for GPUs, keeps those who wait, refuses what cannot be. Owns nothing of sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/wire/frame.hpp"
#include "scheduler/types.hpp"
#include "server/broker/session_book.hpp"
#include "server/broker/tenants.hpp"

namespace gpuwire::server {

// What a caller whose tenant is known wants. Its texts are the client's word, already checked for length and printable characters.
struct LoginRequest {
  std::string tenant;
  unsigned gpus = 0;             // 0: as many as the tenant usually gets
  uint64_t memory_bytes = 0;     // to be free on each; 0: not said
  std::string program, host;
  uint32_t client_pid = 0;
  std::string peer, security;    // as in SessionRecord
  bool management = false;
};

struct AdmissionQueued {
  size_t place = 1, waiting = 1;  // place counts from 1
  std::string why;
};
struct AdmissionGranted {};
struct AdmissionRefused {
  wire::RefusalCode code = wire::RefusalCode::busy;
  std::string reason;             // one line
};
using AdmissionAnswer = std::variant<AdmissionQueued, AdmissionGranted, AdmissionRefused>;

// The broker's thread only.
class Admission {
 public:
  // AdmissionQueued at first and whenever the place changes, then one of the others, once. May be called before request() returns.
  using Answer = std::function<void(scheduler::SessionId, const AdmissionAnswer&)>;

  struct Limits {
    unsigned sessions_max = 64;   // running ones, and as many that ask NVML; more are refused
  };

  // `prepare`: the session has its devices; whoever does it calls prepared() or refuse() when it has a worker or cannot, then or later.
  using Prepare = std::function<void(scheduler::SessionId)>;

  Admission(SessionBook& book, const TenantDirectory& tenants, Limits limits, Prepare prepare)
      : book_(book), tenants_(tenants), limits_(limits), prepare_(std::move(prepare)) {}

  // The session stands in the book until it is refused or over.
  scheduler::SessionId request(LoginRequest request, Answer answer);
  // The client has gone before it was served. No answer comes any more. Called by Sessions::cancel, which gives back the rest.
  void cancel(scheduler::SessionId session, const std::string& why);
  void prepared(scheduler::SessionId session);
  void refuse(scheduler::SessionId session, wire::RefusalCode code, std::string reason);
  // A session whose client was given to a worker, or was about to be, is over.
  void ended(scheduler::SessionId session);

  // From now on every request is refused, and so is who waits.
  void close(wire::RefusalCode code, std::string reason);
  void set_limits(Limits limits) { limits_ = limits; }

 private:
  size_t admitted(bool management) const;

  SessionBook& book_;
  const TenantDirectory& tenants_;
  Limits limits_;
  const Prepare prepare_;
  std::map<scheduler::SessionId, Answer> unanswered_;  // those that have neither been granted nor refused
  std::map<scheduler::SessionId, bool> admitted_;      // is it a management session
  std::string closed_;            // not empty: why
  wire::RefusalCode closed_code_ = wire::RefusalCode::shutting_down;
};

}  // namespace gpuwire::server
