// QueryAnswer is the answer to a tenant's query (Login::query).
#pragma once

#include <functional>
#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace gpuwire::server {

// The text; the error refuses.
using QueryResult = tl::expected<std::string, std::string>;

struct QueryAnswer {
  // Takes the answer, once, now or later.
  using Take = std::function<void(const QueryResult&)>;

  QueryAnswer(QueryResult result) : now(std::move(result)) {}  // NOLINT: a result is an answer
  explicit QueryAnswer(std::function<void(Take)> begin) : later(std::move(begin)) {}

  QueryResult now;
  // Not empty: it gives the answer in place of `now`. Called once at most; the requested work begins with the call.
  std::function<void(Take)> later;
};

}  // namespace gpuwire::server
