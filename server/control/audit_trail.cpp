#include "server/control/audit_trail.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "server/identity/register.hpp"
#include "server/ipc/end_cause.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {
namespace {

LogFields who(const SessionRecord& session) {
  LogFields fields{{"session", uint64_t(session.number)},
                   {"tenant", session.tenant},
                   {"identified_by", session.security},
                   {"peer", session.peer}};
  if (!session.user.empty()) fields["user"] = session.user;
  if (!session.credential.empty()) fields["credential"] = session.credential;
  if (!session.program.empty()) fields["program"] = session.program;
  if (!session.host.empty()) fields["host"] = session.host;
  if (session.client_pid) fields["client_pid"] = session.client_pid;
  if (session.management) fields["management"] = true;
  return fields;
}

double seconds_since(std::chrono::system_clock::time_point time) {
  return std::max(std::chrono::duration<double>(std::chrono::system_clock::now() - time).count(), 0.0);
}

void add_end(LogFields& fields, const SessionEvent& event, const SessionMetrics& last) {
  fields["cause"] = end_word(event);
  fields["reason"] = event.text;
  uint64_t peak_bytes = 0;
  for (const SessionDeviceMetrics& device : last.devices)
    peak_bytes += std::max(device.memory_peak_bytes, device.memory_used_bytes);
  const auto begun = event.session.begun;
  fields["seconds"] = begun.time_since_epoch().count() == 0 ? 0.0 : seconds_since(begun);
  fields["gpu_seconds"] = double(last.gpu_time_ns) / 1e9;
  fields["peak_memory_bytes"] = peak_bytes;
  fields["bytes_in"] = last.bytes_in;
  fields["bytes_out"] = last.bytes_out;
  if (uint64_t losses = event.session.losses.untold()) fields["detached_untold"] = losses;
  if (uint64_t refused = event.session.refused_resumptions.untold()) fields["resume_refused_untold"] = refused;
}

// Returns the log's one line about a session's end, which the log has with and without an audit log.
std::string end_line(const SessionEvent& event, const LogFields& fields) {
  const SessionRecord& session = event.session;
  std::string who = session.program.empty() ? session.peer
                                            : fmt::format("{} on {} ({})", session.program, session.host, session.peer);
  std::string why = event.text == "goodbye" ? std::string() : ": " + event.text;
  return fmt::format("session {} of {}, {}: {}{}; {:.1f} s, GPU {:.1f} s, {} MiB at most", uint64_t(session.number),
                     label_of(session.tenant, session.user), who, end_word(event), why, fields["seconds"].get<double>(),
                     fields["gpu_seconds"].get<double>(), fields["peak_memory_bytes"].get<uint64_t>() >> 20);
}

}  // namespace

std::string end_word(const SessionEvent& event) {
  return event.end_cause == SessionEvent::kDied ? "died" : name_of(EndCause(event.end_cause));
}

void audit(AuditLog& log, const SessionEvent& event, const SessionMetrics& last) {
  LogFields fields = who(event.session);
  switch (event.kind) {
    case SessionEvent::Kind::queued:
      fields["place"] = event.session.place;
      fields["waits_for"] = event.text;
      log.write("queued", fields);
      break;
    case SessionEvent::Kind::admitted:
      fields["gpus"] = event.session.devices;
      if (!event.text.empty()) {
        fields["waited_seconds"] = seconds_since(event.session.arrived);
        fields["waited_for"] = event.text;
      }
      log.write("admitted", fields);
      break;
    case SessionEvent::Kind::begun:
      fields["gpus"] = event.session.devices;
      fields["client"] = event.text;
      fields["worker_pid"] = event.session.worker_pid;
      log.write("begun", fields);
      break;
    case SessionEvent::Kind::warned:
      fields["gpus"] = event.session.devices;
      fields["warning"] = event.text;
      log.write("warned", fields);
      break;
    case SessionEvent::Kind::detached:
      fields["reason"] = event.text;
      fields["seconds_left"] = std::max(
          0.0, std::chrono::duration<double>(event.session.detached_until - std::chrono::system_clock::now()).count());
      log.write("detached", fields);
      break;
    case SessionEvent::Kind::attached: log.write("attached", fields); break;
    case SessionEvent::Kind::suspended:
      fields["bytes"] = event.session.suspended_bytes;
      fields["for"] = event.text;
      log.write("suspended", fields);
      break;
    case SessionEvent::Kind::resumed:
      fields["bytes"] = event.session.suspended_bytes;
      fields["seconds"] = std::max(
          0.0, std::chrono::duration<double>(std::chrono::system_clock::now() - event.session.suspended_since).count());
      log.write("resumed", fields);
      break;
    case SessionEvent::Kind::resume_refused:
      fields["reason"] = event.text;
      log.write("resume_refused", fields);
      break;
    case SessionEvent::Kind::adopted:
      fields["gpus"] = event.session.devices;
      fields["worker_pid"] = event.session.worker_pid;
      log.write("adopted", fields);
      break;
    case SessionEvent::Kind::ended:
      fields["gpus"] = event.session.devices;
      add_end(fields, event, last);
      if (log.write("ended", fields)) log_event(spdlog::level::info, "ended", end_line(event, fields), fields);
      break;
    case SessionEvent::Kind::refused:
      fields["why"] = name_of(event.refusal);
      fields["reason"] = event.text;
      log.write("refused", fields);
      break;
  }
}

}  // namespace gpuwire::server
