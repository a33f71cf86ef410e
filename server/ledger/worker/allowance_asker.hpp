// The worker's side of raising allowances: asks the broker and waits for its answer.
#pragma once

#include <cstdint>

#include "server/ipc/blocking_requests.hpp"
#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

// The worker waits longer than the broker lets a request wait (kMemoryShortage, kSuspensionWait), and longer than an
// overloaded machine delays the broker: otherwise the program would get an out-of-memory error.
inline constexpr uint32_t kAllowanceAnswerMs = 320'000;

class AllowanceAsker final : public AllowanceSource {
 public:
  // Both arguments outlive this object. `broker`: the channel of `requests`.
  AllowanceAsker(ipc::Channel& broker, ipc::BlockingRequests& requests) : broker_(broker), requests_(requests) {}

  bool ask(uint32_t column, uint64_t bytes) override { return ask(column, bytes, false); }
  bool ask_ahead(uint32_t column, uint64_t bytes) override { return ask(column, bytes, true); }

 private:
  bool ask(uint32_t column, uint64_t bytes, bool ahead);

  ipc::Channel& broker_;
  ipc::BlockingRequests& requests_;
};

}  // namespace gpuwire::server
