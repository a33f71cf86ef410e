#include "client_stub/driver/state/launch/occupancy_settings.hpp"

#include <algorithm>
#include <tuple>

#include "client_stub/driver/process/read_number.hpp"

namespace gpuwire::client {
namespace {

constexpr std::string_view kNothing = "0";
constexpr char kBetween = ',', kOther = '~', kElsewhere = '@';

auto kind_of(const OccupancySettings::Setting& one) { return std::tuple(one.attribute, one.device, one.own); }

}  // namespace

void OccupancySettings::set(const Setting& setting) {
  ++version_;
  const auto at = std::lower_bound(settings_.begin(), settings_.end(), setting,
                                   [](const Setting& a, const Setting& b) { return kind_of(a) < kind_of(b); });
  if (at != settings_.end() && kind_of(*at) == kind_of(setting)) at->value = setting.value;
  else if (settings_.size() <= kOccupancySettingsMax) settings_.insert(at, setting);
}

OccupancyState OccupancySettings::state(int device) const {
  OccupancyState out;
  out.version = version_;
  if (settings_.empty()) return out;
  out.name.clear();
  for (const Setting& one : settings_) {
    if (!out.name.empty()) out.name += kBetween;
    const bool here = one.device == device;
    if (!one.own) out.name += kOther;
    if (!here) out.name += kElsewhere;
    out.certain = out.certain && one.own && here;
    out.name.append(std::to_string(one.attribute)).append("=").append(std::to_string(one.value));
  }
  if (settings_.size() <= kOccupancySettingsMax) return out;
  out.name.clear();
  out.certain = false;
  return out;
}

OccupancySettings OccupancySettings::inherited() const {
  OccupancySettings out = *this;
  for (Setting& one : out.settings_) one.own = false;
  return out;
}

std::optional<std::vector<OccupancySettings::Setting>> OccupancySettings::parse(std::string_view name) {
  std::vector<Setting> out;
  if (name == kNothing) return out;
  for (;;) {
    Setting one{0, 0, true, 0};
    if (!read_number(name, one.attribute) || !name.starts_with('=')) return std::nullopt;
    name.remove_prefix(1);
    if (!read_number(name, one.value) || out.size() == kOccupancySettingsMax) return std::nullopt;
    out.push_back(one);
    if (name.empty()) return out;
    if (name.front() != kBetween) return std::nullopt;
    name.remove_prefix(1);
  }
}

}  // namespace gpuwire::client
