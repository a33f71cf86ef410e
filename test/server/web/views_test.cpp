// The documents of the page: their content, and that no name becomes markup.
#include "server/web/views.hpp"

#include <doctest/doctest.h>

#include "server/web/limits.hpp"
#include "server/web/pages.hpp"
#include "test/server/control/sample.hpp"

using namespace gpuwire::server;
using namespace gpuwire::server::web;

namespace {

constexpr const char* kHostile = "</td><script>alert('x')</script>\"\xe2\x80\xae\n&amp;";

// `tenant`: the tenant with used GPU time.
std::string document(View view, const Visitor& visitor, const Snapshot& snapshot, const std::string& tenant = "alice") {
  const Interval interval(snapshot, snapshot);
  const EndedRow ended{.session = 3,
                       .tenant = tenant,
                       .user = tenant,
                       .program = tenant,
                       .host = tenant,
                       .cause = tenant,
                       .gpus = {0, 2},
                       .begun_unix_s = 1'790'000'000,
                       .ended_unix_s = 1'790'000'600,
                       .gpu_s = 1800,
                       .waited_s = 146,
                       .waited_for = tenant};
  const Figures figures{visitor, interval, {{tenant, 0, 3600}, {"", 0, 7200}}, {{tenant, 0, 36000}}, {ended}};
  return view_page(view, visitor, parts_of(view, figures), "csrf");
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("text of others is text, in elements and in attributes") {
  CHECK(Html(std::string("<b>&\"'")).str() == "&lt;b&gt;&amp;&quot;&#39;");
  CHECK(Html("a\nb\xe2\x80\xae").str() == "a\\x0ab\\xe2\\x80\\xae");
  CHECK((Html::markup("<p>") + "<p>" + Html::markup("</p>")).str() == "<p>&lt;p&gt;</p>");
}

TEST_CASE("no name of a program, tenant, host, device or reason is markup in any view") {
  Snapshot snapshot = sample_snapshot();
  for (SessionMetrics& session : snapshot.sessions) {
    for (std::string* text : {&session.program, &session.host, &session.peer, &session.tenant, &session.user,
                              &session.waits_for, &session.warning, &session.service_class, &session.state})
      *text = kHostile;
  }
  for (TenantMetrics& tenant : snapshot.tenants) tenant.name = tenant.service_class = kHostile;
  for (DeviceMetrics& device : snapshot.devices) device.name = device.regime = kHostile;
  snapshot.refused[kHostile] = 1;
  snapshot.server.devices = snapshot.server.release = kHostile;
  snapshot.server.listen = {kHostile};
  snapshot.server.certificates.push_back({"tenant", kHostile, 1, kHostile, kHostile, kHostile, kHostile});
  for (const ViewName& view : kViews) {
    for (const Visitor& visitor : {Visitor{}, Visitor{kHostile}}) {
      const std::string html = document(view.view, visitor, snapshot, kHostile);
      CAPTURE(view.path);
      CHECK(html.find("alert(") != std::string::npos);
      CHECK(count(html, "<script") == 1);  // the page's own
      CHECK(html.find("\xe2\x80\xae") == std::string::npos);
      CHECK(html.find("</td><script") == std::string::npos);
    }
  }
  CHECK(sign_in_page("csrf", kHostile, kHostile).find("<script") == std::string::npos);
}

TEST_CASE("a page has no code and no style of its own, which its policy would forbid") {
  for (const ViewName& view : kViews) {
    const std::string html = document(view.view, {}, sample_snapshot());
    for (const char* no : {" style=", "<style", " onclick", " onload", "javascript:", "<script>"})
      CHECK_MESSAGE(html.find(no) == std::string::npos, view.path << " has " << no);
  }
}

TEST_CASE("a page is for the keyboard and for screen readers: language, title, skip link, headings, captions, scopes") {
  const std::string html = document(View::overview, {}, sample_snapshot());
  for (const char* has : {"<html lang=\"en\">", "<title>", "href=\"#main\"", "<main id=\"main\"", "<h1>", "<caption>",
                          "<th scope=\"col\"", "<th scope=\"row\"", "aria-current=\"page\"",
                          "aria-labelledby=", "name=\"viewport\"", "tabindex=\"0\" aria-label="})
    CHECK_MESSAGE(html.find(has) != std::string::npos, has);
  CHECK(count(html, "<h1>") == 1);
  CHECK(count(html, "<section") == count(html, "<h2"));
  CHECK(sign_in_page("csrf", "", "").find("<label for=\"secret\">") != std::string::npos);
  CHECK(sign_in_page("csrf", "", "").find("with the certificate") == std::string::npos);
  CHECK(sign_in_page("csrf", "course/anna", "").find("Sign in as <bdi>course/anna</bdi> with the certificate") !=
        std::string::npos);
}

TEST_CASE("each running session has its link to end it, and each waiting one its place and reason") {
  const Snapshot snapshot = sample_snapshot();
  const std::string html = document(View::overview, {}, snapshot);
  for (const SessionMetrics& session : snapshot.sessions) {
    CHECK(html.find("href=\"end?session=" + std::to_string(session.id) + "\"") != std::string::npos);
    if (session.place != 0) CHECK(html.find(Html(session.waits_for).str()) != std::string::npos);
  }
}

TEST_CASE("whoever may end a session has a link to suspend it if it runs, and to resume it if it is suspended") {
  Snapshot snapshot = sample_snapshot();
  snapshot.sessions.resize(1);
  SessionMetrics& session = snapshot.sessions[0];
  session.place = 0;
  auto links = [&](const Visitor& visitor) {
    const std::string html = document(View::overview, visitor, snapshot);
    return std::pair(count(html, "href=\"suspend?session="), count(html, "href=\"resume?session="));
  };
  session.state = "running", session.suspension = "";
  CHECK(links({}) == std::pair(size_t(1), size_t(0)));
  CHECK(links({session.tenant}) == std::pair(size_t(1), size_t(0)));
  CHECK(links({session.tenant, "nobody"}) == std::pair(size_t(0), size_t(0)));
  session.state = session.suspension = "suspended";
  CHECK(links({}) == std::pair(size_t(0), size_t(1)));
  session.state = "detached";
  CHECK(links({}) == std::pair(size_t(0), size_t(1)));
  CHECK(links({session.tenant}) == std::pair(size_t(0), size_t(1)));
  for (const char* moving : {"suspending", "resuming"}) {
    session.state = session.suspension = moving;
    CHECK(links({}) == std::pair(size_t(0), size_t(0)));
  }
  session.state = "starting", session.suspension = "";
  CHECK(links({}) == std::pair(size_t(0), size_t(0)));
}

TEST_CASE("a session that has ended is shown with its GPUs, its times, and how long and for what it waited") {
  const std::string html = document(View::history, {}, sample_snapshot());
  CHECK(html.find("<td>0, 2</td><td>2026-09-21 14:13 UTC</td><td>2026-09-21 14:23 UTC</td>"
                  "<td class=\"number\">30.0 min</td><td class=\"number\">2 min</td>"
                  "<td class=\"sentence\">alice</td>") != std::string::npos);
}

TEST_CASE("a user of a tenant sees the tenant's sessions with their users, and the links that end their own") {
  Snapshot snapshot = sample_snapshot();
  for (SessionMetrics& session : snapshot.sessions) session.tenant = "course", session.user = "ben";
  snapshot.sessions.front().user = "anna";
  const std::string html = document(View::overview, {"course", "anna"}, snapshot);
  CHECK(html.find("course/ben") != std::string::npos);
  CHECK(count(html, "href=\"end?session=") == 1);
  CHECK(html.find("href=\"end?session=" + std::to_string(snapshot.sessions.front().id) + "\"") != std::string::npos);
  CHECK(count(document(View::overview, {"course"}, snapshot), "href=\"end?session=") == snapshot.sessions.size());
}

TEST_CASE("tenants and their users are shown with what they have used of their budgets, and what comes beyond") {
  Snapshot snapshot = sample_snapshot();
  TenantMetrics& tenant = snapshot.tenants.front();
  tenant.name = "course";
  tenant.budget_ns = 200ull * 3600 * 1'000'000'000;
  tenant.budget_used_ns = tenant.budget_ns / 4;
  tenant.users = {{.name = kHostile,
                   .sessions = 2,
                   .sessions_max = 3,
                   .budget_ns = 3600ull * 1'000'000'000,
                   .budget_used_ns = 2 * 3600ull * 1'000'000'000,
                   .budget_hard = true}};
  const std::string html = document(View::tenants, {}, snapshot);
  CHECK(html.find("50.00 h of 200.00 h (25") != std::string::npos);
  CHECK(html.find("programs run behind everybody else") != std::string::npos);
  CHECK(html.find("2 of 3") != std::string::npos);
  CHECK(html.find("value=\"100\" aria-label=\"budget of course/") != std::string::npos);
  CHECK(html.find("2.00 h of 1.00 h (200") != std::string::npos);
  CHECK(html.find("programs wait for the next month") != std::string::npos);
  CHECK(html.find(kHostile) == std::string::npos);
}

TEST_CASE("200 sessions are shown, and beyond the bound the rest is counted") {
  for (size_t sessions : {size_t(200), kRowsMax + 7}) {
    Snapshot snapshot = sample_snapshot();
    const SessionMetrics one = snapshot.sessions.front();
    snapshot.sessions.assign(sessions, one);
    for (size_t i = 0; i < sessions; ++i) snapshot.sessions[i].id = i + 1, snapshot.sessions[i].place = 0;
    const std::string html = document(View::overview, {}, snapshot);
    CHECK(count(html, "href=\"end?session=") == std::min(sessions, kRowsMax));
    CHECK((html.find("7 more are not shown") != std::string::npos) == (sessions > kRowsMax));
  }
}

TEST_CASE("history says who has used which GPU, and names no other tenant to a tenant") {
  const std::string html = document(View::history, {"alice"}, sample_snapshot());
  CHECK(html.find("alice") != std::string::npos);
  CHECK(html.find("all others") != std::string::npos);
  CHECK(html.find("1.00 h") != std::string::npos);   // 3600 s
  CHECK(html.find("10.00 h") != std::string::npos);  // 36000 s
  CHECK(html.find("GPU 0: 3.00 h in all, 12.5 % of the time") != std::string::npos);
}

TEST_CASE("the server's view tells what needs attention, or that nothing does") {
  Snapshot snapshot = sample_snapshot();
  snapshot.server.draining = false;
  snapshot.server.audit_lines_lost = 0;
  for (SessionMetrics& session : snapshot.sessions) session.warning.clear();
  CHECK(document(View::server, {}, snapshot).find("Nothing needs attention") != std::string::npos);
  snapshot.server.certificates.front().warning = "the server's certificate expires soon";
  const std::string html = document(View::server, {}, snapshot);
  CHECK(html.find("Nothing needs attention") == std::string::npos);
  CHECK(html.find("the server&#39;s certificate expires soon") != std::string::npos);
}

TEST_CASE("a drained GPU is shown as such in the list of GPUs and among what needs attention") {
  Snapshot snapshot = sample_snapshot();
  CHECK(document(View::overview, {}, snapshot).find("drain") == std::string::npos);
  snapshot.devices[0].drain = "drained";
  CHECK(document(View::overview, {"alice"}, snapshot).find("<strong>drained</strong>") != std::string::npos);
  CHECK(document(View::server, {}, snapshot).find("GPU 0 is drained: no session begins on it or returns to it.") !=
        std::string::npos);
}

TEST_CASE("the queue says when a program may expect to start, and nothing where that is not known") {
  Snapshot snapshot = sample_snapshot();
  CHECK(document(View::overview, {}, snapshot).find("about ") == std::string::npos);
  snapshot.sessions.back().start_in_s = 42;
  CHECK(document(View::overview, {}, snapshot).find("about 42 s") != std::string::npos);
}

TEST_CASE("the server's view lists each user's credential") {
  Snapshot snapshot = sample_snapshot();
  auto add = [&](const char* user, const char* kind, bool renewed) {
    snapshot.server.certificates.push_back(
        {"tenant", "course", snapshot.taken_unix_s + 1, "", user, kind, "1", renewed});
  };
  add("anna", "certificate", true), add("ben", "token", false);
  const std::string html = document(View::server, {}, snapshot);
  for (const char* part : {"user <bdi>course/anna</bdi>", "<td>nothing: it has been renewed</td>",
                           "user <bdi>course/ben</bdi>", "<td>token</td>"})
    CHECK_MESSAGE(html.find(part) != std::string::npos, std::string(part));
}
