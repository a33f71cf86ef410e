#!/usr/bin/env python3
"""Generates the exported functions that are not written by hand, from cuda.h and the names that cuGetProcAddress knows.

- Every function with a per-thread default stream (name_ptds, name_ptsz) calls the function without the suffix, with
  NULL meaning the per-thread stream.
- Every other known name gets a weak definition that returns CUDA_ERROR_NOT_SUPPORTED; a real definition elsewhere
  replaces it.

usage: generate_exports.py PREPROCESSED_CUDA_H PROC_ADDRESS_RULES PER_THREAD_CPP UNSUPPORTED_C
"""
import pathlib
import re
import sys

PER_THREAD_SUFFIX = re.compile(r"_pt[ds][sz]$")
EXTRA_NAMES = ["cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"]  # cudaProfiler.h


def read_prototypes(text):
    """Returns {name: [(type, parameter name)]} for the functions that cuda.h declares under their exported names."""
    prototypes = {}
    for name, parameters in re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;", text):
        parameters = re.sub(r"\s+", " ", parameters).strip()
        prototypes[name] = [] if parameters in ("",
                                                "void") else [split_parameter(each) for each in parameters.split(",")]
    return prototypes


def split_parameter(parameter):
    match = re.fullmatch(r"\s*(.*?[\s*])(\w+)\s*(\[\w*\])?\s*", parameter)
    if not match:
        raise SystemExit(f"cannot read the parameter '{parameter}'")
    return match[1].strip() + ("*" if match[3] else ""), match[2]


def read_symbols(rules):
    """Returns every symbol that cuGetProcAddress may return."""
    symbols = set()
    for line in rules.splitlines():
        if line and not line.startswith("#"):
            name, *steps = line.replace("|", " ").split()
            symbols.update(name + step.lstrip("0123456789") for step in steps)
    return symbols


def emit_per_thread(prototypes):
    out = ['#include "server/software_device/driver/call/driver_state.hpp"', "", 'extern "C" {']
    for name in sorted(prototypes):
        base = PER_THREAD_SUFFIX.sub("", name)
        if base == name:
            continue
        parameters = prototypes[base]
        declared = ", ".join(f"{kind} {each}" for kind, each in parameters)
        passed = ", ".join(each for _, each in parameters)
        out.append(f"CUresult {name}({declared}) {{")
        out.append("  const gpuwire::software_device::PerThreadDefaultStream per_thread;")
        out.append(f"  return {base}({passed});")
        out.append("}")
    return "\n".join(out + ["}", ""])


def emit_unsupported(names):
    body = [
        f'__attribute__((weak)) int {name}(void) {{ return software_device_not_offered("{name}"); }}'
        for name in sorted(names)
    ]
    return "\n".join(["int software_device_not_offered(const char* function);  // refusal.cpp", *body, ""])


def main():
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    header, rules, per_thread, unsupported = map(pathlib.Path, sys.argv[1:])
    prototypes = read_prototypes(header.read_text())
    names = set(prototypes) | read_symbols(rules.read_text()) | set(EXTRA_NAMES)
    written = {name for name in prototypes if PER_THREAD_SUFFIX.search(name)}
    per_thread.write_text(emit_per_thread(prototypes))
    unsupported.write_text(emit_unsupported(names - written))


main()
