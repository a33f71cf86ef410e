// `gpuwire attach` and `gpuwire detach`.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "client_stub/launcher/attach.hpp"
#include "client_stub/launcher/client_configuration.hpp"
#include "client_stub/launcher/commands.hpp"
#include "client_stub/launcher/run_commands.hpp"
#include "client_stub/launcher/session_options.hpp"
#include "client_stub/session/server_address.hpp"
#include "command_line/command_line.hpp"

namespace {

namespace fs = std::filesystem;
using gpuwire::launcher::Attachment;
using gpuwire::launcher::AttachMode;

constexpr int kAttachFailed = 1;

constexpr const char* kAttachDescription =
    "Makes every program of this machine, or of a container image's folder, find gpuwire's libcuda.so.1 and "
    "libnvidia-ml.so.1 without `gpuwire run`. What the options and the machine's configuration say (the server, how "
    "much of a GPU) is written down for programs that have no GPUWIRE_SERVER in their environment; attach again after "
    "a change. `gpuwire detach` takes everything back.";

constexpr const char* kAttachFooter =
    "Files, below the root:\n"
    "  /etc/ld.so.conf.d/000-gpuwire.conf   --with ld.so: where the loader finds the libraries\n"
    "  /etc/gpuwire/attached.env            --with ld.so: the settings, as the libraries read them\n"
    "  /usr/local/bin/nvidia-smi            --with ld.so: a link, where there is no other\n"
    "  /etc/profile.d/gpuwire.sh            --with profile: both, for login shells\n"
    "  /opt/gpuwire                         a copy of the client, in a root that has none\n"
    "  /etc/gpuwire/client.toml             read: the settings that no option says\n"
    "\n"
    "A real driver's library is never overwritten; where there is one, nothing is done without --over-driver.\n"
    "\n"
    "Exit code: 0, also when everything was so already; 1 with a line on stderr; 2 wrong usage.\n"
    "\n"
    "Examples:\n"
    "  sudo gpuwire attach --server gpu7\n"
    "  sudo gpuwire attach --root ./image --server gpu7 --token-file /run/secrets/gpuwire\n"
    "  sudo gpuwire detach";

constexpr const char* kDetachDescription =
    "Takes back what `gpuwire attach` has done to this machine, or to a container image's folder. Files that it has "
    "not written stay.";

constexpr const char* kDetachFooter =
    "Exit code: 0, also when nothing was attached; 1 with a line on stderr; 2 wrong usage.";

int fail(const char* command, const std::string& reason) {
  std::fprintf(stderr, "%s: %s\n", command, reason.c_str());
  return kAttachFailed;
}

int report(const char* command, const gpuwire::launcher::Changes& changes, const char* when_none) {
  if (!changes) return fail(command, changes.error());
  for (const std::string& change : *changes) std::printf("%s\n", change.c_str());
  if (changes->empty()) std::printf("%s\n", when_none);
  return 0;
}

void add_root_option(gpuwire::CommandLine& app, std::string& root) {
  app.add_option("--root", root, "The folder of a container image (or of another system), in place of this machine's")
      .type_name("DIR")
      .capture_default_str();
}

// File names are names inside the root. A file may be missing in an image, because keys must not be in an image and are
// mounted when it starts.
tl::expected<void, std::string> check_file(bool whole_machine, const std::string& file) {
  if (!fs::path(file).is_absolute()) return tl::unexpected(file + ": name the file by its whole path");
  if (whole_machine && access(file.c_str(), R_OK) != 0) return tl::unexpected(file + ": " + std::strerror(errno));
  return {};
}

// The values of the options, or else of the machine's configuration; a user's own configuration does not apply to the
// machine.
tl::expected<gpuwire::launcher::Environment, std::string> settings_of(const gpuwire::launcher::SessionOptions& options,
                                                                      const fs::path& root) {
  using namespace gpuwire::launcher;
  const bool whole_machine = root == "/";
  const fs::path system =
      whole_machine ? configuration_files(program_folder()).system : root / "etc/gpuwire/client.toml";
  auto configured = read_client_configuration({.user = {}, .system = system}, options.use);
  if (!configured) return tl::unexpected(configured.error());

  Environment settings;
  auto set = [&](const char* name, std::string value, std::string ClientSettings::*member) {
    if (value.empty()) value = configured->profile.*member;
    if (value.empty()) value = configured->general.*member;
    if (!value.empty()) settings[name] = value;
  };
  set("GPUWIRE_SERVER", options.server, &ClientSettings::server);
  set("GPUWIRE_GPUS", options.gpus ? std::to_string(options.gpus) : "", &ClientSettings::gpus);
  set("GPUWIRE_MEMORY", options.memory_bytes ? std::to_string(options.memory_bytes) + "B" : "",
      &ClientSettings::memory);
  set("GPUWIRE_TRANSPORT", options.transport, &ClientSettings::transport);
  set("GPUWIRE_PROGRESS", options.no_progress ? "off" : "", &ClientSettings::progress);
  set("GPUWIRE_CONNECT_PATIENCE", "", &ClientSettings::connect_patience);
  if (settings.contains("GPUWIRE_SERVER"))
    if (auto address = gpuwire::client::parse_server_address(settings["GPUWIRE_SERVER"].c_str()); !address)
      return tl::unexpected(settings["GPUWIRE_SERVER"] + ": " + address.error());

  const std::pair<const char*, std::pair<std::string, std::string ClientSettings::*>> files[] = {
      {"GPUWIRE_IDENTITY", {options.identity, &ClientSettings::identity}},
      {"GPUWIRE_CA", {options.authorities, &ClientSettings::authorities}},
      {"GPUWIRE_TOKEN_FILE", {options.token, &ClientSettings::token}}};
  for (const auto& [name, said] : files) {
    set(name, said.first, said.second);
    if (!settings.contains(name)) continue;
    std::string& file = settings[name];
    // File names of the configuration are relative to its own folder and include the root.
    if (said.first.empty() && !whole_machine && file.starts_with(root.string() + "/"))
      file.erase(0, root.string().size());
    if (auto right = check_file(whole_machine, file); !right) return tl::unexpected(right.error());
  }
  return settings;
}

}  // namespace

int gpuwire::launcher::attach_command(int argc, char** argv) {
  constexpr const char* kCommand = "gpuwire attach";
  const std::map<std::string, AttachMode> modes{{"ld.so", AttachMode::loader}, {"profile", AttachMode::profile}};
  SessionOptions session;
  Attachment wanted;
  std::string root = "/", mode = "ld.so";
  gpuwire::CommandLine app{kAttachDescription, kCommand};
  app.footer(kAttachFooter);
  add_root_option(app, root);
  app.add_option("--with", mode,
                 "How programs find the libraries: ld.so (the loader's configuration, for all programs) or profile (a "
                 "script of login shells, for what is started from them)")
      .type_name("HOW")
      .one_of({"ld.so", "profile"})
      .capture_default_str();
  app.add_flag("--over-driver", wanted.over_driver,
               "Attach also where there is a real driver's library, which programs then no longer find");
  add_session_options(app, session, true);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;

  std::error_code error;
  wanted.root = fs::canonical(root, error);
  if (error) return fail(kCommand, root + ": " + error.message());
  wanted.mode = modes.at(mode);
  auto settings = settings_of(session, wanted.root);
  if (!settings) return fail(kCommand, settings.error());
  wanted.settings = *settings;

  const fs::path prefix = fs::path(stub_folder(program_folder())).parent_path().parent_path();
  if (int code = report(kCommand, attach(wanted, prefix), "everything is attached already")) return code;
  const auto server = wanted.settings.find("GPUWIRE_SERVER");
  if (server != wanted.settings.end()) std::printf("programs that start now use %s\n", server->second.c_str());
  else std::printf("no server is named: programs use the one that GPUWIRE_SERVER in their environment names\n");
  return 0;
}

int gpuwire::launcher::detach_command(int argc, char** argv) {
  constexpr const char* kCommand = "gpuwire detach";
  std::string root = "/";
  gpuwire::CommandLine app{kDetachDescription, kCommand};
  app.footer(kDetachFooter);
  add_root_option(app, root);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  return report(kCommand, detach(root), "nothing is attached");
}
