#!/usr/bin/env python3
"""Tests the selection of programs with invented Makefiles and sources."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import programs  # noqa: E402

HEAD = "program = main\n\n$(program): main.o\n\tnvcc main.o -o main\n\nclean:\n\trm main\n\n"


class Arguments(unittest.TestCase):
    def of(self, *recipe):
        return programs.arguments_of(HEAD + "run: $(program)\n" + "".join(f"\t{line}\n" for line in recipe))

    def test_numbers_and_options_are_taken_as_they_stand(self):
        self.assertEqual(self.of("$(LAUNCHER) ./$(program) 10000 -0.5 1e-3"), ["10000", "-0.5", "1e-3"])
        self.assertEqual(self.of("$(LAUNCHER) ./$(program)"), [])
        self.assertEqual(self.of("./main --i=100 -s 5"), ["--i=100", "-s", "5"])

    def test_a_program_that_reads_a_file_takes_no_part(self):
        for words in ("../data/graph.txt", "input.txt 3", "swck.in", "test/3"):
            self.assertIsNone(self.of(f"$(LAUNCHER) ./$(program) {words}"), words)

    def test_the_first_of_several_runs_is_taken(self):
        self.assertEqual(self.of("#$(LAUNCHER) ./$(program) 1", "$(LAUNCHER) ./$(program) 2", "./$(program) 3"), ["2"])
        self.assertIsNone(self.of("$(LAUNCHER) ./$(program) 2", "./$(program) file.txt"))

    def test_a_recipe_of_other_commands_takes_no_part(self):
        self.assertIsNone(self.of("$(LAUNCHER) ./$(program) 1", "diff a b"))
        self.assertIsNone(self.of("cd release && ./main 1"))
        self.assertIsNone(self.of("$(LAUNCHER) ./$(program) 1 > out"))
        self.assertIsNone(self.of("mpirun -n 2 ./$(program) 1"))

    def test_a_makefile_that_runs_nothing_is_none(self):
        self.assertIsNone(programs.arguments_of(HEAD))


class Chosen(unittest.TestCase):
    def setUp(self):
        self.clone = tempfile.TemporaryDirectory()
        self.addCleanup(self.clone.cleanup)

    def program(self, name, source, words="1"):
        folder = os.path.join(self.clone.name, "src", name)
        os.makedirs(folder)
        for file, text in (("main.cu", source), ("Makefile", f"{HEAD}run: $(program)\n\t./$(program) {words}\n")):
            with open(os.path.join(folder, file), "w", encoding="utf-8") as out:
                out.write(text)

    def test_cuda_programs_that_say_whether_they_passed_are_chosen(self):
        self.program("first-cuda", 'printf("%s\\n", ok ? "PASS" : "FAIL");', "10 20")
        self.program("second-cuda", 'printf("Verification failed\\n");')
        self.program("silent-cuda", "// it would FAIL\nint main() {}")
        self.program("first-hip", 'printf("PASS\\n");')
        found = programs.chosen(self.clone.name)
        self.assertEqual([(name, arguments) for name, _, arguments in found], [("first", ["10", "20"]),
                                                                               ("second", ["1"])])
        self.assertEqual(programs.chosen(self.clone.name, "second")[0][0], "second")


if __name__ == "__main__":
    unittest.main()
