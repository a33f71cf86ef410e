// The function of fmt that formats a message is compiled once (fmt.cpp). spdlog's headers call it in a template of
// their own; without this declaration each unit that logs compiles all conversions of fmt: a sixth of the unit's time.
#pragma once

#include <fmt/format.h>

FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
