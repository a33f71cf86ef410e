#include "test/fuzz/corpus_connections.hpp"

#include <cstring>
#include <initializer_list>

#include <capnp/message.h>

#include "protocol/transport/rdma_message.hpp"
#include "protocol/transport/shared_memory_layout.hpp"
#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"
#include "protocol/wire/rdma.hpp"
#include "schema/handshake.capnp.h"

namespace gpuwire::test {
namespace {

using namespace transport;
using wire::ControlOrdinal;
using wire::FrameHeader;
using wire::FrameKind;

template <class Plain>
std::string bytes_of(const Plain& plain) {
  return {reinterpret_cast<const char*>(&plain), sizeof plain};
}

template <class Structure, class Fill>
std::string control(ControlOrdinal ordinal, Fill&& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<Structure>());
  auto words = message.getSegmentsForOutput()[0];
  FrameHeader header{
      .kind = uint8_t(FrameKind::control), .ordinal = uint32_t(ordinal), .message_words = uint32_t(words.size())};
  return bytes_of(header) + std::string(words.asChars().begin(), words.asChars().size());
}

capnp::Data::Reader data_of(const std::string& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

std::string rdma_word(uint32_t version, const std::string& address, size_t token_bytes) {
  return control<schema::Rdma>(wire::kRdmaOrdinal, [&](auto root) {
    auto end = root.initEnd();
    end.setVersion(version);
    end.setAddress(data_of(address));
    end.setToken(data_of(std::string(token_bytes, 't')));
  });
}

// One message of the fabric as rdma_fuzz takes it: how it is sent, and its header.
std::string rdma_message(uint8_t how, rdma::Kind kind, uint64_t number, uint64_t position, uint32_t bytes) {
  return char(how) + bytes_of(rdma::Header{.kind = kind, .number = number, .position = position, .bytes = bytes});
}

FrameHeader shared_memory_word(uint64_t version) {
  return {.kind = uint8_t(FrameKind::control), .ordinal = uint32_t(ControlOrdinal::shared_memory), .sequence = version};
}

// Steps of the other end as shared_memory_fuzz takes them.
struct Step {
  uint8_t what;
  uint64_t value;
};
std::string steps(std::initializer_list<Step> all) {
  std::string bytes;
  for (const Step& step : all) bytes += char(step.what) + bytes_of(step.value);
  return bytes;
}

}  // namespace

void add_resumptions(const WriteInput& write) {
  const std::string nonce(32, 'n'), proof(32, 'p');
  auto challenge = control<schema::ResumeChallenge>(ControlOrdinal::resume_challenge,
                                                    [&](auto root) { root.setNonce(data_of(nonce)); });
  auto question = control<schema::ResumeChallenge>(ControlOrdinal::resume_challenge, [](auto) {});
  auto resume = [&](uint8_t lanes) {
    return control<schema::Resume>(ControlOrdinal::resume, [&](auto root) {
      root.setAttempt(7);
      root.setReceived(1000);
      root.setProof(data_of(proof));
      root.setAddress("10.0.0.7:4711");
      root.setMachine("machine");
      root.setLanes(lanes);
      root.setLane(lanes);
      root.setLaneSet(lanes);
    });
  };
  write("resumed",
        challenge + control<schema::Resumed>(ControlOrdinal::resumed, [](auto root) { root.setReceived(1000); }));
  write("refused", challenge + control<schema::Resumed>(ControlOrdinal::resumed,
                                                        [](auto root) { root.setRefused("the session has ended"); }));
  write("short_challenge", control<schema::ResumeChallenge>(ControlOrdinal::resume_challenge, [&](auto root) {
          root.setNonce(data_of(nonce.substr(1)));
        }));
  write("proof", question + resume(0));
  write("lane", question + resume(3));
  // A text without its end, with control sequences of a terminal.
  std::string endless = question + resume(0);
  const std::string address = "10.0.0.7:4711";
  endless[endless.find(address) + address.size()] = '\x1b';
  write("endless_text", endless);
}

void add_rdma(const WriteInput& write) {
  const std::string words(1, '\0'), messages(1, '\1');  // rdma_fuzz's first byte
  write("end", words + rdma_word(rdma::kVersion, "an address", 16));
  write("another_version", words + rdma_word(rdma::kVersion + 1, "an address", 16));
  write("short_token", words + rdma_word(rdma::kVersion, "an address", 15));
  write("long_address", words + rdma_word(rdma::kVersion, std::string(rdma::kAddressBytesMax + 1, 'a'), 16));
  write("declined", words + control<schema::Rdma>(wire::kRdmaOrdinal, [](auto root) { root.setDeclined("why"); }));
  write("use", words + rdma_word(rdma::kVersion, "an address", 16) +
                   control<schema::Rdma>(wire::kRdmaOrdinal, [](auto root) { root.setUse(); }));
  const std::string greeting = rdma_message(0, rdma::Kind::greeting, 0, 0, 0);
  write("stream", messages + greeting + rdma_message(0, rdma::Kind::data, 0, 0, 1000) +
                      rdma_message(4, rdma::Kind::data, 1, 1000, 5000) + rdma_message(0, rdma::Kind::taken, 0, 0, 0) +
                      rdma_message(0, rdma::Kind::end, 2, 6000, 0) + rdma_message(0, rdma::Kind::end_seen, 0, 0, 0));
  write("another_order", messages + greeting + rdma_message(0, rdma::Kind::data, 1, 1000, 24) +
                             rdma_message(4, rdma::Kind::data, 2, 1024, 262144) +
                             rdma_message(0, rdma::Kind::data, 0, 0, 1000));
  write("strangers", messages + greeting + rdma_message(1, rdma::Kind::data, 0, 0, 1000) +
                         rdma_message(2, rdma::Kind::data, 0, 0, 1000) + rdma_message(8, rdma::Kind::data, 0, 0, 1000));
  std::string window = messages + greeting;
  for (uint64_t i = 0; i < rdma::kWindowBytes / rdma::kMessageBytesMax; ++i)
    window += rdma_message(0, rdma::Kind::data, i, i * rdma::kMessageBytesMax, uint32_t(rdma::kMessageBytesMax));
  write("a_whole_window", window);
}

void add_shared_memory(const WriteInput& write) {
  namespace shm = shared_memory;
  const std::string offer(1, '\0'), answer(1, '\1'), other_end(1, '\2');  // shared_memory_fuzz's first byte
  const std::string right = bytes_of(shared_memory_word(shm::kVersion));
  const std::string file = bytes_of(shm::Header{.ring_bytes = shm::kRingBytesMin});
  write("asked", offer + right);
  write("another_version", offer + bytes_of(shared_memory_word(shm::kVersion + 1)));
  write("no_frame", offer + "GET / HTTP/1.1\r\nHost: example\r\n\r\n");
  write("given", answer + right + '\6' + file);
  write("not_sealed", answer + right + '\2' + file);
  write("too_short", answer + right + '\7' + file);
  write("without_a_file", answer + right + '\x0e' + file);
  write("declined", answer + bytes_of(shared_memory_word(0)) + '\x0e');
  enum : uint8_t { written, finished, read, sleeps, socket, receive, send, poll };
  write("stream", other_end + steps({{written, 1000},
                                     {receive, 600},
                                     {receive, 600},
                                     {send, 5000},
                                     {read, 5000},
                                     {sleeps, ~0ull},
                                     {send, 100},
                                     {socket, 0x101},
                                     {poll, 0},
                                     {finished, 1},
                                     {receive, 600}}));
  write("descriptors", other_end + steps({{socket, 0x202}, {poll, 0}, {socket, 0x202}, {socket, 0x202}, {poll, 1}}));
  write("beyond", other_end + steps({{written, 70'000}, {written, 70'000}, {receive, 100'000}, {receive, 10}}));
  write("backwards", other_end + steps({{written, 1000}, {receive, 1000}, {written, 1ull << 63}, {receive, 10}}));
}

}  // namespace gpuwire::test
