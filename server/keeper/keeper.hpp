// Stores the objects that a broker's sessions need to outlive it, and gives them to the next broker.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "server/ipc/channel.hpp"

namespace gpuwire::server {

// After this long without a broker, or when the next one comes, gates are opened: turns end, and the hardware shares
// the GPU.
inline constexpr std::chrono::milliseconds kGatesStay{250};

// One thread, which sleeps unless a broker comes, goes or says something. Nothing in here believes a worker: it has no
// way to the keeper.
class Keeper {
 public:
  // `socket`: where later brokers find it. `broker`: the one that has started it.
  Keeper(std::filesystem::path socket, OwnedDescriptor broker);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Runs until it is not needed any more: there is no broker, and neither a session nor another awaited object, or the
  // time for a broker to come is over. The descriptors close with the process, so workers that run then see their
  // broker's end.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  bool listen();
  // Waits, and acts once. False: it is over.
  bool turn();
  int time_left() const;
  void meet();
  void let_in();
  void receive();
  void answer(ipc::Message message);
  bool give_all();
  // False: the broker is gone, or does not read.
  bool notify(ipc::Message message);
  void broker_gone();
  void open_gates();
  bool anything_awaits() const;

  const std::filesystem::path path_;
  OwnedDescriptor listening_;
  std::optional<ipc::Channel> broker_;
  std::optional<ipc::Channel> pending_;  // has connected, and has not shown the key
  ino_t path_inode_ = 0;
  std::string key_;  // empty: no hello yet
  std::chrono::milliseconds grace_{0};
  std::map<std::string, KeptEntry> entries_;
  std::optional<Clock::time_point> gone_since_;
  bool gates_open_ = false;
};

}  // namespace gpuwire::server
