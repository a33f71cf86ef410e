#include "protocol/fatbin/linked_image.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "protocol/fatbin/image_size.hpp"
#include "test/protocol/fatbin/fatbin_builder.hpp"

namespace gpuwire::fatbin {
namespace {

using test::build_container;
using Bytes = std::vector<uint8_t>;

Bytes container(const char* contents) {
  return build_container({{.kind = test::kPtx, .sm = 75, .contents = contents}});
}

TEST_CASE("The containers of a linked program come out as they went in") {
  const std::vector<Bytes> containers{container("linked"), container("a unit"),
                                      container("another unit, longer than the first")};
  const std::vector<std::span<const uint8_t>> spans(containers.begin(), containers.end());
  const Bytes image = write_linked_image(spans).value();
  CHECK(is_linked_image(image));
  CHECK_FALSE(is_linked_image(containers[0]));
  const auto read = read_linked_image(image).value();
  REQUIRE(read.size() == containers.size());
  for (size_t i = 0; i < read.size(); ++i) CHECK(Bytes(read[i].begin(), read[i].end()) == containers[i]);
  const LinkedWrapper wrapper(read);
  const auto wrapped = wrapped_containers(wrapper.image()).value();
  CHECK(wrapped.container == read[0].data());
  CHECK(wrapped.linked_from == std::vector<const void*>{read[1].data(), read[2].data()});
}

TEST_CASE("A linked image that is cut short anywhere, or says more than it holds, is refused") {
  const Bytes unit = container("a unit");
  const std::vector<std::span<const uint8_t>> spans{unit, unit};
  const Bytes image = write_linked_image(spans).value();
  for (size_t bytes = 0; bytes + 16 <= image.size(); ++bytes)
    CHECK_FALSE(read_linked_image({image.data(), bytes}).has_value());
  for (const uint32_t count : {0u, 3u, ~0u}) {
    Bytes other = image;
    std::memcpy(other.data() + 4, &count, sizeof count);
    CHECK_FALSE(read_linked_image(other).has_value());
  }
  CHECK_FALSE(write_linked_image({}).has_value());
}

}  // namespace
}  // namespace gpuwire::fatbin
