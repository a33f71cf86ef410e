// The commands as a user starts them, in an installation of their own with a stub library that is only a file.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gpuwire::test {

namespace fs = std::filesystem;

inline std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Outcome {
  int exit_code = -1, signal = 0;
  std::string out, err;
};

struct Installation {
  Installation() {
    char name[] = "/tmp/gpuwire-launcher-XXXXXX";
    root = mkdtemp(name);
    fs::create_directories(root / "bin");
    fs::create_directories(root / "lib/gpuwire/commands");
    for (const char* program : {"bin/gpuwire", "lib/gpuwire/commands/gpuwire-run", "lib/gpuwire/commands/gpuwire-info",
                                "lib/gpuwire/commands/gpuwire-env", "lib/gpuwire/commands/gpuwire-shell"})
      fs::copy(fs::path(GPUWIRE_BUILD) / program, root / program);
    fs::create_directories(root / "home");
    std::ofstream(root / "lib/gpuwire/libcuda.so.1");
  }
  ~Installation() { fs::remove_all(root); }

  Outcome start(std::vector<std::string> words,
                std::vector<std::pair<const char*, const char*>> environment = {}) const {
    pid_t child = fork();
    if (child == 0) {
      for (const char* name :
           {"GPUWIRE_SERVER", "GPUWIRE_STATS", "GPUWIRE_ACCOUNTS", "GPUWIRE_TRACE", "GPUWIRE_USE",
            "GPUWIRE_PROFILE_FILE", "GPUWIRE_MEMORY", "GPUWIRE_GPUS", "GPUWIRE_TRANSPORT", "GPUWIRE_PROGRESS",
            "GPUWIRE_CONNECT_PATIENCE", "GPUWIRE_QUEUE", "GPUWIRE_GPU_TYPE", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME"})
        unsetenv(name);
      setenv("HOME", (root / "home").c_str(), 1);
      for (auto [name, value] : environment) setenv(name, value, 1);
      dup2(open((root / "out").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), STDOUT_FILENO);
      dup2(open((root / "err").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), STDERR_FILENO);
      std::string program = (root / "bin/gpuwire").string();
      std::vector<char*> arguments{program.data()};
      for (auto& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(program.c_str(), arguments.data());
      _exit(99);
    }
    int status = 0;
    waitpid(child, &status, 0);
    Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                    contents(root / "out"), contents(root / "err")};
    return outcome;
  }
  // The real libcuda.so.1 in the place of the file, for commands that open sessions.
  void link_library() const {
    fs::remove(root / "lib/gpuwire/libcuda.so.1");
    fs::create_symlink(fs::path(GPUWIRE_BUILD) / "lib/gpuwire/libcuda.so.1", root / "lib/gpuwire/libcuda.so.1");
  }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
  std::string script(const std::string& text) const {
    fs::path path = root / "script";
    std::ofstream(path) << text;
    chmod(path.c_str(), 0755);
    return path.string();
  }
  fs::path root;
};

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace gpuwire::test
