// The main() of a folder's executable, which is made of several programs: it runs the one by whose name it was started,
// or whose name is its first argument.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

class Program {
 public:
  Program(const char* name, int (*main)()) : name(name), main_(main) {}
  Program(const char* name, int (*main)(int, char**)) : name(name), main_of_arguments_(main) {}

  int run(int count, char** arguments) const { return main_ ? main_() : main_of_arguments_(count, arguments); }

  const char* name;

 private:
  int (*main_)() = nullptr;
  int (*main_of_arguments_)(int, char**) = nullptr;
};

inline int choose_program(const std::vector<Program>& programs, int count, char** arguments) {
  for (int name = 0; name < 2 && name < count; ++name) {
    const char* slash = std::strrchr(arguments[name], '/');
    const std::string wanted = slash ? slash + 1 : arguments[name];
    for (const Program& program : programs)
      if (wanted == program.name) return program.run(count - name, arguments + name);
  }
  std::fprintf(stderr, "usage: %s PROGRAM [ARGUMENT...]\nPROGRAM:", arguments[0]);
  for (const Program& program : programs) std::fprintf(stderr, " %s", program.name);
  std::fprintf(stderr, "\n");
  return 2;
}
