"""Writes one source of several CUDA programs, so that the compiler reads CUDA's headers once for all of them.
usage: join_programs.py OUTPUT PROGRAM.cu...

Every header of the programs is included first. Each program follows in a namespace of its own, where its main() is an
ordinary function; its macros end with it. choose_program.hpp has the main() of them all.
"""

import os
import re
import sys


def includes(path, text):
    """Returns the lines that include the program's headers, wherever the joined source lies."""
    return [f'#include "{os.path.normpath(os.path.join(os.path.dirname(path), header))}"' if quote == '"'
            else f"#include <{header}>"
            for quote, header in re.findall(r'^#include (["<])([^">]+)[">]', text, re.MULTILINE)]


def in_a_namespace(name, path, text):
    macros = sorted(set(re.findall(r"^# *define (\w+)", text, re.MULTILINE)))
    return ["", "#pragma GCC diagnostic push", f"namespace program_{name} {{", f'#include "{path}"',
            f"}}  // namespace program_{name}", "#pragma GCC diagnostic pop", *(f"#undef {macro}" for macro in macros)]


def joined(programs):
    headers, bodies, table = [], [], []
    for path in programs:
        name = os.path.splitext(os.path.basename(path))[0]
        with open(path, encoding="utf-8") as file:
            text = file.read()
        headers += [line for line in includes(path, text) if line not in headers]
        bodies += in_a_namespace(name, path, text)
        table.append(f'{{"{name}", program_{name}::main}}')
    chooser = os.path.join(os.path.dirname(os.path.abspath(__file__)), "choose_program.hpp")
    return "\n".join([*headers, f'#include "{chooser}"', *bodies, "", "int main(int count, char** arguments) {",
                      f"  return choose_program({{{', '.join(table)}}}, count, arguments);", "}", ""])


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(joined([os.path.abspath(path) for path in sys.argv[2:]]))
