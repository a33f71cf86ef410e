// The channel by which a process gives its account's page to the process that prints it when the program cannot: a
// socket in the abstract namespace, whose name is in the environment. Nothing stays open between them: a pidfd reports
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

// The objects that a process hands over.
struct HandedAccount {
  OwnedDescriptor process;  // a pidfd: readable when the process has ended
  OwnedDescriptor page;     // a memfd that holds an AccountPage
  OwnedDescriptor error;    // its standard error
};

// A listening socket, and the name for kAccountsVariable. Empty: cannot be had.
struct AccountListener {
  OwnedDescriptor socket;
  std::string name;
};
AccountListener listen_for_accounts() noexcept;

// Hands the calling process's page over, with its standard error. False: nobody listens there, or another user does, or
// not in time to be waited for. Waits for nothing.
bool hand_account_over(const char* name, int page) noexcept;

// The next connection. Empty: none waits. One of another user is dropped.
OwnedDescriptor accept_account(const OwnedDescriptor& listener) noexcept;
// The received objects, once it is readable. Nothing: they are invalid.
std::optional<HandedAccount> receive_account(const OwnedDescriptor& connection) noexcept;

// A pidfd of the calling process. Empty: Linux before 5.3.
OwnedDescriptor own_process() noexcept;

}  // namespace gpuwire::client
