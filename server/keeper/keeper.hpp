// Stores the objects that a broker's sessions need to outlive it, and gives them to the next broker.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "server/ipc/channel.hpp"

namespace gpuwire::server {

// After this long without a broker, or when the next broker connects, the keeper opens the gates: turns end, and the
// hardware shares the GPU.
inline constexpr std::chrono::milliseconds kGatesStay{250};

// One thread, which sleeps until a broker connects, disconnects or sends a message. Workers have no connection to the
// keeper, so it need not trust them.
class Keeper {
 public:
  // `socket`: the path at which later brokers connect. `broker`: the broker that has started the keeper.
  Keeper(std::filesystem::path socket, OwnedDescriptor broker);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Runs until it is no longer needed: without a broker, either there is neither a session nor another awaited entry,
  // or the time limit for the next broker is over. The descriptors close with the process, so running workers then see
  // their broker's end.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  bool listen();
  // Waits for one event and handles it. False: the keeper ends.
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
  // Has connected, and has not sent the key yet.
  std::optional<ipc::Channel> pending_;
  ino_t path_inode_ = 0;
  // Empty: no hello yet.
  std::string key_;
  std::chrono::milliseconds grace_{0};
  std::map<std::string, KeptEntry> entries_;
  std::optional<Clock::time_point> gone_since_;
  bool gates_open_ = false;
};

}  // namespace gpuwire::server
