#!/usr/bin/env python3
"""Converts proc_address_rules.txt to the C++ table that proc_address.cpp includes.

usage: generate_proc_address_table.py RULES OUTPUT
"""
import pathlib
import re
import sys


def parse_steps(name, words):
    """Returns [(version, symbol)] for words such as '2000' or '3020_v2'."""
    steps = []
    for word in words:
        match = re.fullmatch(r"(\d+)(_\w+)?", word)
        if not match:
            raise SystemExit(f"{name}: cannot read the step '{word}'")
        steps.append((int(match[1]), name + (match[2] or "")))
    if steps != sorted(steps, key=lambda step: step[0]):
        raise SystemExit(f"{name}: the versions do not rise")
    return steps


def parse_rules(text):
    """Returns {name: (legacy steps, per-thread steps)}."""
    rules = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        legacy, bar, per_thread = line.partition("|")
        name, *words = legacy.split()
        if name in rules:
            raise SystemExit(f"{name} stands twice")
        steps = parse_steps(name, words)
        rules[name] = (steps, parse_steps(name, per_thread.split()) if bar else steps)
    return rules


def emit(rules):
    steps_out, names_out, count = [], [], 0
    for name in sorted(rules):
        legacy, per_thread = rules[name]
        ranges = []
        for steps in (legacy,) if legacy is per_thread else (legacy, per_thread):
            ranges.append((count, len(steps)))
            steps_out += [f'    {{{version}, "{symbol}"}},' for version, symbol in steps]
            count += len(steps)
        (first, size), (first_ptds, size_ptds) = ranges[0], ranges[-1]
        names_out.append(f'    {{"{name}", {first}, {size}, {first_ptds}, {size_ptds}}},')
    return "\n".join(
        ["constexpr Step kSteps[] = {", *steps_out, "};", "constexpr Name kNames[] = {", *names_out, "};", ""])


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    output = pathlib.Path(sys.argv[2])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(emit(parse_rules(pathlib.Path(sys.argv[1]).read_text())))


main()
