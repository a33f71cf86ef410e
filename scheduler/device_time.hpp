// DeviceTime accounts for a device's time: every nanosecond is charged to a session, or is the system's, or idle.
#pragma once

#include <span>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

struct Session;

// A session had work on the device, or held it unused, in [from, to).
struct TimeClaim {
  Session* session = nullptr;
  Time from{};
  Time to{};
};

struct TimeCharge {
  Session* session = nullptr;
  Duration amount{};
};

// A session's busy time in the time to be settled; those of several sessions may add up to more than that time.
struct BusyTime {
  Session* session = nullptr;
  Duration busy{};
};

class DeviceTime {
 public:
  void begin(Time now) { begun_ = settled_ = now; }
  Time settled() const { return settled_; }
  Duration settled_time() const { return settled_ - begun_; }
  Duration system() const { return system_; }
  Duration idle() const { return idle_; }
  Duration charged() const { return charged_; }

  // Settles up to `until`, which must not decrease. Overlapping claims share equally, as the hardware's slices do;
  // unclaimed time is the system's if a session wanted the device, else idle. The returned charges are valid until the
  // next call.
  std::span<const TimeCharge> settle_claims(Time until, std::span<const TimeClaim> claims, bool wanted);
  // As settle_claims(), by measured busy time, which is scaled down if it is more than the elapsed time.
  std::span<const TimeCharge> settle_busy(Time until, std::span<const BusyTime> busy);

 private:
  void charge(Session* session, Duration amount);

  Time begun_{};
  Time settled_{};
  Duration system_{};
  Duration idle_{};
  Duration charged_{};
  std::vector<TimeCharge> charges_;
  std::vector<Time> edges_;
};

}  // namespace gpuwire::scheduler
