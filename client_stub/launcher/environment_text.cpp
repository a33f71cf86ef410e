#include "client_stub/launcher/environment_text.hpp"

#include <unistd.h>

namespace gpuwire::launcher {

namespace {

// Quotes with single quotes, in which the shells treat these characters specially: all of them the quote, fish the
// backslash, csh the exclamation mark and the line end.
std::string quoted(std::string_view text, ShellKind shell) {
  std::string out = "'";
  for (char byte : text) {
    if (byte == '\'') out += shell == ShellKind::fish ? "\\'" : "'\\''";
    else if ((byte == '\\' && shell == ShellKind::fish) || ((byte == '!' || byte == '\n') && shell == ShellKind::csh))
      (out += '\\') += byte;
    else out += byte;
  }
  return out + "'";
}

}  // namespace

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; entry && *entry; ++entry) {
    std::string_view text = *entry;
    if (size_t equals = text.find('='); equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

Environment changed(const Environment& before, const Environment& after) {
  Environment out;
  for (const auto& [name, value] : after)
    if (auto old = before.find(name); old == before.end() || old->second != value) out.emplace(name, value);
  return out;
}

std::string commands_of(const Environment& environment, ShellKind shell) {
  std::string text;
  for (const auto& [name, value] : environment) {
    switch (shell) {
      case ShellKind::posix: text += "export " + name + "="; break;
      case ShellKind::fish: text += "set -gx " + name + " "; break;
      case ShellKind::csh: text += "setenv " + name + " "; break;
    }
    text += quoted(value, shell) + ";\n";
  }
  return text;
}

}  // namespace gpuwire::launcher
