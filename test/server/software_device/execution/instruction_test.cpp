// Instruction by instruction: hand-written PTX against values computed here or given by the PTX ISA.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <random>

#include "test/server/software_device/execution/engine_fixture.hpp"
#include "test/server/software_device/execution/ptx_text.hpp"

namespace gpuwire::software_device::test {
namespace {

constexpr int kThreads = 64;
using Words = std::vector<uint64_t>;

// Runs the body for 64 threads, each with its own input words.
Words results_of(const std::string& body, int in_words, int out_words,
                 const std::function<uint64_t(int thread, int word)>& input) {
  TestDevice device(1);
  std::string text = kernel_of(body, in_words, out_words);
  std::string log = device.load(text);
  INFO(body);
  REQUIRE(log == "");
  uint64_t* in = device.array<uint64_t>(static_cast<size_t>(kThreads * in_words) + 1);
  uint64_t* out = device.array<uint64_t>(static_cast<size_t>(kThreads * out_words));
  for (int t = 0; t < kThreads; ++t) {
    for (int w = 0; w < in_words; ++w) in[t * in_words + w] = input(t, w);
  }
  REQUIRE(device.run("k", {1}, {kThreads}, in, out).message == "");
  return Words(out, out + kThreads * out_words);
}

// One thread's result for given inputs.
uint64_t one(const std::string& body, const Words& inputs) {
  return results_of(body, static_cast<int>(inputs.size()), 1,
                    [&](int, int w) { return inputs[static_cast<size_t>(w)]; })[0];
}

// d = op(a, b, c) on 32-bit registers.
uint32_t op32(const std::string& instruction, uint32_t a, uint32_t b = 0, uint32_t c = 0, uint32_t d = 0) {
  return static_cast<uint32_t>(one(
      "ld.global.u32 %r1,[%in]; ld.global.u32 %r2,[%in+8]; ld.global.u32 %r3,[%in+16]; ld.global.u32 %r4,[%in+24];\n" +
          instruction + "\nst.global.u32 [%out],%r0;",
      {a, b, c, d}));
}

uint64_t op64(const std::string& instruction, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  return one("ld.global.u64 %rd1,[%in]; ld.global.u64 %rd2,[%in+8]; ld.global.u64 %rd3,[%in+16];\n" + instruction +
                 "\nst.global.u64 [%out],%rd0;",
             {a, b, c});
}

float opf(const std::string& instruction, float a, float b = 0, float c = 0) {
  return std::bit_cast<float>(
      static_cast<uint32_t>(one("ld.global.f32 %f1,[%in]; ld.global.f32 %f2,[%in+8]; ld.global.f32 %f3,[%in+16];\n" +
                                    instruction + "\nst.global.f32 [%out],%f0;",
                                {std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), std::bit_cast<uint32_t>(c)})));
}

uint32_t bits(float f) { return std::bit_cast<uint32_t>(f); }

TEST_CASE("integer arithmetic wraps, saturates and multiplies wide") {
  CHECK(op32("add.s32 %r0,%r1,%r2;", 0x7fffffff, 1) == 0x80000000);
  CHECK(op32("add.sat.s32 %r0,%r1,%r2;", 0x7fffffff, 1) == 0x7fffffff);
  CHECK(op32("sub.sat.s32 %r0,%r1,%r2;", 0x80000000, 1) == 0x80000000);
  CHECK(op32("mul.hi.u32 %r0,%r1,%r2;", 0xffffffff, 0xffffffff) == 0xfffffffe);
  CHECK(op32("mul.hi.s32 %r0,%r1,%r2;", 0xffffffff, 0xffffffff) == 0);
  CHECK(op32("mad.hi.sat.s32 %r0,%r1,%r2,%r3;", 0x7fffffff, 0x7fffffff, 0x7fffffff) == 0x7fffffff);
  CHECK(op32("mul24.lo.s32 %r0,%r1,%r2;", 0x00ffffff, 5) == 0xfffffffb);
  CHECK(op32("mul24.hi.u32 %r0,%r1,%r2;", 0xffffff, 0xffffff) == static_cast<uint32_t>((0xffffffull * 0xffffff) >> 16));
  CHECK(op32("mad24.lo.u32 %r0,%r1,%r2,%r3;", 0x1000003, 7, 100) == 121);
  CHECK(op32("sad.s32 %r0,%r1,%r2,%r3;", static_cast<uint32_t>(-5), 7, 100) == 112);
  CHECK(op32("sad.u32 %r0,%r1,%r2,%r3;", 3, 10, 1) == 8);
  CHECK(op32("div.s32 %r0,%r1,%r2;", static_cast<uint32_t>(-7), 2) == static_cast<uint32_t>(-3));
  CHECK(op32("rem.s32 %r0,%r1,%r2;", static_cast<uint32_t>(-7), 2) == static_cast<uint32_t>(-1));
  CHECK(op32("div.s32 %r0,%r1,%r2;", 0x80000000, 0xffffffff) == 0x80000000);
  CHECK(op32("abs.s32 %r0,%r1;", 0x80000000) == 0x80000000);
  CHECK(op32("neg.s32 %r0,%r1;", 5) == static_cast<uint32_t>(-5));
  CHECK(op32("min.s32 %r0,%r1,%r2;", static_cast<uint32_t>(-1), 1) == static_cast<uint32_t>(-1));
  CHECK(op32("min.u32 %r0,%r1,%r2;", static_cast<uint32_t>(-1), 1) == 1);
  CHECK(op32("dp4a.s32.s32 %r0,%r1,%r2,%r3;", 0xff020304, 0x01020304, 10) ==
        static_cast<uint32_t>(10 - 1 + 4 + 9 + 16));
  CHECK(op32("dp4a.u32.u32 %r0,%r1,%r2,%r3;", 0xff020304, 0x01020304, 10) == 10u + 255 + 4 + 9 + 16);
  CHECK(op32("dp2a.lo.s32.u32 %r0,%r1,%r2,%r3;", 0xffff0002, 0x00000503, 1) == static_cast<uint32_t>(1 + 6 - 5));
  CHECK(op32("dp2a.hi.u32.u32 %r0,%r1,%r2,%r3;", 0x00030002, 0x05030000, 1) == 1 + 6 + 15);
  CHECK(op32("vabsdiff4.u32.u32.u32 %r0,%r1,%r2,%r3;", 0x01ff0510, 0x03000501, 9) == 0x02ff000f);
  CHECK(op32("vabsdiff4.u32.u32.u32.add %r0,%r1,%r2,%r3;", 0x01ff0510, 0x03000501, 9) == 9u + 2 + 255 + 15);
  CHECK(op64("mul.hi.u64 %rd0,%rd1,%rd2;", ~0ull, ~0ull) == ~0ull - 1);
  CHECK(one("ld.global.u32 %r1,[%in]; ld.global.u32 %r2,[%in+8]; mul.wide.s32 %rd0,%r1,%r2; st.global.u64 [%out],%rd0;",
            {0xffffffff, 3}) == static_cast<uint64_t>(-3));
  CHECK(one("ld.global.u32 %r1,[%in]; mad.wide.u32 %rd0,%r1,%r1,%in; sub.u64 %rd0,%rd0,%in; st.global.u64 [%out],%rd0;",
            {0xffffffff}) == 0xfffffffe00000001);
  CHECK(
      one("ld.global.u16 %rs1,[%in]; mul.wide.s16 %r0,%rs1,%rs1; st.global.u64 [%out],%rd9; st.global.u32 [%out],%r0;",
          {0x8000}) == 0x40000000);
  CHECK(one("ld.global.u16 %rs1,[%in]; mul.lo.u16 %rs2,%rs1,%rs1; add.s16 %rs2,%rs2,-3; cvt.u64.u16 %rd0,%rs2; "
            "st.global.u64 [%out],%rd0;",
            {0x1234}) == ((0x1234 * 0x1234 - 3) & 0xffff));
}

TEST_CASE("carries pass through additions, subtractions and products of 128 bits") {
  std::mt19937_64 random(11);
  MESSAGE("seed 11");
  Words in;
  for (int i = 0; i < kThreads * 4; ++i) in.push_back(i % 5 == 0 ? ~0ull : random());
  Words out = results_of(
      "ld.global.v2.u64 {%rd1,%rd2},[%in]; ld.global.v2.u64 {%rd3,%rd4},[%in+16];\n"
      "add.cc.u64 %rd5,%rd1,%rd3; addc.cc.u64 %rd6,%rd2,%rd4; addc.u64 %rd7,0,0;\n"
      "sub.cc.u64 %rd8,%rd1,%rd3; subc.cc.u64 %rd9,%rd2,%rd4; subc.u64 %rd10,0,0;\n"
      "mul.lo.u64 %rd11,%rd1,%rd3; mul.hi.u64 %rd12,%rd1,%rd3; mad.lo.cc.u64 %rd13,%rd1,%rd4,%rd12; madc.hi.u64 "
      "%rd14,%rd1,%rd4,0;\n"
      "st.global.v2.u64 [%out],{%rd5,%rd6}; st.global.v2.u64 [%out+16],{%rd7,%rd8}; st.global.v2.u64 "
      "[%out+32],{%rd9,%rd10}; st.global.v2.u64 [%out+48],{%rd13,%rd14};",
      4, 8, [&](int t, int w) { return in[static_cast<size_t>(t * 4 + w)]; });
  __extension__ using Wide = unsigned __int128;
  for (size_t t = 0; t < kThreads; ++t) {
    Wide a = static_cast<Wide>(in[t * 4 + 1]) << 64 | in[t * 4],
         b = static_cast<Wide>(in[t * 4 + 3]) << 64 | in[t * 4 + 2];
    Wide sum = a + b, difference = a - b;
    const uint64_t* o = out.data() + t * 8;
    CHECK(o[0] == static_cast<uint64_t>(sum));
    CHECK(o[1] == static_cast<uint64_t>(sum >> 64));
    CHECK(o[2] == (sum < a));
    CHECK(o[3] == static_cast<uint64_t>(difference));
    CHECK(o[4] == static_cast<uint64_t>(difference >> 64));
    CHECK(o[5] == (a < b ? ~0ull : 0));
    Wide high = static_cast<Wide>(in[t * 4]) * in[t * 4 + 3] + (static_cast<Wide>(in[t * 4]) * in[t * 4 + 2] >> 64);
    CHECK(o[6] == static_cast<uint64_t>(high));
    CHECK(o[7] == static_cast<uint64_t>(high >> 64));
  }
}

TEST_CASE("shifts clamp at the width") {
  CHECK(op32("shl.b32 %r0,%r1,%r2;", 1, 31) == 0x80000000);
  CHECK(op32("shl.b32 %r0,%r1,%r2;", 1, 32) == 0);
  CHECK(op32("shr.u32 %r0,%r1,%r2;", 0x80000000, 200) == 0);
  CHECK(op32("shr.s32 %r0,%r1,%r2;", 0x80000000, 200) == 0xffffffff);
  CHECK(one("ld.global.u64 %rd1,[%in]; shr.s64 %rd0,%rd1,64; st.global.u64 [%out],%rd0;", {1ull << 63}) == ~0ull);
  CHECK(one("ld.global.u64 %rd1,[%in]; shl.b64 %rd0,%rd1,63; st.global.u64 [%out],%rd0;", {3}) == 1ull << 63);
  CHECK(op32("shf.l.wrap.b32 %r0,%r1,%r2,%r3;", 0x80000000, 1, 33) == 3);
  CHECK(op32("shf.l.clamp.b32 %r0,%r1,%r2,%r3;", 0x80000000, 1, 33) == 0x80000000);
  CHECK(op32("shf.r.wrap.b32 %r0,%r1,%r2,%r3;", 0x10, 1, 4) == 0x10000001);
  CHECK(op32("shf.r.clamp.b32 %r0,%r1,%r2,%r3;", 0x10, 7, 99) == 7);
}

TEST_CASE("bit fields are found, taken and put as PTX says") {
  CHECK(op32("bfe.u32 %r0,%r1,%r2,%r3;", 0xabcdef12, 8, 8) == 0xef);
  CHECK(op32("bfe.s32 %r0,%r1,%r2,%r3;", 0xabcdef12, 8, 8) == 0xffffffef);
  CHECK(op32("bfe.s32 %r0,%r1,%r2,%r3;", 0x80000000, 28, 16) == 0xfffffff8);
  CHECK(op32("bfe.s32 %r0,%r1,%r2,%r3;", 0x80000000, 40, 4) == 0xffffffff);
  CHECK(op32("bfe.u32 %r0,%r1,%r2,%r3;", 0xffffffff, 4, 0) == 0);
  CHECK(op32("bfe.u32 %r0,%r1,%r2,%r3;", 0xffffffff, 0, 255) == 0xffffffff);
  CHECK(op32("bfi.b32 %r0,%r1,%r2,%r3,%r4;", 0xff, 0, 4, 4) == 0xf0);
  CHECK(op32("bfi.b32 %r0,%r1,%r2,%r3,%r4;", 0xff, 0x12345678, 0, 32) == 0xff);
  CHECK(op32("bfi.b32 %r0,%r1,%r2,%r3,%r4;", 0xff, 0x12345678, 32, 4) == 0x12345678);
  CHECK(one("ld.global.u64 %rd1,[%in]; bfi.b64 %rd0,%rd1,0,60,8; st.global.u64 [%out],%rd0;", {0xff}) ==
        0xf000000000000000);
  CHECK(op32("bfind.u32 %r0,%r1;", 0x00010000) == 16);
  CHECK(op32("bfind.u32 %r0,%r1;", 0) == 0xffffffff);
  CHECK(op32("bfind.s32 %r0,%r1;", 0xffffff00) == 7);
  CHECK(op32("bfind.shiftamt.u32 %r0,%r1;", 0x00010000) == 15);
  CHECK(op32("fns.b32 %r0,%r1,%r2,%r3;", 0xa5, 0, 2) == 2);
  CHECK(op32("fns.b32 %r0,%r1,%r2,%r3;", 0xa5, 7, static_cast<uint32_t>(-2)) == 5);
  CHECK(op32("fns.b32 %r0,%r1,%r2,%r3;", 0xa5, 1, 0) == 0xffffffff);
  CHECK(op32("popc.b32 %r0,%r1;", 0xf0f0) == 8);
  CHECK(op32("clz.b32 %r0,%r1;", 0) == 32);
  CHECK(op32("clz.b32 %r0,%r1;", 1) == 31);
  CHECK(op32("brev.b32 %r0,%r1;", 0x00000003) == 0xc0000000);
  CHECK(op64("brev.b64 %rd0,%rd1;", 0x1) == 1ull << 63);
  CHECK(op32("szext.wrap.s32 %r0,%r1,%r2;", 0xff, 8) == 0xffffffff);
  CHECK(op32("szext.clamp.u32 %r0,%r1,%r2;", 0xffff, 8) == 0xff);
  CHECK(op32("bmsk.clamp.b32 %r0,%r1,%r2;", 4, 8) == 0xff0);
  CHECK(op32("bmsk.wrap.b32 %r0,%r1,%r2;", 36, 40) == 0xff0);
  CHECK(op32("lop3.b32 %r0,%r1,%r2,%r3,0x96;", 0xff00ff00, 0xf0f0f0f0, 0xaaaaaaaa) ==
        (0xff00ff00 ^ 0xf0f0f0f0 ^ 0xaaaaaaaa));
  CHECK(op32("lop3.b32 %r0,%r1,%r2,%r3,0xca;", 0xff00ff00, 0xf0f0f0f0, 0xaaaaaaaa) ==
        ((0xff00ff00 & 0xf0f0f0f0) | (~0xff00ff00 & 0xaaaaaaaa)));
  CHECK(op32("cnot.b32 %r0,%r1;", 0) == 1);
  CHECK(op32("cnot.b32 %r0,%r1;", 9) == 0);
}

TEST_CASE("prmt picks bytes in all of its modes") {
  CHECK(op32("prmt.b32 %r0,%r1,%r2,%r3;", 0x33221100, 0x77665544, 0x7531) == 0x77553311);
  CHECK(op32("prmt.b32 %r0,%r1,%r2,%r3;", 0x33228000, 0x77665544, 0x0009) == 0x000000ff);
  CHECK(op32("prmt.b32.f4e %r0,%r1,%r2,%r3;", 0x33221100, 0x77665544, 1) == 0x44332211);
  CHECK(op32("prmt.b32.b4e %r0,%r1,%r2,%r3;", 0x33221100, 0x77665544, 1) == 0x66770011);
  CHECK(op32("prmt.b32.rc8 %r0,%r1,%r2,%r3;", 0x33221100, 0x77665544, 2) == 0x22222222);
  CHECK(op32("prmt.b32.ecl %r0,%r1,%r2,%r3;", 0x33221100, 0x77665544, 2) == 0x33222222);
  CHECK(op32("prmt.b32.ecr %r0,%r1,%r2,%r3;", 0x33221100, 0x77665544, 1) == 0x11111100);
  CHECK(op32("prmt.b32.rc16 %r0,%r1,%r2,%r3;", 0x33221100, 0x77665544, 1) == 0x33223322);
}

TEST_CASE("comparisons combine predicates and know unordered values") {
  const std::string select = " selp.u32 %r0,1,0,%p1;";
  CHECK(op32("setp.lt.s32 %p1,%r1,%r2;" + select, static_cast<uint32_t>(-1), 1) == 1);
  CHECK(op32("setp.lo.u32 %p1,%r1,%r2;" + select, static_cast<uint32_t>(-1), 1) == 0);
  CHECK(op32("setp.eq.s32 %p2,%r1,7; setp.ge.and.s32 %p1|%p3,%r1,%r2,!%p2; selp.u32 %r1,2,0,%p3;" + select +
                 " or.b32 %r0,%r0,%r1;",
             8, 8) == 1);
  CHECK(op32("setp.eq.s32 %p2,%r1,8; setp.ge.or.s32 %p1|%p3,%r1,%r2,%p2; selp.u32 %r1,2,0,%p3;" + select +
                 " or.b32 %r0,%r0,%r1;",
             8, 9) == 3);
  CHECK(op32("setp.ne.xor.u32 %p1,%r1,%r2,%p0; setp.eq.u32 %p0,%r1,%r1; setp.ne.xor.u32 %p1,%r1,%r2,%p0;" + select, 8,
             9) == 0);
  auto compare = [&](const std::string& name, float a, float b) {
    return op32("mov.b32 %f1,%r1; mov.b32 %f2,%r2; setp." + name + ".f32 %p1,%f1,%f2;" + select, bits(a), bits(b));
  };
  CHECK(compare("lt", 1, 2) == 1);
  CHECK(compare("lt", NAN, 2) == 0);
  CHECK(compare("ltu", NAN, 2) == 1);
  CHECK(compare("ne", NAN, 2) == 0);
  CHECK(compare("neu", NAN, 2) == 1);
  CHECK(compare("eq", 0.0f, -0.0f) == 1);
  CHECK(compare("equ", NAN, NAN) == 1);
  CHECK(compare("num", 1, NAN) == 0);
  CHECK(compare("nan", 1, NAN) == 1);
  CHECK(compare("eq.ftz", 1e-40f, 0) == 1);
  CHECK(compare("eq", 1e-40f, 0) == 0);
  CHECK(op32("set.lt.u32.s32 %r0,%r1,%r2;", 1, 2) == 0xffffffff);
  CHECK(op32("set.lt.f32.s32 %f0,%r1,%r2; mov.b32 %r0,%f0;", 1, 2) == bits(1.0f));
  CHECK(op32("slct.u32.s32 %r0,%r1,%r2,%r3;", 1, 2, static_cast<uint32_t>(-1)) == 2);
  CHECK(op32("mov.b32 %f1,%r3; slct.u32.f32 %r0,%r1,%r2,%f1;", 1, 2, bits(-0.0f)) == 1);
  CHECK(op32("mov.b32 %f1,%r3; slct.u32.f32 %r0,%r1,%r2,%f1;", 1, 2, bits(NAN)) == 2);
  CHECK(op32("mov.pred %p2,1; not.pred %p3,%p2; and.pred %p1,%p2,!%p3;" + select, 0) == 1);
}

TEST_CASE("f32 arithmetic flushes, saturates and has one NaN") {
  CHECK(bits(opf("add.f32 %f0,%f1,%f2;", INFINITY, -INFINITY)) == 0x7fffffff);
  CHECK(bits(opf("mul.f32 %f0,%f1,%f2;", std::bit_cast<float>(0xffc12345u), 1)) == 0x7fffffff);
  CHECK(bits(opf("add.ftz.f32 %f0,%f1,%f2;", 1e-40f, -0.0f)) == 0);
  CHECK(bits(opf("mul.ftz.f32 %f0,%f1,%f2;", -1e-30f, 1e-15f)) == 0x80000000);
  CHECK(opf("mul.f32 %f0,%f1,%f2;", -1e-30f, 1e-15f) == -1e-30f * 1e-15f);
  CHECK(opf("add.sat.f32 %f0,%f1,%f2;", 0.75f, 0.5f) == 1);
  CHECK(bits(opf("sub.sat.f32 %f0,%f1,%f2;", 0.5f, 0.75f)) == 0);
  CHECK(bits(opf("mul.sat.f32 %f0,%f1,%f2;", NAN, 0.75f)) == 0);
  CHECK(bits(opf("min.f32 %f0,%f1,%f2;", 0.0f, -0.0f)) == 0x80000000);
  CHECK(bits(opf("max.f32 %f0,%f1,%f2;", -0.0f, 0.0f)) == 0);
  CHECK(opf("min.f32 %f0,%f1,%f2;", NAN, 3) == 3);
  CHECK(bits(opf("max.f32 %f0,%f1,%f2;", -NAN, NAN)) == 0x7fffffff);
  CHECK(bits(opf("min.NaN.f32 %f0,%f1,%f2;", NAN, 3)) == 0x7fffffff);
  CHECK(bits(opf("neg.f32 %f0,%f1;", 0.0f)) == 0x80000000);
  CHECK(bits(opf("abs.ftz.f32 %f0,%f1;", -1e-40f)) == 0);
  CHECK(bits(opf("copysign.f32 %f0,%f1,%f2;", -1, 3)) == bits(-3));
  CHECK(opf("rcp.rn.f32 %f0,%f1;", 3) == 1.0f / 3);
  CHECK(opf("div.full.f32 %f0,%f1,%f2;", 6, 3) == 2);
  CHECK(opf("rsqrt.approx.f32 %f0,%f1;", 4) == 0.5f);
  CHECK(bits(opf("sqrt.rn.f32 %f0,%f1;", -1)) == 0x7fffffff);
  CHECK(opf("ex2.approx.ftz.f32 %f0,%f1;", 10) == 1024);
  CHECK(bits(opf("ex2.approx.ftz.f32 %f0,%f1;", -140)) == 0);
  CHECK(opf("lg2.approx.f32 %f0,%f1;", 0.125f) == -3);
  CHECK(opf("tanh.approx.f32 %f0,%f1;", 100) == 1);
  CHECK(opf("fma.rn.f32 %f0,%f1,%f2,%f3;", 1 + 0x1p-23f, 1 + 0x1p-23f, -1 - 0x1p-22f) == 0x1p-46f);
  CHECK(op32("mov.b32 %f1,%r1; testp.subnormal.f32 %p1,%f1; selp.u32 %r0,1,0,%p1;", 1) == 1);
  CHECK(op32("mov.b32 %f1,%r1; testp.normal.f32 %p1,%f1; selp.u32 %r0,1,0,%p1;", 1) == 0);
}

TEST_CASE("bfloat16 and half arithmetic of hand-written PTX rounds once") {
  // 1.0078125 * 1.0078125 + 2^-20: the product's tail decides the rounding together with the addend.
  CHECK(op32("cvt.u16.u32 %rs1,%r1; cvt.u16.u32 %rs2,%r2; fma.rn.bf16 %rs3,%rs1,%rs1,%rs2; cvt.u32.u16 %r0,%rs3;",
             0x3f81, 0x3580) == 0x3f82);
  CHECK(op32("fma.rn.bf16x2 %r0,%r1,%r1,%r2;", 0x3f813f80, 0x35800000) == 0x3f823f80);
  CHECK(op32("fma.rn.relu.f16x2 %r0,%r1,%r2,%r3;", 0x3c003c00, 0xbc003c00, 0) == 0x00003c00);
  CHECK(op32("add.f16x2 %r0,%r1,%r2;", 0x3c003c00, 0x3c004000) == 0x40004200);
  CHECK(op32("add.sat.f16x2 %r0,%r1,%r2;", 0x3c003c00, 0xc0003c00) == 0x00003c00);
  CHECK(op32("min.f16x2 %r0,%r1,%r2;", 0x7e003c00, 0x3c004000) == 0x3c003c00);
  CHECK(op32("neg.f16x2 %r0,%r1;", 0x3c00bc00) == 0xbc003c00);
  CHECK(op32("mov.b32 %f1,%r1; mov.b32 %f2,%r2; cvt.rn.f16x2.f32 %r0,%f1,%f2;", bits(1.0f), bits(65520.0f)) ==
        0x3c007c00);
  CHECK(op32("mov.b32 %f1,%r1; cvt.rz.f16.f32 %rs1,%f1; cvt.u32.u16 %r0,%rs1;", bits(65520.0f)) == 0x7bff);
  CHECK(op32("mov.b32 %f1,%r1; cvt.rn.bf16.f32 %rs1,%f1; cvt.u32.u16 %r0,%rs1;", 0x3f808000) == 0x3f80);
  CHECK(op32("mov.b32 %f1,%r1; cvt.rn.bf16.f32 %rs1,%f1; cvt.u32.u16 %r0,%rs1;", 0x3f818000) == 0x3f82);
  CHECK(op32("cvt.u16.u32 %rs1,%r1; cvt.f32.f16 %f1,%rs1; mov.b32 %r0,%f1;", 0x0001) == bits(0x1p-24f));
  CHECK(op32("setp.lt.f16x2 %p1|%p2,%r1,%r2; selp.u32 %r3,1,0,%p1; selp.u32 %r4,2,0,%p2; add.u32 %r0,%r3,%r4;",
             0x3c003c00, 0x40003800) == 2);
  CHECK(op32("ex2.approx.f16x2 %r0,%r1;", 0x3c004000) == 0x40004400);
}

TEST_CASE("integer conversions truncate, extend and saturate") {
  CHECK(op32("cvt.s32.s8 %r0,%r1;", 0x1ff) == 0xffffffff);
  CHECK(op32("cvt.u32.u8 %r0,%r1;", 0x1ff) == 0xff);
  CHECK(op32("cvt.u8.u32 %r0,%r1;", 0x1ff) == 0xff);
  CHECK(op32("cvt.s8.s32 %r0,%r1;", 0x180) == 0xffffff80);
  CHECK(op32("cvt.sat.u8.s32 %r0,%r1;", static_cast<uint32_t>(-3)) == 0);
  CHECK(op32("cvt.sat.s8.s32 %r0,%r1;", 300) == 127);
  CHECK(op32("cvt.sat.u32.s32 %r0,%r1;", static_cast<uint32_t>(-3)) == 0);
  CHECK(op32("cvt.sat.s32.u32 %r0,%r1;", 0xffffffff) == 0x7fffffff);
  CHECK(op32("cvt.pack.sat.s16.s32 %r0,%r1,%r2;", 100000, static_cast<uint32_t>(-5)) == 0x7ffffffb);
  CHECK(op32("cvt.pack.sat.u8.s32.b32 %r0,%r1,%r2,%r3;", 300, static_cast<uint32_t>(-5), 0x12345678) == 0x5678ff00);
  CHECK(op32("mov.b32 %f1,%r1; cvt.rni.f32.f32 %f2,%f1; mov.b32 %r0,%f2;", bits(2.5f)) == bits(2));
  CHECK(op32("mov.b32 %f1,%r1; cvt.rpi.ftz.f32.f32 %f2,%f1; mov.b32 %r0,%f2;", bits(1e-40f)) == 0);
  CHECK(op32("mov.b32 %f1,%r1; cvt.rzi.u8.f32 %r0,%f1;", bits(300.5f)) == 255);
  CHECK(op32("mov.b32 %f1,%r1; cvt.rmi.s16.f32 %rs1,%f1; cvt.s32.s16 %r0,%rs1;", bits(-1.5f)) ==
        static_cast<uint32_t>(-2));
  CHECK(op32("mov.b32 %f1,%r1; cvt.sat.f32.f32 %f2,%f1; mov.b32 %r0,%f2;", bits(7.0f)) == bits(1));
}

TEST_CASE("values are packed into and unpacked from wider registers") {
  CHECK(op32("mov.b32 {%rs1,%rs2},%r1; mov.b32 %r0,{%rs2,%rs1};", 0x12345678) == 0x56781234);
  CHECK(op64("mov.b64 {%r1,%r2},%rd1; mov.b64 %rd0,{%r2,%r1};", 0x1122334455667788) == 0x5566778811223344);
  CHECK(op64("mov.b64 {%rs1,%rs2,%rs3,%rs4},%rd1; mov.b64 %rd0,{%rs4,%rs3,%rs2,%rs1};", 0x1111222233334444) ==
        0x4444333322221111);
  CHECK(op64("mov.b64 {_,%r2},%rd1; cvt.u64.u32 %rd0,%r2;", 0x1122334455667788) == 0x11223344);
  CHECK(op32("mov.b32 %r0,{%rs1,%rs2};", 0) == 0);
  CHECK(op64("mov.f64 %fd1,0d3FF8000000000000; mov.b64 %rd0,%fd1;", 0) == std::bit_cast<uint64_t>(1.5));
  CHECK(op32("mov.f32 %f1,0f3FC00000; mov.b32 %r0,%f1;", 0) == bits(1.5f));
  CHECK(op32("mov.f32 %f1,-2.5; mov.b32 %r0,%f1;", 0) == bits(-2.5f));
  CHECK(op32("mov.u32 %r0,0x10U; add.s32 %r0,%r0,0b101; add.s32 %r0,%r0,010; add.s32 %r0,%r0,((1<<4)|1);", 0) ==
        16 + 5 + 8 + 17);
}

TEST_CASE("vector loads and stores keep the order and the extension of their elements") {
  Words out = results_of(
      "ld.global.v4.s8 {%r1,%r2,%r3,%r4},[%in]; st.global.v4.u16 [%out],{%r1,%r2,%r3,%r4}; ld.global.v2.u32 "
      "{%rd1,%rd2},[%in]; add.u64 %rd1,%rd1,%rd2; st.global.u64 [%out+8],%rd1;"
      "ld.global.nc.L2::128B.v2.b32 {%r5,_},[%in]; st.global.cs.b32 [%out+16],%r5; ld.volatile.global.u8 %rs1,[%in+1]; "
      "st.release.gpu.global.u16 [%out+20],%rs1; prefetch.global.L2 [%in];",
      1, 3, [](int t, int) { return 0x80ff7f0100000000ull | static_cast<unsigned>(t) | 0x00008000; });
  for (size_t t = 0; t < kThreads; ++t) {
    CHECK(out[t * 3] == (0xff80ull << 16 | t));
    CHECK(out[t * 3 + 1] == (0x80ff7f01ull + (0x8000 | t)));
    CHECK(static_cast<uint32_t>(out[t * 3 + 2]) == (0x8000 | t));
    CHECK((out[t * 3 + 2] >> 32) == 0x80);
  }
}

TEST_CASE("generic addresses tell their space") {
  const std::string text = module_of(
      ".visible .entry k(.param .u64 out, .param .align 8 .b8 block[16])\n{\n.reg .pred %p<4>; .reg .b32 %r<16>; .reg "
      ".b64 %rd<16>;\n"
      ".shared .align 8 .b8 mine[64]; .local .align 8 .b8 own[16];\n"
      "ld.param.u64 %rd1,[out]; mov.u64 %rd2,mine; cvta.shared.u64 %rd3,%rd2; mov.u64 %rd4,own; cvta.local.u64 "
      "%rd5,%rd4; mov.b64 %rd6,block; cvta.param.u64 %rd7,%rd6;\n"
      "mov.u32 %r1,5; st.u32 [%rd3+4],%r1; ld.shared.u32 %r2,[mine+4]; mov.u32 %r3,7; st.local.u32 [%rd4+8],%r3; "
      "ld.u32 %r4,[%rd5+8]; ld.u32 %r5,[%rd7+12]; ld.param.u32 %r6,[%rd6+8];\n"
      "atom.add.u32 %r7,[%rd3+4],3; ld.shared.u32 %r8,[%rd2+4]; cvta.to.shared.u64 %rd8,%rd3; sub.u64 %rd8,%rd8,%rd2; "
      "cvt.u32.u64 %r9,%rd8;\n"
      "isspacep.shared %p1,%rd3; selp.u32 %r10,1,0,%p1; isspacep.global %p1,%rd1; selp.u32 %r11,1,0,%p1; "
      "isspacep.local %p1,%rd1; selp.u32 %r12,1,0,%p1;\n"
      "st.v4.u32 [%rd1],{%r2,%r4,%r5,%r6}; st.global.v4.u32 [%rd1+16],{%r7,%r8,%r9,%r10}; st.global.v2.u32 "
      "[%rd1+32],{%r11,%r12};\nret;\n}\n");
  TestDevice device(1);
  REQUIRE(device.load(text) == "");
  uint32_t* out = device.array<uint32_t>(16);
  struct {
    uint32_t words[4];
  } block{{1, 2, 33, 44}};
  CHECK(device.run("k", {1}, {1}, out, block).message == "");
  const uint32_t expected[] = {5, 7, 44, 33, 5, 8, 0, 1, 1, 0};
  for (int i = 0; i < 10; ++i) CHECK(out[i] == expected[i]);
}

TEST_CASE("asynchronous copies arrive, the rest zero") {
  const std::string body =
      ".shared .align 16 .b8 box[1024]; mov.u32 %r1,box; mad.lo.u32 %r1,%thread,16,%r1; and.b64 %rd1,%in,-16;\n"
      "cp.async.ca.shared.global [%r1],[%rd1],8,4; cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all; "
      "ld.shared.u64 %rd2,[%r1]; st.global.u64 [%out],%rd2;";
  Words out = results_of(body, 2, 1,
                         [](int t, int w) { return w == 0 ? 0x1234567800000000ull + static_cast<unsigned>(t) : 0; });
  for (size_t t = 0; t < kThreads; ++t) CHECK(out[t] == t);
}

TEST_CASE("redux and non-sync votes combine the active lanes") {
  Words out = results_of(
      "setp.lt.u32 %p1,%thread,10; @%p1 redux.sync.add.s32 %r1,%thread,0x3ff; redux.sync.max.u32 "
      "%r2,%thread,0xffffffff; redux.sync.xor.b32 %r3,%thread,-1;"
      "vote.ballot.b32 %r4,%p1; shfl.bfly.b32 %r5,%thread,1,0x1f; activemask.b32 %r6; st.global.v4.u32 "
      "[%out],{%r1,%r2,%r3,%r4}; st.global.v2.u32 [%out+16],{%r5,%r6};",
      0, 4, [](int, int) { return 0; });
  auto word = [&](size_t t, size_t w) { return static_cast<uint32_t>(out[t * 4 + w / 2] >> (32 * (w % 2))); };
  CHECK(word(3, 0) == 45);
  CHECK(word(3, 1) == 31);
  CHECK(word(40, 1) == 63);
  CHECK(word(0, 2) == 0);
  CHECK(word(0, 3) == 0x3ff);
  CHECK(word(33, 3) == 0);
  CHECK(word(9, 4) == 8);
  CHECK(word(9, 5) == 0xffffffff);
}

TEST_CASE("register parameters, prototypes, branch tables and aliases work in hand-written PTX") {
  const std::string text = module_of(
      ".func (.reg .u32 result) plus(.reg .u32 a, .reg .u32 b)\n{\nadd.u32 result,a,b;\nret;\n}\n"
      ".func (.param .b32 result) minus(.param .b32 a, .param .b32 b)\n{\n.reg .b32 %r<4>;\nld.param.b32 %r1,[a]; "
      "ld.param.b32 %r2,[b]; sub.u32 %r3,%r1,%r2; st.param.b32 [result],%r3;\nret;\n}\n"
      ".alias less, minus;\n"
      ".visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p;\n"
      "mov.u32 %r1,%tid.x; call (%r2),plus,(%r1,5);\n"
      "{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a],%r2; st.param.b32 [b],3; call (c),less,(a,b); "
      "ld.param.b32 %r3,[c]; }\n"
      "mov.u64 %rd1,minus; { .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a],%r3; st.param.b32 [b],1; "
      "targets: .calltargets minus; call (c),%rd1,(a,b),targets; ld.param.b32 %r3,[c]; }\n"
      "and.b32 %r4,%r1,3; table: .branchtargets zero, one, two, zero; brx.idx %r4,table;\n"
      "zero: add.u32 %r3,%r3,1000; bra end;\none: add.u32 %r3,%r3,2000; bra.uni end;\ntwo: add.u32 "
      "%r3,%r3,3000;\nend:\n"
      "ld.param.u64 %rd2,[out]; mad.wide.u32 %rd2,%r1,4,%rd2; st.global.u32 [%rd2],%r3;\nexit;\n}\n");
  TestDevice device(1);
  REQUIRE(device.load(text) == "");
  uint32_t* out = device.array<uint32_t>(64);
  CHECK(device.run("k", {1}, {64}, out).message == "");
  for (uint32_t t = 0; t < 64; ++t) CHECK(out[t] == t + 1 + (t % 4 == 1 ? 2000 : t % 4 == 2 ? 3000 : 1000));
}

TEST_CASE("bar.red, bar.arrive and guarded instructions act on their threads only") {
  Words out = results_of(
      "setp.gt.u32 %p1,%thread,39; bar.red.popc.u32 %r1,0,%p1; bar.red.and.pred %p2,0,64,%p1; bar.red.or.pred "
      "%p3,0,!%p1;"
      "selp.u32 %r2,1,0,%p2; selp.u32 %r3,1,0,%p3; mov.u32 %r4,9; @%p1 mov.u32 %r4,8; @!%p1 add.u32 %r4,%r4,%thread; "
      "st.global.v4.u32 [%out],{%r1,%r2,%r3,%r4};",
      0, 2, [](int, int) { return 0; });
  for (size_t t = 0; t < kThreads; ++t) {
    CHECK(static_cast<uint32_t>(out[t * 2]) == 24);
    CHECK((out[t * 2] >> 32) == 0);
    CHECK(static_cast<uint32_t>(out[t * 2 + 1]) == 1);
    CHECK((out[t * 2 + 1] >> 32) == (t > 39 ? 8 : 9 + t));
  }
}

}  // namespace
}  // namespace gpuwire::software_device::test
