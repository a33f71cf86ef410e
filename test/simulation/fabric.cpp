#include "test/simulation/fabric.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "protocol/transport/rdma_plugin.hpp"

namespace {

// The bytes that a message carries itself; every second longer message waits to be fetched.
constexpr size_t kCarriedBytesMax = 2048;
// The probabilities of faults, as one in so many:
constexpr uint64_t kOvertakes = 4, kLate = 4, kStrange = 64, kBreaks = 4, kSendsLater = 2;
constexpr size_t kOvertakenMax = 3;
constexpr uint64_t kBreakMessagesMax = 200;

// An event of an end.
struct Event {
  enum class Kind : uint8_t { arrived, sent, fetched, broken } kind = Kind::arrived;
  std::vector<std::byte> header, data;
  // The sender's memory, from which the data are copied when the event is reported or, if the message waits, fetched.
  const std::byte* at_sender = nullptr;
  bool waits = false;
  void* into = nullptr;  // of a fetched message: the target
  size_t bytes = 0;
  uint64_t from = 0, tag = 0;  // the sender's
  uint64_t fetch_tag = 0;
  bool ok = true;
};

}  // namespace

struct GpuwireRdmaFabric {};

struct GpuwireRdmaEnd {
  const GpuwireRdmaEvents* events = nullptr;
  void* user = nullptr;
  uint64_t number = 0, peer = 0;
  int bell = -1;
  std::deque<Event> events_to_tell;
  std::map<void*, Event> waiting;  // to be fetched
  uintptr_t arrivals = 0;
  uint64_t breaks_after = ~0ull;  // the number of sent messages until the end breaks
  bool broken = false;
};

namespace {

struct Fabric {
  std::mutex mutex;
  // Guarded by the mutex, like the ends except for members that only their owner uses:
  std::mt19937_64 random;
  unsigned breaks_left = 0;
  uint64_t numbers = 0;
  std::map<uint64_t, GpuwireRdmaEnd*> ends;

  bool one_in(uint64_t many) { return random() % many == 0; }
  void ring(const GpuwireRdmaEnd& end) {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(end.bell, &one, sizeof one);
  }
  void quiet(const GpuwireRdmaEnd& end) {
    uint64_t count;
    [[maybe_unused]] ssize_t taken = ::read(end.bell, &count, sizeof count);
  }
  void notify(GpuwireRdmaEnd& end, Event event) {
    end.events_to_tell.push_back(std::move(event));
    ring(end);
  }
  // Inserts the event before some of the unread messages.
  void arrive(GpuwireRdmaEnd& end, Event event) {
    auto& events = end.events_to_tell;
    size_t overtakes = one_in(kOvertakes) ? random() % (1 + std::min(events.size(), kOvertakenMax)) : 0;
    events.insert(events.end() - ptrdiff_t(overtakes), std::move(event));
    ring(end);
  }
  void tell_sender(const Event& message, bool ok) {
    auto sender = ends.find(message.from);
    if (message.at_sender && sender != ends.end())
      notify(*sender->second, {.kind = Event::Kind::sent, .tag = message.tag, .ok = ok});
  }
  // Returns false if the sender is gone with its memory.
  bool take(const Event& message, void* into) {
    if (!ends.contains(message.from)) return false;
    std::memcpy(into, message.at_sender, message.bytes);
    tell_sender(message, true);
    return true;
  }
  void breaks(GpuwireRdmaEnd& end) {
    if (!std::exchange(end.broken, true)) notify(end, {.kind = Event::Kind::broken});
  }
};

Fabric& fabric() {
  static Fabric& made = *new Fabric;
  return made;
}
GpuwireRdmaFabric g_handle;

GpuwireRdmaEnd* make(GpuwireRdmaFabric*, const GpuwireRdmaEvents* events, void* user, void*, size_t, char*, size_t) {
  Fabric& f = fabric();
  auto* end = new GpuwireRdmaEnd{.events = events, .user = user, .bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::lock_guard lock(f.mutex);
  end->number = ++f.numbers;
  f.ends[end->number] = end;
  return end;
}

size_t address(GpuwireRdmaEnd* end, void* out, size_t room) {
  if (room >= sizeof end->number) std::memcpy(out, &end->number, sizeof end->number);
  return sizeof end->number;
}

int connect(GpuwireRdmaEnd* end, const void* address, size_t bytes, char* error, size_t error_bytes) {
  Fabric& f = fabric();
  std::lock_guard lock(f.mutex);
  if (bytes == sizeof end->peer) std::memcpy(&end->peer, address, bytes);
  if (!f.ends.contains(end->peer)) {
    std::strncpy(error, "nobody is there", error_bytes);
    return 0;
  }
  if (f.breaks_left != 0 && f.one_in(kBreaks)) {
    --f.breaks_left;
    end->breaks_after = f.random() % kBreakMessagesMax;
  }
  return 1;
}

int send(GpuwireRdmaEnd* end, const void* header, size_t header_bytes, const void* data, size_t bytes, uint64_t tag) {
  Fabric& f = fabric();
  std::lock_guard lock(f.mutex);
  auto peer = f.ends.find(end->peer);
  if (end->breaks_after-- == 0) {
    f.breaks(*end);
    // Sometimes the peer breaks, too; otherwise it finds no peer.
    if (peer != f.ends.end() && f.one_in(2)) f.breaks(*peer->second);
  }
  if (end->broken) return kGpuwireRdmaFailed;
  // The message has no receiver; the sender learns it from the connection beside the fabric.
  if (peer == f.ends.end() || peer->second->broken) return kGpuwireRdmaDone;
  auto* from = static_cast<const std::byte*>(header);
  auto* of = static_cast<const std::byte*>(data);
  if (f.one_in(kStrange)) {
    Event strange{.header = {from, from + header_bytes}};
    // The header has the right length or not; a stranger does not have the token.
    for (std::byte& byte : strange.header) byte ^= std::byte(1 + f.random() % 255);
    if (f.one_in(2)) strange.header.resize(f.random() % header_bytes);
    f.arrive(*peer->second, std::move(strange));
  }
  Event message{.header = {from, from + header_bytes}, .bytes = bytes, .from = end->number, .tag = tag};
  message.waits = bytes > kCarriedBytesMax && f.one_in(2);
  const bool later = message.waits || f.one_in(kSendsLater);
  if (later && bytes != 0) message.at_sender = of;
  else message.data.assign(of, of + bytes);
  f.arrive(*peer->second, std::move(message));
  if (!later) return kGpuwireRdmaDone;
  if (bytes == 0) f.notify(*end, {.kind = Event::Kind::sent, .tag = tag});
  return kGpuwireRdmaUnderWay;
}

int fetch(GpuwireRdmaEnd* end, void* arrival, void* into, size_t bytes, uint64_t tag) {
  Fabric& f = fabric();
  std::lock_guard lock(f.mutex);
  auto waiting = end->waiting.extract(arrival);
  if (waiting.empty() || waiting.mapped().bytes != bytes) return kGpuwireRdmaFailed;
  if (f.one_in(2)) return f.take(waiting.mapped(), into) ? kGpuwireRdmaDone : kGpuwireRdmaFailed;
  Event fetched = std::move(waiting.mapped());
  fetched.kind = Event::Kind::fetched;
  fetched.into = into;
  fetched.fetch_tag = tag;
  f.notify(*end, std::move(fetched));
  return kGpuwireRdmaUnderWay;
}

unsigned progress(GpuwireRdmaEnd* end) {
  Fabric& f = fabric();
  Event event;
  void* arrival = nullptr;
  {
    std::lock_guard lock(f.mutex);
    if (end->events_to_tell.empty() || f.one_in(kLate)) return 0;
    event = std::move(end->events_to_tell.front());
    end->events_to_tell.pop_front();
    if (end->events_to_tell.empty()) f.quiet(*end);
    if (event.into) {
      event.ok = f.take(event, event.into);
    } else if (event.waits) {
      arrival = reinterpret_cast<void*>(++end->arrivals);
      end->waiting[arrival] = event;
    } else if (event.at_sender) {
      event.data.resize(event.bytes);
      if (!f.take(event, event.data.data())) return 1;
    }
  }
  switch (event.kind) {
    case Event::Kind::arrived: {
      int wanted = end->events->arrived(end->user, event.header.data(), event.header.size(),
                                        arrival ? nullptr : event.data.data(), event.bytes, arrival);
      if (wanted || !arrival) break;
      std::lock_guard lock(f.mutex);
      end->waiting.erase(arrival);
      f.tell_sender(event, true);
      break;
    }
    case Event::Kind::sent: end->events->sent(end->user, event.tag, event.ok); break;
    case Event::Kind::fetched: end->events->fetched(end->user, event.fetch_tag, event.ok); break;
    case Event::Kind::broken: end->events->broken(end->user, "the simulated fabric has broken"); break;
  }
  return 1;
}

int arm(GpuwireRdmaEnd* end) {
  std::lock_guard lock(fabric().mutex);
  return end->events_to_tell.empty();
}

// After this, other ends cannot access the end's memory any more.
int close(GpuwireRdmaEnd* end) {
  Fabric& f = fabric();
  {
    std::lock_guard lock(f.mutex);
    f.ends.erase(end->number);
    for (const auto& [arrival, message] : end->waiting) f.tell_sender(message, false);
    for (const Event& event : end->events_to_tell) f.tell_sender(event, false);
  }
  ::close(end->bell);
  delete end;
  return 1;
}

const GpuwireRdmaPlugin kPlugin = {
    .version = kGpuwireRdmaVersion,
    .bytes = sizeof(GpuwireRdmaPlugin),
    .open = [](int, char*, size_t) { return &g_handle; },
    .close_fabric = [](GpuwireRdmaFabric*) {},
    .make = make,
    .address = address,
    .connect = connect,
    .send = send,
    .fetch = fetch,
    .progress = progress,
    .descriptor = [](GpuwireRdmaEnd* end) { return end->bell; },
    .arm = arm,
    .close = close,
};

}  // namespace

extern "C" {

[[gnu::visibility("default")]] const GpuwireRdmaPlugin* gpuwire_rdma_plugin() { return &kPlugin; }
[[gnu::visibility("default")]] void gpuwire_simulated_fabric_begin(uint64_t seed, unsigned breaks_max) {
  Fabric& f = fabric();
  std::lock_guard lock(f.mutex);
  f.random.seed(seed);
  f.breaks_left = breaks_max;
}

}  // extern "C"
