// A file that holds a JSON array with one element per line, to which several processes append. After each write the
// array is whole, so that it does not matter which process is the last, or how it ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/transport/own_descriptor.hpp"

namespace gpuwire::client {

// One thread at a time; also usable in the child after fork().
class ArrayFile {
 public:
  // 1 ms apart; another process holds the lock for one write.
  static constexpr int kLockTriesMax = 5000;
  static constexpr size_t kPathShownMax = 512;

  ArrayFile() = default;
  ArrayFile(const ArrayFile&) = delete;
  ArrayFile& operator=(const ArrayFile&) = delete;

  // A new file holds an empty array. The error names the file and the reason.
  bool open(const char* path, std::string& error);
  bool is_open() const noexcept { return bool(file_); }

  // `lines`: one element or more, each with ",
  // " behind it. False: nothing has been written, errno has the reason. The array stays open in a file that is not
  // regular, and on a file system without locks.
  bool append(std::string_view lines) noexcept;

 private:
  bool lock() noexcept;
  bool append_and_close(std::string_view lines) noexcept;

  transport::OwnDescriptor file_;
  bool closes_ = false;
};

}  // namespace gpuwire::client
