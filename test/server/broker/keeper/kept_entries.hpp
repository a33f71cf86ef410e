// A keeper in the test's own memory, with a broker's entries for the next one.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "server/broker/keeper/keeping.hpp"

namespace gpuwire::test {

class KeptEntries final : public server::EntryStore {
 public:
  void put(server::KeptEntry entry) override { entries[entry.name] = std::move(entry); }
  void note(const std::string&, std::string) override {}
  void remove(const std::string& name) override { entries.erase(name); }
  // Returns copies with descriptors of their own.
  std::vector<server::KeptEntry> all() const {
    std::vector<server::KeptEntry> copies;
    for (const auto& [name, entry] : entries) {
      server::KeptEntry& copy =
          copies.emplace_back(server::KeptEntry{.session = false, .name = name, .text = entry.text, .descriptors = {}});
      for (const server::OwnedDescriptor& one : entry.descriptors)
        copy.descriptors.emplace_back(::fcntl(one.get(), F_DUPFD_CLOEXEC, 0));
    }
    return copies;
  }

  std::map<std::string, server::KeptEntry> entries;
};

}  // namespace gpuwire::test
