#include "server/software_device/execution/rounding_mode.hpp"

namespace gpuwire::software_device {

RoundingScope::RoundingScope(Rounding rounding) {
  switch (rounding) {
    case Rounding::toward_zero: std::fesetround(FE_TOWARDZERO); break;
    case Rounding::down: std::fesetround(FE_DOWNWARD); break;
    case Rounding::up: std::fesetround(FE_UPWARD); break;
    default: std::fesetround(FE_TONEAREST); break;
  }
}

RoundingScope::~RoundingScope() { std::fesetround(FE_TONEAREST); }

}  // namespace gpuwire::software_device
