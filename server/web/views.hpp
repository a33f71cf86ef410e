// The content of the page, in parts that are updated one by one when they change.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/control/view/metrics_view.hpp"
#include "server/web/html.hpp"

namespace gpuwire::server::web {

enum class View : uint8_t { overview, history, tenants, server };
struct ViewName {
  View view;
  const char *path, *title;  // the path without a slash before it, so that a proxy may put the page below any path
};
inline constexpr std::array<ViewName, 4> kViews{{{View::overview, "overview", "Now"},
                                                 {View::history, "history", "History"},
                                                 {View::tenants, "tenants", "Tenants"},
                                                 {View::server, "server", "Server"}}};
std::optional<View> view_named(std::string_view path);
const ViewName& name_of(View view);

// Returns "course/anna", or the tenant alone if there is no particular user.
Html owner_name(const std::string& tenant, const std::string& user);

struct Visitor {
  std::string tenant;     // empty: an administrator
  std::string user = {};  // of the tenant; empty: no particular one
  bool administrator() const { return tenant.empty(); }
  // Whether the page offers to end the session; the server decides.
  bool may_end(const SessionMetrics& session) const { return user.empty() || session.user == user; }
};

struct UseRow {
  std::string tenant;  // empty: all other tenants together
  uint64_t gpu = 0;
  double gpu_s = 0;
};

// A session that has ended.
struct EndedRow {
  uint64_t session = 0;
  std::string tenant, user, program, host, cause;
  std::vector<uint64_t> gpus;
  double begun_unix_s = 0, ended_unix_s = 0, gpu_s = 0;
  double waited_s = 0;
  std::string waited_for;  // empty: it has not waited
};

// The server's present answer and an earlier one.
struct Figures {
  Visitor visitor;
  const Interval& interval;
  std::vector<UseRow> day, month;
  std::vector<EndedRow> ended = {};  // the last end first
};

struct Part {
  std::string id;  // of the section
  const char* title;
  Html html;
};
// Returns the sections of a view in order: the same ones each time.
std::vector<Part> parts_of(View view, const Figures& figures);

}  // namespace gpuwire::server::web
