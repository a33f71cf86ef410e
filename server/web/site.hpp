// Site handles a visitor's requests, independent of HTTP.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tl/expected.hpp>

#include "server/web/attempts.hpp"
#include "server/web/fields.hpp"
#include "server/web/server_channel.hpp"
#include "server/web/pages.hpp"
#include "server/web/views.hpp"

namespace gpuwire::server::web {

// The certificate that was shown on a connection; without one, all is empty.
struct Certificate {
  // It counts: by this grant it signs its owner in.
  std::string grant;
  // Its owner, as in "course/anna".
  std::string holder;
  // It does not count: why.
  std::string refusal;
};

struct Request {
  bool post = false;
  // Without the slash before it and without the query.
  std::string path;
  Fields query, form, cookies;
  // Its address.
  std::string peer;
  // Sec-Fetch-Site: the browser's statement of the request's origin.
  std::string fetch_site;
  // By TLS of this process or, as it reports, of a proxy.
  bool encrypted = false;
  Certificate certificate = {};
};

struct Reply {
  unsigned status = 200;
  std::string type = "text/html; charset=utf-8";
  std::string body;
  // The target of a redirection.
  std::string location;
  // Cookies to set.
  std::vector<std::string> cookies;
  // By the browser's cache.
  bool may_be_kept = false;
  // The connection is closed behind it.
  bool last = false;
  // Instead of a body: updates of this view, for the visitor of `ticket`.
  std::optional<View> live;
  std::string ticket;
};

struct ViewState {
  std::optional<Snapshot> before;
};

// One thread. It shows and does only what the server grants to the ticket in the visitor's cookie.
class Site {
 public:
  using Done = std::function<void(Reply)>;
  Site(boost::asio::io_context& io, ServerChannel& server, Attempts::Clock clock = &std::chrono::steady_clock::now);

  // `done` is called once, perhaps before this returns.
  void answer(const Request& request, Done done);

  // Returns the present parts of a view, with rates since the last call with this `state`. The error: the visitor is
  // signed out.
  using Parts = std::function<void(tl::expected<std::vector<Part>, std::string>)>;
  void refresh(View view, const std::string& ticket, const std::shared_ptr<ViewState>& state, Parts parts);

 private:
  // The server's answer for a view.
  struct Seen {
    Visitor visitor;
    Snapshot snapshot;
    std::vector<UseRow> day, month;
    std::vector<EndedRow> ended;
  };
  struct Refusal {
    bool signed_out = false;
    std::string why;
  };
  using SeenOrRefusal = tl::expected<Seen, Refusal>;
  static SeenOrRefusal seen_in(const tl::expected<Json, std::string>& answer);

  void answer_get(const Request& request, Done done);
  void answer_post(const Request& request, Done done);
  void show(View view, const Request& request, Done done);
  void show_by_certificate(View view, const Request& request, Done done);
  void fetch(View view, const std::string& ticket, std::function<void(SeenOrRefusal)> seen);
  void show_seen(View view, const Request& request, const Seen& seen, const Done& done);
  void sign_in(const Request& request, Done done);
  void sign_in_by_certificate(const Request& request, std::function<void(tl::expected<std::string, Reply>)> ticket);
  void act(Action action, const Request& request, Done done);
  const Snapshot* earlier(const Visitor& visitor);
  void remember(const Visitor& visitor, const Snapshot& snapshot);

  struct Earlier {
    std::chrono::steady_clock::time_point taken;
    Snapshot snapshot;
  };
  boost::asio::io_context& io_;
  ServerChannel& server_;
  const Attempts::Clock clock_;
  Attempts attempts_;
  // By tenant; empty: an administrator's.
  std::map<std::string, Earlier> earlier_;
  Lifetime lifetime_;
};

// The names of the cookies.
inline constexpr const char *kTicketCookie = "gpuwire_sign_in", *kFormCookie = "gpuwire_form";

}  // namespace gpuwire::server::web
