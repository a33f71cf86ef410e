// The names of a tenant's queries (Login.query), which both ends use.
#pragma once

#include <string_view>

namespace gpuwire::wire {

// The text of the refusal of an unknown query. Clients recognise an older server by this text, so it must never change.
inline constexpr std::string_view kUnknownQuestion = "this server does not know that question";

// The text in the refusal of a tenant whose queries are too frequent. Clients recognise it, too, so it must never
// change.
inline constexpr std::string_view kAsksTooOften = "the tenant asks too often";

}  // namespace gpuwire::wire
