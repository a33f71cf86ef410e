#include "server/cli/serve/reloader.hpp"

#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

namespace gpuwire::server {

Reloader::Reloader(boost::asio::io_context& io, Broker& broker, Configuration started_with, Read read)
    : broker_(broker), started_with_(std::move(started_with)), read_(std::move(read)), signal_(io) {}

void Reloader::start(std::function<void()> before) {
  before_ = std::move(before);
  signal_.add(SIGHUP);
  await_signal();
}

void Reloader::await_signal() {
  signal_.async_wait(lifetime_.guard([this](boost::system::error_code error, int) {
    if (error) return;
    if (auto done = reload(); !done) {
      for (const std::string& mistake : done.error()) spdlog::error("{}", mistake);
      spdlog::error("the configuration was not read again; the old one stays");
    }
    await_signal();
  }));
}

tl::expected<std::string, ConfigurationErrors> Reloader::reload() {
  if (before_) before_();
  auto done = read_again();
  if (told_) told_(done);
  return done;
}

tl::expected<std::string, ConfigurationErrors> Reloader::read_again() {
  auto configuration = read_();
  if (!configuration) return tl::unexpected(configuration.error());
  std::string later = left_for_the_next_start(*configuration);
  const size_t tenants = configuration->tenants.size();
  if (auto done = broker_.reload(std::move(*configuration)); !done) return tl::unexpected(done.error());
  std::string said = fmt::format("the configuration was read again: {} tenant{}", tenants, tenants == 1 ? "" : "s");
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
  note("control_socket", configuration.control_socket == started_with_.control_socket);
  note("runtime_directory", configuration.runtime_directory == started_with_.runtime_directory &&
                                (configuration.adopt_grace_ms != 0) == (started_with_.adopt_grace_ms != 0));
  note("audit_log", configuration.audit_log == started_with_.audit_log);
  note("log_format", configuration.log_format == started_with_.log_format);
  note("batch_floor", configuration.batch_floor == started_with_.batch_floor);
  note("rdma", configuration.rdma == started_with_.rdma);
  note("cupti", configuration.cupti == started_with_.cupti);
  note("scheduling", configuration.scheduling == started_with_.scheduling);
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace gpuwire::server
