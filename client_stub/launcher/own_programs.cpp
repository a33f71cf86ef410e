#include "client_stub/launcher/own_programs.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "client_stub/session/ask.hpp"
#include "client_stub/session/printable.hpp"
#include "protocol/units/json.hpp"

namespace gpuwire::launcher {
namespace {

std::string text_of(const nlohmann::json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? client::printable(found->get<std::string>()) : std::string();
}

// Returns the caller's user of the tenant; empty: no particular user, who may end all of the tenant's programs.
tl::expected<std::string, std::string> own_user(const std::string& server) {
  std::string answer, error;
  if (client::ask_server(server, "me json", answer, error) != CUDA_SUCCESS) return tl::unexpected(error);
  const auto me = parse_json(answer);
  if (!me.is_object()) return tl::unexpected(server + ": the server's answer cannot be read");
  return text_of(me, "user");
}

}  // namespace

tl::expected<void, std::string> add_own_programs(const std::string& server, std::vector<OwnProgram>& programs) {
  std::string answer, error;
  const auto user = own_user(server);
  if (!user) return tl::unexpected(user.error());
  if (client::ask_server(server, "queue json", answer, error) != CUDA_SUCCESS) return tl::unexpected(error);
  const auto sessions = parse_json(answer);
  if (!sessions.is_array()) return tl::unexpected(server + ": the server's list of programs cannot be read");
  for (const auto& one : sessions) {
    if (!one.is_object() || !one.contains("id") || !one["id"].is_number_unsigned()) continue;
    if (!user->empty() && text_of(one, "user") != *user) continue;
    programs.push_back({.server = server,
                        .session = one["id"].get<uint64_t>(),
                        .name = text_of(one, "program"),
                        .host = text_of(one, "host"),
                        .state = text_of(one, "state"),
                        .suspension = text_of(one, "suspension")});
  }
  return {};
}

tl::expected<std::vector<OwnProgram>, std::string> chosen_programs(const std::vector<OwnProgram>& programs,
                                                                   std::span<const uint64_t> sessions,
                                                                   std::string_view verb) {
  std::vector<OwnProgram> found;
  for (uint64_t session : sessions) {
    std::vector<OwnProgram> same;
    std::copy_if(programs.begin(), programs.end(), std::back_inserter(same),
                 [&](const OwnProgram& one) { return one.session == session; });
    if (same.empty()) return tl::unexpected(no_own_program(session, verb));
    if (same.size() > 1)
      return tl::unexpected(fmt::format("{} is at {} and at {}: name one of them with --server", session,
                                        same[0].server, same[1].server));
    found.push_back(std::move(same.front()));
  }
  return found;
}

std::string no_own_program(uint64_t session, std::string_view verb) {
  return fmt::format("no program that you may {} has the number {} (gpuwire ps shows yours)", verb, session);
}

}  // namespace gpuwire::launcher
