// What a worker has told the broker of its session. Another broker that takes the session over is told again: what the
// one before has heard died with it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "server/broker/handoff.hpp"

namespace gpuwire::server {

// Any thread.
class Reports {
 public:
  // `handoff`: the broker's pair.
  explicit Reports(int handoff) : handoff_(handoff) {}

  // Of kind begun, detached, attached or ended: a state of the session's, in the place of the one before.
  void tell(HandoffKind kind, uint32_t number, std::string text) {
    std::lock_guard lock(mutex_);
    std::optional<Said>& said = kind == HandoffKind::begun ? begun_ : kind == HandoffKind::ended ? ended_ : connection_;
    said = {kind, number, std::move(text)};
    send(*said);
  }
  void tell_again() {
    std::lock_guard lock(mutex_);
    for (const std::optional<Said>* said : {&begun_, &connection_, &ended_}) {
      if (*said) send(**said);
    }
  }

 private:
  struct Said {
    HandoffKind kind;
    uint32_t number;
    std::string text;
  };
  // Does not wait: a broker that has gone is told later, or needs no telling.
  void send(const Said& said) {
    Handoff handoff;
    handoff.kind = said.kind;
    handoff.number = said.number;
    handoff.text = said.text;
    send_handoff(handoff_, handoff);
  }

  const int handoff_;
  std::mutex mutex_;  // a leaf; held over a send that does not wait, so that states come in their order
  std::optional<Said> begun_, connection_, ended_;
};

}  // namespace gpuwire::server
