#include "server/software_device/execution/intrinsics.hpp"

#include "server/software_device/execution/memory_access.hpp"
#include "server/software_device/execution/printf.hpp"

namespace gpuwire::software_device {
namespace {

constexpr IntrinsicShape kShapes[] = {
    {0, 0, {}}, {4, 2, {8, 8}}, {0, 5, {8, 8, 4, 8, 8}}, {8, 1, {8}}, {0, 1, {8}}, {0, 2, {8, 4}},
};

// refs: d, format, arguments
void print_formatted(Warp& w, const Op& op, uint32_t mask) {
  int32_t* d = w.out<int32_t>(op.ref[0]);
  const uint64_t* format = w.in<uint64_t>(op.ref[1]);
  const uint64_t* arguments = w.in<uint64_t>(op.ref[2]);
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    unsigned lane = static_cast<unsigned>(std::countr_zero(left));
    std::string text;
    int converted = 0;
    if (!format_message(w, op, lane, format[lane], arguments[lane], text, converted)) return;
    if (w.launch_->launch().print) w.launch_->launch().print(text);
    d[lane] = converted;
  }
}

std::string triple(uint32_t x, uint32_t y, uint32_t z) {
  return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
}

// refs: message, file, line, function, bytes of a character
void assert_failed(Warp& w, const Op& op, uint32_t mask) {
  unsigned first = static_cast<unsigned>(std::countr_zero(mask));
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    unsigned lane = static_cast<unsigned>(std::countr_zero(left));
    std::string message, file, function;
    if (!read_string(w, op, lane, w.in<uint64_t>(op.ref[0])[lane], message) ||
        !read_string(w, op, lane, w.in<uint64_t>(op.ref[1])[lane], file) ||
        !read_string(w, op, lane, w.in<uint64_t>(op.ref[3])[lane], function)) {
      return;
    }
    auto tid = [&](ThreadSpecial which) { return w.thread_area_[static_cast<uint32_t>(which)][lane]; };
    const Dim3& block = w.block_->index();
    // The format of the CUDA runtime.
    std::string text = file + ":" + std::to_string(w.in<uint32_t>(op.ref[2])[lane]) + ": " + function +
                       ": block: " + triple(block.x, block.y, block.z) + ", thread: " +
                       triple(tid(ThreadSpecial::tid_x), tid(ThreadSpecial::tid_y), tid(ThreadSpecial::tid_z)) +
                       " Assertion `" + message + "` failed.\n";
    if (w.launch_->launch().print) w.launch_->launch().print(text);
  }
  w.fault(Fault::assert_failed, first, op, "assertion failed");
}

// refs: d, bytes
void allocate(Warp& w, const Op& op, uint32_t mask) {
  uint64_t* d = w.out<uint64_t>(op.ref[0]);
  const uint64_t* bytes = w.in<uint64_t>(op.ref[1]);
  DeviceHeap* heap = w.launch_->launch().heap;
  each_lane(mask, [&](unsigned i) { d[i] = heap != nullptr ? heap->allocate(bytes[i]) : 0; });
}

void release(Warp& w, const Op& op, uint32_t mask) {
  const uint64_t* address = w.in<uint64_t>(op.ref[0]);
  DeviceHeap* heap = w.launch_->launch().heap;
  each_lane(mask, [&](unsigned i) {
    if (heap != nullptr && address[i] != 0) heap->free(address[i]);
  });
}

// refs: handle, value
void set_condition(Warp& w, const Op& op, uint32_t mask) {
  const uint64_t* handle = w.in<uint64_t>(op.ref[0]);
  const uint32_t* value = w.in<uint32_t>(op.ref[1]);
  each_lane(mask, [&](unsigned i) {
    if (w.launch_->launch().set_condition) w.launch_->launch().set_condition(handle[i], value[i]);
  });
}

}  // namespace

const IntrinsicShape& intrinsic_shape(Intrinsic intrinsic) { return kShapes[static_cast<size_t>(intrinsic)]; }

Handler intrinsic_handler(Intrinsic intrinsic) {
  switch (intrinsic) {
    case Intrinsic::vprintf: return &print_formatted;
    case Intrinsic::assert_fail: return &assert_failed;
    case Intrinsic::malloc: return &allocate;
    case Intrinsic::free: return &release;
    case Intrinsic::set_condition: return &set_condition;
    case Intrinsic::none: break;
  }
  return nullptr;
}

}  // namespace gpuwire::software_device
