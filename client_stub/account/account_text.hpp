// The account of `--stats` in words. Pure logic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client_stub/account/account_page.hpp"
#include "client_stub/account/advice.hpp"

namespace gpuwire::client {

// Facts that are known only at the end.
struct AccountEnd {
  // Since the page began.
  uint64_t elapsed_ns = 0;
  // The process ended without its exit handlers.
  bool cut_short = false;
  // The connection's round trip; 0: not known.
  uint64_t round_trip_ns = 0;
  // The server's answer.
  std::optional<ServerTimes> server;
};

// Returns lines that begin with "gpuwire: ", with the page's depth. Another process may have written `page`, so its
// content is not trusted.
std::string account_text(const AccountPage& page, const AccountEnd& end);

}  // namespace gpuwire::client
