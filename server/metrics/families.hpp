// Converts a server's figures to Prometheus metrics, which docs/monitoring.md lists.
#pragma once

#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "server/control/client/metrics.hpp"

namespace gpuwire::server {

// Null: the server does not answer; gpuwire_up is then 0.
std::vector<prometheus::MetricFamily> metric_families(const Snapshot* snapshot);

// Returns the metrics in the text format 0.0.4 (text_format.hpp).
std::string metrics_text(const Snapshot* snapshot);
inline constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace gpuwire::server
