// What a worker has told the broker of its session. Another broker that takes the session over is told again: what the
// one before has heard died with it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "server/ipc/ipc_message.hpp"

namespace gpuwire::server {

// Any thread.
class Reports {
 public:
  // `ipc_message`: the broker's pair.
  explicit Reports(int message) : message_(message) {}

  // Of kind begun, detached, attached or ended: a state of the session's, in the place of the one before.
  void tell(IpcMessageKind kind, uint32_t number, std::string text) {
    std::lock_guard lock(mutex_);
    std::optional<Said>& said = kind == IpcMessageKind::begun   ? begun_
                                : kind == IpcMessageKind::ended ? ended_
                                                                : connection_;
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
    IpcMessageKind kind;
    uint32_t number;
    std::string text;
  };
  // Does not wait: a broker that has gone is told later, or needs no telling.
  void send(const Said& said) {
    IpcMessage message;
    message.kind = said.kind;
    message.number = said.number;
    message.text = said.text;
    send_ipc_message(message_, message);
  }

  const int message_;
  std::mutex mutex_;  // a leaf; held over a send that does not wait, so that states come in their order
  std::optional<Said> begun_, connection_, ended_;
};

}  // namespace gpuwire::server
