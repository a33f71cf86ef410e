// The operations themselves, without flushing, saturation or rounding mode.
#pragma once

#include <cmath>

#include "server/software_device/execution/float_formats.hpp"
#include "server/software_device/execution/op.hpp"
#include "server/software_device/ptx/module.hpp"

namespace gpuwire::software_device {

struct Plus {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Minus {
  template <class T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Times {
  template <class T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct MultiplyAdd {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
struct SquareRoot {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <class T>
  T operator()(T a) const {
    return T(1) / a;
  }
};
struct FmaToOdd {
  double operator()(double a, double b, double c) const { return fma_to_odd(a, b, c); }
};

// Returns the handler of f32 and f64 add, sub, mul, fma, mad, div, sqrt, rcp with .rz, .rm or .rp; nullptr for
// combinations that do not exist.
Handler directed_handler(const ptx::Instruction& instruction);
uint16_t directed_detail(const ptx::Instruction& instruction);  // the op's detail for directed_handler()

}  // namespace gpuwire::software_device
