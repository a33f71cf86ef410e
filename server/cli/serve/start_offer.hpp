// The server's answer to the query whether a program would start now: `check` of schema/login.capnp.
#pragma once

#include <optional>
#include <string>

#include "server/broker/admission/admission.hpp"
#include "server/control/view/metrics_view.hpp"

namespace gpuwire::server {

// The largest number of GPUs in an answer.
inline constexpr size_t kOfferedGpusMax = 64;

// `interval`: the present figures, of all tenants. `start_after_s`: the estimated wait of a program that would wait;
// nothing: unknown.
std::string start_offer(const AdmissionPreview& preview, const Interval& interval, std::optional<double> start_after_s);

// Returns the run times of the programs that use one of these GPUs.
std::vector<double> ages_s(const Snapshot& now, const std::vector<scheduler::DeviceIndex>& devices);

}  // namespace gpuwire::server
