// fmt, compiled once. Debian ships it as headers and as a shared library; what is linked into other people's processes
// can use neither without a cost: the shared library would be one more that the process needs, and its headers alone,
// with FMT_HEADER_ONLY, double the time that a file takes to compile.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
// What format.h declares as `extern template`, or leaves to the library (fmt 9, fmt/format.h and fmt/core.h).
template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
template locale_ref::locale_ref(const std::locale&);
template std::locale locale_ref::get<std::locale>() const;
template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
