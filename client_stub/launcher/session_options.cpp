#include "client_stub/launcher/session_options.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include <CLI/CLI.hpp>

#include "client_stub/launcher/client_configuration.hpp"
#include "client_stub/launcher/commands.hpp"
#include "protocol/units/byte_size.hpp"

namespace gpuwire::launcher {

namespace {

constexpr std::array<std::string_view, 9> kWithValue = {"-s",           "--server", "--use",    "--identity", "--ca",
                                                        "--token-file", "--gpus",   "--memory", "--transport"};

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

std::string absolute(const std::string& file) { return file.empty() ? file : std::filesystem::absolute(file).string(); }
std::string text_of(uint64_t number) { return number ? std::to_string(number) : std::string(); }

}  // namespace

void add_session_options(CLI::App& app, SessionOptions& options, bool resources) {
  app.add_option(
         "-s,--server", options.server,
         "The server: HOST[:PORT] (port 9750; with TLS, except on this machine), tls://..., tcp://... (never TLS) "
         "or unix:/PATH")
      ->type_name("SERVER");
  app.add_option("--use", options.use, "The profile of the configuration to use")->type_name("NAME");
  app.add_option("--identity", options.identity, "Who you are: a file with your certificate and its key")
      ->type_name("FILE");
  app.add_option("--ca", options.authorities,
                 "A file with the CA certificate to check the server's certificate against")
      ->type_name("FILE");
  app.add_option("--token-file", options.token, "Who you are, if you have no certificate: a file with a token")
      ->type_name("FILE");
  app.add_option("--transport", options.transport,
                 "How data travel: auto, tcp (sockets), shm (memory shared with a server on this machine, unix:/PATH), "
                 "or rdma (UCX, to a server that offers it)")
      ->type_name("TRANSPORT")
      ->check(CLI::IsMember({"auto", "tcp", "shm", "rdma"}));
  if (!resources) return;
  app.add_option("--gpus", options.gpus, "How many GPUs the program gets")
      ->type_name("N")
      ->check(CLI::Range(1u, kGpusMax));
  app.add_option("--memory", options.memory_bytes,
                 "How much memory of each GPU to reserve for the program, from its start to its end, such as 20GiB")
      ->type_name("SIZE")
      ->transform([](std::string text) {
        auto bytes = units::parse_byte_size(text);
        if (!bytes) throw CLI::ValidationError(bytes.error());
        return std::to_string(*bytes);
      });
  app.add_flag("--no-progress", options.no_progress,
               "Do not show progress on the terminal for copies and uploads that take longer than 2 s");
}

bool takes_value(std::string_view word) {
  return std::find(kWithValue.begin(), kWithValue.end(), word) != kWithValue.end();
}

tl::expected<void, std::string> set_environment(const SessionOptions& options) {
  const char* variable = std::getenv("GPUWIRE_USE");
  auto configured = read_client_configuration(configuration_files(program_folder()), !options.use.empty() ? options.use
                                                                                     : variable           ? variable
                                                                                                          : "");
  if (!configured) return tl::unexpected(configured.error());
  const ClientSettings& named = options.use.empty() ? ClientSettings{} : configured->profile;
  auto set = [&](const char* name, const std::string& option, std::string ClientSettings::*member) {
    std::string value = option;
    if (value.empty()) value = named.*member;
    if (value.empty() && is_set(name)) return;
    if (value.empty()) value = configured->profile.*member;
    if (value.empty()) value = configured->general.*member;
    if (!value.empty()) setenv(name, value.c_str(), 1);
  };
  set("GPUWIRE_SERVER", options.server, &ClientSettings::server);
  set("GPUWIRE_IDENTITY", absolute(options.identity), &ClientSettings::identity);
  set("GPUWIRE_CA", absolute(options.authorities), &ClientSettings::authorities);
  set("GPUWIRE_TOKEN_FILE", absolute(options.token), &ClientSettings::token);
  set("GPUWIRE_GPUS", text_of(options.gpus), &ClientSettings::gpus);
  set("GPUWIRE_MEMORY", options.memory_bytes ? std::to_string(options.memory_bytes) + "B" : std::string(),
      &ClientSettings::memory);
  set("GPUWIRE_TRANSPORT", options.transport, &ClientSettings::transport);
  set("GPUWIRE_PROGRESS", options.no_progress ? "off" : "", &ClientSettings::progress);
  if (!is_set("GPUWIRE_SERVER"))
    return tl::unexpected(
        std::string("no server given: use --server HOST:PORT, set GPUWIRE_SERVER, or write server = \"HOST:PORT\" into "
                    "~/.config/gpuwire/config.toml"));
  return {};
}

}  // namespace gpuwire::launcher
