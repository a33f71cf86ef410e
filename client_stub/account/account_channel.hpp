// The channel by which a process passes its account's page to the watch, which prints it if the program cannot: a
// socket in the abstract namespace, whose name is in the environment. The two keep no connection open: a pidfd reports
// the process's end.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace gpuwire::client {

inline constexpr const char* kAccountsVariable = "GPUWIRE_ACCOUNTS";  // the socket's name, without its first zero

// Owns a file descriptor.
class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~OwnedDescriptor();

  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// The objects that a process passes to the watch.
struct HandedAccount {
  // A pidfd: readable when the process has ended.
  OwnedDescriptor process;
  // A memfd that holds an AccountPage.
  OwnedDescriptor page;
  // Its standard error.
  OwnedDescriptor error;
};

// A listening socket, and the name for kAccountsVariable. Empty: unavailable.
struct AccountListener {
  OwnedDescriptor socket;
  std::string name;
};
AccountListener listen_for_accounts() noexcept;

// Passes the calling process's page and standard error to the listener, without waiting. Returns false if no process of
// this user listens there, or the listener's queue is full.
bool hand_account_over(const char* name, int page) noexcept;

// Accepts the next connection. Empty: none is pending. A connection of another user is closed.
OwnedDescriptor accept_account(const OwnedDescriptor& listener) noexcept;
// Receives the objects when the connection is readable. Returns nothing if they are invalid.
std::optional<HandedAccount> receive_account(const OwnedDescriptor& connection) noexcept;

// Returns a pidfd of the calling process. Empty: Linux before 5.3.
OwnedDescriptor own_process() noexcept;

}  // namespace gpuwire::client
