#include "client_stub/driver/module/image_lines.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "client_stub/session/cache_key.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {
namespace {

// Of a regular file of this user that nobody else may write to.
class OwnFile {
 public:
  OwnFile(const std::string& file, int flags)
      // Not blocking: what lies there may be a pipe.
      : descriptor_(::open(file.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
    good_ = descriptor_ >= 0 && ::fstat(descriptor_, &status_) == 0 && S_ISREG(status_.st_mode) &&
            status_.st_uid == ::geteuid() && (status_.st_mode & 022) == 0 && status_.st_size >= 0;
  }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  ~OwnFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  bool good() const noexcept { return good_; }
  size_t bytes() const noexcept { return size_t(status_.st_size); }
  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
  bool good_ = false;
  struct stat status_ {};
};

constexpr std::string_view kDigits = "0123456789abcdef";

// A file of an image, and nothing else that somebody has put there.
bool names_image(const std::string& file_name) noexcept {
  return file_name.size() == 2 * sizeof(ProgramImage::Digest) &&
         file_name.find_first_not_of(kDigits) == std::string::npos;
}

}  // namespace

std::string look_ahead_folder(std::string_view what) {
  if (const char* wanted = std::getenv("GPUWIRE_LOOK_AHEAD"); wanted && std::string_view(wanted) == "off") return "";
  const std::string key = cache_key_file();
  return key.empty() ? "" : key + "." + std::string(what);
}

ImageLines::ImageLines(std::string folder, const ProgramImage::Digest& image) : folder_(std::move(folder)) {
  if (folder_.empty()) return;
  file_ = folder_ + "/" + hex_digits(image);
}

std::string hex_digits(const ProgramImage::Digest& digest) {
  std::string out;
  for (uint8_t byte : digest) {
    for (unsigned digit : {byte / 16u, byte % 16u}) out += kDigits[digit];
  }
  return out;
}

bool ImageLines::holds(std::string_view name) noexcept {
  return !name.empty() && name.size() <= wire::kNameBytesMax && name.find('\n') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

std::vector<std::string> ImageLines::read() const {
  std::vector<std::string> lines;
  OwnFile file(file_, O_RDONLY);
  if (!file.good() || file.bytes() > kImageLinesBytesMax) return lines;
  std::string text(file.bytes(), '\0');
  const ssize_t count = ::read(file.descriptor(), text.data(), text.size());
  std::string_view rest(text.data(), size_t(std::max<ssize_t>(count, 0)));
  // A last line without an end is one that was not written to its end.
  for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1))
    lines.emplace_back(rest.substr(0, end));
  return lines;
}

void ImageLines::append(const std::string& lines) const {
  struct stat status {};
  if (::lstat(file_.c_str(), &status) != 0) make_room();
  OwnFile file(file_, O_WRONLY | O_APPEND | O_CREAT);
  if (!file.good() || file.bytes() + lines.size() > kImageLinesBytesMax) return;
  // One write, so that lines of several processes do not mix. What was not written whole is a line that says nothing.
  static_cast<void>(!::write(file.descriptor(), lines.data(), lines.size()));
}

void ImageLines::replace(const std::string& lines) const {
  OwnFile file(file_, O_WRONLY | O_APPEND);
  if (!file.good() || lines.size() > kImageLinesBytesMax || ::ftruncate(file.descriptor(), 0) != 0) return;
  static_cast<void>(!::write(file.descriptor(), lines.data(), lines.size()));
}

void ImageLines::make_room() const {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder_).parent_path(), error);
  ::mkdir(folder_.c_str(), 0700);
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> files;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (!names_image(at->path().filename().string())) continue;
    files.emplace_back(at->last_write_time(gone), at->path());
  }
  if (files.size() < kImagesWithLinesMax) return;
  const auto beyond = files.begin() + ptrdiff_t(files.size() - kImagesWithLinesMax + 1);
  std::nth_element(files.begin(), beyond - 1, files.end());
  for (auto file = files.begin(); file != beyond; ++file) ::unlink(file->second.c_str());
}

}  // namespace gpuwire::client
