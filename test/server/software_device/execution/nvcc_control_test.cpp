// Divergence, calls, faults: kernels/control.cu.
#include <doctest/doctest.h>

#include <chrono>

#include "test/server/software_device/execution/engine_fixture.hpp"

namespace gpuwire::software_device::test {
namespace {

struct Control : TestDevice {
  Control() { REQUIRE(load(nvcc_ptx("control")) == ""); }
};

bool mentions(const LaunchResult& result, const char* text) { return result.message.find(text) != std::string::npos; }

TEST_CASE_FIXTURE(Control, "loops of different lengths in one warp end with each lane's own count") {
  unsigned* in = array<unsigned>(200);
  unsigned* out = array<unsigned>(200);
  for (unsigned i = 0; i < 200; ++i) in[i] = i * 37 + 1;
  CHECK(run("collatz", {2}, {100}, in, out).message == "");
  for (unsigned i = 0; i < 200; ++i) {
    unsigned long long value = in[i];
    unsigned steps = 0;
    for (; value != 1; ++steps) value = value & 1 ? 3 * value + 1 : value / 2;
    CHECK(out[i] == steps);
  }
}

TEST_CASE_FIXTURE(Control, "lanes recurse to different depths") {
  int* out = array<int>(64);
  CHECK(run("recursion", {1}, {64}, out).message == "");
  int fibonacci[13] = {0, 1};
  for (int i = 2; i < 13; ++i) fibonacci[i] = fibonacci[i - 1] + fibonacci[i - 2];
  for (int i = 0; i < 64; ++i) CHECK(out[i] == fibonacci[i % 13]);
}

TEST_CASE_FIXTURE(Control, "recursion without end overflows the stack") {
  LaunchResult result = run("too_deep", {1}, {1}, array<int>(1));
  CHECK(result.fault == Fault::stack_overflow);
  CHECK(mentions(result, "too_deep"));
}

TEST_CASE_FIXTURE(Control, "function pointers from memory call each lane's function") {
  int* out = array<int>(64);
  CHECK(run("by_pointer", {1}, {64}, out).message == "");
  for (int i = 0; i < 64; ++i) CHECK(out[i] == (i % 3 == 0 ? i + 1 : i % 3 == 1 ? 2 * i : i * i));
}

TEST_CASE_FIXTURE(Control, "a call of an address that is no function's is an invalid program counter") {
  CHECK(run("to_nowhere", {1}, {1}, uint64_t{0x1234}, array<int>(1)).fault == Fault::invalid_pc);
  CHECK(run("to_nowhere", {1}, {1}, program->function_address("_Z6squarei") + 1, array<int>(1)).fault ==
        Fault::invalid_pc);
}

TEST_CASE_FIXTURE(Control, "virtual functions find their class") {
  float* out = array<float>(32);
  CHECK(run("virtuals", {1}, {32}, out).message == "");
  for (int i = 0; i < 32; ++i) CHECK(out[i] == static_cast<float>(i * i * (i % 2 ? 1 : 3)));
  CHECK(heap.allocated == 32);
  CHECK(heap.freed == 32);
}

TEST_CASE_FIXTURE(Control, "structures are passed and returned by value") {
  struct Pack {
    int a;
    double b;
    char c[5];
    short d[3];
  };
  Pack given{3, 1.5, {1, 2, 3, 4, 5}, {10, 20, 30}};
  Pack* out = array<Pack>(8);
  CHECK(run("structures", {1}, {8}, given, out).message == "");
  for (int k = 0; k < 8; ++k) {
    Pack expected = given;
    expected.a += k;
    expected.b *= k;
    expected.c[k % 5] = static_cast<char>(k);
    expected.d[k % 3] = static_cast<short>(expected.d[k % 3] - k);
    CHECK(out[k].a == expected.a);
    CHECK(out[k].b == expected.b);
    CHECK(std::memcmp(out[k].c, expected.c, 5) == 0);
    CHECK(std::memcmp(out[k].d, expected.d, 6) == 0);
  }
}

TEST_CASE_FIXTURE(Control, "a switch over a branch table takes each lane to its case") {
  int* in = array<int>(32);
  int* out = array<int>(32);
  for (int i = 0; i < 32; ++i) in[i] = i % 10 - 1, out[i] = 1000 + i;
  CHECK(run("branch_table", {1}, {32}, in, out).message == "");
  for (int i = 0; i < 32; ++i) {
    int v = in[i];
    int expected = v == 0   ? 11
                   : v == 1 ? 7
                   : v == 2 ? i
                   : v == 3 ? -4
                   : v == 4 ? in[i ^ 1]
                   : v == 5 ? 1 << i % 8
                   : v == 6 ? 99
                   : v == 7 ? 1000 + i
                            : -1;
    CHECK(out[i] == expected);
  }
}

TEST_CASE_FIXTURE(Control, "lanes and blocks that spin on one lock all get it") {
  int* lock = array<int>(1);
  int* counter = array<int>(1);
  CHECK(run("spin_lock", {4}, {64}, lock, counter).message == "");
  CHECK(*counter == 256);
  *counter = 0;
  CHECK(run("spin_naive", {2}, {64}, lock, counter).message == "");
  CHECK(*counter == 128);
}

TEST_CASE_FIXTURE(Control, "a lane may wait for a store of another lane of its warp") {
  int* flag = array<int>(1);
  int* out = array<int>(40);
  CHECK(run("lanes_wait", {1}, {32}, flag, out).message == "");
  CHECK(out[0] == 1);
}

TEST_CASE_FIXTURE(Control, "threads that have returned are not waited for at a barrier") {
  int* out = array<int>(64);
  CHECK(run("early_exit", {1}, {64}, out, 41).message == "");
  for (int i = 0; i < 41; ++i) CHECK(out[i] == 2 * (40 - i));
}

TEST_CASE_FIXTURE(Control, "arrays in local memory belong to their thread") {
  int* in = array<int>(32);
  int* out = array<int>(48);
  for (int i = 0; i < 32; ++i) in[i] = i * i - 50;
  CHECK(run("local_arrays", {1}, {48}, in, out).message == "");
  for (int t = 0; t < 48; ++t) {
    int values[32], at = t % 32, sum = 0;
    for (int i = 0; i < 32; ++i) values[i] = in[i] * (t + 1);
    for (int i = 0; i < 100; ++i) {
      sum += values[at];
      at = (at * 5 + 3) % 32;
      values[at] ^= i;
    }
    CHECK(out[t] == sum);
  }
}

TEST_CASE_FIXTURE(Control, "barriers count, and combine predicates") {
  int* out = array<int>(3);
  CHECK(run("count_predicates", {1}, {96}, out).message == "");
  CHECK(out[0] != 0);
  CHECK(out[1] != 0);
  CHECK(out[2] == 32);
}

TEST_CASE_FIXTURE(Control, "bad addresses are faults that name kernel, block and thread") {
  int* out = array<int>(16);
  LaunchResult result = run("out_of_bounds", {1}, {1}, out, 16);
  CHECK(result.fault == Fault::illegal_address);
  CHECK(mentions(result, "kernel out_of_bounds"));
  CHECK(mentions(result, "block (0,0,0), thread (0,0,0)"));
  CHECK(run("out_of_bounds", {1}, {1}, out, 15).fault == Fault::none);
  CHECK(run("misaligned", {1}, {1}, out).fault == Fault::misaligned_address);
  CHECK(run("shared_out_of_bounds", {1}, {4}, out, 4).fault == Fault::illegal_address);
  CHECK(run("shared_out_of_bounds", {1}, {4}, out, 3).fault == Fault::none);
  CHECK(run("null_store", {1}, {1}).fault == Fault::illegal_address);
  CHECK(run("out_of_bounds", {1}, {1}, variable("limits"), 0).fault == Fault::illegal_address);
}

TEST_CASE_FIXTURE(Control, "a kernel without end is cancelled") {
  int polls = 0;
  cancelled = [&] { return ++polls > 3; };
  CHECK(run("forever", {1}, {32}, array<int>(1)).fault == Fault::cancelled);
}

TEST_CASE_FIXTURE(Control, "a grid of very many short blocks is cancelled between them") {
  int polls = 0;
  engine = make_engine(1);
  cancelled = [&] { return ++polls > 3; };
  CHECK(run("early_exit", {0x7fffffff}, {32}, array<int>(1), 0).fault == Fault::cancelled);
}

TEST_CASE_FIXTURE(Control, "blocks that wait for later blocks are preempted") {
  int* order = array<int>(20);
  CHECK(run("ordered", {20}, {32}, order, 20).message == "");
  for (int i = 0; i < 20; ++i) CHECK(order[i] == 1);
}

TEST_CASE_FIXTURE(Control, "special registers place threads and blocks in three dimensions") {
  unsigned* out = array<unsigned>(12 * 105);
  CHECK(run("special", {2, 3, 2}, {7, 5, 3}, out).message == "");
  for (unsigned block = 0; block < 12; ++block) {
    for (unsigned thread = 0; thread < 105; ++thread) CHECK(out[block * 105 + thread] == block * 1000 + thread);
  }
}

}  // namespace
}  // namespace gpuwire::software_device::test
