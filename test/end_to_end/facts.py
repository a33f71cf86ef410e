"""Facts that a program prints (programs/facts.hpp), and the rules that give a driver's answers to them.

A program prints sections, and in each a line `NAME: ANSWER` for each fact; lines that are indented belong to the one
above. A file of rules has, for each section, the number of facts, answers, and below each answer the names with it, in
which * stands for any text; of several matching rules the last one applies, so that exceptions follow their rule:

    --- SECTION (N facts)
    ANSWER
      *
    ANOTHER ANSWER
      NAME, WITH A *

The rules are generated from a program's output on a GPU: python3 test/end_to_end/facts.py FILE >FILE.rules
"""

import collections
import re
import sys
import typing

TAIL_FIELDS_MAX = 3  # the last fields of a name, each of which a rule may leave open


class Rules(typing.NamedTuple):
    facts: int
    rules: list  # (pattern, answer); the last match applies

    def answer(self, name):
        return next((answer for pattern, answer in reversed(self.rules) if expression(pattern).match(name)), None)


def expression(pattern):
    return re.compile(".*".join(map(re.escape, pattern.split("*"))) + r"\Z")


def facts_of(lines):
    """Yields (name, answer) of each line."""
    parent = ""
    for line in lines:
        name, _, answer = line.partition(": ")
        if line.startswith("  "):
            name = f"{parent} > {name.strip()}"
        else:
            parent = name
        yield name, answer


def sections(text):
    """Returns the facts of each section of a program's output, by the section's name."""
    parts = re.split(r"(?m)^--- (.*)\n", text)
    return {name: list(facts_of(lines.splitlines())) for name, lines in zip(parts[1::2], parts[2::2])}


def read_rules(text):
    """Returns {section: Rules}. Sections with adjacent headings share their rules."""
    found, headings, rules, answer = {}, [], [], None
    for line in text.splitlines():
        if heading := re.fullmatch(r"--- (.*) \((\d+) facts\)", line):
            if rules:
                headings, rules = [], []
            headings.append((heading[1], int(heading[2])))
            found[heading[1]] = Rules(int(heading[2]), rules)
            found.update({name: Rules(count, rules) for name, count in headings})
        elif line.startswith("  "):
            rules.append((line[2:], answer))
        elif not line.startswith("#"):
            answer = line
    return found


def differences(rules, facts):
    """Returns the differences of a section's facts from the rules, as lines."""
    lines = [f"{name}: {answer} instead of {rules.answer(name)}" for name, answer in facts
             if answer != rules.answer(name)]
    if len(facts) != rules.facts:
        lines.append(f"{len(facts)} facts instead of {rules.facts}")
    return lines


# --- making rules ----------------------------------------------------------------------------------------------------


def patterns_of(names):
    """Returns patterns for the names, the shortest for each matched set: a name's beginning, with some of its last
    fields left open."""
    patterns = set(names)
    for name in names:
        fields = name.split(", ")
        for beginning in range(len(fields) + 1):
            for tail in range(min(TAIL_FIELDS_MAX, len(fields) - beginning) + 1):
                for chosen in range(1 << tail):
                    last = [field if chosen >> place & 1 else "*" for place, field in enumerate(fields[-tail:])
                            ] if tail else []
                    patterns.add(re.sub(r"\*+", "*", ", ".join(fields[:beginning]) + "*" +
                                        "".join(", " + field for field in last)))
    shortest = {}
    for pattern in sorted(patterns, key=lambda pattern: (len(pattern), pattern)):
        fits = expression(pattern)
        shortest.setdefault(frozenset(place for place, name in enumerate(names) if fits.match(name)), pattern)
    shortest.pop(frozenset(), None)
    return shortest


def make_rules(facts):
    """Returns a rule for the most frequent answer, then repeatedly the rule that corrects most of the other names."""
    answers = dict(facts)
    if any(answers[name] != answer for name, answer in facts):
        raise ValueError("two facts of one name")
    names, right = list(answers), list(answers.values())
    patterns = patterns_of(names)
    rules = [("*", collections.Counter(right).most_common(1)[0][0])]
    told = [rules[0][1]] * len(names)
    while told != right:
        best = None
        for fits, pattern in patterns.items():
            wrong = collections.Counter(right[place] for place in fits if told[place] != right[place])
            if not wrong:
                continue
            answer = wrong.most_common(1)[0][0]
            spoilt = sum(told[place] == right[place] != answer for place in fits)
            worth = (wrong[answer] - spoilt, -len(pattern), pattern)
            if best is None or worth > best[0]:
                best = (worth, fits, pattern, answer)
        _, fits, pattern, answer = best
        rules.append((pattern, answer))
        for place in fits:
            told[place] = answer
    return rules


def written(text):
    """Returns the file of rules of a program's output."""
    of = collections.OrderedDict()  # sections by their rules
    for name, facts in sections(text).items():
        of.setdefault(tuple(make_rules(facts)), []).append(f"--- {name} ({len(facts)} facts)")
    lines = []
    for rules, headings in of.items():
        lines += headings
        before = None
        for pattern, answer in rules:
            if answer != before:
                lines.append(answer)
            lines.append("  " + pattern)
            before = answer
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(written(file.read()))
