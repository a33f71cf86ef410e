#include "command_line/command_line.hpp"

#include <doctest/doctest.h>

#include <iostream>
#include <sstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "command_line/description.hpp"
#include "command_line/suggestion.hpp"

using namespace gpuwire;

namespace {

// A command with an option, a choice, a hidden option, and two subcommands.
struct Sample {
  Sample() {
    app.add_option("-s,--server", server, "The server").type_name("SERVER");
    app.add_option("--sort", sort, "Which order").type_name("KEY").one_of({"gpu", "memory"}).capture_default_str();
    app.add_option("--interval", interval, "How often").between(0.1, 3600.0);
    app.add_flag("--secret-flag", secret).group("");
    app.add_subcommand("add-tenant", "Adds one").add_option("NAME", name, "Which").required();
    app.add_subcommand("revoke", "Takes one away");
    app.require_subcommand(1);
  }
  struct Outcome {
    std::optional<int> code;
    std::string out, err;
  };
  Outcome parse(std::vector<const char*> words) {
    std::ostringstream out, err;
    auto* cout = std::cout.rdbuf(out.rdbuf());
    auto* cerr = std::cerr.rdbuf(err.rdbuf());
    words.insert(words.begin(), "gpuwire-sample");
    auto code = parse_command_line(app, int(words.size()), words.data());
    std::cout.rdbuf(cout);
    std::cerr.rdbuf(cerr);
    return {code, out.str(), err.str()};
  }
  std::string server, sort = "gpu", name;
  double interval = 1;
  bool secret = false;
  CommandLine app{"A sample", "gpuwire sample"};
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a command line that is right goes on") {
  Sample sample;
  CHECK_FALSE(sample.parse({"--server", "gpu7", "add-tenant", "anna"}).code);
  CHECK(sample.server == "gpu7");
  CHECK(sample.name == "anna");
}

TEST_CASE("the version and the help are no mistakes") {
  auto version = Sample().parse({"--version"});
  CHECK(version.code == 0);
  CHECK(version.out == "gpuwire " GPUWIRE_VERSION "\n");
  CHECK(Sample().parse({"--help"}).code == 0);
  CHECK(Sample().parse({"add-tenant", "--help"}).code == 0);
}

TEST_CASE("a misspelt command or option is told with the one that was meant") {
  auto command = Sample().parse({"addtenant", "anna"});
  CHECK(command.code == kUsageError);
  CHECK(command.err ==
        "gpuwire sample: \"addtenant\" is not known; did you mean add-tenant?\n`gpuwire sample --help` describes the "
        "usage\n");
  CHECK(has(Sample().parse({"--sever", "gpu7", "revoke"}).err, "did you mean --server?"));
  CHECK(has(Sample().parse({"--sever=gpu7", "revoke"}).err, "did you mean --server?"));
  auto nothing_like_it = Sample().parse({"fly"});
  CHECK(nothing_like_it.code == kUsageError);
  CHECK(has(nothing_like_it.err, "gpuwire sample: the command must be add-tenant or revoke, got fly\n"));
}

TEST_CASE("a command line without a command gets the list of commands") {
  auto outcome = Sample().parse({});
  CHECK(outcome.code == kUsageError);
  CHECK(has(outcome.err, "gpuwire sample: the command must be add-tenant or revoke\n"));
}

TEST_CASE("the bounds of a number are told without zeros that say nothing") {
  CHECK(has(Sample().parse({"--interval", "0", "revoke"}).err, "--interval must be from 0.1 to 3600, got 0\n"));
}

TEST_CASE("a value that is none is refused with what it must be") {
  CHECK(has(Sample().parse({"--interval", "soon", "revoke"}).err, "--interval must be from 0.1 to 3600, got soon\n"));
  CHECK(has(Sample().parse({"--sort", "size", "revoke"}).err, "--sort must be gpu or memory, got size\n"));
}

TEST_CASE("a mistake in a subcommand points to the subcommand's help") {
  auto outcome = Sample().parse({"add-tenant"});
  CHECK(outcome.code == kUsageError);
  CHECK(has(outcome.err, "gpuwire sample: NAME is required"));
  CHECK(has(outcome.err, "`gpuwire sample add-tenant --help`"));
  CHECK(has(Sample().parse({"add-tenant", "anna", "--hepl"}).err, "did you mean --help?"));
}

TEST_CASE("words are near when few edits lie between, or when one begins the other") {
  std::vector<std::string> commands{"init", "add-tenant", "revoke", "renew", "list"};
  CHECK(nearest("addtenant", commands) == "add-tenant");
  CHECK(nearest("revoek", commands) == "revoke");
  CHECK(nearest("add", commands) == "add-tenant");
  CHECK(nearest("lsit", commands) == "list");
  CHECK(nearest("frobnicate", commands).empty());
  CHECK(nearest("", {}).empty());
}

TEST_CASE("a command describes its options, choices and subcommands, and nothing that is hidden") {
  Sample sample;
  auto described = nlohmann::json::parse(describe(sample.app));
  CHECK(described["name"] == "gpuwire sample");
  CHECK(described["commands"].size() == 2);
  CHECK(described["commands"][0]["positionals"][0]["names"][0] == "NAME");
  std::string text = described.dump();
  CHECK_FALSE(has(text, "secret-flag"));
  for (const auto& option : described["options"]) {
    if (option["names"][0] == "-s") CHECK(option["value"] == "SERVER");
    if (option["names"][0] == "--sort") {
      CHECK(option["values"] == nlohmann::json({"gpu", "memory"}));
      CHECK(option["default"] == "gpu");
    }
    if (option["names"].back() == "--help") CHECK_FALSE(option.contains("value"));
  }
}
