// The results of `gpuwire run --check` for servers' answers.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "client_stub/launcher/start_check.hpp"

using namespace gpuwire;
using client::ServerOffer;
using Start = client::ServerOffer::Start;

namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;
const ServerOffer kRoom{.start = Start::now,
                        .gpus = {{.name = "NVIDIA H200",
                                  .free_bytes = 100 * kGiB,
                                  .total_bytes = 141 * kGiB,
                                  .sessions = 1,
                                  .busy_permille = 420}}};
const ServerOffer kQueue{
    .start = Start::queued, .place = 2, .waiting = 3, .after_s = 4000, .why = "all GPUs are in use"};
const ServerOffer kUnsaid{.start = Start::queued, .place = 1, .waiting = 1};
const ServerOffer kDead{.start = Start::no, .absent = true, .why = "connection refused"};
const ServerOffer kOld;

launcher::StartCheck check(std::vector<ServerOffer> offers, bool json = false) {
  std::vector<std::string> servers;
  for (size_t i = 0; i < offers.size(); ++i) servers.push_back("gpu" + std::to_string(i + 1));
  return launcher::start_check(servers, offers, {}, json);
}

}  // namespace

TEST_CASE("the exit code says yes, later or no, of the server that would be used") {
  CHECK(check({kRoom}).exit_code == launcher::kWouldStart);
  CHECK(check({kQueue}).exit_code == launcher::kWouldWait);
  CHECK(check({kDead}).exit_code == launcher::kWouldNotStart);
  CHECK(check({kOld}).exit_code == launcher::kWouldNotStart);
  CHECK(check({kDead, kQueue, kRoom}).exit_code == launcher::kWouldStart);
  CHECK(check({kDead, kQueue}).exit_code == launcher::kWouldWait);
}

TEST_CASE("each server has its line, its GPUs, and the one that would be used is named") {
  CHECK(check({kRoom}).text ==
        "gpu1: the program would start now\n  NVIDIA H200: 100.0 of 141.0 GiB free, 1 program, 42 % busy\n");
  CHECK(check({kQueue, kDead, kOld, kUnsaid}).text ==
        "gpu1: the program would start in about 1 h 6 min, at place 2 of 3 in the queue: all GPUs are in use\n"
        "gpu2: the program would not start: connection refused\n"
        "gpu3: the server does not say (it is of an older release, or is asked too often)\n"
        "gpu4: the program would wait, at place 1 of 1 in the queue\n"
        "gpu3 would be used\n");
  CHECK(check({kDead, kDead}).text.ends_with("none of them would be used\n"));
}

TEST_CASE("the JSON has the same, with what is not known as null") {
  auto told = nlohmann::json::parse(check({kQueue, kRoom, kDead, kUnsaid}, true).text);
  CHECK(told["answer"] == "yes");
  CHECK(told["server"] == "gpu2");
  CHECK(told["servers"][0]["answer"] == "queued");
  CHECK(told["servers"][0]["place"] == 2);
  CHECK(told["servers"][0]["start_in_s"] == 4000);
  CHECK(told["servers"][0]["why"] == "all GPUs are in use");
  CHECK(told["servers"][1]["gpus"][0]["memory_free_bytes"] == 100 * kGiB);
  CHECK(told["servers"][1]["gpus"][0]["busy"] == doctest::Approx(0.42));
  CHECK(told["servers"][2]["why"] == "connection refused");
  CHECK(told["servers"][3]["start_in_s"].is_null());
  told = nlohmann::json::parse(check({kDead}, true).text);
  CHECK(told["answer"] == "no");
  CHECK(told["server"].is_null());
}
