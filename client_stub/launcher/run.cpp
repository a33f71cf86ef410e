#include "client_stub/launcher/run.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "client_stub/launcher/account_watch.hpp"
#include "client_stub/launcher/commands.hpp"
#include "client_stub/launcher/start_check.hpp"
#include "command_line/command.hpp"

namespace gpuwire::launcher {

namespace {

int fail(const char* command, int code, const std::string& reason) {
  std::fprintf(stderr, "%s: %s\n", command, reason.c_str());
  return code;
}

// The folders that are searched for programs without PATH: a PATH with our folder alone must not hide them.
constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

void prepend(const char* variable, const std::string& folder, const char* when_unset) {
  const char* before = std::getenv(variable);
  if (!before) before = when_unset;
  std::string_view rest = before;
  // The folder is added once, even if a program under gpuwire starts another.
  if (rest == folder || rest.starts_with(folder + ":")) return;
  // An empty entry means the current folder, so no colon ends the list.
  setenv(variable, (rest.empty() ? folder : folder + ":" + before).c_str(), 1);
}

// The files that JAX needs before it loads a CUDA library (jax/_src/hardware_utils.py); without them it does not use
// CUDA.
bool has_device_files() { return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/nvidia0", F_OK) == 0; }

// Appended, because only the name jax_plugins.gpuwire is gpuwire's.
void append_to_python_path(const std::string& folder) {
  std::string before = std::getenv("PYTHONPATH") ? std::getenv("PYTHONPATH") : "";
  if (before == folder || before.ends_with(":" + folder)) return;
  setenv("PYTHONPATH", (before.empty() ? folder : before + ":" + folder).c_str(), 1);
}

// Every process of the program appends to the file (client_stub/driver/process/profile_file), so it is created once,
// here, as an empty JSON array. Returns the reason if that fails.
std::string begin_profile(const std::string& file) {
  FILE* out = std::fopen(file.c_str(), "we");
  if (!out) return std::strerror(errno);
  const bool written = std::fputs("[\n]\n", out) >= 0;
  return std::fclose(out) == 0 && written ? std::string() : std::strerror(errno);
}

}  // namespace

void add_observation_options(CommandLine& app, RunOptions& options) {
  app.add_option("--trace", options.trace,
                 "Write one line per CUDA call to FILE: time, thread, name, arguments, class, result")
      .type_name("FILE");
  app.add_option("--profile", options.profile,
                 "Write to FILE when each CUDA call, wait, kernel and copy began and how long it took, for Perfetto "
                 "(ui.perfetto.dev) and chrome://tracing")
      .type_name("FILE");
  // A flag that may have a value as in --stats=calls: a separate word behind it is the program.
  app.add_flag(
         "--stats{summary}", options.stats,
         "When a program ends, print calls by class, bytes, waits and time on stderr; --stats=calls: also for each "
         "function; --stats=why: instead, in five lines, why the program was slower than it could be and what to "
         "change")
      .one_of({"summary", "calls", "why"});
}

tl::expected<void, RunError> prepare_environment(const RunOptions& options) {
  if (auto set = set_environment(options.session); !set) return tl::unexpected(RunError{kRunUsageError, set.error()});
  std::string stubs = stub_folder(program_folder());
  std::string library = stubs + "/libcuda.so.1";
  if (access(library.c_str(), R_OK) != 0)
    return tl::unexpected(
        RunError{kRunCannotExecute, library + " is missing; the installation of gpuwire is incomplete"});

  prepend("LD_LIBRARY_PATH", stubs, "");
  // NVIDIA's own nvidia-smi runs only over NVIDIA's library, so ours comes before an installed one.
  prepend("PATH", stubs + "/bin", kDefaultPath);
  std::string python = stubs + "/python";
  if (!has_device_files() && access(python.c_str(), R_OK) == 0) append_to_python_path(python);
  // %load_ext loads this module in a notebook; no other program uses it.
  if (std::string notebook = stubs + "/notebook"; access(notebook.c_str(), R_OK) == 0) append_to_python_path(notebook);
  // The program may change its working folder before its first call.
  if (!options.trace.empty()) setenv("GPUWIRE_TRACE", std::filesystem::absolute(options.trace).c_str(), 1);
  if (!options.profile.empty()) {
    const std::string file = std::filesystem::absolute(options.profile).string();
    if (std::string reason = begin_profile(file); !reason.empty())
      return tl::unexpected(RunError{kRunUsageError, "cannot write the profile " + file + ": " + reason});
    setenv("GPUWIRE_PROFILE_FILE", file.c_str(), 1);
  }
  if (!options.stats.empty()) setenv("GPUWIRE_STATS", options.stats == "summary" ? "1" : options.stats.c_str(), 1);
  return {};
}

int run(const char* command, const RunOptions& options) {
  if (auto prepared = prepare_environment(options); !prepared)
    return fail(command, prepared.error().code, prepared.error().text);
  if (options.program.empty())
    return fail(command, kRunUsageError, "no program given: gpuwire run --server HOST:PORT -- PROGRAM ARGS");

  if (options.choose) choose_server(command);
  if (!options.stats.empty()) start_account_watch();
  std::vector<char*> arguments;
  for (const auto& argument : options.program) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  int error = errno;
  const std::string& program = options.program.front();
  if (error == ENOENT && program.find('/') != std::string::npos && access(program.c_str(), F_OK) == 0)
    return fail(command, kRunNotFound, program + ": the interpreter that it names does not exist");
  if (error == ENOENT || error == ENOTDIR) return fail(command, kRunNotFound, program + ": no such program");
  return fail(command, kRunCannotExecute, program + ": " + std::strerror(error));
}

}  // namespace gpuwire::launcher
