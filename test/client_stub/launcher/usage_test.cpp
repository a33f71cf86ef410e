#include <doctest/doctest.h>

#include "protocol/wire/questions.hpp"
#include "test/client_stub/launcher/installation.hpp"
#include "test/client_stub/session/login_server.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

TEST_CASE("a server that is too old to show usage by user, or since a day, is named as such, and shows nothing else") {
  struct Row {
    std::vector<std::string> options;
    const char *query, *error;
  };
  constexpr const char* kByUser =
      "the server's release is too old to show usage by user; without --by user it shows the whole tenant's";
  constexpr const char* kSince =
      "the server's release is too old to show usage since a day; without --since it shows every day";
  Installation here;
  here.link_library();
  for (const Row& row : {Row{{"--by", "user"}, "usage-by-user text", kByUser},
                         Row{{"--by", "user", "--json"}, "usage-by-user json", kByUser},
                         Row{{"--by", "user", "--since", "2026-11-01"}, "usage-by-user text 2026-11-01", kByUser},
                         Row{{"--since", "2026-11-01", "--csv"}, "usage-since csv 2026-11-01", kSince}}) {
    LoginServer server(LoginServer::Options{},
                       [](LoginServer& own) { own.refuse(std::string(wire::kUnknownQuestion)); });
    const std::string address = "127.0.0.1:" + server.port();
    std::vector<std::string> words{"usage", "--server", address};
    words.insert(words.end(), row.options.begin(), row.options.end());
    const Outcome outcome = here.start(words);
    CHECK(server.seen().query == row.query);
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.out.empty());
    CHECK(outcome.err == "gpuwire usage: " + address + ": " + row.error + "\n");
  }
}
