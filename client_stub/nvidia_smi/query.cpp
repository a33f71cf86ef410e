#include "client_stub/nvidia_smi/query.hpp"

#include <algorithm>

namespace gpuwire::nvidia_smi {

namespace {

std::string trimmed(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1);
}

}  // namespace

std::vector<const Property*> find_properties(const std::string& list, std::string& unknown) {
  std::vector<const Property*> found;
  for (size_t begin = 0; begin <= list.size();) {
    size_t end = std::min(list.find(',', begin), list.size());
    std::string name = trimmed(list.substr(begin, end - begin));
    begin = end + 1;
    const Property* property = find_property(name);
    if (!property) {
      unknown = name;
      return {};
    }
    found.push_back(property);
  }
  return found;
}

std::string csv_header(const std::vector<const Property*>& properties, const Format& format) {
  std::string out;
  for (const Property* property : properties) {
    if (!out.empty()) out += ", ";
    out += property->name;
    if (property->unit && format.units) out += std::string(" [") + property->unit + "]";
  }
  return out + "\n";
}

std::string csv_line(const Card& card, const std::vector<const Property*>& properties, const Format& format) {
  std::string out;
  for (const Property* property : properties) {
    if (!out.empty()) out += ", ";
    Value value = property->get(card);
    // If the header shows no unit for a field, the value has none.
    bool unit = format.units && property->unit;
    out += !value.known ? "[" + value.text + "]" : unit ? value.with_unit() : value.text.str();
  }
  return out + "\n";
}

}  // namespace gpuwire::nvidia_smi
