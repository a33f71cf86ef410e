#include "client_stub/launcher/session_options.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "client_stub/launcher/client_configuration.hpp"
#include "client_stub/launcher/commands.hpp"
#include "client_stub/session/server_list.hpp"
#include "command_line/command.hpp"
#include "protocol/units/byte_size.hpp"
#include "protocol/wire/gpu_type.hpp"

namespace gpuwire::launcher {

namespace {

constexpr std::array<std::string_view, 10> kWithValue = {
    "-s", "--server", "--use", "--identity", "--ca", "--token-file", "--gpus", "--memory", "--gpu-type", "--transport"};

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

std::string absolute(const std::string& file) { return file.empty() ? file : std::filesystem::absolute(file).string(); }
std::string text_of(uint64_t number) { return number ? std::to_string(number) : std::string(); }

}  // namespace

void add_session_options(CommandLine& app, SessionOptions& options, bool resources) {
  app.add_option(
         "-s,--server", options.server,
         "The server: HOST[:PORT] (port 9750; with TLS, except on this machine), tls://..., tcp://... (never TLS) "
         "or unix:/PATH; several with commas between them, of which a program uses the one that has room")
      .type_name("SERVER");
  app.add_option("--use", options.use, "The profile of the configuration to use").type_name("NAME");
  app.add_option("--identity", options.identity, "Who you are: a file with your certificate and its key")
      .type_name("FILE");
  app.add_option("--ca", options.authorities,
                 "A file with the CA certificate to check the server's certificate against")
      .type_name("FILE");
  app.add_option("--token-file", options.token, "Who you are, if you have no certificate: a file with a token")
      .type_name("FILE");
  app.add_option("--transport", options.transport,
                 "How data travel: auto, tcp (sockets), shm (memory shared with a server on this machine, unix:/PATH), "
                 "or rdma (UCX, to a server that offers it)")
      .type_name("TRANSPORT")
      .one_of({"auto", "tcp", "shm", "rdma"});
  if (!resources) return;
  app.add_option("--gpus", options.gpus, "How many GPUs the program gets").type_name("N").between(1u, kGpusMax);
  app.add_option("--memory", options.memory_bytes,
                 "How much memory of each GPU to reserve for the program, from its start to its end, such as 20GiB")
      .type_name("SIZE")
      .transform([](const std::string& text) {
        return units::parse_byte_size(text).map([](uint64_t bytes) { return std::to_string(bytes); });
      });
  app.add_option("--gpu-type", options.gpu_type,
                 "What the name of each GPU has in it, such as h200: servers without such GPUs are passed over")
      .type_name("TYPE")
      .check([](const std::string& text) {
        return text.empty() || text.size() > wire::kGpuTypeBytesMax ? "must have 1 to 64 characters" : "";
      });
  app.add_flag("--no-wait", options.no_wait,
               "A program that would have to wait for a GPU gets an error instead of a place in the queue");
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
  tl::expected<void, std::string> missing_files;  // only of options: the program reads the environment's
  auto set = [&](const char* name, const std::string& option, std::string ClientSettings::*member) {
    std::string value = option;
    if (value.empty()) value = named.*member;
    if (value.empty() && is_set(name)) return;
    if (value.empty()) value = configured->profile.*member;
    if (value.empty()) value = configured->general.*member;
    if (value.empty()) return;
    setenv(name, value.c_str(), 1);
    const bool is_file = member == &ClientSettings::identity || member == &ClientSettings::authorities ||
                         member == &ClientSettings::token;
    if (is_file && missing_files && access(value.c_str(), R_OK) != 0)
      missing_files = tl::unexpected(value + ": " + std::strerror(errno));
  };
  set("GPUWIRE_SERVER", options.server, &ClientSettings::server);
  set("GPUWIRE_IDENTITY", absolute(options.identity), &ClientSettings::identity);
  set("GPUWIRE_CA", absolute(options.authorities), &ClientSettings::authorities);
  set("GPUWIRE_TOKEN_FILE", absolute(options.token), &ClientSettings::token);
  set("GPUWIRE_GPUS", text_of(options.gpus), &ClientSettings::gpus);
  set("GPUWIRE_MEMORY", options.memory_bytes ? std::to_string(options.memory_bytes) + "B" : std::string(),
      &ClientSettings::memory);
  set("GPUWIRE_GPU_TYPE", options.gpu_type, &ClientSettings::gpu_type);
  set("GPUWIRE_QUEUE", options.no_wait ? "off" : "", &ClientSettings::queue);
  set("GPUWIRE_TRANSPORT", options.transport, &ClientSettings::transport);
  set("GPUWIRE_PROGRESS", options.no_progress ? "off" : "", &ClientSettings::progress);
  set("GPUWIRE_CONNECT_PATIENCE", "", &ClientSettings::connect_patience);
  if (!is_set("GPUWIRE_SERVER"))
    return tl::unexpected(
        std::string("no server given: use --server HOST:PORT, set GPUWIRE_SERVER, or write server = \"HOST:PORT\" into "
                    "~/.config/gpuwire/config.toml"));
  // Mistakes that would otherwise appear at the program's first CUDA call, perhaps hours later.
  if (auto servers = client::parse_server_list(std::getenv("GPUWIRE_SERVER")); !servers)
    return tl::unexpected(servers.error());
  return missing_files;
}

std::vector<std::string> named_servers() {
  return client::parse_server_list(std::getenv("GPUWIRE_SERVER")).value_or(std::vector<std::string>{});
}

}  // namespace gpuwire::launcher
