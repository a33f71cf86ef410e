// The program's settings on a function that may affect its occupancy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::client {

inline constexpr size_t kOccupancySettingsMax = 8;  // further settings have no name

// The function's settings at the time of a query.
struct OccupancyState {
  // The number of settings so far.
  uint64_t version = 0;
  // The settings as text, by which later programs recognise the state; "0": no settings.
  std::string name = "0";
  // The name is complete: each setting was made by the function's own handle and for the queried device, so that equal
  // settings give the same state.
  bool certain = true;

  // The key of stored answers.
  std::string key() const { return certain ? name : name + '#' + std::to_string(version); }
};

// A value type.
class OccupancySettings {
 public:
  struct Setting {
    // CUfunction_attribute, or kCacheConfig.
    unsigned attribute;
    int device;
    // By this handle; otherwise by another handle of the same function.
    bool own;
    int value;
  };
  static constexpr unsigned kCacheConfig = 1000;

  void set(const Setting& setting);
  uint64_t version() const noexcept { return version_; }
  OccupancyState state(int device) const;
  // For a function that is made from one with these settings.
  OccupancySettings inherited() const;
  // Returns the settings of a state with this name. Nullopt: incomplete, or no such name.
  static std::optional<std::vector<Setting>> parse(std::string_view name);

 private:
  uint64_t version_ = 0;
  // One of each kind; their order does not matter.
  std::vector<Setting> settings_;
};

}  // namespace gpuwire::client
