#include "server/broker/admission.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace gpuwire::server {

scheduler::SessionId Admission::request(LoginRequest request, Answer answer) {
  const Tenant* tenant = tenants_.find(request.tenant);
  SessionRecord record{.tenant = request.tenant,
                       .memory_bytes = request.memory_bytes,
                       .peer = std::move(request.peer),
                       .security = std::move(request.security),
                       .program = std::move(request.program),
                       .host = std::move(request.host),
                       .client_pid = request.client_pid,
                       .management = request.management};
  if (tenant) {
    record.tenant_id = tenant->id;
    record.service_class = tenant->settings.service_class;
  }
  scheduler::SessionId session = book_.add(std::move(record)).number;
  unanswered_[session] = std::move(answer);
  if (!closed_.empty()) {
    refuse(session, closed_code_, closed_);
  } else if (!tenant) {
    refuse(session, wire::RefusalCode::unauthorised, fmt::format("this server has no tenant \"{}\"", request.tenant));
  } else if (admitted(request.management) >= limits_.sessions_max) {
    refuse(session, wire::RefusalCode::busy, fmt::format("all {} sessions of the server are in use", limits_.sessions_max));
  } else {
    admitted_[session] = request.management;
    book_.admitted(session, {});
    prepare_(session);
  }
  return session;
}

size_t Admission::admitted(bool management) const {
  return size_t(std::count_if(admitted_.begin(), admitted_.end(), [&](const auto& one) { return one.second == management; }));
}

void Admission::prepared(scheduler::SessionId session) {
  if (auto waiting = unanswered_.extract(session)) waiting.mapped()(session, AdmissionGranted{});
}

void Admission::refuse(scheduler::SessionId session, wire::RefusalCode code, std::string reason) {
  admitted_.erase(session);
  auto waiting = unanswered_.extract(session);
  book_.refused(session, reason);
  if (waiting) waiting.mapped()(session, AdmissionRefused{code, std::move(reason)});
}

void Admission::cancel(scheduler::SessionId session, const std::string& why) {
  unanswered_.erase(session);
  admitted_.erase(session);
  book_.refused(session, why);
}

void Admission::ended(scheduler::SessionId session) { admitted_.erase(session); }

void Admission::close(wire::RefusalCode code, std::string reason) {
  closed_code_ = code;
  closed_ = std::move(reason);
  while (!unanswered_.empty()) refuse(unanswered_.begin()->first, code, closed_);
}

}  // namespace gpuwire::server
