#include "server/cli/serve/start_check.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "protocol/transport/rdma.hpp"
#include "protocol/transport/rdma_plugin.hpp"
#include "server/ipc/inventory.hpp"
#include "server/broker/limits.hpp"
#include "server/cli/serve/address_check.hpp"
#include "server/cli/serve/folder_check.hpp"
#include "server/cli/serve/page_certificate.hpp"
#include "server/cli/serve/runtime_directory.hpp"
#include "server/cli/serve/serve_options.hpp"
#include "server/budget/budget_file.hpp"
#include "server/config/listen_address.hpp"
#include "server/config/unix_users.hpp"
#include "server/identity/expiry.hpp"
#include "server/identity/identity_directory.hpp"
#include "server/log/audit_log.hpp"
#include "server/module_cache/module_cache.hpp"
#include "server/identity/server_identity.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

// These return the fault, in a line; empty: none.

std::string wrong_with_audit_log(const fs::path& file) {
  std::error_code error;
  const bool was_there = fs::exists(file, error);
  auto opened = AuditLog::open(file);
  if (!was_there) fs::remove(file, error);
  return opened ? std::string() : opened.error();
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

std::string wrong_with_page_certificate(const Configuration& configuration) {
  auto opened = open_page_files(page_files(configuration));
  return opened ? std::string() : opened.error();
}

// Returns the devices that a ready worker reports.
tl::expected<Inventory, std::string> ask_for_devices(WorkerCommand command) {
  command.arguments.push_back("--management");
  asio::io_context io(1);
  std::optional<ipc::Message> said;
  auto on_message = [&](WorkerProcess&, ipc::Message message) {
    if (!std::holds_alternative<ipc::Ready>(message) && !std::holds_alternative<ipc::Failed>(message)) return;
    said = std::move(message);
    io.stop();
  };
  asio::signal_set children(io, SIGCHLD);
  asio::steady_timer limit(io, std::chrono::milliseconds(kWorkerStartMs));
  auto worker = WorkerProcess::spawn(
      io, command, {.on_message = on_message, .distrusted = [&](WorkerProcess&, const std::string&) { io.stop(); }});
  if (!worker) return tl::unexpected(worker.error());
  (*worker)->label = "the worker that is asked for its devices";
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

// Checks the folder of the tenants' chunks on disk, if any tenant has a store there.
std::string wrong_with_chunks(const Configuration& configuration) {
  if (!configuration.dedup_directory.empty()) return wrong_with_folder(configuration.dedup_directory);
  const auto& tenants = configuration.tenants;
  const bool wanted =
      std::any_of(tenants.begin(), tenants.end(), [](const auto& one) { return one.dedup_disk_bytes > 0; });
  return wanted ? wrong_with_folder(default_module_cache_directory()) : std::string();
}

// Checks the place of the budgets' state, if anybody has a budget.
std::string wrong_with_budgets(const Configuration& configuration) {
  if (std::none_of(configuration.tenants.begin(), configuration.tenants.end(), has_budget)) return {};
  const fs::path& named = configuration.budget_file;
  return wrong_with_folder((named.empty() ? default_budget_file() : named).parent_path());
}

// With an unusable default folder sessions end with the server, and the server logs a line.
std::string lacking_of_runtime_folder(const Configuration& configuration) {
  std::vector<ListenAddress> listen;
  for (const std::string& text : configuration.listen)
    if (auto address = parse_listen(text)) listen.push_back(std::move(*address));
  auto folder = default_runtime_directory(listen);
  std::string wrong = !folder ? folder.error() : folder->empty() ? std::string() : wrong_with_folder(*folder);
  return wrong.empty() ? wrong : "sessions will end with this process: " + wrong;
}

// The worker that opens the library at a start logs the same.
std::string lacking_of_rdma() {
  const fs::path plugin = fs::path(beside_this_program("")).parent_path().parent_path() / kGpuwireRdmaLibrary;
  auto fabric = transport::RdmaFabric::open(plugin, true);
  return fabric ? std::string() : "no RDMA: " + fabric.error();
}

// Reports credentials of the server, its page and its tenants that will expire soon.
void add_expiries(const Configuration& configuration, ConfigurationErrors& warnings) {
  const WallTime now = std::chrono::system_clock::now();
  if (!configuration.web_certificate.empty())
    if (auto page = expiry_of_page(configuration.web_certificate); page && !expiry_line(*page, now).empty())
      warnings.push_back(expiry_line(*page, now));
  if (configuration.tls.directory.empty()) return;
  auto found = expiries(configuration.tls.directory, now);
  if (!found) return;  // an error that is noted already
  for (const Expiry& one : *found) {
    const bool served = one.of != Expiry::Of::tenant ||
                        std::any_of(configuration.tenants.begin(), configuration.tenants.end(),
                                    [&](const TenantConfiguration& tenant) { return tenant.name == one.tenant; });
    const std::string line = expiry_line(one, now);
    if (served && !line.empty()) warnings.push_back(line);
  }
}

// Profiles are then measured by events (docs/profiling.md).
std::string lacking_of_cupti(const std::string& cupti) {
  if (!cupti.starts_with('/') || ::access(cupti.c_str(), R_OK) == 0) return {};
  return fmt::format("cupti: {}: {}", cupti, std::strerror(errno));
}

}  // namespace

StartFindings check_start(const Configuration& configuration, const WorkerCommand& worker,
                          const std::string& module_cache) {
  StartFindings findings;
  auto add = [](ConfigurationErrors& to, std::string line) {
    if (!line.empty()) to.push_back(std::move(line));
  };
  auto note = [&](std::string wrong) { add(findings.errors, std::move(wrong)); };
  for (const std::string& address : configuration.listen) note(wrong_with_address(address));
  if (!configuration.metrics_listen.empty()) note(wrong_with_metrics_address(configuration.metrics_listen));
  if (!configuration.web_listen.empty()) note(wrong_with_web_address(configuration.web_listen));
  if (!configuration.web_certificate.empty()) note(wrong_with_page_certificate(configuration));
  if (!configuration.control_socket.empty()) note(wrong_with_socket(configuration.control_socket));
  if (!configuration.audit_log.empty()) note(wrong_with_audit_log(configuration.audit_log));
  if (!configuration.tls.directory.empty()) note(wrong_with_identity(configuration.tls.directory));
  add_expiries(configuration, findings.warnings);
  if (configuration.adopt_grace_ms && !configuration.runtime_directory.empty())
    note(wrong_with_folder(configuration.runtime_directory));
  if (configuration.adopt_grace_ms && configuration.runtime_directory.empty())
    add(findings.warnings, lacking_of_runtime_folder(configuration));
  if (!module_cache.empty() && module_cache != kNoModuleCache) note(wrong_with_folder(module_cache));
  note(wrong_with_chunks(configuration));
  note(wrong_with_budgets(configuration));
  for (std::string& mistake : unix_users(configuration).mistakes) add(findings.warnings, std::move(mistake));
  add(findings.warnings, lacking_of_cupti(configuration.cupti));
  if (configuration.rdma) add(findings.warnings, lacking_of_rdma());
  if (configuration.worker_users.from != WorkerUsersChoice::From::off) {
    const auto range = range_for_workers(configuration.worker_users);
    const bool named = configuration.worker_users.from == WorkerUsersChoice::From::range;
    if (!range) add(named ? findings.errors : findings.warnings, range.error());
  }
  auto inventory = ask_for_devices(worker);
  if (!inventory) {
    note(inventory.error());
    return findings;
  }
  std::vector<uint64_t> bytes;
  for (const ServerDevice& device : inventory->devices) bytes.push_back(device.bytes);
  for (std::string& misfit : check_devices(configuration, bytes)) note(std::move(misfit));
  return findings;
}

}  // namespace gpuwire::server
