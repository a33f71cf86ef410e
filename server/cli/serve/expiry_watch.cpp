#include "server/cli/serve/expiry_watch.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
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

// Files in the folder are replaced and never written to, so each change of a file changes the folder.
std::filesystem::file_time_type ExpiryWatch::changed() const {
  std::error_code error;
  const std::filesystem::path directory = sources_.directory();
  return directory.empty() ? std::filesystem::file_time_type() : std::filesystem::last_write_time(directory, error);
}

const std::vector<CertificateMetrics>& ExpiryWatch::figures() {
  if (changed() != polled_at_) poll();
  return figures_;
}

size_t keep_those_that_end_first(std::vector<CertificateMetrics>& figures) {
  const size_t more = figures.size() - std::min(figures.size(), kCertificatesShownMax);
  if (more == 0) return 0;
  std::vector<double> ends;
  for (const CertificateMetrics& one : figures) ends.push_back(one.expires_unix_s);
  std::ranges::nth_element(ends, ends.begin() + ptrdiff_t(kCertificatesShownMax - 1));
  const double last = ends[kCertificatesShownMax - 1];
  std::erase_if(figures, [&](const CertificateMetrics& one) { return one.expires_unix_s > last; });
  figures.resize(kCertificatesShownMax);
  return more;
}

std::vector<Expiry> ExpiryWatch::found(WallTime now, std::string& failure) const {
  const std::filesystem::path directory = sources_.directory(), page = sources_.page();
  std::vector<Expiry> all;
  auto take = [&](auto expiries_or_error, auto add) {
    if (expiries_or_error) add(*expiries_or_error);
    else failure = expiries_or_error.error();
  };
  if (!page.empty()) take(expiry_of_page(page), [&](const Expiry& one) { all.push_back(one); });
  if (!directory.empty())
    take(expiries(directory, now),
         [&](const std::vector<Expiry>& more) { all.insert(all.end(), more.begin(), more.end()); });
  return all;
}

void ExpiryWatch::poll() {
  polled_at_ = changed();
  figures_.clear();
  const WallTime now = sources_.now();
  std::string failure;
  const std::vector<Expiry> all = found(now, failure);
  if (std::exchange(failure_, failure) != failure && !failure.empty())
    spdlog::warn("nobody can say when certificates expire: {}", failure);
  for (const Expiry& one : all) {
    if (one.expires == WallTime::max() || (one.of == Expiry::Of::tenant && !sources_.serves(one.tenant))) continue;
    figures_.push_back({.of = name_of(one.of),
                        .tenant = one.tenant,
                        .expires_unix_s = std::chrono::duration<double>(one.expires.time_since_epoch()).count(),
                        .warning = expiry_line(one, now),
                        .user = one.user,
                        .kind = one.of == Expiry::Of::tenant ? name_of(one.kind) : "",
                        .id = one.id,
                        .renewed = one.renewed});
  }
  log(figures_, now);
  left_out_ = keep_those_that_end_first(figures_);
}

void ExpiryWatch::log(const std::vector<CertificateMetrics>& figures, WallTime now) {
  std::map<std::string, WallTime> logged;
  std::vector<const CertificateMetrics*> due;
  for (const CertificateMetrics& one : figures) {
    if (one.warning.empty()) continue;
    const std::string key = fmt::format("{} {} {} {}", one.of, one.tenant, one.user, one.kind);
    auto before = logged_.find(key);
    const bool is_due = before == logged_.end() || now - before->second >= kExpiryLogged;
    if (is_due) due.push_back(&one);
    logged[key] = is_due ? now : before->second;
  }
  logged_ = std::move(logged);
  std::stable_sort(due.begin(), due.end(),
                   [](const auto* a, const auto* b) { return a->expires_unix_s < b->expires_unix_s; });
  for (size_t i = 0; i < std::min(due.size(), kExpiryLinesMax); ++i) spdlog::warn("{}", due[i]->warning);
  if (due.size() > kExpiryLinesMax)
    spdlog::warn("{} more credentials expire soon, or have expired: gpuwire admin list shows all",
                 due.size() - kExpiryLinesMax);
}

}  // namespace gpuwire::server
