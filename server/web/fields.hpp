// Forms, queries and cookies, as strangers send them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace gpuwire::server::web {

using Fields = std::map<std::string, std::string, std::less<>>;

// Parses application/x-www-form-urlencoded. Only the first kFieldsMax fields count, and of several with one name the
// first.
Fields form_fields(std::string_view text);
// Parses a Cookie header.
Fields cookie_fields(std::string_view header);
// Returns the field's value; empty: there is none.
std::string field(const Fields& fields, std::string_view name);
// Returns a field of decimal digits as a number.
std::optional<uint64_t> number_field(const Fields& fields, std::string_view name);

}  // namespace gpuwire::server::web
