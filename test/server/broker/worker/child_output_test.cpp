#include "server/broker/worker/child_output.hpp"

#include <array>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

using namespace gpuwire::server;

namespace {

struct Fixture {
  boost::asio::io_context io{1};
  OwnedDescriptor child;
  std::vector<std::string> lines;
  std::unique_ptr<ChildOutput> output;

  Fixture() {
    auto pipe = ChildPipe::open();
    REQUIRE(pipe);
    child = std::move(pipe->writes);
    output = std::make_unique<ChildOutput>(io, std::move(pipe->reads),
                                           [this](const std::string& line) { lines.push_back(line); });
  }
  void write(std::string_view text) { REQUIRE(::write(child.get(), text.data(), text.size()) == ssize_t(text.size())); }
};

}  // namespace

TEST_CASE("a child's output arrives in lines, the last one with its end") {
  Fixture fixture;
  fixture.write("one\ntwo");
  fixture.io.poll();
  CHECK(fixture.lines == std::vector<std::string>{"one"});
  fixture.write(" and more\n\nlast");
  fixture.io.poll();
  CHECK(fixture.lines == std::vector<std::string>{"one", "two and more"});
  fixture.child.reset();
  fixture.io.poll();
  CHECK(fixture.lines.back() == "last");
}

TEST_CASE("a child's last output is there when it is reaped, before anybody has been notified") {
  Fixture fixture;
  fixture.write("one\nlast words");
  fixture.output->read_rest();
  CHECK(fixture.lines == std::vector<std::string>{"one", "last words"});
}

TEST_CASE("a line without end is cut, and lines without end are left out") {
  Fixture fixture;
  fixture.write(std::string(2 * kChildLineBytesMax + 1, 'x') + "\n");
  fixture.output->read_rest();
  REQUIRE(fixture.lines.size() == 3);
  CHECK(fixture.lines[0].size() == kChildLineBytesMax);
  CHECK(fixture.lines[2] == "x");
  for (unsigned i = 0; i < 2 * kChildLinesMax; ++i) fixture.write(i % 2 ? "y\n" : "\n");
  fixture.output->read_rest();
  CHECK(fixture.lines.size() <= kChildLinesMax + 1);
  CHECK(fixture.lines.back() == "(more, which is left out from here on)");
}

TEST_CASE("the child's end waits as a file's does, whatever the broker's end does, and nobody else has it") {
  auto pipe = ChildPipe::open();
  REQUIRE(pipe);
  CHECK((::fcntl(pipe->writes.get(), F_GETFL) & O_NONBLOCK) == 0);
  CHECK((::fcntl(pipe->reads.get(), F_GETFL) & O_NONBLOCK) != 0);
  for (int end : {pipe->writes.get(), pipe->reads.get()}) CHECK((::fcntl(end, F_GETFD) & FD_CLOEXEC) != 0);
}
