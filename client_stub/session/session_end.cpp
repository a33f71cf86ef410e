// How a session ends: closed by the program, left by a thread in the middle of a call, or lost.
#include <chrono>
#include <thread>
#include <vector>

#include "client_stub/session/connected_session.hpp"
#include "protocol/threads/held_mutex.hpp"

namespace gpuwire::client {

namespace {

using Clock = std::chrono::steady_clock;

// close() spends this time on sending buffered bytes, and the same on taking the locks.
constexpr std::chrono::milliseconds kCloseEffort{200};
constexpr int kThreadEndMs = 500;

}  // namespace

void ConnectedSession::end(CUresult result, std::string reason, bool notify) {
  // If the server answers the goodbye by closing, that is close()'s expected end.
  bool closing = closing_.load(std::memory_order_relaxed);
  if (closing) result = CUDA_ERROR_DEINITIALIZED;
  {
    std::lock_guard lock(receive_mutex_);
    if (ending_) return;
    ending_ = true;
  }
  if (progress_) progress_->stop();
  // The line is printed before another thread's call fails, because the program may end at once when it does.
  if (notify && !closing) this->notify(reason);
  {
    std::lock_guard lock(receive_mutex_);
    ended_result_.store(result, std::memory_order_release);
  }
  link_.end();
  notify_everybody();
  if (notify && !closing) notices_.ended(result, reason);
}

bool ConnectedSession::locks_are_free() noexcept {
  const auto deadline = Clock::now() + kCloseEffort;
  for (;;) {
    const bool role = receive_mutex_.try_lock();
    const bool link = link_.try_lock();
    if (role) receive_mutex_.unlock();
    if (link) link_.unlock();
    if (role && link) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
}

void ConnectedSession::hang_up() noexcept {
  if (forked_.load(std::memory_order_relaxed) || closing_.exchange(true) || ended()) return;
  if (!receive_mutex_.try_lock()) return;
  const bool receives = receiving_ && pthread_equal(receiver_thread_, pthread_self());
  receive_mutex_.unlock();
  outgoing_.try_goodbye(receives);
}

bool ConnectedSession::forget_left_calls(bool had_received) {
  std::vector<uint64_t> external;  // positions behind bulk that is read from their memory
  bool well = true;
  {
    std::unique_lock lock(receive_mutex_);
    const pthread_t self = pthread_self();
    calls_.for_each([&](PendingCall* call) {
      const bool own = pthread_equal(call->thread, self) && !call->aside;
      if (had_received && call->filling) {
        call->filling = false;
        well = well && own;
        call->arrived = own;  // the remaining bytes are skipped
        if (own) --awaited_;
      }
      if (!own) return;
      call->asleep = true;
      while (call->filling) call->changed.wait(lock);
      if (call->external && call->bytes_end) external.push_back(call->bytes_end);
      if (!call->arrived) --awaited_;
      if (call->arrived || !call->bytes_end) return calls_.remove(call);
      calls_.set_aside(call, true);
      call->left = true;
      call->sink = {};
    });
  }
  for (uint64_t end : external) link_.forget_external(end);
  return well;
}

void ConnectedSession::take_back_from_left_call() noexcept try {
  if (forked_.load(std::memory_order_relaxed)) return;
  bool well = !take_from_this_thread(receive_mutex_);
  outgoing_.take_back_from_left_call();
  bool had_received = false;
  {
    std::lock_guard lock(receive_mutex_);
    had_received = receiving_ && pthread_equal(receiver_thread_, pthread_self());
  }
  well = well && !(had_received && handling_);
  leave_notice_handler();
  well = link_.take_back_from_left_call(had_received) && well;
  well = forget_left_calls(had_received) && well;
  if (had_received) {
    handling_ = false;
    std::unique_lock lock(receive_mutex_);
    pass_on_role(lock);
  }
  if (well) return;
  end(CUDA_ERROR_DEVICE_UNAVAILABLE, "the program has left a call in the middle, and with it what the session needs",
      true);
} catch (const std::exception&) {
  end(CUDA_ERROR_OUT_OF_MEMORY, "out of memory", true);
}

void ConnectedSession::close() noexcept {
  if (forked_.load(std::memory_order_relaxed) || closing_.exchange(true)) return;
  if (!locks_are_free()) return;
  if (!ended()) {
    outgoing_.append_control(wire::ControlOrdinal::goodbye);
    auto deadline = Clock::now() + kCloseEffort;
    while (!outgoing_.all_sent() && Clock::now() < deadline) {
      link_.pump();
      if (!outgoing_.all_sent()) link_.wait(transport::kWritable, deadline - Clock::now());
    }
  }
  if (lane_opener_) lane_opener_->stop();
  end(CUDA_ERROR_DEINITIALIZED, "closed", false);
  thread_.stop(kThreadEndMs);
}

void ConnectedSession::after_fork_in_child() noexcept {
  if (!forked_.exchange(true, std::memory_order_relaxed)) link_.abandon_after_fork();
}

}  // namespace gpuwire::client
