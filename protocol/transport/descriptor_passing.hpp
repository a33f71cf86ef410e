// File descriptors that travel with the bytes of a Unix socket (unix(7), SCM_RIGHTS).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include <sys/types.h>
#include <sys/uio.h>

namespace gpuwire::transport {

inline constexpr size_t kPassedDescriptorsMax = 8;  // at once

// The descriptors that came with some bytes: closed unless they are taken. Not bound to a thread.
class PassedDescriptors {
 public:
  PassedDescriptors() = default;
  PassedDescriptors(const PassedDescriptors&) = delete;
  PassedDescriptors& operator=(const PassedDescriptors&) = delete;
  ~PassedDescriptors();

  size_t count() const { return count_; }
  // The caller's from now on; -1: it was taken already.
  int take(size_t index);
  void add(int descriptor);

 private:
  std::array<int, kPassedDescriptorsMax> descriptors_{};
  size_t count_ = 0;
};

// Sends once, without waiting, at most kPassedDescriptorsMax of them, which stay the caller's. As sendmsg(2): how many
// bytes went, or -1 and errno.
ssize_t send_with_descriptors(int socket, std::span<const iovec> parts, std::span<const int> descriptors);

struct ReceivedBytes {
  ssize_t bytes = -1;             // as recvmsg(2)
  bool cut = false;               // there was no room for more bytes of the packet, which are lost
  bool descriptors_lost = false;  // more than kPassedDescriptorsMax, or than this process may open
};
// Receives once with all descriptors that came, however many their sender has passed: none is closed in here, where the
// kernel closes those for which there is no room, and one whose end waits for somebody would keep the caller. `take` is
// called with each, which is its own from then on. descriptors_lost: more than this process may open.
ReceivedBytes receive_with_all_descriptors(int socket, std::span<const iovec> parts,
                                           const std::function<void(int)>& take);
// Receives once. Received descriptors close on exec. `wait`: blocks until something arrives.
ReceivedBytes receive_with_descriptors(int socket, std::span<const iovec> parts, PassedDescriptors& descriptors,
                                       bool wait = false);

}  // namespace gpuwire::transport
