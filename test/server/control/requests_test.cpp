#include "server/control/requests.hpp"

#include <doctest/doctest.h>

#include "server/control/client/limits.hpp"
#include "test/server/control/sample.hpp"

using namespace gpuwire::server;

namespace {

const ControlPeer kRoot{.uid = 0, .pid = 1, .everything = true};
const ControlPeer kAlice{.uid = 1000, .pid = 2, .tenants = {"alice"}};
const ControlPeer kStranger{.uid = 1001, .pid = 3};

struct Server {
  std::vector<std::string> done;
  ControlSources sources{
      .snapshot = [] { return sample_snapshot(); },
      .reload = [this](bool) -> tl::expected<std::string, ReloadRefused> {
        done.push_back("reload");
        return "1 tenant added";
      },
      .end_session =
          [this](uint64_t session, const std::string& reason) {
            done.push_back("end " + std::to_string(session) + ": " + reason);
            return session == 3;
          },
      .end_tenant = [this](const std::string& tenant, const std::string& reason) -> std::optional<size_t> {
        if (tenant == "nobody") return std::nullopt;
        done.push_back("end tenant " + tenant + ": " + reason);
        return 2;
      },
      .revoked = [](const std::string& directory, const std::string& identity) -> std::optional<size_t> {
        if (directory != "/etc/gpuwire/identity") return std::nullopt;
        return identity == "12ab" ? 2 : 0;
      },
      .audit =
          [this](std::string_view event, const LogFields& fields) {
            done.push_back("audit " + std::string(event) + " " + json_line(fields));
          },
  };
  Json ask(const std::string& line, const ControlPeer& peer = kRoot) {
    return answer_request(line, peer, sources).json;
  }
};

}  // namespace

TEST_CASE("An administrator with all rights sees everything") {
  Server server;
  Json answer = server.ask(R"({"command":"snapshot"})");
  CHECK(answer["ok"] == true);
  CHECK(answer["snapshot"] == to_json(sample_snapshot()));
}

TEST_CASE("A tenant's user sees that tenant alone, and the devices") {
  Server server;
  auto snapshot = snapshot_from_json(server.ask(R"({"command":"snapshot"})", kAlice)["snapshot"]);
  REQUIRE(snapshot);
  REQUIRE(snapshot->tenants.size() == 1);
  CHECK(snapshot->tenants[0].name == "alice");
  REQUIRE(snapshot->sessions.size() == 1);
  CHECK(snapshot->sessions[0].tenant == "alice");
  CHECK(snapshot->refused.empty());
  CHECK(snapshot->devices.size() == 2);
}

TEST_CASE("A tenant's user and a stranger command nothing") {
  Server server;
  for (const char* line :
       {R"({"command":"reload"})", R"({"command":"end","session":3})",
        R"({"command":"revoked","directory":"/etc/gpuwire/identity","tenant":"bob","identity":"12ab"})"}) {
    CHECK(server.ask(line, kAlice)["ok"] == false);
    CHECK(server.ask(line, kStranger)["ok"] == false);
  }
  CHECK(server.ask(R"({"command":"snapshot"})", kStranger)["ok"] == false);
  CHECK(answer_request(R"({"command":"watch"})", kStranger, server.sources).watch_interval_ms == 0);
  CHECK(server.done.empty());
}

TEST_CASE("Ending a session or a tenant's sessions is done, told and audited") {
  Server server;
  CHECK(server.ask(R"({"command":"end","session":3,"reason":"maintenance"})")["ended"] == 1);
  CHECK(server.ask(R"({"command":"end","tenant":"bob"})")["ended"] == 2);
  REQUIRE(server.done.size() == 4);
  CHECK(server.done[0] == "end 3: maintenance");
  CHECK(server.done[1] == R"(audit end_asked {"by_uid":0,"by_pid":1,"session":3,"reason":"maintenance"})");
  CHECK(server.done[2] == "end tenant bob: ended by the administrator");
}

TEST_CASE("Ending what is not there, or both or neither, is an error") {
  Server server;
  for (const char* line :
       {R"({"command":"end","session":77})", R"({"command":"end"})", R"({"command":"end","session":3,"tenant":"bob"})",
        R"({"command":"end","session":-3})", R"({"command":"end","session":"3"})", R"({"command":"end","tenant":5})"})
    CHECK(server.ask(line)["ok"] == false);
}

TEST_CASE("A reason cannot carry control characters to a client's terminal, nor more than its bound") {
  Server server;
  server.ask(R"({"command":"end","session":3,"reason":"x\u001b[2J\n)" + std::string(3000, 'y') + "\"}");
  REQUIRE_FALSE(server.done.empty());
  CHECK(server.done[0].starts_with("end 3: x\\x1b[2J\\x0ayyy"));
  CHECK(server.done[0].size() <= kControlReasonBytesMax + 8);
}

TEST_CASE("A revocation is noted with who has done it and how many sessions end, by a server that uses the identity") {
  Server server;
  CHECK(server.ask(
            R"({"command":"revoked","directory":"/etc/gpuwire/identity","tenant":"bob","identity":"12ab"})")["ended"] ==
        2);
  CHECK(
      server.ask(R"({"command":"revoked","directory":"/home/carl/identity","tenant":"bob","identity":"12ab"})")["ok"] ==
      false);
  CHECK(server.ask(R"({"command":"revoked","directory":"/etc/gpuwire/identity","tenant":"bob"})")["ok"] == false);
  REQUIRE(server.done.size() == 1);
  CHECK(server.done[0] == R"(audit revoked {"by_uid":0,"by_pid":1,"tenant":"bob","identity":"12ab","sessions":2})");
}

TEST_CASE("A drain is told with the GPU's sessions, and audited where it changes something") {
  Server server;
  CHECK(server.ask(R"({"command":"drain","gpu":0})")["error"] == "this server cannot drain GPUs");
  bool drained = false;
  auto answer = [&](bool now) {
    return GpuDrain{.drained = now,
                    .changed = std::exchange(drained, now) != now,
                    .sessions = {{3, false, "its program\nworks"}, {4, true, "suspended, 5 MiB"}}};
  };
  using Result = tl::expected<GpuDrain, std::string>;
  server.sources.drain = [&](uint64_t gpu) { return gpu ? Result(tl::unexpect, "there is no GPU 1") : answer(true); };
  server.sources.undrain = [&](uint64_t) { return Result(answer(false)); };
  server.sources.drain_of = [&](uint64_t) { return Result(answer(drained)); };
  CHECK(server.ask(R"({"command":"drain_of","gpu":0})")["drained"] == false);
  const Json begun = server.ask(R"({"command":"drain","gpu":0})");
  CHECK(begun["drained"] == true);
  CHECK(begun["changed"] == true);
  CHECK(begun["sessions"] == Json::parse(R"([{"session":3,"away":false,"text":"its program\\x0aworks"},)"
                                         R"({"session":4,"away":true,"text":"suspended, 5 MiB"}])"));
  CHECK(server.ask(R"({"command":"drain","gpu":0})")["changed"] == false);
  CHECK(server.ask(R"({"command":"drain_of","gpu":0})")["drained"] == true);
  CHECK(server.ask(R"({"command":"undrain","gpu":0})")["drained"] == false);
  CHECK(server.ask(R"({"command":"drain","gpu":1})")["error"] == "there is no GPU 1");
  CHECK(server.ask(R"({"command":"drain"})")["error"] == "drain needs a GPU's number");
  for (const char* line : {R"({"command":"drain","gpu":0})", R"({"command":"undrain","gpu":0})"})
    CHECK(server.ask(line, kAlice)["ok"] == false);
  CHECK(server.done == std::vector<std::string>{R"(audit drain_asked {"by_uid":0,"by_pid":1,"gpu":0,"sessions":2})",
                                                R"(audit undrain_asked {"by_uid":0,"by_pid":1,"gpu":0,"sessions":2})"});
}

TEST_CASE("To end the sessions of a tenant that there is not is an error that names it") {
  Server server;
  Json answer = server.ask(R"({"command":"end","tenant":"nobody"})");
  CHECK(answer["ok"] == false);
  CHECK(answer["error"] == "this server has no tenant \"nobody\"");
  CHECK(server.done.empty());
}

TEST_CASE("A reload that would lose sessions is confirmed by a word") {
  Server server;
  server.sources.reload = [](bool confirmed) -> tl::expected<std::string, ReloadRefused> {
    if (confirmed) return "carl is gone";
    return tl::unexpected(ReloadRefused{"carl has sessions", {}});
  };
  for (const char* line : {R"({"command":"reload"})", R"({"command":"reload","yes":false})",
                           R"({"command":"reload","yes":1})", R"({"command":"reload","yes":"true"})"})
    CHECK(server.ask(line)["error"] == "carl has sessions");
  CHECK(server.ask(R"({"command":"reload","yes":true})")["changed"] == "carl is gone");
}

TEST_CASE("A reload that finds mistakes tells all of them") {
  Server server;
  CHECK(server.ask(R"({"command":"reload"})")["changed"] == "1 tenant added");
  server.sources.reload = [](bool) -> tl::expected<std::string, ReloadRefused> {
    return tl::unexpected(ReloadRefused{"it has mistakes", {"f:1: a", "f:2: b"}});
  };
  Json answer = server.ask(R"({"command":"reload"})");
  CHECK(answer["ok"] == false);
  CHECK(answer["errors"] == Json::array({"f:1: a", "f:2: b"}));
  CHECK(answer["error"] == "it has mistakes");
  server.sources.reload = nullptr;
  CHECK(server.ask(R"({"command":"reload"})")["ok"] == false);
}

TEST_CASE("A message that is no request is answered with an error") {
  Server server;
  for (const std::string& line :
       {std::string(), std::string("hello"), std::string("[]"), std::string("{}"), std::string(R"({"command":5})"),
        std::string(R"({"command":"fly"})"), std::string(2000, '['), std::string("{\"command\":\"snap\xff\"}"),
        std::string("{\"a\":") + std::string(1500, '[')})
    CHECK(server.ask(line)["ok"] == false);
}

TEST_CASE("A watch's interval has bounds") {
  Server server;
  CHECK(answer_request(R"({"command":"watch"})", kRoot, server.sources).watch_interval_ms == kWatchIntervalMs);
  CHECK(answer_request(R"({"command":"watch","interval_ms":100})", kRoot, server.sources).watch_interval_ms == 100);
  for (const char* interval : {"0", "99", "3600001", "-5", "\"x\"", "1e30", "18446744073709551615"}) {
    auto answer =
        answer_request(std::string(R"({"command":"watch","interval_ms":)") + interval + "}", kRoot, server.sources);
    CHECK(answer.watch_interval_ms == 0);
    CHECK(answer.json["ok"] == false);
  }
}

TEST_CASE("More sessions than are shown are counted") {
  Server server;
  server.sources.snapshot = [] {
    Snapshot many;
    many.sessions.resize(kSessionsShownMax + 5);
    return many;
  };
  auto snapshot = snapshot_from_json(server.ask(R"({"command":"snapshot"})")["snapshot"]);
  REQUIRE(snapshot);
  CHECK(snapshot->sessions.size() == kSessionsShownMax);
  CHECK(snapshot->server.sessions_left_out == 5);
}
