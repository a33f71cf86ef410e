#include "client_stub/session/lane_opener.hpp"

#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <utility>
#include <vector>

#include "client_stub/session/environment.hpp"
#include "protocol/threads/cores.hpp"

namespace gpuwire::client {

namespace {

// Each lane may keep a core busy, and the program needs cores itself.
constexpr unsigned kCoresPerLane = 2, kLanesUsual = 8;

}  // namespace

unsigned lanes_wanted(std::string_view road) {
  if (road != "tcp" && road != "tls") return 0;
  if (const char* wish = setting("GPUWIRE_LANES"); wish && *wish) {
    unsigned lanes = 0;
    std::string_view text = wish;
    auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), lanes);
    if (error == std::errc() && rest == text.data() + text.size()) return std::min(lanes, wire::kLanesMax);
  }
  return std::min(usable_cores() / kCoresPerLane, kLanesUsual);
}

LaneOpener::~LaneOpener() {
  stop();
  std::lock_guard lock(mutex_);
  if (thread_.joinable()) thread_.join();
}

void LaneOpener::poll() noexcept {
  uint64_t passed = link_.bulk_bytes() - link_.lane_bytes();
  if (passed < worth_from_.load(std::memory_order_relaxed) || opening_.load(std::memory_order_acquire) ||
      stopping_.load(std::memory_order_relaxed))
    return;
  begin();
}

void LaneOpener::begin() noexcept {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || opening_.load(std::memory_order_acquire) || link_.lanes() != 0) return;
  if (thread_.joinable()) thread_.join();  // it has ended
  // The program's threads handle the program's signals. The mask is inherited from the creating thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  opening_.store(true, std::memory_order_relaxed);
  try {
    thread_ = std::thread([this] { open(); });
  } catch (const std::exception&) {
    worth_from_.store(~0ull, std::memory_order_relaxed);  // no thread for the lanes either
    opening_.store(false, std::memory_order_release);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LaneOpener::open() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-lanes");
  bool opened = false;
  try {
    opened = open_all();
  } catch (const std::exception&) {  // out of memory
  }
  failures_ = opened ? 0 : std::min(failures_ + 1, kFailuresCounted);
  uint64_t passed = link_.bulk_bytes() - link_.lane_bytes();
  worth_from_.store(passed + (kBulkBytesMin << failures_), std::memory_order_relaxed);
  opening_.store(false, std::memory_order_release);
}

bool LaneOpener::open_all() {
  if (link_.state() != link::Link::State::attached) return false;
  auto beside = link_.transport();
  ++set_;
  std::vector<std::unique_ptr<transport::Transport>> lanes;
  for (unsigned number = 0; number < lanes_; ++number) {
    if (stopping_.load(std::memory_order_relaxed)) return false;
    auto lane = reconnector_.open_lane({.set = set_, .number = uint8_t(number), .count = uint8_t(lanes_)});
    if (!lane) return false;
    lanes.push_back(std::move(*lane));
  }
  return link_.add_lanes(*beside, std::make_shared<link::LaneSet>(std::move(lanes), set_, true));
}

}  // namespace gpuwire::client
