// The store of facts about images and programs that a user's programs write, so that the next ones start faster.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// The subject of a line: kernels, occupancy and parameters of an image, images and memory of a program.
enum class WarmStartSection : uint8_t { kernels, occupancy, parameters, images, memory };
inline constexpr size_t kWarmStartSections = 5;

// The SHA-256 of an image (ProgramImage::Digest), or the digest of a program (program_name.hpp).
using SubjectDigest = std::array<uint8_t, 32>;

inline constexpr size_t kWarmStartSectionBytesMax = 64 << 10;  // the lines of one section
inline constexpr size_t kWarmStartFileBytesMax = 256 << 10;    // more than all sections of an image or of a program
inline constexpr size_t kWarmStartFilesMax = 2048;  // the file that was written to longest ago is removed first

// The folder of such files, beside the key of kept GPU code (cache_key_file()): "cache_key.warm_start" as a rule.
// Empty: nothing is kept, because there is no key or GPUWIRE_LOOK_AHEAD is "off".
std::string warm_start_folder();

// The file of one image or one program: a line for each fact, which begins with the word of its section. Processes that
// run at the same time append to the same file; a lock on the file keeps them out while one process replaces a section.
// A file that cannot be read or written counts as empty, without a message.
//
// Any thread. Lock: mutex_, a leaf, held while the file is read and written.
class WarmStart {
 public:
  WarmStart(std::string folder, const SubjectDigest& subject);

  // Returns whether a line can end with this name of a kernel, and be told from other lines.
  static bool holds(std::string_view name) noexcept;

  bool kept() const noexcept { return !file_.empty(); }
  // Returns the lines of earlier runs and of this object, in the order in which they were written, each once.
  std::vector<std::string> lines(WarmStartSection section);
  // Adds a line that the section does not have yet, as far as there is room. `alone`: a section's only line is worth a
  // file. Otherwise the first line of an empty section is written together with the second.
  void add(WarmStartSection section, std::string line, bool alone);
  // Writes these lines in the place of all that the section has in the file. Other sections stay.
  void replace(WarmStartSection section, const std::vector<std::string>& lines);

 private:
  // The lines of a section, the bytes that they take in the file, and whether the first line waits for the second.
  struct Lines {
    std::vector<std::string> in_order;
    std::unordered_set<std::string> all;
    size_t bytes = 0;
    bool first_waits = false;

    bool add(std::string line, size_t line_bytes);
  };
  Lines& read_once(WarmStartSection section) REQUIRES(mutex_);
  void append(const std::string& text) const;
  void make_room() const;

  const std::string folder_;
  std::string file_;
  Mutex mutex_;
  bool read_ GUARDED_BY(mutex_) = false;
  std::array<Lines, kWarmStartSections> sections_ GUARDED_BY(mutex_);
};

// Returns the 64 digits of a digest: the name of its file, and how lines about images begin.
std::string hex_digits(const SubjectDigest& digest);

}  // namespace gpuwire::client
