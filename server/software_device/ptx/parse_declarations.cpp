#include <bit>

#include "server/software_device/ptx/parser_internal.hpp"

namespace gpuwire::software_device::ptx {

tl::expected<Module, ParseError> parse(std::string_view text) {
  if (text.size() > kTextBytesMax) return tl::unexpected(ParseError{false, 0, "the text is too long"});
  return Parser(text).run();
}

bool Parser::ok() {
  if (!failed_ && lexer_.failed()) fail_at(lexer_.error().line, lexer_.error().message);
  return !failed_;
}

const Token& Parser::peek() {
  static const Token kEnd;
  return failed_ ? kEnd : lexer_.peek();
}

Token Parser::take() { return failed_ ? Token{} : lexer_.take(); }

void Parser::fail(std::string message, bool unsupported) { fail_at(peek().line, std::move(message), unsupported); }

void Parser::fail_at(uint32_t line, std::string message, bool unsupported) {
  if (failed_) return;
  failed_ = true;
  error_ = {unsupported, line, std::move(message)};
}

bool Parser::accept(char mark) {
  if (!peek().is(mark)) return false;
  take();
  return true;
}

bool Parser::expect(char mark) {
  if (accept(mark)) return true;
  const Token& next = peek();
  std::string found =
      next.kind == TokenKind::end ? "the end of the text" : "'" + std::string(next.text.substr(0, 40)) + "'";
  fail(std::string("expected '") + mark + "' before " + found);
  return false;
}

bool Parser::accept_dot(std::string_view word) {
  if (!peek().is_dot(word)) return false;
  take();
  return true;
}

std::string_view Parser::expect_identifier(const char* what) {
  if (peek().kind != TokenKind::identifier) {
    fail(std::string("expected ") + what);
    return {};
  }
  return take().text;
}

uint64_t Parser::expect_integer(const char* what) {
  if (peek().kind != TokenKind::integer) {
    fail(std::string("expected ") + what);
    return 0;
  }
  return take().integer_value;
}

tl::expected<Module, ParseError> Parser::run() {
  while (ok() && peek().kind != TokenKind::end) parse_module_directive();
  if (ok() && module_.version == 0) fail("the text has no .version directive");
  if (!ok()) return tl::unexpected(error_);
  return std::move(module_);
}

void Parser::parse_header_directive(const Token& directive) {
  if (directive.text == "version") {
    Token number = take();
    if (number.kind != TokenKind::real || number.real_value < 1 || number.real_value > 99)
      return fail("malformed .version");
    module_.version = static_cast<uint32_t>(number.real_value * 10 + 0.5);
  } else if (directive.text == "target") {
    do {
      std::string_view target = expect_identifier("a target");
      if (!target.starts_with("sm_")) continue;
      uint32_t sm = 0;
      for (char c : target.substr(3)) {
        if (c < '0' || c > '9' || sm > 1000) break;
        sm = sm * 10 + static_cast<uint32_t>(c - '0');
      }
      module_.target_sm = sm;
    } while (accept(','));
  } else if (expect_integer("an address size") != 64) {
    fail("only .address_size 64 is supported", true);
  }
}

void Parser::parse_module_directive() {
  if (accept(';')) return;
  Token directive = take();
  if (directive.kind != TokenKind::dot_word) {
    return fail_at(directive.line, "expected a directive before '" + std::string(directive.text.substr(0, 40)) + "'");
  }
  std::string_view word = directive.text;
  if (word == "version" || word == "target" || word == "address_size") return parse_header_directive(directive);
  if (word == "file" || word == "loc") return skip_source_location();
  if (word == "section") return skip_section();
  if (word == "alias") return parse_alias();
  if (word == "pragma") {
    while (ok() && !accept(';')) {
      if (take().kind == TokenKind::end) return fail("unfinished .pragma");
    }
    return;
  }
  Linkage linkage;
  while (ok()) {
    if (word == "extern") linkage.external = true;
    else if (word == "visible") linkage.visible = true;
    else if (word == "weak") linkage.weak = linkage.visible = true;
    else if (word == "common") linkage.common = linkage.weak = linkage.visible = true;
    else break;
    if (peek().kind != TokenKind::dot_word) return fail("expected a directive");
    directive = take();
    word = directive.text;
  }
  if (word == "func") return parse_function(false, linkage);
  if (word == "entry") return parse_function(true, linkage);
  if (word == "global") return parse_variables(Space::global, linkage, nullptr);
  if (word == "const") return parse_variables(Space::constant, linkage, nullptr);
  if (word == "shared" || word == "shared::cta") return parse_variables(Space::shared, linkage, nullptr);
  if (word == "tex") return fail_at(directive.line, "textures are not supported by the software device", true);
  fail_at(directive.line, "unknown directive '." + std::string(word.substr(0, 40)) + "'");
}

void Parser::parse_alias() {
  Alias alias;
  alias.name = expect_identifier("an alias");
  expect(',');
  alias.target = expect_identifier("the alias's target");
  expect(';');
  if (ok()) module_.aliases.push_back(alias);
}

// Skips DWARF: .section .debug_str { ... }. Execution does not need it.
void Parser::skip_section() {
  while (ok() && !peek().is('{')) {
    if (take().kind == TokenKind::end) return fail("unfinished .section");
  }
  while (ok() && !accept('}')) {
    if (take().kind == TokenKind::end) return fail("unfinished .section");
  }
}

// .file 1 "name", time, size    .loc 1 2 3, function_name $x + 4, inlined_at 1 2 3    Neither has an end mark.
void Parser::skip_source_location() {
  while (ok()) {
    const Token& next = peek();
    if (next.kind == TokenKind::integer || next.kind == TokenKind::string || next.is(',') || next.is('+')) {
      take();
    } else if (next.is_word("function_name")) {
      take();
      expect_identifier("a function's name");
    } else if (next.is_word("inlined_at")) {
      take();
    } else {
      return;
    }
  }
}

Parser::Declaration Parser::parse_declaration() {
  Declaration declaration;
  while (ok() && peek().kind == TokenKind::dot_word) {
    Token word = take();
    if (word.text == "align") {
      uint64_t bytes = expect_integer("an alignment");
      if (!std::has_single_bit(bytes) || bytes > kAlignmentMax)
        fail("alignment must be a power of two and not too large");
      declaration.alignment_bytes = static_cast<uint32_t>(bytes);
    } else if (word.text == "attribute") {
      expect('(');
      while (ok() && !accept(')')) {
        Token part = take();
        if (part.kind == TokenKind::end) fail("unfinished .attribute");
        declaration.managed |= part.is_dot("managed");
      }
    } else if (word.text == "v2" || word.text == "v4") {
      declaration.vector_width = word.text == "v2" ? 2 : 4;
    } else if (std::optional<Type> type = type_named(word.text)) {
      declaration.element = *type;
    } else if (word.text == "ptr") {
      // ".u64 .ptr .global .align 4 p": the type of the pointer's target is not needed.
      while (peek().kind == TokenKind::dot_word) {
        if (take().is_dot("align")) expect_integer("an alignment");
      }
    } else {
      bool texture = word.text.ends_with("ref");
      fail_at(word.line, "declaration with '." + std::string(word.text.substr(0, 40)) + "' is not supported", texture);
    }
  }
  if (ok() && declaration.element == Type::none) fail("expected a type");
  return declaration;
}

// Parses everything in [brackets] after a name.
void Parser::parse_extent(Variable& variable) {
  while (ok() && accept('[')) {
    if (accept(']')) {
      variable.unsized = true;
      continue;
    }
    int64_t count = parse_expression();
    expect(']');
    if (count < 0 || static_cast<uint64_t>(count) > kVariableBytesMax) return fail("array is too large");
    variable.size_bytes *= static_cast<uint64_t>(count);
    if (variable.size_bytes > kVariableBytesMax) return fail("array is too large");
  }
}

void Parser::parse_variables(Space space, Linkage linkage, Function* function) {
  Declaration declaration = parse_declaration();
  do {
    Variable variable;
    variable.line = peek().line;
    variable.name = expect_identifier("a variable's name");
    variable.space = space;
    variable.element = declaration.element;
    variable.size_bytes = uint64_t{size_of(declaration.element)} * declaration.vector_width;
    variable.alignment_bytes =
        declaration.alignment_bytes ? declaration.alignment_bytes : static_cast<uint32_t>(variable.size_bytes);
    if (variable.size_bytes == 0) return fail("a variable in memory needs a sized type");
    variable.managed = declaration.managed;
    variable.external = linkage.external;
    variable.visible = linkage.visible;
    variable.weak = linkage.weak;
    variable.common = linkage.common;
    uint64_t element_bytes = variable.size_bytes;
    parse_extent(variable);
    if (accept('=')) parse_initialiser(variable);
    if (variable.unsized) {
      uint64_t given = variable.initial.size();
      variable.size_bytes = space == Space::shared ? 0 : (given + element_bytes - 1) / element_bytes * element_bytes;
    }
    if (!ok()) return;
    if (function != nullptr && space != Space::global && space != Space::constant) {
      if (space == Space::local && variable.size_bytes > kLocalBytesMax) return fail("local variable is too large");
      if (space == Space::param && variable.size_bytes > kParameterBytesMax) return fail("parameter is too large");
      declare(variable.name, {Name::Kind::variable, static_cast<uint32_t>(function->variables.size()), 0});
      function->variables.push_back(std::move(variable));
    } else {
      module_.variables.push_back(std::move(variable));
    }
  } while (ok() && accept(','));
  expect(';');
}

std::vector<Formal> Parser::parse_formals(Function& function) {
  std::vector<Formal> formals;
  if (!accept('(')) return formals;
  if (accept(')')) return formals;
  do {
    Token space = take();
    if (space.is_dot("reg")) {
      Declaration declaration = parse_declaration();
      std::string_view name = expect_identifier("a parameter's name");
      formals.push_back({true, static_cast<uint32_t>(function.registers.size())});
      declare(name, {Name::Kind::reg, static_cast<uint32_t>(function.registers.size()), 0});
      function.registers.push_back(declaration.element);
    } else if (space.is_dot("param")) {
      Declaration declaration = parse_declaration();
      Variable variable;
      variable.line = peek().line;
      variable.name = expect_identifier("a parameter's name");
      variable.space = Space::param;
      variable.element = declaration.element;
      variable.size_bytes = uint64_t{size_of(declaration.element)} * declaration.vector_width;
      variable.alignment_bytes =
          declaration.alignment_bytes ? declaration.alignment_bytes : static_cast<uint32_t>(variable.size_bytes);
      if (ok() && variable.size_bytes == 0) return fail("a parameter needs a sized type"), formals;
      parse_extent(variable);
      if (variable.size_bytes > kParameterBytesMax) fail("parameter is too large");
      if (variable.unsized) fail("functions with a variable number of arguments are not supported", true);
      formals.push_back({false, static_cast<uint32_t>(function.variables.size())});
      declare(variable.name, {Name::Kind::variable, static_cast<uint32_t>(function.variables.size()), 0});
      function.variables.push_back(std::move(variable));
    } else {
      fail_at(space.line, "expected a parameter");
    }
    if (formals.size() > kParametersMax) fail("too many parameters");
  } while (ok() && accept(','));
  expect(')');
  return formals;
}

void Parser::parse_performance_directives(Function& function) {
  while (ok() && peek().kind == TokenKind::dot_word) {
    Token word = take();
    uint64_t product = 1, values[3] = {1, 1, 1};
    uint32_t count = 0;
    while (ok() && peek().kind == TokenKind::integer) {
      uint64_t value = take().integer_value;
      if (value > 0xffffffff || count == 3) return fail("value is too large");
      values[count++] = value;
      product = product * value;
      if (product > 0xffffffff) return fail("value is too large");
      if (!accept(',')) break;
    }
    if ((word.text == "maxntid" || word.text == "reqntid") && count != 0) {
      if (product == 0) return fail("a block needs a thread");
      function.max_threads_per_block = static_cast<uint32_t>(std::min<uint64_t>(product, 1024));
    } else if (word.text == "reqnctapercluster" && count != 0) {
      if (product == 0) return fail("a cluster needs a block");
      for (size_t d = 0; d < 3; ++d) function.cluster[d] = static_cast<uint32_t>(values[d]);
    } else if (word.text == "blocksareclusters") {
      return fail_at(word.line, "grids counted in clusters are not supported", true);
    } else if (word.text == "pragma") {
      while (ok() && !accept(';')) {
        if (take().kind == TokenKind::end) return fail("unfinished .pragma");
      }
    } else if (word.text != "minnctapersm" && word.text != "maxnreg" && word.text != "maxnctapersm" &&
               word.text != "noreturn" && word.text != "maxclusterrank" && word.text != "explicitcluster" &&
               word.text != "abi_preserve" && word.text != "abi_preserve_control" && word.text != "attribute" &&
               word.text != "unique") {
      return fail_at(word.line, "unknown directive '." + std::string(word.text.substr(0, 40)) + "'");
    } else if (word.text == "attribute") {
      expect('(');
      while (ok() && !accept(')')) {
        if (take().kind == TokenKind::end) fail("unfinished .attribute");
      }
    }
  }
}

void Parser::parse_function(bool entry, Linkage linkage) {
  Function function;
  scopes_.assign(1, Scope{0, {}});
  scope_ = 0;
  function.entry = entry;
  function.external = linkage.external;
  function.visible = linkage.visible;
  function.weak = linkage.weak;
  if (accept_dot("attribute")) {
    while (ok() && !accept(')')) {
      if (take().kind == TokenKind::end) return fail("unfinished .attribute");
    }
  }
  if (!entry && peek().is('(')) function.results = parse_formals(function);
  function.line = peek().line;
  function.name = expect_identifier("a function's name");
  function.parameters = parse_formals(function);
  parse_performance_directives(function);
  if (!accept(';')) {
    function.defined = true;
    parse_body(function);
  }
  if (ok()) module_.functions.push_back(std::move(function));
}

}  // namespace gpuwire::software_device::ptx
