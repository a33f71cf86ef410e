#include "client_stub/driver/state/warm_start/program_name.hpp"

#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace gpuwire::client {
namespace {

// The first letters of interpreters, which run a file that is named on their command line.
constexpr std::array<std::string_view, 9> kInterpreters = {"python", "pypy", "perl",  "ruby",    "node",
                                                           "julia",  "java", "ld-2.", "ld-linux"};
constexpr size_t kArgumentsBytesMax = 64 << 10;

std::vector<std::string> own_arguments() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text(kArgumentsBytesMax, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(in.gcount()));
  std::vector<std::string> out;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\0', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
  }
  return out;
}

}  // namespace

std::string script_of(const std::string& executable, std::span<const std::string> arguments) {
  const std::string name = std::filesystem::path(executable).filename();
  if (std::none_of(kInterpreters.begin(), kInterpreters.end(),
                   [&](std::string_view beginning) { return std::string_view(name).starts_with(beginning); }))
    return "";
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if ((argument == "-c" || argument == "-m") && i + 1 < arguments.size()) return argument + arguments[i + 1];
    if (argument.empty() || argument.front() == '-') continue;
    std::error_code error;
    const auto whole = std::filesystem::canonical(argument, error);
    return error ? argument : whole.string();
  }
  return "";
}

SubjectDigest program_digest(const std::string& executable, uint64_t bytes, int64_t changed_ns,
                             const std::string& script) {
  const std::string text =
      executable + '\0' + std::to_string(bytes) + '\0' + std::to_string(changed_ns) + '\0' + script;
  SubjectDigest digest{};
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return digest;
}

SubjectDigest own_program_digest() {
  std::error_code error;
  const std::string executable = std::filesystem::read_symlink("/proc/self/exe", error);
  struct stat status {};
  if (::stat("/proc/self/exe", &status) != 0) status = {};
  return program_digest(executable, uint64_t(status.st_size),
                        int64_t(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec,
                        script_of(executable, own_arguments()));
}

}  // namespace gpuwire::client
