#include "test/scheduler/simulation/hardware.hpp"

#include <algorithm>

namespace gpuwire::scheduler::test {

unsigned HardwareDevice::add_context() {
  contexts_.push_back({});
  return static_cast<unsigned>(contexts_.size() - 1);
}

std::optional<unsigned> HardwareDevice::after(unsigned context) const {
  for (size_t i = 1; i < contexts_.size(); ++i) {
    const size_t next = (context + i) % contexts_.size();
    if (contexts_[next].ready > Duration::zero()) return static_cast<unsigned>(next);
  }
  return std::nullopt;
}

bool HardwareDevice::lone_for_a_slice() const {
  const std::optional<Time>& since = contexts_[current_].lone_since;
  return since && at_ - std::max(*since, slice_begun_) >= times_.slice;
}

Time HardwareDevice::slice_end() const {
  if (!after(current_)) return Time::max();
  if (lone_for_a_slice()) return at_;
  // The slices of a context that runs alone go on one after the other; a newcomer waits for the end of the one that
  // runs.
  const auto slices = std::max<int64_t>(1, (at_ - slice_begun_ + times_.slice - Duration(1)) / times_.slice);
  return slice_begun_ + slices * times_.slice;
}

void HardwareDevice::leave(Time at, Duration cost) {
  const std::optional<unsigned> next = after(current_);
  if (!next) {
    phase_ = Phase::idle;
    return;
  }
  phase_ = Phase::switching;
  current_ = *next;
  at_ = at + cost;
}

void HardwareDevice::advance(Time now, std::vector<HardwareEvent>& events) {
  while (true) {
    if (phase_ == Phase::idle) return;
    if (phase_ == Phase::switching) {
      if (now < at_) return;
      phase_ = Phase::running;
      slice_begun_ = at_;
      ever_ran_ = true;
      events.push_back({HardwareEvent::began, current_, at_});
    }
    Context& context = contexts_[current_];
    const Time end = context.ready >= kEndless ? Time::max() : at_ + context.ready;
    const Time until = std::min({end, slice_end(), now});
    const Duration ran = std::max(Duration::zero(), until - at_);
    if (context.ready < kEndless) context.ready -= ran;
    context.executed += ran;
    context.progress += std::chrono::duration<double>(ran).count() / context.stretch;
    busy_ += ran;
    at_ = std::max(at_, until);
    if (context.ready <= Duration::zero()) {
      events.push_back({HardwareEvent::emptied, current_, at_});
      context.lone_since.reset();
      leave(at_, times_.switch_from_idle);
    } else if (at_ >= slice_end()) {
      leave(at_, lone_for_a_slice() ? times_.switch_from_lone : times_.switch_from_busy);
    } else {
      return;
    }
  }
}

void HardwareDevice::give(unsigned context, Duration work, double stretch, Time now) {
  Context& to = contexts_[context];
  to.ready = work >= kEndless ? kEndless : to.ready + work;
  to.stretch = stretch;
  to.lone_since.reset();
  if (phase_ != Phase::idle || to.ready <= Duration::zero()) return;
  phase_ = Phase::switching;
  at_ = now + (ever_ran_ && current_ == context ? times_.start : times_.switch_from_idle);
  current_ = context;
}

void HardwareDevice::keep(unsigned context, Duration work, std::optional<Time> lone_since) {
  contexts_[context].ready = std::min(contexts_[context].ready, std::max(Duration(1), work));
  contexts_[context].lone_since = lone_since;
}

bool HardwareDevice::drop(unsigned context) {
  if (phase_ != Phase::idle && current_ == context) return false;
  contexts_[context].ready = Duration::zero();
  return true;
}

void HardwareDevice::remove_context(unsigned context, Time now) {
  contexts_[context].ready = Duration::zero();
  if (phase_ != Phase::idle && current_ == context) leave(now, times_.switch_from_idle);
}

std::optional<Time> HardwareDevice::next_event() const {
  if (phase_ == Phase::idle) return std::nullopt;
  if (phase_ == Phase::switching) return at_;
  const Context& context = contexts_[current_];
  const Time end = context.ready >= kEndless ? Time::max() : at_ + context.ready;
  const Time next = std::min(end, slice_end());
  if (next == Time::max()) return std::nullopt;
  return next;
}

}  // namespace gpuwire::scheduler::test
