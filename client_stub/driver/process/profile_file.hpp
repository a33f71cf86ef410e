// The file of GPUWIRE_PROFILE_FILE: Chrome's trace events, a JSON array (Trace Event Format, "JSON Array Format").
// Several processes write into one file: each write is made of whole lines and leaves a complete array, so that a
// process's lines are valid whatever becomes of it or the others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "client_stub/driver/process/array_file.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// A text as it stands between the quotes of JSON: whatever it is, the result is ASCII or was valid UTF-8.
std::string json_text(std::string_view text);

// Any thread. Takes a leaf lock, under which it may write to the file.
class ProfileFile {
 public:
  // Then the buffered lines are written.
  static constexpr size_t kBufferBytes = 64 * 1024;
  // Or when it is that old.
  static constexpr uint64_t kHeldNs = 200'000'000;
  // The bound for one process; later lines are left out.
  static constexpr uint64_t kFileBytesMax = 4ull << 30;
  // Longer ones are left out.
  static constexpr size_t kEventBytesMax = 12 * 1024;

  ProfileFile() = default;
  ProfileFile(const ProfileFile&) = delete;
  ProfileFile& operator=(const ProfileFile&) = delete;
  ~ProfileFile();

  // Opens it for appending; a new one holds an empty array. Before any other call. The error says which file, and why
  // not.
  bool open(const char* path, std::string& error) noexcept WITHOUT_LOCK_CHECK;
  bool is_open() const noexcept { return file_.is_open(); }

  // One event: the members of its JSON object without the braces, with no line's end inside. The process is named
  // before its first one.
  void event(std::string_view members) noexcept;
  // Writes the buffered lines.
  void flush() noexcept;
  // Writes lines older than kHeldNs; returns the time until there may be some again.
  std::chrono::nanoseconds upkeep() noexcept;
  // From now on each event is written at once: the program is at its end.
  void write_through() noexcept;
  // In the child after fork(): the parent's unwritten lines are the parent's.
  void after_fork_in_child() noexcept WITHOUT_LOCK_CHECK;

 private:
  void append(std::string_view members) REQUIRES(mutex_);
  void name_process() REQUIRES(mutex_);
  void write_buffer() noexcept REQUIRES(mutex_);

  Mutex mutex_;
  // Whether the file is open is set by open(), then constant.
  ArrayFile file_;
  std::string buffer_ GUARDED_BY(mutex_);
  uint64_t held_since_ns_ GUARDED_BY(mutex_) = 0, written_bytes_ GUARDED_BY(mutex_) = 0;
  bool named_ GUARDED_BY(mutex_) = false, full_ GUARDED_BY(mutex_) = false, through_ GUARDED_BY(mutex_) = false;
};

// Returns the process's file. It is never destroyed: programs call the driver from their last exit handlers.
ProfileFile& profile_file() noexcept;

// Opens it, if GPUWIRE_PROFILE_FILE asks for it, and begins to note waits. True: there is a profile.
bool begin_profile_from_environment() noexcept;

// A span of the calling thread, by CLOCK_MONOTONIC. `category`, `name` need no escaping; `arguments`: members of a JSON
// object, or none.
void profile_span(const char* category, const char* name, uint64_t begun_ns, uint64_t ended_ns,
                  std::string_view arguments) noexcept;

// Where the GPU's tracks are: a process of their own beside the program's, with a number that no process has.
uint64_t gpu_process_number() noexcept;

}  // namespace gpuwire::client
