#include "command_line/terminal/top_view.hpp"

#include <algorithm>

namespace gpuwire {
namespace {

constexpr char kControlC = 3;
constexpr const char* kKeys = "q quit   sort by: g GPU  m memory  l link  t tenant  i number   j k scroll";

}  // namespace

bool TopView::press(char key) {
  switch (key) {
    case 'q':
    case 'Q':
    case kControlC: return false;
    case 'g': sort_ = "gpu"; break;
    case 'm': sort_ = "memory"; break;
    case 'l': sort_ = "link"; break;
    case 't': sort_ = "tenant"; break;
    case 'i': sort_ = "id"; break;
    case 'j': ++first_line_; break;
    case 'k': first_line_ -= first_line_ > 0; break;
  }
  return true;
}

void TopView::draw(Terminal& terminal, const std::vector<std::string>& lines) {
  // The last line does not go further up than the last row.
  first_line_ = std::min(first_line_, lines.size() - std::min(lines.size(), terminal.rows()));
  terminal.draw(lines, first_line_, std::string(kKeys).substr(0, terminal.columns()));
}

}  // namespace gpuwire
