// A worker's reports to the broker about its session. A new broker that adopts the session gets them again, since the
// previous one's copies are lost.
#pragma once

#include <optional>
#include <variant>

#include "protocol/threads/mutex.hpp"
#include "server/ipc/channel.hpp"

namespace gpuwire::server {

// Any thread.
class Reports {
 public:
  // `broker` outlives this object.
  explicit Reports(ipc::Channel& broker) : broker_(broker) {}

  // Reports a state of the session, which replaces the previous one.
  void notify(ipc::Begun begun) {
    MutexLock lock(mutex_);
    store(begun_, std::move(begun));
  }
  void notify(ipc::Ended ended) {
    MutexLock lock(mutex_);
    store(ended_, std::move(ended));
  }
  void notify(ipc::Detached detached) {
    MutexLock lock(mutex_);
    store(connection_, std::move(detached));
  }
  void notify(ipc::Attached attached) {
    MutexLock lock(mutex_);
    store(connection_, attached);
  }
  void notify_again() {
    MutexLock lock(mutex_);
    if (begun_) send(*begun_);
    if (connection_) std::visit([this](const auto& said) { send(said); }, *connection_);
    if (ended_) send(*ended_);
  }

 private:
  template <class Slot, class Message>
  void store(Slot& slot, Message said) REQUIRES(mutex_) {
    send(said);
    slot = std::move(said);
  }
  // Sends without waiting: if the broker has ended, the next one gets the report later.
  template <class Message>
  void send(const Message& said) {
    broker_.send(Message(said));
  }

  ipc::Channel& broker_;
  // Held over a send, which does not wait, so that reports stay in order. Taken before the channel's mutex.
  Mutex mutex_;
  std::optional<ipc::Begun> begun_ GUARDED_BY(mutex_);
  std::optional<std::variant<ipc::Detached, ipc::Attached>> connection_ GUARDED_BY(mutex_);
  std::optional<ipc::Ended> ended_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
