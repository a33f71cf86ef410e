// The precedence of settings of server, identity and resources: options, profiles, the environment, the two
// configuration files.
#include <doctest/doctest.h>

#include "test/client_stub/launcher/installation.hpp"

using namespace gpuwire::test;

namespace {

constexpr const char* kUserFile = "home/.config/gpuwire/config.toml";
constexpr const char* kSystemFile = "etc/gpuwire/client.toml";

// A program's view of the settings.
struct Seen : Installation {
  std::string print = script("#!/bin/sh\necho \"$GPUWIRE_SERVER|$GPUWIRE_GPUS|$GPUWIRE_MEMORY|$GPUWIRE_IDENTITY\"\n");
  std::string run(std::vector<std::string> options,
                  std::vector<std::pair<const char*, const char*>> environment = {}) const {
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"--", print});
    Outcome outcome = start(options, environment);
    return outcome.out + outcome.err;
  }
};

}  // namespace

TEST_CASE("without an option the environment has the word, then the user's file, then the system's") {
  Seen seen;
  seen.write(kSystemFile, "server = \"system:1\"\ngpus = 2\nmemory = \"1GiB\"\n");
  CHECK(seen.run({}) == "system:1|2|1073741824B|\n");
  seen.write(kUserFile, "server = \"user:1\"\ngpus = 3\n");
  CHECK(seen.run({}) == "user:1|3|1073741824B|\n");
  CHECK(seen.run({}, {{"GPUWIRE_SERVER", "environment:1"}}) == "environment:1|3|1073741824B|\n");
  CHECK(seen.run({"--server", "option:1", "--gpus", "4"}, {{"GPUWIRE_SERVER", "environment:1"}}) ==
        "option:1|4|1073741824B|\n");
}

TEST_CASE("a profile that an option names comes before the environment, the usual one behind it") {
  Seen seen;
  seen.write(kUserFile,
             "server = \"user:1\"\nprofile = \"small\"\n[profiles.small]\ngpus = 1\n[profiles.big]\nserver = "
             "\"big:1\"\ngpus = 8\n");
  CHECK(seen.run({}) == "user:1|1||\n");
  CHECK(seen.run({"--use", "big"}) == "big:1|8||\n");
  CHECK(seen.run({"--use", "big"}, {{"GPUWIRE_SERVER", "environment:1"}}) == "big:1|8||\n");
  CHECK(seen.run({}, {{"GPUWIRE_USE", "big"}, {"GPUWIRE_SERVER", "environment:1"}}) == "environment:1|8||\n");
  CHECK(seen.run({"--use", "big", "--gpus", "2"}) == "big:1|2||\n");
}

TEST_CASE("a size without a unit is refused, and the option is named once") {
  Seen seen;
  CHECK(seen.run({"--memory", "20"}).starts_with("gpuwire run: --memory: \"20\" is not a size"));
}

TEST_CASE("the progress of copies is shown unless somebody does not want it") {
  Seen seen;
  seen.print = seen.script("#!/bin/sh\necho \"$GPUWIRE_PROGRESS\"\n");
  seen.write(kUserFile, "server = \"x:1\"\n");
  CHECK(seen.run({}) == "\n");
  CHECK(seen.run({"--no-progress"}) == "off\n");
  seen.write(kUserFile, "server = \"x:1\"\nprogress = false\n");
  CHECK(seen.run({}) == "off\n");
  CHECK(seen.run({}, {{"GPUWIRE_PROGRESS", "on"}}) == "on\n");
  CHECK(seen.run({"--no-progress"}, {{"GPUWIRE_PROGRESS", "on"}}) == "off\n");
  seen.write(kUserFile, "server = \"x:1\"\nprogress = \"no\"\n");
  CHECK(seen.run({}).find("config.toml:2: progress must be true or false") != std::string::npos);
}

TEST_CASE("the transport is chosen like everything else, and only one that there is") {
  Seen seen;
  seen.print = seen.script("#!/bin/sh\necho \"$GPUWIRE_TRANSPORT\"\n");
  seen.write(kUserFile, "server = \"unix:/run/gpuwire.sock\"\ntransport = \"tcp\"\n");
  CHECK(seen.run({}) == "tcp\n");
  CHECK(seen.run({}, {{"GPUWIRE_TRANSPORT", "auto"}}) == "auto\n");
  CHECK(seen.run({"--transport", "shm"}, {{"GPUWIRE_TRANSPORT", "auto"}}) == "shm\n");
  CHECK(seen.run({"--transport", "pigeon"}).find("shm") != std::string::npos);
  seen.write(kUserFile, "server = \"x:1\"\ntransport = \"pigeon\"\n");
  CHECK(seen.run({}).find("config.toml:2: transport must be auto, tcp, shm or rdma") != std::string::npos);
}

TEST_CASE("several servers are said by an option, the environment or a list in a file, of which one has the word") {
  Seen seen;
  seen.write(kSystemFile, "server = \"system:1\"\n");
  seen.write(kUserFile, "servers = [\"gpu1:1\", \"gpu2:1\"]\n[profiles.one]\nserver = \"gpu3:1\"\n");
  CHECK(seen.run({}) == "gpu1:1,gpu2:1|||\n");
  CHECK(seen.run({"--use", "one"}) == "gpu3:1|||\n");
  CHECK(seen.run({}, {{"GPUWIRE_SERVER", "a:1, b:1"}}) == "a:1, b:1|||\n");
  CHECK(seen.run({"--server", "c:1,d:1"}, {{"GPUWIRE_SERVER", "a:1"}}) == "c:1,d:1|||\n");
  CHECK(has(seen.run({"--server", "c:1,host:99999"}), "gpuwire run: host:99999: not HOST:PORT"));
  for (const char* wrong : {"servers = []\n", "servers = \"gpu1\"\n", "servers = [1]\n", "servers = [\"a,b\"]\n"}) {
    seen.write(kUserFile, wrong);
    CHECK(has(seen.run({}), "config.toml:1: servers must be a list of 1 to 32 names in quotes"));
  }
  seen.write(kUserFile, "server = \"a:1\"\nservers = [\"b:1\"]\n");
  CHECK(has(seen.run({}), "config.toml:2: either server or servers can be said, not both"));
}

TEST_CASE("a profile has a list of servers of its own, in the place of the top's") {
  Seen seen;
  seen.write(kSystemFile, "[profiles.lab]\nserver = \"old:1\"\ngpus = 2\n");
  seen.write(kUserFile, "server = \"top:1\"\n[profiles.lab]\nservers = [\"gpu1:1\", \"gpu2:1\"]\n");
  seen.print = seen.script("#!/bin/sh\necho \"$GPUWIRE_SERVER|$GPUWIRE_GPUS\"\n");
  CHECK(seen.run({}) == "top:1|\n");
  CHECK(seen.run({"--use", "lab"}) == "gpu1:1,gpu2:1|2\n");
  CHECK(seen.run({"--use", "lab"}, {{"GPUWIRE_SERVER", "a:1"}}) == "gpu1:1,gpu2:1|2\n");
  CHECK(seen.run({}, {{"GPUWIRE_USE", "lab"}}) == "gpu1:1,gpu2:1|2\n");
  CHECK(seen.run({}, {{"GPUWIRE_USE", "lab"}, {"GPUWIRE_SERVER", "a:1"}}) == "a:1|2\n");
  CHECK(seen.run({"--use", "lab", "--server", "b:1"}) == "b:1|2\n");
  seen.write(kUserFile, "profile = \"lab\"\n[profiles.lab]\nservers = [\"gpu1:1\"]\n");
  CHECK(seen.run({}) == "gpu1:1|2\n");
  seen.write(kUserFile, "[profiles.lab]\nservers = [\"a,b\"]\n");
  CHECK(has(seen.run({"--use", "lab"}), "config.toml:2: servers must be a list of 1 to 32 names in quotes"));
  seen.write(kUserFile, "[profiles.lab]\nserver = \"a:1\"\nservers = [\"b:1\"]\n");
  CHECK(has(seen.run({"--use", "lab"}), "config.toml:3: either server or servers can be said, not both"));
}

TEST_CASE("the type of GPU and whether a program waits are said like everything else") {
  Seen seen;
  seen.print = seen.script("#!/bin/sh\necho \"$GPUWIRE_GPU_TYPE|$GPUWIRE_QUEUE\"\n");
  seen.write(kUserFile, "server = \"x:1\"\n");
  CHECK(seen.run({}) == "|\n");
  CHECK(seen.run({"--gpu-type", "h200", "--no-wait"}) == "h200|off\n");
  seen.write(kUserFile, "server = \"x:1\"\ngpu_type = \"h100\"\nqueue = false\n");
  CHECK(seen.run({}) == "h100|off\n");
  CHECK(seen.run({}, {{"GPUWIRE_QUEUE", "on"}}) == "h100|on\n");
  CHECK(seen.run({"--gpu-type", "h200"}, {{"GPUWIRE_GPU_TYPE", "l4"}}) == "h200|off\n");
  CHECK(has(seen.run({"--gpu-type", std::string(65, 'x')}), "--gpu-type: must have 1 to 64 characters"));
  seen.write(kUserFile, "server = \"x:1\"\nqueue = \"no\"\n");
  CHECK(has(seen.run({}), "config.toml:2: queue must be true or false"));
}

TEST_CASE("a profile of the system's is completed by the user's of the same name") {
  Seen seen;
  seen.write(kSystemFile, "[profiles.lab]\nserver = \"lab:1\"\ngpus = 1\n");
  seen.write(kUserFile, "[profiles.lab]\ngpus = 2\n");
  CHECK(seen.run({"--use", "lab"}) == "lab:1|2||\n");
}

TEST_CASE("files of the configuration are meant from its folder, or from the home folder") {
  Seen seen;
  for (const char* file : {"home/.config/gpuwire/lab.pem", "home/lab.pem", "option.pem"}) seen.write(file, "");
  const std::string option = (seen.root / "option.pem").string();
  seen.write(kUserFile, "server = \"x:1\"\nidentity = \"lab.pem\"\n");
  CHECK(seen.run({}) == "x:1|||" + (seen.root / "home/.config/gpuwire/lab.pem").string() + "\n");
  seen.write(kUserFile, "server = \"x:1\"\nidentity = \"~/lab.pem\"\n");
  CHECK(seen.run({}) == "x:1|||" + (seen.root / "home/lab.pem").string() + "\n");
  CHECK(seen.run({"--identity", option}) == "x:1|||" + option + "\n");
}

TEST_CASE("a server that cannot be one, and a file that is not there, are told before the program runs") {
  Seen seen;
  auto refused = [&](std::vector<std::string> options, const std::string& line) {
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"--", seen.print});
    Outcome outcome = seen.start(options);
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.out.empty());
    CHECK(outcome.err == "gpuwire run: " + line + "\n");
  };
  refused({"--server", "host:99999"}, "host:99999: not HOST:PORT: \"99999\" is not a port");
  refused({"--server", "http://host"},
          "http://host: http:// is unknown (tls://HOST:PORT, tcp://HOST:PORT or unix:/PATH)");
  for (const char* option : {"--identity", "--ca", "--token-file"})
    refused({"--server", "x:1", option, "/nonexistent.pem"}, "/nonexistent.pem: No such file or directory");
  seen.write(kUserFile, "server = \"x:1\"\ntoken_file = \"/nonexistent\"\n");
  refused({}, "/nonexistent: No such file or directory");
  // The environment's variables reach the program.
  seen.write(kUserFile, "server = \"x:1\"\n");
  CHECK(seen.run({}, {{"GPUWIRE_IDENTITY", "/nonexistent"}}) == "x:1|||/nonexistent\n");
}

TEST_CASE("a mistake in a file is one line with its place, and no program runs") {
  Seen seen;
  auto said = [&](const std::string& text, std::vector<std::string> options = {}) {
    seen.write(kUserFile, text);
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"--", seen.print});
    Outcome outcome = seen.start(options);
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  std::string file = (seen.root / kUserFile).string();
  CHECK(said("server = \"x:1\"\nsevrer = \"y:1\"\n") ==
        "gpuwire run: " + file + ":2: \"sevrer\" is not a client setting\n");
  CHECK(has(said("server = 1\n"), file + ":1: server must be a string in quotes, got 1"));
  CHECK(has(said("\ngpus = 0\n"), file + ":2: gpus must be a number from 1 to 1024"));
  CHECK(has(said("memory = \"lots\"\n"), "\"lots\" is not a size"));
  CHECK(has(said("[profiles.a]\nserver = [1]\n"), file + ":2: server must be a string in quotes"));
  CHECK(has(said("server = \n"), file + ":1: "));
  CHECK(has(said("gpus = 1\nserver = \"x:1\n"), file + ":2: a quote is opened here and not closed"));
  CHECK(has(said("gpus = 1\nserver = \"\xe4:1\"\n"), file + ":2: is no UTF-8"));
  CHECK(has(said("server = \"x:1\"\n", {"--use", "none"}), "there is no profile \"none\" in " + file));
}

TEST_CASE("how long a program tries to reach its server comes from the environment or the configuration") {
  Installation seen;
  auto print = seen.script("#!/bin/sh\necho \"$GPUWIRE_CONNECT_PATIENCE\"\n");
  auto run = [&](std::vector<std::pair<const char*, const char*>> environment = {}) {
    return seen.start({"run", "--server", "x:1", "--", print}, std::move(environment)).out;
  };
  CHECK(run() == "\n");
  seen.write(kUserFile, "connect_patience = \"2min\"\n");
  CHECK(run() == "2min\n");
  CHECK(run({{"GPUWIRE_CONNECT_PATIENCE", "0s"}}) == "0s\n");
  seen.write(kUserFile, "connect_patience = \"2\"\n");
  CHECK(has(seen.start({"run", "--server", "x:1", "--", print}).err, ":1: connect_patience: \"2\" is not a duration"));
}

TEST_CASE("info asks the server of the configuration") {
  Installation here;
  here.link_library();
  here.write(kUserFile, "server = \"127.0.0.1:1\"\n");
  auto nobody = here.start({"info"});
  CHECK(nobody.exit_code == 1);
  CHECK(has(nobody.err, "127.0.0.1:1: connection refused"));
}

TEST_CASE("env prints what makes a shell's environment that of run") {
  Installation here;
  here.write(kUserFile, "server = \"user's:1\"\n");
  std::string gpuwire = (here.root / "bin/gpuwire").string();
  auto print = here.script("#!/bin/sh\necho \"$GPUWIRE_SERVER|$LD_LIBRARY_PATH|$PATH|$PYTHONPATH|$GPUWIRE_GPUS\"\n");
  auto both = here.script(
      "#!/bin/sh\n" + gpuwire +
      " run --gpus 2 -- sh -c 'echo \"$GPUWIRE_SERVER|$LD_LIBRARY_PATH|$PATH|$PYTHONPATH|$GPUWIRE_GPUS\"'\n" +
      "eval \"$(" + gpuwire +
      " env --gpus 2)\"\necho \"$GPUWIRE_SERVER|$LD_LIBRARY_PATH|$PATH|$PYTHONPATH|$GPUWIRE_GPUS\"\n");
  auto outcome =
      here.start({"run", "-s", "outer:1", "--", "env", "-u", "GPUWIRE_SERVER", "-u", "LD_LIBRARY_PATH", both});
  CHECK_MESSAGE(outcome.exit_code == 0, outcome.err);
  size_t line = outcome.out.find('\n');
  REQUIRE(line != std::string::npos);
  CHECK(has(outcome.out, "user's:1|" + fs::canonical(here.root / "lib/gpuwire").string() + "|"));
  CHECK(outcome.out.substr(0, line + 1) == outcome.out.substr(line + 1));
  CHECK(has(here.start({"env", "--shell", "fish", "-s", "a'b"}).out, "set -gx GPUWIRE_SERVER 'a\\'b';\n"));
  CHECK(has(here.start({"env", "--shell", "csh", "-s", "a!b"}).out, "setenv GPUWIRE_SERVER 'a\\!b';\n"));
  CHECK(here.start({"env", "--shell", "cmd", "-s", "x"}).exit_code == 2);
}

TEST_CASE("shell becomes the user's shell in that environment") {
  Installation here;
  auto shell = here.script("#!/bin/sh\necho \"shell of $GPUWIRE_SERVER\"\nexit 5\n");
  auto outcome = here.start({"shell", "-s", "gpu7"}, {{"SHELL", shell.c_str()}});
  CHECK(outcome.exit_code == 5);
  CHECK(outcome.out == "shell of gpu7\n");
  CHECK(here.start({"shell"}).exit_code == 2);
}
