// Words that are almost right.
#pragma once

#include <string_view>
#include <vector>

namespace gpuwire::server {

// Which of `known` the writer of `word` may have meant; "": none is near.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace gpuwire::server
