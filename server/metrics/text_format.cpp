#include "server/metrics/text_format.hpp"

#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include <fmt/format.h>

namespace gpuwire::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

std::string number_text(double value) {
  if (std::isnan(value)) return "Nan";
  if (std::isinf(value)) return value < 0 ? "-Inf" : "+Inf";
  return fmt::format("{:.{}g}", value, std::numeric_limits<double>::max_digits10 - 1);
}

std::string_view name_of(MetricType type) {
  switch (type) {
    case MetricType::Counter: return "counter";
    case MetricType::Gauge: return "gauge";
    case MetricType::Histogram: return "histogram";
    default: return "untyped";
  }
}

class TextWriter {
 public:
  void add(const MetricFamily& family) {
    if (!family.help.empty()) fmt::format_to(end(), "# HELP {} {}\n", family.name, family.help);
    fmt::format_to(end(), "# TYPE {} {}\n", family.name, name_of(family.type));
    for (const ClientMetric& metric : family.metric) {
      switch (family.type) {
        case MetricType::Counter: add_line(family, "", metric, "", number_text(metric.counter.value)); break;
        case MetricType::Gauge: add_line(family, "", metric, "", number_text(metric.gauge.value)); break;
        case MetricType::Histogram: add_histogram(family, metric); break;
        default: add_line(family, "", metric, "", number_text(metric.untyped.value)); break;
      }
    }
  }
  std::string text;

 private:
  std::back_insert_iterator<std::string> end() { return std::back_inserter(text); }

  void add_label(std::string_view name, std::string_view value, char before) {
    fmt::format_to(end(), "{}{}=\"", before, name);
    for (char byte : value) {
      if (byte == '\n') text += "\\n";
      else if (byte == '\\' || byte == '"') (text += '\\') += byte;
      else text += byte;
    }
    text += '"';
  }

  // `bound`: of a histogram's bucket; empty: no bucket.
  void add_line(const MetricFamily& family, std::string_view suffix, const ClientMetric& metric, std::string_view bound,
                std::string_view value) {
    fmt::format_to(end(), "{}{}", family.name, suffix);
    char before = '{';
    for (const ClientMetric::Label& label : metric.label) {
      add_label(label.name, label.value, before);
      before = ',';
    }
    if (!bound.empty()) {
      add_label("le", bound, before);
      before = ',';
    }
    if (before == ',') text += '}';
    fmt::format_to(end(), " {}\n", value);
  }

  void add_histogram(const MetricFamily& family, const ClientMetric& metric) {
    const ClientMetric::Histogram& histogram = metric.histogram;
    const std::string count = std::to_string(histogram.sample_count);
    add_line(family, "_count", metric, "", count);
    add_line(family, "_sum", metric, "", number_text(histogram.sample_sum));
    bool has_all = false;
    for (const ClientMetric::Bucket& bucket : histogram.bucket) {
      add_line(family, "_bucket", metric, number_text(bucket.upper_bound), std::to_string(bucket.cumulative_count));
      has_all = bucket.upper_bound == std::numeric_limits<double>::infinity();
    }
    if (!has_all) add_line(family, "_bucket", metric, "+Inf", count);
  }
};

}  // namespace

std::string text_of(const std::vector<MetricFamily>& families) {
  TextWriter out;
  for (const MetricFamily& family : families) out.add(family);
  return std::move(out.text);
}

}  // namespace gpuwire::server
