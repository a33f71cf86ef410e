#include "server/log/log.hpp"

#include <chrono>
#include <ctime>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "protocol/units/json.hpp"
#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

// Messages of this logger already are JSON members; no text from a client can forge one of its messages.
constexpr std::string_view kEventLogger = "event";

std::string_view level_name(spdlog::level::level_enum level) {
  auto name = spdlog::level::to_string_view(level);
  return {name.data(), name.size()};
}

std::string_view view(spdlog::string_view_t text) { return {text.data(), text.size()}; }

class TextFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    std::string safe = escaped(view(message.payload));
    spdlog::details::log_msg copy = message;
    copy.payload = safe;
    pattern_.format(copy, out);
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<TextFormatter>(); }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%dT%H:%M:%S.%e%z %l %v"};
};

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    std::string members = view(message.logger_name) == kEventLogger
                              ? std::string(view(message.payload))
                              : R"("event":"message","text":)" + json_line(std::string(view(message.payload)));
    std::string line =
        fmt::format(R"({{"time":"{}","level":"{}",{}}})", utc_time(message.time), level_name(message.level), members);
    line += '\n';
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

// This logger is process-wide, like spdlog's default logger.
LogFormat current_format = LogFormat::text;
std::shared_ptr<spdlog::logger> event_logger;

void cut_strings(LogFields& value) {
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    if (text.size() > kLogStringBytesMax) text = text.substr(0, kLogStringBytesMax) + "...";
  } else if (value.is_structured()) {
    for (auto& one : value) cut_strings(one);
  }
}

}  // namespace

std::string json_line(LogFields fields) {
  cut_strings(fields);
  return dump_json(fields, -1, true, JsonErrorHandler::replace);
}

std::string utc_time(std::chrono::system_clock::time_point when) {
  auto ms = std::chrono::floor<std::chrono::milliseconds>(when.time_since_epoch()).count();
  std::time_t seconds = std::time_t(ms / 1000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", text, ms % 1000);
}

std::unique_ptr<spdlog::formatter> log_formatter(LogFormat format) {
  if (format == LogFormat::json) return std::make_unique<JsonFormatter>();
  return std::make_unique<TextFormatter>();
}

void start_log(const std::string& name, LogFormat format, const std::string& level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
  sink->set_formatter(log_formatter(format));
  auto least = spdlog::level::from_str(level == "warn" ? "warning" : level);
  auto logger = std::make_shared<spdlog::logger>(name, sink);
  logger->set_level(least);
  event_logger = std::make_shared<spdlog::logger>(std::string(kEventLogger), sink);
  event_logger->set_level(least);
  current_format = format;
  spdlog::set_default_logger(logger);
}

void log_event(spdlog::level::level_enum level, std::string_view event, const std::string& text,
               const LogFields& fields) {
  if (current_format == LogFormat::text || !event_logger) {
    spdlog::log(level, spdlog::string_view_t(text.data(), text.size()));
    return;
  }
  std::string members = fmt::format(R"("event":{},"text":{},"fields":{})", json_line(std::string(event)),
                                    json_line(text), json_line(fields));
  event_logger->log(level, spdlog::string_view_t(members.data(), members.size()));
}

}  // namespace gpuwire::server
