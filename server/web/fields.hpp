// Forms, queries and cookies, as strangers send them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace gpuwire::server::web {

using Fields = std::map<std::string, std::string, std::less<>>;

// application/x-www-form-urlencoded. Of more than kFieldsMax, and of several with one name, the first count.
Fields form_fields(std::string_view text);
// A Cookie header.
Fields cookie_fields(std::string_view header);
// Empty: there is none.
std::string field(const Fields& fields, std::string_view name);
// A number in decimal digits.
std::optional<uint64_t> number_field(const Fields& fields, std::string_view name);

}  // namespace gpuwire::server::web
