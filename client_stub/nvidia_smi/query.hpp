// `nvidia-smi --query-gpu=...`: chosen properties as comma-separated values.
#pragma once

#include <string>
#include <vector>

#include "client_stub/nvidia_smi/value.hpp"

namespace gpuwire::nvidia_smi {

struct Property {
  const char* name;
  // Null: it has only one name.
  const char* other_name;
  // In the header; null: none.
  const char* unit;
  Getter get;
};

struct Format {
  bool header = true, units = true;
};

// Returns null for an unknown name.
const Property* find_property(const std::string& name);
// Returns the properties of `list`, separated by commas. On an empty result `unknown` is the first unknown name.
std::vector<const Property*> find_properties(const std::string& list, std::string& unknown);

std::string csv_header(const std::vector<const Property*>& properties, const Format& format);
std::string csv_line(const Card& card, const std::vector<const Property*>& properties, const Format& format);
// For --help-query-gpu.
std::string property_list();

}  // namespace gpuwire::nvidia_smi
