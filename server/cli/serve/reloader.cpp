#include "server/cli/serve/reloader.hpp"

#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "server/config/configuration_changes.hpp"

namespace gpuwire::server {

Reloader::Reloader(boost::asio::io_context& io, Broker& broker, Configuration started_with, Read read)
    : broker_(broker),
      started_with_(std::move(started_with)),
      current_(started_with_),
      read_(std::move(read)),
      signal_(io) {}

void Reloader::start(std::function<void()> before) {
  before_ = std::move(before);
  signal_.add(SIGHUP);
  await_signal();
}

void Reloader::await_signal() {
  signal_.async_wait(lifetime_.guard([this](boost::system::error_code error, int) {
    if (error) return;
    if (auto done = reload(true); !done) {
      for (const std::string& mistake : done.error().lines) spdlog::error("{}", mistake);
      spdlog::error("the configuration was not read again; the old one stays");
    }
    await_signal();
  }));
}

tl::expected<std::string, ReloadRefused> Reloader::reload(bool confirmed) {
  if (before_) before_();
  auto done = read_again(confirmed);
  if (notified_) notified_(done);
  return done;
}

std::vector<std::string> Reloader::sessions_lost(const Configuration& configuration) const {
  std::vector<std::string> lines;
  for (const std::string& tenant : tenants_gone(current_, configuration)) {
    size_t waiting = 0, running = 0;
    for (const auto& [number, session] : broker_.registry().all())
      if (session.tenant == tenant) ++(session.state == SessionState::queued ? waiting : running);
    if (waiting + running != 0)
      lines.push_back(
          fmt::format("tenant {} would be gone: of its sessions {} that wait are refused, and {} that run "
                      "end with the next start of the server",
                      tenant, waiting, running));
  }
  return lines;
}

tl::expected<std::string, ReloadRefused> Reloader::read_again(bool confirmed) {
  constexpr const char* kMistakes = "the configuration has mistakes and stays as it was";
  auto configuration = read_();
  if (!configuration) return tl::unexpected(ReloadRefused{kMistakes, configuration.error()});
  std::vector<std::string> lost = sessions_lost(*configuration);
  if (!lost.empty() && !confirmed)
    return tl::unexpected(
        ReloadRefused{"the configuration stays as it was: gpuwire admin reload --yes takes it all "
                      "the same",
                      std::move(lost)});
  std::string later = left_for_the_next_start(*configuration);
  const size_t tenants = configuration->tenants.size();
  const std::string changes = changes_of_tenants(current_, *configuration);
  Configuration next = *configuration;
  if (auto done = broker_.reload(std::move(*configuration)); !done)
    return tl::unexpected(ReloadRefused{kMistakes, done.error()});
  current_ = std::move(next);
  if (in_force_) in_force_(current_);
  std::string said = fmt::format("the configuration was read again: {} tenant{}{}{}", tenants, tenants == 1 ? "" : "s",
                                 changes.empty() ? "" : "; ", changes);
  if (!later.empty()) said += fmt::format("; {} will take effect when the server starts again", later);
  spdlog::info("{}", said);
  return said;
}

std::string Reloader::left_for_the_next_start(const Configuration& configuration) const {
  std::vector<std::string_view> words;
  auto note = [&](const char* word, bool same) {
    if (!same) words.push_back(word);
  };
  note("listen", configuration.listen == started_with_.listen);
  note("metrics_listen", configuration.metrics_listen == started_with_.metrics_listen);
  note("web_listen", configuration.web_listen == started_with_.web_listen);
  note("web_certificate", configuration.web_certificate == started_with_.web_certificate);
  note("web_key", configuration.web_key == started_with_.web_key);
  note("control_socket", configuration.control_socket == started_with_.control_socket);
  note("runtime_directory", configuration.runtime_directory == started_with_.runtime_directory &&
                                (configuration.adopt_grace_ms != 0) == (started_with_.adopt_grace_ms != 0));
  note("budget_file", configuration.budget_file == started_with_.budget_file);
  note("audit_log", configuration.audit_log == started_with_.audit_log);
  note("log_format", configuration.log_format == started_with_.log_format);
  note("batch_floor", configuration.batch_floor == started_with_.batch_floor);
  note("rdma", configuration.rdma == started_with_.rdma);
  note("cupti", configuration.cupti == started_with_.cupti);
  note("worker_users", configuration.worker_users == started_with_.worker_users);
  note("scheduling", configuration.scheduling == started_with_.scheduling);
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace gpuwire::server
