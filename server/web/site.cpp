#include "server/web/site.hpp"

#include <utility>

#include <fmt/format.h>

#include "server/web/assets.hpp"
#include "server/web/limits.hpp"
#include "server/web/pages.hpp"
#include "server/web/secrets.hpp"

namespace gpuwire::server::web {
namespace {

// Returns a cookie that lives until the browser ends, goes with this site's own requests only, and is hidden from
// scripts. Without a path it belongs to the folder of the page (RFC 6265, 5.1.4), so that the pages of two servers
// behind one proxy do not replace each other's.
std::string cookie(const char* name, const std::string& value, bool encrypted) {
  return fmt::format("{}={}; HttpOnly; SameSite=Strict{}{}", name, value, value.empty() ? "; Max-Age=0" : "",
                     encrypted ? "; Secure" : "");
}

Reply redirection(std::string where) {
  Reply reply;
  reply.status = 303;
  reply.location = std::move(where);
  return reply;
}

Reply message(unsigned status, const std::string& title, const std::string& text) {
  Reply reply;
  reply.status = status;
  reply.body = message_page(title, text);
  return reply;
}

Reply asset(std::string_view body, const char* type) {
  Reply reply;
  reply.body = body;
  reply.type = type;
  reply.may_be_kept = true;
  return reply;
}

bool is_from_elsewhere(const Request& request) {
  return !request.fetch_site.empty() && request.fetch_site != "same-origin" && request.fetch_site != "none";
}

// A credential that is shown and does not count is refused, whatever else is shown (docs/security.md).
Reply certificate_refused(const Request& request) {
  Reply reply =
      message(403, "Your certificate is refused",
              "Your browser has shown a certificate that does not count here: " + request.certificate.refusal +
                  ". Ask for a new one; or close the browser, show no certificate when it asks for one, and "
                  "sign in with a token.");
  reply.last = true;  // the browser may show another certificate on its next connection
  return reply;
}

// Returns the form for a visitor without a sign-in; its token belongs to a cookie that is set with it.
Reply sign_in_form(const Request& request, const std::string& wrong) {
  Reply reply;
  std::string value = field(request.cookies, kFormCookie);
  if (value.empty()) {
    value = random_text();
    reply.cookies.push_back(cookie(kFormCookie, value, request.encrypted));
  }
  reply.status = wrong.empty() ? 200 : 403;
  reply.body = sign_in_page(csrf_of(value), request.certificate.holder, wrong);
  return reply;
}

Reply signed_out(const Request& request) {
  Reply reply = redirection("sign-in");
  reply.cookies.push_back(cookie(kTicketCookie, "", request.encrypted));
  return reply;
}

Reply signed_in(const Request& request, const std::string& ticket) {
  Reply reply = redirection("overview");
  reply.cookies.push_back(cookie(kTicketCookie, ticket, request.encrypted));
  reply.cookies.push_back(cookie(kFormCookie, "", request.encrypted));
  return reply;
}

bool is_of_this_site(const Request& request, const char* cookie_name) {
  return !is_from_elsewhere(request) && is_csrf_of(field(request.cookies, cookie_name), field(request.form, "csrf"));
}

std::optional<Action> action_named(std::string_view path) {
  if (path == "end") return Action::end;
  if (path == "suspend") return Action::suspend;
  if (path == "resume") return Action::resume;
  return std::nullopt;
}

// Returns the ticket of the request's cookie; empty if the cookie is longer than any ticket.
std::string ticket_of(const Request& request) {
  std::string ticket = field(request.cookies, kTicketCookie);
  return ticket.size() <= kTicketBytesMax ? ticket : std::string();
}

// Returns the token or code in the input, which may be a whole pasted token file, with its comments.
std::string secret_in(const std::string& typed) {
  constexpr std::string_view kPrefix = "gpuwire_";
  constexpr size_t kDigits = 43;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  for (size_t at = typed.find(kPrefix); at != std::string::npos; at = typed.find(kPrefix, at + 1)) {
    const size_t end = typed.find_first_not_of(kAlphabet, at);
    const std::string word = typed.substr(at, end == std::string::npos ? end : end - at);
    if (word.size() == kPrefix.size() + kDigits) return word;
  }
  return typed.substr(0, kSecretBytesMax);
}

std::string text_of(const Json& json, const char* name) {
  auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<UseRow> use_rows(const Json& answer, const char* span) {
  std::vector<UseRow> rows;
  auto history = answer.find("history");
  if (history == answer.end() || !history->is_object() || !history->contains(span)) return rows;
  for (const Json& one : (*history)[span])
    rows.push_back({text_of(one, "tenant"), one.value("gpu", uint64_t(0)), one.value("gpu_s", 0.0)});
  return rows;
}

std::vector<EndedRow> ended_rows(const Json& answer) {
  std::vector<EndedRow> rows;
  auto history = answer.find("history");
  if (history == answer.end() || !history->is_object() || !history->contains("ended")) return rows;
  for (const Json& one : (*history)["ended"]) {
    rows.push_back({.session = one.value("session", uint64_t(0)),
                    .tenant = text_of(one, "tenant"),
                    .user = text_of(one, "user"),
                    .program = text_of(one, "program"),
                    .host = text_of(one, "host"),
                    .cause = text_of(one, "cause"),
                    .begun_unix_s = one.value("begun_unix_s", 0.0),
                    .ended_unix_s = one.value("ended_unix_s", 0.0),
                    .gpu_s = one.value("gpu_s", 0.0),
                    .waited_s = one.value("waited_s", 0.0),
                    .waited_for = text_of(one, "waited_for")});
    for (const Json& gpu : one.value("gpus", Json::array())) rows.back().gpus.push_back(gpu.get<uint64_t>());
  }
  return rows;
}

}  // namespace

Site::Site(boost::asio::io_context& io, ServerChannel& server, Attempts::Clock clock)
    : io_(io), server_(server), clock_(clock), attempts_(clock) {}

void Site::answer(const Request& request, Done done) {
  if (request.post) answer_post(request, std::move(done));
  else answer_get(request, std::move(done));
}

void Site::answer_get(const Request& request, Done done) {
  const std::string ticket = ticket_of(request);
  if (request.path == "style.css") return done(asset(kStyleSheet, "text/css; charset=utf-8"));
  if (request.path == "live.js") return done(asset(kLiveScript, "text/javascript; charset=utf-8"));
  if (request.path == "icon.svg") return done(asset(kIcon, "image/svg+xml"));
  if (!request.certificate.refusal.empty()) return done(certificate_refused(request));
  if (request.path == "sign-in") return done(sign_in_form(request, ""));
  if (auto action = action_named(request.path)) return act(*action, request, std::move(done));
  if (request.path == "events") {
    auto view = view_named(field(request.query, "view"));
    if (!view) return done(message(404, "Not found", "There is no such view."));
    Reply reply;
    reply.live = *view;
    reply.ticket = ticket;
    return done(std::move(reply));
  }
  if (auto view = view_named(request.path)) return show(*view, request, std::move(done));
  done(message(404, "Not found", "There is no such page."));
}

void Site::answer_post(const Request& request, Done done) {
  if (!request.certificate.refusal.empty()) return done(certificate_refused(request));
  if (request.path == "sign-in") return sign_in(request, std::move(done));
  const auto action = action_named(request.path);
  if (!action && request.path != "sign-out") return done(message(404, "Not found", "There is nothing to send here."));
  if (!is_of_this_site(request, kTicketCookie))
    return done(message(403, "Refused", "The form was not sent from this page. Load the page again."));
  if (action) return act(*action, request, std::move(done));
  server_.ask({{"command", "sign_out"}, {"ticket", ticket_of(request)}},
              [request, done = std::move(done)](const auto&) { done(signed_out(request)); });
}

void Site::sign_in(const Request& request, Done done) {
  if (!is_of_this_site(request, kFormCookie))
    return done(sign_in_form(request, "The form was out of date, or cookies are off. Try again."));
  if (field(request.form, "by") == "certificate")
    return sign_in_by_certificate(request, [request, done = std::move(done)](tl::expected<std::string, Reply> ticket) {
      done(ticket ? signed_in(request, *ticket) : std::move(ticket.error()));
    });
  const std::string secret = secret_in(field(request.form, "secret"));
  if (!attempts_.take(request.peer)) {
    Reply reply = sign_in_form(request, "Too many attempts from your address. Wait a minute.");
    reply.status = 429;
    return done(std::move(reply));
  }
  // A token of another tenant than the certificate's is refused; an empty one would be no attempt at all.
  server_.ask({{"command", "sign_in"},
               {"secret", secret},
               {"grant", secret.empty() ? std::string() : request.certificate.grant},
               {"peer", request.peer}},
              lifetime_.guard([this, request, done = std::move(done)](const tl::expected<Json, std::string>& answer) {
                const std::string ticket = answer ? text_of(*answer, "ticket") : std::string();
                if (ticket.empty()) {
                  const std::string why = answer ? text_of(*answer, "error") : answer.error();
                  return done(sign_in_form(request, "Not signed in: " + why + "."));
                }
                attempts_.give_back(request.peer);
                done(signed_in(request, ticket));
              }));
}

// A grant that the server does not have any more is made anew with the browser's next connection.
void Site::sign_in_by_certificate(const Request& request,
                                  std::function<void(tl::expected<std::string, Reply>)> ticket) {
  if (request.certificate.grant.empty())
    return ticket(tl::unexpected(sign_in_form(request, "Not signed in: your browser has shown no certificate.")));
  server_.ask({{"command", "sign_in"}, {"grant", request.certificate.grant}, {"peer", request.peer}},
              [request, ticket = std::move(ticket)](const tl::expected<Json, std::string>& answer) {
                const std::string text = answer ? text_of(*answer, "ticket") : std::string();
                if (!text.empty()) return ticket(text);
                const std::string why = answer ? text_of(*answer, "error") : answer.error();
                Reply reply = sign_in_form(request, "Not signed in: " + why + ".");
                reply.last = true;
                ticket(tl::unexpected(std::move(reply)));
              });
}

// GET shows the confirmation page, POST does it.
void Site::act(Action action, const Request& request, Done done) {
  const std::string ticket = ticket_of(request);
  const auto session = number_field(request.post ? request.form : request.query, "session");
  if (!session) return done(message(400, "Which session?", "The request does not name a session."));
  if (request.post) {
    server_.ask({{"command", request.path}, {"ticket", ticket}, {"session", *session}},
                [action, request, done = std::move(done)](const tl::expected<Json, std::string>& answer) {
                  if (answer && answer->value("signed_out", Json(false)) == true) return done(signed_out(request));
                  if (answer && answer->value("ok", Json(false)) == true) return done(redirection("overview"));
                  const std::string why = answer ? text_of(*answer, "error") : answer.error();
                  if (action == Action::end)
                    return done(message(404, "Nothing was ended", "Nothing was ended: " + why + "."));
                  done(message(403, "Not done", "Not done: " + why + "."));
                });
    return;
  }
  fetch(View::overview, ticket,
        [action, request, ticket, session = *session, done = std::move(done)](const SeenOrRefusal& seen) {
          if (!seen && seen.error().signed_out) return done(signed_out(request));
          if (!seen) return done(message(503, "No answer", seen.error().why));
          for (const SessionMetrics& one : seen->snapshot.sessions) {
            if (one.id != session) continue;
            Reply reply;
            reply.body = confirm_page(action, seen->visitor, session, csrf_of(ticket));
            return done(std::move(reply));
          }
          done(message(404, "Not found", fmt::format("There is no session {}.", session)));
        });
}

// --- views -----------------------------------------------------------------------------------------------------------

Site::SeenOrRefusal Site::seen_in(const tl::expected<Json, std::string>& answer) {
  if (!answer) return tl::unexpected(Refusal{false, answer.error()});
  if (answer->value("ok", Json(false)) != true)
    return tl::unexpected(Refusal{answer->value("signed_out", Json(false)) == true, text_of(*answer, "error")});
  auto found = answer->find("snapshot");
  auto snapshot = found == answer->end()
                      ? tl::expected<Snapshot, std::string>(tl::unexpect, "an answer without figures")
                      : snapshot_from_json(*found);
  if (!snapshot) return tl::unexpected(Refusal{false, snapshot.error()});
  // Without a tenant the visitor is an administrator only if the answer says so explicitly.
  const std::string tenant = text_of(*answer, "tenant");
  if (tenant.empty() && answer->value("administrator", Json(false)) != true)
    return tl::unexpected(Refusal{true, "you are signed out"});
  return Seen{{tenant, text_of(*answer, "user")},
              std::move(*snapshot),
              use_rows(*answer, "day"),
              use_rows(*answer, "month"),
              ended_rows(*answer)};
}

void Site::fetch(View view, const std::string& ticket, std::function<void(SeenOrRefusal)> seen) {
  server_.ask({{"command", "view"}, {"ticket", ticket}, {"history", view == View::history}},
              [seen = std::move(seen)](const tl::expected<Json, std::string>& answer) { seen(seen_in(answer)); });
}

const Snapshot* Site::earlier(const Visitor& visitor) {
  std::erase_if(earlier_, [&](const auto& one) { return clock_() - one.second.taken > kEarlierTime; });
  auto found = earlier_.find(visitor.tenant);
  return found != earlier_.end() && clock_() - found->second.taken >= kFirstInterval ? &found->second.snapshot
                                                                                     : nullptr;
}

// The earlier snapshot stays while it is recent enough for a rate, so that a reader who comes right after another one
// sees rates over a real interval.
void Site::remember(const Visitor& visitor, const Snapshot& snapshot) {
  auto found = earlier_.find(visitor.tenant);
  if (found == earlier_.end() || clock_() - found->second.taken > kEarlierTime / 2)
    earlier_[visitor.tenant] = {clock_(), snapshot};
}

void Site::show(View view, const Request& request, Done done) {
  const std::string ticket = ticket_of(request);
  // A link on another site brings no cookie along, and must not replace the visitor's sign-in by another.
  if (ticket.empty() && !request.certificate.grant.empty() && !is_from_elsewhere(request))
    return show_by_certificate(view, request, std::move(done));
  if (ticket.empty()) return done(redirection("sign-in"));
  fetch(view, ticket, lifetime_.guard([this, view, request, ticket, done = std::move(done)](const SeenOrRefusal& seen) {
    if (!seen && seen.error().signed_out) return done(signed_out(request));
    if (!seen) return done(message(503, "No answer", seen.error().why));
    if (earlier(seen->visitor)) return show_seen(view, request, *seen, done);
    // Rates need a second snapshot.
    remember(seen->visitor, seen->snapshot);
    auto timer = std::make_shared<boost::asio::steady_timer>(io_, kFirstInterval);
    timer->async_wait(lifetime_.guard([this, view, request, ticket, done, timer](boost::system::error_code) {
      fetch(view, ticket, lifetime_.guard([this, view, request, done](const SeenOrRefusal& again) {
        if (!again) return done(signed_out(request));
        show_seen(view, request, *again, done);
      }));
    }));
  }));
}

// The answer has the page already, so that a program without cookies gets it, too.
void Site::show_by_certificate(View view, const Request& request, Done done) {
  auto show_to = [this, view, request, done = std::move(done)](tl::expected<std::string, Reply> ticket) mutable {
    if (!ticket) return done(std::move(ticket.error()));
    Request signed_in_now = request;
    signed_in_now.cookies[kTicketCookie] = *ticket;
    show(view, signed_in_now, [request, ticket = *ticket, done = std::move(done)](Reply reply) {
      if (reply.status == 200) reply.cookies.push_back(cookie(kTicketCookie, ticket, request.encrypted));
      done(std::move(reply));
    });
  };
  sign_in_by_certificate(request, lifetime_.guard(std::move(show_to)));
}

void Site::show_seen(View view, const Request& request, const Seen& seen, const Done& done) {
  const Snapshot* before = earlier(seen.visitor);
  const Interval interval(before ? *before : seen.snapshot, seen.snapshot);
  Reply reply;
  reply.body = view_page(view, seen.visitor, parts_of(view, {seen.visitor, interval, seen.day, seen.month, seen.ended}),
                         csrf_of(field(request.cookies, kTicketCookie)));
  remember(seen.visitor, seen.snapshot);
  done(std::move(reply));
}

void Site::refresh(View view, const std::string& ticket, const std::shared_ptr<ViewState>& state, Parts parts) {
  fetch(view, ticket, lifetime_.guard([this, view, state, parts = std::move(parts)](SeenOrRefusal seen) {
    // A failed request is repeated with the next update.
    if (!seen && seen.error().signed_out) return parts(tl::unexpected(seen.error().why));
    if (!seen) return parts(std::vector<Part>());
    const Snapshot* known = earlier(seen->visitor);
    const Snapshot before = state->before ? *state->before : known ? *known : seen->snapshot;
    const Interval interval(before, seen->snapshot);
    std::vector<Part> now = parts_of(view, {seen->visitor, interval, seen->day, seen->month, seen->ended});
    remember(seen->visitor, seen->snapshot);
    state->before = std::move(seen->snapshot);
    parts(std::move(now));
  }));
}

}  // namespace gpuwire::server::web
