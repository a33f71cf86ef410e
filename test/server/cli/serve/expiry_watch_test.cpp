// The server's log lines and metrics of credentials' expiry.
#include "server/cli/serve/expiry_watch.hpp"

#include <algorithm>
#include <memory>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include "server/identity/administration.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

namespace {

class Log {
 public:
  Log() {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    sink->set_pattern("%v");
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("expiry", std::move(sink)));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  std::vector<std::string> take() {
    std::istringstream in(text_.str());
    text_.str("");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
    return lines;
  }

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

struct Fixture {
  Fixture() {
    REQUIRE(init_identity(folder, {.hosts = {"gpu7"}}, now));
    watch = std::make_unique<ExpiryWatch>(
        io, ExpiryWatch::Sources{.directory = [this] { return folder; },
                                 .serves = [](const std::string& tenant) { return tenant != "gone"; },
                                 .now = [this] { return now; },
                                 .page = [this] { return page; }});
  }
  void give(const std::string& tenant, unsigned days, const std::string& user) {
    REQUIRE(add_token(folder, tenant, days, {}, now, user));
  }
  size_t of_tenants() {
    const auto& figures = watch->figures();
    return size_t(std::ranges::count(figures, "tenant", &CertificateMetrics::of));
  }

  gpuwire::test::TemporaryDirectory temporary;
  const std::filesystem::path folder = temporary.path() / "identity";
  WallTime now = std::chrono::system_clock::from_time_t(1'800'000'000);
  std::filesystem::path page;
  boost::asio::io_context io;
  std::unique_ptr<ExpiryWatch> watch;
};

}  // namespace

TEST_CASE("each user's credential that ends soon has a line of its own, once a day, until it is renewed") {
  Fixture fixture;
  Log log;
  fixture.give("course", 3, "anna");
  fixture.give("course", 4, "ben");
  fixture.give("course", 300, "carl");
  fixture.give("gone", 3, "dora");
  fixture.watch->start();
  CHECK(fixture.of_tenants() == 3);
  auto lines = log.take();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].starts_with("the token of tenant course for user anna expires on "));
  CHECK(lines[1].starts_with("the token of tenant course for user ben expires on "));
  fixture.now += 23h;
  fixture.watch->start();
  CHECK(log.take().empty());
  fixture.give("course", 300, "anna");
  fixture.now += 1h;
  fixture.watch->start();
  lines = log.take();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("for user ben") != std::string::npos);
  CHECK(fixture.of_tenants() == 4);
}

TEST_CASE("the figures have the credentials that end first, and a few lines name the others") {
  Fixture fixture;
  Log log;
  constexpr size_t kUsers = 40;
  for (size_t user = 0; user < kUsers; ++user) fixture.give("course", unsigned(5 + user % 7), fmt::format("u{}", user));
  fixture.watch->start();
  const auto lines = log.take();
  REQUIRE(lines.size() == kExpiryLinesMax + 1);
  CHECK(lines[0].find(", in 5 days: ") != std::string::npos);
  CHECK(lines.back() == "8 more credentials expire soon, or have expired: gpuwire admin list shows all");
  CHECK(fixture.of_tenants() == kUsers);
  CHECK(fixture.watch->left_out() == 0);
}

TEST_CASE("credentials without room in the figures are counted, and end last") {
  std::vector<CertificateMetrics> figures;
  for (size_t i = 0; i < kCertificatesShownMax + 3; ++i)
    figures.push_back(
        {.of = "tenant", .tenant = "course", .expires_unix_s = double(1000 + i * 7 % 100), .warning = ""});
  CHECK(keep_those_that_end_first(figures) == 3);
  CHECK(figures.size() == kCertificatesShownMax);
  CHECK(std::ranges::count(figures, 1000.0, &CertificateMetrics::expires_unix_s) >= 5);
}

TEST_CASE("the web page's certificate has a line of its own, and hides no other when it cannot be read") {
  Fixture fixture;
  Log log;
  fixture.page = fixture.folder / "server.pem";
  fixture.give("course", 3, "anna");
  fixture.now += std::chrono::hours(24) * (kServerDays - 10);
  fixture.give("course", 3, "ben");
  fixture.watch->start();
  auto lines = log.take();
  auto has = [&](const char* words) {
    return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(words) != line.npos; });
  };
  CHECK(has("the web page's certificate expires on "));
  CHECK(has("for user ben expires on "));
  CHECK(std::ranges::count(fixture.watch->figures(), "web page", &CertificateMetrics::of) == 1);
  fixture.page = fixture.folder / "nothing";
  fixture.now += 24h;
  fixture.watch->start();
  lines = log.take();
  CHECK(has("nobody can say when certificates expire: "));
  CHECK(has("for user ben expires on "));
  CHECK(std::ranges::count(fixture.watch->figures(), "web page", &CertificateMetrics::of) == 0);
  CHECK(fixture.of_tenants() == 1);
}
