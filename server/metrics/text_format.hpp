// Prometheus' text format 0.0.4, the content of a scrape.
#pragma once

#include <string>
#include <vector>

#include <prometheus/metric_family.h>

namespace gpuwire::server {

// Writes gauges, counters and histograms, with the same bytes as prometheus-cpp's own TextSerializer.
std::string text_of(const std::vector<prometheus::MetricFamily>& families);

}  // namespace gpuwire::server
