#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include <arpa/inet.h>
#include <fmt/format.h>

#include "protocol/wire/lanes.hpp"
#include "protocol/units/unclosed_string.hpp"
#include "protocol/wire/utf8.hpp"
#include "server/config/configuration.hpp"
#include "server/config/section.hpp"

namespace gpuwire::server {
namespace {

constexpr unsigned kGpuMax = 63;
constexpr unsigned kSessionsMax = 100'000;
constexpr uint64_t kGraceMsMax = 7ull * 24 * 3600'000;
constexpr double kWeightMax = 1e6;
constexpr double kBatchFloorMax = 0.5;
constexpr size_t kTenantNameMax = 64;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kTenantNameMax && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

// Both [tenants.NAME] and [defaults].
void read_memory(Section section, TenantMemory& memory) {
  section.bytes("guaranteed", memory.guaranteed_bytes);
  section.bytes("limit", memory.limit_bytes);
  section.finish();
  if (memory.limit_bytes && memory.limit_bytes < memory.guaranteed_bytes)
    section.mistakes().add(section.where("limit"),
                           fmt::format("limit of {} must be at least what is guaranteed", section.name()));
}

void read_gpu_memory(Section& tenant, TenantConfiguration& out) {
  const toml::table* gpus = tenant.table("gpu");
  if (!gpus) return;
  for (const auto& [key, value] : *gpus) {
    unsigned gpu = 0;
    std::string_view digits = key.str();
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), gpu);
    std::string name = fmt::format("{}, gpu.{}", tenant.name(), digits);
    if (error != std::errc() || end != digits.data() + digits.size() || gpu > kGpuMax) {
      tenant.mistakes().add(
          key.source(), fmt::format("{}: a GPU must be a number from 0 to {}, got {}", tenant.name(), kGpuMax, digits));
    } else if (!value.is_table()) {
      tenant.mistakes().add(value.source(),
                            fmt::format("{} must be a table with guaranteed and limit{}", name, Section::got(value)));
    } else {
      read_memory(Section(tenant.mistakes(), value.as_table(), name),
                  out.gpu_memory.try_emplace(gpu, out.memory).first->second);
    }
  }
}

void read_gpus_wanted(Section& section, unsigned& out) {
  const toml::node* value = section.node("gpus");
  if (!value) return;
  auto* text = value->as_string();
  if (text && text->get() == "all") out = 0;
  else if (auto* number = value->as_integer(); number && number->get() >= 1 && number->get() <= int64_t(kGpuMax) + 1)
    out = unsigned(number->get());
  else section.wrong("gpus", fmt::format("must be a number from 1 to {}, or \"all\"", kGpuMax + 1));
}

void read_grace(Section& section, std::string_view key, uint64_t& out) {
  section.duration_ms(key, out);
  if (out > kGraceMsMax) section.wrong(key, fmt::format("must be at most {} days", kGraceMsMax / (24 * 3600'000)));
}

void read_budget(Section& section, MonthlyBudget& out) {
  section.flag("budget_hard", out.hard);
  const toml::node* value = section.node("budget");
  if (!value) return;
  auto* text = value->as_string();
  auto ms = parse_budget(text ? text->get() : std::string());
  if (ms) out.ms = *ms;
  else section.wrong("budget", ms.error());
}

void read_user(Section section, UserConfiguration& out) {
  section.count("sessions_max", out.sessions_max, 0, kSessionsMax);
  if (const toml::table* memory = section.table("memory")) {
    Section of_memory(section.mistakes(), memory, section.name() + ", memory");
    of_memory.bytes("limit", out.memory_limit_bytes);
    of_memory.finish();
  }
  read_budget(section, out.budget);
  section.finish();
}

void read_users(Section& tenant, TenantConfiguration& out) {
  if (const toml::table* each = tenant.table("each_user"))
    read_user(Section(tenant.mistakes(), each, tenant.name() + ", each_user"), out.each_user);
  const toml::table* users = tenant.table("users");
  if (!users) return;
  for (const auto& [key, value] : *users) {
    const std::string name(key.str());
    const std::string label = fmt::format("{}, users.{}", tenant.name(), name);
    if (!is_name(name) || name.front() == '.')
      tenant.mistakes().add(
          key.source(),
          fmt::format("{}: \"{}\" is not a user name: it must be 1 to {} letters, digits, '.', '_', '-', and not begin "
                      "with a dot",
                      tenant.name(), name, kTenantNameMax));
    else if (!value.is_table()) tenant.mistakes().add(value.source(), label + " must be a table" + Section::got(value));
    else
      read_user(Section(tenant.mistakes(), value.as_table(), label),
                out.users.try_emplace(name, out.each_user).first->second);
  }
}

// The keys that [defaults] may have too.
void read_shared(Section& section, TenantConfiguration& out) {
  if (auto chosen = section.word("class", {"realtime", "interactive", "batch", "scavenger"}))
    out.service_class = scheduler::ServiceClass(*chosen);
  section.number("weight", out.weight, 0, kWeightMax);
  section.number("share_max", out.share_max, 0, 1);
  section.number("share_min", out.share_min, 0, 1, true);
  if (const toml::table* memory = section.table("memory"))
    read_memory(Section(section.mistakes(), memory, section.name() + ", memory"), out.memory);
  section.bytes("host_memory", out.host_memory_bytes);
  if (section.node("dedup_memory")) section.bytes("dedup_memory", out.dedup_memory_bytes.emplace());
  section.bytes("dedup_disk", out.dedup_disk_bytes);
  section.numbers("gpus_allowed", out.gpus_allowed, kGpuMax);
  read_gpus_wanted(section, out.gpus_wanted);
  section.count("sessions_max", out.sessions_max, 0, kSessionsMax);
  read_budget(section, out.budget);
  section.count("queued_max", out.queued_max, 1, kSessionsMax);
  section.count("management_max", out.management_max, 1, kSessionsMax);
  section.duration_ms("queue_time_max", out.queue_time_max_ms);
  section.duration_ms("kernel_time_max", out.kernel_time_max_ms);
  section.duration_ms("idle_time_max", out.idle_time_max_ms);
  if (auto when = section.word("suspend", {"never", "pressure", "idle"})) out.suspend = scheduler::Suspend(*when);
  section.duration_ms("suspend_after", out.suspend_after_ms);
  section.bytes("suspend_memory", out.suspend_memory_bytes);
  section.flag("suspend_eviction", out.suspend_eviction);
  if (section.node("resume_grace_max")) read_grace(section, "resume_grace_max", out.resume_grace_max_ms.emplace());
}

TenantConfiguration read_tenant(Section section, std::string name, const TenantConfiguration& defaults) {
  TenantConfiguration tenant = defaults;
  tenant.name = std::move(name);
  read_shared(section, tenant);
  read_gpu_memory(section, tenant);
  read_users(section, tenant);
  section.texts("unix_users", tenant.unix_users);
  section.finish();
  if (!tenant.gpus_allowed.empty() && tenant.gpus_wanted > tenant.gpus_allowed.size())
    section.wrong("gpus",
                  fmt::format("is {}, but gpus_allowed names {}", tenant.gpus_wanted, tenant.gpus_allowed.size()));
  return tenant;
}

struct AddressForm {
  std::string wrong;     // not empty: the mistake
  bool loopback = true;  // or a Unix socket
};

// Checks only the form; the server looks the names up when it starts.
AddressForm look_at(const std::string& text, bool sockets) {
  if (text.starts_with("unix:")) {
    if (!sockets) return {"must be HOST:PORT"};
    return {text.size() > 5 && text[5] == '/' ? "" : "must name an absolute path after unix:"};
  }
  size_t colon = text.rfind(':');
  unsigned port = 0;
  const char* digits = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  if (colon == std::string::npos || colon == 0)
    return {sockets ? "must be HOST:PORT or unix:PATH" : "must be HOST:PORT"};
  if (auto [stopped, error] = std::from_chars(digits, end, port);
      error != std::errc() || stopped != end || port > 65535)
    return {"must end in a port from 0 to 65535"};
  std::string host = text.substr(0, colon);
  bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  in6_addr address6{};
  if (brackets && ::inet_pton(AF_INET6, host.c_str(), &address6) != 1)
    return {"must have an IPv6 address in its brackets"};
  if (!brackets && host.find(':') != std::string::npos) return {"must have its IPv6 address in brackets"};
  in_addr address4{};
  bool loopback4 = ::inet_pton(AF_INET, host.c_str(), &address4) == 1 && (ntohl(address4.s_addr) >> 24) == 127;
  return {"", loopback4 || host == "localhost" || (brackets && IN6_IS_ADDR_LOOPBACK(&address6))};
}

// Returns the mistakes of an address for programs. `anywhere`: the network may reach the address.
std::vector<std::string> listen_mistakes(const std::string& address, bool anywhere) {
  AddressForm seen = look_at(address, true);
  if (!seen.wrong.empty()) return {fmt::format("{}, got \"{}\"", seen.wrong, address)};
  if (seen.loopback || anywhere) return {};
  return {
      fmt::format("{} can be reached from the network, and without [tls] in a configuration file nothing is encrypted: "
                  "everybody on the path could read and change the data. Set up TLS (gpuwire admin init), or, if the "
                  "network between the server and its clients is yours alone, set allow_unencrypted_network = true "
                  "(--allow-unencrypted-network)",
                  address)};
}

// Keeps the valid addresses, even if a server may not listen there.
void keep_addresses(std::vector<std::string>& listen) {
  std::erase_if(listen, [](const std::string& text) { return !look_at(text, true).wrong.empty(); });
}

void read_listen(Section& server, Configuration& out, const ConfigurationOverrides& overrides, bool tls) {
  if (server.node("listen")) server.texts("listen", out.listen);
  if (out.listen.empty()) server.wrong("listen", "must name at least one address");
  if (!overrides.listen.empty()) out.listen = overrides.listen;
  for (const std::string& address : out.listen) {
    for (const std::string& mistake : listen_mistakes(address, tls || out.allow_unencrypted_network)) {
      if (overrides.listen.empty()) server.wrong("listen", mistake);
      else server.mistakes().add("--listen " + mistake);
    }
  }
  keep_addresses(out.listen);
}

// Returns the addresses of HTTP services, without invalid ones.
void read_http_listen(Section& server, std::string_view key, bool anywhere, std::string& listen) {
  server.text(key, listen);
  if (listen.empty()) return;
  AddressForm seen = look_at(listen, false);
  if (seen.wrong.empty() && !seen.loopback && !anywhere)
    seen.wrong =
        "must be an address of loopback: the page is not encrypted, and who signs in would show the token to the "
        "network. Set web_certificate and web_key, put a proxy with TLS before it, or, if the network is yours alone, "
        "set allow_unencrypted_network = true";
  if (seen.wrong.empty()) return;
  server.wrong(key, seen.wrong);
  listen.clear();
}

void read_web(Section& server, Configuration& out) {
  const bool certificate = server.node("web_certificate"), key = server.node("web_key");
  read_http_listen(server, "web_listen", certificate || out.allow_unencrypted_network, out.web_listen);
  if (certificate && !key) server.wrong("web_certificate", "needs web_key, the file with its private key");
  if (key && !certificate) server.wrong("web_key", "needs web_certificate, the file with the certificate of this key");
  if (certificate && !server.node("web_listen"))
    server.wrong("web_certificate", "needs web_listen, the address of the web page");
  if (out.web_certificate.empty() || out.web_key.empty()) out.web_certificate.clear(), out.web_key.clear();
}

void read_paths(Section& server, Configuration& out) {
  auto path = [&](std::string_view key, std::filesystem::path& into) {
    std::string text;
    server.text(key, text);
    if (text.starts_with('/')) into = text;
    else if (!text.empty()) server.wrong(key, "must be an absolute path");
  };
  path("control_socket", out.control_socket);
  path("audit_log", out.audit_log);
  path("runtime_directory", out.runtime_directory);
  path("dedup_directory", out.dedup_directory);
  path("budget_file", out.budget_file);
  read_http_listen(server, "metrics_listen", true, out.metrics_listen);
  path("web_certificate", out.web_certificate);
  path("web_key", out.web_key);
  read_web(server, out);
  if (auto format = server.word("log_format", {"text", "json"})) out.log_format = *format == 0 ? "text" : "json";
}

void read_tls(Section tls, Configuration& out) {
  std::string directory;
  tls.text("directory", directory);
  tls.finish();
  if (directory.empty() || directory[0] != '/')
    tls.wrong("directory", "must be the absolute path of the folder that `gpuwire admin init` made");
  else out.tls.directory = directory;
}

void read_tenants(Section& root, Configuration& out, const TenantConfiguration& defaults) {
  const toml::table* tenants = root.table("tenants");
  std::map<std::string, std::string> users;
  if (!tenants) return;
  for (const auto& [key, value] : *tenants) {
    std::string name(key.str());
    std::string label = fmt::format("[tenants.{}]", name);
    if (!is_name(name))
      root.mistakes().add(key.source(),
                          fmt::format("\"{}\" is not a tenant name: it must be 1 to {} letters, digits, '.', '_', '-'",
                                      name, kTenantNameMax));
    else if (!value.is_table()) root.mistakes().add(value.source(), label + " must be a table" + Section::got(value));
    else out.tenants.push_back(read_tenant(Section(root.mistakes(), value.as_table(), label), name, defaults));
    if (out.tenants.empty() || out.tenants.back().name != name) continue;
    for (const std::string& user : out.tenants.back().unix_users) {
      if (auto [other, added] = users.try_emplace(user, name); !added)
        root.mistakes().add(value.source(), fmt::format("{} and [tenants.{}] both have the Unix user \"{}\"", label,
                                                        other->second, user));
    }
    for (unsigned gpu : out.tenants.back().gpus_allowed) {
      if (!out.gpus.empty() && !std::count(out.gpus.begin(), out.gpus.end(), gpu))
        root.mistakes().add(value.source(),
                            fmt::format("{} may use GPU {}, which gpus of [server] does not offer", label, gpu));
    }
  }
}

void read_rdma(Section& server, Configuration& out) {
  std::string word = "off";
  server.text("rdma", word);
  if (word != "off" && word != "trusted")
    server.wrong("rdma", "must be \"off\", or \"trusted\" where nobody but the lab is on the fabric");
  out.rdma = word == "trusted";
}

void read_cupti(Section& server, Configuration& out) {
  server.text("cupti", out.cupti);
  if (out.cupti == "auto" || out.cupti == "off" || out.cupti.starts_with('/')) return;
  server.wrong("cupti", "must be \"auto\", \"off\", or the absolute path of libcupti.so");
  out.cupti = "auto";
}

// Parses "FIRST-LAST". None: the text is no such range.
std::optional<UserRange> parse_user_range(std::string_view text) {
  uint64_t bounds[2] = {};
  const char *at = text.data(), *end = at + text.size();
  for (uint64_t& bound : bounds) {
    auto [rest, error] = std::from_chars(at, end, bound);
    if (error != std::errc()) return std::nullopt;
    at = rest;
    if (&bound == &bounds[0] && (at == end || *at++ != '-')) return std::nullopt;
  }
  return at == end ? user_range(bounds[0], bounds[1]) : std::nullopt;
}

void read_worker_users(Section& server, Configuration& out) {
  std::string word = "off";
  server.text("worker_users", word);
  if (word == "off") return;
  if (word == "auto") {
    out.worker_users.from = WorkerUsersChoice::From::subordinate;
  } else if (auto range = parse_user_range(word)) {
    out.worker_users = {WorkerUsersChoice::From::range, *range};
  } else {
    server.wrong("worker_users", fmt::format("must be \"off\", \"auto\", or a range of numbers of users, from {} on, "
                                             "such as \"100000-165535\"",
                                             kWorkerUserMin));
  }
}

Configuration read(const toml::table& file, Mistakes& mistakes, const ConfigurationOverrides& overrides) {
  Configuration out;
  out.listen = {"127.0.0.1:9750"};
  Section root(mistakes, &file, "the file");
  const toml::table* tls = root.table("tls");
  if (tls) read_tls(Section(mistakes, tls, "[tls]"), out);
  Section server(mistakes, root.table("server"), "[server]");
  server.flag("allow_unencrypted_network", out.allow_unencrypted_network);
  out.allow_unencrypted_network |= overrides.allow_unencrypted_network;
  read_listen(server, out, overrides, tls != nullptr);
  std::string open_tenant;
  server.text("open_tenant", open_tenant);
  server.numbers("gpus", out.gpus, kGpuMax);
  read_grace(server, "resume_grace", out.resume_grace_ms);
  out.hang_up_grace_ms = out.resume_grace_ms;
  read_grace(server, "hang_up_grace", out.hang_up_grace_ms);
  unsigned lanes_max = 0;
  server.count("lanes_max", lanes_max, 1, wire::kLanesMax);
  if (lanes_max != 0) out.lanes_max = lanes_max;
  read_rdma(server, out);
  read_cupti(server, out);
  read_worker_users(server, out);
  server.duration_ms("adopt_grace", out.adopt_grace_ms);
  server.count("sessions_max", out.sessions_max, 1, kSessionsMax);
  out.sessions_max = overrides.sessions_max.value_or(out.sessions_max);
  server.flag("scheduling", out.scheduling);
  server.number("batch_floor", out.batch_floor, 0, kBatchFloorMax, true);
  server.count("sessions_per_gpu_max", out.sessions_per_gpu_max, 0, kSessionsMax);
  server.bytes("suspend_memory", out.suspend_memory_bytes);
  read_paths(server, out);
  server.finish();
  TenantConfiguration defaults;
  if (const toml::table* table = root.table("defaults")) {
    Section section(mistakes, table, "[defaults]");
    read_shared(section, defaults);
    section.finish();
  }
  read_tenants(root, out, defaults);
  root.finish();
  bool known = std::any_of(out.tenants.begin(), out.tenants.end(),
                           [&](const auto& tenant) { return tenant.name == open_tenant; });
  if (!open_tenant.empty() && !known)
    server.wrong("open_tenant", fmt::format("is \"{}\", but there is no [tenants.{}]", open_tenant, open_tenant));
  if (!open_tenant.empty()) out.open_tenant = open_tenant;
  auto guaranteed = std::count_if(out.tenants.begin(), out.tenants.end(), has_guarantee);
  if (size_t(guaranteed) > out.sessions_max)
    server.wrong("sessions_max", fmt::format("is {}, but {} tenants are guaranteed memory, and each needs a place",
                                             out.sessions_max, guaranteed));
  if (out.tenants.empty())
    mistakes.add(file.source(),
                 "there is no tenant, so nobody could use this server; add one, for example [tenants.anna]");
  return out;
}

tl::expected<Configuration, ConfigurationErrors> right_or_wrong(ReadConfiguration read) {
  if (!read.mistakes.empty()) return tl::unexpected(std::move(read.mistakes));
  return std::move(read.configuration);
}

// Returns the text, or the reason why it cannot be read.
tl::expected<std::string, std::string> contents_of(const std::filesystem::path& file) {
  const std::unique_ptr<FILE, int (*)(FILE*)> in(std::fopen(file.c_str(), "re"), std::fclose);
  std::string text;
  char piece[4096];
  while (in && !std::feof(in.get()) && !std::ferror(in.get()))
    text.append(piece, std::fread(piece, 1, sizeof piece, in.get()));
  if (!in || std::ferror(in.get())) return tl::unexpected(std::string(std::strerror(errno)));
  return text;
}

}  // namespace

ReadConfiguration check_configuration_file(const std::filesystem::path& file, const ConfigurationOverrides& overrides) {
  ReadConfiguration out;
  const auto text = contents_of(file);
  if (!text) {
    out.mistakes.push_back(fmt::format("{}: {}", file.string(), text.error()));
    return out;
  }
  Mistakes mistakes(file);
  // The parser assumes that invalid text ends at the position of the error.
  if (const size_t line = wire::line_without_utf8(*text)) {
    toml::source_region where;
    where.begin.line = toml::source_index(line);
    mistakes.add(where, "is no UTF-8");
  } else if (toml::parse_result parsed = toml::parse(*text, file.string()); !parsed) {
    toml::source_region where = parsed.error().source();
    const size_t unclosed = units::line_of_unclosed_string(*text);
    if (unclosed != 0) where.begin.line = toml::source_index(unclosed);
    mistakes.add(where, unclosed != 0 ? "a quote is opened here and not closed" : parsed.error().description());
  } else {
    out.configuration = read(parsed.table(), mistakes, overrides);
  }
  out.mistakes = mistakes.take();
  return out;
}

tl::expected<Configuration, ConfigurationErrors> read_configuration(const std::filesystem::path& file,
                                                                    const ConfigurationOverrides& overrides) {
  return right_or_wrong(check_configuration_file(file, overrides));
}

ReadConfiguration check_open_configuration(const ConfigurationOverrides& overrides) {
  ReadConfiguration out{open_configuration(), {}};
  Configuration& configuration = out.configuration;
  configuration.allow_unencrypted_network = overrides.allow_unencrypted_network;
  configuration.sessions_max = overrides.sessions_max.value_or(configuration.sessions_max);
  if (!overrides.listen.empty()) configuration.listen = overrides.listen;
  for (const std::string& address : configuration.listen) {
    for (std::string& mistake : listen_mistakes(address, configuration.allow_unencrypted_network))
      out.mistakes.push_back("--listen " + mistake);
  }
  keep_addresses(configuration.listen);
  return out;
}

tl::expected<Configuration, ConfigurationErrors> open_configuration(const ConfigurationOverrides& overrides) {
  return right_or_wrong(check_open_configuration(overrides));
}

}  // namespace gpuwire::server
