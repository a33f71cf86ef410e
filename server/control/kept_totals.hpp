// What tenants have used and devices have done, kept beyond the end of the server that has counted it.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/control/monitor.hpp"

namespace gpuwire::server {

// How often the totals are laid down while there are sessions: so much of what was used may be missing after a crash.
// What was shown is never missing.
inline constexpr std::chrono::milliseconds kTotalsNoteTime{1000};

// The broker's thread only. Nothing is laid down that has not changed.
class KeptTotals {
 public:
  // `monitor` and `store` outlive it.
  KeptTotals(boost::asio::io_context& io, SessionRegistry& registry, const Monitor& monitor, EntryStore& store);

  // Lays down what the snapshot says.
  void note(const Snapshot& snapshot);
  // The server ends, and its totals with it.
  void forget();

 private:
  void look_later();

  const SessionRegistry& registry_;
  const Monitor& monitor_;
  EntryStore& store_;
  boost::asio::steady_timer timer_;
  bool looking_ = false;
  std::map<std::string, std::string> noted_;  // text, by the name of the entry
  Lifetime lifetime_;
};

// The totals in a snapshot, as entries' texts by their names: each tenant's and each device's. Of what there is now,
// and of sessions that still count for themselves, nothing is in them.
std::map<std::string, std::string> totals_of(const Snapshot& snapshot);
// Takes what stands in an entry into `totals`. False: it cannot be read.
bool add_total(const std::string& text, Snapshot& totals);

}  // namespace gpuwire::server
