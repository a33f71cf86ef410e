// What proves that a form was sent from the page itself.
#pragma once

#include <string>
#include <string_view>

namespace gpuwire::server::web {

// 32 random bytes in hexadecimal digits. The system's source of randomness never fails once it is seeded.
std::string random_text();
// Of a cookie: stands in the forms of the page that its browser was given, and cannot be told without the cookie.
std::string csrf_of(std::string_view cookie);
// Whether `shown` is the cookie's, in a time that does not depend on where they differ. An empty cookie has none.
bool is_csrf_of(std::string_view cookie, std::string_view shown);

}  // namespace gpuwire::server::web
