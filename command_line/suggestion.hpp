// Suggests the word that a user has meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpuwire {

// The candidate that the fewest edits (a character more, less or other, two that changed places) lead to; empty when
// even that one is nothing like `word`.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace gpuwire
