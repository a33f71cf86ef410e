// The server's log on standard error: lines of text, or JSON lines with events and their fields.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <spdlog/common.h>
#include <spdlog/formatter.h>

namespace gpuwire::server {

// The fields of an event: an object whose values are strings, numbers and lists of them, in the order in which they are
// shown.
using LogFields = nlohmann::ordered_json;

enum class LogFormat : uint8_t { text, json };

// Creates the process's default logger. `level`: debug, info, warn, error or off. For one thread.
void start_log(const std::string& name, LogFormat format, const std::string& level);

// Logs an event: a text log contains `text`, a JSON log also the name and the fields. The arguments may contain
// unescaped text from clients.
void log_event(spdlog::level::level_enum level, std::string_view event, const std::string& text,
               const LogFields& fields);

// Returns one line of JSON in ASCII; bytes that are not UTF-8 are replaced, and strings are cut to kLogStringBytesMax.
std::string json_line(LogFields fields);
inline constexpr size_t kLogStringBytesMax = 512;

// "2026-11-21T17:40:03.123Z"
std::string utc_time(std::chrono::system_clock::time_point when);

// For start_log and tests. Each message becomes one line: control characters are escaped.
std::unique_ptr<spdlog::formatter> log_formatter(LogFormat format);

}  // namespace gpuwire::server
