"""generated/forbidden_by_captures.hpp: the functions that a driver refuses during a capture (`unsafe_in_capture`)."""

from text import banner


def emit(api):
    # The functions with "handle_first" check the capture themselves, after their handle.
    forbidden = sorted((f.name, f.fault_before_capture) for f in api.functions if f.unsafe_in_capture is True)
    rows = "".join(f'    {{"{name}", {str(first).lower()}}},\n' for name, first in forbidden)
    return f"""{banner()}#pragma once

#include <string_view>

namespace gpuwire::api {{

struct ForbiddenByCaptures {{
  std::string_view name;
  bool fault_first;  // what has befallen the context comes before the capture
}};
// Exported functions, in alphabetical order.
inline constexpr ForbiddenByCaptures kForbiddenByCaptures[] = {{
{rows}}};

}}  // namespace gpuwire::api
"""
