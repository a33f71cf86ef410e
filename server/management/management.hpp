// Management sessions: a worker that serves queries of NVML and no CUDA calls.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/management/library.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

// Executor thread only.
class Management {
 public:
  explicit Management(ManagementLibrary library) : library_(std::move(library)) {}
  const ManagementLibrary& library() const { return library_; }
  ManagementLibrary& library() { return library_; }

  // Executes one query. Returns the library's status, and its results in `values`. Throws ProtocolFault at invalid
  // arguments.
  int ask(uint32_t function, std::string_view arguments, std::string& values) const;

 private:
  ManagementLibrary library_;
};

// The calls of a management session, by ordinal of protocol/api/session.toml; they need Replay::management().
std::span<const ReplayEntry> management_replay_table();

}  // namespace gpuwire::server
