#include "server/ledger/worker/ptx_bytes.hpp"

#include <algorithm>
#include <array>

#include "protocol/fatbin/ptx_lexer.hpp"
#include "server/ledger/worker/saturating.hpp"

namespace gpuwire::server {
namespace {

using fatbin::ptx_number;
using Lexer = fatbin::PtxLexer;
using Token = fatbin::PtxToken;

// --- declarations --------------------------------------------------------------------------------------------------

constexpr uint64_t kOpaqueBytes = 64;  // .texref takes 52, .samplerref and .surfref less
constexpr uint64_t kWarpThreads = 32;  // WARP_SZ
// The padding for a variable's alignment beyond this is added to its bytes.
constexpr uint64_t kFreeAlignment = 16;

// Returns a type's size; an opaque type counts as the largest one.
uint64_t type_bytes(std::string_view word) {
  auto type = fatbin::ptx_type(word);
  return type ? std::max<uint64_t>(product(type->bits, type->count) / 8, 1) : kOpaqueBytes;
}

class Declaration {
 public:
  // Precondition: `lexer` is positioned after ".global" or ".const".
  explicit Declaration(Lexer& lexer) : lexer_(lexer) { advance(); }

  // Reads the declaration up to its end. False: its form is unknown.
  bool read() {
    if (!read_qualifiers()) return false;
    do {
      if (!read_variable()) return false;
    } while (skip(','));
    return token_.is(';');
  }
  bool managed() const { return managed_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void advance() { token_ = lexer_.next(); }
  bool skip(char symbol) {
    if (!token_.is(symbol)) return false;
    advance();
    return true;
  }

  bool read_qualifiers() {
    uint64_t element = 0;
    if (skip('[')) {  // the bank of a constant, up to PTX 2.1
      uint64_t bank = 1;
      if (!read_count(bank) || !skip(']')) return false;
    }
    while (token_.is_dotted()) {
      const std::string_view word = token_.text;
      advance();
      if (word == ".align") {
        auto to = token_.kind == Token::Kind::number ? ptx_number(token_.text) : std::nullopt;
        if (!to) return false;
        advance();
        alignment_ = std::max(alignment_, *to);
      } else if (token_.is('(')) {
        if (!read_arguments()) return false;
      } else if (word.starts_with(".v") && word.find_first_not_of("0123456789", 2) == std::string_view::npos) {
        vector_ = std::max<uint64_t>(ptx_number(word.substr(2)).value_or(UINT64_MAX), 1);
      } else {
        element = std::max(element, type_bytes(word));
      }
    }
    element_ = element ? element : kOpaqueBytes;
    return true;
  }
  // Skips the arguments of an attribute.
  bool read_arguments() {
    unsigned depth = 0;
    do {
      if (token_.kind == Token::Kind::end) return false;
      if (token_.is('(')) ++depth;
      if (token_.is(')')) --depth;
      managed_ = managed_ || token_.text == ".managed";
      advance();
    } while (depth != 0);
    return true;
  }
  bool read_variable() {
    if (!token_.is_word()) return false;
    advance();
    uint64_t items = 1;
    bool open = false;  // the initialiser determines the first dimension
    if (skip('<')) {    // x<3> stands for x0, x1, x2
      if (!read_count(items) || !skip('>')) return false;
    }
    for (bool first = true; skip('['); first = false) {
      if (skip(']')) {
        if (!first) return false;
        open = true;
        continue;
      }
      if (!read_count(items) || !skip(']')) return false;
    }
    uint64_t given = 1;
    if (skip('=') && !read_initialiser(given)) return false;
    if (open) items = product(items, given);
    bytes_ = sum(bytes_, product(product(element_, vector_), items));
    if (alignment_ > kFreeAlignment) bytes_ = sum(bytes_, alignment_);
    return true;
  }
  bool read_count(uint64_t& items) {
    std::optional<uint64_t> count;
    if (token_.kind == Token::Kind::number) count = ptx_number(token_.text);
    if (token_.is_word() && token_.text == "WARP_SZ") count = kWarpThreads;
    if (!count) return false;
    advance();
    items = product(items, *count);
    return true;
  }
  // Reads up to the comma or semicolon after the initialiser; `given`: the number of items in the outermost braces.
  bool read_initialiser(uint64_t& given) {
    for (unsigned depth = 0;; advance()) {
      if (token_.kind == Token::Kind::end) return false;
      if (token_.is('{') || token_.is('(')) ++depth;
      if (token_.is('}') || token_.is(')')) {
        if (depth-- == 0) return false;
      }
      if (depth == 1 && token_.is(',')) ++given;
      if (depth == 0 && (token_.is(',') || token_.is(';'))) return true;
    }
  }

  Lexer& lexer_;
  Token token_;
  uint64_t element_ = 0, vector_ = 1, alignment_ = 1, bytes_ = 0;
  bool managed_ = false;
};

// --- the text ------------------------------------------------------------------------------------------------------

// Instructions with a state space among their modifiers, which are no declarations.
constexpr std::array<std::string_view, 22> kInstructions{
    "applypriority", "atom", "cp",        "createpolicy", "cvta",     "discard",  "fence",     "isspacep", "ld",
    "ldu",           "mapa", "mbarrier",  "membar",       "multimem", "prefetch", "prefetchu", "red",      "st",
    "suld",          "sust", "tensormap", "wmma"};

class Text {
  static constexpr size_t kAheadTimes = 8;

 public:
  explicit Text(std::string_view ptx) : lexer_(ptx), ahead_bytes_(kAheadTimes * ptx.size()) {}

  std::optional<VariableBytes> read() {
    for (Token token = lexer_.next(); token.kind != Token::Kind::end; token = lexer_.next()) {
      note(token);
      if (token.is_dotted() && is_space(token.text) && !read_space()) return std::nullopt;
    }
    return known_ ? std::optional(bytes_) : std::nullopt;
  }

 private:
  static bool is_space(std::string_view word) { return word == ".global" || word == ".const"; }

  // Reads the text after ".global" or ".const": a declaration, or an instruction's modifier. False: the declaration
  // cannot be read.
  bool read_space() {
    if (behind_ptr_) return true;  // the state space that a pointer parameter points to
    const bool instruction = !head_.empty() && head_begins_;
    if (instruction && std::ranges::find(kInstructions, head_) != kInstructions.end()) return true;
    Lexer ahead = lexer_;
    Declaration declaration(ahead);
    if (!declaration.read()) {
      // An unknown instruction; its tokens are read once more.
      const size_t read_bytes = lexer_.left() - ahead.left();
      ahead_bytes_ -= std::min(ahead_bytes_, read_bytes);
      return instruction && ahead_bytes_ != 0;
    }
    uint64_t& bytes = declaration.managed() ? bytes_.managed : bytes_.plain;
    bytes = sum(bytes, declaration.bytes());
    lexer_ = ahead;
    note({Token::Kind::symbol, ";"});
    return true;
  }

  // `head_` is the word before a run of dotted words, and `head_begins_` whether an instruction may begin there; a name
  // can be at the same place (".func ld .global ..." and ".target sm_90.global ..." declare variables).
  void note(const Token& token) {
    if (token.is_word()) {
      const bool guard = before_.is('@') || (before_.is('!') && guarded_);
      head_begins_ = behind_guard_ || before_.kind == Token::Kind::end || before_.kind == Token::Kind::number ||
                     before_.is(';') || before_.is('{') || before_.is('}') || before_.is(':');
      head_ = token.text;
      behind_guard_ = guard;
      if (before_.is('#')) known_ = false;  // a preprocessor's directive; "# 1" names a line
    } else {
      if (!token.is_dotted()) head_ = {};
      behind_guard_ = false;
    }
    guarded_ = token.is('!') && before_.is('@');
    behind_ptr_ = before_.text == ".ptr";
    before_ = token;
  }

  Lexer lexer_;
  Token before_;
  std::string_view head_;
  bool head_begins_ = false;
  bool guarded_ = false;       // "@!" came last
  bool behind_guard_ = false;  // "@p" came last
  bool behind_ptr_ = false;
  bool known_ = true;
  // the bound of bytes that may still be read more than once, so that the time is linear in the text's length
  size_t ahead_bytes_;
  VariableBytes bytes_;
};

}  // namespace

std::optional<VariableBytes> variable_bytes(std::string_view ptx) { return Text(ptx).read(); }

}  // namespace gpuwire::server
