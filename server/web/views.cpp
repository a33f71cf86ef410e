#include "server/web/views.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "server/web/words.hpp"

namespace gpuwire::server::web {
namespace {

constexpr double kDayHours = 24, kMonthHours = 30 * 24;

// Returns a foreign name, isolated so that its writing direction does not affect its surroundings.
Html name(const std::string& text) {
  if (text.empty()) return "-";
  return Html::markup("<bdi>") + text + Html::markup("</bdi>");
}

Html program_of(const SessionMetrics& session) {
  if (session.program.empty() && session.host.empty()) return name(session.peer);
  return name(session.program) + " on " + name(session.host);
}

std::string gpus_words(const SessionMetrics& session) {
  std::string text;
  for (const SessionDeviceMetrics& device : session.devices)
    text += (text.empty() ? "" : ", ") + std::to_string(device.device);
  return text.empty() ? "-" : text;
}

std::string used_words(const SessionMetrics& session) {
  uint64_t most = 0;  // its limit is per GPU
  for (const SessionDeviceMetrics& device : session.devices) most = std::max(most, device.memory_used_bytes);
  if (session.memory_limit_bytes == 0) return size_words(most);
  return fmt::format("{} of {}", size_words(most), size_words(session.memory_limit_bytes));
}

Html state_of(const SessionMetrics& session) {
  if (session.detached_left_s > 0)
    return fmt::format("{}, ends in {} unless its client is back", session.state, time_words(session.detached_left_s));
  if (!session.warning.empty())
    return Html(session.state + ": ") + Html::markup("<strong>") + session.warning + Html::markup("</strong>");
  return session.state;
}

// Returns a link to a confirmation page, which works without scripts and prevents an accidental action.
Html action_link(const char* action, const char* word, const SessionMetrics& session) {
  const Html number = Html::number(session.id);
  return Html::markup("<a class=\"button\" id=\"") + action + Html::markup("-") + number + Html::markup("\" href=\"") +
         action + Html::markup("?session=") + number + Html::markup("\">") + word +
         Html::markup("<span class=\"unseen\"> session ") + number + Html::markup("</span></a>");
}

Html end_link(const Visitor& visitor, const SessionMetrics& session) {
  if (session.state == "ending" || !visitor.may_end(session)) return "";
  return action_link("end", "End", session);
}

// Sessions that run, with or without a connection, have memory to move.
Html move_link(const Visitor& visitor, const SessionMetrics& session) {
  if (!visitor.may_end(session)) return "";
  if (session.suspension == "suspended") return " " + action_link("resume", "Resume", session);
  if (!session.suspension.empty() || (session.state != "running" && session.state != "detached")) return "";
  return " " + action_link("suspend", "Suspend", session);
}

Html share_meter(double share, const std::string& of) {
  return Html::markup("<meter min=\"0\" max=\"100\" value=\"") + fmt::format("{:.0f}", std::min(100 * share, 100.0)) +
         Html::markup("\" aria-label=\"GPU time of ") + of + Html::markup("\"></meter> ") + percent_words(share);
}

// --- now -------------------------------------------------------------------------------------------------------------

Html users_of(const DeviceMetrics& device, const Figures& figures) {
  std::set<std::string> tenants;
  uint64_t shown = 0;
  for (const SessionMetrics& session : figures.interval.now().sessions)
    for (const SessionDeviceMetrics& one : session.devices)
      if (one.device == device.index) tenants.insert(session.tenant), ++shown;
  Html users;
  for (const std::string& tenant : tenants) users += (users.empty() ? Html("") : Html(", ")) + name(tenant);
  // A tenant sees the number of other tenants' sessions, without names.
  const uint64_t others = device.sessions > shown ? device.sessions - shown : 0;
  if (others != 0)
    users += fmt::format("{}{} session{} of others", users.empty() ? "" : ", ", others, others == 1 ? "" : "s");
  return users.empty() ? Html("nobody") : users;
}

Html gpus_part(const Figures& figures) {
  Table table("GPUs", {{"GPU"}, {"Name"}, {"GPU time"}, {"Memory in use", true}, {"Reserved", true}, {"Used by"}});
  for (const DeviceMetrics& device : figures.interval.now().devices) {
    const Html drain =
        device.drain.empty() ? Html("") : Html::markup(" <strong>") + device.drain + Html::markup("</strong>");
    table.add({Html::number(device.index), name(device.name) + drain,
               share_meter(figures.interval.gpu_share(device), fmt::format("GPU {}", device.index)),
               fmt::format("{} of {}", size_words(device.memory_used_bytes), size_words(device.memory_bytes)),
               size_words(device.memory_reserved_bytes), users_of(device, figures)});
  }
  return table.html("The server has not found its GPUs yet.");
}

Html sessions_part(const Figures& figures) {
  Table table("Sessions that run", {{"Session"},
                                    {"Program"},
                                    {"Tenant"},
                                    {"Class"},
                                    {.heading = "State", .sentence = true},
                                    {"Since", true},
                                    {"GPUs"},
                                    {"GPU time", true},
                                    {"Memory on each", true},
                                    {"Action"}});
  const Snapshot& now = figures.interval.now();
  for (size_t i : display_order(figures.interval, SortKey::gpu)) {
    const SessionMetrics& session = now.sessions[i];
    if (session.place != 0) continue;
    table.add({Html::number(session.id), program_of(session), owner_name(session.tenant, session.user),
               session.service_class, state_of(session), time_words(now.taken_unix_s - session.since_unix_s),
               gpus_words(session), percent_words(figures.interval.gpu_share(session)), used_words(session),
               end_link(figures.visitor, session) + move_link(figures.visitor, session)});
  }
  return table.html(figures.visitor.administrator() ? "No session runs." : "None of your sessions runs.");
}

// Returns the median wait of the tenant's sessions for their GPUs, since the server counts.
std::string usual_wait(const Snapshot& now, const std::string& tenant) {
  auto found = std::ranges::find(now.tenants, tenant, &TenantMetrics::name);
  if (found == now.tenants.end()) return "-";
  const HistogramMetrics& waits = found->queue_wait_s;
  uint64_t counted = 0;
  for (size_t i = 0; i < waits.counts.size(); ++i) {
    counted += waits.counts[i];
    if (counted == 0 || 2 * counted < waits.total()) continue;
    if (i >= waits.bounds.size()) return "over " + time_words(waits.bounds.empty() ? 0 : waits.bounds.back());
    return "under " + time_words(std::max(waits.bounds[i], 1.0));
  }
  return "-";
}

Html queue_part(const Figures& figures) {
  Table table("Sessions that wait", {{"Place"},
                                     {"Session", true},
                                     {"Program"},
                                     {"Tenant"},
                                     {"Class"},
                                     {"Waits since", true},
                                     {"Expected to start in", true},
                                     {.heading = "Waits for", .sentence = true},
                                     {"Half of this tenant's waits were", true},
                                     {"Action"}});
  const Snapshot& now = figures.interval.now();
  for (size_t i : display_order(figures.interval, SortKey::gpu)) {
    const SessionMetrics& session = now.sessions[i];
    if (session.place == 0) continue;
    table.add({Html::number(session.place), Html::number(session.id), program_of(session),
               owner_name(session.tenant, session.user), session.service_class,
               time_words(now.taken_unix_s - session.since_unix_s),
               session.start_in_s ? "about " + time_words(*session.start_in_s) : "-", session.waits_for,
               usual_wait(now, session.tenant), end_link(figures.visitor, session)});
  }
  return table.html(figures.visitor.administrator() ? "Nobody waits." : "None of your sessions waits.");
}

// --- before ----------------------------------------------------------------------------------------------------------

Html use_part(const char* caption, const std::vector<UseRow>& rows, double hours, const Figures& figures) {
  Table table(caption, {{"Tenant"}, {"GPU", true}, {"GPU time", true}, {"Part of the GPU"}});
  std::vector<const UseRow*> order;
  for (const UseRow& row : rows) order.push_back(&row);
  std::ranges::stable_sort(order, std::greater<>(), [](const UseRow* row) { return row->gpu_s; });
  for (const UseRow* row : order) {
    const double share = row->gpu_s / (hours * 3600);
    const Html who = row->tenant.empty() ? Html("all others") : name(row->tenant);
    table.add(
        {who, Html::number(row->gpu), gpu_time_words(row->gpu_s),
         share_meter(share, fmt::format("{} on GPU {}", row->tenant.empty() ? "all others" : row->tenant, row->gpu))});
  }
  Html html = table.html("No GPU time was used.");
  std::map<uint64_t, double> by_gpu;
  for (const DeviceMetrics& device : figures.interval.now().devices) by_gpu[device.index] = 0;
  for (const UseRow& row : rows) by_gpu[row.gpu] += row.gpu_s;
  for (const auto& [gpu, gpu_s] : by_gpu)
    html += Html::markup("<p>") +
            fmt::format("GPU {}: {} in all, {} of the time.", gpu, gpu_time_words(gpu_s),
                        percent_words(gpu_s / (hours * 3600))) +
            Html::markup("</p>\n");
  return html;
}

Html ended_part(const Figures& figures) {
  Table table("Sessions that have ended", {{"Session"},
                                           {"Program"},
                                           {"Tenant"},
                                           {"GPUs"},
                                           {"From"},
                                           {"Until"},
                                           {"GPU time", true},
                                           {"Waited", true},
                                           {.heading = "Waited for", .sentence = true},
                                           {"End"}});
  for (const EndedRow& session : figures.ended) {
    std::string gpus;
    for (uint64_t gpu : session.gpus) gpus += (gpus.empty() ? "" : ", ") + std::to_string(gpu);
    const bool waited = !session.waited_for.empty();
    table.add({Html::number(session.session), name(session.program) + " on " + name(session.host),
               owner_name(session.tenant, session.user), gpus.empty() ? "-" : gpus, date_words(session.begun_unix_s),
               date_words(session.ended_unix_s), gpu_time_words(session.gpu_s),
               waited ? time_words(session.waited_s) : "-", waited ? session.waited_for : "-", session.cause});
  }
  return table.html("No session has ended.");
}

// --- tenants ---------------------------------------------------------------------------------------------------------

std::string limit_words(uint64_t used, uint64_t limit) {
  return limit == 0 ? size_words(used) : fmt::format("{} of {}", size_words(used), size_words(limit));
}

std::string memory_words(const TenantMetrics& tenant) {
  std::string text;
  for (const TenantDeviceMetrics& device : tenant.devices) {
    if (tenant.devices.size() > 1 && device.memory_held_bytes == 0) continue;
    if (!text.empty()) text += ", ";
    if (tenant.devices.size() > 1) text += fmt::format("GPU {}: ", device.device);
    text += limit_words(device.memory_used_bytes, device.memory_limit_bytes);
    if (device.memory_guaranteed_bytes)
      text += fmt::format(" ({} guaranteed)", size_words(device.memory_guaranteed_bytes));
  }
  return text.empty() ? "none" : text;
}

Html tenants_part(const Figures& figures) {
  Table table(figures.visitor.administrator() ? "Tenants" : "Your tenant", {{"Tenant"},
                                                                            {"Class"},
                                                                            {"Weight", true},
                                                                            {"Sessions", true},
                                                                            {"Waiting", true},
                                                                            {"GPU time now", true},
                                                                            {"GPU time counted", true},
                                                                            {"GPU memory"},
                                                                            {"Server's memory", true}});
  const Snapshot& now = figures.interval.now();
  for (const TenantMetrics& tenant : now.tenants) {
    uint64_t all = 0, waiting = 0, gpu_ns = 0;
    for (const auto& [state, count] : tenant.sessions) (state == "queued" ? waiting : all) += count;
    for (const TenantDeviceMetrics& device : tenant.devices) gpu_ns += device.gpu_time_ns;
    table.add({name(tenant.name), tenant.service_class, fmt::format("{:g}", tenant.weight),
               tenant.sessions_max ? fmt::format("{} of {}", all, tenant.sessions_max) : std::to_string(all),
               Html::number(waiting), percent_words(figures.interval.gpu_share(tenant)),
               gpu_time_words(double(gpu_ns) / 1e9), memory_words(tenant),
               limit_words(tenant.host_memory_used_bytes, tenant.host_memory_limit_bytes)});
  }
  Html html = table.html("The configuration has no tenants.");
  const ServerMetrics& server = now.server;
  const double since = server.counted_since_unix_s > 0 ? server.counted_since_unix_s : server.started_unix_s;
  return html + Html::markup("<p>GPU time is counted since ") + date_words(since) + Html::markup(".</p>\n");
}

// Returns the used GPU time of this month, with a meter if there is a budget.
Html budget_words(uint64_t used_ns, uint64_t budget_ns, const std::string& of) {
  const std::string used = gpu_time_words(double(used_ns) / 1e9);
  if (budget_ns == 0) return used;
  const double share = double(used_ns) / double(budget_ns);
  return Html::markup("<meter min=\"0\" max=\"100\" value=\"") + fmt::format("{:.0f}", std::min(100 * share, 100.0)) +
         Html::markup("\" aria-label=\"budget of ") + of + Html::markup("\"></meter> ") +
         fmt::format("{} of {} ({})", used, gpu_time_words(double(budget_ns) / 1e9), percent_words(share));
}

const char* beyond_words(uint64_t budget_ns, bool hard) {
  if (budget_ns == 0) return "-";
  return hard ? "programs wait for the next month" : "programs run behind everybody else's";
}

// Lists tenants with a budget or with users; the broker's snapshot has only the visitor's own rows if the visitor is a
// tenant or its user.
Html budgets_part(const Figures& figures) {
  Table table("GPU time of this month (UTC) and budgets",
              {{"Tenant"}, {"User"}, {"Sessions", true}, {"GPU memory", true}, {"GPU time"}, {"Beyond the budget"}});
  for (const TenantMetrics& tenant : figures.interval.now().tenants) {
    if (tenant.budget_ns == 0 && tenant.users.empty()) continue;
    uint64_t sessions = 0;
    for (const auto& [state, count] : tenant.sessions) sessions += count;
    table.add({name(tenant.name), "all", Html::number(sessions), memory_words(tenant),
               budget_words(tenant.budget_used_ns, tenant.budget_ns, tenant.name),
               beyond_words(tenant.budget_ns, tenant.budget_hard)});
    for (const UserMetrics& user : tenant.users)
      table.add({name(tenant.name), name(user.name),
                 user.sessions_max ? fmt::format("{} of {}", user.sessions, user.sessions_max)
                                   : std::to_string(user.sessions),
                 limit_words(user.memory_used_bytes, user.memory_limit_bytes),
                 budget_words(user.budget_used_ns, user.budget_ns, tenant.name + "/" + user.name),
                 beyond_words(user.budget_ns, user.budget_hard)});
  }
  return table.html("No tenant has a budget or users.");
}

// --- the server ------------------------------------------------------------------------------------------------------

Html list_item(const char* term, const Html& value) {
  return Html::markup("<dt>") + term + Html::markup("</dt><dd>") + value + Html::markup("</dd>\n");
}

Html problems_of(const Figures& figures) {
  const Snapshot& now = figures.interval.now();
  std::vector<std::string> lines;
  if (now.server.draining) lines.emplace_back("The server shuts down and accepts no programs.");
  for (const DeviceMetrics& device : now.devices)
    if (!device.drain.empty())
      lines.push_back(fmt::format("GPU {} is drained: no session begins on it or returns to it.", device.index));
  for (const SessionMetrics& session : now.sessions)
    if (!session.warning.empty())
      lines.push_back(fmt::format("Session {} of {}: {}", session.id, session.tenant, session.warning));
  if (now.server.sessions_left_out)
    lines.push_back(fmt::format("{} more sessions are not shown.", now.server.sessions_left_out));
  if (now.server.audit_lines_lost && figures.visitor.administrator())
    lines.push_back(fmt::format("{} lines of the audit log could not be written.", now.server.audit_lines_lost));
  for (const CertificateMetrics& one : now.server.certificates)
    if (!one.warning.empty()) lines.push_back(one.warning);
  if (lines.empty()) return Html::markup("<p class=\"good\">Nothing needs attention.</p>\n");
  Html html = Html::markup("<ul class=\"bad\">\n");
  for (const std::string& line : lines) html += Html::markup("<li>") + line + Html::markup("</li>\n");
  return html + Html::markup("</ul>\n");
}

Html health_part(const Figures& figures) {
  const Snapshot& now = figures.interval.now();
  Html html = problems_of(figures) + Html::markup("<dl>\n") + list_item("Release", now.server.release) +
              list_item("Runs for", time_words(now.taken_unix_s - now.server.started_unix_s)) +
              list_item("Devices", name(now.server.devices));
  if (figures.visitor.administrator()) {
    std::string listen;
    for (const std::string& where : now.server.listen) listen += (listen.empty() ? "" : ", ") + where;
    const auto running = std::ranges::count_if(now.sessions, [](const auto& one) { return one.place == 0; });
    html += list_item("Listens on", listen) +
            list_item("Sessions", fmt::format("{} of {}", running, now.server.sessions_max));
    for (const auto& [reason, count] : now.refused)
      html += list_item("Refused callers without a tenant", fmt::format("{} ({})", count, reason));
  }
  for (const DeviceMetrics& device : now.devices)
    html += list_item("Sharing", fmt::format("GPU {}: {}", device.index, device.regime.empty() ? "-" : device.regime));
  return html + Html::markup("</dl>\n");
}

Html certificates_part(const Figures& figures) {
  Table table("Certificates and tokens", {{"Of"}, {"Kind"}, {"Ends"}, {"In", true}, {"What to do"}});
  const Snapshot& now = figures.interval.now();
  for (const CertificateMetrics& one : now.server.certificates) {
    const bool of_tenant = one.of == "tenant";
    const Html of = !of_tenant         ? Html("the " + one.of)
                    : one.user.empty() ? Html("tenant ") + name(one.tenant)
                                       : Html("user ") + owner_name(one.tenant, one.user);
    const Html to_do = one.renewed           ? Html("nothing: it has been renewed")
                       : one.warning.empty() ? Html("nothing")
                                             : Html::markup("<strong>") + one.warning + Html::markup("</strong>");
    table.add({of, of_tenant ? one.kind : "certificate", date_words(one.expires_unix_s),
               time_words(one.expires_unix_s - now.taken_unix_s), to_do});
  }
  return table.html("This server uses none.");
}

}  // namespace

std::optional<View> view_named(std::string_view path) {
  if (path.empty()) return View::overview;
  for (const ViewName& one : kViews)
    if (path == one.path) return one.view;
  return std::nullopt;
}

Html owner_name(const std::string& tenant, const std::string& user) {
  return name(user.empty() ? tenant : tenant + "/" + user);
}

const ViewName& name_of(View view) { return kViews[size_t(view)]; }

std::vector<Part> parts_of(View view, const Figures& figures) {
  const bool all = figures.visitor.administrator();
  switch (view) {
    case View::overview:
      return {{"gpus", "GPUs now", gpus_part(figures)},
              {"sessions", all ? "Sessions" : "Your sessions", sessions_part(figures)},
              {"queue", "Queue", queue_part(figures)}};
    case View::history:
      return {
          {"day", "The last 24 hours", use_part("GPU time in the last 24 hours", figures.day, kDayHours, figures)},
          {"month", "The last 30 days", use_part("GPU time in the last 30 days", figures.month, kMonthHours, figures)},
          {"ended", all ? "The last sessions" : "Your last sessions", ended_part(figures)}};
    case View::tenants:
      return {{"tenants", all ? "Tenants" : "Your tenant", tenants_part(figures)},
              {"budgets", "Budgets", budgets_part(figures)}};
    case View::server:
      return {{"health", "Health", health_part(figures)}, {"certificates", "Certificates", certificates_part(figures)}};
  }
  return {};
}

}  // namespace gpuwire::server::web
