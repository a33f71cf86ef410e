"""Rules give the answers of the facts from which they were made, and a different fact is found."""

import unittest

import facts

TOLD = """--- copies
to it, small, early: right
to it, small, late: right
to it, large, early: right
to it, large, late: wrong
from it, small, early: right
from it, small, late: right
from it, large, early: wrong
from it, large, late: wrong
--- ends
one: begun
  again: begun, too
other: begun
  again: over
"""


class Facts(unittest.TestCase):
    def setUp(self):
        self.rules = facts.read_rules(facts.written(TOLD))

    def test_rules_that_were_made_of_facts_say_them(self):
        found = facts.sections(TOLD)
        self.assertEqual(found.keys(), self.rules.keys())
        for section, told in found.items():
            self.assertEqual(facts.differences(self.rules[section], told), [])

    def test_the_rule_of_most_comes_first_and_exceptions_behind_it(self):
        self.assertEqual(self.rules["copies"].rules[0], ("*", "right"))
        self.assertLess(len(self.rules["copies"].rules), 4)

    def test_the_last_rule_that_fits_holds(self):
        rules = facts.read_rules("--- one (3 facts)\nyes\n  *\nno\n  a*\nyes\n  a, b\n")["one"]
        self.assertEqual([rules.answer(name) for name in ("b", "a, c", "a, b")], ["yes", "no", "yes"])

    def test_sections_that_are_answered_alike_have_the_same_rules(self):
        text = facts.written("--- one\na: yes\n--- other\na: yes\n--- third\na: no\n")
        self.assertTrue(text.startswith("--- one (1 facts)\n--- other (1 facts)\nyes\n"), text)
        rules = facts.read_rules(text)
        self.assertEqual([rules[name].answer("a") for name in ("one", "other", "third")], ["yes", "yes", "no"])

    def test_another_answer_and_a_missing_fact_are_told(self):
        told = facts.sections(TOLD.replace("large, late: wrong", "large, late: right", 1).replace("one: begun\n", ""))
        self.assertEqual(facts.differences(self.rules["copies"], told["copies"]),
                         ["to it, large, late: right instead of wrong"])
        self.assertIn("3 facts instead of 4", facts.differences(self.rules["ends"], told["ends"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
