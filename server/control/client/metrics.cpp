#include "server/control/client/metrics.hpp"

#include <algorithm>
#include <numeric>

namespace gpuwire::server {

void HistogramMetrics::observe(double value) {
  counts.resize(bounds.size() + 1);
  ++counts[size_t(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
  sum += value;
}

uint64_t HistogramMetrics::total() const { return std::accumulate(counts.begin(), counts.end(), uint64_t(0)); }

}  // namespace gpuwire::server
