"""Common code of the Python programs: a comparison with a named tolerance, and the exit for a missing package."""

import importlib
import sys

import numpy

NOT_INSTALLED = 77  # the exit code by which test/gpu/run knows that a program could not be tried


def close(name, value, expected, tolerance=1e-4):
    """Compares arrays by the norm of their difference relative to the norm of the expected values; prints "NAME: right,
    within
    TOLERANCE" or ends the program."""
    value, expected = numpy.asarray(value, numpy.float64), numpy.asarray(expected, numpy.float64)
    error = numpy.linalg.norm(value - expected) / max(numpy.linalg.norm(expected), 1e-300)
    right = value.shape == expected.shape and error <= tolerance
    print(f"{name}: {'right' if right else 'WRONG'}, within {tolerance:g}", flush=True)
    if not right:
        sys.exit(f"{name}: relative error {error:g}, shapes {value.shape} and {expected.shape}")


def needs(module):
    """Returns the module, or ends the program with the exit code for a missing package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"NOT INSTALLED: {module} ({error})")
        sys.exit(NOT_INSTALLED)
