// Memory of this process that stays where it is for a while, told to whoever may use it from elsewhere meanwhile: a
// network card that reads and writes it in place. Any thread.
#pragma once

#include <cstddef>

namespace gpuwire::server {

class StayingMemory {
 public:
  virtual ~StayingMemory() = default;
  virtual void offer(std::byte* memory, size_t bytes) = 0;
  // Nobody else uses it any more. False: somebody may, so it has to stay.
  virtual bool take_back(const std::byte* memory) = 0;
};

}  // namespace gpuwire::server
