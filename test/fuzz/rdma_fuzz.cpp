// The lowest bit of the first byte selects the input: a client's request for RDMA, to a server without RDMA and to one
// with it; or messages of the fabric, from a peer with the token and from others. For any input an end accepts at most
// the bytes of messages with the token, and none after a violation.
#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

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

// A record: one byte selects the way of sending, then follows the header, with the right token unless the byte says
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
    message.bytes = header.kind == rdma::Kind::data ? header.bytes % (2 * rdma::kMessageBytesMax) : 0;
    if (how & kOtherBytes) ++message.bytes;
    message.waits = (how & kWaits) != 0;
    if (whole) offered += message.bytes;
    ++g_frames_decoded;
  }
  if (!end->greet("a", rdma::Token{})) return;
  auto connection = RdmaEnd::carry(std::move(end), std::make_unique<test::Recorded>(std::span<const std::byte>(), 1));
  // Uses many sizes, and rarely reads a window byte by byte.
  std::vector<std::byte> out(1 + bytes.size() * 997 % 100'000);
  uint64_t taken = 0;
  // Each poll delivers some messages; after this many all have arrived.
  for (size_t looks = 0; looks < messages.size() + 2;) {
    auto got = connection->try_receive(out);
    if (got.status == IoStatus::ok) taken += got.bytes;
    else if (got.status == IoStatus::would_block) ++looks;
    else break;
    if (taken > offered) std::abort();
  }
  std::byte word{1};
  iovec piece{&word, 1};
  connection->try_send({&piece, 1});
  connection->reset();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] & 1) carry(bytes);
  else agree(bytes, 1 + size_t(data[0]));
  return 0;
}
