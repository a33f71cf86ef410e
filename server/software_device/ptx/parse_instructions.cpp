#include <bit>

#include "server/software_device/ptx/parser_internal.hpp"

namespace gpuwire::software_device::ptx {

void Parser::declare(std::string_view name, Name what) {
  if (!ok()) return;
  if (!scopes_[scope_].names.emplace(name, what).second) {
    fail("'" + std::string(name.substr(0, 80)) + "' is declared twice in one scope");
  }
}

const Parser::Name* Parser::find_in_scope(uint32_t scope, std::string_view name) const {
  while (true) {
    const Scope& here = scopes_[scope];
    if (auto at = here.names.find(name); at != here.names.end()) return &at->second;
    if (scope == 0) return nullptr;
    scope = here.parent;
  }
}

// Finds registers that are declared as %r<100> by their prefix and number.
bool Parser::find_register(std::string_view name, uint32_t& index) const {
  for (uint32_t scope = scope_;; scope = scopes_[scope].parent) {
    const auto& names = scopes_[scope].names;
    auto at = names.find(name);
    if (at != names.end() && at->second.kind == Name::Kind::reg) {
      index = at->second.index;
      return true;
    }
    uint64_t number = 0, weight = 1;
    for (size_t cut = name.size(); cut > 1 && name[cut - 1] >= '0' && name[cut - 1] <= '9' && weight < 10'000'000;
         --cut) {
      number += weight * static_cast<unsigned>(name[cut - 1] - '0');
      weight *= 10;
      if (name[cut - 1] == '0' && cut != name.size()) continue;  // no leading zeros
      at = names.find(name.substr(0, cut - 1));
      if (at != names.end() && at->second.kind == Name::Kind::register_range && number < at->second.count) {
        index = at->second.index + static_cast<uint32_t>(number);
        return true;
      }
    }
    if (scope == 0) return false;
  }
}

void Parser::parse_body(Function& function) {
  expect('{');
  uint32_t depth = 1;
  while (ok() && depth > 0) {
    if (peek().kind == TokenKind::end) return fail("the function has no end");
    if (accept('{')) {
      if (++depth > kScopeDepthMax) return fail("scopes are nested too deeply");
      scopes_.push_back({scope_, {}});
      scope_ = static_cast<uint32_t>(scopes_.size() - 1);
    } else if (accept('}')) {
      --depth;
      scope_ = scopes_[scope_].parent;
    } else {
      parse_statement(function);
    }
  }
  if (ok()) resolve_labels(function);
}

void Parser::parse_statement(Function& function) {
  if (accept(';')) return;
  if (peek().kind == TokenKind::dot_word) return parse_body_directive(function);
  if (peek().kind == TokenKind::identifier && lexer_.peek_second().is(':')) return parse_label(function);
  parse_instruction(function);
}

void Parser::parse_body_directive(Function& function) {
  Token word = take();
  if (word.text == "reg") return parse_registers(function);
  if (word.text == "param") return parse_variables(Space::param, {}, &function);
  if (word.text == "local") return parse_variables(Space::local, {}, &function);
  if (word.text == "shared" || word.text == "shared::cta") return parse_variables(Space::shared, {}, &function);
  if (word.text == "global") return parse_variables(Space::global, {}, &function);
  if (word.text == "const") return parse_variables(Space::constant, {}, &function);
  if (word.text == "loc" || word.text == "file") return skip_source_location();
  if (word.text == "pragma") {
    while (ok() && !accept(';')) {
      if (take().kind == TokenKind::end) return fail("unfinished .pragma");
    }
    return;
  }
  if (word.text == "section") return skip_section();
  fail_at(word.line, "unknown directive '." + std::string(word.text.substr(0, 40)) + "'");
}

void Parser::parse_registers(Function& function) {
  Declaration declaration = parse_declaration();
  if (declaration.vector_width != 1) return fail("vector registers are not supported", true);
  do {
    std::string_view name = expect_identifier("a register's name");
    uint32_t first = static_cast<uint32_t>(function.registers.size());
    uint64_t count = 1;
    bool range = accept('<');
    if (range) {
      count = expect_integer("a number of registers");
      expect('>');
    }
    if (count > kRegistersPerFunctionMax || first + count > kRegistersPerFunctionMax) return fail("too many registers");
    declare(name, {range ? Name::Kind::register_range : Name::Kind::reg, first, static_cast<uint32_t>(count)});
    function.registers.resize(first + count, declaration.element);
  } while (ok() && accept(','));
  expect(';');
}

void Parser::parse_label(Function& function) {
  std::string_view label = take().text;
  expect(':');
  if (peek().is_dot("branchtargets") || peek().is_dot("calltargets") || peek().is_dot("callprototype")) {
    return parse_label_table(function, label);
  }
  declare(label, {Name::Kind::label, static_cast<uint32_t>(function.instructions.size()), 0});
}

void Parser::parse_label_table(Function& function, std::string_view label) {
  Token word = take();
  declare(label, {Name::Kind::table, static_cast<uint32_t>(function.tables.size()), 0});
  LabelTable table;
  if (word.text == "callprototype") {
    // The call itself contains the sizes of arguments and results; this device needs nothing else from the prototype.
    table.kind = LabelTable::Kind::call_prototype;
    while (ok() && !peek().is(';')) {
      if (take().kind == TokenKind::end) return fail("unfinished .callprototype");
    }
  } else {
    table.kind = word.text == "branchtargets" ? LabelTable::Kind::branch_targets : LabelTable::Kind::call_targets;
    do {
      Operand target;
      target.kind = Operand::Kind::name;
      target.scope = scope_;
      target.name = expect_identifier("a target");
      table.targets.push_back(target);
    } while (ok() && accept(','));
  }
  expect(';');
  function.tables.push_back(std::move(table));
}

void Parser::parse_modifiers(Instruction& instruction) {
  while (peek().kind == TokenKind::dot_word) {
    std::string_view word = take().text;
    if (std::optional<Type> type = type_named(word)) {
      instruction.types.push_back(*type);
    } else if (std::optional<Modifier> modifier = modifier_named(word)) {
      instruction.modifiers.insert(*modifier);
      // An address of the own block is also an address of the cluster, so an instruction that allows shared_cluster
      // treats both alike.
      if (*modifier == Modifier::shared_cluster) instruction.modifiers.insert(Modifier::shared);
      instruction.order.push_back(*modifier);
    } else if (instruction.unknown_word.empty()) {
      instruction.unknown_word = word;
    }
  }
}

void Parser::parse_instruction(Function& function) {
  Instruction instruction;
  if (accept('@')) {
    instruction.guarded = true;
    instruction.guard_negated = accept('!');
    std::string_view name = expect_identifier("a predicate");
    if (ok() && !find_register(name, instruction.guard)) return fail("'" + std::string(name) + "' is not a register");
    if (ok() && function.registers[instruction.guard] != Type::pred) return fail("the guard is not a predicate");
  }
  instruction.line = peek().line;
  instruction.opcode = expect_identifier("an instruction");
  parse_modifiers(instruction);
  in_call_ = instruction.opcode == "call";
  if (!accept(';')) {
    do {
      instruction.operands.push_back(parse_operand(function, 0));
      if (instruction.operands.size() > kOperandsMax) return fail("too many operands");
    } while (ok() && accept(','));
    expect(';');
  }
  if (ok()) function.instructions.push_back(std::move(instruction));
}

Operand Parser::parse_operand(Function& function, uint32_t depth) {
  if (depth > kExpressionDepthMax) {
    fail("operand is nested too deeply");
    return {};
  }
  Operand first = parse_simple_operand(function, depth);
  if (!accept('|')) return first;
  Operand pair;
  pair.kind = Operand::Kind::pair;
  pair.elements.push_back(std::move(first));
  pair.elements.push_back(parse_simple_operand(function, depth));
  return pair;
}

Operand Parser::parse_simple_operand(Function& function, uint32_t depth) {
  if (accept('[')) return parse_address(function, depth);
  if (accept('{')) return parse_sequence(function, Operand::Kind::vector, '}', depth);
  if (in_call_ && peek().is('(') && depth == 0) {
    take();
    return parse_sequence(function, Operand::Kind::list, ')', depth);
  }
  if (peek().kind == TokenKind::identifier && !peek().is_word("WARP_SZ")) return parse_name(function);
  if (peek().is('!') && lexer_.peek_second().kind == TokenKind::identifier) {
    take();
    Operand operand = parse_name(function);
    operand.negated = true;
    return operand;
  }
  Operand operand;
  bool negative = peek().is('-') && lexer_.peek_second().kind == TokenKind::real && accept('-');
  if (peek().kind == TokenKind::real) {
    Token token = take();
    double value = negative ? -token.real_value : token.real_value;
    operand.kind = Operand::Kind::real;
    operand.value = std::bit_cast<uint64_t>(value);
    operand.single_exact = token.single_exact;
    operand.single = token.single_exact ? static_cast<uint32_t>(token.integer_value) ^ (negative ? 0x80000000u : 0)
                                        : std::bit_cast<uint32_t>(static_cast<float>(value));
    return operand;
  }
  operand.kind = Operand::Kind::integer;
  operand.value = static_cast<uint64_t>(parse_expression(0, 1));  // '|' separates the halves of a pair
  return operand;
}

Operand Parser::parse_name(Function& function) {
  Operand operand;
  operand.scope = scope_;
  operand.name = expect_identifier("a name");
  if (operand.name == "_") {
    operand.kind = Operand::Kind::sink;
    return operand;
  }
  if (find_register(operand.name, operand.index)) {
    operand.kind = Operand::Kind::reg;
    if (peek().kind == TokenKind::dot_word) fail("vector registers are not supported", true);
    return operand;
  }
  if (operand.name.starts_with('%')) {
    operand.kind = Operand::Kind::special;
    if (peek().kind == TokenKind::dot_word) {
      std::string_view part = take().text;
      operand.index = part == "x" ? 0 : part == "y" ? 1 : part == "z" ? 2 : part == "w" ? 3 : 4;
      if (operand.index == 4) fail("expected .x, .y, .z or .w");
    }
    return operand;
  }
  const Name* name = find_in_scope(scope_, operand.name);
  if (name != nullptr && name->kind == Name::Kind::variable) {
    operand.kind = Operand::Kind::variable;
    operand.index = name->index;
  } else {
    operand.kind = Operand::Kind::name;
  }
  if (accept('[')) {
    operand.addend = parse_expression();
    if (operand.kind == Operand::Kind::variable && operand.index < function.variables.size()) {
      operand.addend *= static_cast<int64_t>(size_of(function.variables[operand.index].element));
    }
    expect(']');
  } else if (peek().is('+') || (peek().is('-'))) {
    operand.addend = parse_expression();
  }
  return operand;
}

// Parses [register + constant], [name + constant] or [constant]. Further elements are texture coordinates, which
// lowering refuses.
Operand Parser::parse_address(Function& function, uint32_t depth) {
  Operand address;
  address.kind = Operand::Kind::address;
  do {
    Operand base = parse_operand(function, depth + 1);
    if (base.kind == Operand::Kind::reg && (peek().is('+') || peek().is('-'))) address.addend = parse_expression();
    if (base.kind == Operand::Kind::variable || base.kind == Operand::Kind::name) {
      address.addend = base.addend;
      base.addend = 0;
    }
    address.elements.push_back(std::move(base));
  } while (ok() && accept(','));
  expect(']');
  return address;
}

Operand Parser::parse_sequence(Function& function, Operand::Kind kind, char close, uint32_t depth) {
  Operand sequence;
  sequence.kind = kind;
  if (accept(close)) return sequence;
  do {
    sequence.elements.push_back(parse_operand(function, depth + 1));
    if (sequence.elements.size() > kParametersMax) fail("too many elements");
  } while (ok() && accept(','));
  expect(close);
  return sequence;
}

void Parser::resolve_label(Operand& operand) {
  if (operand.kind != Operand::Kind::name) return;
  const Name* name = find_in_scope(operand.scope, operand.name);
  if (name == nullptr) return;
  if (name->kind == Name::Kind::label) operand.kind = Operand::Kind::label;
  if (name->kind == Name::Kind::table) operand.kind = Operand::Kind::table;
  operand.index = name->index;
}

void Parser::resolve_labels(Function& function) {
  for (Instruction& instruction : function.instructions) {
    for (Operand& operand : instruction.operands) resolve_label(operand);
  }
  for (LabelTable& table : function.tables) {
    for (Operand& target : table.targets) resolve_label(target);
  }
}

}  // namespace gpuwire::software_device::ptx
