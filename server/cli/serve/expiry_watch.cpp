#include "server/cli/serve/expiry_watch.hpp"

#include <utility>

#include <spdlog/spdlog.h>

namespace gpuwire::server {

ExpiryWatch::ExpiryWatch(boost::asio::io_context& io, Sources sources) : sources_(std::move(sources)), timer_(io) {}

void ExpiryWatch::start() {
  poll();
  timer_.expires_after(kExpiryPoll);
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) start();
  }));
}

// Files in the folder are replaced, never written to: each change is one of the folder.
std::filesystem::file_time_type ExpiryWatch::changed() const {
  std::error_code error;
  const std::filesystem::path directory = sources_.directory();
  return directory.empty() ? std::filesystem::file_time_type() : std::filesystem::last_write_time(directory, error);
}

const std::vector<CertificateMetrics>& ExpiryWatch::figures() {
  if (changed() != polled_at_) poll();
  return figures_;
}

void ExpiryWatch::poll() {
  polled_at_ = changed();
  figures_.clear();
  const std::filesystem::path directory = sources_.directory();
  if (directory.empty()) return;
  const WallTime now = sources_.now();
  auto found = expiries(directory, now);
  if (!found) {
    if (std::exchange(failure_, found.error()) != found.error())
      spdlog::warn("nobody can say when certificates expire: {}", found.error());
    return;
  }
  failure_.clear();
  for (const Expiry& one : *found) {
    if (one.expires == WallTime::max() || (one.of == Expiry::Of::tenant && !sources_.serves(one.tenant))) continue;
    figures_.push_back({.of = name_of(one.of),
                        .tenant = one.tenant,
                        .expires_unix_s = std::chrono::duration<double>(one.expires.time_since_epoch()).count(),
                        .warning = expiry_line(one, now)});
  }
  log(figures_, now);
}

void ExpiryWatch::log(const std::vector<CertificateMetrics>& figures, WallTime now) {
  std::map<std::string, WallTime> logged;
  for (const CertificateMetrics& one : figures) {
    if (one.warning.empty()) continue;
    const std::string key = one.of + " " + one.tenant;
    auto before = logged_.find(key);
    const bool due = before == logged_.end() || now - before->second >= kExpiryLogged;
    if (due) spdlog::warn("{}", one.warning);
    logged[key] = due ? now : before->second;
  }
  logged_ = std::move(logged);
}

}  // namespace gpuwire::server
