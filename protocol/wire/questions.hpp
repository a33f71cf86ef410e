// The names of a tenant's queries (Login.query), which both ends use.
#pragma once

#include <string_view>

namespace gpuwire::wire {

// The refusal of a question that a server does not know. Clients find out by these words that a server is older than
// the question: they stay as they are.
inline constexpr std::string_view kUnknownQuestion = "this server does not know that question";

// In the refusal of a tenant that asks too often; the same holds for these.
inline constexpr std::string_view kAsksTooOften = "the tenant asks too often";

}  // namespace gpuwire::wire
