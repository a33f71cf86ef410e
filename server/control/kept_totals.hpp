// KeptTotals stores the totals of tenants and devices beyond the end of the server that has counted them.
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

// The interval at which the totals are stored while there are sessions: a crash may lose this much of the use. A total
// that was shown to anyone is never lost.
inline constexpr std::chrono::milliseconds kTotalsNoteTime{1000};

// The broker's thread only. It stores changed totals only.
class KeptTotals {
 public:
  // `monitor` and `store` outlive it.
  KeptTotals(boost::asio::io_context& io, SessionRegistry& registry, const Monitor& monitor, EntryStore& store);

  // Stores the totals of the snapshot.
  void note(const Snapshot& snapshot);
  // Removes the stored totals: the server ends for good.
  void forget();

 private:
  void poll_later();

  const SessionRegistry& registry_;
  const Monitor& monitor_;
  EntryStore& store_;
  boost::asio::steady_timer timer_;
  bool polling_ = false;
  // The entry's text, by its name.
  std::map<std::string, std::string> noted_;
  Lifetime lifetime_;
};

// The totals in a snapshot, as entries' texts by their names: each tenant's and each device's. They contain no present
// values, and nothing of sessions that still count for themselves.
std::map<std::string, std::string> totals_of(const Snapshot& snapshot);
// Adds an entry to `totals`. False: it cannot be read.
bool add_total(const std::string& text, Snapshot& totals);

}  // namespace gpuwire::server
