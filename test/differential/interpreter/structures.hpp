// The structures that sequences fill and show, by the names of their fields.
#pragma once

#include <cstddef>
#include <string_view>

namespace differential {

struct Field {
  std::string_view name;
  size_t offset = 0;
  size_t bytes = 0;
  bool is_size = false;  // a size_t: no handle and no address has that type
};

struct Structure {
  size_t bytes = 0;
  const Field* fields = nullptr;
  size_t count = 0;

  const Field* find(std::string_view name) const;
};

// Returns null for an unknown name.
const Structure* find_structure(std::string_view name);

}  // namespace differential
