// Parts of the corpora that consist of bytes and not of the protocol's messages.
#pragma once

#include <functional>
#include <string>

namespace gpuwire::test {

using WriteInput = std::function<void(const std::string& name, const std::string& bytes)>;

// A program image of each kind.
void add_images(const WriteInput& write);
// Messages between the server's processes.
void add_broker_messages(const WriteInput& write);

}  // namespace gpuwire::test
