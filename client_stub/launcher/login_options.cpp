#include "client_stub/launcher/login_options.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

namespace gpuwire::launcher {

namespace {

constexpr std::array<std::string_view, 5> kWithValue = {"--identity", "--ca", "--token-file", "--gpus", "--memory"};
constexpr unsigned kGpusMax = 1024;

void set_file(const char* variable, const std::string& file) {
  if (!file.empty()) setenv(variable, std::filesystem::absolute(file).c_str(), 1);
}

}  // namespace

void add_login_options(CLI::App& app, LoginOptions& options, bool resources) {
  app.add_option("--identity", options.identity, "Who you are: a file with your certificate and its key")->type_name("FILE");
  app.add_option("--ca", options.authorities, "Whose signature makes a server yours: a file with the CA's certificate")->type_name("FILE");
  app.add_option("--token-file", options.token, "Who you are, where there is no certificate: a file with a token")->type_name("FILE");
  if (!resources) return;
  app.add_option("--gpus", options.gpus, "How many GPUs the program is to have")->check(CLI::Range(1u, kGpusMax));
  app.add_option("--memory", options.memory_bytes, "How much memory is to be free on each, such as 20GiB")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false));
}

bool takes_value(std::string_view word) { return std::find(kWithValue.begin(), kWithValue.end(), word) != kWithValue.end(); }

void set_environment(const LoginOptions& options) {
  set_file("GPUWIRE_IDENTITY", options.identity);
  set_file("GPUWIRE_CA", options.authorities);
  set_file("GPUWIRE_TOKEN_FILE", options.token);
  if (options.gpus) setenv("GPUWIRE_GPUS", std::to_string(options.gpus).c_str(), 1);
  if (options.memory_bytes) setenv("GPUWIRE_MEMORY", std::to_string(options.memory_bytes).c_str(), 1);
}

}  // namespace gpuwire::launcher
