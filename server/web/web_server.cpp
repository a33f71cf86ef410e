#include "server/web/web_server.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <sys/socket.h>

#include "server/web/arrival.hpp"
#include "server/web/limits.hpp"

namespace gpuwire::server::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
// Of TCP, or of the pair with the process that speaks TLS.
using Socket = asio::generic::stream_protocol::socket;
using boost::system::error_code;

// The page loads only its own resources, has no inline code or style, and cannot be framed.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'";

void add_headers(http::fields& fields, bool may_be_kept) {
  fields.set(http::field::server, "gpuwire-web");
  fields.set("Content-Security-Policy", kPolicy);
  fields.set("X-Content-Type-Options", "nosniff");
  fields.set(http::field::x_frame_options, "DENY");
  fields.set("Referrer-Policy", "no-referrer");
  fields.set("Cross-Origin-Opener-Policy", "same-origin");
  fields.set("Cross-Origin-Resource-Policy", "same-origin");
  fields.set(http::field::cache_control, may_be_kept ? "max-age=300" : "no-store");
}

std::string text_of(beast::string_view text) { return {text.data(), text.size()}; }

// Facts about a connection.
struct Origin {
  std::string peer;  // its address
  bool tls = false;
  Certificate certificate = {};
};

Request request_of(const http::request<http::string_body>& message, const Origin& origin) {
  Request request;
  request.post = message.method() == http::verb::post;
  std::string target = text_of(message.target());
  const size_t question = target.find('?');
  if (question != std::string::npos) request.query = form_fields(std::string_view(target).substr(question + 1));
  request.path = target.substr(0, question);
  if (request.path.starts_with('/')) request.path.erase(0, 1);
  if (request.post) request.form = form_fields(message.body());
  request.cookies = cookie_fields(text_of(message[http::field::cookie]));
  request.peer = origin.peer;
  request.fetch_site = text_of(message["Sec-Fetch-Site"]);
  request.encrypted = origin.tls || message["X-Forwarded-Proto"] == "https";
  request.certificate = origin.certificate;
  return request;
}

std::string address_of(const tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? std::string("?") : endpoint.address().to_string();
}

// One event of a stream: a part that has changed.
std::string event_of(const Part& part) {
  return "event: part\ndata: " + dump({{"id", part.id}, {"html", part.html.str()}}) + "\n\n";
}

}  // namespace

class WebServer::Connection : public std::enable_shared_from_this<Connection> {
  // The guard keeps the connection alive for the callback, and drops the callback when the server is gone.
  template <class Callback>
  auto guard(Callback callback) {
    return server_.lifetime_.guard([self = shared_from_this(), callback = std::move(callback)](auto&&... more) mutable {
      if (self->open_) callback(std::forward<decltype(more)>(more)...);
    });
  }

 public:
  Connection(WebServer& server, Socket socket, Origin origin)
      : server_(server), origin_(std::move(origin)), stream_(std::move(socket)), timer_(server.io_) {}

  bool live() const { return state_ != nullptr; }
  void abort() {
    if (!std::exchange(open_, false)) return;
    if (state_) server_.close_stream(ticket_);
    timer_.cancel();
    stream_.close();
  }

  void read() {
    parser_.emplace();
    parser_->header_limit(kRequestHeadBytesMax);
    parser_->body_limit(kFormBytesMax);
    stream_.expires_after(served_ == 0 ? kRequestTime : kIdleTime);
    http::async_read(stream_, buffer_, *parser_, guard([this](error_code error, size_t) {
                       if (!error) return handle();
                       if (error == http::error::header_limit) return refuse(431, "The request's head is too long.");
                       if (error == http::error::body_limit) return refuse(413, "The form is too long.");
                       const bool malformed =
                           error.category() == http::make_error_code(http::error::bad_method).category();
                       if (malformed && error != http::error::end_of_stream) return refuse(400, "This is no request.");
                       end();
                     }));
  }

 private:
  void refuse(unsigned status, const char* why) {
    keep_ = false;
    Reply reply;
    reply.status = status;
    reply.type = "text/plain; charset=utf-8";
    reply.body = std::string(why) + "\n";
    write(std::move(reply));
  }

  void handle() {
    ++served_;
    const auto& message = parser_->get();
    keep_ = message.keep_alive();
    without_body_ = message.method() == http::verb::head;
    if (message.method() != http::verb::get && message.method() != http::verb::post && !without_body_)
      return refuse(405, "Only GET, HEAD and POST are answered.");
    stream_.expires_after(kRequestTime);
    server_.site_.answer(request_of(message, origin_), guard([this](Reply reply) {
                           if (reply.live) return begin_stream(*reply.live, reply.ticket);
                           write(std::move(reply));
                         }));
  }

  void write(Reply reply) {
    auto response = std::make_shared<http::response<http::string_body>>(http::status(reply.status), 11);
    add_headers(*response, reply.may_be_kept);
    response->set(http::field::content_type, reply.type);
    if (!reply.location.empty()) response->set(http::field::location, reply.location);
    for (const std::string& cookie : reply.cookies) response->insert(http::field::set_cookie, cookie);
    keep_ = keep_ && !reply.last;
    response->keep_alive(keep_);
    response->body() = std::move(reply.body);
    response->prepare_payload();
    if (without_body_) response->body().clear();
    stream_.expires_after(kRequestTime);
    http::async_write(stream_, *response, guard([this, response](error_code error, size_t) {
                        if (error) return end();
                        if (keep_) return read();
                        error_code ignored;
                        stream_.socket().shutdown(Socket::shutdown_send, ignored);
                        drain();
                      }));
  }

  // Closing with unread bytes would reset the connection and lose the answer: the peer closes first, or the time is up.
  void drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(1024), guard([this](error_code error, size_t) {
                              if (error) return end();
                              drain();
                            }));
  }

  // --- live updates ---

  void begin_stream(View view, const std::string& ticket) {
    if (ticket.empty()) return refuse(403, "You are signed out.");
    if (!server_.open_stream(ticket)) return refuse(503, "Too many windows are live.");
    view_ = view;
    ticket_ = ticket;
    state_ = std::make_shared<ViewState>();
    // The answer has neither a length nor chunks: it ends with the connection.
    out_ = "HTTP/1.1 200 OK\r\n";
    http::fields fields;
    add_headers(fields, false);
    fields.set(http::field::content_type, "text/event-stream; charset=utf-8");
    fields.set(http::field::connection, "close");
    fields.set("X-Accel-Buffering", "no");  // nginx would buffer events
    for (const auto& one : fields) out_ += text_of(one.name_string()) + ": " + text_of(one.value()) + "\r\n";
    out_ += "\r\nretry: 3000\n\n";
    stream_.expires_never();
    watch_for_end();
    send();
  }

  void watch_for_end() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(1024), guard([this](error_code error, size_t) {
                              if (error) return end();
                              watch_for_end();
                            }));
  }

  // Sends `out_`, then starts the timer of the next update. A peer that reads slowly gets fewer updates.
  void send() {
    write_timer();
    asio::async_write(stream_.socket(), asio::buffer(out_), guard([this](error_code error, size_t) {
                        if (error || over_) return end();
                        out_.clear();
                        const auto interval = sent_ ? kLiveInterval : std::chrono::milliseconds(0);
                        sent_ = true;
                        timer_.expires_after(interval);
                        timer_.async_wait(guard([this](error_code stopped) {
                          if (!stopped) refresh();
                        }));
                      }));
  }

  void write_timer() {
    timer_.expires_after(kRequestTime);
    timer_.async_wait(guard([this](error_code stopped) {
      if (!stopped) end();
    }));
  }

  void refresh() {
    server_.site_.refresh(view_, ticket_, state_,
                          guard([this](const tl::expected<std::vector<Part>, std::string>& parts) {
                            if (!parts) {
                              out_ = "event: signed-out\ndata: \n\n";
                              over_ = true;
                              return send();
                            }
                            for (const Part& part : *parts) {
                              std::string& last = shown_[part.id];
                              if (last == part.html.str()) continue;
                              last = part.html.str();
                              out_ += event_of(part);
                            }
                            const auto now = std::chrono::steady_clock::now();
                            if (out_.empty() && now - alive_ >= kStreamSignOfLife) out_ = ": alive\n\n";
                            if (!out_.empty()) alive_ = now;
                            send();
                          }));
  }

  void end() {
    if (!open_) return;
    const auto self = shared_from_this();
    abort();
    server_.leave(self);
  }

  WebServer& server_;
  const Origin origin_;
  beast::basic_stream<asio::generic::stream_protocol> stream_;
  asio::steady_timer timer_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  bool open_ = true, keep_ = false, without_body_ = false;
  uint64_t served_ = 0;
  // State of a stream.
  View view_ = View::overview;
  std::string ticket_, out_;
  std::shared_ptr<ViewState> state_;  // null: no stream
  std::map<std::string, std::string> shown_;
  std::chrono::steady_clock::time_point alive_ = std::chrono::steady_clock::now();
  bool sent_ = false, over_ = false;
};

WebServer::WebServer(asio::io_context& io, Site& site)
    : io_(io), site_(site), acceptor_(io), accept_timer_(io), arrivals_(io) {}

void WebServer::serve(OwnedDescriptor listening) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  acceptor_.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), listening.release());
  accept();
}

void WebServer::serve_arrivals(OwnedDescriptor pair, std::function<void()> gone) {
  arrivals_.assign(pair.release());
  gone_ = std::move(gone);
  receive();
}

WebServer::~WebServer() {
  for (auto& connection : std::exchange(connections_, {})) connection->abort();
}

void WebServer::accept() {
  acceptor_.async_accept(lifetime_.guard([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      std::fprintf(stderr, "accept: %s\n", error.message().c_str());
      accept_timer_.expires_after(kAcceptRetry);
      accept_timer_.async_wait(lifetime_.guard([this](error_code stopped) {
        if (!stopped) accept();
      }));
      return;
    }
    Origin origin{address_of(socket)};
    if (make_room()) add(std::make_shared<Connection>(*this, std::move(socket), std::move(origin)));
    accept();
  }));
}

void WebServer::receive() {
  arrivals_.async_wait(asio::posix::stream_descriptor::wait_read, lifetime_.guard([this](error_code error) {
    bool over = bool(error);
    std::optional<Arrival> arrival = over ? std::nullopt : receive_arrival(arrivals_.native_handle(), over);
    if (over) return gone_();
    if (arrival && make_room()) {
      Socket socket(io_, asio::local::stream_protocol(), arrival->socket.release());
      Origin origin{std::move(arrival->peer), true, std::move(arrival->certificate)};
      add(std::make_shared<Connection>(*this, std::move(socket), std::move(origin)));
    }
    receive();
  }));
}

void WebServer::add(std::shared_ptr<Connection> connection) {
  connections_.push_back(std::move(connection));
  connections_.back()->read();
}

// Streams have a bound of their own, which leaves places for other connections.
bool WebServer::make_room() {
  if (connections_.size() < kConnectionsMax) return true;
  auto oldest = std::ranges::find_if(connections_, [](const auto& one) { return !one->live(); });
  if (oldest == connections_.end()) return false;
  const auto pushed_out = *oldest;
  connections_.erase(oldest);
  pushed_out->abort();
  return true;
}

bool WebServer::open_stream(const std::string& ticket) {
  if (stream_count_ >= kStreamsMax) return false;
  auto found = streams_.find(ticket);
  if (found != streams_.end() && found->second >= kStreamsPerSignInMax) return false;
  ++streams_[ticket];
  ++stream_count_;
  return true;
}

void WebServer::close_stream(const std::string& ticket) {
  auto found = streams_.find(ticket);
  if (found == streams_.end()) return;
  if (--found->second == 0) streams_.erase(found);
  --stream_count_;
}

}  // namespace gpuwire::server::web
