// The account of `--stats` in words. Pure logic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client_stub/account/account_page.hpp"
#include "client_stub/account/advice.hpp"

namespace gpuwire::client {

// Facts that are known at the end, and not in the page.
struct AccountEnd {
  uint64_t elapsed_ns = 0;            // since the page began
  bool cut_short = false;             // the process ended without its exit handlers
  uint64_t round_trip_ns = 0;         // of the connection; 0: not known
  std::optional<ServerTimes> server;  // the server's answer
};

// Lines that begin with "gpuwire: ", of the page's depth. `page`: another process may have written it, so nothing in it
// is taken for right.
std::string account_text(const AccountPage& page, const AccountEnd& end);

}  // namespace gpuwire::client
