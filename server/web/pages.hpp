// Whole documents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/web/views.hpp"

namespace gpuwire::server::web {

// `csrf`: the token of the visitor's cookie, for the forms.
std::string view_page(View view, const Visitor& visitor, const std::vector<Part>& parts, const std::string& csrf);
// `holder`: the owner of the certificate that the visitor's browser has shown; empty: there is none. `wrong`: why the
// last attempt failed; empty: there was none.
std::string sign_in_page(const std::string& csrf, const std::string& holder, const std::string& wrong);
enum class Action : uint8_t { end, suspend, resume };
std::string confirm_page(Action action, const Visitor& visitor, uint64_t session, const std::string& csrf);
// `text`: one sentence.
std::string message_page(const std::string& title, const std::string& text);

}  // namespace gpuwire::server::web
