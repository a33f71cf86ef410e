// The settings of a program on a function on which its occupancy may depend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::client {

inline constexpr size_t kOccupancySettingsMax = 8;  // further settings have no name

// How a function was set when something was asked about it.
struct OccupancyState {
  uint64_t version = 0;  // the number of settings so far
  // The settings in words, by which later programs know the state; "0": nothing is set.
  std::string name = "0";
  // The name is complete: each setting was made by the function's own handle and for the device in question, so that
  // equal settings give the same state.
  bool certain = true;

  // The key of stored answers.
  std::string key() const { return certain ? name : name + '#' + std::to_string(version); }
};

// A value type.
class OccupancySettings {
 public:
  struct Setting {
    unsigned attribute;  // CUfunction_attribute, or kCacheConfig
    int device;
    bool own;  // by this very handle; else by another of the same function
    int value;
  };
  static constexpr unsigned kCacheConfig = 1000;

  void set(const Setting& setting);
  uint64_t version() const noexcept { return version_; }
  OccupancyState state(int device) const;
  // For a function that is made of one with these settings.
  OccupancySettings inherited() const;
  // The settings of a state of this name. Nullopt: it is not certain, or no such name.
  static std::optional<std::vector<Setting>> parse(std::string_view name);

 private:
  uint64_t version_ = 0;
  std::vector<Setting> settings_;  // one of a kind; which was set first does not matter
};

}  // namespace gpuwire::client
