// Moves the device memory of another process to the host and back, by the driver's checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <sys/types.h>

#include "server/ipc/message.hpp"

namespace gpuwire::server {

struct DriverTable;

// How long a process's calls and work may take to end before its memory moves.
inline constexpr unsigned kLockMs = 5000;

struct MoveOutcome {
  ipc::MoveResult result = ipc::MoveResult::done;
  // With every other result.
  std::string why;
  bool operator==(const MoveOutcome&) const = default;
};

// Empty: the driver has all functions of checkpoints; otherwise the reason why nothing can be moved.
std::string why_no_moves(const DriverTable& driver);

// One process. Each function begins with the process's present state, so it may follow a move that was interrupted.
// Blocks for as long as the driver does.
class ProcessMove {
 public:
  // Precondition: why_no_moves(driver) is empty. `alive`: whether `process` still is the process that is meant; asked
  // before each step.
  ProcessMove(const DriverTable& driver, pid_t process, std::function<bool()> alive)
      : driver_(driver), process_(process), alive_(std::move(alive)) {}

  // done, refused (the process runs on), lost or gone.
  MoveOutcome to_host();
  // done, no_room (its contents stay with the host), lost or gone.
  MoveOutcome to_device();

 private:
  MoveOutcome unlock();
  MoveOutcome refuse(std::string why);
  std::string failed(const char* call, int result) const;

  const DriverTable& driver_;
  const pid_t process_;
  const std::function<bool()> alive_;
};

}  // namespace gpuwire::server
