// Callbacks that may outlive the object that they belong to.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace gpuwire::server {

// A member of the object that callbacks refer to; declared last, so that it is destroyed first. If a handler is already
// queued when its timer, descriptor or signal is cancelled, asio still calls it, without an error: a callback of
// guard() then does nothing. Callbacks are called, and the object is destroyed, on one thread; any thread may guard()
// one as long as the object exists.
class Lifetime {
 public:
  Lifetime() = default;
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  // The callback's return value is discarded.
  template <class Callback>
  auto guard(Callback callback) const {
    return Guarded<Callback>(token_, std::move(callback));
  }

  // For a function whose callees may destroy the object: call watch() before the callees, and access no member once
  // gone() is true.
  class Watch {
   public:
    bool gone() const { return alive_.expired(); }

   private:
    friend class Lifetime;
    explicit Watch(std::weak_ptr<const void> alive) : alive_(std::move(alive)) {}
    std::weak_ptr<const void> alive_;
  };
  Watch watch() const { return Watch(token_); }

 private:
  struct Token {};
  template <class Callback>
  class Guarded {
   public:
    Guarded(std::weak_ptr<const Token> alive, Callback callback)
        : alive_(std::move(alive)), callback_(std::move(callback)) {}
    template <class... Arguments>
    requires std::is_invocable_v<Callback&, Arguments...>
    void operator()(Arguments&&... arguments) {
      if (!alive_.expired()) callback_(std::forward<Arguments>(arguments)...);
    }

   private:
    std::weak_ptr<const Token> alive_;
    Callback callback_;
  };

  std::shared_ptr<const Token> token_ = std::make_shared<const Token>();
};

}  // namespace gpuwire::server
