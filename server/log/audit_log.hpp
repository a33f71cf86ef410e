// Who used what, when, and how it ended: one JSON line for each event, in a file of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

#include "server/base/owned_descriptor.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {

// For one thread. Never give it a token or a key: every field is written.
class AuditLog {
 public:
  // Without a file: lines go to the server's log.
  AuditLog() = default;
  // Appends to `file`, made with mode 0600 when it is missing; one that others may read or write is refused. The error
  // names file and cause.
  static tl::expected<AuditLog, std::string> open(std::filesystem::path file);

  // The file may have been moved away (SIGHUP): goes on in a new one of its name. On an error the old one stays in use.
  tl::expected<void, std::string> reopen();
  // Hears every line.
  using Observer = std::function<void(std::string_view event, const LogFields& fields)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  // A line that cannot be written goes to the server's log, with the cause.
  void write(std::string_view event, const LogFields& fields);

  const std::filesystem::path& file() const { return path_; }
  uint64_t lines_lost() const { return lines_lost_; }

 private:
  std::filesystem::path path_;
  OwnedDescriptor file_;
  uint64_t lines_lost_ = 0;
  Observer observer_;
};

}  // namespace gpuwire::server
