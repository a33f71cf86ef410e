// The input is, by its first byte's lowest bit: the words by which a client asks for RDMA, to a server that has none
// and to one that has; or messages of the fabric, of a peer that knows the token and of others. Whatever they are, an
// end takes no more bytes than messages with the token had, none behind a broken rule, and none of a stripe's beside
// the part that it wants.
#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "protocol/link/lane_set.hpp"
#include "protocol/transport/rdma_setup.hpp"
#include "protocol/wire/frame.hpp"
#include "test/fuzz/frame_fuzz.hpp"
#include "test/fuzz/rdma_plugin_fuzz.hpp"
#include "test/fuzz/recorded.hpp"

using namespace gpuwire;
using namespace gpuwire::transport;

namespace {

constexpr std::chrono::seconds kLimit{10};  // a recording is never waited for
constexpr size_t kMessagesMax = 4 * rdma::kMessagesMax;

std::shared_ptr<RdmaFabric> fabric() {
  static const std::shared_ptr<RdmaFabric> opened = [] {
    auto fabric = RdmaFabric::open(GPUWIRE_FUZZ_RDMA_PLUGIN);
    if (!fabric) std::abort();
    return *fabric;
  }();
  return opened;
}

void direct(const GpuwireRdmaFuzzScript& script) {
  fabric();
  static const auto to_plugin = reinterpret_cast<GpuwireRdmaFuzzDirect>(
      ::dlsym(::dlopen(GPUWIRE_FUZZ_RDMA_PLUGIN, RTLD_NOW | RTLD_NOLOAD), kGpuwireRdmaFuzzDirect));
  if (!to_plugin) std::abort();
  to_plugin(&script);
}

void agree(std::span<const std::byte> bytes, size_t piece) {
  if (bytes.size() < sizeof(wire::FrameHeader)) return;  // it would wait for the rest
  static const GpuwireRdmaFuzzScript nobody{};
  direct(nobody);
  for (bool there_is_one : {false, true}) {
    auto connection = std::make_unique<test::Recorded>(bytes, piece);
    const test::Recorded& peeked = *connection;
    Agreed agreed = offer_rdma(
        std::move(connection), [&](std::span<std::byte> out) { return peeked.peek(out); },
        there_is_one ? fabric() : nullptr, "there is none today", kLimit);
    // Nobody has greeted.
    if (!agreed.connection || std::strcmp(agreed.connection->road(), "rdma") == 0) std::abort();
    if (!agreed.declined.empty() && agreed.declined.size() > 4096) std::abort();
  }
}

// A record: one byte says how it is sent, then the header, of which the token is the right one unless the byte says
// otherwise.
enum : uint8_t { kWrongToken = 1, kShortHeader = 2, kWaits = 4, kOtherBytes = 8 };
constexpr size_t kRecordBytes = 1 + sizeof(rdma::Header);

void carry(std::span<const std::byte> bytes) {
  std::vector<GpuwireRdmaFuzzMessage> messages(std::min(bytes.size() / kRecordBytes, kMessagesMax));
  const GpuwireRdmaFuzzScript script{messages.data(), messages.size()};
  direct(script);
  auto made = RdmaEnd::make(fabric());
  if (!made) std::abort();
  auto& end = *made;
  uint64_t offered = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    auto record = bytes.subspan(i * kRecordBytes, kRecordBytes);
    const auto how = uint8_t(record[0]);
    rdma::Header header;
    std::memcpy(&header, record.data() + 1, sizeof header);
    header.magic = rdma::Header::kMagic;
    if (!(how & kWrongToken)) header.token = end->token();
    GpuwireRdmaFuzzMessage& message = messages[i];
    std::memcpy(message.header, &header, sizeof header);
    message.header_bytes = how & kShortHeader ? sizeof header - 1 : sizeof header;
    const bool whole = !(how & (kWrongToken | kShortHeader));
    message.bytes = header.kind == rdma::Kind::data     ? header.bytes % (2 * rdma::kMessageBytesMax)
                    : header.kind == rdma::Kind::stripe ? header.bytes % (2 * uint32_t(rdma::kStripeBytes))
                                                        : 0;
    if (how & kOtherBytes) ++message.bytes;
    message.waits = (how & kWaits) != 0;
    if (whole) offered += message.bytes;
    ++g_frames_decoded;
  }
  if (!end->greet("a", rdma::Token{})) return;
  auto connection = RdmaEnd::carry(std::move(end), std::make_unique<test::Recorded>(std::span<const std::byte>(), 1));
  // Stripes go to a set of lanes as a link has it, which wants a part of a few stripes.
  constexpr uint64_t kPartAt = 1000, kRoomBytesMin = 64 << 10, kPartBytes = 2 * rdma::kStripeBytes + 5;
  std::shared_ptr<Transport> shared = std::move(connection);
  link::LaneSet lanes(shared, shared->message_lane(), wire::kOwnLaneSet, (bytes.size() & 1) != 0);
  lanes.simulate(rdma::kStripeBytes, [&lanes] {
    bool moved = false;
    while (lanes.turn(0)) moved = true;
    return moved;
  });
  if (!lanes.start({.sent = [](uint64_t, bool) {}, .over = [] {}})) std::abort();
  lanes.expect(kPartAt, kPartBytes);
  std::vector<std::byte> part(kPartBytes + 64, std::byte{9});
  // Half of them go in place.
  if (bytes.size() & 2) fabric()->memory().offer(part.data(), part.size());
  // Of many sizes, and rarely so small that a window is taken byte by byte.
  std::vector<std::byte> out(1 + bytes.size() * 997 % 100'000);
  uint64_t taken = 0;
  // Each look moves some messages on; at the latest then all of them have come.
  uint64_t at = 0;
  for (size_t looks = 0; looks < messages.size() + 2;) {
    if (at != kPartBytes) {
      auto room = std::span(part).subspan(at, std::min<size_t>(out.size() + kRoomBytesMin, kPartBytes - at));
      auto came = lanes.receive(kPartAt + at, room, link::LaneSet::Order::as_sent, [] { return false; });
      if (came.status == IoStatus::ok) at += came.bytes;
      if (at > offered) std::abort();
    }
    auto got = shared->try_receive(out);
    if (got.status == IoStatus::ok) taken += got.bytes;
    else if (got.status == IoStatus::would_block) ++looks;
    else break;
    if (taken > offered) std::abort();
  }
  for (size_t i = kPartBytes; i < part.size(); ++i)
    if (part[i] != std::byte{9}) std::abort();
  std::byte word{1};
  iovec piece{&word, 1};
  shared->try_send({&piece, 1});
  shared->reset();
  lanes.close(true);
  lanes.finish();
  if (!fabric()->memory().forget(part.data(), std::chrono::nanoseconds(0))) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] & 1) carry(bytes);
  else agree(bytes, 1 + size_t(data[0]));
  return 0;
}
