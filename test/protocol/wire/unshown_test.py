"""The table of characters that are not shown has what the Unicode database says of each that this Python knows."""

import os
import re
import unicodedata
import unittest

HEADER = os.path.join(os.path.dirname(__file__), "..", "..", "..", "protocol", "wire", "terminal_text.hpp")
NEVER_SHOWN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
# What has no property of its own here: fillers and blanks that are letters or symbols, and variation selectors.
EMPTY = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0,
         *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000)}


def table():
    with open(HEADER, encoding="utf-8") as file:
        text = re.search(r"kUnshown\[\] = \{(.*?)\};", file.read(), re.S).group(1)
    return {character for first, last in re.findall(r"\{(0x[0-9a-f]+), (0x[0-9a-f]+)\}", text)
            for character in range(int(first, 16), int(last, 16) + 1)}


def not_shown(character):
    one = chr(character)
    category = unicodedata.category(one)
    return (category in NEVER_SHOWN or (category == "Zs" and one != " ") or
            unicodedata.bidirectional(one) in DIRECTIONS or character in EMPTY or
            character & 0xFFFE == 0xFFFE or 0xFDD0 <= character <= 0xFDEF)


class Table(unittest.TestCase):
    def test_every_assigned_character_is_where_the_database_puts_it(self):
        unshown, wrong = table(), []
        for character in range(0x110000):
            assigned = unicodedata.category(chr(character)) != "Cn" or not_shown(character)
            if assigned and (character in unshown) != not_shown(character):
                wrong.append(f"U+{character:04X}")
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
