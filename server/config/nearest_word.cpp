#include "server/config/nearest_word.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gpuwire::server {

std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& known) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (std::string_view candidate : known) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t(0));
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= candidate.size(); ++j) {
        size_t changed = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace gpuwire::server
