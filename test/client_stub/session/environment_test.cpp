#include "client_stub/session/environment.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string_view>

#include <doctest/doctest.h>

#include "test/support/temporary_directory.hpp"

using gpuwire::client::keep_settings;
using gpuwire::client::setting;

namespace {

constexpr const char* kName = "GPUWIRE_SETTING_OF_A_TEST";

bool is(const char* value, std::string_view wanted) { return value && wanted == value; }

// Runs the check in a process of its own, whose environment no other thread reads.
bool holds(const std::function<bool()>& condition) {
  const pid_t child = fork();
  if (child == 0) _exit(condition() ? 0 : 1);
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("a setting that the environment has no more is as it was when settings were kept") {
  CHECK(holds([] {
    setenv(kName, "kept", 1);
    keep_settings();
    clearenv();
    return is(setting(kName), "kept");
  }));
}

TEST_CASE("a variable of the environment counts, also if it is empty") {
  CHECK(holds([] {
    setenv(kName, "kept", 1);
    keep_settings();
    setenv(kName, "later", 1);
    const bool later = is(setting(kName), "later");
    setenv(kName, "", 1);
    return later && is(setting(kName), "");
  }));
}

TEST_CASE("settings that are gone before they could be kept are as they were when the program began") {
  const char* home = std::getenv("HOME");
  if (!home) return;
  CHECK(holds([wanted = std::string_view(home)] {
    clearenv();
    keep_settings();
    return is(setting("HOME"), wanted);
  }));
}

TEST_CASE("variables that are no settings, and settings where none are kept, are the environment's alone") {
  CHECK(holds([] {
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    setenv(kName, "kept", 1);
    unsetenv(kName);
    const bool unknown = !setting(kName) && is(setting("CUDA_VISIBLE_DEVICES"), "0");
    keep_settings();
    clearenv();
    return unknown && !setting("CUDA_VISIBLE_DEVICES") && !setting(kName);
  }));
}

TEST_CASE("the attached settings are those of a program that has no server, and all of them or none") {
  const gpuwire::test::TemporaryDirectory folder;
  const std::string file = folder.path() / "attached.env";
  std::ofstream(file) << "# Written by a test = nothing\nGPUWIRE_SERVER=gpu7:9750\nGPUWIRE_GPUS=2\nHOME=/nowhere\n";
  CHECK(holds([&] {
    unsetenv("GPUWIRE_SERVER");
    setenv("GPUWIRE_GPUS", "3", 1);
    keep_settings(file.c_str());
    const bool own_first = is(setting("GPUWIRE_SERVER"), "gpu7:9750") && is(setting("GPUWIRE_GPUS"), "3");
    const bool home = !is(setting("HOME"), "/nowhere");
    setenv("GPUWIRE_SERVER", "", 1);
    unsetenv("GPUWIRE_GPUS");
    return own_first && home && is(setting("GPUWIRE_SERVER"), "");
  }));
  CHECK(holds([&] {
    setenv("GPUWIRE_SERVER", "gpu1:9750", 1);
    unsetenv("GPUWIRE_GPUS");
    keep_settings(file.c_str());
    return is(setting("GPUWIRE_SERVER"), "gpu1:9750") && !setting("GPUWIRE_GPUS");
  }));
  CHECK(holds([&] {
    unsetenv("GPUWIRE_SERVER");
    keep_settings((file + ".missing").c_str());
    return !setting("GPUWIRE_SERVER");
  }));
}
