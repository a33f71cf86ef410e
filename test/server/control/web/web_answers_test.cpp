// The page's process gets and may do no more than the shown tickets allow.
#include "server/control/web/web_answers.hpp"

#include <algorithm>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "test/server/control/sample.hpp"

using namespace gpuwire::server;

namespace {

struct Page {
  Snapshot snapshot = sample_snapshot();
  std::vector<std::string> done;
  LogFields audited;  // the fields of the last event
  std::chrono::steady_clock::time_point now{std::chrono::hours(100)};
  WebAnswers answers{
      {.snapshot = [this] { return snapshot; },
       .end_session =
           [this](uint64_t session, const std::string& reason) {
             done.push_back(std::to_string(session) + ": " + reason);
             return true;
           },
       .suspend = [this](uint64_t session, const ControlSources::Moved& done) { move("suspend", session, done); },
       .resume = [this](uint64_t session, const ControlSources::Moved& done) { move("resume", session, done); },
       .suspend_for_user = [this](uint64_t session,
                                  const ControlSources::Moved& done) { move("own suspend", session, done); },
       .audit =
           [this](std::string_view event, const LogFields& fields) {
             done.emplace_back(event);
             audited = fields;
           }},
      {.of_token = [](const std::string& token) -> WebCredentials::Owner {
         if (token == "wrong") return tl::unexpected(std::string("no token"));
         const size_t slash = token.find('/');  // as in "course/anna"
         return WebVisitor{token.substr(0, slash), "id", slash == token.npos ? std::string() : token.substr(slash + 1)};
       },
       .of_certificate = [](const ShownCertificate& certificate, const std::string&) -> WebCredentials::Owner {
         if (certificate.verify_error != 0) return tl::unexpected("expired on " + certificate.expires);
         return WebVisitor{certificate.tenant, certificate.serial, "anna"};
       },
       .counts = [](const WebVisitor&) { return true; }},
      [this] { return now; }};
  ControlSources::Moved moved;  // of the last move, which the test answers
  void move(const char* word, uint64_t session, const ControlSources::Moved& answer) {
    done.push_back(word + (" " + std::to_string(session)));
    moved = answer;
  }
  Json ask(const Json& request) { return answers.answer(dump(request)); }
  std::string ticket(const std::string& secret) { return ask({{"command", "sign_in"}, {"secret", secret}})["ticket"]; }
  std::string administrator() { return ticket(answers.make_code().value()); }
};

uint64_t session_of(const std::string& tenant) {
  for (const SessionMetrics& session : sample_snapshot().sessions)
    if (session.tenant == tenant) return session.id;
  FAIL("the sample has a session of " << tenant);
  return 0;
}

}  // namespace

TEST_CASE("a tenant is told of its own tenant and sessions, and an administrator of all") {
  Page page;
  Json answer = page.ask({{"command", "view"}, {"ticket", page.ticket("alice")}});
  CHECK(answer["administrator"] == false);
  CHECK(answer["snapshot"]["tenants"].size() == 1);
  for (const Json& session : answer["snapshot"]["sessions"]) CHECK(session["tenant"] == "alice");
  answer = page.ask({{"command", "view"}, {"ticket", page.administrator()}});
  CHECK(answer["administrator"] == true);
  CHECK(answer["snapshot"] == to_json(sample_snapshot()));
}

TEST_CASE("a visitor who is not signed in is told nothing and ends nothing") {
  Page page;
  for (const char* command : {"view", "end", "sign_out", "reload"}) {
    const Json answer = page.ask({{"command", command}, {"ticket", "guess"}, {"session", 3}});
    CHECK(answer["ok"] == false);
    CHECK(answer["signed_out"] == true);
    CHECK(answer.size() == 3);
  }
  CHECK(page.ask({{"command", "sign_in"}, {"secret", "wrong"}})["error"] == "no token");
  CHECK(page.done == std::vector<std::string>{"web_refused"});
  for (const char* line : {"", "[]", "{", "{\"command\":7}"}) CHECK(page.answers.answer(line)["ok"] == false);
}

TEST_CASE("a tenant ends its own sessions and no other's, and an administrator any") {
  Page page;
  const std::string alice = page.ticket("alice"), mallory = page.ticket("mallory"), root = page.administrator();
  const uint64_t session = session_of("alice");
  page.done.clear();
  CHECK(page.ask({{"command", "end"}, {"ticket", mallory}, {"session", session}})["ok"] == false);
  CHECK(page.ask({{"command", "end"}, {"ticket", alice}, {"session", 999}})["ok"] == false);
  CHECK(page.ask({{"command", "end"}, {"ticket", alice}, {"session", "3"}})["ok"] == false);
  CHECK(page.done.empty());
  const std::string number = std::to_string(session);
  CHECK(page.ask({{"command", "end"}, {"ticket", alice}, {"session", session}})["ok"] == true);
  CHECK(page.ask({{"command", "end"}, {"ticket", root}, {"session", session}})["ok"] == true);
  CHECK(page.done == std::vector<std::string>{number + ": ended on the web page by tenant alice", "end_asked",
                                              number + ": ended on the web page by the administrator", "end_asked"});
}

TEST_CASE("an administrator suspends and resumes any session, and a tenant its own") {
  Page page;
  const std::string alice = page.ticket("alice"), mallory = page.ticket("mallory"), root = page.administrator();
  const uint64_t session = session_of("alice");
  page.done.clear();
  for (const std::string command : {"suspend", "resume"}) {
    CHECK(page.ask({{"command", command}, {"ticket", mallory}, {"session", session}})["error"] ==
          fmt::format("there is no session {}", session));
    CHECK(page.ask({{"command", command}, {"ticket", root}, {"session", "3"}})["ok"] == false);
    CHECK(page.done.empty());
    CHECK(page.ask({{"command", command}, {"ticket", root}, {"session", session}})["ok"] == true);
    CHECK(page.done == std::vector<std::string>{fmt::format("{} {}", command, session)});
    page.moved(std::string("suspended, 12 MiB"));
    CHECK(page.done.back() == command + "_asked");
    CHECK(page.audited == LogFields{{"session", session}, {"by", "web page"}, {"result", "suspended, 12 MiB"}});
    page.done.clear();
    CHECK(page.ask({{"command", command}, {"ticket", alice}, {"session", session}})["ok"] == true);
    CHECK(page.done ==
          std::vector<std::string>{fmt::format("{}{} {}", command == "suspend" ? "own " : "", command, session)});
    page.moved(tl::unexpected(std::string("it is ending")));
    CHECK(page.audited ==
          LogFields{{"session", session}, {"by", "web page"}, {"tenant", "alice"}, {"reason", "it is ending"}});
    page.done.clear();
  }
}

TEST_CASE("whoever may suspend a session sees for a minute why it was not suspended") {
  Page page;
  for (SessionMetrics& one : page.snapshot.sessions) one.warning.clear();
  const std::string alice = page.ticket("alice"), root = page.administrator();
  const uint64_t session = session_of("alice");
  auto warning = [&](const std::string& ticket) {
    page.now += std::chrono::seconds(1);
    const Json answer = page.ask({{"command", "view"}, {"ticket", ticket}});
    for (const Json& one : answer["snapshot"]["sessions"])
      if (one["id"] == session) return one["warning"].get<std::string>();
    return std::string("no such session");
  };
  page.ask({{"command", "suspend"}, {"ticket", root}, {"session", session}});
  CHECK(warning(root).empty());
  page.moved(tl::unexpected(std::string("its program has work\n on the GPU")));
  CHECK(warning(root) == "suspend: not done: its program has work\\x0a on the GPU");
  CHECK(warning(alice) == "suspend: not done: its program has work\\x0a on the GPU");
  page.now += std::chrono::minutes(1);
  CHECK(warning(root).empty());
  CHECK(warning(alice).empty());
}

TEST_CASE("a move that is over after the page is nobody's") {
  ControlSources::Moved moved;
  {
    Page page;
    page.ask({{"command", "suspend"}, {"ticket", page.administrator()}, {"session", session_of("alice")}});
    moved = page.moved;
  }
  moved(std::string("suspended"));
}

TEST_CASE("a user of a tenant ends its own sessions and no other user's, and learns of no other user's budget") {
  Page page;
  page.snapshot.tenants.resize(1);
  page.snapshot.tenants[0].name = "course";
  page.snapshot.tenants[0].users = {{.name = "anna"}, {.name = "ben"}};
  page.snapshot.sessions.resize(1);
  page.snapshot.sessions[0].tenant = "course";
  page.snapshot.sessions[0].user = "anna";
  const uint64_t session = page.snapshot.sessions[0].id;
  auto end = [&](const std::string& secret) {
    return page.ask({{"command", "end"}, {"ticket", page.ticket(secret)}, {"session", session}})["ok"] == true;
  };
  CHECK_FALSE(end("course/ben"));
  CHECK(end("course/anna"));
  CHECK(end("course"));
  CHECK(std::ranges::count(page.done, std::to_string(session) + ": ended on the web page by tenant course/anna") == 1);
  CHECK(std::ranges::count(page.done, "end_asked") == 2);
  CHECK(page.audited["tenant"] == "course");
  CHECK(page.audited["user"] == "anna");
  const Json answer = page.ask({{"command", "view"}, {"ticket", page.ticket("course/ben")}});
  CHECK(answer["user"] == "ben");
  CHECK(answer["snapshot"]["sessions"].size() == 1);
  REQUIRE(answer["snapshot"]["tenants"][0]["users"].size() == 1);
  CHECK(answer["snapshot"]["tenants"][0]["users"][0]["name"] == "ben");
}

TEST_CASE("a tenant sees its own past use, and that of all others together") {
  Page page;
  auto end = [&](const std::string& tenant) {
    page.answers.note(R"({"time":"2023-11-14T21:00:00.000Z","event":"ended","tenant":")" + tenant +
                      R"(","gpus":[1],"seconds":60,"gpu_seconds":100})");
  };
  // GPU seconds on GPU 1 in the last day, in the row of this name.
  auto used = [&](const std::string& ticket, const std::string& row) {
    double sum = 0;
    const Json answer = page.ask({{"command", "view"}, {"ticket", ticket}, {"history", true}});
    for (const Json& one : answer["history"]["day"])
      if (one["tenant"] == row && one["gpu"] == 1) sum += double(one["gpu_s"]);
    return sum;
  };
  const std::string zoe = page.ticket("zoe"), root = page.administrator();
  for (const char* tenant : {"zoe", "yan", "xia"}) end(tenant);
  CHECK(used(zoe, "zoe") == doctest::Approx(100));
  CHECK(used(zoe, "") == doctest::Approx(200));
  CHECK(used(zoe, "yan") == 0);
  CHECK(used(root, "yan") == doctest::Approx(100));
  // At once, although the sum of the past is cached.
  end("yan");
  CHECK(used(root, "yan") == doctest::Approx(200));
  page.now += kWebHistoryFreshTime;
  CHECK(used(root, "yan") == doctest::Approx(200));
}

TEST_CASE(
    "of the sessions that have ended a tenant sees its own, with what they waited for, and an administrator all") {
  Page page;
  auto line = [&](const std::string& words) { page.answers.note(R"({"time":"2023-11-14T21:00:00.000Z",)" + words); };
  line(R"("event":"admitted","session":5,"tenant":"zoe","waited_seconds":146,"waited_for":"1 GPU"})");
  for (const char* tenant : {"zoe", "yan"})
    line(fmt::format(R"("event":"ended","session":5,"tenant":"{}","gpus":[1],"seconds":60,"cause":"finished"}})",
                     tenant));
  auto ended = [&](const std::string& ticket) -> Json {
    return page.ask({{"command", "view"}, {"ticket", ticket}, {"history", true}})["history"]["ended"];
  };
  const Json own = ended(page.ticket("zoe"));
  REQUIRE(own.size() == 1);
  CHECK(own[0]["tenant"] == "zoe");
  CHECK(own[0]["gpus"] == Json::array({1}));
  CHECK(own[0]["waited_s"] == 146.0);
  CHECK(own[0]["waited_for"] == "1 GPU");
  CHECK(double(own[0]["ended_unix_s"]) - double(own[0]["begun_unix_s"]) == doctest::Approx(60));
  CHECK(ended(page.administrator()).size() == 2);
}

TEST_CASE("a certificate that a visitor has shown becomes a grant, which signs its owner in") {
  Page page;
  auto show = [&](Json words) {
    words["command"] = "certificate";
    return page.answers.answer_certificate(dump(words));
  };
  const Json granted = show({{"serial", "77"}, {"tenant", "course"}, {"error", 0}, {"peer", "10.0.0.1"}});
  CHECK(granted["ok"] == true);
  CHECK(granted["holder"] == "course/anna");
  CHECK(page.done.empty());
  const Json ticket = page.ask({{"command", "sign_in"}, {"grant", granted["grant"]}});
  CHECK(ticket["tenant"] == "course");
  CHECK(ticket["user"] == "anna");
  CHECK(page.done == std::vector<std::string>{"web_sign_in"});
  const Json refused = show({{"serial", "77"}, {"tenant", "course"}, {"error", 10}, {"expires", "Monday"}});
  CHECK(refused["ok"] == false);
  CHECK(refused["error"] == "expired on Monday");
  CHECK_FALSE(refused.contains("grant"));
  CHECK(page.done.back() == "web_refused");
  // Without a result there is no certificate, and the page's other process may not say who has shown one.
  CHECK(show({{"serial", "77"}, {"tenant", "course"}})["ok"] == false);
  CHECK(show({{"serial", "77"}, {"tenant", "course"}, {"error", "0"}})["ok"] == false);
  const Json other = page.ask({{"command", "certificate"}, {"serial", "77"}, {"tenant", "course"}, {"error", 0}});
  CHECK(other["signed_out"] == true);
  for (const char* line : {"", "[]", "{", "{\"command\":7}"})
    CHECK(page.answers.answer_certificate(line)["ok"] == false);
}
