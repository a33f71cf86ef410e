// nlohmann's JSON, whose parser and writer are compiled once (cmake/header_libraries/json.cpp): each is a template that
// takes a unit more than a second. Files read and write through these functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace gpuwire {

// Returns: a discarded value where `text` is no JSON.
nlohmann::json parse_json(std::string_view text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);

// The treatment of a byte that is not UTF-8.
using JsonErrorHandler = nlohmann::detail::error_handler_t;

// The text of a value: in one line with an indent of -1; `ascii` escapes every character that is not ASCII.
// Throws: json::type_error for bytes that are not UTF-8 under JsonErrorHandler::strict.
std::string dump_json(const nlohmann::json& value, int indent, bool ascii = false,
                      JsonErrorHandler on_error = JsonErrorHandler::strict);
std::string dump_json(const nlohmann::ordered_json& value, int indent, bool ascii = false,
                      JsonErrorHandler on_error = JsonErrorHandler::strict);

}  // namespace gpuwire
