// The admission's view of budgets.
#pragma once

#include <string>

#include "server/broker/session/session_registry.hpp"

namespace gpuwire::server {

// The broker's thread only.
class SessionBudgets {
 public:
  // Whether the GPU time of the session's tenant or user is used up, so that it is served as a scavenger.
  virtual bool used_up(const SessionRecord& session) const = 0;
  // Returns why the session has to wait for the next month, in a stable text; empty: it need not wait.
  virtual std::string why_held(const SessionRecord& session) const = 0;

 protected:
  ~SessionBudgets() = default;
};

}  // namespace gpuwire::server
