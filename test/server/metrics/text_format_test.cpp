#include "server/metrics/text_format.hpp"

#include <cmath>
#include <limits>
#include <random>

#include <doctest/doctest.h>
#include <prometheus/text_serializer.h>

#include "server/metrics/families.hpp"
#include "test/server/control/sample.hpp"

using namespace gpuwire::server;

namespace {

std::string by_library(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

// Random families of every kind, with names and numbers that need escaping.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  std::vector<prometheus::MetricFamily> families() {
    std::vector<prometheus::MetricFamily> all;
    for (const auto type : {prometheus::MetricType::Counter, prometheus::MetricType::Gauge,
                            prometheus::MetricType::Histogram, prometheus::MetricType::Untyped}) {
      prometheus::MetricFamily family{"name_" + std::to_string(below(1000)), below(4) ? "help text" : "", type, {}};
      for (uint64_t count = below(4); count > 0; --count) family.metric.push_back(metric());
      all.push_back(std::move(family));
    }
    return all;
  }

 private:
  uint64_t below(uint64_t bound) { return engine_() % bound; }

  double number() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kSpecial[] = {
        0,   -0.0,      1,          kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(),
        0.1, 1.0 / 3.0, 1790000000, 1e16,      1e-5,       std::numeric_limits<double>::min()};
    if (below(2)) return kSpecial[below(std::size(kSpecial))];
    return std::ldexp(double(engine_()), int(below(200)) - 150);
  }

  prometheus::ClientMetric metric() {
    prometheus::ClientMetric metric;
    for (uint64_t count = below(3); count > 0; --count) {
      std::string value;
      for (uint64_t length = below(8); length > 0; --length) value += "a\"\\\n{},= \xc3\xa9"[below(11)];
      metric.label.push_back({"label_" + std::to_string(count), value});
    }
    metric.counter.value = number();
    metric.gauge.value = number();
    metric.untyped.value = number();
    metric.histogram.sample_count = engine_();
    metric.histogram.sample_sum = number();
    for (uint64_t count = below(4); count > 0; --count) metric.histogram.bucket.push_back({engine_(), number()});
    return metric;
  }

  std::mt19937_64 engine_;
};

}  // namespace

TEST_CASE("The text of metrics is byte for byte what prometheus-cpp writes of them") {
  const uint64_t seed = std::random_device()();
  MESSAGE("seed ", seed);
  Random random(seed);
  for (int round = 0; round < 500; ++round) {
    const auto families = random.families();
    REQUIRE(text_of(families) == by_library(families));
  }
}

TEST_CASE("The text of a busy server's metrics is what prometheus-cpp writes of them") {
  const Snapshot snapshot = sample_snapshot();
  CHECK(metrics_text(&snapshot) == by_library(metric_families(&snapshot)));
}
