#include "server/cli/admin_server.hpp"

#include <cstdlib>

#include <fmt/format.h>

#include "server/control/view/metrics_view.hpp"
#include "server/control/client/control_client.hpp"
#include "server/control/client/limits.hpp"
#include "server/control/client/socket_path.hpp"

namespace gpuwire::server {
namespace {

tl::expected<ControlClient, std::string> connect(const std::string& control) {
  return find_control_socket(control).and_then(
      [](const std::filesystem::path& path) { return ControlClient::connect(path); });
}

tl::expected<Json, std::string> ask(const std::string& control, const Json& request) {
  return connect(control).and_then([&](ControlClient client) { return client.ask(request); });
}

tl::expected<std::string, std::string> end(const std::string& control, Json request, const std::string& reason) {
  if (!reason.empty()) request["reason"] = reason;
  return ask(control, request).map([](const Json& answer) {
    auto ended = answer.value("ended", uint64_t(0));
    return fmt::format("{} session{} told to end\n", ended, ended == 1 ? " was" : "s were");
  });
}

tl::expected<RunningServer::Moves, std::string> move_memory(const std::string& control, const char* command,
                                                            std::optional<uint64_t> session,
                                                            const std::string& tenant) {
  Json request{{"command", command}};
  if (session) request["session"] = *session;
  else request["tenant"] = tenant;
  return connect(control)
      .and_then([&](ControlClient client) { return client.ask(request, kControlLaterMs); })
      .map([](const Json& answer) {
        RunningServer::Moves moves;
        for (const Json& one : answer.value("sessions", Json::array())) {
          const bool done = one.value("done", false);
          moves.text += fmt::format("session {}: {}{}\n", one.value("session", uint64_t(0)),
                                    done ? "" : "not done: ", one.value("text", std::string()));
          moves.all = moves.all && done;
        }
        if (moves.text.empty()) moves.text = "no session\n";
        return moves;
      });
}

tl::expected<RunningServer::Drain, std::string> change_drain(const std::string& control, const char* command,
                                                             unsigned gpu) {
  return ask(control, {{"command", command}, {"gpu", gpu}}).map([](const Json& answer) {
    RunningServer::Drain drain{
        .drained = answer.value("drained", false), .changed = answer.value("changed", false), .sessions = {}};
    for (const Json& one : answer.value("sessions", Json::array()))
      drain.sessions.push_back(
          {one.value("session", uint64_t(0)), one.value("away", false), one.value("text", std::string())});
    return drain;
  });
}

}  // namespace

tl::expected<std::string, std::string> RunningServer::sessions(bool json) const {
  return connect(control)
      .and_then([](ControlClient client) { return client.snapshot(); })
      .map([&](const Snapshot& snapshot) {
        if (json) return to_json(snapshot).at("sessions").dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
        std::string text;
        for (const std::string& line : session_lines(snapshot, 0)) text += line + "\n";
        return text.empty() ? std::string("no session\n") : text.substr(1);
      });
}

tl::expected<std::string, std::string> RunningServer::end_session(uint64_t session, const std::string& reason) const {
  return end(control, {{"command", "end"}, {"session", session}}, reason);
}

tl::expected<std::string, std::string> RunningServer::end_tenant(const std::string& tenant,
                                                                 const std::string& reason) const {
  return end(control, {{"command", "end"}, {"tenant", tenant}}, reason);
}

tl::expected<RunningServer::Moves, std::string> RunningServer::suspend(std::optional<uint64_t> session,
                                                                       const std::string& tenant) const {
  return move_memory(control, "suspend", session, tenant);
}

tl::expected<RunningServer::Moves, std::string> RunningServer::resume(std::optional<uint64_t> session,
                                                                      const std::string& tenant) const {
  return move_memory(control, "resume", session, tenant);
}

tl::expected<RunningServer::Drain, std::string> RunningServer::drain(unsigned gpu) const {
  return change_drain(control, "drain", gpu);
}

tl::expected<RunningServer::Drain, std::string> RunningServer::undrain(unsigned gpu) const {
  return change_drain(control, "undrain", gpu);
}

tl::expected<RunningServer::Drain, std::string> RunningServer::drain_of(unsigned gpu) const {
  return change_drain(control, "drain_of", gpu);
}

tl::expected<std::string, std::string> RunningServer::reload(bool yes) const {
  return ask(control, {{"command", "reload"}, {"yes", yes}}).map([](const Json& answer) {
    return answer.value("changed", std::string()) + "\n";
  });
}

tl::expected<std::string, std::string> RunningServer::web_code() const {
  return ask(control, {{"command", "web_code"}}).map([](const Json& answer) {
    return fmt::format("{}\n\nSigns an administrator in at {}, once, within {} minutes.\n",
                       answer.value("code", std::string()), answer.value("url", std::string()),
                       answer.value("seconds", uint64_t(0)) / 60);
  });
}

tl::expected<void, std::string> RunningServer::note_revocation(const std::filesystem::path& directory,
                                                               const std::string& tenant,
                                                               const std::string& identity) const {
  std::error_code error;
  auto canonical = std::filesystem::weakly_canonical(directory, error);
  const Json request{
      {"command", "revoked"}, {"directory", canonical.string()}, {"tenant", tenant}, {"identity", identity}};
  const char* variable = std::getenv(kControlVariable);
  if (!control.empty() || (variable && *variable)) return ask(control, request).map([](const Json&) {});
  // Some servers on this machine use the folder; the others answer that they use another folder.
  for (const std::filesystem::path& socket : running_control_sockets())
    static_cast<void>(ask(socket.string(), request));
  return {};
}

}  // namespace gpuwire::server
