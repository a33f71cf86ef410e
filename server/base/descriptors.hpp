// The process's limit of descriptors, and a few reserve descriptors for when the limit is reached.
#pragma once

#include <cstddef>
#include <vector>

namespace gpuwire::server {

// Returns the number of descriptors that this process may have open at once.
size_t descriptor_limit();
// Raises that limit as far as the process may. Returns the new limit.
size_t raise_descriptor_limit();
// Returns whether the last call failed because no descriptor, or no memory for one, was left.
bool out_of_descriptors(int error);

// Reserve descriptors without content. The owner closes one of them to open another descriptor in its place.
class SpareDescriptors {
 public:
  explicit SpareDescriptors(size_t count) : count_(count) { refill(); }
  ~SpareDescriptors();
  SpareDescriptors(const SpareDescriptors&) = delete;
  SpareDescriptors& operator=(const SpareDescriptors&) = delete;

  // Opens the missing reserve descriptors, as far as possible.
  void refill();
  // Closes one reserve descriptor. False: none is left.
  bool give_up_one();

 private:
  const size_t count_;
  std::vector<int> open_;
};

}  // namespace gpuwire::server
