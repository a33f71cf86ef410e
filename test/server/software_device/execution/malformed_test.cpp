// Text that is wrong, hostile, or requires missing features of the device.
#include <doctest/doctest.h>

#include <random>

#include "test/server/software_device/execution/engine_fixture.hpp"
#include "test/server/software_device/execution/ptx_text.hpp"

namespace gpuwire::software_device::test {
namespace {

CompileError error_of(const std::string& text) {
  std::string_view view = text;
  auto compiled = compile_ptx(std::span(&view, 1));
  REQUIRE(!compiled);
  return compiled.error();
}

bool mentions(const CompileError& error, const char* text) { return error.log.find(text) != std::string::npos; }

TEST_CASE("an error names its line and what is wrong") {
  CompileError error =
      error_of(module_of(".visible .entry k()\n{\n.reg .b32 %r<4>;\nadd.s32 %r1, %r2, %nothing;\nret;\n}\n"));
  CHECK(error.kind == CompileError::Kind::unsupported);
  CHECK(mentions(error, "ptx:7: error: special register '%nothing'"));
  error = error_of(module_of(".visible .entry k()\n{\n.reg .b32 %r<4>;\nadd.s32 %r1, %r2 %r3;\nret;\n}\n"));
  CHECK(error.kind == CompileError::Kind::invalid_ptx);
  CHECK(mentions(error, "ptx:7: error: expected ';' before '%r3'"));
  error = error_of(module_of(".visible .entry k()\n{\n.reg .b32 %r<4>;\naddd.s32 %r1, %r2, %r3;\nret;\n}\n"));
  CHECK(error.kind == CompileError::Kind::invalid_ptx);
  CHECK(mentions(error, "unknown instruction 'addd'"));
  CHECK(mentions(error_of("this is no PTX"), "ptx:1: error: "));
  CHECK(mentions(error_of(""), "no .version"));
}

TEST_CASE("operands of the wrong width or kind are refused") {
  const char* bodies[] = {
      "add.s32 %r1,%r2,%rd1;",
      "add.s64 %rd1,%r1,%rd2;",
      "add.s32 %p1,%r1,%r2;",
      "setp.eq.s32 %r1,%r1,%r2;",
      "add.s32 5,%r1,%r2;",
      "ld.global.u64 %r1,[%rd1];",
      "st.global.u64 [%rd1],%r1;",
      "ld.global.u32 %r1,%rd1;",
      "ld.param.u32 %r1,[nothing];",
      "ld.param.u64 %rd1,[out+4];",
      "bra nowhere;",
      "call nothing,();",
      "mul.s32 %r1,%r1,%r2;",
      "fma.f32 %f1,%f1,%f1,%f1;",
      "cvt.s32.f32 %r1,%f1;",
      "st.const.u32 [%rd1],%r1;",
      "mov.b64 {%r1,%r2,%r3},%rd1;",
      "ld.global.v2.u32 {%r1,%r2,%r3},[%rd1];",
      "ld.global.v2.u32 {%r1,%rd2},[%rd1];",
      "add.s32 %r1,%r2;",
      "add.s32 %r1,%r2,%r3,%r4;",
      "@%r1 add.s32 %r1,%r2,%r3;",
      "@%q bra x;",
      "ret 5;",
      "lop3.b32 %r1,%r1,%r1,%r1,256;",
      "brx.idx %r1,nothing;",
      "call (%r1),k,();",
      "mov.u32 %r1,k;",
      ".reg .b32 %r<2>;",
      ".reg .b32 x<99999999>;",
      "bfi.b32 %r1,%r1,%r1,%r1;",
      "mov.u64 %rd1,missing;",
      "add.f32 %f1,%f2,nothing;",
      "ld.shared.u32 %r1,[%p1];",
      "cp.async.ca.shared.global [%r1],[%rd1],5;",
  };
  for (const char* body : bodies) {
    CAPTURE(body);
    std::string text = kernel_of(body, 1, 1);
    std::string_view view = text;
    auto compiled = compile_ptx(std::span(&view, 1));
    CHECK(!compiled);
    if (!compiled) CHECK(compiled.error().log.find("ptx:") == 0);
  }
}

TEST_CASE("what the device has not is refused by name, not computed wrongly") {
  const std::pair<const char*, const char*> rows[] = {
      {"tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4},[texture,{%f1,%f2}];", "textures by name"},
      {"suld.b.1d.b32.trap %r1,[surface,{%r2}];", "textures by name"},
      {"tex.2dms.v4.f32.s32 {%f1,%f2,%f3,%f4},[%rd1,{%r1,%r2,%r3,%r4}];", "'tex'"},
      {"sured.b.add.1d.u32.trap [%rd1,{%r1}],%r2;", "'sured'"},
      {"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1},{%r1},{%r2},{%f2};", "'wmma'"},
      {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4},{%r1,%r2},{%r3},{%f1,%f2,%f3,%f4};",
       "'mma'"},
      {"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1},[%r2];", "'ldmatrix'"},
      {"cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1],[%rd1,{%r2}],[%r3];", "'cp'"},
      {"st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1],%r2,[%r3];", "'st'"},
      {"vadd.s32.s32.s32 %r1,%r2,%r3;", "'vadd'"},
      {"cvt.rn.satfinite.e4m3x2.f32 %rs1,%f1,%f2;", "'cvt'"},
      {"cvt.rna.tf32.f32 %r1,%f1;", "'cvt'"},
      {"add.rn.f16x2.special %r1,%r2,%r3;", "'add'"},
      {"atom.global.add.v2.f32 {%f1,%f2},[%rd1],{%f1,%f2};", "'atom'"},
      {"isspacep.const %p1,%rd1;", "isspacep.const"},
      {"mov.b128 %r1,%r2;", "'mov'"},
      {"mov.u32 %r1,%pm0;", "%pm0"},
  };
  for (auto [body, name] : rows) {
    CAPTURE(body);
    std::string text = kernel_of(body, 1, 1);
    std::string_view view = text;
    auto compiled = compile_ptx(std::span(&view, 1));
    REQUIRE(!compiled);
    CAPTURE(compiled.error().log);
    CHECK(compiled.error().kind == CompileError::Kind::unsupported);
    CHECK(compiled.error().log.find(name) != std::string::npos);
    CHECK(compiled.error().log.find("ptx:13: error:") == 0);
  }
  CHECK(error_of(module_of(".global .texref t;\n")).kind == CompileError::Kind::unsupported);
  CHECK(error_of(module_of(".visible .entry k() .blocksareclusters { ret; }\n")).kind ==
        CompileError::Kind::unsupported);
}

TEST_CASE("hostile sizes and nestings are refused quickly") {
  std::string deep(100000, '(');
  CHECK(mentions(error_of(module_of(".global .u32 x = " + deep + ";")), "ptx:4"));
  CHECK(mentions(error_of(module_of(".global .u32 x = " + std::string(100000, '-') + "1;")), "nested"));
  CHECK(mentions(error_of(module_of(".global .u32 x[4] = " + std::string(100000, '{') + ";")), "nested"));
  CHECK(mentions(error_of(module_of(".func f() " + std::string(100000, '{'))), "nested"));
  CHECK(mentions(error_of(kernel_of("mov.b64 %rd1," + std::string(100000, '{') + ";", 1, 1)), "nested"));
  CHECK(mentions(error_of(module_of(".global .u32 x[9999999999999];")), "too large"));
  CHECK(mentions(error_of(module_of(".global .u32 x[1000000][1000000][1000000];")), "too large"));
  CHECK(mentions(error_of(module_of(".func f() { .reg .b32 %r<4000000000>; ret; }")), "too many"));
  CHECK(mentions(error_of(module_of(".func f() { .local .b8 x[999999999]; ret; }")), "too large"));
  CHECK(mentions(error_of(module_of(".func f(.param .b8 x[999999999]) { ret; }")), "too large"));
  CHECK(
      mentions(error_of(module_of(".visible .entry k() { .shared .b8 x[9999999]; .reg .b64 %r; mov.u64 %r,x; ret; }")),
               "too much shared"));
  CHECK(mentions(error_of(module_of("/* comment")), "comment"));
  CHECK(mentions(error_of(module_of(".file 1 \"name")), "string"));
  CHECK(mentions(error_of(module_of(".global .align 3 .u32 x;")), "alignment"));
  std::string many = ".visible .entry k()\n{\n.reg .b32 %r<4>;\n";
  for (int i = 0; i < 5000; ++i) many += "bogus" + std::to_string(i) + " %r1;\n";
  CHECK(error_of(module_of(many + "}\n")).log.size() < 10000);
}

TEST_CASE("no prefix of a module and no changed byte harms the compiler") {
  for (const char* name : {"common", "control"}) {
    std::string text = nvcc_ptx(name);
    if (text.empty()) continue;
    size_t step = text.size() / 150 + 1;
    for (size_t length = 0; length < text.size(); length += step) {
      std::string_view prefix(text.data(), length);
      (void)compile_ptx(std::span(&prefix, 1));
    }
    std::mt19937 random(5);
    MESSAGE("seed 5");
    for (int round = 0; round < 150; ++round) {
      std::string changed = text;
      for (int k = 0; k < 3; ++k)
        changed[random() % changed.size()] = static_cast<char>("{}()[];:,.%@!<>=+-0x9a\0\n\"/"[random() % 27]);
      std::string_view view = changed;
      (void)compile_ptx(std::span(&view, 1));
    }
  }
}

TEST_CASE("two texts are linked: what one declares the other defines") {
  const std::string first = module_of(
      ".extern .global .u32 shared_counter;\n.extern .func (.param .b32 r) increased(.param .b32 a);\n"
      ".visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<4>; .reg .b64 %rd<3>;\nld.global.u32 %r1,[shared_counter];\n"
      "{ .param .b32 a; .param .b32 r; st.param.b32 [a],%r1; call (r),increased,(a); ld.param.b32 %r2,[r]; "
      "}\nld.param.u64 %rd1,[out]; st.global.u32 [%rd1],%r2;\nret;\n}\n");
  const std::string second = module_of(
      ".visible .global .u32 shared_counter = 40;\n.func (.param .b32 r) quiet(.param .b32 a) { .reg .b32 %r; "
      "ld.param.b32 %r,[a]; st.param.b32 [r],%r; ret; }\n"
      ".visible .func (.param .b32 r) increased(.param .b32 a)\n{\n.reg .b32 %r<4>;\nld.param.b32 %r1,[a]; add.u32 "
      "%r1,%r1,2; st.param.b32 [r],%r1;\nret;\n}\n");
  TestDevice device(1);
  REQUIRE(device.load(std::vector<std::string_view>{first, second}) == "");
  uint32_t* out = device.array<uint32_t>(1);
  CHECK(device.run("k", {1}, {1}, out).message == "");
  CHECK(*out == 42);
  CHECK(device.load(first) != "");
  CHECK(device.load(std::vector<std::string_view>{second, second}) != "");
}

TEST_CASE("a program describes its kernels and variables") {
  const std::string text = module_of(
      ".visible .global .align 16 .b8 table[10] = {1,2,3};\n.global .attribute(.managed) .u64 link[2] = {table+4, "
      "generic(table)};\n"
      ".visible .const .f32 scale = 0f3F000000;\n.weak .global .f64 weak_one = -1.5;\n.common .global .u32 "
      "later;\n.global .b8 bytes[16] = "
      "{0xFF(table),0xFF00(table),0xFF0000(table),0xFF000000(table),0xFF00000000(table),0xFF0000000000(table),"
      "0xFF000000000000(table),0xFF00000000000000(table)};\n"
      ".visible .entry k(.param .u8 a, .param .u64 .ptr .global .align 4 b, .param .align 4 .b8 c[6], .param .f32 "
      "d)\n.maxntid 64, 2, 1\n.minnctapersm 2\n"
      "{\n.pragma \"nounroll\";\n.shared .align 8 .b8 s[20]; .reg .b64 %rd; .loc 1 2 3, function_name $x, inlined_at 1 "
      "2 3\nmov.u64 %rd,s;\nret;\n}\n"
      ".section .debug_info { .b8 1,2,3\n$x: .b32 .debug_str }\n");
  TestDevice device(1);
  REQUIRE(device.load(text) == "");
  REQUIRE(device.program->kernels().size() == 1);
  const KernelInfo& k = device.program->kernels()[0];
  REQUIRE(k.parameters.size() == 4);
  CHECK(k.parameters[1].offset_bytes == 8);
  CHECK(k.parameters[2].offset_bytes == 16);
  CHECK(k.parameters[3].offset_bytes == 24);
  CHECK(k.parameter_bytes == 28);
  CHECK(k.static_shared_bytes == 20);
  CHECK(k.max_threads_per_block == 128);
  CHECK(device.program->ptx_version() == 90);
  CHECK(device.program->target_sm() == 75);
  uint64_t table = device.variable("table");
  CHECK(table % 16 == 0);
  CHECK(reinterpret_cast<uint64_t*>(device.variable("link"))[0] == table + 4);
  CHECK(reinterpret_cast<uint64_t*>(device.variable("link"))[1] == table);
  CHECK(*reinterpret_cast<uint64_t*>(device.variable("bytes")) == table);
  CHECK(*reinterpret_cast<double*>(device.variable("weak_one")) == -1.5);
  for (const VariableInfo& info : device.program->variables()) {
    CHECK(info.managed == (info.name == "link"));
    CHECK((info.space == VariableSpace::constant) == (info.name == "scale"));
  }
}

TEST_CASE("a deadlock at a barrier is a fault, not a hang") {
  TestDevice device(1);
  REQUIRE(device.load(kernel_of("setp.lt.u32 %p1,%thread,32; @%p1 bar.sync 1,96;", 1, 1)) == "");
  LaunchResult result = device.run("k", {1}, {64}, device.array<uint64_t>(64), device.array<uint64_t>(64));
  CHECK(result.fault == Fault::trap);
  CHECK(result.message.find("deadlock") != std::string::npos);
}

}  // namespace
}  // namespace gpuwire::software_device::test
