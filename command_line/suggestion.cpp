#include "command_line/suggestion.hpp"

#include <algorithm>

namespace gpuwire {
namespace {

// The distance of Damerau and Levenshtein; two neighbours that changed places count as one edit.
size_t edits(std::string_view from, std::string_view to) {
  std::vector<std::vector<size_t>> table(from.size() + 1, std::vector<size_t>(to.size() + 1));
  for (size_t i = 0; i <= from.size(); ++i) {
    for (size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        table[i][j] = i + j;
        continue;
      }
      table[i][j] =
          std::min({table[i - 1][j - 1] + (from[i - 1] != to[j - 1]), table[i - 1][j] + 1, table[i][j - 1] + 1});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
    }
  }
  return table[from.size()][to.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_edits = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // A word that stops early is meant whole.
    size_t distance = word.size() >= 2 && candidate.starts_with(word) ? 1 : edits(word, candidate);
    if (distance >= best_edits) continue;
    best = candidate;
    best_edits = distance;
  }
  return best;
}

}  // namespace gpuwire
