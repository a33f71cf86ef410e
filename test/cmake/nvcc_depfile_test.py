"""A CUDA program in a folder whose name has a space is compiled when its headers change, and only then.
usage: nvcc_depfile_test.py --nvcc FILE"""

import argparse
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(one_program NONE)
include("{root}/cmake/NvccDepfile.cmake")
set(output ${{CMAKE_BINARY_DIR}}/program)
gpuwire_nvcc_depfile(depfile ${{output}})
add_custom_command(
  OUTPUT ${{output}}
  COMMAND "{nvcc}" ${{depfile}} -o ${{output}} ${{CMAKE_SOURCE_DIR}}/program.cu
  DEPENDS ${{CMAKE_SOURCE_DIR}}/program.cu
  DEPFILE ${{output}}.d
  VERBATIM)
add_custom_target(all_programs ALL DEPENDS ${{output}})
"""
LIMIT_S = 900


class NvccDepfile(unittest.TestCase):
    nvcc = "nvcc"

    def test_a_program_in_a_folder_with_a_space_is_compiled_again_only_for_a_changed_header(self):
        with tempfile.TemporaryDirectory(prefix="gpuwire two words ") as folder:
            def write(name, text):
                with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                    file.write(text)

            def run(*command):
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                return done.stdout

            write("CMakeLists.txt", PROJECT.format(root=ROOT, nvcc=self.nvcc))
            write("program.cu", '#include "a header.hpp"\nint main() { return kStatus; }\n')
            write("a header.hpp", "constexpr int kStatus = 0;\n")
            run("cmake", "-G", "Ninja", "-S", ".", "-B", "build")
            run("ninja", "-C", "build")
            self.assertIn("no work to do", run("ninja", "-C", "build"))
            write("a header.hpp", "constexpr int kStatus = 7;\n")
            run("ninja", "-C", "build")
            self.assertEqual(subprocess.run([os.path.join(folder, "build", "program")]).returncode, 7)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default=NvccDepfile.nvcc, help="the compiler (%(default)s)")
    arguments, rest = parser.parse_known_args()
    NvccDepfile.nvcc = arguments.nvcc
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
