// Accounts for memory of the server's machine that a session makes its worker allocate. The worker reserves the memory
// before it allocates it, and the holder of the memory releases it.
#pragma once

#include <cstdint>
#include <utility>

namespace gpuwire::server {

// The allowance for a worker's uncounted memory: bounded tables, threads, the driver's own data, pages that an
// allocator keeps.
inline constexpr uint64_t kHostSlackBytes = uint64_t{2} << 30;

// The account of a tenant. Any thread.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Reserves `bytes`. False: they would exceed the tenant's bound.
  virtual bool reserve(uint64_t bytes) = 0;
  virtual void give_back(uint64_t bytes) = 0;
};

// Reserved bytes of an account. The destructor returns them. One thread at a time.
class HostCharge {
 public:
  HostCharge() = default;
  // `account` outlives the charge; null: nothing is counted.
  explicit HostCharge(HostMemory* account) : account_(account) {}
  HostCharge(HostCharge&& other) noexcept : account_(other.account_), bytes_(std::exchange(other.bytes_, 0)) {}
  HostCharge& operator=(HostCharge&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HostCharge() {
    if (account_ && bytes_) account_->give_back(bytes_);
  }

  // False: the account has no room, and nothing has changed.
  [[nodiscard]] bool grow(uint64_t bytes) {
    if (account_ && bytes && !account_->reserve(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  void shrink(uint64_t bytes) {
    if (account_ && bytes) account_->give_back(bytes);
    bytes_ -= bytes;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  HostMemory* account_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace gpuwire::server
