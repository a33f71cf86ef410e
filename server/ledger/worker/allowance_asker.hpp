// The worker's side of raising allowances: asks the broker and waits for its answer.
#pragma once

#include <cstdint>

#include "server/ipc/blocking_requests.hpp"
#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

// Longer than the broker lets a question wait (kMemoryShortage), and than a load delays a broker that has no core: the
// program would get an out-of-memory error otherwise.
inline constexpr uint32_t kAllowanceAnswerMs = 20'000;

class AllowanceAsker final : public AllowanceSource {
 public:
  // Both outlive it. `broker`: the target of `requests`, for a note when there is no answer.
  AllowanceAsker(ipc::Channel& broker, ipc::BlockingRequests& requests) : broker_(broker), requests_(requests) {}

  bool ask(uint32_t column, uint64_t bytes) override { return ask(column, bytes, false); }
  bool ask_ahead(uint32_t column, uint64_t bytes) override { return ask(column, bytes, true); }

 private:
  bool ask(uint32_t column, uint64_t bytes, bool ahead);

  ipc::Channel& broker_;
  ipc::BlockingRequests& requests_;
};

}  // namespace gpuwire::server
