// Hand-written PTX for tests: one kernel around a few instructions.
#pragma once

#include <string>

namespace gpuwire::software_device::test {

inline std::string module_of(const std::string& functions) {
  return ".version 9.0\n.target sm_75\n.address_size 64\n" + functions;
}

// A kernel `k` with parameters in, out: both arrays of `in_words` and `out_words` words of 8 bytes per thread. Before
// the body, %in and %out point to the thread's words, and there are registers of every class.
inline std::string kernel_of(const std::string& body, int in_words, int out_words) {
  return module_of(
      ".visible .entry k(.param .u64 in, .param .u64 out)\n{\n"
      ".reg .pred %p<16>; .reg .b8 %rb<4>; .reg .b16 %rs<16>; .reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .f32 %f<16>; "
      ".reg .f64 %fd<16>;\n"
      ".reg .u32 %thread, %block; .reg .u64 %in, %out;\n"
      "mov.u32 %thread, %tid.x;\nld.param.u64 %in, [in];\nld.param.u64 %out, [out];\n"
      "mad.wide.u32 %in, %thread, " +
      std::to_string(8 * in_words) +
      ", %in;\n"
      "mad.wide.u32 %out, %thread, " +
      std::to_string(8 * out_words) + ", %out;\n" + body + "\nret;\n}\n");
}

}  // namespace gpuwire::software_device::test
