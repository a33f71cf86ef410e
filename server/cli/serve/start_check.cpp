#include "server/cli/serve/start_check.hpp"

#include <filesystem>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/ipc/inventory.hpp"
#include "server/broker/limits.hpp"
#include "server/config/listen_address.hpp"
#include "server/identity/identity_directory.hpp"
#include "server/log/audit_log.hpp"
#include "server/module_cache/module_cache.hpp"
#include "server/identity/server_identity.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

// Empty: nothing is wrong.
std::string wrong_with_socket(const fs::path& path) {
  if (path.string().size() >= sizeof(sockaddr_un::sun_path))
    return fmt::format("{} is too long for the path of a socket", path.string());
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_socket(path, error))
    return fmt::format("{} is there and is no socket", path.string());
  if (::access(path.parent_path().c_str(), W_OK | X_OK) != 0)
    return fmt::format("{}: no socket can be made in {}", path.string(), path.parent_path().string());
  return {};
}

std::string wrong_with_address(const std::string& text) {
  auto address = parse_listen(text);
  if (!address) return address.error();
  if (!address->tcp) return wrong_with_socket(address->unix_path);
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io);
  boost::system::error_code error;
  acceptor.open(address->tcp->protocol(), error);
  if (!error) acceptor.set_option(asio::ip::tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(*address->tcp, error);
  return !error || error == asio::error::address_in_use ? std::string()
                                                        : fmt::format("cannot listen on {}: {}", text, error.message());
}

std::string wrong_with_audit_log(const fs::path& file) {
  std::error_code error;
  const bool was_there = fs::exists(file, error);
  auto opened = AuditLog::open(file);
  if (!was_there) fs::remove(file, error);
  return opened ? std::string() : opened.error();
}

// A folder that is made at start-up where it is not there.
std::string wrong_with_folder(const fs::path& folder) {
  std::error_code error;
  fs::path there = fs::absolute(folder, error);
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, error)) return fmt::format("{} is no folder", there.string());
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    return fmt::format("{}: {} cannot be written", folder.string(), there.string());
  return {};
}

std::string wrong_with_identity(const fs::path& directory) {
  IdentityTexts texts;
  for (const auto& one : kIdentityFileTexts) {
    auto text = read_private_file(directory / one.name, one.bytes_max);
    if (!text) return text.error();
    texts.*one.text = std::move(*text);
  }
  auto identity = ServerIdentity::make(texts, std::chrono::system_clock::now());
  return identity ? std::string() : fmt::format("{}: {}", directory.string(), identity.error());
}

// What a worker says when it is ready: the devices that there are.
tl::expected<Inventory, std::string> ask_for_devices(WorkerCommand command) {
  command.arguments.push_back("--management");
  asio::io_context io(1);
  std::optional<ipc::Message> said;
  auto hear = [&](WorkerProcess&, ipc::Message message) {
    if (!std::holds_alternative<ipc::Ready>(message) && !std::holds_alternative<ipc::Failed>(message)) return;
    said = std::move(message);
    io.stop();
  };
  asio::signal_set children(io, SIGCHLD);
  asio::steady_timer limit(io, std::chrono::milliseconds(kWorkerStartMs));
  auto worker = WorkerProcess::spawn(
      io, command, {.said = hear, .distrusted = [&](WorkerProcess&, const std::string&) { io.stop(); }});
  if (!worker) return tl::unexpected(worker.error());
  std::string how;
  children.async_wait([&](boost::system::error_code, int) {
    how = (*worker)->reap().value_or("");
    io.stop();
  });
  limit.async_wait([&](boost::system::error_code) { io.stop(); });
  io.run();
  if (!said)
    return tl::unexpected(
        fmt::format("no worker could say which devices there are{}", how.empty() ? "" : ": it ended with " + how));
  if (auto* failed = std::get_if<ipc::Failed>(&*said))
    return tl::unexpected("the devices cannot be opened: " + failed->why);
  return std::move(std::get<ipc::Ready>(*said).inventory);
}

}  // namespace

ConfigurationErrors check_start(const Configuration& configuration, const WorkerCommand& worker,
                                const std::string& module_cache) {
  ConfigurationErrors errors;
  auto note = [&](std::string wrong) {
    if (!wrong.empty()) errors.push_back(std::move(wrong));
  };
  for (const std::string& address : configuration.listen) note(wrong_with_address(address));
  if (!configuration.metrics_listen.empty()) note(wrong_with_address(configuration.metrics_listen));
  if (!configuration.control_socket.empty()) note(wrong_with_socket(configuration.control_socket));
  if (!configuration.audit_log.empty()) note(wrong_with_audit_log(configuration.audit_log));
  if (!configuration.tls.directory.empty()) note(wrong_with_identity(configuration.tls.directory));
  if (!configuration.runtime_directory.empty() && configuration.adopt_grace_ms)
    note(wrong_with_folder(configuration.runtime_directory));
  if (!module_cache.empty() && module_cache != kNoModuleCache) note(wrong_with_folder(module_cache));
  auto inventory = ask_for_devices(worker);
  if (!inventory) {
    note(inventory.error());
    return errors;
  }
  std::vector<uint64_t> bytes;
  for (const ServerDevice& device : inventory->devices) bytes.push_back(device.bytes);
  for (std::string& misfit : check_devices(configuration, bytes)) note(std::move(misfit));
  return errors;
}

}  // namespace gpuwire::server
