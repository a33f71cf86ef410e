// The rounding mode of the executing thread.
#pragma once

#include <cfenv>

#include "server/software_device/execution/float_formats.hpp"
#include "server/software_device/ptx/module.hpp"

namespace gpuwire::software_device {

// Sets the mode during its lifetime. The compiler cannot see into the calls at both ends, so operations on values in
// memory stay between them. Files that use this class are compiled with -frounding-math.
class RoundingScope {
 public:
  explicit RoundingScope(Rounding rounding);
  ~RoundingScope();
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;
};

inline Rounding rounding_of(const ptx::Instruction& i) {
  using ptx::Modifier;
  if (i.has(Modifier::rz)) return Rounding::toward_zero;
  if (i.has(Modifier::rm)) return Rounding::down;
  if (i.has(Modifier::rp)) return Rounding::up;
  return Rounding::nearest_even;
}

inline bool has_rounding(const ptx::Instruction& i) {
  using ptx::Modifier;
  return i.has(Modifier::rn) || i.has(Modifier::rz) || i.has(Modifier::rm) || i.has(Modifier::rp);
}

inline constexpr ptx::ModifierSet kRoundings(ptx::Modifier::rn, ptx::Modifier::rz, ptx::Modifier::rm,
                                             ptx::Modifier::rp);

}  // namespace gpuwire::software_device
