#include "client_stub/driver/state/device/visible_devices.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <string_view>

namespace gpuwire::client {
namespace {

std::string uuid_text(const CUuuid& uuid) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "gpu-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// -1: no device, or more than one.
int device_named(std::string_view entry, const std::vector<DeviceFacts>& devices) {
  int ordinal = -1;
  if (std::from_chars(entry.data(), entry.data() + entry.size(), ordinal).ec == std::errc())
    return ordinal >= 0 && size_t(ordinal) < devices.size() ? ordinal : -1;
  std::string wanted(entry);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  // The prefix alone names no device, even if there is only one (measured on driver 580).
  if (!wanted.starts_with("gpu-") || wanted == "gpu-") return -1;
  int found = -1;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!uuid_text(devices[i].uuid).starts_with(wanted)) continue;
    if (found >= 0) return -1;
    found = int(i);
  }
  return found;
}

}  // namespace

tl::expected<std::vector<int>, CUresult> visible_devices(const char* text, const std::vector<DeviceFacts>& devices) {
  std::vector<int> visible;
  if (!text) {
    for (size_t i = 0; i < devices.size(); ++i) visible.push_back(int(i));
    return visible;
  }
  std::string_view rest = text;
  while (true) {
    size_t comma = rest.find(',');
    int device = device_named(trimmed(rest.substr(0, comma)), devices);
    if (device < 0) return visible;
    if (std::find(visible.begin(), visible.end(), device) != visible.end())
      return tl::unexpected(CUDA_ERROR_INVALID_DEVICE);
    visible.push_back(device);
    if (comma == std::string_view::npos) return visible;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace gpuwire::client
