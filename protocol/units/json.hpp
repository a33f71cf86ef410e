// nlohmann's JSON, whose parser and writer are compiled once (cmake/header_libraries/json.cpp): each is a template that
// costs a translation unit more than a second. Other files read and write JSON through these functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace gpuwire {

// Returns the value, or a discarded value if `text` is not JSON.
nlohmann::json parse_json(std::string_view text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);

// The treatment of bytes that are not UTF-8.
using JsonErrorHandler = nlohmann::detail::error_handler_t;

// Returns the text of a value. An indent of -1 gives one line; `ascii` escapes every non-ASCII character. Throws
// json::type_error for bytes that are not UTF-8 under JsonErrorHandler::strict.
std::string dump_json(const nlohmann::json& value, int indent, bool ascii = false,
                      JsonErrorHandler on_error = JsonErrorHandler::strict);
std::string dump_json(const nlohmann::ordered_json& value, int indent, bool ascii = false,
                      JsonErrorHandler on_error = JsonErrorHandler::strict);

}  // namespace gpuwire
