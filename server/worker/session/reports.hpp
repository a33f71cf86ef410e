// What a worker has told the broker of its session. Another broker that takes the session over is told again: what the
// one before has heard died with it.
#pragma once

#include <mutex>
#include <optional>
#include <variant>

#include "server/ipc/channel.hpp"

namespace gpuwire::server {

// Any thread.
class Reports {
 public:
  // `broker` outlives it.
  explicit Reports(ipc::Channel& broker) : broker_(broker) {}

  // A state of the session's, in the place of the one before.
  void tell(ipc::Begun begun) { tell(begun_, std::move(begun)); }
  void tell(ipc::Ended ended) { tell(ended_, std::move(ended)); }
  void tell(ipc::Detached detached) { tell(connection_, std::move(detached)); }
  void tell(ipc::Attached attached) { tell(connection_, attached); }
  void tell_again() {
    std::lock_guard lock(mutex_);
    if (begun_) send(*begun_);
    if (connection_) std::visit([this](const auto& said) { send(said); }, *connection_);
    if (ended_) send(*ended_);
  }

 private:
  template <class Slot, class Said>
  void tell(Slot& slot, Said said) {
    std::lock_guard lock(mutex_);
    send(said);
    slot = std::move(said);
  }
  // Does not wait: a broker that has gone is told later, or needs no telling.
  template <class Said>
  void send(const Said& said) {
    broker_.send(Said(said));
  }

  ipc::Channel& broker_;
  std::mutex mutex_;  // held over a send that does not wait, so that states come in their order; before the channel's
  std::optional<ipc::Begun> begun_;
  std::optional<std::variant<ipc::Detached, ipc::Attached>> connection_;
  std::optional<ipc::Ended> ended_;
};

}  // namespace gpuwire::server
