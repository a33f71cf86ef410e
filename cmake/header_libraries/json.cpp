// The parser and the writer of nlohmann's JSON, compiled once (fmt.cpp says why).
#include "protocol/units/json.hpp"

namespace gpuwire {

nlohmann::json parse_json(std::string_view text) { return nlohmann::json::parse(text, nullptr, false); }

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  return nlohmann::ordered_json::parse(text, nullptr, false);
}

std::string dump_json(const nlohmann::json& value, int indent, bool ascii, JsonErrorHandler on_error) {
  return value.dump(indent, ' ', ascii, on_error);
}

std::string dump_json(const nlohmann::ordered_json& value, int indent, bool ascii, JsonErrorHandler on_error) {
  return value.dump(indent, ' ', ascii, on_error);
}

}  // namespace gpuwire
