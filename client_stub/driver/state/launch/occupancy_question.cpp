#include "client_stub/driver/state/launch/occupancy_question.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

namespace gpuwire::client {
namespace {

// Attributes that are numbers, and how many of them.
struct Plain {
  CUlaunchAttributeID id;
  unsigned numbers;
};
constexpr std::array kPlain = {Plain{CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 3},
                               Plain{CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 1},
                               Plain{CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1}, Plain{CU_LAUNCH_ATTRIBUTE_PRIORITY, 1}};
constexpr size_t kAttributesMax = 8;  // of a line

const Plain* plain(CUlaunchAttributeID id) noexcept {
  auto found = std::find_if(kPlain.begin(), kPlain.end(), [&](const Plain& one) { return one.id == id; });
  return found == kPlain.end() ? nullptr : &*found;
}

void append(std::string& out, const void* bytes, size_t count) { out.append(static_cast<const char*>(bytes), count); }

void append(std::string& out, uint64_t number) { append(out, &number, sizeof number); }

}  // namespace

std::string OccupancyQuestion::key() const {
  std::string out;
  out.reserve(64 + attributes.size() * sizeof(CUlaunchAttribute));
  append(out, uint64_t(kind) << 32 | flags);
  if (!about_config()) {
    append(out, block_threads);
    append(out, number);
    return out;
  }
  for (uint64_t part :
       {uint64_t(config.gridDimX) << 32 | config.gridDimY, uint64_t(config.gridDimZ) << 32 | config.blockDimX,
        uint64_t(config.blockDimY) << 32 | config.blockDimZ, uint64_t(config.sharedMemBytes),
        reinterpret_cast<uint64_t>(config.hStream)})
    append(out, part);
  for (const CUlaunchAttribute& attribute : attributes) {
    const Plain* known = plain(attribute.id);
    append(out, uint64_t(attribute.id));
    append(out, &attribute.value, known ? known->numbers * sizeof(uint32_t) : sizeof attribute.value);
  }
  return out;
}

bool OccupancyQuestion::travels() const noexcept {
  return !about_config() ||
         (!config.hStream && attributes.size() <= kAttributesMax &&
          std::all_of(attributes.begin(), attributes.end(), [](const auto& one) { return plain(one.id) != nullptr; }));
}

std::string OccupancyQuestion::text() const {
  std::ostringstream out;
  out << unsigned(kind);
  if (!about_config()) {
    out << ' ' << flags << ' ' << block_threads << ' ' << number;
    return out.str();
  }
  for (unsigned part : {config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY,
                        config.blockDimZ, config.sharedMemBytes, unsigned(attributes.size())})
    out << ' ' << part;
  for (const CUlaunchAttribute& attribute : attributes) {
    const Plain* known = plain(attribute.id);
    std::array<uint32_t, 3> numbers{};
    if (known) std::memcpy(numbers.data(), &attribute.value, known->numbers * sizeof(uint32_t));
    out << ' ' << unsigned(attribute.id);
    for (unsigned i = 0; known && i < known->numbers; ++i) out << ' ' << numbers[i];
  }
  return out.str();
}

std::optional<OccupancyQuestion> OccupancyQuestion::parse(std::string_view text) {
  std::istringstream in{std::string(text)};
  OccupancyQuestion out;
  unsigned kind = 0;
  if (!(in >> kind) || kind >= kOccupancyKinds) return std::nullopt;
  out.kind = OccupancyKind(kind);
  if (!out.about_config()) {
    in >> out.flags >> out.block_threads >> out.number;
  } else {
    CUlaunchConfig& config = out.config;
    unsigned count = 0;
    in >> config.gridDimX >> config.gridDimY >> config.gridDimZ >> config.blockDimX >> config.blockDimY >>
        config.blockDimZ >> config.sharedMemBytes >> count;
    if (!in || count > kAttributesMax) return std::nullopt;
    for (unsigned i = 0; i < count; ++i) {
      unsigned id = 0;
      in >> id;
      const Plain* known = in ? plain(CUlaunchAttributeID(id)) : nullptr;
      if (!known) return std::nullopt;
      std::array<uint32_t, 3> numbers{};
      for (unsigned j = 0; j < known->numbers; ++j) in >> numbers[j];
      CUlaunchAttribute attribute{};
      attribute.id = known->id;
      std::memcpy(&attribute.value, numbers.data(), known->numbers * sizeof(uint32_t));
      out.attributes.push_back(attribute);
    }
  }
  if (!in) return std::nullopt;
  in >> std::ws;
  return in.eof() ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace gpuwire::client
