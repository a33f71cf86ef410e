// Floating-point arithmetic and approximations: PTX ISA 9.0, sections 9.7.3, 9.7.4 and 9.7.5.
#include <cmath>

#include "test/server/software_device/execution/arithmetic_reference.hpp"

namespace gpuwire::software_device::test {
namespace {

// The treatment of sources and results of one form.
struct Rules {
  FloatFormat format;
  Round round = Round::nearest_even;
  bool ftz = false, sat = false, relu = false;
  bool one_nan = false;  // NaN results have the format's one NaN

  Rules(const Form& form, const FloatFormat& f)
      : format(f),
        round(rounding_of(form)),
        ftz(form.has("ftz")),
        sat(form.has("sat")),
        relu(form.has("relu")),
        one_nan(f.bits != 64) {}

  uint64_t source(uint64_t v) const {
    return ftz ? format.flushed(masked(v, static_cast<uint32_t>(format.bits)))
               : masked(v, static_cast<uint32_t>(format.bits));
  }

  Expected result(uint64_t v) const {
    Expected e;
    if (format.is_nan(v)) {
      e.bits = sat ? 0 : format.nan();
      e.any_nan = !sat && !one_nan;
      return e;
    }
    if (ftz) v = format.flushed(v);
    const bool negative = (v & format.sign()) != 0;
    if (sat) v = negative ? 0 : std::min(v, format.one());
    if (relu && negative) v = 0;
    e.bits = v;
    return e;
  }
  uint64_t rounded(const Exact& v) const { return encode(format, v, round); }
};

uint64_t sum(const Rules& r, uint64_t a, uint64_t b) {
  const FloatFormat& f = r.format;
  if (f.is_nan(a) || f.is_nan(b)) return f.nan();
  if (f.is_infinite(a)) return f.is_infinite(b) && a != b ? f.nan() : a;
  if (f.is_infinite(b)) return b;
  const Exact x = exact(f, a), y = exact(f, b), total = sum_of(x, y);
  if (!total.zero()) return r.rounded(total);
  // Zeros of one sign keep it; others give -0 only when rounding down (IEEE 754-2019, 6.3).
  const bool negative = x.zero() && y.zero() && x.negative == y.negative ? x.negative : r.round == Round::down;
  return negative ? f.sign() : 0;
}

uint64_t product(const Rules& r, uint64_t a, uint64_t b) {
  const FloatFormat& f = r.format;
  const uint64_t sign = (a ^ b) & f.sign();
  if (f.is_nan(a) || f.is_nan(b)) return f.nan();
  if (f.is_infinite(a) || f.is_infinite(b)) return f.is_zero(a) || f.is_zero(b) ? f.nan() : sign | f.infinity();
  return r.rounded(product_of(exact(f, a), exact(f, b)));
}

uint64_t fused(const Rules& r, uint64_t a, uint64_t b, uint64_t c) {
  const FloatFormat& f = r.format;
  const uint64_t sign = (a ^ b) & f.sign();
  if (f.is_nan(a) || f.is_nan(b) || f.is_nan(c)) return f.nan();
  if (f.is_infinite(a) || f.is_infinite(b)) {
    if (f.is_zero(a) || f.is_zero(b)) return f.nan();
    return f.is_infinite(c) && (c & f.sign()) != sign ? f.nan() : sign | f.infinity();
  }
  if (f.is_infinite(c)) return c;
  const Exact x = product_of(exact(f, a), exact(f, b)), y = exact(f, c), total = sum_of(x, y);
  if (!total.zero()) return r.rounded(total);
  const bool negative = x.zero() && y.zero() && x.negative == y.negative ? x.negative : r.round == Round::down;
  return negative ? f.sign() : 0;
}

uint64_t quotient(const Rules& r, uint64_t a, uint64_t b) {
  const FloatFormat& f = r.format;
  const uint64_t sign = (a ^ b) & f.sign();
  if (f.is_nan(a) || f.is_nan(b)) return f.nan();
  if (f.is_infinite(a)) return f.is_infinite(b) ? f.nan() : sign | f.infinity();
  if (f.is_infinite(b)) return sign;
  if (f.is_zero(b)) return f.is_zero(a) ? f.nan() : sign | f.infinity();
  return r.rounded(quotient_of(exact(f, a), exact(f, b)));
}

uint64_t root(const Rules& r, uint64_t a) {
  const FloatFormat& f = r.format;
  if (f.is_nan(a) || f.is_zero(a)) return f.is_nan(a) ? f.nan() : a;
  if ((a & f.sign()) != 0) return f.nan();
  return f.is_infinite(a) ? a : r.rounded(root_of(exact(f, a)));
}

// Returns the minimum or maximum; `nan_wins`: a NaN is preferred to a number; -0 is less than +0.
uint64_t extreme(const Rules& r, bool least, bool nan_wins, uint64_t a, uint64_t b) {
  const FloatFormat& f = r.format;
  if (f.is_nan(a) || f.is_nan(b)) {
    if (nan_wins || (f.is_nan(a) && f.is_nan(b))) return f.nan();
    return f.is_nan(a) ? b : a;
  }
  // Integers in the order of the numbers.
  const auto rank = [&](uint64_t v) {
    return (v & f.sign()) != 0 ? -static_cast<int64_t>(v & ~f.sign()) - 1 : static_cast<int64_t>(v);
  };
  return (rank(a) < rank(b)) == least ? a : b;
}

Expected open_nan(const Rules& r, Expected e) {
  e.any_nan = e.any_nan || r.format.is_nan(e.bits);
  return e;
}

using Scalar = std::function<Expected(const uint64_t*)>;

// Returns an expected value with a tolerance.
Expected near(long double value, long double allowed) {
  Expected e;
  e.close = true;
  e.value = value;
  e.allowed = allowed;
  return e;
}

enum class Bound { relative, absolute };

struct Approximation {
  std::string_view opcode, format;
  Bound bound;
  int error_log2_times_10;
  long double (*value)(long double);
};

long double reciprocal(long double a) { return 1 / a; }
long double reciprocal_root(long double a) { return 1 / std::sqrt(a); }

// Error bounds of the PTX ISA.
const Approximation kApproximations[] = {
    {"rcp", "f32", Bound::relative, -230, reciprocal},
    {"sqrt", "f32", Bound::relative, -230, [](long double a) { return std::sqrt(a); }},
    {"rsqrt", "f32", Bound::relative, -229, reciprocal_root},
    {"rsqrt", "f64", Bound::relative, -520, reciprocal_root},
    {"sin", "f32", Bound::absolute, -205, [](long double a) { return std::sin(a); }},
    {"cos", "f32", Bound::absolute, -205, [](long double a) { return std::cos(a); }},
    {"ex2", "f32", Bound::relative, -220, [](long double a) { return std::exp2(a); }},
    {"ex2", "f16", Bound::relative, -99, [](long double a) { return std::exp2(a); }},
    {"ex2", "bf16", Bound::relative, -70, [](long double a) { return std::exp2(a); }},
    {"lg2", "f32", Bound::relative, -220, [](long double a) { return std::log2(a); }},
    {"tanh", "f32", Bound::relative, -110, [](long double a) { return std::tanh(a); }},
    {"tanh", "f16", Bound::absolute, -109, [](long double a) { return std::tanh(a); }},
    {"tanh", "bf16", Bound::absolute, -80, [](long double a) { return std::tanh(a); }},
};

long double to_number(const FloatFormat& f, uint64_t v) {
  if (f.is_nan(v)) return std::numeric_limits<long double>::quiet_NaN();
  if (f.is_infinite(v)) return (v & f.sign()) != 0 ? -INFINITY : INFINITY;
  return approximately(f, v);
}

Scalar approximation(const Form& form, const Rules& r, std::string_view type) {
  for (const Approximation& row : kApproximations) {
    if (row.opcode != form.opcode || row.format != type) continue;
    const long double error = std::exp2(static_cast<long double>(row.error_log2_times_10) / 10);
    return [=](const uint64_t* s) {
      const uint64_t a = r.source(s[0]);
      const long double x = to_number(r.format, a);
      const long double value = row.value(x);
      const bool near_one = row.opcode == "lg2" && x > 0.5L && x < 2;
      Expected e = near(value, row.bound == Bound::absolute || near_one ? error : error * std::fabs(value));
      // The step of subnormal results; with ftz all of them may be flushed.
      const long double smallest = std::exp2(static_cast<long double>(1 - r.format.bias()));
      e.allowed += r.ftz ? smallest : smallest * std::exp2(static_cast<long double>(-r.format.fraction_bits));
      const bool circular = row.opcode == "sin" || row.opcode == "cos";
      e.open = circular && std::isfinite(x) && std::fabs(x) > 3.141593L;
      return e;
    };
  }
  return nullptr;
}

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: only the upper words count.
Scalar rough(const Form& form, const Rules& r) {
  const bool rooted = form.opcode == "rsqrt";
  return [=](const uint64_t* s) {
    const long double x = to_number(kF64, r.source(s[0] & 0xffffffff00000000));
    const long double value = rooted ? reciprocal_root(x) : 1 / x;
    return near(value, std::fabs(value) * 0x1p-20L + 0x1p-1022L);
  };
}

// div.approx: 2 ulp, undefined for the largest divisors. div.full: 2 ulp.
Scalar approximate_quotient(const Form& form, const Rules& r) {
  const bool approx = form.has("approx");
  return [=](const uint64_t* s) {
    const uint64_t a = r.source(s[0]), b = r.source(s[1]);
    const long double x = to_number(kF32, a), y = to_number(kF32, b);
    if (approx && std::isfinite(y) && std::fabs(y) > 0x1p126L) {
      return near(std::isinf(x) || std::isnan(x) ? std::numeric_limits<long double>::quiet_NaN() : 0, 0);
    }
    const long double value = x / y;
    return near(value, std::fabs(value) * 0x1p-22L + (r.ftz ? 0x1p-126L : 0x1p-149L));
  };
}

Scalar scalar_reference(const Form& form, std::string_view type) {
  const FloatFormat f = *format_of(type);
  const Rules r(form, f);
  const std::string& opcode = form.opcode;
  if (form.has("approx") || form.has("full")) {
    if (opcode == "div") return f.bits == 32 ? approximate_quotient(form, r) : nullptr;
    if (f.bits == 64 && form.has("ftz")) return rough(form, r);
    return approximation(form, r, type);
  }
  if (opcode == "add") return [=](const uint64_t* s) { return r.result(sum(r, r.source(s[0]), r.source(s[1]))); };
  if (opcode == "sub")
    return [=](const uint64_t* s) {
      return r.result(sum(r, r.source(s[0]), r.source(s[1]) ^ (f.is_nan(s[1]) ? 0 : f.sign())));
    };
  if (opcode == "mul") return [=](const uint64_t* s) { return r.result(product(r, r.source(s[0]), r.source(s[1]))); };
  if (opcode == "fma" || opcode == "mad") {
    return [=](const uint64_t* s) { return r.result(fused(r, r.source(s[0]), r.source(s[1]), r.source(s[2]))); };
  }
  if (opcode == "div") return [=](const uint64_t* s) { return r.result(quotient(r, r.source(s[0]), r.source(s[1]))); };
  if (opcode == "rcp") return [=](const uint64_t* s) { return r.result(quotient(r, f.one(), r.source(s[0]))); };
  if (opcode == "sqrt") return [=](const uint64_t* s) { return r.result(root(r, r.source(s[0]))); };
  if (opcode == "min" || opcode == "max") {
    const bool least = opcode == "min", nan = form.has("NaN");
    return [=](const uint64_t* s) { return r.result(extreme(r, least, nan, r.source(s[0]), r.source(s[1]))); };
  }
  if (opcode == "neg")
    return [=](const uint64_t* s) { return open_nan(r, Expected{.bits = r.source(s[0]) ^ f.sign()}); };
  if (opcode == "abs")
    return [=](const uint64_t* s) { return open_nan(r, Expected{.bits = r.source(s[0]) & ~f.sign()}); };
  if (opcode == "copysign")
    return
        [=](const uint64_t* s) { return Expected{.bits = (r.source(s[0]) & f.sign()) | (r.source(s[1]) & ~f.sign())}; };
  if (opcode == "testp") {
    return [=](const uint64_t* s) {
      const uint64_t v = r.source(s[0]);
      const bool nan = f.is_nan(v), infinite = f.is_infinite(v), subnormal = f.is_subnormal(v);
      const bool yes = form.has("finite")       ? !nan && !infinite
                       : form.has("infinite")   ? infinite
                       : form.has("number")     ? !nan
                       : form.has("notanumber") ? nan
                       : form.has("subnormal")  ? subnormal
                                                : !nan && !infinite && !subnormal && !f.is_zero(v);
      return Expected{.bits = yes};
    };
  }
  return nullptr;
}

Reference packed_reference(const Scalar& scalar, const FloatFormat& f) {
  return [=](const uint64_t* s) {
    uint64_t low[3], high[3];
    for (int k = 0; k < 3; ++k) {
      low[k] = s[k] & 0xffff;
      high[k] = s[k] >> 16 & 0xffff;
    }
    const Expected a = scalar(low), b = scalar(high);
    Expected e = a;
    e.bits = (b.bits & 0xffff) << 16 | (a.bits & 0xffff);
    e.open = (a.any_nan && f.is_nan(a.bits)) || (b.any_nan && f.is_nan(b.bits));
    e.high_value = b.value;
    e.high_allowed = b.allowed;
    return e;
  };
}

}  // namespace

std::optional<FloatFormat> format_of(std::string_view type) {
  if (type == "f16" || type == "f16x2") return kF16;
  if (type == "bf16" || type == "bf16x2") return kBf16;
  if (type == "f32") return kF32;
  if (type == "f64") return kF64;
  return std::nullopt;
}

bool is_packed(std::string_view type) { return type.ends_with("x2"); }

Round rounding_of(const Form& form) {
  return form.has("rz")   ? Round::toward_zero
         : form.has("rm") ? Round::down
         : form.has("rp") ? Round::up
                          : Round::nearest_even;
}

Reference float_reference(const Form& form) {
  const std::string_view type = form.types[0];
  if (!format_of(type) || form.opcode == "cvt" || form.opcode == "set" || form.opcode == "setp" ||
      form.opcode == "selp" || form.opcode == "slct")
    return nullptr;
  const Scalar scalar = scalar_reference(form, is_packed(type) ? type.substr(0, type.size() - 2) : type);
  if (scalar == nullptr || !is_packed(type)) return scalar;
  return packed_reference(scalar, *format_of(type));
}

}  // namespace gpuwire::software_device::test
