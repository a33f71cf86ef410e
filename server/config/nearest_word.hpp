// Words that are almost right.
#pragma once

#include <string_view>
#include <vector>

namespace gpuwire::server {

// Returns the element of `known` that is nearest to `word`; "": none is near.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace gpuwire::server
