// A trace of all driver calls of a process, for developers who search for the cause of a different answer.
// CONTRIBUTING.md describes its use.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "server/base/owned_descriptor.hpp"
#include "server/driver_table.hpp"

namespace gpuwire::server {

// The environment variable of the worker that names the trace's file. Only the environment of the server sets it, never
// a client.
inline constexpr const char* kDriverTraceVariable = "GPUWIRE_DRIVER_TRACE";

// The file of a trace, and the functions that it has replaced. One in a process. Each call is one line:
//
//     THREAD FUNCTION ARGUMENT... = RESULT MICROSECONDS
//
// THREAD is the kernel's number of the thread, RESULT the number of the CUresult. Arguments are hexadecimal numbers;
// a structure that is passed by value is its bytes in braces. Lines have the order of the calls' ends.
class DriverTrace {
 public:
  // Creates FILE.PID, which only its user can read, because arguments are addresses of the clients' data. An error is
  // one line: the file exists, or cannot be made.
  static tl::expected<std::unique_ptr<DriverTrace>, std::string> create(const std::string& file);

  // Replaces every function of the table by one that calls the former function and writes a line. Called before another
  // thread uses the table; a later table takes the place of an earlier one. The trace outlives the table.
  void put_before(DriverTable& table);

  // For a process that closes all other descriptors.
  int descriptor() const { return file_.get(); }

  // --- for the functions of the table; any thread
  const DriverTable& driver() const { return driver_; }
  // Writes by one system call, so that lines of several threads do not mix, and the last line is there after a crash.
  void write(std::string_view line) const noexcept;

 private:
  explicit DriverTrace(OwnedDescriptor file) : file_(std::move(file)) {}

  const OwnedDescriptor file_;
  // The former functions. Written before the table is used.
  DriverTable driver_;
};

}  // namespace gpuwire::server
