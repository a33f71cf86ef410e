"""generated/forbidden_by_captures.hpp: what a driver refuses while something is captured (`unsafe_in_capture`)."""

from text import banner


def emit(api):
    names = sorted(f.name for f in api.functions if f.unsafe_in_capture is True)  # the others ask behind their handle
    rows = "".join(f'    "{name}",\n' for name in names)
    return f"""{banner()}#pragma once

#include <string_view>

namespace gpuwire::api {{

// Exported functions, in alphabetical order.
inline constexpr std::string_view kForbiddenByCaptures[] = {{
{rows}}};

}}  // namespace gpuwire::api
"""
