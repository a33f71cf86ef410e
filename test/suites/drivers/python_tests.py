#!/usr/bin/env python3
"""Tests written in Python, of an installed package or in a folder: python_tests.py --package numba.cuda.tests, or
--folder FOLDER. A unit is a file of tests, a case a test. unittest runs those of a package, by the names of its
modules, which pytest would make up from the files' folders. Those of a folder are run by pytest where it is installed;
a file of many lines is several units there, each a part of its cases, and of each unit at most --cases are run. Which
those are is the same on both sides and in every run.
"""

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import random
import re
import sys
import unittest

from driver import Unavailable, serve

DISTRIBUTIONS = ("numba", "numba-cuda", "cupy-cuda13x", "cuda-python", "cuda-bindings", "cuda-core", "triton", "torch",
                 "pytest")
# Fixtures that pytest-xdist, which is for one process a core, or a folder's own options would change.
PYTEST_OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--capture=sys", "--tb=line",
                  "--continue-on-collection-errors"]
PART_LINES = 250  # of a file, for each part of its cases
PART = re.compile(r"(.*) part (\d+) of (\d+)")
SEED = 1
# Errors that persist in a process, so that all later tests fail.
LASTING = re.compile(r"illegal memory access|ILLEGAL_ADDRESS|IllegalAddress|unspecified launch failure|LAUNCH_FAILED|"
                     r"device-side assert|misaligned address|MISALIGNED_ADDRESS|illegal instruction|CUDA_ERROR_ASSERT")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that a suite imports before its first test, and that few of its tests use. A missing module is replaced,
    and tests that use it are skipped."""

    def __init__(self, names):
        self.names = [name for name in names if not importlib.util.find_spec(name)]

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module):
        def missing(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": skip})

        def skip(*_, **__):
            raise unittest.SkipTest(f"{module.__name__} is not installed")

        module.__getattr__ = missing


def restore(alias):
    """Names that the suite uses and a newer release of a package has removed: "numpy.row_stack=numpy.vstack"."""
    old, _, new = alias.partition("=")
    (old_module, _, old_name), (new_module, _, new_name) = old.rpartition("."), new.rpartition(".")
    try:
        there, source = importlib.import_module(old_module), importlib.import_module(new_module)
    except ImportError:
        return
    if not hasattr(there, old_name):
        setattr(there, old_name, getattr(source, new_name))


def versions():
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def folder_of(package):
    """Returns the folder of an installed package's files."""
    try:
        module = importlib.import_module(package)
    except ImportError as missing:
        raise Unavailable(f"{package} is not there: {missing}") from missing
    return list(module.__path__)[0]


def test_files(folder):
    """Returns the paths of test files below a folder, relative to it."""
    found = []
    for here, folders, files in os.walk(folder):
        folders.sort()
        found += [os.path.relpath(os.path.join(here, name), folder) for name in sorted(files)
                  if name.startswith("test_") and name.endswith(".py")]
    return found


def parts(folder, file):
    """A file's units."""
    with open(os.path.join(folder, file), "rb") as text:
        count = max(1, text.read().count(b"\n") // PART_LINES)
    return [file] if count == 1 else [f"{file} part {number} of {count}" for number in range(1, count + 1)]


class Tests:
    def __init__(self, package, folder, cases_max):
        self.package, self.folder = package, os.path.abspath(folder) if folder else folder_of(package)
        self.versions, self.cases_max = versions(), cases_max
        self.pytest = not package and bool(importlib.util.find_spec("pytest"))
        self.files = test_files(self.folder)
        if not self.files:
            raise Unavailable(f"{package or folder} has no files of tests")

    def units(self):
        return [unit for file in self.files for unit in parts(self.folder, file)] if self.pytest else self.files

    def run(self, unit, recorder):
        os.chdir(self.folder)
        if self.pytest:
            self.by_pytest(unit, recorder)
        else:
            self.by_unittest(unit, recorder)

    def by_pytest(self, unit, recorder):
        import pytest
        part = PART.fullmatch(unit)
        file, number, count = (part[1], int(part[2]), int(part[3])) if part else (unit, 1, 1)
        chosen = Chosen(recorder, number, count, self.cases_max)
        code = pytest.main([os.path.join(self.folder, file), *PYTEST_OPTIONS], plugins=[Telling(recorder), chosen])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED,
                        pytest.ExitCode.INTERRUPTED):
            recorder.end("(collection)", f"error pytest {code}")

    def by_unittest(self, unit, recorder):
        loader = unittest.TestLoader()
        if self.package:
            name = self.package + "." + unit[:-3].replace(os.sep, ".")
        else:
            sys.path.insert(0, os.path.dirname(os.path.join(self.folder, unit)))
            name = os.path.basename(unit)[:-3]
        try:
            importlib.import_module(name)
        except unittest.SkipTest as skipped:
            recorder.end("(import)", "skip", reason=str(skipped))
            return
        except Exception as error:
            recorder.end("(import)", f"error {type(error).__name__}", reason=str(error))
            return
        loader.loadTestsFromName(name).run(TellingResult(recorder))


class TellingResult(unittest.TestResult):
    """A unittest result that reports each test as it runs."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder, self.found = recorder, None

    def startTest(self, test):
        super().startTest(test)
        self.found = ("pass", "")
        self.recorder.begin(test.id())

    def stopTest(self, test):
        super().stopTest(test)
        self.recorder.end(test.id(), *self.found)
        self.found = None

    def addFailure(self, test, error):
        self.note(test, "fail", error[1])

    def addError(self, test, error):
        self.note(test, f"error {error[0].__name__}", error[1])

    def addSkip(self, test, reason):
        self.note(test, "skip", reason)

    def addExpectedFailure(self, test, error):
        self.note(test, "expected failure", error[1])

    def addUnexpectedSuccess(self, test):
        self.note(test, "unexpected success", "")

    def addSubTest(self, test, subtest, error):
        if error:
            self.note(test, "fail", error[1])

    def note(self, test, outcome, reason):
        if self.found is None:  # of a class or a module, outside of any test
            self.recorder.end(str(test), outcome, reason=str(reason))
            return
        self.found = (outcome, str(reason))


class Chosen:
    """A plugin of pytest that selects one of `count` parts of a file's cases, and a sample of this part."""

    def __init__(self, recorder, number, count, cases_max):
        self.recorder, self.number, self.count, self.cases_max = recorder, number, count, cases_max

    def pytest_collection_modifyitems(self, items):
        places = list(range(len(items)))
        random.Random(SEED).shuffle(places)
        mine = places[self.number - 1::self.count]
        self.recorder.left_out = max(0, len(mine) - self.cases_max)
        items[:] = [items[place] for place in sorted(mine[:self.cases_max])]


class Telling:
    """A plugin of pytest that reports each test as it runs."""

    def __init__(self, recorder):
        self.recorder, self.found = recorder, {}

    def pytest_runtest_logstart(self, nodeid, location):
        self.found[nodeid] = ("pass", "")
        self.recorder.begin(self.name(nodeid))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            text = str(report.longrepr).strip()
            reason = text.splitlines()[-1:] or [""]
            self.recorder.spent = self.recorder.spent or bool(LASTING.search(text))
            self.found[report.nodeid] = ("fail" if report.when == "call" else f"error in {report.when}", reason[0])
        elif report.skipped:
            expected = hasattr(report, "wasxfail")
            self.found[report.nodeid] = ("expected failure" if expected else "skip", self.skip_reason(report))

    def pytest_runtest_logfinish(self, nodeid, location):
        outcome, reason = self.found.pop(nodeid)
        self.recorder.end(self.name(nodeid), outcome, reason=reason)

    def pytest_collectreport(self, report):
        if report.failed:
            last = str(report.longrepr).strip().splitlines()[-1:] or [""]
            self.recorder.end(f"(collection) {self.name(report.nodeid)}", "error", reason=last[0])

    @staticmethod
    def skip_reason(report):
        return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or "")

    @staticmethod
    def name(nodeid):
        return nodeid.partition("::")[2] or nodeid


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package")
    parser.add_argument("--folder")
    parser.add_argument("--may-be-absent", nargs="*", default=[], metavar="MODULE")
    parser.add_argument("--restore", nargs="*", default=[], metavar="OLD=NEW")
    parser.add_argument("--cases", type=int, default=sys.maxsize, metavar="N", help="of a unit at most (pytest)")
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args()
    if not (chosen.package or chosen.folder):
        parser.error("--package or --folder")
    sys.meta_path.append(Absent(chosen.may_be_absent))
    for each in chosen.restore:
        restore(each)
    serve(lambda: Tests(chosen.package, chosen.folder, chosen.cases))
