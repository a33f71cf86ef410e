// The choice of a program's server: names, offers, ranking, and dead servers.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "client_stub/session/server_choice.hpp"
#include "client_stub/session/server_list.hpp"
#include "client_stub/session/several_servers.hpp"
#include "protocol/wire/gpu_type.hpp"

using namespace gpuwire;
using namespace gpuwire::client;
using Start = ServerOffer::Start;

namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;

OfferedGpu gpu(uint64_t sessions, unsigned busy_permille = 0, uint64_t free_gib = 80,
               const char* name = "NVIDIA H100") {
  return {.name = name,
          .free_bytes = free_gib * kGiB,
          .total_bytes = 80 * kGiB,
          .sessions = sessions,
          .busy_permille = busy_permille};
}
ServerOffer now(std::vector<OfferedGpu> gpus) { return {.start = Start::now, .gpus = std::move(gpus)}; }
ServerOffer queued(uint64_t place, std::optional<uint64_t> after_s = {}, std::vector<OfferedGpu> gpus = {gpu(1)}) {
  return {.start = Start::queued, .place = place, .waiting = place, .after_s = after_s, .gpus = std::move(gpus)};
}
ServerOffer dead() { return {.start = Start::no, .absent = true, .why = "connection refused"}; }

using Order = std::vector<size_t>;

}  // namespace

TEST_CASE("several servers are named with commas, and what is wrong with one is said of it") {
  CHECK(*parse_server_list("gpu1:9750") == std::vector<std::string>{"gpu1:9750"});
  CHECK(*parse_server_list("gpu1, tls://gpu2:1 ,unix:/run/x") ==
        std::vector<std::string>{"gpu1", "tls://gpu2:1", "unix:/run/x"});
  CHECK(parse_server_list("gpu1,host:99999").error().starts_with("host:99999: not HOST:PORT"));
  CHECK(parse_server_list("gpu1,gpu1").error() == "gpu1: the server is named twice");
  CHECK_FALSE(parse_server_list("gpu1,"));
  CHECK_FALSE(parse_server_list(""));
  std::string many = "gpu0";
  for (size_t i = 1; i < kServersMax; ++i) many += ",gpu" + std::to_string(i);
  CHECK(parse_server_list(many)->size() == kServersMax);
  CHECK(parse_server_list(many + ",more").error() == "32 servers can be named at most");
}

TEST_CASE("a type is found in a GPU's name whatever the case") {
  for (const char* type : {"", "h200", "H200", "nvidia"}) CHECK(wire::is_of_type("NVIDIA H200", type));
  for (const char* type : {"h100", "NVIDIA H200 NVL"}) CHECK_FALSE(wire::is_of_type("NVIDIA H200", type));
}

TEST_CASE("an offer is read, with what a newer server may add, and bytes that are none are none") {
  auto offer = parse_offer(
      "start queued\nplace 2\nwaiting 5\nin 90\nwhy all GPUs\x1b[2J are in use\nmood fine\n"
      "gpu 100 200 3 250 NVIDIA H200 NVL\ngpu 300 200 0 9999 x\n");
  REQUIRE(offer);
  CHECK(offer->start == Start::queued);
  CHECK(offer->place == 2);
  CHECK(offer->waiting == 5);
  CHECK(*offer->after_s == 90);
  CHECK(offer->why == "all GPUs [2J are in use");
  REQUIRE(offer->gpus.size() == 2);
  CHECK(offer->gpus[0].name == "NVIDIA H200 NVL");
  CHECK(offer->gpus[0].sessions == 3);
  CHECK(offer->gpus[0].busy_permille == 250);
  CHECK(offer->gpus[1].free_bytes == 200);  // cut to the GPU's memory
  CHECK(offer->gpus[1].busy_permille == 1000);
  for (const char* none : {"", "start", "start maybe\n", "place 1\n", "start now\nplace -1\n", "start now\nin soon\n",
                           "start now\ngpu 1 2 3\n", "start now\ngpu 1 2 x 4 name\n", "start queued\nplace 1 2\n"}) {
    CAPTURE(none);
    CHECK_FALSE(parse_offer(none));
  }
}

TEST_CASE("an answer that is too long is ignored, and the number of GPUs in one is bounded") {
  std::string gpus = "start now\n";
  for (size_t i = 0; i < kOfferedGpusMax + 10; ++i) gpus += "gpu 1 1 0 0 name\n";
  CHECK(parse_offer(gpus)->gpus.size() == kOfferedGpusMax);
  std::string lines = "start now\n";
  for (size_t i = 0; i < kOfferLinesMax; ++i) lines += "x\n";
  CHECK_FALSE(parse_offer(lines));
}

TEST_CASE("the choice is the one of the table") {
  struct Row {
    const char* what;
    std::vector<ServerOffer> offers;
    ServerWish wish;
    Order order;
  };
  const ServerOffer unknown;
  const ServerOffer refuses{.start = Start::no, .why = "this server has no tenant"};
  for (const Row& row : std::vector<Row>{
           {"equal ones keep their order", {now({gpu(0)}), now({gpu(0)})}, {}, {0, 1}},
           {"fewer programs", {now({gpu(2)}), now({gpu(1)})}, {}, {1, 0}},
           {"a free GPU counts, not the sum", {now({gpu(1)}), now({gpu(5), gpu(0)})}, {}, {1, 0}},
           {"as many free GPUs as are wanted", {now({gpu(1), gpu(1)}), now({gpu(5), gpu(0)})}, {.gpus = 2}, {0, 1}},
           {"less busy", {now({gpu(1, 900)}), now({gpu(1, 200)})}, {}, {1, 0}},
           {"about as busy is equal", {now({gpu(1, 290)}), now({gpu(1, 210)})}, {}, {0, 1}},
           {"more free memory", {now({gpu(1, 0, 10)}), now({gpu(1, 0, 70)})}, {}, {1, 0}},
           {"about as much memory is equal", {now({gpu(1, 0, 71)}), now({gpu(1, 0, 75)})}, {}, {0, 1}},
           {"room before a queue", {queued(1, 1), now({gpu(9, 1000, 0)})}, {}, {1, 0}},
           {"who does not say stands between", {queued(1, 1), unknown, now({gpu(3)})}, {}, {2, 1, 0}},
           {"the earliest start", {queued(1, 500), queued(4, 20)}, {}, {1, 0}},
           {"a promise before none", {queued(1), queued(2, 9000)}, {}, {1, 0}},
           {"without promises the place", {queued(3), queued(2)}, {}, {1, 0}},
           {"the dead and those that refuse in no place", {dead(), refuses, queued(7)}, {}, {2}},
           {"nobody", {dead(), refuses}, {}, {}},
           {"a type", {now({gpu(0)}), now({gpu(4, 0, 80, "NVIDIA H200")})}, {.gpu_type = "h200"}, {1}},
           {"a type counts GPUs of the type alone",
            {now({gpu(0), gpu(7, 0, 80, "NVIDIA H200")}), now({gpu(3, 0, 80, "NVIDIA H200")})},
            {.gpu_type = "H200"},
            {1, 0}},
           {"as many of the type as are wanted",
            {now({gpu(0), gpu(0, 0, 80, "NVIDIA H200")}), queued(9, 9, {gpu(1, 0, 0, "H200"), gpu(1, 0, 0, "H200")})},
            {.gpus = 2, .gpu_type = "h200"},
            {1}},
           {"a type in a queue", {queued(1, 1), queued(2, 2, {gpu(1, 0, 0, "H200")})}, {.gpu_type = "h200"}, {1}},
           {"who does not say may have the type", {unknown, now({gpu(0)})}, {.gpu_type = "h200"}, {0}},
       }) {
    CAPTURE(row.what);
    const ServerRanking ranking = rank_servers(row.offers, row.wish);
    CHECK(ranking.order == row.order);
    REQUIRE(ranking.why.size() == row.offers.size());
    // A server that is ruled out, or would make the program wait, has a reason.
    for (size_t i = 0; i < row.offers.size(); ++i) {
      const bool may = std::count(ranking.order.begin(), ranking.order.end(), i) != 0;
      CHECK(ranking.why[i].empty() == (may && row.offers[i].start != Start::queued));
    }
  }
}

TEST_CASE("the line about the choice names those that were passed over, and is empty where none was") {
  const std::vector<std::string> servers{"gpu1", "gpu2", "gpu3"};
  ServerRanking ranking = rank_servers(std::vector{dead(), queued(2), now({gpu(0)})}, {});
  CHECK(chosen_line(servers, ranking, 2) ==
        "using gpu3; passed over: gpu1 (connection refused), gpu2 (place 2 of 2 in the queue)");
  ranking = rank_servers(std::vector{now({gpu(4)}), now({gpu(0)}), dead()}, {});
  CHECK(chosen_line(servers, ranking, 1).empty());
  ranking = rank_servers(std::vector{dead(), dead(), dead()}, {});
  CHECK(
      none_line(servers, ranking).starts_with("none of 3 servers takes the program: gpu1 (connection refused), gpu2"));
}

TEST_CASE("an older server does not say, and neither does one that is asked too often") {
  for (const char* cause : {"the server refuses: this server does not know that question",
                            "the server refuses: the tenant asks too often: 40 questions at once are answered",
                            "the server does not answer queries"})
    CHECK(offer_of({.cause = cause, .refused = true}).start == Start::unknown);
  const ServerOffer refused = offer_of({.cause = "the server refuses: your token is unknown", .refused = true});
  CHECK(refused.start == Start::no);
  CHECK(refused.why == "the server refuses: your token is unknown");
  CHECK(offer_of({.cause = "connection refused", .absent = true}).absent);
}

namespace {

// Servers with a test's answers.
struct Lab {
  std::vector<ServerOffer> offers;
  std::vector<std::vector<ServerOffer>> later;  // their answers to repeated queries
  std::vector<SessionStartError> starts;        // by server: the error of a start there, or success
  unsigned patience = 0;                        // the number of waits for missing servers
  std::vector<std::string> told, started;

  tl::expected<ChosenSession, SessionStartError> begin() {
    return begin_with_best(
        {.servers = {"gpu1", "gpu2", "gpu3"},
         .wish = {},
         .ask = [this] { return offers; },
         .start = [this](const std::string& server) -> tl::expected<std::unique_ptr<Session>, SessionStartError> {
           started.push_back(server);
           const SessionStartError& how = starts.at(size_t(server.back() - '1'));
           if (how.result == CUDA_SUCCESS) return nullptr;
           return tl::unexpected(how);
         },
         .told = [this](const std::string& line) { told.push_back(line); },
         .wait =
             [this] {
               if (later.empty() || patience == 0) return false;
               --patience;
               offers = later.front();
               later.erase(later.begin());
               return true;
             }});
  }
};

const SessionStartError kWell{.result = CUDA_SUCCESS};

}  // namespace

TEST_CASE("a program whose session is ended before it begins does not go to another server") {
  Lab lab{.offers = {now({gpu(0)}), now({gpu(1)}), dead()},
          .later = {},
          .starts = {{.cause = "the server ended the session: enough", .ended = true}, kWell, kWell},
          .told = {},
          .started = {}};
  auto begun = lab.begin();
  REQUIRE_FALSE(begun);
  CHECK(begun.error().cause == "the server ended the session: enough");
  CHECK(lab.started == std::vector<std::string>{"gpu1"});
}

TEST_CASE("a server that dies between its answer and the start is passed over") {
  Lab lab{.offers = {now({gpu(0)}), now({gpu(1)}), dead()},
          .later = {},
          .starts = {{.cause = "connection refused", .absent = true}, kWell, kWell}};
  auto begun = lab.begin();
  REQUIRE(begun);
  CHECK(begun->server == "gpu2");
  CHECK(lab.started == std::vector<std::string>{"gpu1", "gpu2"});
  CHECK(lab.told == std::vector<std::string>{"using gpu2; passed over: gpu1 (connection refused)"});
}

TEST_CASE("a program that is not to wait tries every server, and hears of each why it has no room") {
  const SessionStartError full{.cause = "the program would wait", .refused = true, .full = true};
  Lab lab{.offers = {queued(2, 5), queued(1), dead()}, .later = {}, .starts = {full, full, kWell}};
  auto begun = lab.begin();
  REQUIRE_FALSE(begun);
  CHECK(lab.started == std::vector<std::string>{"gpu1", "gpu2"});
  CHECK(begun.error().full);
  CHECK(begun.error().cause ==
        "none of 3 servers takes the program: gpu1 (the program would wait), gpu2 (the program would wait), gpu3 "
        "(connection refused)");
}

TEST_CASE("servers that are all being restarted are asked again while patience lasts") {
  const std::vector<ServerOffer> nobody{dead(), dead(), dead()};
  Lab lab{.offers = nobody,
          .later = {nobody, {dead(), dead(), now({gpu(0)})}},
          .starts = {kWell, kWell, kWell},
          .patience = 2};
  auto begun = lab.begin();
  REQUIRE(begun);
  CHECK(begun->server == "gpu3");
  Lab impatient{.offers = nobody, .later = {nobody}, .starts = {}, .patience = 1};
  CHECK_FALSE(impatient.begin());
  CHECK(impatient.started.empty());
  // A server that has answered is not being restarted.
  Lab refused{.offers = {dead(), {.start = Start::no, .why = "no tenant"}, dead()},
              .later = {nobody},
              .starts = {},
              .patience = 1};
  CHECK_FALSE(refused.begin());
  CHECK(refused.patience == 1);
}

TEST_CASE("a process keeps to the server that it has chosen out of a list") {
  CHECK_FALSE(chosen_before("a,b"));
  remember_chosen("a,b", "b");
  CHECK(chosen_before("a,b") == "b");
  CHECK_FALSE(chosen_before("b,a"));
  remember_chosen("b,a", "a");
  CHECK(chosen_before("b,a") == "a");
}
