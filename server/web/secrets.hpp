// Tokens that prove that a form was sent from the page itself.
#pragma once

#include <string>
#include <string_view>

namespace gpuwire::server::web {

// Returns 32 random bytes in hexadecimal digits. The system's source of randomness never fails once it is seeded.
std::string random_text();
// Returns the token of a cookie, for the forms of a page; it cannot be derived without the cookie.
std::string csrf_of(std::string_view cookie);
// Whether `shown` is the cookie's token; the time does not depend on where they differ. An empty cookie has no token.
bool is_csrf_of(std::string_view cookie, std::string_view shown);

}  // namespace gpuwire::server::web
