"""The contrast of the page's colours, computed from its style sheet: WCAG 2.2, 1.4.3 (text, 4.5:1) and 1.4.11 (borders
of controls and the focus, 3:1), light and dark. `test/end_to_end/web_browser_test.py` measures it in a browser, too."""

import os
import re
import unittest

SHEET = os.path.join(os.environ["GPUWIRE_SOURCE"], "server", "web", "assets", "page.css")
BACKS = ("back", "raised")
TEXT_MIN, CONTROL_MIN = 4.5, 3
DECORATION = {"line"}  # lines between rows, which nobody needs in order to read them


def luminance(colour):
    """Returns the relative luminance of "#rrggbb"."""
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class Style(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(SHEET, encoding="utf-8") as file:
            cls.sheet = file.read()
        roots = re.findall(r":root \{(.*?)\}", cls.sheet, re.DOTALL)
        cls.light, cls.dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", root)) for root in roots)
        cls.rules = re.sub(r":root \{.*?\}", "", cls.sheet, flags=re.DOTALL)

    def used_by(self, *properties):
        """Returns the names of the colours that these properties have in any rule."""
        return {name for words in re.findall(rf"(?<![\w-])(?:{'|'.join(properties)}):([^;}}]*)", self.rules)
                for name in re.findall(r"var\(--(\w+)\)", words)}

    def assert_contrast(self, names, least):
        for theme, colours in (("light", self.light), ("dark", self.dark)):
            for name in names:
                for back in BACKS:
                    with self.subTest(theme=theme, colour=name, back=back):
                        self.assertGreaterEqual(contrast(colours[name], colours[back]), least)

    def test_the_formula_gives_the_known_extremes(self):
        self.assertEqual(contrast("#000000", "#ffffff"), 21)
        self.assertAlmostEqual(contrast("#777777", "#ffffff"), 4.48, 2)

    def test_both_settings_have_the_same_colours_and_rules_have_no_other_ones(self):
        self.assertEqual(set(self.light), set(self.dark))
        self.assertNotRegex(self.rules, r"#[0-9a-f]{3,8}\b|rgb|hsl|opacity|filter")
        for name in re.findall(r"(?<![\w-])color: (?!var)([\w-]+)", self.rules):
            self.fail(f"a colour without a name: {name}")
        self.assertEqual(self.used_by("background"), set(BACKS))
        self.assertLessEqual(set(re.findall(r"var\(--(\w+)\)", self.rules)), set(self.light))

    def test_each_colour_of_text_is_read_on_each_background(self):
        names = self.used_by("color")
        self.assertEqual(names, {"text", "quiet", "link", "bad", "good"})
        self.assert_contrast(names, TEXT_MIN)

    def test_borders_of_controls_and_the_focus_are_seen_on_each_background(self):
        names = self.used_by("border", "border-bottom", "border-color", "outline") - DECORATION
        self.assertEqual(names, {"quiet", "bad", "link"})
        self.assert_contrast(names, CONTROL_MIN)


if __name__ == "__main__":
    unittest.main()
