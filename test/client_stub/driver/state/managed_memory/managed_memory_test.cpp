// Managed memory over a fake session: real pages and real faults, and a server that is a piece of memory.
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"

#include <sys/mman.h>

#include <atomic>
#include <thread>
#include <vector>

#include "client/forward.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using wire::SessionOrdinal;

constexpr uint64_t kServerBase = 0x6100'0000'0000;

struct ManagedProcess : test::DeviceProcess {
  ManagedProcess() {
    session->serve(uint32_t(SessionOrdinal::managed_read), [this](const test::SentFrame& frame,
                                                                  capnp::MessageBuilder& reply, const BulkSink& sink) {
      reply.initRoot<schema::Result>().setResult(CUDA_SUCCESS);
      frame.read<schema::ManagedRead>([&](auto asked) {
        test::FakeSession::fill(sink, std::span(server).subspan(asked.getAddress() - kServerBase, asked.getBytes()));
      });
    });
    // Contexts of earlier tests have unfinished work.
    handles().for_each(wire::HandleKind::context, [](uint64_t, void* object) {
      auto* context = static_cast<ContextState*>(object);
      if (context && context != t_context) context->alive.store(false);
    });
    REQUIRE(test::part<client::ManagedMemory>().map(kServerBase, server.size(), true) == ManagedMemory::Mapped::yes);
    memory = reinterpret_cast<volatile uint8_t*>(kServerBase);
  }
  ~ManagedProcess() { test::part<client::ManagedMemory>().unmap(kServerBase); }

  // Work of the device is sent.
  void work() {
    CUresult error = CUDA_SUCCESS;
    Caller caller = enter(Needs::context);
    resolve_stream(caller, nullptr, false, error);
    REQUIRE(error == CUDA_SUCCESS);
    REQUIRE(before_work(caller) == CUDA_SUCCESS);
    note_stream_work(caller, 0, ++sequence);
  }
  void done() { note_context_done(*t_context, sequence); }
  size_t reads() const { return session->count(uint32_t(SessionOrdinal::managed_read)); }
  // Applies the received writes.
  size_t apply_writes() {
    size_t found = 0;
    for (const test::SentFrame& frame : session->frames()) {
      if (frame.ordinal != uint32_t(SessionOrdinal::managed_write)) continue;
      ++found;
      frame.read<schema::ManagedWrite>([&](auto write) {
        auto mask = write.getChanged();
        wire::write_changed(server.data() + (write.getAddress() - kServerBase), frame.bulk,
                            {mask.begin(), mask.size()});
      });
    }
    return found;
  }

  std::vector<std::byte> server = std::vector<std::byte>(1u << 20);
  volatile uint8_t* memory = nullptr;
  uint64_t sequence = 1000;
};

}  // namespace

TEST_CASE("The program's changes are sent before the work, and the device's are there when the work is done") {
  ManagedProcess process;
  process.memory[70000] = 7;
  process.work();
  CHECK(process.apply_writes() == 1);
  CHECK(process.server[70000] == std::byte{7});
  process.server[70001] = std::byte{8};
  process.done();
  CHECK(process.reads() == 0);
  CHECK(process.memory[70001] == 8);
  CHECK(process.memory[70000] == 7);
  CHECK(process.reads() == 1);
}

TEST_CASE("Work that nobody's memory stands in the way of sends nothing more") {
  ManagedProcess process;
  process.memory[0] = 1;
  process.work();
  size_t frames = process.session->total();
  for (int i = 0; i < 10; ++i) process.work();
  CHECK(process.session->total() == frames);
}

TEST_CASE("Memory that was read while work was under way is read again when the work is done") {
  ManagedProcess process;
  process.work();
  CHECK(process.memory[5] == 0);
  process.server[5] = std::byte{9};
  process.done();
  CHECK(process.memory[5] == 9);
  size_t reads = process.reads();
  process.server[5] = std::byte{10};  // no frame could have caused this
  CHECK(process.memory[5] == 9);
  CHECK(process.reads() == reads);
}

TEST_CASE("A program that watches memory sees what a running kernel writes, and the kernel what the program writes") {
  ManagedProcess process;
  process.work();
  process.memory[1] = 1;
  CHECK(process.memory[0] == 0);
  while (process.apply_writes() == 0) std::this_thread::yield();
  CHECK(process.server[1] == std::byte{1});
  process.server[0] = std::byte{2};
  while (process.memory[0] != 2) std::this_thread::yield();
  process.done();
}

TEST_CASE("Work of another thread does not pass what is on its way to the server") {
  ManagedProcess process;
  size_t looked = 0;
  process.session->before_frames([&](uint32_t ordinal) {
    if (ordinal != uint32_t(SessionOrdinal::managed_write)) return;
    // No page is open or hidden any more; a hand-over must wait all the same.
    CHECK(test::part<client::ManagedMemory>().anything_to_hand_over());
    ++looked;
  });
  process.memory[70000] = 7;
  process.memory[200000] = 7;
  process.work();
  CHECK(looked == 2);
  CHECK_FALSE(test::part<client::ManagedMemory>().anything_to_hand_over());
}

TEST_CASE("Changes at the end of one allocation and the beginning of the next are sent in two messages") {
  constexpr uint64_t kNext = kServerBase + (1u << 20);
  ManagedProcess process;
  REQUIRE(test::part<client::ManagedMemory>().map(kNext, 1u << 20, true) == ManagedMemory::Mapped::yes);
  for (uint64_t i = kNext - 100; i < kNext + 100; ++i) *reinterpret_cast<volatile uint8_t*>(i) = 1;
  process.work();
  size_t writes = 0;
  for (const test::SentFrame& frame : process.session->frames()) {
    if (frame.ordinal != uint32_t(SessionOrdinal::managed_write)) continue;
    ++writes;
    CHECK(frame.bulk.size() == 100);
  }
  CHECK(writes == 2);
  test::part<client::ManagedMemory>().unmap(kNext);
}

TEST_CASE("Memory that the server refuses to tell is what it was last, and the next call says so") {
  ManagedProcess process;
  process.memory[5] = 5;
  process.work();
  process.session->serve(uint32_t(SessionOrdinal::managed_read),
                         [](const test::SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                           reply.initRoot<schema::Result>().setResult(CUDA_ERROR_INVALID_VALUE);
                         });
  CHECK(process.memory[5] == 5);
  CHECK(enter(Needs::context).error == CUDA_ERROR_UNKNOWN);
  // The page stays open: nothing is fetched or sent any more.
  test::part<client::ManagedMemory>().hand_over();
  process.memory[6] = 6;
  CHECK(process.reads() == 1);
  t_context->sticky.store(0);
  test::part<client::ManagedMemory>().clear();
}

TEST_CASE("Memory stays open once the session has ended, whatever calls of other threads still close") {
  ManagedProcess process;
  process.memory[5] = 5;
  test::part<client::ManagedMemory>().open_all();
  process.work();
  test::part<client::ManagedMemory>().settle();
  test::part<client::ManagedMemory>().refresh();
  CHECK(process.memory[5] == 5);
  CHECK(process.reads() == 0);
  test::part<client::ManagedMemory>().clear();
}

TEST_CASE("Look-ups send nothing, whatever the program has written; the step before work sends it") {
  ManagedProcess process;
  process.memory[5] = 5;
  const size_t before = process.session->total();
  const Caller caller = enter(Needs::context);
  const CUstream own = CU_STREAM_PER_THREAD;
  for (CUstream stream : {CUstream(nullptr), CU_STREAM_LEGACY, own}) {
    CUresult error = CUDA_ERROR_UNKNOWN;
    resolve_stream(caller, stream, false, error);
    CHECK(error == CUDA_SUCCESS);
    unsigned long long id = 0;
    unsigned flags = 0;
    int priority = 0;
    CUcontext context = nullptr;
    CUstreamCaptureStatus status{};
    CHECK(custom::cuStreamGetId(stream, &id, false) == CUDA_SUCCESS);
    CHECK(custom::cuStreamGetFlags(stream, &flags, false) == CUDA_SUCCESS);
    CHECK(custom::cuStreamGetPriority(stream, &priority, false) == CUDA_SUCCESS);
    CHECK(custom::cuStreamGetCtx(stream, &context, false) == CUDA_SUCCESS);
    CHECK(custom::cuStreamIsCapturing(stream, &status, false) == CUDA_SUCCESS);
    CHECK(custom::cuStreamQuery(stream, false) == CUDA_SUCCESS);
    CHECK(custom::cuStreamSynchronize(stream, false) == CUDA_SUCCESS);
  }
  CHECK(process.session->total() == before);
  CHECK(test::part<client::ManagedMemory>().anything_to_hand_over());
  process.memory[6] = 6;  // and the page stayed accessible
  CHECK(process.reads() == 0);
  REQUIRE(before_work(caller) == CUDA_SUCCESS);
  CHECK(process.apply_writes() == 1);
  CHECK(process.server[5] == std::byte{5});
  CHECK(process.session->count(forward_ordinal::cuStreamCreate) == 1);
  CHECK(process.session->total() == before + 2);
  REQUIRE(before_work(caller) == CUDA_SUCCESS);
  CHECK(process.session->total() == before + 2);
}

TEST_CASE("Many threads that fault at once all get their memory") {
  ManagedProcess process;
  for (size_t i = 0; i < process.server.size(); ++i) process.server[i] = std::byte(i * 7);
  process.work();
  process.done();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned first = 0; first < 8; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < process.server.size(); i += 4099) wrong += process.memory[i] != uint8_t(i * 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("A call's results may lie in memory that is the device's") {
  ManagedProcess process;
  process.work();
  REQUIRE(test::part<client::ManagedMemory>().hold(kServerBase + 100));
  process.work();  // as the call itself may send some
  process.memory[100] = 3;
  test::part<client::ManagedMemory>().release(kServerBase + 100);
  process.work();
  process.apply_writes();
  CHECK(process.server[100] == std::byte{3});
  CHECK_FALSE(test::part<client::ManagedMemory>().hold(kServerBase - 1));
}

TEST_CASE("Addresses that are taken here are refused, and what was mapped of them is given back") {
  ManagedProcess process;
  void* taken = reinterpret_cast<void*>(kServerBase + (4u << 20));
  REQUIRE(mmap(taken, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == taken);
  CHECK(test::part<client::ManagedMemory>().map(kServerBase + (4u << 20) - 8192, 65536, true) ==
        ManagedMemory::Mapped::taken);
  CHECK_FALSE(test::part<client::ManagedMemory>().holds(kServerBase + (4u << 20) - 8192));
  munmap(taken, 4096);
  CHECK(test::part<client::ManagedMemory>().map(~uint64_t{0} - 4096, 8192, true) == ManagedMemory::Mapped::taken);
  CHECK(test::part<client::ManagedMemory>().map(0, 4096, true) == ManagedMemory::Mapped::taken);
}

TEST_CASE("Variables that share pages are mapped together, and only their bytes are asked for") {
  ManagedProcess process;
  uint64_t base = kServerBase + (2u << 20);
  process.server.resize((2u << 20) + 16384, std::byte{1});
  CHECK(test::part<client::ManagedMemory>().map(base + 512, 100, false) == ManagedMemory::Mapped::yes);
  CHECK(test::part<client::ManagedMemory>().map(base + 1024, 8000, false) == ManagedMemory::Mapped::yes);
  CHECK(*reinterpret_cast<volatile uint8_t*>(base + 600) == 1);
  CHECK(process.reads() == 2);
  CHECK(*reinterpret_cast<volatile uint8_t*>(base + 700) == 0);
  CHECK(*reinterpret_cast<volatile uint8_t*>(base + 9000) == 1);
  test::part<client::ManagedMemory>().unmap(base + 512);
  CHECK(test::part<client::ManagedMemory>().holds(base + 600));
  test::part<client::ManagedMemory>().unmap_holder(base + 2000);
  CHECK_FALSE(test::part<client::ManagedMemory>().holds(base + 600));
}

}  // namespace gpuwire::client
