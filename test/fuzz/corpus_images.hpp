// Parts of the corpora that are made of bytes and not of messages of the wire.
#pragma once

#include <functional>
#include <string>

namespace gpuwire::test {

using WriteInput = std::function<void(const std::string& name, const std::string& bytes)>;

// A program image of each kind.
void add_images(const WriteInput& write);
// What the server's processes say to each other.
void add_broker_messages(const WriteInput& write);

}  // namespace gpuwire::test
