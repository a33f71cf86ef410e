// What only shared memory can suffer. What every transport has to do is in conformance_test.cpp.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "protocol/transport/descriptor_passing.hpp"
#include "protocol/transport/shared_memory.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/transport/unix.hpp"
#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire::transport;
using namespace gpuwire::transport::shared_memory;
using gpuwire::test::test_seed;

namespace {

constexpr std::chrono::seconds kLimit{120};

// A connection, and its memory as somebody sees it who means no good.
struct Exposed {
  explicit Exposed(uint32_t ring_bytes = kRingBytesMin) {
    auto server_file = SharedMemoryFile::create(ring_bytes);
    REQUIRE(server_file);
    auto client_file = SharedMemoryFile::open(fcntl(server_file->descriptor(), F_DUPFD_CLOEXEC, 0));
    REQUIRE(client_file);
    bytes = file_bytes(ring_bytes);
    memory =
        static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, server_file->descriptor(), 0));
    REQUIRE(memory != MAP_FAILED);
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    client = adopt_shared_memory(std::move(*client_file), ends[0], SharedMemorySide::client);
    server = adopt_shared_memory(std::move(*server_file), ends[1], SharedMemorySide::server);
  }
  ~Exposed() { munmap(memory, bytes); }
  RingIndices& to_server() { return *reinterpret_cast<RingIndices*>(memory + kIndicesOffset); }
  RingIndices& to_client() { return *reinterpret_cast<RingIndices*>(memory + kIndicesOffset + sizeof(RingIndices)); }

  std::byte* memory = nullptr;
  size_t bytes = 0;
  std::unique_ptr<Transport> client, server;
};

IoResult send_text(Transport& transport, std::string_view text) {
  iovec piece{const_cast<char*>(text.data()), text.size()};
  return send_all(transport, {&piece, 1}, kLimit);
}

std::string receive_text(Transport& transport, size_t bytes) {
  std::string text(bytes, '?');
  auto result = receive_all(transport, std::as_writable_bytes(std::span(text)), kLimit);
  text.resize(result.bytes);
  return text;
}

bool works(Transport& a, Transport& b) {
  return send_text(a, "there").status == IoStatus::ok && receive_text(b, 5) == "there" &&
         send_text(b, "back").status == IoStatus::ok && receive_text(a, 4) == "back";
}

}  // namespace

// --- damage
// --------------------------------------------------------------------------------------------------------------------

TEST_CASE("a writer's index that lies beyond the ring ends the connection, and says so") {
  Exposed exposed, other;
  exposed.to_server().written.store(kRingBytesMin + 1);
  std::byte out[64];
  auto result = exposed.server->try_receive(out);
  CHECK(result.status == IoStatus::failed);
  CHECK(result.error != 0);
  CHECK(exposed.server->damaged());
  CHECK(exposed.server->failure().find("beyond the ring") != std::string::npos);
  CHECK(works(*other.client, *other.server));
}

TEST_CASE("a writer's index that runs backwards ends the connection, and says so") {
  Exposed exposed;
  REQUIRE(send_text(*exposed.client, "hello").status == IoStatus::ok);
  CHECK(receive_text(*exposed.server, 2) == "he");
  exposed.to_server().written.store(3);
  std::byte out[64];
  CHECK(exposed.server->try_receive(out).status == IoStatus::failed);
  CHECK(exposed.server->failure().find("backwards") != std::string::npos);
  // It stays so when the index comes right again.
  exposed.to_server().written.store(5);
  CHECK(exposed.server->try_receive(out).status == IoStatus::failed);
}

TEST_CASE("a reader's index that claims what was not written, or runs backwards, ends the connection, and says so") {
  Exposed beyond;
  REQUIRE(send_text(*beyond.client, "hello").status == IoStatus::ok);
  beyond.to_server().read.store(6);
  CHECK(send_text(*beyond.client, "more").status == IoStatus::failed);
  CHECK(beyond.client->failure().find("beyond") != std::string::npos);

  Exposed backwards;
  const std::string told(notify_every(kRingBytesMin), 't');
  REQUIRE(send_text(*backwards.client, told).status == IoStatus::ok);
  CHECK(receive_text(*backwards.server, told.size()) == told);
  REQUIRE(send_text(*backwards.client, "hello").status == IoStatus::ok);
  backwards.to_server().read.store(4);
  CHECK(send_text(*backwards.client, "more").status == IoStatus::failed);
  CHECK(backwards.client->failure().find("backwards") != std::string::npos);
}

TEST_CASE("an end never reads its own indices back: the other side's changes of them change nothing here") {
  Exposed exposed;
  REQUIRE(send_text(*exposed.client, "hello").status == IoStatus::ok);
  CHECK(receive_text(*exposed.server, 5) == "hello");
  exposed.to_server().read.store(1u << 20);     // the server's own
  exposed.to_client().written.store(1u << 20);  // the same
  CHECK(send_text(*exposed.server, "back").status == IoStatus::ok);
  exposed.to_server().read.store(5);
  CHECK(receive_text(*exposed.client, 4) == "back");
  CHECK(works(*exposed.client, *exposed.server));
}

TEST_CASE("a damaged connection wakes who waits, and they find the end") {
  Exposed exposed;
  std::thread waiter([&] {
    CHECK((exposed.server->wait(kReadable, kLimit) & kReadable));
    std::byte out[8];
    CHECK(exposed.server->try_receive(out).status == IoStatus::failed);
  });
  exposed.to_server().written.store(uint64_t(1) << 63);
  auto bell = std::byte(SocketRecord::bell);
  REQUIRE(send(exposed.client->descriptor(), &bell, 1, MSG_NOSIGNAL) == 1);
  waiter.join();
}

TEST_CASE("random words in the shared page do no more than end the connection") {
  std::mt19937_64 random(test_seed());
  constexpr int kRounds = 300, kStepsMax = 200;
  int ended = 0;
  std::vector<std::byte> data(kRingBytesMin), out(kRingBytesMin);
  for (int round = 0; round < kRounds; ++round) {
    INFO("seed ", test_seed(), ", round ", round);
    Exposed exposed;
    bool over = false;
    for (int step = 0; step < kStepsMax && !over; ++step) {
      Transport& from = random() % 2 ? *exposed.client : *exposed.server;
      Transport& to = random() % 2 ? *exposed.client : *exposed.server;
      iovec piece{data.data(), size_t(random() % data.size())};
      auto sent = from.try_send({&piece, 1});
      auto got = to.try_receive(std::span(out).first(1 + random() % (out.size() - 1)));
      for (auto& [side, result] : {std::pair<Transport*, IoResult>{&from, sent}, {&to, got}}) {
        CHECK(result.bytes <= kRingBytesMin);
        if (result.status == IoStatus::failed) CHECK_FALSE(side->failure().empty());
        over = over || result.status == IoStatus::failed || result.status == IoStatus::closed;
      }
      if (random() % 8 == 0) {
        size_t offset = random() % (kDataOffset / sizeof(uint64_t)) * sizeof(uint64_t);
        // Small steps of an index are the likeliest to pass for real.
        uint64_t word = random();
        if (random() % 2) std::memcpy(&word, exposed.memory + offset, sizeof word), word += random() % 65 - 32;
        std::memcpy(exposed.memory + offset, &word, sizeof word);
      }
      from.wait(kReadable | kWritable | kWoken, Nanoseconds(0));
    }
    ended += over;
  }
  CHECK(ended > 0);
  Exposed untouched;
  CHECK(works(*untouched.client, *untouched.server));
}

TEST_CASE(
    "random words in the shared page while both sides work end the connection at most, and nobody waits for good") {
  for (uint64_t round = 0; round < 20; ++round) {
    Exposed exposed;
    std::atomic<bool> stop{false};
    auto carry = [&](Transport& from, Transport& to) {
      std::vector<std::byte> data(10'000), out(10'000);
      while (!stop.load()) {
        iovec piece{data.data(), data.size()};
        auto sent = from.try_send({&piece, 1});
        auto got = to.try_receive(out);
        if (sent.status == IoStatus::failed || got.status == IoStatus::failed || got.status == IoStatus::closed) return;
        if (sent.status == IoStatus::would_block) from.wait(kWritable, std::chrono::milliseconds(1));
      }
    };
    std::thread there(carry, std::ref(*exposed.client), std::ref(*exposed.server)),
        back(carry, std::ref(*exposed.server), std::ref(*exposed.client));
    std::mt19937_64 random(test_seed() + round);
    for (int i = 0; i < 2000; ++i) {
      uint64_t word = random();
      std::memcpy(exposed.memory + random() % (kDataOffset / sizeof word) * sizeof word, &word, sizeof word);
    }
    stop.store(true);
    there.join();
    back.join();
  }
}

TEST_CASE("a byte on the socket that is neither a bell nor a descriptor is a fault") {
  Exposed exposed;
  REQUIRE(send(exposed.client->descriptor(), "Z", 1, MSG_NOSIGNAL) == 1);
  CHECK((exposed.server->wait(kReadable, kLimit) & kReadable));
  CHECK(exposed.server->damaged());
  CHECK(exposed.server->failure().find("neither a bell nor a descriptor") != std::string::npos);
}

// --- the file
// --------------------------------------------------------------------------------------------------------------------

TEST_CASE("nobody can resize the memory of a connection") {
  auto file = SharedMemoryFile::create(kRingBytesMin);
  REQUIRE(file);
  CHECK(ftruncate(file->descriptor(), 4096) != 0);
  CHECK(ftruncate(file->descriptor(), off_t(file_bytes(kRingBytesMin)) + 4096) != 0);
  CHECK(fcntl(file->descriptor(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
}

TEST_CASE("a client takes no file that could be resized, is too short, or is of another kind or version") {
  auto made = [](size_t size, const Header& header, int seals) {
    int descriptor = memfd_create("made", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(descriptor, off_t(size)) == 0);
    REQUIRE(pwrite(descriptor, &header, sizeof header, 0) == ssize_t(sizeof header));
    REQUIRE(fcntl(descriptor, F_ADD_SEALS, seals) == 0);
    return SharedMemoryFile::open(descriptor);
  };
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  Header header;
  header.ring_bytes = kRingBytesMin;
  CHECK(made(file_bytes(kRingBytesMin), header, kSeals));
  CHECK_FALSE(made(file_bytes(kRingBytesMin), header, F_SEAL_GROW));
  CHECK_FALSE(made(file_bytes(kRingBytesMin), header, 0));
  CHECK_FALSE(made(file_bytes(kRingBytesMin) - 4096, header, kSeals));
  CHECK_FALSE(made(file_bytes(kRingBytesMin) + 4096, header, kSeals));
  Header newer = header, foreign = header, huge = header, odd = header;
  newer.version = kVersion + 1;
  foreign.magic = 0;
  huge.ring_bytes = 1u << 31;
  odd.ring_bytes = kRingBytesMin + 4096;
  CHECK(made(file_bytes(kRingBytesMin), newer, kSeals).error().find("version 2") != std::string::npos);
  CHECK_FALSE(made(file_bytes(kRingBytesMin), foreign, kSeals));
  CHECK_FALSE(made(file_bytes(kRingBytesMin), huge, kSeals));
  CHECK_FALSE(made(file_bytes(odd.ring_bytes), odd, kSeals));
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  CHECK_FALSE(SharedMemoryFile::open(ends[0]));
  close(ends[1]);
}

// --- processes that die, and peers that do not read
// --------------------------------------------------------------------------------------------

TEST_CASE("data of a peer that is killed in the middle of a frame arrive, then the end") {
  auto file = SharedMemoryFile::create(kRingBytesMin);
  REQUIRE(file);
  int passed = fcntl(file->descriptor(), F_DUPFD_CLOEXEC, 0);
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    auto own = SharedMemoryFile::open(passed);
    if (!own) _exit(1);
    auto client = adopt_shared_memory(std::move(*own), ends[0], SharedMemorySide::client);
    send_text(*client, "half a fr");
    raise(SIGKILL);
  }
  close(ends[0]);
  close(passed);
  auto server = adopt_shared_memory(std::move(*file), ends[1], SharedMemorySide::server);
  std::vector<std::byte> out(32);
  auto result = receive_all(*server, out, kLimit);
  CHECK(result.status == IoStatus::closed);
  CHECK(result.bytes == 9);
  CHECK_FALSE(server->damaged());
  CHECK(send_text(*server, "anybody?").status == IoStatus::failed);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE(
    "a reader tells of room once for a quarter of the ring, and a writer finds the other three when all is read") {
  Exposed exposed;
  const size_t quarter = notify_every(kRingBytesMin);
  std::string text(kRingBytesMin, 'r');
  REQUIRE(send_text(*exposed.client, text).status == IoStatus::ok);
  CHECK(receive_text(*exposed.server, quarter - 1).size() == quarter - 1);
  CHECK(exposed.to_server().read.load() == 0);
  CHECK(exposed.client->wait(kWritable, Nanoseconds(0)) == 0);
  CHECK(receive_text(*exposed.server, 1).size() == 1);
  CHECK(exposed.to_server().read.load() == quarter);
  CHECK((exposed.client->wait(kWritable, Nanoseconds(0)) & kWritable));
  CHECK(receive_text(*exposed.server, 2 * quarter).size() == 2 * quarter);
  CHECK(receive_text(*exposed.server, quarter - 1).size() == quarter - 1);
  CHECK(exposed.to_server().read.load() == 3 * quarter);
  iovec piece{text.data(), text.size()};
  CHECK(exposed.client->try_send({&piece, 1}).bytes == 3 * quarter);
}

TEST_CASE("a peer that never reads gets a ring full and no more, and holds nobody") {
  Exposed exposed;
  std::vector<std::byte> data(1 << 20);
  iovec piece{data.data(), data.size()};
  uint64_t sent = 0;
  IoResult result;
  while ((result = exposed.client->try_send({&piece, 1})).status == IoStatus::ok) sent += result.bytes;
  CHECK(result.status == IoStatus::would_block);
  CHECK(sent == kRingBytesMin);
  CHECK(exposed.client->wait(kWritable, std::chrono::milliseconds(2)) == 0);
  // The other direction does not suffer.
  CHECK(send_text(*exposed.server, "still here").status == IoStatus::ok);
  CHECK(receive_text(*exposed.client, 10) == "still here");
}

TEST_CASE("a side that has finished still receives, and what it sent arrives before the end of it") {
  Exposed exposed;
  REQUIRE(send_text(*exposed.client, "last").status == IoStatus::ok);
  exposed.client->finish();
  CHECK(send_text(*exposed.client, "no").status == IoStatus::failed);
  CHECK(receive_text(*exposed.server, 100) == "last");
  std::byte out[8];
  CHECK(exposed.server->try_receive(out).status == IoStatus::closed);
  // More than a ring: room must be told although one direction is over.
  std::string much(3 * kRingBytesMin, 'm');
  std::thread sender([&] { CHECK(send_text(*exposed.server, much).status == IoStatus::ok); });
  CHECK(receive_text(*exposed.client, much.size()) == much);
  sender.join();
}

TEST_CASE("a child after fork leaves its parent's connection alone") {
  Exposed exposed;
  pid_t child = fork();
  if (child == 0) {
    exposed.client->abandon_after_fork();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(works(*exposed.client, *exposed.server));
}

// --- sleeping
// --------------------------------------------------------------------------------------------------------------------

TEST_CASE("no bell is lost between two sides that sleep for every byte") {
  Exposed exposed;
  constexpr int kRounds = 5000;
  auto play = [](Transport& transport, bool first) {
    std::byte ball{1};
    iovec piece{&ball, 1};
    for (int i = 0; i < kRounds; ++i) {
      if (first) REQUIRE(transport.try_send({&piece, 1}).status == IoStatus::ok);
      IoResult got;
      while ((got = transport.try_receive({&ball, 1})).status == IoStatus::would_block)
        REQUIRE((transport.wait(kReadable, kLimit) & kReadable));
      REQUIRE(got.status == IoStatus::ok);
      if (!first) REQUIRE(transport.try_send({&piece, 1}).status == IoStatus::ok);
    }
  };
  std::thread far([&] { play(*exposed.server, false); });
  play(*exposed.client, true);
  far.join();
}

TEST_CASE(
    "threads that sleep for bytes, for room and for a wake-up all hear of theirs, whoever of them hears the bell") {
  for (int round = 0; round < 200; ++round) {
    Exposed exposed;
    std::vector<std::byte> data(kRingBytesMin);
    iovec piece{data.data(), data.size()};
    while (exposed.client->try_send({&piece, 1}).status == IoStatus::ok) {}
    std::thread bytes([&] { CHECK((exposed.client->wait(kReadable, kLimit) & kReadable)); });
    std::thread room([&] { CHECK((exposed.client->wait(kWritable, kLimit) & kWritable)); });
    std::thread woken([&] { CHECK((exposed.client->wait(kWoken, kLimit) & kWoken)); });
    std::vector<std::byte> sink(kRingBytesMin);
    auto ring = [&](int what) {
      if (what == 0) CHECK(send_text(*exposed.server, "x").status == IoStatus::ok);
      if (what == 1) CHECK(exposed.server->try_receive(sink).status == IoStatus::ok);
      if (what == 2) exposed.client->wake();
    };
    for (int i = 0; i < 3; ++i) ring((round + i) % 3);
    bytes.join();
    room.join();
    woken.join();
  }
}

// --- descriptors
// --------------------------------------------------------------------------------------------------------------------

TEST_CASE("descriptors arrive under their numbers, in whichever order they are asked for") {
  Exposed exposed;
  int first[2], second[2];
  REQUIRE(pipe2(first, O_CLOEXEC) == 0);
  REQUIRE(pipe2(second, O_CLOEXEC) == 0);
  CHECK(exposed.client->give_descriptor(7, first[1]));
  CHECK(exposed.client->give_descriptor(8, second[1]));
  CHECK(exposed.server->take_descriptor(9) == -1);
  int got_second = exposed.server->take_descriptor(8), got_first = exposed.server->take_descriptor(7);
  REQUIRE(got_first >= 0);
  REQUIRE(got_second >= 0);
  CHECK(exposed.server->take_descriptor(7) == -1);
  char letter = 0;
  CHECK(write(got_first, "1", 1) == 1);
  CHECK(read(first[0], &letter, 1) == 1);
  CHECK(letter == '1');
  for (int each : {first[0], first[1], second[0], second[1], got_first, got_second}) close(each);
  CHECK(works(*exposed.client, *exposed.server));
}

TEST_CASE("the oldest descriptors that nobody asks for are closed, and the others when the connection goes") {
  Exposed exposed;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  for (size_t i = 0; i <= kDescriptorsWaitingMax; ++i) REQUIRE(exposed.client->give_descriptor(i, ends[1]));
  close(ends[1]);
  CHECK(exposed.server->take_descriptor(0) == -1);
  int last = exposed.server->take_descriptor(kDescriptorsWaitingMax);
  CHECK(last >= 0);
  close(last);
  CHECK(works(*exposed.client, *exposed.server));
  exposed.server.reset();
  exposed.client.reset();
  // Nobody has the writing end any more.
  char letter;
  CHECK(read(ends[0], &letter, 1) == 0);
  close(ends[0]);
}

TEST_CASE("more descriptors at once than there are numbers end the connection, and none of them stays open") {
  Exposed exposed;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  std::byte record[kDescriptorRecordBytes] = {std::byte(SocketRecord::descriptor)};
  iovec piece{record, sizeof record};
  const int three[] = {ends[1], ends[1], ends[1]};
  REQUIRE(send_with_descriptors(exposed.client->descriptor(), {&piece, 1}, three) == ssize_t(sizeof record));
  close(ends[1]);
  CHECK(exposed.server->take_descriptor(0) == -1);
  CHECK(exposed.server->damaged());
  exposed.server.reset();
  char letter;
  CHECK(read(ends[0], &letter, 1) == 0);
  close(ends[0]);
}

// --- the set-up
// --------------------------------------------------------------------------------------------------------------------

TEST_CASE("a client that asks gets shared memory, and the session's bytes go through it") {
  auto pair = unix_pair();
  REQUIRE(pair);
  Agreed server;
  std::thread worker([&] { server = offer_shared_memory(std::move(pair->second), kLimit); });
  Agreed client = ask_for_shared_memory(std::move(pair->first), kLimit);
  worker.join();
  CHECK_FALSE(client.lost);
  CHECK(client.declined.empty());
  CHECK(std::string(client.connection->road()) == "shm");
  CHECK(std::string(server.connection->road()) == "shm");
  CHECK(works(*client.connection, *server.connection));
  client.connection->shutdown();
  std::byte out[8];
  CHECK((server.connection->wait(kReadable, kLimit) & kReadable));
  CHECK(server.connection->try_receive(out).status == IoStatus::closed);
}

TEST_CASE("a client that does not ask goes on over its socket, and nothing that it has said is lost") {
  auto pair = unix_pair();
  REQUIRE(pair);
  gpuwire::wire::FrameHeader hello{.kind = uint8_t(gpuwire::wire::FrameKind::control),
                                   .ordinal = uint32_t(gpuwire::wire::ControlOrdinal::hello)};
  std::string said(reinterpret_cast<const char*>(&hello), sizeof hello);
  REQUIRE(send_text(*pair->first, said).status == IoStatus::ok);
  Agreed server = offer_shared_memory(std::move(pair->second), kLimit);
  CHECK(server.declined.empty());
  CHECK(std::string(server.connection->road()) == "unix");
  CHECK(receive_text(*server.connection, said.size()) == said);
  CHECK(works(*pair->first, *server.connection));
}

TEST_CASE("a server that cannot give shared memory says so, and the socket carries the session") {
  auto pair = unix_pair();
  REQUIRE(pair);
  Agreed server;
  std::thread worker([&] { server = offer_shared_memory(std::move(pair->second), kLimit, kRingBytesMax * 2); });
  Agreed client = ask_for_shared_memory(std::move(pair->first), kLimit);
  worker.join();
  CHECK_FALSE(client.lost);
  CHECK_FALSE(client.declined.empty());
  CHECK_FALSE(server.declined.empty());
  CHECK(std::string(client.connection->road()) == "unix");
  CHECK(works(*client.connection, *server.connection));
}

TEST_CASE("a server that goes away instead of answering is a lost connection") {
  auto pair = unix_pair();
  REQUIRE(pair);
  pair->second.reset();
  CHECK(ask_for_shared_memory(std::move(pair->first), kLimit).lost);
}
