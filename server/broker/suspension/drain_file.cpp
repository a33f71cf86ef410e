// The file of the drained GPUs.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"
#include "server/broker/limits.hpp"
#include "server/broker/suspension/drained_gpus.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kHeading = "gpuwire drained GPUs";

tl::unexpected<std::string> failed(const std::filesystem::path& file) {
  return tl::unexpected(fmt::format("{}: {}", file.string(), std::strerror(errno)));
}

}  // namespace

tl::expected<std::set<std::string>, std::string> read_drain_file(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error) && !error) return std::set<std::string>();
  std::ifstream in(file);
  std::string line;
  if (!in || !std::getline(in, line)) return failed(file);
  if (line != kHeading) return tl::unexpected(file.string() + ": is no list of drained GPUs");
  std::set<std::string> uuids;
  while (std::getline(in, line) && uuids.size() < kDrainedMax)
    if (!line.empty()) uuids.insert(line);
  return uuids;
}

tl::expected<void, std::string> write_drain_file(const std::filesystem::path& file,
                                                 const std::set<std::string>& uuids) {
  if (uuids.empty()) {
    if (::unlink(file.c_str()) != 0 && errno != ENOENT) return failed(file);
    return {};
  }
  std::error_code error;
  const std::filesystem::path folder = file.parent_path();
  if (!std::filesystem::exists(folder, error)) {
    std::filesystem::create_directories(folder, error);
    if (!error) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
    if (error) return tl::unexpected(fmt::format("{}: {}", folder.string(), error.message()));
  }
  std::string text = std::string(kHeading) + "\n";
  for (const std::string& uuid : uuids) text += uuid + "\n";
  const std::filesystem::path next = file.string() + ".next";
  const OwnedDescriptor out(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!out) return failed(next);
  for (size_t written = 0; written < text.size();) {
    const ssize_t part = ::write(out.get(), text.data() + written, text.size() - written);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) return failed(next);
    written += size_t(part);
  }
  // The machine may be switched off next.
  if (::fsync(out.get()) != 0) return failed(next);
  if (::rename(next.c_str(), file.c_str()) != 0) return failed(file);
  return {};
}

}  // namespace gpuwire::server
