#include <optional>

#include "server/software_device/ptx/parser_internal.hpp"

namespace gpuwire::software_device::ptx {
namespace {

struct BinaryOperator {
  char mark;
  int precedence;
};

// Operators of two bytes (<< and >>) are recognised by their first byte.
constexpr BinaryOperator kOperators[] = {{'|', 1}, {'^', 2}, {'&', 3}, {'<', 4}, {'>', 4},
                                         {'+', 5}, {'-', 5}, {'*', 6}, {'/', 6}};

std::optional<BinaryOperator> operator_at(const Token& token) {
  for (const BinaryOperator& row : kOperators) {
    if (token.is(row.mark)) return row;
  }
  return std::nullopt;
}

int64_t apply(char mark, int64_t left, int64_t right) {
  uint64_t a = static_cast<uint64_t>(left), b = static_cast<uint64_t>(right);
  switch (mark) {
    case '|': return left | right;
    case '^': return left ^ right;
    case '&': return left & right;
    case '<': return b < 64 ? static_cast<int64_t>(a << b) : 0;
    case '>': return b < 64 ? left >> b : (left < 0 ? -1 : 0);
    case '+': return static_cast<int64_t>(a + b);
    case '-': return static_cast<int64_t>(a - b);
    case '*': return static_cast<int64_t>(a * b);
    default: return right == 0 || (right == -1) ? static_cast<int64_t>(0 - a) * (right != 0) : left / right;
  }
}

}  // namespace

int64_t Parser::parse_expression(uint32_t depth, int lowest_precedence) {
  if (depth > kExpressionDepthMax) {
    fail("expression is nested too deeply");
    return 0;
  }
  int64_t left = parse_unary(depth);
  while (ok()) {
    std::optional<BinaryOperator> next = operator_at(peek());
    if (!next || next->precedence <= lowest_precedence) break;
    take();
    if (next->mark == '<' || next->mark == '>') expect(next->mark);
    int64_t right = parse_expression(depth + 1, next->precedence);
    left = apply(next->mark, left, right);
  }
  return left;
}

int64_t Parser::parse_unary(uint32_t depth) {
  if (depth > kExpressionDepthMax) {
    fail("expression is nested too deeply");
    return 0;
  }
  if (accept('-')) return static_cast<int64_t>(0 - static_cast<uint64_t>(parse_unary(depth + 1)));
  if (accept('+')) return parse_unary(depth + 1);
  if (accept('~')) return ~parse_unary(depth + 1);
  if (accept('!')) return parse_unary(depth + 1) == 0;
  if (accept('(')) {
    int64_t value = parse_expression(depth + 1);
    expect(')');
    return value;
  }
  if (peek().is_word("WARP_SZ")) {
    take();
    return 32;
  }
  return static_cast<int64_t>(expect_integer("a constant"));
}

}  // namespace gpuwire::software_device::ptx
