#include <doctest/doctest.h>

#include "test/client_stub/launcher/installation.hpp"

using namespace gpuwire::test;

TEST_CASE("gpuwire lists the commands that are installed") {
  Installation here;
  auto help = here.start({"--help"});
  CHECK(help.exit_code == 0);
  CHECK(has(help.out, "  run "));
  CHECK(has(help.out, "  info "));
  CHECK_FALSE(has(help.out, "serve "));
  CHECK(here.start({"--version"}).out == "gpuwire " GPUWIRE_VERSION "\n");
  CHECK(here.start({}).exit_code == 2);
  for (const char* command : {"run", "info", "env", "shell"}) {
    auto manual = here.start({command, "--help"});
    CHECK(manual.exit_code == 0);
    CHECK(has(manual.out, "GPUWIRE_SERVER"));
    CHECK(has(manual.out, "Exit code"));
    CHECK(manual.err.empty());
  }
}

TEST_CASE("a command that does not exist is named") {
  Installation here;
  auto outcome = here.start({"fly"});
  CHECK(outcome.exit_code == 2);
  CHECK(has(outcome.err, "there is no command \"fly\""));
  CHECK(has(here.start({"rnu", "--", "true"}).err, "did you mean run?"));
}

TEST_CASE("the release and a command's help are found under the names that people try") {
  Installation here;
  CHECK(here.start({"-v"}).out == here.start({"--version"}).out);
  CHECK(has(here.start({"-v"}).out, "gpuwire "));
  CHECK(here.start({"run", "-v"}).out == here.start({"run", "--version"}).out);
  CHECK(here.start({"help", "run"}).out == here.start({"run", "--help"}).out);
  CHECK(here.start({"help"}).out == here.start({"--help"}).out);
  CHECK(here.start({"help", "fly"}).exit_code == 2);
}

TEST_CASE("top and usage are in the client's help, and show the server that the environment names") {
  Installation here;
  auto program = [&](const char* name, const char* says) {
    const fs::path path = here.root / "lib/gpuwire/commands" / name;
    std::ofstream(path) << "#!/bin/sh\necho " << says << "\n";
    chmod(path.c_str(), 0755);
  };
  program("gpuwire-tenant-top", "tenant");
  program("gpuwire-tenant-usage", "tenant");
  CHECK(has(here.start({"--help"}).out, "\n  top "));
  CHECK(has(here.start({"--help"}).out, "\n  usage "));
  CHECK(here.start({"top"}).out == "tenant\n");
  program("gpuwire-top", "server");
  CHECK(here.start({"top"}).out == "server\n");
  CHECK(here.start({"top", "--server", "x"}).out == "tenant\n");
  CHECK(here.start({"top"}, {{"GPUWIRE_SERVER", "x:1"}}).out == "tenant\n");
  CHECK(here.start({"top"}, {{"GPUWIRE_USE", "lab"}}).out == "tenant\n");
  CHECK(here.start({"top", "--control", "/run/x"}, {{"GPUWIRE_SERVER", "x:1"}}).out == "server\n");
  CHECK(here.start({"top"}, {{"GPUWIRE_SERVER", "x:1"}, {"GPUWIRE_CONTROL", "/run/x"}}).out == "server\n");
}

TEST_CASE("env has the names of the shells whose commands are those of sh") {
  Installation here;
  const std::string sh = here.start({"env", "-s", "x:1"}).out;
  CHECK(has(sh, "export GPUWIRE_SERVER='x:1';"));
  for (const char* shell : {"bash", "zsh"}) CHECK(here.start({"env", "-s", "x:1", "--shell", shell}).out == sh);
}

TEST_CASE("a command of a server is said to be one where no server is installed") {
  Installation here;
  for (const char* command : {"status", "admin", "serve", "worker"}) {
    auto of_servers = here.start({command});
    CHECK(of_servers.exit_code == 2);
    CHECK(has(of_servers.err, std::string("\"") + command + "\" is part of the package gpuwire-server"));
  }
}

TEST_CASE("the other name of queue is in the help, and is suggested") {
  Installation here;
  const fs::path info = here.root / "lib/gpuwire/commands/gpuwire-info";
  fs::remove(info);  // without it there is no queue either
  CHECK_FALSE(has(here.start({"--help"}).out, "\n  ps "));
  const fs::path queue = here.root / "lib/gpuwire/commands/gpuwire-queue";
  std::ofstream(queue) << "#!/bin/sh\necho queue\n";
  chmod(queue.c_str(), 0755);
  CHECK(has(here.start({"--help"}).out, "\n  ps         the same as queue\n"));
  CHECK(here.start({"ps"}).out == "queue\n");
  CHECK(here.start({"help", "ps"}).out == "queue\n");
  CHECK(has(here.start({"pss"}).err, "did you mean ps?"));
}

TEST_CASE("a command of a server that may not be executed is not said to be missing") {
  Installation here;
  const fs::path serve = here.root / "lib/gpuwire/commands/gpuwire-serve";
  std::ofstream(serve) << "#!/bin/sh\necho serves\n";
  chmod(serve.c_str(), 0644);
  const Outcome forbidden = here.start({"serve"});
  CHECK(forbidden.exit_code == 126);
  CHECK(forbidden.err == "gpuwire: cannot start " + serve.string() + ": Permission denied\n");
  chmod(serve.c_str(), 0755);
  CHECK(here.start({"serve"}).out == "serves\n");
}

TEST_CASE("the program finds the stub folder first and the options in its environment") {
  Installation here;
  std::string stubs = fs::canonical(here.root / "lib/gpuwire");
  auto print = here.script("#!/bin/sh\necho \"$LD_LIBRARY_PATH|$GPUWIRE_SERVER|$GPUWIRE_TRACE|$GPUWIRE_STATS|$*\"\n");
  CHECK(here.start({"run", "--server", "gpu7:9750", "--", print, "--server", "x y"}).out ==
        stubs + "|gpu7:9750|||--server x y\n");
  CHECK(
      here.start({"run", "-s", "gpu7", "--trace", "/tmp/t", "--stats", print}, {{"LD_LIBRARY_PATH", "/opt/lib"}}).out ==
      stubs + ":/opt/lib|gpu7|/tmp/t|1|\n");
  CHECK(here.start({"run", "-s", "gpu7", "--stats=calls", print, "summary"}).out == stubs + "|gpu7||calls|summary\n");
  CHECK(here.start({"run", "-s", "gpu7", "--stats=why", print}).out == stubs + "|gpu7||why|\n");
  CHECK(here.start({"run", "-s", "gpu7", "--stats=everything", print}).exit_code == 2);
  CHECK(here.start({"run", "--", print}, {{"GPUWIRE_SERVER", "env:1"}}).out == stubs + "|env:1|||\n");
  CHECK(here.start({"run", "--server=opt:2", print, "-h"}, {{"GPUWIRE_SERVER", "env:1"}}).out ==
        stubs + "|opt:2|||-h\n");
}

TEST_CASE("the program finds gpuwire's nvidia-smi first, and everything else where it was") {
  Installation here;
  std::string tools = fs::canonical(here.root / "lib/gpuwire").string() + "/bin";
  auto print = here.script("#!/bin/sh\necho \"$PATH\"\n");
  CHECK(here.start({"run", "-s", "x:1", "--", print}, {{"PATH", "/opt/bin:/bin"}}).out == tools + ":/opt/bin:/bin\n");
  CHECK(here.start({"run", "-s", "x:1", "--", print}, {{"PATH", ""}}).out == tools + "\n");
}

TEST_CASE("a program that is started within another finds each folder once") {
  Installation here;
  std::string gpuwire = (here.root / "bin/gpuwire").string(), stubs = fs::canonical(here.root / "lib/gpuwire");
  auto print = here.script("#!/bin/sh\necho \"$LD_LIBRARY_PATH|$PATH\"\n");
  CHECK(here.start({"run", "-s", "x:1", "--", gpuwire, "run", "--", print}, {{"PATH", "/bin"}}).out ==
        stubs + "|" + stubs + "/bin:/bin\n");
}

TEST_CASE("a relative trace file is meant from where gpuwire was started") {
  Installation here;
  auto print = here.script("#!/bin/sh\necho \"$GPUWIRE_TRACE\"\n");
  CHECK(here.start({"run", "-s", "x:1", "--trace", "calls.txt", "--", print}).out ==
        fs::absolute("calls.txt").string() + "\n");
}

TEST_CASE("exit code and signals are the program's own") {
  Installation here;
  CHECK(here.start({"run", "-s", "x:1", "--", "sh", "-c", "exit 37"}).exit_code == 37);
  CHECK(here.start({"run", "-s", "x:1", "--", "sh", "-c", "kill -TERM $$"}).signal == SIGTERM);
  CHECK(here.start({"run", "-s", "x:1", "--", "true"}).exit_code == 0);
}

TEST_CASE("A missing or wrong argument is reported, with the exit codes of a shell") {
  Installation here;
  auto no_server = here.start({"run", "--", "true"});
  CHECK(no_server.exit_code == 2);
  CHECK(no_server.err ==
        "gpuwire run: no server given: use --server HOST:PORT, set GPUWIRE_SERVER, or write server = \"HOST:PORT\" "
        "into ~/.config/gpuwire/config.toml\n");
  auto no_program = here.start({"run", "-s", "x:1"});
  CHECK(no_program.exit_code == 2);
  CHECK(has(no_program.err, "no program given"));
  auto unknown = here.start({"run", "--sever", "x:1", "--", "true"});
  CHECK(unknown.exit_code == 2);
  CHECK(has(unknown.err, "--sever"));
  auto not_found = here.start({"run", "-s", "x:1", "--", "no-such-program"});
  CHECK(not_found.exit_code == 127);
  CHECK(not_found.err == "gpuwire run: no-such-program: no such program\n");
  auto folder = here.start({"run", "-s", "x:1", "--", here.root.string()});
  CHECK(folder.exit_code == 126);
  CHECK(has(folder.err, "Permission denied"));
  auto no_interpreter = here.start({"run", "-s", "x:1", "--", here.script("#!/no/such/interpreter\n")});
  CHECK(no_interpreter.exit_code == 127);
  CHECK(has(no_interpreter.err, "interpreter"));
  fs::remove(here.root / "lib/gpuwire/libcuda.so.1");
  auto incomplete = here.start({"run", "-s", "x:1", "--", "true"});
  CHECK(incomplete.exit_code == 126);
  CHECK(has(incomplete.err, "libcuda.so.1 is missing"));
}

TEST_CASE("info without a server that answers is one line and exit code 1") {
  Installation here;
  auto incomplete = here.start({"info", "--server", "127.0.0.1:1"});
  CHECK(incomplete.exit_code == 1);
  CHECK(has(incomplete.err, "gpuwire info: "));
  CHECK(has(incomplete.err, "libcuda.so.1"));
  here.link_library();
  auto nobody = here.start({"info", "--server", "127.0.0.1:1"});
  CHECK(nobody.exit_code == 1);
  CHECK(nobody.out.empty());
  CHECK(nobody.err == "gpuwire info: 127.0.0.1:1: connection refused (is a gpuwire server running there?)\n");
  CHECK(here.start({"info"}).exit_code == 2);
  CHECK(here.start({"info", "--megabytes", "0", "-s", "x"}).exit_code == 2);
}
