// sin, cos, ex2, lg2, tanh: PTX ISA 9.0, sections 9.7.3 and 9.7.4. PTX defines them by an error bound, and these
// results are within it.
#include <cmath>

#include "server/software_device/execution/float_formats.hpp"
#include "server/software_device/execution/lanes.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Type;

struct Sine {
  double operator()(double a) const { return std::sin(a); }
};
struct Cosine {
  double operator()(double a) const { return std::cos(a); }
};
struct Exponential {
  double operator()(double a) const { return std::exp2(a); }
};
struct Logarithm {
  double operator()(double a) const { return std::log2(a); }
};
struct HyperbolicTangent {
  double operator()(double a) const { return std::tanh(a); }
};

template <class F, bool Ftz>
struct Single {
  float operator()(float a) const {
    float r = static_cast<float>(F{}(static_cast<double>(Ftz ? flush(a) : a)));
    return canonical(Ftz ? flush(r) : r);
  }
};

template <class Format, class F, bool Ftz>
struct SmallFunction {
  uint16_t operator()(uint16_t a) const {
    uint16_t r = Format::encode(F{}(Format::decode(Ftz ? Format::flushed(a) : a)));
    return Ftz ? Format::flushed(r) : r;
  }
};

template <class S>
struct Both {
  uint32_t operator()(uint32_t a) const {
    return static_cast<uint32_t>(S{}(static_cast<uint16_t>(a >> 16))) << 16 | S{}(static_cast<uint16_t>(a));
  }
};

// Small: the function exists for f16 and bf16, too.
template <class F, bool Small>
bool lower_function(Lowering& l, const Instruction& i) {
  if (!i.has(Modifier::approx) || (!Small && i.type() != Type::f32)) return false;
  bool ftz = i.has(Modifier::ftz);
  switch (i.type()) {
    case Type::f32:
      return lower_same_type(l, i, ftz ? &unary<float, float, Single<F, true>> : &unary<float, float, Single<F, false>>,
                             1);
    case Type::f16:
      return lower_same_type(l, i,
                             ftz ? &unary<uint16_t, uint16_t, SmallFunction<HalfFormat, F, true>>
                                 : &unary<uint16_t, uint16_t, SmallFunction<HalfFormat, F, false>>,
                             1);
    case Type::f16x2:
      return lower_same_type(l, i,
                             ftz ? &unary<uint32_t, uint32_t, Both<SmallFunction<HalfFormat, F, true>>>
                                 : &unary<uint32_t, uint32_t, Both<SmallFunction<HalfFormat, F, false>>>,
                             1);
    case Type::bf16:
      return lower_same_type(l, i,
                             ftz ? &unary<uint16_t, uint16_t, SmallFunction<BrainFormat, F, true>>
                                 : &unary<uint16_t, uint16_t, SmallFunction<BrainFormat, F, false>>,
                             1);
    case Type::bf16x2:
      return lower_same_type(l, i,
                             ftz ? &unary<uint32_t, uint32_t, Both<SmallFunction<BrainFormat, F, true>>>
                                 : &unary<uint32_t, uint32_t, Both<SmallFunction<BrainFormat, F, false>>>,
                             1);
    default: return false;
  }
}

constexpr ModifierSet kApproximate(Modifier::approx, Modifier::ftz);

const OpcodeEntry kOpcodes[] = {
    {"sin", kApproximate, lower_function<Sine, false>},
    {"cos", kApproximate, lower_function<Cosine, false>},
    {"ex2", kApproximate, lower_function<Exponential, true>},
    {"lg2", kApproximate, lower_function<Logarithm, false>},
    {"tanh", kApproximate, lower_function<HyperbolicTangent, true>},
};

}  // namespace

std::span<const OpcodeEntry> special_function_opcodes() { return kOpcodes; }

}  // namespace gpuwire::software_device
