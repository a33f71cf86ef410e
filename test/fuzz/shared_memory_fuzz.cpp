// The input is the data of the other process while a Unix socket becomes a connection in shared memory. Its first byte
// selects: the client's first bytes, the server's answer with an arbitrary file, or the other end's changes of memory
// and socket while this end sends and receives. For any input this end accepts at most the content of a ring, and
// nothing after damage.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "protocol/transport/descriptor_passing.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/transport/shared_ring.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/frame.hpp"
#include "test/fuzz/frame_fuzz.hpp"
#include "test/fuzz/recorded.hpp"

using namespace gpuwire;
using namespace gpuwire::transport;
using namespace gpuwire::transport::shared_memory;

namespace {

constexpr std::chrono::seconds kLimit{10};  // the peer has sent everything and is gone before this end reads

class SocketPair {
 public:
  SocketPair() {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends_) != 0) std::abort();
  }
  ~SocketPair() {
    hang_up();
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  int peer() const { return ends_[0]; }
  int take() { return std::exchange(ends_[1], -1); }
  void hang_up() {
    if (ends_[0] >= 0) ::close(std::exchange(ends_[0], -1));
  }
  void say(std::span<const std::byte> bytes, std::optional<int> descriptor = {}) {
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    int passed = descriptor.value_or(-1);
    send_with_descriptors(ends_[0], {&piece, 1}, std::span<const int>(&passed, descriptor ? 1u : 0u));
  }

 private:
  int ends_[2];
};

void offer(std::span<const std::byte> bytes) {
  SocketPair sockets;
  sockets.say(bytes);
  ::shutdown(sockets.peer(), SHUT_WR);
  Agreed agreed = offer_shared_memory(adopt_stream(sockets.take()), kLimit, kRingBytesMin);
  if (!agreed.connection) std::abort();
}

// The answer, followed by the beginning of its file; the first byte selects the file's length.
void answer(std::span<const std::byte> bytes) {
  constexpr size_t kAnswer = sizeof(wire::FrameHeader);
  SocketPair sockets;
  int file = ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) std::abort();
  auto contents = bytes.subspan(std::min(bytes.size(), kAnswer));
  const auto how = contents.empty() ? 0u : unsigned(contents[0]);
  contents = contents.subspan(std::min<size_t>(contents.size(), 1));
  const size_t sizes[] = {0, 100, file_bytes(kRingBytesMin), file_bytes(kRingBytesMin) - 1};
  if (::ftruncate(file, off_t(sizes[how % 4])) != 0) std::abort();
  auto head = contents.first(std::min({contents.size(), sizeof(Header), sizes[how % 4]}));
  if (::pwrite(file, head.data(), head.size(), 0) != ssize_t(head.size())) std::abort();
  if (how & 4) ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  auto said = bytes.first(std::min(bytes.size(), kAnswer));
  if (how & 8) sockets.say(said);
  else sockets.say(said, file);
  ::close(file);
  ::shutdown(sockets.peer(), SHUT_WR);
  Agreed agreed = ask_for_shared_memory(adopt_stream(sockets.take()), kLimit);
  if (!agreed.connection) std::abort();
}

// The other end's actions, as records of nine bytes.
enum class Step : uint8_t { written, finished, read, sleeps, socket, receive, send, poll, kCount };

class OtherEnd {
 public:
  OtherEnd() : file_(SharedMemoryFile::create(kRingBytesMin).value()) {
    int same = ::fcntl(file_.descriptor(), F_DUPFD_CLOEXEC, 0);
    connection_ = adopt_shared_memory(SharedMemoryFile::open(same).value(), sockets_.take(), SharedMemorySide::client);
    if (!connection_) std::abort();
  }
  void step(Step what, uint64_t value) {
    switch (what) {
      case Step::written: return move(to_client().written, value);
      case Step::finished: return to_client().finished.store(uint32_t(value));
      case Step::read: return move(to_server().read, value);
      case Step::sleeps:
        to_client().writer_sleeps.store(uint32_t(value));
        return to_server().reader_sleeps.store(uint32_t(value >> 32));
      case Step::socket: {
        std::byte bytes[kDescriptorRecordBytes] = {std::byte(value)};
        sockets_.say(std::span(bytes).first(value & 0x100 ? 1 : sizeof bytes),
                     value & 0x200 ? std::optional<int>(sockets_.peer()) : std::nullopt);
        return;
      }
      case Step::receive: return receive(value % (2 * kRingBytesMin));
      case Step::send: return send(value % (2 * kRingBytesMin));
      default: {
        connection_->wait(kReadable | kWritable, Nanoseconds(0));
        if (int taken = connection_->take_descriptor(value % 3); taken >= 0) ::close(taken);
        static_cast<void>(connection_->input());
        static_cast<void>(connection_->unread());
      }
    }
  }

 private:
  RingIndices& of_ring(size_t ring) {
    return *std::launder(reinterpret_cast<RingIndices*>(file_.memory() + kIndicesOffset + ring * sizeof(RingIndices)));
  }
  RingIndices& to_server() { return of_ring(0); }
  RingIndices& to_client() { return of_ring(1); }
  // Sets the index anywhere, or as far as allowed.
  static void move(std::atomic<uint64_t>& index, uint64_t value) {
    index.store(value >> 63 ? value : index.load() + value % (kRingBytesMin + 2));
  }
  void receive(size_t most) {
    std::vector<std::byte> out(most);
    auto got = connection_->try_receive(out);
    if (got.status == IoStatus::ok && got.bytes > most) std::abort();
    check_damage(got);
  }
  void send(size_t bytes) {
    std::vector<std::byte> from(bytes);
    iovec piece{from.data(), from.size()};
    auto sent = connection_->try_send({&piece, 1});
    if (sent.status != IoStatus::ok) return;
    if (sent.bytes > bytes || sent.bytes > kRingBytesMin) std::abort();
  }
  void check_damage(const IoResult& got) {
    if (damaged_ && got.status == IoStatus::ok && got.bytes != 0) std::abort();
    // Data before the damage are delivered, and none after it.
    damaged_ = damaged_ || (got.status == IoStatus::failed && connection_->damaged());
  }

  SharedMemoryFile file_;
  SocketPair sockets_;
  std::unique_ptr<Transport> connection_;
  bool damaged_ = false;
};

void misbehave(std::span<const std::byte> bytes) {
  constexpr size_t kRecordBytes = 9, kStepsMax = 400;
  OtherEnd other;
  for (size_t i = 0; i < std::min(bytes.size() / kRecordBytes, kStepsMax); ++i) {
    auto record = bytes.subspan(i * kRecordBytes, kRecordBytes);
    uint64_t value;
    std::memcpy(&value, record.data() + 1, sizeof value);
    other.step(Step(uint8_t(record[0]) % uint8_t(Step::kCount)), value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 3) {
    case 0: offer(bytes); break;
    case 1: answer(bytes); break;
    default: misbehave(bytes);
  }
  return 0;
}
