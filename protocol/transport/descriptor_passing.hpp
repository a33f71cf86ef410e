// Passing of file descriptors with the bytes of a Unix socket (unix(7), SCM_RIGHTS).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include <sys/types.h>
#include <sys/uio.h>

namespace gpuwire::transport {

inline constexpr size_t kPassedDescriptorsMax = 8;  // with one send

// The descriptors that arrived with some bytes. The destructor closes those that were not taken. Not bound to a thread.
class PassedDescriptors {
 public:
  PassedDescriptors() = default;
  PassedDescriptors(const PassedDescriptors&) = delete;
  PassedDescriptors& operator=(const PassedDescriptors&) = delete;
  ~PassedDescriptors();

  size_t count() const { return count_; }
  // Returns the descriptor, which the caller owns from then on, or -1 if it was taken before.
  int take(size_t index);
  void add(int descriptor);

 private:
  std::array<int, kPassedDescriptorsMax> descriptors_{};
  size_t count_ = 0;
};

// Sends once, without waiting, at most kPassedDescriptorsMax descriptors, which the caller continues to own. Returns
// the number of sent bytes, or -1 with errno, like sendmsg(2).
ssize_t send_with_descriptors(int socket, std::span<const iovec> parts, std::span<const int> descriptors);

struct ReceivedBytes {
  // Like recvmsg(2).
  ssize_t bytes = -1;
  // The packet had more bytes than there was room for; they are lost.
  bool cut = false;
  // More than kPassedDescriptorsMax arrived, or more than this process may open.
  bool descriptors_lost = false;
};
// Receives once, with all descriptors that arrived, however many the sender has passed. The function calls `take` with
// each descriptor, which `take` then owns. The function closes none itself, because closing a descriptor may block the
// caller, and it gives the kernel room for all of them, because the kernel closes those for which there is none.
// descriptors_lost: more arrived than this process may open.
ReceivedBytes receive_with_all_descriptors(int socket, std::span<const iovec> parts,
                                           const std::function<void(int)>& take);
// Receives once. Received descriptors are close-on-exec. `wait`: blocks until something arrives.
ReceivedBytes receive_with_descriptors(int socket, std::span<const iovec> parts, PassedDescriptors& descriptors,
                                       bool wait = false);

}  // namespace gpuwire::transport
