// The file of a program's messages, for readers that do not see its standard error, such as a notebook.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpuwire::client {

inline constexpr const char* kMessageFileVariable = "GPUWIRE_MESSAGES";
// No line is appended to a file of this size.
inline constexpr size_t kMessageFileBytesMax = 256 * 1024;

// Appends "PROCESS TEXT" and a newline to the file of GPUWIRE_MESSAGES, in one write, if the variable is set. The
// reader of the file has created it.
void note_message(std::string_view text) noexcept;

// Writes "gpuwire: TEXT" to standard error in one piece, so that lines of several processes do not mix, and to that
// file.
void print_line(const std::string& text);

}  // namespace gpuwire::client
