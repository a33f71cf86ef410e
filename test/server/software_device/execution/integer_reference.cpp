// Integers, bits, carries: PTX ISA 9.0, sections 9.7.1, 9.7.2 and 9.7.8.
#include <algorithm>

#include "test/server/software_device/execution/arithmetic_reference.hpp"

namespace gpuwire::software_device::test {
namespace {

Expected bits(uint64_t v) {
  Expected e;
  e.bits = v;
  return e;
}

Wide clamped(Wide v, std::string_view type) {
  const uint32_t width = bits_of(type);
  const Wide low = type[0] == 's' ? -(Wide{1} << (width - 1)) : 0,
             high = type[0] == 's' ? (Wide{1} << (width - 1)) - 1 : (Wide{1} << width) - 1;
  return std::clamp(v, low, high);
}

// An instruction's function of its sources as integers of its type; the result is cut to the type's width.
using Plain = std::function<Wide(Wide a, Wide b, Wide c)>;

Reference plain(const Form& form, Plain f) {
  const std::string type = form.types[0];
  const size_t count = shape_of(form).sources.size();
  const uint32_t width = bits_of(shape_of(form).results[0].type);
  return [=](const uint64_t* s) {
    const auto source = [&](size_t k) { return k < count ? integer_of(type, s[k]) : Wide{0}; };
    return bits(masked(static_cast<UnsignedWide>(f(source(0), source(1), source(2))), width));
  };
}

// Returns the upper half of the product, which has twice the type's width, at most 128 bits.
Wide upper(std::string_view type, Wide a, Wide b) {
  const uint32_t width = bits_of(type);
  if (type[0] == 's') return (a * b) >> width;
  return static_cast<Wide>((static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b)) >> width);
}

// Sums of two or three parts and a carry in; the carry out is the overflow of the width.
Reference with_carry(const Form& form) {
  const std::string type = form.types[0], opcode = form.opcode;
  const bool reads = opcode == "addc" || opcode == "subc" || opcode == "madc", writes = form.has("cc"),
             high = form.has("hi");
  const bool subtracts = opcode.starts_with("sub"), multiplies = opcode.starts_with("mad");
  const uint32_t width = bits_of(type);
  return [=](const uint64_t* s) {
    const uint64_t seed = s[multiplies ? 3 : 2] & 1;
    UnsignedWide a = masked(s[0], width), b = masked(s[1], width);
    if (multiplies) {
      const Wide x = integer_of(type, s[0]), y = integer_of(type, s[1]);
      a = masked(high ? static_cast<UnsignedWide>(upper(type, x, y))
                      : static_cast<UnsignedWide>(x) * static_cast<UnsignedWide>(y),
                 width);
      b = masked(s[2], width);
    }
    // a - b is a + ~b + 1, and the carry is that sum's.
    if (subtracts) b = masked(~b, width);
    const UnsignedWide sum = a + b + (reads ? seed : subtracts ? 1 : 0);
    Expected e = bits(masked(sum, width));
    e.second = writes ? static_cast<uint64_t>(sum >> width) : seed;
    return e;
  };
}

Reference arithmetic(const Form& form) {
  const std::string& opcode = form.opcode;
  const std::string type = form.types[0];
  const bool sat = form.has("sat");
  const auto finish = [=](Wide v) { return sat ? clamped(v, type) : v; };
  if (opcode == "add") return plain(form, [=](Wide a, Wide b, Wide) { return finish(a + b); });
  if (opcode == "sub") return plain(form, [=](Wide a, Wide b, Wide) { return finish(a - b); });
  if (opcode == "mul" || opcode == "mad") {
    // The addend of mad.wide has twice the width; the low bits of the result do not depend on its sign.
    const bool wide = form.has("wide"), hi = form.has("hi");
    const std::string addend = wide ? shape_of(form).results[0].type : type;
    const uint32_t width = bits_of(shape_of(form).results[0].type);
    const bool adds = opcode == "mad";
    return [=](const uint64_t* s) {
      const Wide a = integer_of(type, s[0]), b = integer_of(type, s[1]);
      UnsignedWide product = static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b);
      if (hi) product = static_cast<UnsignedWide>(upper(type, a, b));
      const Wide c = adds ? integer_of(addend, s[2]) : Wide{0};
      return bits(masked(sat ? static_cast<UnsignedWide>(clamped(static_cast<Wide>(product) + c, type))
                             : product + static_cast<UnsignedWide>(c),
                         width));
    };
  }
  if (opcode == "mul24" || opcode == "mad24") {
    const bool hi = form.has("hi"), is_signed = type[0] == 's';
    return plain(form, [=](Wide a, Wide b, Wide c) {
      const auto low24 = [&](Wide v) { return integer_of(is_signed ? "s24" : "u24", static_cast<uint64_t>(v)); };
      Wide product = low24(a) * low24(b);
      if (hi) product = integer_of(is_signed ? "s32" : "u32", static_cast<uint64_t>(product >> 16));
      return finish(product + c);
    });
  }
  if (opcode == "min" || opcode == "max") {
    const bool relu = form.has("relu"), least = opcode == "min";
    return plain(form, [=](Wide a, Wide b, Wide) {
      const Wide v = least ? std::min(a, b) : std::max(a, b);
      return relu ? std::max(v, Wide{0}) : v;
    });
  }
  if (opcode == "neg") return plain(form, [](Wide a, Wide, Wide) { return -a; });
  if (opcode == "abs") return plain(form, [](Wide a, Wide, Wide) { return a < 0 ? -a : a; });
  if (opcode == "sad") return plain(form, [](Wide a, Wide b, Wide c) { return c + (a < b ? b - a : a - b); });
  if (opcode == "div" || opcode == "rem") {
    const bool quotient = opcode == "div";
    const Reference whole = plain(form, [=](Wide a, Wide b, Wide) {
      return b == 0 ? Wide{0} : quotient ? a / b : a % b;
    });
    return [=](const uint64_t* s) {
      Expected e = whole(s);
      e.open = integer_of(type, s[1]) == 0;
      return e;
    };
  }
  return nullptr;
}

Reference dots(const Form& form) {
  if (form.opcode == "vabsdiff4") {
    const bool is_signed = form.types[1] == "s32", adds = form.has("add");
    return [=](const uint64_t* s) {
      uint64_t packed = 0, sum = s[2];
      for (int k = 0; k < 4; ++k) {
        const std::string_view byte = is_signed ? "s8" : "u8";
        const Wide difference = integer_of(byte, s[0] >> 8 * k) - integer_of(byte, s[1] >> 8 * k);
        const auto magnitude = static_cast<uint64_t>(difference < 0 ? -difference : difference);
        packed |= magnitude << 8 * k;
        sum += magnitude;
      }
      return bits(masked(adds ? sum : packed, 32));
    };
  }
  const bool four = form.opcode == "dp4a", upper_half = form.has("hi");
  const std::string first = (form.types[0][0] == 's' ? "s" : "u") + std::string(four ? "8" : "16"),
                    second = form.types[1][0] == 's' ? "s8" : "u8";
  return [=](const uint64_t* s) {
    Wide sum = integer_of("s32", s[2]);
    for (int k = 0; k < (four ? 4 : 2); ++k) {
      sum +=
          integer_of(first, s[0] >> (four ? 8 : 16) * k) * integer_of(second, s[1] >> (8 * k + (upper_half ? 16 : 0)));
    }
    return bits(masked(static_cast<UnsignedWide>(sum), 32));
  };
}

uint64_t permuted(uint64_t a, uint64_t b, uint64_t selector) {
  uint64_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint64_t digit = selector >> 4 * k & 15;
    const uint64_t word = (digit & 4) != 0 ? b : a;
    uint64_t byte = word >> 8 * (digit & 3) & 0xff;
    if ((digit & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << 8 * k;
  }
  return result;
}

// Returns the byte of a (0-3) or b (4-7) that the mode puts into place k.
int mode_byte(const Form& form, int c, int k) {
  if (form.has("f4e")) return c + k;
  if (form.has("b4e")) return (8 + c - k) % 8;
  if (form.has("rc8")) return c;
  if (form.has("ecl")) return std::max(k, c);
  if (form.has("ecr")) return std::min(k, c);
  return (c & 1) * 2 + (k & 1);  // rc16
}

Reference bit_fields(const Form& form) {
  const std::string& opcode = form.opcode;
  const std::string type = form.types[0];
  const int width = static_cast<int>(bits_of(type));
  const bool is_signed = type[0] == 's';
  if (opcode == "bfe") {
    // The pseudo code of the PTX ISA.
    return [=](const uint64_t* s) {
      const int msb = width - 1, position = static_cast<int>(s[1] & 0xff), length = static_cast<int>(s[2] & 0xff);
      const auto bit = [&](int at) { return s[0] >> at & 1; };
      const uint64_t sign = !is_signed || length == 0 ? 0 : bit(std::min(position + length - 1, msb));
      uint64_t result = 0;
      for (int i = 0; i <= msb; ++i) result |= (i < length && position + i <= msb ? bit(position + i) : sign) << i;
      return bits(result);
    };
  }
  if (opcode == "bfi") {
    return [=](const uint64_t* s) {
      const int position = static_cast<int>(s[2] & 0xff), length = static_cast<int>(s[3] & 0xff);
      uint64_t result = s[1];
      for (int i = 0; i < length && position + i < width; ++i) {
        result = (result & ~(uint64_t{1} << (position + i))) | (s[0] >> i & 1) << (position + i);
      }
      return bits(masked(result, bits_of(type)));
    };
  }
  if (opcode == "fns") {
    return [=](const uint64_t* s) {
      const auto base = static_cast<int64_t>(s[1] & 0xffffffff);
      const auto offset = static_cast<int64_t>(integer_of("s32", s[2]));
      Expected e = bits(0xffffffff);
      e.open = base > 31;
      const auto set = [&](int64_t at) { return at >= 0 && at < 32 && (s[0] >> at & 1) != 0; };
      if (e.open || offset == 0) {
        if (!e.open && set(base)) e.bits = static_cast<uint64_t>(base);
        return e;
      }
      int64_t left = offset < 0 ? -offset : offset;
      for (int64_t at = base; at >= 0 && at < 32; at += offset < 0 ? -1 : 1) {
        if (set(at) && --left == 0) {
          e.bits = static_cast<uint64_t>(at);
          break;
        }
      }
      return e;
    };
  }
  if (opcode == "bmsk") {
    const bool clamp = form.has("clamp");
    return [=](const uint64_t* s) {
      const uint64_t first = clamp ? s[0] & 0xffffffff : s[0] & 31, count = clamp ? s[1] & 0xffffffff : s[1] & 31;
      uint64_t result = 0;
      for (uint64_t i = 0; i < 32; ++i) result |= static_cast<uint64_t>(i >= first && i - first < count) << i;
      return bits(result);
    };
  }
  if (opcode == "szext") {
    const bool clamp = form.has("clamp");
    return [=](const uint64_t* s) {
      const uint64_t n = clamp ? s[1] & 0xffffffff : s[1] & 31;
      if (n == 0) return bits(0);
      if (n >= 32) return bits(s[0] & 0xffffffff);
      return bits(masked(static_cast<UnsignedWide>(integer_of((is_signed ? "s" : "u") + std::to_string(n), s[0])), 32));
    };
  }
  if (opcode == "prmt") {
    const bool plain_mode = form.modifiers.empty();
    return [=](const uint64_t* s) {
      if (plain_mode) return bits(permuted(s[0], s[1], s[2]));
      uint64_t selector = 0;
      for (int k = 0; k < 4; ++k)
        selector |= static_cast<uint64_t>(mode_byte(form, static_cast<int>(s[2] & 3), k)) << 4 * k;
      return bits(permuted(s[0], s[1], selector));
    };
  }
  return nullptr;
}

Reference logic(const Form& form, uint32_t table) {
  const std::string& opcode = form.opcode;
  const std::string type = form.types[0];
  const uint32_t width = bits_of(type);
  const auto two = [&](auto f) -> Reference {
    return [=](const uint64_t* s) { return bits(masked(f(s[0], s[1]), width)); };
  };
  if (opcode == "and") return two([](uint64_t a, uint64_t b) { return a & b; });
  if (opcode == "or") return two([](uint64_t a, uint64_t b) { return a | b; });
  if (opcode == "xor") return two([](uint64_t a, uint64_t b) { return a ^ b; });
  if (opcode == "not") return two([](uint64_t a, uint64_t) { return ~a; });
  if (opcode == "cnot") return [=](const uint64_t* s) { return bits(masked(s[0], width) == 0); };
  if (opcode == "shl" || opcode == "shr") {
    const bool left = opcode == "shl";
    return [=](const uint64_t* s) {
      const uint64_t amount = std::min<uint64_t>(s[1] & 0xffffffff, width);
      const Wide a = integer_of(type, s[0]);
      return bits(
          masked(left ? static_cast<UnsignedWide>(a) << amount : static_cast<UnsignedWide>(a >> amount), width));
    };
  }
  if (opcode == "shf") {
    const bool left = form.has("l"), clamp = form.has("clamp");
    return [=](const uint64_t* s) {
      const uint64_t amount = clamp ? std::min<uint64_t>(s[2] & 0xffffffff, 32) : s[2] & 31;
      const UnsignedWide both = UnsignedWide{s[1] & 0xffffffff} << 32 | (s[0] & 0xffffffff);
      return bits(masked(left ? both >> (32 - amount) : both >> amount, 32));
    };
  }
  if (opcode == "lop3") {
    return [=](const uint64_t* s) {
      uint64_t result = 0;
      for (int i = 0; i < 32; ++i)
        result |= uint64_t{table >> ((s[0] >> i & 1) * 4 + (s[1] >> i & 1) * 2 + (s[2] >> i & 1)) & 1} << i;
      return bits(result);
    };
  }
  const auto leading = [width](uint64_t v) {
    return static_cast<uint64_t>(width - static_cast<uint32_t>(width_of(masked(v, width))));
  };
  if (opcode == "popc")
    return [=](const uint64_t* s) { return bits(static_cast<uint64_t>(std::popcount(masked(s[0], width)))); };
  if (opcode == "clz") return [=](const uint64_t* s) { return bits(leading(s[0])); };
  if (opcode == "brev") {
    return [=](const uint64_t* s) {
      uint64_t result = 0;
      for (uint32_t i = 0; i < width; ++i) result |= (s[0] >> i & 1) << (width - 1 - i);
      return bits(result);
    };
  }
  if (opcode == "bfind") {
    const bool amount = form.has("shiftamt");
    return [=](const uint64_t* s) {
      const uint64_t zeros = leading(integer_of(type, s[0]) < 0 ? ~s[0] : s[0]);
      return bits(zeros == width ? 0xffffffff : amount ? zeros : width - 1 - zeros);
    };
  }
  return nullptr;
}

}  // namespace

Reference integer_reference(const Form& form, uint32_t table) {
  const std::string_view type = form.types[0];
  if (form.opcode == "cvt" || form.opcode == "set" || form.opcode == "setp" || form.opcode == "selp" ||
      form.opcode == "slct")
    return nullptr;
  if (format_of(type) && form.opcode != "and" && form.opcode != "or" && form.opcode != "xor" && form.opcode != "not")
    return nullptr;
  if (uses_carry(form)) return with_carry(form);
  if (form.opcode == "dp4a" || form.opcode == "dp2a" || form.opcode == "vabsdiff4") return dots(form);
  if (Reference found = bit_fields(form)) return found;
  if (Reference found = logic(form, table)) return found;
  return arithmetic(form);
}

}  // namespace gpuwire::software_device::test
