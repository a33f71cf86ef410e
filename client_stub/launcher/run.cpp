#include "client_stub/launcher/run.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "client_stub/launcher/commands.hpp"

namespace gpuwire::launcher {

namespace {

template <class... Arguments>
int fail(int code, const char* format, Arguments... arguments) {
  std::fputs("gpuwire run: ", stderr);
  std::fprintf(stderr, format, arguments...);
  std::fputc('\n', stderr);
  return code;
}

// Where programs are looked for when PATH is not set: putting something into it must not hide them.
constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

void prepend(const char* variable, const std::string& folder, const char* when_unset) {
  const char* before = std::getenv(variable);
  if (!before) before = when_unset;
  // An empty entry would mean the current folder, so there is no colon without something behind it.
  setenv(variable, (*before ? folder + ":" + before : folder).c_str(), 1);
}

// What JAX looks for before it loads a CUDA library (jax/_src/hardware_utils.py); without them it leaves CUDA out.
bool has_device_files() { return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/nvidia0", F_OK) == 0; }

// Behind everything that the program has there: only the name jax_plugins.gpuwire is ours.
void append_to_python_path(const std::string& folder) {
  const char* before = std::getenv("PYTHONPATH");
  setenv("PYTHONPATH", (before && *before ? before + (":" + folder) : folder).c_str(), 1);
}

}  // namespace

int run(const RunOptions& options) {
  const char* from_environment = std::getenv("GPUWIRE_SERVER");
  std::string server = !options.server.empty() ? options.server : from_environment ? from_environment : "";
  if (server.empty()) return fail(kRunUsageError, "no server given: use --server HOST:PORT, or set GPUWIRE_SERVER");
  if (options.program.empty()) return fail(kRunUsageError, "no program given: gpuwire run --server HOST:PORT -- PROGRAM ARGS");
  std::string stubs = stub_folder(program_folder());
  std::string library = stubs + "/libcuda.so.1";
  if (access(library.c_str(), R_OK) != 0) return fail(kRunCannotExecute, "%s is missing; gpuwire is not installed completely", library.c_str());

  prepend("LD_LIBRARY_PATH", stubs, "");
  // NVIDIA's own nvidia-smi runs only over NVIDIA's library, so ours comes before one that is installed here.
  prepend("PATH", stubs + "/bin", kDefaultPath);
  std::string python = stubs + "/python";
  if (!has_device_files() && access(python.c_str(), R_OK) == 0) append_to_python_path(python);
  setenv("GPUWIRE_SERVER", server.c_str(), 1);
  set_environment(options.login);
  // The program may change its folder before it makes its first call.
  if (!options.trace.empty()) setenv("GPUWIRE_TRACE", std::filesystem::absolute(options.trace).c_str(), 1);
  if (!options.stats.empty()) setenv("GPUWIRE_STATS", options.stats == "calls" ? "calls" : "1", 1);

  std::vector<char*> arguments;
  for (const auto& argument : options.program) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  int error = errno;
  if (error == ENOENT && std::strchr(arguments[0], '/') && access(arguments[0], F_OK) == 0)
    return fail(kRunNotFound, "%s: the interpreter that it names does not exist", arguments[0]);
  if (error == ENOENT || error == ENOTDIR) return fail(kRunNotFound, "%s: no such program", arguments[0]);
  return fail(kRunCannotExecute, "%s: %s", arguments[0], std::strerror(error));
}

}  // namespace gpuwire::launcher
