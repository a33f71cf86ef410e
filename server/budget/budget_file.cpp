#include "server/budget/budget_file.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include <boost/crc.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;
using Failure = tl::unexpected<std::string>;

constexpr std::string_view kHeading = "gpuwire budgets ";

std::string failed(const fs::path& file) { return fmt::format("{}: {}", file.string(), std::strerror(errno)); }

uint32_t checksum(std::string_view text) {
  boost::crc_32_type sum;
  sum.process_bytes(text.data(), text.size());
  return sum.checksum();
}

std::string heading_of(std::string_view text) {
  return fmt::format("{}{:08x} {}\n", kHeading, checksum(text), text.size());
}

// Reads one file. Empty: the file does not exist.
std::optional<tl::expected<BudgetBook, std::string>> read_one(const fs::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return std::nullopt;
  if (in.tellg() > std::streamoff(kBudgetTextBytesMax)) return Failure(file.string() + ": is too long");
  in.seekg(0);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  const size_t line = all.find('\n');
  const std::string text = line == all.npos ? std::string() : all.substr(line + 1);
  if (line == all.npos || all.substr(0, line + 1) != heading_of(text))
    return Failure(file.string() + ": does not fit its checksum");
  auto book = BudgetBook::parse(text);
  if (!book) return Failure(fmt::format("{}: {}", file.string(), book.error()));
  return book;
}

}  // namespace

fs::path default_budget_file() {
  auto absolute = [](const char* value) { return value && value[0] == '/'; };
  if (const char* state = std::getenv("XDG_STATE_HOME"); absolute(state))
    return fs::path(state) / "gpuwire" / "budgets";
  if (const char* state = std::getenv("STATE_DIRECTORY"); absolute(state)) return fs::path(state) / "budgets";
  if (geteuid() == 0) return "/var/lib/gpuwire/budgets";
  const char* home = std::getenv("HOME");
  return fs::path(absolute(home) ? home : "/tmp") / ".local" / "state" / "gpuwire" / "budgets";
}

tl::expected<BudgetFile, std::string> BudgetFile::open(fs::path file) {
  std::error_code error;
  const fs::path folder = file.parent_path();
  if (!fs::exists(folder, error)) {
    fs::create_directories(folder, error);
    if (!error) fs::permissions(folder, fs::perms::owner_all, error);
    if (error) return Failure(fmt::format("{}: {}", folder.string(), error.message()));
  }
  const fs::path lock_file = file.string() + ".lock";
  OwnedDescriptor lock(::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return Failure(failed(lock_file));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return Failure(errno == EWOULDBLOCK
                       ? fmt::format("{} is another server's: give each its own budget_file", file.string())
                       : failed(lock_file));
  return BudgetFile(std::move(file), std::move(lock));
}

tl::expected<std::optional<BudgetBook>, std::string> BudgetFile::read() {
  auto current = read_one(file_);
  if (current && *current) return std::move(**current);
  auto before = read_one(with(".before"));
  if (before && *before) return std::move(**before);
  if (!current && !before) return std::nullopt;
  std::error_code ignored;
  fs::rename(file_, with(".broken"), ignored);
  return Failure(current ? current->error() : before->error());
}

tl::expected<void, std::string> BudgetFile::write(const BudgetBook& book) {
  const std::string text = book.text();
  const std::string all = heading_of(text) + text;
  const fs::path next = with(".next");
  OwnedDescriptor out(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!out) return Failure(failed(next));
  for (size_t written = 0; written < all.size();) {
    const ssize_t part = ::write(out.get(), all.data() + written, all.size() - written);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) return Failure(failed(next));
    written += size_t(part);
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - generation_ >= kBudgetGenerationTime || !fs::exists(with(".before"))) {
    generation_ = now;
    ::unlink(with(".before").c_str());
    if (::link(file_.c_str(), with(".before").c_str()) != 0 && errno != ENOENT) return Failure(failed(with(".before")));
  }
  if (::rename(next.c_str(), file_.c_str()) != 0) return Failure(failed(file_));
  return {};
}

}  // namespace gpuwire::server
