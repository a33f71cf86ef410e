// Prometheus' text format 0.0.4, the content of a scrape.
#pragma once

#include <string>
#include <vector>

#include <prometheus/metric_family.h>

namespace gpuwire::server {

// Gauges, counters and histograms; the bytes are those that prometheus-cpp's own TextSerializer writes.
std::string text_of(const std::vector<prometheus::MetricFamily>& families);

}  // namespace gpuwire::server
