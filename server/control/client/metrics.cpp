#include "server/control/client/metrics.hpp"

#include <algorithm>
#include <numeric>

namespace gpuwire::server {

void HistogramMetrics::observe(double value) {
  counts.resize(bounds.size() + 1);
  ++counts[size_t(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
  sum += value;
}

void HistogramMetrics::add(const HistogramMetrics& other) {
  if (counts.empty()) *this = other;
  else if (bounds == other.bounds && counts.size() == other.counts.size()) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum += other.sum;
  }
}

uint64_t HistogramMetrics::total() const { return std::accumulate(counts.begin(), counts.end(), uint64_t(0)); }

}  // namespace gpuwire::server
