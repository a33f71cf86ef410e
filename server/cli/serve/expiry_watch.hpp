// Announces the expiry of certificates and tokens in the log and in the figures.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/control/client/metrics.hpp"
#include "server/identity/expiry.hpp"

namespace gpuwire::server {

// The intervals between two checks of the identity's folder, and between two log lines about the same expiry.
inline constexpr std::chrono::hours kExpiryPoll{1}, kExpiryLogged{24};
inline constexpr size_t kExpiryLinesMax = 32;  // of the log, after one look

// Keeps at most kCertificatesShownMax entries; returns the number of removed ones.
size_t keep_those_that_end_first(std::vector<CertificateMetrics>& figures);

// On the broker's thread.
class ExpiryWatch {
 public:
  struct Sources {
    // Returns the folder of the identity; empty: there is none.
    std::function<std::filesystem::path()> directory;
    // Whether the server knows this tenant now.
    std::function<bool(const std::string& tenant)> serves;
    std::function<WallTime()> now = std::chrono::system_clock::now;
    std::function<std::filesystem::path()> page = [] { return std::filesystem::path(); };  // web_certificate; or empty
  };
  // Checks when start() is called, and then every kExpiryPoll.
  ExpiryWatch(boost::asio::io_context& io, Sources sources);
  void start();

  // Returns the expiries, as of now if a file of the folder has changed since the last check, otherwise as of that
  // check. Of more than kCertificatesShownMax, the function leaves out those that expire last.
  const std::vector<CertificateMetrics>& figures();
  size_t left_out() const { return left_out_; }

 private:
  void poll();
  // `failure`: why some are missing; unchanged: none is.
  std::vector<Expiry> found(WallTime now, std::string& failure) const;
  void log(const std::vector<CertificateMetrics>& figures, WallTime now);
  std::filesystem::file_time_type changed() const;

  const Sources sources_;
  std::vector<CertificateMetrics> figures_;
  size_t left_out_ = 0;
  // The folder's time of change at the last check.
  std::filesystem::file_time_type polled_at_{};
  // The error of the last check; a different error is logged.
  std::string failure_;
  // By credential: the time of its last log line.
  std::map<std::string, WallTime> logged_;
  boost::asio::steady_timer timer_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
