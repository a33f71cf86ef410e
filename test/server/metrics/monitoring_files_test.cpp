// The dashboard and the alert rules query metrics that a server exports, with existing labels.
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "server/metrics/families.hpp"
#include "test/server/control/sample.hpp"

using namespace gpuwire::server;

namespace {

// Returns each metric's name in queries, and its labels. Prometheus adds `instance` and `job` to all.
std::map<std::string, std::set<std::string>> exported() {
  std::map<std::string, std::set<std::string>> found;
  Snapshot snapshot = sample_snapshot();
  for (const auto& family : metric_families(&snapshot)) {
    std::set<std::string> labels{"instance", "job"};
    for (const auto& metric : family.metric)
      for (const auto& label : metric.label) labels.insert(label.name);
    if (family.type == prometheus::MetricType::Histogram) {
      labels.insert("le");
      for (const char* part : {"_bucket", "_sum", "_count"}) found[family.name + part] = labels;
    } else {
      found[family.name] = labels;
    }
  }
  return found;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file, path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::smatch> matches(const std::string& text, const char* pattern) {
  std::regex expression(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), expression), std::sregex_iterator()};
}

void check_query(const std::string& query, const std::map<std::string, std::set<std::string>>& known) {
  std::set<std::string> labels{"instance", "job"};
  for (const auto& match : matches(query, R"(gpuwire_[a-z_]+)")) {
    auto metric = known.find(match.str());
    CHECK_MESSAGE(metric != known.end(), match.str() << " in " << query);
    if (metric != known.end()) labels.insert(metric->second.begin(), metric->second.end());
  }
  for (const auto& match : matches(query, R"(([a-z_]+)\s*(?:=~|!~|!=|=)\s*")"))
    CHECK_MESSAGE(labels.contains(match[1]), match[1].str() << " in " << query);
  for (const auto& match : matches(query, R"(by \(([a-z_, ]+)\))")) {
    const std::string list = match[1];
    for (const auto& label : matches(list, "[a-z_]+"))
      CHECK_MESSAGE(labels.contains(label.str()), label.str() << " in " << query);
  }
}

}  // namespace

TEST_CASE("Every panel of the dashboard asks for what a server exports") {
  auto dashboard = nlohmann::json::parse(text_of("packaging/monitoring/grafana_dashboard.json"));
  auto known = exported();
  size_t queries = 0;
  std::set<int> numbers;
  for (const auto& panel : dashboard["panels"]) {
    CHECK(numbers.insert(panel["id"].get<int>()).second);
    if (panel["type"] == "row") continue;
    for (const auto& target : panel["targets"]) {
      check_query(target["expr"], known);
      ++queries;
    }
  }
  CHECK(queries > 15);
  for (const auto& variable : dashboard["templating"]["list"])
    if (variable["type"] == "query") check_query(variable["query"], known);
}

TEST_CASE("Every alert asks for what a server exports, and says what it means") {
  std::string rules = text_of("packaging/monitoring/prometheus_alerts.yml");
  auto known = exported();
  size_t alerts = matches(rules, R"(- alert: Gpuwire\w+\n)").size();
  auto expressions = matches(rules, R"(expr: (.*)\n)");
  CHECK(alerts >= 8);
  CHECK(expressions.size() == alerts);
  CHECK(matches(rules, R"(summary: ".+"\n)").size() == alerts);
  for (const auto& expression : expressions) check_query(expression[1], known);
}

TEST_CASE("A query of a metric or label that no server has would be found") {
  CHECK_FALSE(exported().contains("gpuwire_no_such_metric"));
  CHECK_FALSE(exported().at("gpuwire_queue_length").contains("colour"));
}
