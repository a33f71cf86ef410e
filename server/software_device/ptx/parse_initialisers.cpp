#include <bit>
#include <cstring>

#include "server/software_device/ptx/parser_internal.hpp"

namespace gpuwire::software_device::ptx {

void Parser::parse_initialiser(Variable& variable) {
  if (variable.unsized ? false : variable.size_bytes == 0) return fail("initialiser for an empty variable");
  uint64_t offset = 0;
  if (peek().is('{')) {
    parse_initial_values(variable, offset, 0);
  } else {
    parse_initial_value(variable, 0);
  }
}

void Parser::parse_initial_values(Variable& variable, uint64_t& offset, uint32_t depth) {
  if (depth > kExpressionDepthMax) return fail("initialiser is nested too deeply");
  expect('{');
  if (accept('}')) return;
  do {
    if (peek().is('{')) {
      parse_initial_values(variable, offset, depth + 1);
    } else {
      parse_initial_value(variable, offset);
      offset += size_of(variable.element);
    }
  } while (ok() && accept(','));
  expect('}');
}

void Parser::put_initial_bytes(Variable& variable, uint64_t offset, uint64_t bits, uint32_t bytes) {
  if (offset + bytes > kInitialiserBytesMax) return fail("initialiser is too long");
  if (!variable.unsized && offset + bytes > variable.size_bytes)
    return fail("more initial values than the variable holds");
  if (variable.initial.size() < offset + bytes) variable.initial.resize(offset + bytes);
  std::memcpy(variable.initial.data() + offset, &bits, bytes);
}

void Parser::parse_initial_value(Variable& variable, uint64_t offset) {
  uint32_t bytes = size_of(variable.element);
  bool negative = false;
  if (peek().is('-') && lexer_.peek_second().kind == TokenKind::real) negative = accept('-');
  if (peek().kind == TokenKind::real) {
    Token token = take();
    double value = negative ? -token.real_value : token.real_value;
    uint64_t bits = std::bit_cast<uint64_t>(value);
    if (bytes == 4) bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    if (token.single_exact && bytes == 4) bits = token.integer_value ^ (negative ? 0x80000000u : 0);
    if (bytes < 4) return fail("floating-point initialiser for a small type");
    return put_initial_bytes(variable, offset, bits, bytes);
  }
  if (peek().kind == TokenKind::identifier && !peek().is_word("WARP_SZ"))
    return parse_initial_symbol(variable, offset, 0);
  // 0xFF00(symbol): one byte of an address.
  if (peek().kind == TokenKind::integer && lexer_.peek_second().is('(')) {
    uint64_t mask = take().integer_value;
    expect('(');
    parse_initial_symbol(variable, offset, mask);
    expect(')');
    return;
  }
  int64_t value = parse_expression();
  uint64_t bits = static_cast<uint64_t>(value);
  if (variable.element == Type::f32) bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (variable.element == Type::f64) bits = std::bit_cast<uint64_t>(static_cast<double>(value));
  put_initial_bytes(variable, offset, bits, bytes);
}

// Parses a symbol, generic(symbol), or one of those + constant. `mask` selects the byte of the address to store; 0:
// all.
void Parser::parse_initial_symbol(Variable& variable, uint64_t offset, uint64_t mask) {
  std::string_view target = expect_identifier("a symbol");
  if (target == "generic") {
    expect('(');
    target = expect_identifier("a symbol");
    expect(')');
  }
  int64_t addend = 0;
  if (peek().is('+') || peek().is('-')) addend = parse_expression();
  if (!ok()) return;
  if (mask != 0) {
    // Eight consecutive bytes with the masks 0xFF, 0xFF00, ... form one address.
    unsigned byte = static_cast<unsigned>(std::countr_zero(mask)) / 8;
    bool continues = byte > 0 && !variable.pointers.empty() && variable.pointers.back().offset_bytes + byte == offset &&
                     variable.pointers.back().target == target;
    if (mask != uint64_t{0xff} << (8 * byte) || size_of(variable.element) != 1 || (byte > 0 && !continues)) {
      return fail("initialiser takes a part of an address in an unsupported way", true);
    }
    put_initial_bytes(variable, offset, 0, 1);
    if (byte == 0) variable.pointers.push_back({offset, target, addend});
    return;
  }
  if (size_of(variable.element) != 8) return fail("an address needs an element of 8 bytes", true);
  put_initial_bytes(variable, offset, 0, 8);
  variable.pointers.push_back({offset, target, addend});
}

}  // namespace gpuwire::software_device::ptx
