// The tables of `gpuwire top` and `gpuwire status`.
#include <algorithm>
#include <cmath>
#include <ctime>

#include <fmt/format.h>

#include "server/control/view/metrics_view.hpp"
#include "server/control/view/text_table.hpp"
#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

using Align = TextTable::Align;
constexpr size_t kNameColumns = 20, kNameColumnsMin = 10;

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;

bool is_small(uint64_t bytes) { return bytes < kGiB; }
std::string number_of(uint64_t bytes) {
  return is_small(bytes) ? std::to_string(bytes / kMiB) : fmt::format("{:.1f}", double(bytes) / double(kGiB));
}
std::string size_of(uint64_t bytes) { return number_of(bytes) + (is_small(bytes) ? " MiB" : " GiB"); }

std::string memory_of_limit(uint64_t used, uint64_t limit) {
  if (limit == 0) return size_of(used);
  return fmt::format("{} / {}", used == 0 || is_small(used) == is_small(limit) ? number_of(used) : size_of(used),
                     size_of(limit));
}

std::string per_second(double bytes) {
  for (const char* unit : {"B", "kB", "MB"}) {
    if (bytes < 999.5) return fmt::format("{:.0f} {}", bytes, unit);
    bytes /= 1000;
  }
  return fmt::format("{:.2f} GB", bytes);
}

std::string duration(double seconds) {
  auto s = uint64_t(std::max(seconds, 0.0));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

std::string microseconds(double us) {
  if (us == 0) return "-";
  return us < 1000  ? fmt::format("{:.0f}us", us)
         : us < 1e6 ? fmt::format("{:.1f}ms", us / 1000)
                    : fmt::format("{:.1f}s", us / 1e6);
}

// "12.5 of 200 h": the used part of a budget.
std::string hours_of(uint64_t used_ns, uint64_t budget_ns) {
  constexpr double kHourNs = 3600e9;
  return fmt::format("{:.4g} of {:.4g} h", double(used_ns) / kHourNs, double(budget_ns) / kHourNs);
}

uint64_t count_of(const std::map<std::string, uint64_t>& counts, const char* name) {
  auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

std::string gpus_of(const SessionMetrics& session) {
  std::string text;
  for (const SessionDeviceMetrics& device : session.devices)
    text += (text.empty() ? "" : ",") + std::to_string(device.device);
  return text.empty() ? "-" : text;
}

uint64_t used_of(const SessionMetrics& session) {
  uint64_t most = 0;  // its limit is per GPU
  for (const SessionDeviceMetrics& device : session.devices) most = std::max(most, device.memory_used_bytes);
  return most;
}

std::string reserved_text(uint64_t bytes) { return bytes ? size_of(bytes) : "-"; }

std::string reserved_of(const SessionMetrics& session) {
  uint64_t most = 0;  // the same on each device
  for (const SessionDeviceMetrics& device : session.devices) most = std::max(most, device.memory_reserved_bytes);
  return reserved_text(most);
}

std::string who(const SessionMetrics& session) {
  if (session.program.empty() && session.host.empty()) return session.peer;
  return fmt::format("{}@{}", session.program, session.host);
}

// Returns the session's owner as "course/anna", for columns that show tenants and users together.
std::string owner_of(const SessionMetrics& session) {
  return session.user.empty() ? session.tenant : fmt::format("{}/{}", session.tenant, session.user);
}

std::string state_of(const SessionMetrics& session) {
  // A detached session has the time until it ends.
  if (session.detached_left_s > 0) return fmt::format("{} {}", session.state, duration(session.detached_left_s));
  if (!session.warning.empty()) return session.state + "!";
  if (session.suspended_bytes > 0 && session.state == session.suspension)
    return fmt::format("{} {}", session.state, size_of(session.suspended_bytes));
  if (session.holds_lease) return session.state + "*";
  return session.state;
}

// The sessions held at the gate, with the reason and the holding session.
std::string hold_of(const SessionMetrics& session) {
  if (session.held.empty()) return "-";
  return session.held_by ? fmt::format("{} {}", session.held, session.held_by) : session.held;
}

void append(std::vector<std::string>& lines, const TextTable& table, size_t width) {
  if (table.empty()) return;
  lines.emplace_back();
  for (std::string& line : table.lines(width)) lines.push_back(std::move(line));
}

// The waiting programs, in the order of the queue.
class QueueTable {
 public:
  explicit QueueTable(const Snapshot& now)
      : now_(now), estimates_(std::ranges::any_of(now.sessions, [](const auto& one) { return bool(one.start_in_s); })) {
    std::vector<TextTable::Column> columns{{"PLACE", Align::right},
                                           {"SESSION", Align::right},
                                           {"TENANT", Align::left, kNameColumns},
                                           {"CLASS", Align::left, kNameColumns, 2},
                                           {"WAITS", Align::right}};
    if (estimates_) columns.push_back({"STARTS IN", Align::right});
    columns.push_back({"FOR", Align::left, 40, 0, 0, true});
    columns.push_back({"PROGRAM", Align::left, kNameColumns, 1});
    table_.emplace(std::move(columns));
  }
  void add(const SessionMetrics& session) {
    std::vector<std::string> cells{std::to_string(session.place), std::to_string(session.id), owner_of(session),
                                   session.service_class, duration(now_.taken_unix_s - session.since_unix_s)};
    if (estimates_) cells.push_back(session.start_in_s ? "~" + duration(*session.start_in_s) : "-");
    cells.push_back(session.waits_for);
    cells.push_back(who(session));
    table_->add(std::move(cells));
  }
  const TextTable& table() const { return *table_; }

 private:
  const Snapshot& now_;
  const bool estimates_;
  std::optional<TextTable> table_;
};

std::vector<std::string> heading(const Snapshot& now) {
  const ServerMetrics& server = now.server;
  auto served =
      std::count_if(now.sessions.begin(), now.sessions.end(), [](const SessionMetrics& one) { return one.place == 0; });
  std::string line = fmt::format("gpuwire {}, process {}, up {}: {} of {} sessions, {} waiting", server.release,
                                 server.pid, duration(now.taken_unix_s - server.started_unix_s), served,
                                 server.sessions_max, std::ptrdiff_t(now.sessions.size()) - served);
  if (server.draining) line += ", shutting down";
  std::string listen;
  for (const std::string& where : server.listen) listen += (listen.empty() ? "" : ", ") + where;
  return {escaped(line), escaped(fmt::format("{}{}{}", server.devices, listen.empty() ? "" : " on ", listen))};
}

std::string regime_of(const DeviceMetrics& device) {
  if (!device.drain.empty()) return device.drain;
  return device.regime.empty() ? "-" : device.regime;
}

void append_devices(std::vector<std::string>& lines, const Interval& interval, size_t width) {
  TextTable table({{"GPU", Align::right},
                   {"NAME", Align::left, kNameColumns, 0, kNameColumnsMin},
                   {"GPU%", Align::right},
                   {"SYS%", Align::right},
                   {"REGIME"},
                   {"SESSIONS", Align::right},
                   {"MEMORY", Align::right},
                   {"RESERVED", Align::right, kNameColumns, 1}});
  for (const DeviceMetrics& device : interval.now().devices)
    table.add({std::to_string(device.index), device.name, percent(interval.gpu_share(device)),
               percent(interval.system_share(device)), regime_of(device), std::to_string(device.sessions),
               memory_of_limit(device.memory_used_bytes, device.memory_bytes),
               reserved_text(device.memory_reserved_bytes)});
  append(lines, table, width);
}

// Returns the GPU on which the tenant uses most memory, since limits are per GPU; null: there is none.
const TenantDeviceMetrics* fullest_of(const TenantMetrics& tenant) {
  const TenantDeviceMetrics* most = nullptr;
  for (const TenantDeviceMetrics& device : tenant.devices)
    if (!most || device.memory_held_bytes > most->memory_held_bytes) most = &device;
  return most;
}

std::string tenant_memory(const TenantMetrics& tenant) {
  const TenantDeviceMetrics* most = fullest_of(tenant);
  return most ? memory_of_limit(most->memory_used_bytes, most->memory_limit_bytes) : "-";
}

std::string tenant_reserved(const TenantMetrics& tenant) {
  const TenantDeviceMetrics* most = fullest_of(tenant);
  return reserved_text(most ? most->memory_reserved_bytes : 0);
}

void append_tenants(std::vector<std::string>& lines, const Interval& interval, size_t width) {
  TextTable table({{"TENANT", Align::left, kNameColumns, 0, kNameColumnsMin},
                   {"CLASS"},
                   {"WEIGHT", Align::right, kNameColumns, 2},
                   {"SESSIONS", Align::right},
                   {"WAITING", Align::right, kNameColumns, 1},
                   {"GPU%", Align::right},
                   {"ALL%", Align::right, kNameColumns, 3},
                   {"MEMORY", Align::right},
                   {"RESERVED", Align::right, kNameColumns, 1},
                   {"HOST MEMORY", Align::right, kNameColumns, 4},
                   {"IN/s", Align::right, kNameColumns, 5},
                   {"OUT/s", Align::right, kNameColumns, 5}});
  for (const TenantMetrics& tenant : interval.now().tenants) {
    uint64_t waiting = count_of(tenant.sessions, "queued");
    uint64_t served = 0;
    for (const auto& [state, count] : tenant.sessions) served += count;
    served -= waiting;
    table.add({tenant.name, tenant.service_class, fmt::format("{:g}", tenant.weight),
               tenant.sessions_max ? fmt::format("{} / {}", served, tenant.sessions_max) : std::to_string(served),
               std::to_string(waiting), percent(interval.gpu_share(tenant)),
               percent(gpu_share_since_start(tenant, interval.now())), tenant_memory(tenant), tenant_reserved(tenant),
               memory_of_limit(tenant.host_memory_used_bytes, tenant.host_memory_limit_bytes),
               per_second(interval.bytes_in_per_s(tenant)), per_second(interval.bytes_out_per_s(tenant))});
  }
  append(lines, table, width);
}

// Users of tenants, and the used parts of budgets in this month. `all`: those without a program, too.
void append_users(std::vector<std::string>& lines, const Snapshot& now, bool all, size_t width) {
  TextTable table({{"TENANT", Align::left, kNameColumns, 0, kNameColumnsMin},
                   {"USER", Align::left, kNameColumns, 0, kNameColumnsMin},
                   {"SESSIONS", Align::right},
                   {"MEMORY", Align::right, kNameColumns, 2},
                   {"GPU HOURS THIS MONTH", Align::right},
                   {"BEYOND", Align::left, kNameColumns, 1}});
  auto used = [](uint64_t used_ns, uint64_t budget_ns) -> std::string {
    if (used_ns == 0 && budget_ns == 0) return "-";
    return budget_ns ? hours_of(used_ns, budget_ns) : fmt::format("{:.4g} h", double(used_ns) / 3600e9);
  };
  auto beyond = [](uint64_t budget_ns, bool hard) { return budget_ns == 0 ? "-" : hard ? "waits" : "scavenger"; };
  for (const TenantMetrics& tenant : now.tenants) {
    if (tenant.budget_ns == 0 && tenant.users.empty()) continue;
    uint64_t sessions = 0;
    for (const auto& [state, count] : tenant.sessions) sessions += count;
    table.add({tenant.name, "(all)", std::to_string(sessions), tenant_memory(tenant),
               used(tenant.budget_used_ns, tenant.budget_ns), beyond(tenant.budget_ns, tenant.budget_hard)});
    for (const UserMetrics& user : tenant.users) {
      if (!all && user.sessions == 0) continue;
      table.add(
          {tenant.name, user.name,
           user.sessions_max ? fmt::format("{} / {}", user.sessions, user.sessions_max) : std::to_string(user.sessions),
           memory_of_limit(user.memory_used_bytes, user.memory_limit_bytes), used(user.budget_used_ns, user.budget_ns),
           beyond(user.budget_ns, user.budget_hard)});
    }
  }
  append(lines, table, width);
}

void append_sessions(std::vector<std::string>& lines, const Interval& interval, SortKey sort, size_t width) {
  const Snapshot& now = interval.now();
  // The identity comes first; columns without room are left out, the highest of these numbers first.
  constexpr size_t kProgramColumns = 24;
  TextTable table({{"SESSION", Align::right},
                   {"PROGRAM", Align::left, kProgramColumns, 0, kNameColumnsMin},
                   {"TENANT", Align::left, kNameColumns, 0, kNameColumnsMin},
                   {"CLASS", Align::left, kNameColumns, 7},
                   {"STATE"},
                   {"AGE", Align::right, kNameColumns, 3},
                   {"GPUS", Align::left, kNameColumns, 2},
                   {"GPU%", Align::right},
                   {"ALL%", Align::right, kNameColumns, 6},
                   {"MEMORY", Align::right},
                   {"RESERVED", Align::right, kNameColumns, 1},
                   {"FLIGHT", Align::right, kNameColumns, 9},
                   {"GATE%", Align::right, kNameColumns, 4},
                   {"HELD BY", Align::left, kNameColumns, 4},
                   {"WAITS/s", Align::right, kNameColumns, 8},
                   {"IN/s", Align::right, kNameColumns, 5},
                   {"OUT/s", Align::right, kNameColumns, 5},
                   {"RTT", Align::right, kNameColumns, 10}});
  QueueTable queue(now);
  for (size_t i : display_order(interval, sort)) {
    const SessionMetrics& session = now.sessions[i];
    std::string age = duration(now.taken_unix_s - session.since_unix_s);
    if (session.place != 0) {
      queue.add(session);
      continue;
    }
    table.add({std::to_string(session.id), who(session), owner_of(session), session.service_class, state_of(session),
               age, gpus_of(session), percent(interval.gpu_share(session)),
               percent(gpu_share_since_start(session, now)),
               memory_of_limit(used_of(session), session.memory_limit_bytes), reserved_of(session),
               microseconds(double(session.in_flight_ns) / 1000), percent(interval.gate_wait_share(session)),
               hold_of(session), fmt::format("{:.0f}", interval.replies_per_s(session)),
               per_second(interval.bytes_in_per_s(session)), per_second(interval.bytes_out_per_s(session)),
               microseconds(session.round_trip_us)});
  }
  append(lines, table, width);
  append(lines, queue.table(), width);
}

// Each line begins with a word by which ../../../command_line/terminal colours it.
void append_warnings(std::vector<std::string>& lines, const Snapshot& now) {
  std::vector<std::string> warnings;
  for (const SessionMetrics& session : now.sessions)
    if (!session.warning.empty())
      warnings.push_back(
          escaped(fmt::format("warning: session {} of {}: {}", session.id, owner_of(session), session.warning)));
  if (now.server.sessions_left_out)
    warnings.push_back(fmt::format("warning: {} more sessions are not shown", now.server.sessions_left_out));
  if (now.server.audit_lines_lost)
    warnings.push_back(
        fmt::format("warning: {} lines of the audit log could not be written", now.server.audit_lines_lost));
  if (!warnings.empty()) lines.emplace_back();
  lines.insert(lines.end(), warnings.begin(), warnings.end());
}

std::string day_of(double unix_s) {
  const auto seconds = std::time_t(unix_s);
  std::tm day{};
  gmtime_r(&seconds, &day);
  return fmt::format("{:04}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
}

// The authority, the server's certificate, and each credential of the tenants and their users.
void append_certificates(std::vector<std::string>& lines, const Snapshot& now, size_t width) {
  TextTable table({{"CREDENTIAL"},
                   {"OF", Align::left, 2 * kNameColumns},
                   {"EXPIRES"},
                   {"IN", Align::right},
                   {"RENEWED", Align::left, kNameColumns, 1},
                   {"ID", Align::left, 2 * kNameColumns, 2}});
  for (const CertificateMetrics& one : now.server.certificates) {
    const bool of_tenant = one.of == "tenant";
    const double left_s = one.expires_unix_s - now.taken_unix_s;
    table.add({of_tenant ? one.kind : "certificate",
               !of_tenant         ? "the " + one.of
               : one.user.empty() ? one.tenant
                                  : fmt::format("{}/{}", one.tenant, one.user),
               day_of(one.expires_unix_s), left_s > 0 ? duration(left_s) : "expired", one.renewed ? "yes" : "-",
               one.id.empty() ? "-" : one.id});
  }
  append(lines, table, width);
  if (now.server.certificates_left_out)
    lines.push_back(fmt::format("{} more credentials, which expire later: gpuwire admin list shows all",
                                now.server.certificates_left_out));
}

void append_expiries(std::vector<std::string>& lines, const Snapshot& now) {
  std::vector<std::string> warnings;
  for (const CertificateMetrics& one : now.server.certificates)
    if (!one.warning.empty()) warnings.push_back(escaped("warning: " + one.warning));
  if (!warnings.empty()) lines.emplace_back();
  lines.insert(lines.end(), warnings.begin(), warnings.end());
}

std::string counts_in_words(const std::map<std::string, uint64_t>& counts) {
  std::string text;
  for (const auto& [word, count] : counts) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, word);
  return text.empty() ? "-" : text;
}

void append_history(std::vector<std::string>& lines, const Snapshot& now, size_t width) {
  TextTable table({{"TENANT", Align::left, kNameColumns},
                   {"GPU TIME", Align::right},
                   {"BEGUN", Align::right},
                   {"ENDED", Align::left, 60},
                   {"REFUSED", Align::left, 60}});
  for (const TenantMetrics& tenant : now.tenants) {
    uint64_t gpu_ns = 0;
    for (const TenantDeviceMetrics& device : tenant.devices) gpu_ns += device.gpu_time_ns;
    table.add({tenant.name, fmt::format("{:.1f}s", double(gpu_ns) / 1e9), std::to_string(tenant.begun),
               counts_in_words(tenant.ended), counts_in_words(tenant.refused)});
  }
  if (!now.refused.empty()) table.add({"(unknown)", "-", "-", "-", counts_in_words(now.refused)});
  append(lines, table, width);
}

}  // namespace

std::vector<std::string> top_lines(const Interval& interval, SortKey sort, size_t width) {
  std::vector<std::string> lines = heading(interval.now());
  append_devices(lines, interval, width);
  append_tenants(lines, interval, width);
  append_users(lines, interval.now(), false, width);
  append_sessions(lines, interval, sort, width);
  append_warnings(lines, interval.now());
  if (width != 0)
    for (std::string& line : lines) line = cut_to(line, width);
  return lines;
}

std::vector<std::string> status_lines(const Snapshot& snapshot, size_t width) {
  std::vector<std::string> lines = heading(snapshot);
  TextTable devices({{"GPU", Align::right},
                     {"NAME", Align::left, kNameColumns},
                     {"REGIME"},
                     {"SESSIONS", Align::right},
                     {"MEMORY", Align::right},
                     {"RESERVED", Align::right, kNameColumns, 1}});
  for (const DeviceMetrics& device : snapshot.devices)
    devices.add({std::to_string(device.index), device.name, regime_of(device), std::to_string(device.sessions),
                 memory_of_limit(device.memory_used_bytes, device.memory_bytes),
                 reserved_text(device.memory_reserved_bytes)});
  append(lines, devices, width);
  append_history(lines, snapshot, width);
  append_users(lines, snapshot, true, width);
  for (std::string& line : session_lines(snapshot, width)) lines.push_back(std::move(line));
  append_certificates(lines, snapshot, width);
  append_warnings(lines, snapshot);
  append_expiries(lines, snapshot);
  return lines;
}

std::vector<std::string> tenant_lines(const Snapshot& snapshot, const std::string& tenant, const std::string& user) {
  auto found = std::ranges::find(snapshot.tenants, tenant, &TenantMetrics::name);
  if (found == snapshot.tenants.end()) return {};
  const uint64_t waiting = count_of(found->sessions, "queued");
  uint64_t served = 0;
  for (const auto& [state, count] : found->sessions) served += count;
  served -= waiting;
  std::vector<std::string> lines{
      fmt::format("tenant      {}, class {}, weight {:g}", found->name, found->service_class, found->weight),
      fmt::format("sessions    {}{} run, {} wait", served,
                  found->sessions_max ? fmt::format(" of {}", found->sessions_max) : std::string(), waiting)};
  auto budget = [&](const char* whose, uint64_t used_ns, uint64_t budget_ns, bool hard) {
    if (budget_ns == 0) return;
    lines.push_back(fmt::format("budget      {}: {} used this month, {:.4g} h left{}", whose,
                                hours_of(used_ns, budget_ns), double(budget_ns - std::min(used_ns, budget_ns)) / 3600e9,
                                hard ? "; beyond it programs wait" : "; beyond it they are scavengers"));
  };
  budget("the tenant", found->budget_used_ns, found->budget_ns, found->budget_hard);
  if (auto one = std::ranges::find(found->users, user, &UserMetrics::name);
      !user.empty() && one != found->users.end()) {
    lines.insert(lines.begin() + 1,
                 fmt::format("user        {}, {}{} programs run or wait", one->name, one->sessions,
                             one->sessions_max ? fmt::format(" of {}", one->sessions_max) : std::string()));
    budget("you", one->budget_used_ns, one->budget_ns, one->budget_hard);
    if (one->memory_limit_bytes)
      lines.push_back(fmt::format("memory      you: {} of {} on a GPU", size_of(one->memory_used_bytes),
                                  size_of(one->memory_limit_bytes)));
  } else if (!user.empty()) {
    lines.insert(lines.begin() + 1, fmt::format("user        {}", user));
  }
  for (const TenantDeviceMetrics& device : found->devices) {
    const uint64_t all = device.device < snapshot.devices.size() ? snapshot.devices[device.device].memory_bytes : 0;
    std::string line = fmt::format("memory      GPU {}: {} of {}", device.device, size_of(device.memory_used_bytes),
                                   size_of(device.memory_limit_bytes ? device.memory_limit_bytes : all));
    if (device.memory_guaranteed_bytes) line += fmt::format(", {} guaranteed", size_of(device.memory_guaranteed_bytes));
    const auto of = std::ranges::find(snapshot.devices, device.device, &DeviceMetrics::index);
    if (of != snapshot.devices.end() && !of->drain.empty()) line += ", drained";
    lines.push_back(std::move(line));
  }
  if (found->host_memory_limit_bytes)
    lines.push_back(fmt::format("host memory {} of {}", size_of(found->host_memory_used_bytes),
                                size_of(found->host_memory_limit_bytes)));
  if (const auto ends_unix_s = identity_expires_unix_s(snapshot, tenant, user))
    lines.push_back(
        fmt::format("identity    the newest expires in {}", duration(*ends_unix_s - snapshot.taken_unix_s)));
  for (std::string& line : lines) line = escaped(line);
  return lines;
}

std::vector<std::string> session_lines(const Snapshot& snapshot, size_t width) {
  std::vector<std::string> lines;
  TextTable sessions({{"SESSION", Align::right},
                      {"PROGRAM", Align::left, kNameColumns, 0, kNameColumnsMin},
                      {"TENANT", Align::left, kNameColumns},
                      {"STATE"},
                      {"AGE", Align::right},
                      {"GPUS", Align::left, kNameColumns, 1},
                      {"MEMORY", Align::right},
                      {"RESERVED", Align::right, kNameColumns, 1},
                      {"BY", Align::left, kNameColumns, 3},
                      {"FROM", Align::left, 40, 2}});
  QueueTable queue(snapshot);
  Interval once(snapshot, snapshot);
  for (size_t i : display_order(once, SortKey::id)) {
    const SessionMetrics& session = snapshot.sessions[i];
    std::string age = duration(snapshot.taken_unix_s - session.since_unix_s);
    if (session.place != 0) queue.add(session);
    else
      sessions.add({std::to_string(session.id), who(session), owner_of(session), state_of(session), age,
                    gpus_of(session), memory_of_limit(used_of(session), session.memory_limit_bytes),
                    reserved_of(session), session.security, session.peer});
  }
  append(lines, sessions, width);
  append(lines, queue.table(), width);
  return lines;
}

}  // namespace gpuwire::server
