// The begin of a session: reaching a server, or one of several, login, the queue, and the first frames.
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client_stub/session/ask.hpp"
#include "client_stub/session/backoff.hpp"
#include "client_stub/session/connected_session.hpp"
#include "client_stub/session/fork_guard.hpp"
#include "client_stub/session/handshake.hpp"
#include "client_stub/session/message_file.hpp"
#include "client_stub/session/printable.hpp"
#include "client_stub/session/server_list.hpp"
#include "client_stub/session/server_reconnector.hpp"
#include "client_stub/session/several_servers.hpp"
#include "protocol/transport/own_descriptor.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/units/duration.hpp"
#include "protocol/wire/gpu_type.hpp"

namespace gpuwire::client {
namespace {

using Started = tl::expected<std::unique_ptr<Session>, SessionStartError>;

CUresult result_of(Started started, std::string_view address, std::unique_ptr<Session>& session, std::string& error) {
  if (started) {
    session = std::move(*started);
    return CUDA_SUCCESS;
  }
  error = fmt::format("{}: {}", address, started.error().cause);
  return started.error().result;
}

Started enter_and_greet(std::unique_ptr<transport::Transport> transport, const std::string& address,
                        NoticeHandler& notices, std::shared_ptr<const Entry> entry, const ServerAddress* server) {
  auto entered = enter(std::move(transport), *entry, [](const std::string& line) { print_line(line); });
  if (!entered) return tl::unexpected(entered.error());
  return ConnectedSession::greet(std::move(*entered), address, notices, server, {}, std::move(entry));
}

Started attempt_once(const ServerAddress& address, const std::string& name, NoticeHandler& notices, SessionKind kind,
                     Entry::QueuePlace& place, bool& identity_unused) {
  auto transport = reach(address);
  if (!transport) return tl::unexpected(transport.error());
  auto entry = plan_entry(address, **transport, kind);
  if (!entry) return tl::unexpected(entry.error());
  entry->place = &place;
  identity_unused = entry->identity_unused;
  return enter_and_greet(std::move(*transport), name, notices, std::make_shared<const Entry>(std::move(*entry)),
                         kind == SessionKind::program ? &address : nullptr);
}

// A server on this machine, or behind a tunnel, that refuses anonymous clients may accept the identity in the user's
// configuration folder.
Started attempt(ServerAddress& address, const std::string& name, NoticeHandler& notices, SessionKind kind,
                Entry::QueuePlace& place) {
  bool identity_unused = false;
  Started started = attempt_once(address, name, notices, kind, place, identity_unused);
  if (started || !started.error().refused || started.error().full || !identity_unused) return started;
  ServerAddress with_tls = address;
  with_tls.kind = ServerAddress::Kind::tls;
  Started second = attempt_once(with_tls, name, notices, kind, place, identity_unused);
  if (second || second.error().refused || second.error().again) {
    address = with_tls;
    return second;
  }
  started.error().cause += "; with the identity in the configuration folder: " + second.error().cause;
  return started;
}

// `patience` bounds the attempts while the server takes no connections.
Started start_at(const std::string& server, NoticeHandler& notices, SessionKind kind,
                 std::chrono::milliseconds patience) {
  auto address = parse_server_address(server);
  if (!address) return not_ready(address.error());
  Backoff backoff;
  Entry::QueuePlace place;
  bool had_place = false, waits_for_server = false;
  for (;;) {
    Started started = attempt(*address, server, notices, kind, place);
    if (started || started.error().refused || started.error().ended) return started;
    const SessionStartError& failure = started.error();
    if (std::exchange(place.held, false)) {
      had_place = true;
      print_line(fmt::format("{}: {}; trying for {} s to return to the place in the queue", server, failure.cause,
                             kQueueReturn.count()));
      backoff.patient_until(Backoff::Clock::now() + kQueueReturn);
    } else if (failure.absent && !had_place && !waits_for_server && patience.count() > 0) {
      waits_for_server = true;
      print_line(
          fmt::format("{}: {}; trying for {}", server, failure.cause, units::seconds_text(uint64_t(patience.count()))));
      backoff.patient_until(Backoff::Clock::now() + patience);
    } else if (!failure.again && !had_place && !(failure.absent && waits_for_server)) {
      return started;
    }
    if (!backoff.wait()) return started;
  }
}

// If the program has requested a type of GPU, it gets no other type, even from a server that ignores types.
Started with_type(Started started, const std::string& gpu_type) {
  if (!started) return started;
  for (const DeviceFacts& device : (*started)->facts().devices) {
    if (wire::is_of_type(device.name.str(), gpu_type)) continue;
    (*started)->close();
    return not_ready(fmt::format("the server gave a {}, and a GPU of the type {} was asked for", device.name.str(),
                                 printable(gpu_type)));
  }
  return started;
}

// Begins at one of several servers, which this process uses from then on.
Started start_at_best(const std::string& list, std::vector<std::string> servers, const LoginSettings& settings,
                      NoticeHandler& notices, SessionKind kind) {
  if (auto chosen = chosen_before(list)) return start_at(*chosen, notices, kind, settings.connect_patience);
  Backoff backoff;
  bool waits = false;
  auto begun = begin_with_best(
      {.servers = servers,
       .wish = {.gpus = settings.gpus, .gpu_type = settings.gpu_type},
       .ask = [&] { return survey_servers(servers); },
       .start = [&](const std::string& server) { return start_at(server, notices, kind, {}); },
       .told = [](const std::string& line) { print_line(line); },
       .wait =
           [&] {
             if (settings.connect_patience.count() == 0) return false;
             if (!std::exchange(waits, true)) {
               print_line(fmt::format("none of {} servers takes connections; trying for {}", servers.size(),
                                      units::seconds_text(uint64_t(settings.connect_patience.count()))));
               backoff.patient_until(Backoff::Clock::now() + settings.connect_patience);
             }
             return backoff.wait();
           }});
  if (!begun) return tl::unexpected(begun.error());
  remember_chosen(list, begun->server);
  return std::move(begun->session);
}

}  // namespace

CUresult Session::connect(std::string_view server, NoticeHandler& notices, std::unique_ptr<Session>& session,
                          std::string& error, SessionKind kind) {
  transport::share_numbers_with_program();
  // This call precedes every use of OpenSSL by this library, with or without TLS.
  tls::start_openssl();
  const std::string list(server);
  // A single name appears in errors as the user wrote it; in a list, errors name the wrong entry.
  if (list.find(',') == list.npos) {
    if (auto address = parse_server_address(list); !address)
      return result_of(not_ready(address.error()), server, session, error);
    auto settings = login_settings();
    if (!settings) return result_of(not_ready(settings.error()), server, session, error);
    Started started = start_at(list, notices, kind, settings->connect_patience);
    if (kind == SessionKind::program) started = with_type(std::move(started), settings->gpu_type);
    return result_of(std::move(started), server, session, error);
  }
  auto servers = parse_server_list(list);
  if (!servers) return error = servers.error(), CUDA_ERROR_SYSTEM_NOT_READY;
  auto settings = login_settings();
  if (!settings) return error = settings.error(), CUDA_ERROR_SYSTEM_NOT_READY;
  Started started = start_at_best(list, std::move(*servers), *settings, notices, kind);
  if (kind == SessionKind::program) started = with_type(std::move(started), settings->gpu_type);
  if (!started) return error = started.error().cause, started.error().result;
  session = std::move(*started);
  return CUDA_SUCCESS;
}

namespace {

SessionStartError ask_once(const ServerAddress& address, const std::string& query, std::string& answer,
                           bool& identity_unused) {
  auto transport = reach(address);
  if (!transport) return transport.error();
  auto entry = plan_entry(address, **transport, SessionKind::management);
  if (!entry) return entry.error();
  identity_unused = entry->identity_unused;
  entry->query = query;
  entry->answer = &answer;
  auto entered = enter(std::move(*transport), *entry, [](const std::string&) {});
  return entered ? SessionStartError{CUDA_SUCCESS, {}} : entered.error();
}

}  // namespace

SessionStartError ask_for_answer(std::string_view server, const std::string& query, std::string& answer) {
  tls::start_openssl();
  auto address = parse_server_address(server);
  if (!address) return {.cause = address.error()};
  Backoff backoff;
  for (;;) {
    answer.clear();
    bool identity_unused = false;
    SessionStartError failure = ask_once(*address, query, answer, identity_unused);
    if (failure.result == CUDA_SUCCESS) return failure;
    // As for a session: a server on this machine may require an identity.
    if (failure.refused && identity_unused) address->kind = ServerAddress::Kind::tls;
    else if (failure.refused || !(failure.again || backoff.patient()) || !backoff.wait()) return failure;
  }
}

CUresult ask_server(std::string_view server, const std::string& query, std::string& answer, std::string& error) {
  SessionStartError failure = ask_for_answer(server, query, answer);
  if (failure.result != CUDA_SUCCESS) error = fmt::format("{}: {}", server, failure.cause);
  return failure.result;
}

CUresult ConnectedSession::start(std::unique_ptr<transport::Transport> transport, std::string address,
                                 NoticeHandler& notices, std::unique_ptr<Session>& session, std::string& error,
                                 const Entry& entry, const ServerAddress* server) {
  return result_of(
      enter_and_greet(std::move(transport), address, notices, std::make_shared<const Entry>(entry), server), address,
      session, error);
}

tl::expected<std::unique_ptr<ConnectedSession>, SessionStartError> ConnectedSession::greet(
    std::unique_ptr<transport::Transport> transport, const std::string& address, NoticeHandler& notices,
    const ServerAddress* server, const link::LinkLimits& limits, std::shared_ptr<const Entry> entry) {
  auto connected = std::make_unique<ConnectedSession>(std::move(transport), notices, limits);
  connected->address_ = address;
  if (!connected->link_.valid()) return tl::unexpected<SessionStartError>({CUDA_ERROR_OUT_OF_MEMORY, "out of memory"});
  auto begun = begin_session(connected->link_, connected->outgoing_, connected->receiver_,
                             server ? lanes_wanted(connected->link_.transport()->road()) : 0);
  if (!begun) {
    // The session has not begun, so no goodbye is sent.
    connected->ended_result_.store(begun.error().result, std::memory_order_release);
    return tl::unexpected(begun.error());
  }
  connected->facts_ = std::move(begun->facts);
  connected->facts_.address = address;
  if (entry) connected->limit_answers(entry->answer_time_max);
  guard_against_fork(*connected);
  if (begun->lanes != 0 && !connected->link_.begin_parts(true))
    return tl::unexpected<SessionStartError>({CUDA_ERROR_OUT_OF_MEMORY, "out of memory"});
  connected->lanes_most_ = begun->lanes;
  if (server && begun->resume_grace.count() > 0)
    connected->outlive_connections(
        std::make_unique<ServerReconnector>(*server, begun->id, begun->secret, begun->lanes != 0,
                                            connected->link_.transport()->peer(), transport::resolve, std::move(entry)),
        {begun->resume_grace, begun->hang_up_grace},
        begun->heartbeats ? link::kHeartbeatInterval : std::chrono::milliseconds(0));
  if (server && progress_is_wanted()) connected->show_progress(standard_error_line());
  return connected;
}

}  // namespace gpuwire::client
