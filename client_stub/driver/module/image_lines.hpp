// What a user's programs have written down about an image for the next ones: a file of lines for each image.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "client_stub/driver/module/program_image.hpp"

namespace gpuwire::client {

inline constexpr size_t kImageLinesBytesMax = 64 << 10;  // of the file of one image
inline constexpr size_t kImagesWithLinesMax = 1024;      // files; the one that was written to longest ago goes first

// Where such files are: a folder beside the key of kept GPU code (cache_key_file()), "cache_key.WHAT" as a rule. Empty:
// nowhere, or GPUWIRE_LOOK_AHEAD is "off".
std::string look_ahead_folder(std::string_view what);

// One image's. Any thread; processes that run at the same time add their lines to the same file. What cannot be read or
// written is not there, and nobody is told.
class ImageLines {
 public:
  ImageLines(std::string folder, const ProgramImage::Digest& image);

  // Can a line end with this name of a kernel, and be told from others?
  static bool holds(std::string_view name) noexcept;

  bool kept() const noexcept { return !file_.empty(); }
  std::vector<std::string> read() const;
  // Whole lines, with their ends.
  void append(const std::string& lines) const;
  // In the place of all that is there.
  void replace(const std::string& lines) const;

 private:
  void make_room() const;

  std::string folder_, file_;
};

// Names of files, and how lines begin: 64 digits.
std::string hex_digits(const ProgramImage::Digest& digest);

// Takes a number from the beginning of what is left of a line. False: there is none, or it is too large.
template <class Number>
bool read_number(std::string_view& text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  text.remove_prefix(size_t(end - text.data()));
  return error == std::errc();
}

}  // namespace gpuwire::client
