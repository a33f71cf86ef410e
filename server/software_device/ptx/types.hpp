// PTX's fundamental types and state spaces (PTX ISA 9.0, sections 5.1 and 5.2).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpuwire::software_device::ptx {

enum class Type : uint8_t {
  none,
  pred,
  b8,
  b16,
  b32,
  b64,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  f16x2,
  bf16,
  bf16x2,
  f32,
  f64
};

enum class Space : uint8_t { generic, reg, param, local, shared, global, constant };

// Returns the bytes of a value; 0 for none and pred, which have no size in memory.
constexpr uint32_t size_of(Type type) {
  switch (type) {
    case Type::none:
    case Type::pred: return 0;
    case Type::b8:
    case Type::u8:
    case Type::s8: return 1;
    case Type::b16:
    case Type::u16:
    case Type::s16:
    case Type::f16:
    case Type::bf16: return 2;
    case Type::b32:
    case Type::u32:
    case Type::s32:
    case Type::f32:
    case Type::f16x2:
    case Type::bf16x2: return 4;
    case Type::b64:
    case Type::u64:
    case Type::s64:
    case Type::f64: return 8;
  }
  return 0;
}

constexpr bool is_signed(Type type) { return type >= Type::s8 && type <= Type::s64; }
constexpr bool is_bits(Type type) { return type >= Type::b8 && type <= Type::b64; }
constexpr bool is_unsigned(Type type) { return type >= Type::u8 && type <= Type::u64; }
constexpr bool is_float(Type type) { return type >= Type::f16; }
constexpr bool is_integer(Type type) { return type >= Type::b8 && type <= Type::s64; }

constexpr Type bits_of_size(uint32_t bytes) {
  return bytes == 1 ? Type::b8 : bytes == 2 ? Type::b16 : bytes == 4 ? Type::b32 : Type::b64;
}

// "u32" -> Type::u32; nothing for a word that is not a supported type.
std::optional<Type> type_named(std::string_view word);
std::string_view name_of(Type type);

}  // namespace gpuwire::software_device::ptx
