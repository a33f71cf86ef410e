#include "server/control/client/metrics_json.hpp"

#include <doctest/doctest.h>

#include "test/server/control/sample.hpp"

using namespace gpuwire::server;

TEST_CASE("A snapshot survives JSON with all its figures") {
  Snapshot sample = sample_snapshot();
  auto back = snapshot_from_json(Json::parse(dump(to_json(sample))));
  REQUIRE(back);
  CHECK(*back == sample);
}

TEST_CASE("A snapshot's JSON has the documented members") {
  Json json = to_json(sample_snapshot());
  for (const char* name : {"taken_ns", "taken_unix_s", "server", "devices", "tenants", "sessions", "refused"})
    CHECK(json.contains(name));
  CHECK(json["tenants"][0]["class"] == "interactive");
  CHECK(json["devices"][0]["regime_ns"]["lease"] == 4'000'000'000);
  CHECK(json["sessions"][1]["gate_open"] == false);
}

TEST_CASE("Members that an older server lacks keep their defaults, and a newer server's are left out") {
  auto snapshot =
      snapshot_from_json(Json::parse(R"({"taken_ns":5,"novelty":[1],"tenants":[{"name":"a","novelty":{}}]})"));
  REQUIRE(snapshot);
  CHECK(snapshot->taken_ns == 5);
  REQUIRE(snapshot->tenants.size() == 1);
  CHECK(snapshot->tenants[0].weight == 1);
}

TEST_CASE("Members of a wrong type are an error") {
  for (const char* text :
       {R"({"taken_ns":"x"})", R"({"tenants":[3]})", R"({"server":[]})", R"([])", R"({"sessions":[{"tenant":7}]})"})
    CHECK_FALSE(snapshot_from_json(Json::parse(text)));
}

TEST_CASE("A histogram counts what lies at a bound below it, and keeps what lies above all") {
  HistogramMetrics histogram{.bounds = {1, 10}};
  for (double value : {0.5, 1.0, 1.5, 10.0, 11.0}) histogram.observe(value);
  CHECK(histogram.counts == std::vector<uint64_t>{2, 2, 1});
  CHECK(histogram.total() == 5);
  CHECK(histogram.sum == doctest::Approx(24));
}
