// Arithmetic with directed roundings. Compiled with -frounding-math.
#include "server/software_device/execution/float_operations.hpp"
#include "server/software_device/execution/lanes.hpp"
#include "server/software_device/execution/rounding_mode.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::Type;

// detail: a Rounding, and these flags
constexpr uint16_t kFlush = 16, kSaturate = 32;

template <class T>
T prepared(T v, uint16_t detail) {
  if constexpr (sizeof(T) == 4) return detail & kFlush ? flush(v) : v;
  return v;
}

template <class T>
T finished(T v, uint16_t detail) {
  if constexpr (sizeof(T) == 4) {
    if (detail & kFlush) v = flush(v);
  }
  if (detail & kSaturate) v = saturate(v);
  return canonical(v);
}

template <class T, class F, unsigned Sources>
void directed(Warp& w, const Op& op, uint32_t mask) {
  T result[kLanes];
  const T* a = w.in<T>(op.ref[1]);
  const T* b = w.in<T>(op.ref[2]);
  const T* c = w.in<T>(op.ref[3]);
  T x[3][kLanes];
  each_lane(mask, [&](unsigned i) {
    x[0][i] = prepared(a[i], op.detail);
    if constexpr (Sources > 1) x[1][i] = prepared(b[i], op.detail);
    if constexpr (Sources > 2) x[2][i] = prepared(c[i], op.detail);
  });
  // The barriers make the contents of the arrays unknown to the compiler at the two changes of the mode.
  asm volatile("" : : "r"(x), "r"(result) : "memory");
  {
    RoundingScope scope(static_cast<Rounding>(op.detail & 15));
    each_lane(mask, [&](unsigned i) {
      if constexpr (Sources == 1) result[i] = F{}(x[0][i]);
      else if constexpr (Sources == 2) result[i] = F{}(x[0][i], x[1][i]);
      else result[i] = F{}(x[0][i], x[1][i], x[2][i]);
    });
    asm volatile("" : : "r"(x), "r"(result) : "memory");
  }
  T* d = w.out<T>(op.ref[0]);
  each_lane(mask, [&](unsigned i) { d[i] = finished(result[i], op.detail); });
}

template <class F, unsigned Sources>
Handler of_type(Type type) {
  return type == Type::f32 ? &directed<float, F, Sources> : type == Type::f64 ? &directed<double, F, Sources> : nullptr;
}

struct Row {
  std::string_view name;
  Handler (*choose)(Type);
};

constexpr Row kRows[] = {
    {"add", of_type<Plus, 2>},        {"sub", of_type<Minus, 2>},       {"mul", of_type<Times, 2>},
    {"div", of_type<Divide, 2>},      {"fma", of_type<MultiplyAdd, 3>}, {"mad", of_type<MultiplyAdd, 3>},
    {"sqrt", of_type<SquareRoot, 1>}, {"rcp", of_type<Reciprocal, 1>},
};

}  // namespace

Handler directed_handler(const Instruction& instruction) {
  if (instruction.type() == Type::f64 && (instruction.has(Modifier::ftz) || instruction.has(Modifier::sat)))
    return nullptr;
  for (const Row& row : kRows) {
    if (row.name == instruction.opcode) return row.choose(instruction.type());
  }
  return nullptr;
}

uint16_t directed_detail(const Instruction& instruction) {
  return static_cast<uint16_t>(static_cast<uint16_t>(rounding_of(instruction)) |
                               (instruction.has(Modifier::ftz) ? kFlush : 0) |
                               (instruction.has(Modifier::sat) ? kSaturate : 0));
}

}  // namespace gpuwire::software_device
