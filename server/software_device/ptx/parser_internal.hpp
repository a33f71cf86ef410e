// The parser's state. Errors are sticky: after the first one, the token stream is at its end and every loop stops.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/software_device/ptx/lexer.hpp"
#include "server/software_device/ptx/limits.hpp"
#include "server/software_device/ptx/module.hpp"
#include "server/software_device/ptx/parser.hpp"

namespace gpuwire::software_device::ptx {

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) {}
  tl::expected<Module, ParseError> run();

 private:
  struct Name {
    enum class Kind : uint8_t { reg, register_range, variable, label, table } kind;
    uint32_t index;
    uint32_t count;  // register_range
  };
  // A pair of braces. Scopes are stored until the function ends, because labels are used before they are declared.
  struct Scope {
    uint32_t parent;
    std::unordered_map<std::string_view, Name> names;
  };
  struct Linkage {
    bool external = false, visible = false, weak = false, common = false;
  };
  struct Declaration {  // the word between a space and a name
    Type element = Type::none;
    uint32_t vector_width = 1;
    uint32_t alignment_bytes = 0;
    bool managed = false;
  };

  // Tokens and errors.
  const Token& peek();
  Token take();
  bool accept(char mark);
  bool expect(char mark);
  bool accept_dot(std::string_view word);
  std::string_view expect_identifier(const char* what);
  uint64_t expect_integer(const char* what);
  void fail(std::string message, bool unsupported = false);
  void fail_at(uint32_t line, std::string message, bool unsupported = false);
  bool ok();

  // Module scope: parse_declarations.cpp.
  void parse_header_directive(const Token& directive);
  void parse_module_directive();
  void parse_function(bool entry, Linkage linkage);
  void parse_performance_directives(Function& function);
  void parse_alias();
  std::vector<Formal> parse_formals(Function& function);
  Declaration parse_declaration();
  void parse_variables(Space space, Linkage linkage, Function* function);
  void parse_extent(Variable& variable);
  void skip_section();
  void skip_source_location();

  // Initial values of variables: parse_initialisers.cpp.
  void parse_initialiser(Variable& variable);
  void parse_initial_values(Variable& variable, uint64_t& offset, uint32_t depth);
  void parse_initial_value(Variable& variable, uint64_t offset);
  void parse_initial_symbol(Variable& variable, uint64_t offset, uint64_t mask);
  void put_initial_bytes(Variable& variable, uint64_t offset, uint64_t bits, uint32_t bytes);

  // Constant expressions, PTX ISA 4.5.5: parse_expressions.cpp.
  int64_t parse_expression(uint32_t depth = 0, int lowest_precedence = 0);
  int64_t parse_unary(uint32_t depth);

  // Function bodies: parse_instructions.cpp.
  void parse_body(Function& function);
  void parse_statement(Function& function);
  void parse_body_directive(Function& function);
  void parse_registers(Function& function);
  void parse_label(Function& function);
  void parse_label_table(Function& function, std::string_view label);
  void parse_instruction(Function& function);
  void parse_modifiers(Instruction& instruction);
  Operand parse_operand(Function& function, uint32_t depth);
  Operand parse_simple_operand(Function& function, uint32_t depth);
  Operand parse_name(Function& function);
  Operand parse_address(Function& function, uint32_t depth);
  Operand parse_sequence(Function& function, Operand::Kind kind, char close, uint32_t depth);
  void resolve_labels(Function& function);
  void resolve_label(Operand& operand);
  void declare(std::string_view name, Name what);
  const Name* find_in_scope(uint32_t scope, std::string_view name) const;
  bool find_register(std::string_view name, uint32_t& index) const;

  Lexer lexer_;
  ParseError error_;
  bool failed_ = false;
  bool in_call_ = false;  // parentheses contain a list of arguments; false: an expression
  Module module_;
  std::vector<Scope> scopes_;
  uint32_t scope_ = 0;
};

}  // namespace gpuwire::software_device::ptx
