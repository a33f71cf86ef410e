#include "server/cli/serve/start_offer.hpp"

#include <algorithm>
#include <variant>

#include <fmt/format.h>

#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::server {
namespace {

std::string one_line(std::string text) {
  wire::blank_unshown(text);
  return text;
}

std::string gpu_line(const DeviceMetrics& device, const Interval& interval) {
  const uint64_t free = device.memory_bytes - std::min(device.memory_bytes, device.memory_held_bytes);
  const auto busy = unsigned(std::clamp(interval.gpu_share(device), 0.0, 1.0) * 1000);
  return fmt::format("gpu {} {} {} {} {}\n", free, device.memory_bytes, device.sessions, busy, one_line(device.name));
}

}  // namespace

std::string start_offer(const AdmissionPreview& preview, const Interval& interval,
                        std::optional<double> start_after_s) {
  std::string text;
  if (std::holds_alternative<AdmissionGranted>(preview.answer)) text = "start now\n";
  if (auto* refused = std::get_if<AdmissionRefused>(&preview.answer))
    text = fmt::format("start no\nwhy {}\n", one_line(refused->reason));
  if (auto* queued = std::get_if<AdmissionQueued>(&preview.answer)) {
    text = fmt::format("start queued\nplace {}\nwaiting {}\nwhy {}\n", queued->place, queued->waiting,
                       one_line(queued->why));
    if (start_after_s) text += fmt::format("in {:.0f}\n", *start_after_s);
  }
  size_t named = 0;
  for (const DeviceMetrics& device : interval.now().devices) {
    const bool offered =
        std::find(preview.devices.begin(), preview.devices.end(), device.index) != preview.devices.end();
    if (offered && named++ < kOfferedGpusMax) text += gpu_line(device, interval);
  }
  return text;
}

std::vector<double> ages_s(const Snapshot& now, const std::vector<scheduler::DeviceIndex>& devices) {
  std::vector<double> ages;
  for (const SessionMetrics& session : now.sessions) {
    const bool there = std::any_of(session.devices.begin(), session.devices.end(), [&](const auto& one) {
      return std::find(devices.begin(), devices.end(), one.device) != devices.end();
    });
    if (there && session.place == 0) ages.push_back(now.taken_unix_s - session.since_unix_s);
  }
  return ages;
}

}  // namespace gpuwire::server
