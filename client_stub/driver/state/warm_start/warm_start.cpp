#include "client_stub/driver/state/warm_start/warm_start.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "client_stub/session/cache_key.hpp"
#include "client_stub/session/environment.hpp"
#include "client_stub/session/file_limit.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {
namespace {

constexpr std::string_view kFolder = "warm_start", kDigits = "0123456789abcdef";
// The first word of each line of a section.
constexpr std::array<std::string_view, kWarmStartSections> kWords = {"kernel ", "occupancy ", "parameters ", "image ",
                                                                     "memory "};

std::string_view word_of(WarmStartSection section) noexcept { return kWords[size_t(section)]; }

std::string text_of(WarmStartSection section, const std::string& line) {
  return std::string(word_of(section)).append(line) += '\n';
}

// A regular file of this user that no other user may write to. `lock` is an argument of flock(), without a wait; file
// systems without such locks are accepted.
class OwnFile {
 public:
  OwnFile(const std::string& file, int flags, int lock)
      // Non-blocking, because the path may name a pipe.
      : descriptor_(::open(file.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
    good_ = descriptor_ >= 0 && ::fstat(descriptor_, &status_) == 0 && S_ISREG(status_.st_mode) &&
            status_.st_uid == ::geteuid() && (status_.st_mode & 022) == 0 && status_.st_size >= 0 &&
            (lock == 0 || ::flock(descriptor_, lock | LOCK_NB) == 0 || errno != EWOULDBLOCK);
  }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  ~OwnFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  bool good() const noexcept { return good_; }
  size_t bytes() const noexcept { return size_t(status_.st_size); }
  int descriptor() const noexcept { return descriptor_; }

  // Calls `each` with all complete lines.
  template <class Each>
  void read_lines(Each&& each) const {
    if (!good_ || bytes() > kWarmStartFileBytesMax) return;
    std::string text(bytes(), '\0');
    const ssize_t count = ::pread(descriptor_, text.data(), text.size(), 0);
    std::string_view rest(text.data(), size_t(std::max<ssize_t>(count, 0)));
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1))
      each(rest.substr(0, end));
  }
  // One write, so that lines of several processes do not mix. Readers ignore an incomplete line.
  void write(const std::string& text) const noexcept {
    static_cast<void>(!::write(descriptor_, text.data(), text.size()));
  }

 private:
  int descriptor_;
  bool good_ = false;
  struct stat status_ {};
};

// Matches the files of this store only.
bool names_subject(const std::string& file_name) noexcept {
  return file_name.size() == 2 * sizeof(SubjectDigest) && file_name.find_first_not_of(kDigits) == std::string::npos;
}

}  // namespace

std::string warm_start_folder() {
  if (const char* wanted = setting("GPUWIRE_LOOK_AHEAD"); wanted && std::string_view(wanted) == "off") return "";
  const std::string key = cache_key_file();
  return key.empty() ? "" : key + '.' + std::string(kFolder);
}

std::string hex_digits(const SubjectDigest& digest) {
  std::string out;
  for (uint8_t byte : digest) {
    for (unsigned digit : {byte / 16u, byte % 16u}) out += kDigits[digit];
  }
  return out;
}

WarmStart::WarmStart(std::string folder, const SubjectDigest& subject) : folder_(std::move(folder)) {
  if (!folder_.empty()) file_ = folder_ + '/' + hex_digits(subject);
}

bool WarmStart::holds(std::string_view name) noexcept {
  return !name.empty() && name.size() <= wire::kNameBytesMax && name.find('\n') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

bool WarmStart::Lines::add(std::string line, size_t line_bytes) {
  if (line_bytes > kWarmStartSectionBytesMax - bytes || !all.insert(line).second) return false;
  in_order.push_back(std::move(line));
  bytes += line_bytes;
  return true;
}

WarmStart::Lines& WarmStart::read_once(WarmStartSection section) {
  if (!std::exchange(read_, true) && kept()) {
    decltype(sections_) found;
    OwnFile(file_, O_RDONLY, 0).read_lines([&](std::string_view line) {
      for (size_t i = 0; i < kWords.size(); ++i) {
        if (!line.starts_with(kWords[i])) continue;
        found[i].add(std::string(line.substr(kWords[i].size())), line.size() + 1);
      }
    });
    sections_ = std::move(found);
  }
  return sections_[size_t(section)];
}

std::vector<std::string> WarmStart::lines(WarmStartSection section) {
  MutexLock lock(mutex_);
  return read_once(section).in_order;
}

void WarmStart::add(WarmStartSection section, std::string line, bool alone) {
  if (!kept()) return;
  MutexLock lock(mutex_);
  Lines& lines = read_once(section);
  std::string text = text_of(section, line);
  if (!lines.add(std::move(line), text.size())) return;
  if (!alone && lines.in_order.size() == 1) {
    lines.first_waits = true;
    return;
  }
  if (std::exchange(lines.first_waits, false)) text = text_of(section, lines.in_order.front()) + text;
  append(text);
}

void WarmStart::append(const std::string& text) const {
  struct stat status {};
  if (::lstat(file_.c_str(), &status) != 0) make_room();
  const OwnFile file(file_, O_WRONLY | O_APPEND | O_CREAT, LOCK_SH);
  if (file.good() && file.bytes() + text.size() <= kWarmStartFileBytesMax && may_write(file.descriptor(), text.size()))
    file.write(text);
}

void WarmStart::replace(WarmStartSection section, const std::vector<std::string>& lines) {
  if (!kept()) return;
  MutexLock lock(mutex_);
  Lines now;
  std::string text;
  for (const std::string& line : lines) {
    const std::string written = text_of(section, line);
    if (now.add(line, written.size())) text += written;
  }
  sections_[size_t(section)] = std::move(now);
  const OwnFile file(file_, O_RDWR | O_APPEND, LOCK_EX);
  file.read_lines([&](std::string_view line) {
    if (!line.starts_with(word_of(section))) text.append(line) += '\n';
  });
  if (file.good() && text.size() <= kWarmStartFileBytesMax && may_grow_to(text.size()) &&
      ::ftruncate(file.descriptor(), 0) == 0)
    file.write(text);
}

void WarmStart::make_room() const {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder_).parent_path(), error);
  ::mkdir(folder_.c_str(), 0700);
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> files;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (!names_subject(at->path().filename().string())) continue;
    files.emplace_back(at->last_write_time(gone), at->path());
  }
  if (files.size() < kWarmStartFilesMax) return;
  const auto beyond = files.begin() + ptrdiff_t(files.size() - kWarmStartFilesMax + 1);
  std::nth_element(files.begin(), beyond - 1, files.end());
  for (auto file = files.begin(); file != beyond; ++file) ::unlink(file->second.c_str());
}

}  // namespace gpuwire::client
