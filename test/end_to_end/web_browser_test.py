"""The web page in a real Chromium: everything by keyboard, contrast, live updates, ending a session, without scripts,
dark, on a phone; with hostile names and 200 sessions; over HTTPS with a certificate; behind a proxy."""

import json
import os
import shutil
import subprocess
import sys
import unittest

from chromium import Chromium
from support import BUILD, HERE, PROGRAMS, RUN_LIMIT_SECONDS, command, wait_until
import web_page_test
import web_proxy_test
import web_tls_test

sys.path.insert(0, os.path.join(HERE, "..", "hostile"))
import attackers  # noqa: E402

# The folder for pictures of each view, if set; the documents' pictures are made this way.
PICTURES = os.environ.get("GPUWIRE_WEB_PICTURES", "")
LEFT_OUT = 77
WITHIN_THE_WINDOW = "document.documentElement.scrollWidth <= window.innerWidth"
# Whether no table has to be scrolled sideways.
WHOLE_TABLES = '[...document.querySelectorAll(".scroll")].every(one => one.scrollWidth <= one.clientWidth)'
VIEWS = ("overview", "history", "tenants", "server")
RUNNING, WAITING, DEVICES = 120, 80, 8

# The elements at which the Tab key stops, in order, each by a name that an update of the page does not change.
STOPS = """(() => {
    window.nameOf = one => [one.tagName, one.getAttribute("aria-label") || one.getAttribute("href") || one.id ||
                            one.textContent.trim()].join(" ");
    return [...document.querySelectorAll("a[href], button, input, [tabindex]")].filter(
        one => one.type !== "hidden" && one.tabIndex >= 0).map(window.nameOf);
})()"""
# The element that has the focus: its name, whether it has an outline, and whether it is in the window and uncovered.
FOCUSED = """(() => {
    const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
    const left = Math.max(box.left, 0), right = Math.min(box.right, window.innerWidth);
    const top = Math.max(box.top, 0), bottom = Math.min(box.bottom, window.innerHeight);
    const there = left < right && top < bottom ? document.elementFromPoint((left + right) / 2, (top + bottom) / 2) : null;
    const fits = box.width > window.innerWidth || box.left >= 0 && box.right <= window.innerWidth;
    return {name: window.nameOf(one), outlined: style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2,
            seen: fits && there !== null && (one.contains(there) || there.contains(one))};
})()"""
# The texts whose contrast with what is behind them is below 4.5:1 (WCAG 2.2, 1.4.3), and how many texts there are.
CONTRAST = """(() => {
    const parts = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => {
        const [r, g, b] = parts(colour).map(x => x / 255).map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const clear = colour => parts(colour)[3] === 0;
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), wrong = [];
    let count = 0;
    while (texts.nextNode()) {
        const one = texts.currentNode.parentElement;
        if (!texts.currentNode.textContent.trim() || one.closest(".unseen, noscript") || !one.checkVisibility()) continue;
        let back = one;
        while (clear(getComputedStyle(back).backgroundColor)) back = back.parentElement;
        const two = [getComputedStyle(one).color, getComputedStyle(back).backgroundColor].map(light).sort((a, b) => b - a);
        ++count;
        if ((two[0] + .05) / (two[1] + .05) < 4.5) wrong.push(one.outerHTML);
    }
    return [count, wrong];
})()"""


class Looking:
    """A visitor with a Chromium, `self.chromium`, at the page of a web_page_test.Page."""

    def open(self, path):
        self.chromium.open(f"{self.SCHEME}://{self.address}/{path}")

    def sign_in_by_keyboard(self, secret):
        self.open("sign-in")
        self.chromium.run('document.getElementById("secret").focus()')
        self.chromium.ask("Input.insertText", text=secret.strip())
        self.chromium.press("Enter", 13)
        self.chromium.wait_for('!location.pathname.endsWith("/sign-in") || document.getElementById("wrong") !== null',
                               "an answer to the sign-in")

    def wait_for_text(self, text):
        self.chromium.wait_for(f"document.body.innerText.includes({json.dumps(text)})", text)

    def picture(self, name):
        if PICTURES:
            self.chromium.picture(os.path.join(PICTURES, f"web_page_{name}.png"))

    def assert_quiet(self):
        """Checks that no script had an error and the content policy forbade nothing."""
        self.assertEqual(self.chromium.messages, [])

    def end_by_keyboard(self, program):
        """Ends the only session of the overview, which this program has."""
        self.chromium.run('document.querySelector("a[id^=end-]").focus()')
        self.chromium.press("Enter", 13)
        self.wait_for_text("Its program loses its GPU at once.")
        self.chromium.run('document.querySelector("button.danger").click()')
        self.chromium.wait_for('location.pathname.endsWith("/overview")', "the overview")
        self.wait_for_text("None of your sessions runs.")
        self.assertNotEqual(program.wait(), 0)


class BrowsingPage(Looking, web_page_test.Page):
    @classmethod
    def setUpClass(cls):
        cls.chromium = Chromium()
        cls.addClassCleanup(cls.chromium.close)
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.chromium.messages.clear()
        self.chromium.look()
        self.chromium.ask("Network.clearBrowserCookies")


class Browsing(BrowsingPage):
    tenant_keys = {**web_page_test.Page.tenant_keys, "anna": 'budget = "200h/month"', "carl": 'budget = "50h/month"'}

    @property
    def page_keys(self):
        return web_page_test.Page.page_keys + f'budget_file = "{self.audit}.budgets"\n'

    def test_a_wrong_token_is_refused_in_words_and_a_right_one_lets_in(self):
        self.sign_in_by_keyboard("a guess")
        self.assertIn("Not signed in", self.chromium.run('document.getElementById("wrong").textContent'))
        self.picture("sign_in")
        self.chromium.messages.clear()  # the status of the refusal
        self.sign_in_by_keyboard(self.secret_of("anna"))
        self.wait_for_text("Signed in as tenant anna")
        self.assertEqual(self.chromium.run("document.cookie"), "")
        self.wait_for_text("These figures are live.")
        self.assert_quiet()

    def test_a_session_appears_by_itself_with_its_name_as_text_and_is_ended_by_a_link_and_a_button(self):
        path = os.path.join(self.folder.name, web_page_test.HOSTILE)
        shutil.copy(os.path.join(PROGRAMS, "neighbour"), path)
        self.sign_in_by_keyboard(self.secret_of("anna"))
        self.wait_for_text("None of your sessions runs.")
        program = subprocess.Popen(command(self.server.address, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment("anna"))
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assert_works(program)
        self.wait_for_text("<img src=x onerror=alert(1)>")
        self.assertEqual(self.chromium.run('document.querySelectorAll("img").length'), 0)
        self.end_by_keyboard(program)
        self.assert_quiet()

    def test_an_element_keeps_the_focus_when_its_part_is_replaced(self):
        program = self.start_as("anna")
        self.assert_works(program)
        self.sign_in_by_keyboard(self.secret_of("anna"))
        self.chromium.wait_for('document.querySelector("a[id^=end-]") !== null', "the session's link")
        self.chromium.run('window.first = document.querySelector("a[id^=end-]"); window.first.focus()')
        self.chromium.wait_for("!document.contains(window.first)", "the part to be replaced")
        self.assertEqual(self.chromium.run("document.activeElement.id"), self.chromium.run("window.first.id"))
        self.assert_passes(program)

    def test_without_scripts_every_view_is_there_and_says_of_when_it_is(self):
        self.chromium.look(scripts=False)
        self.sign_in_by_keyboard(self.secret_of("anna"))
        for path in VIEWS:
            self.open(path)
            self.chromium.wait_for(f'location.pathname === "/{path}"', path)
            self.wait_for_text("load it again for newer ones")

    def test_every_view_fits_a_desk_and_a_phone_in_light_and_in_dark(self):
        first = self.start_as("anna")
        self.assert_works(first)
        carl = self.start_as("carl")
        self.assertIn("place 1 of 1", carl.stderr.readline())
        self.assert_passes(first)
        self.assert_passes(carl)
        wait_until(lambda: len(self.audited("ended")) == 2, RUN_LIMIT_SECONDS, "the ends in the audit log")
        anna = self.start_as("anna")
        self.assert_works(anna)
        ben = self.start_as("ben")
        self.assertIn("place 1 of 1", ben.stderr.readline())
        self.sign_in_by_keyboard(self.code())
        for width, height, device in ((1280, 900, "desk"), (390, 844, "phone")):
            for dark in (False, True):
                self.chromium.look(width, height, dark)
                for path in VIEWS:
                    self.open(path)
                    self.chromium.wait_for(f'document.querySelector("main[data-view={path}]") !== null', path)
                    self.assertTrue(self.chromium.run(WITHIN_THE_WINDOW), (path, device))
                    if path == "history":
                        self.wait_for_text("the GPUs have reached their limit of sessions")
                    if device == "desk":
                        self.assertTrue(self.chromium.run(WHOLE_TABLES), path)
                    back = self.chromium.run("getComputedStyle(document.body).backgroundColor")
                    self.assertEqual(back == "rgb(255, 255, 255)", not dark, back)
                    self.picture(f"{path}_{device}_{'dark' if dark else 'light'}")
        self.assert_quiet()
        ben.kill()
        self.assert_passes(anna)

    def test_the_skip_link_is_the_first_stop_of_the_keyboard_and_leads_to_the_content(self):
        self.sign_in_by_keyboard(self.secret_of("anna"))
        self.chromium.run("document.body.focus()")
        self.chromium.press("Tab", 9)
        self.assertEqual(self.chromium.run("document.activeElement.className"), "skip")
        self.chromium.press("Enter", 13)
        self.chromium.wait_for('location.hash === "#main"', "the content")

    def test_every_text_has_enough_contrast_in_light_and_in_dark(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        for dark in (False, True):
            self.chromium.look(dark=dark)
            self.chromium.ask("Network.clearBrowserCookies")
            self.sign_in_by_keyboard("a guess")
            self.assert_contrast("sign-in, refused")
            self.sign_in_by_keyboard(self.secret_of("anna"))
            for path in VIEWS:
                self.open(path)
                self.chromium.wait_for(f'document.querySelector("main[data-view={path}]") !== null', path)
                self.assert_contrast(path)
            number, = self.sessions(self.signed_in("anna"))
            self.open(f"end?session={number}")
            self.wait_for_text("Its program loses its GPU at once.")
            self.assert_contrast("end")
        self.assert_passes(anna)

    def assert_contrast(self, what):
        count, wrong = self.chromium.run(CONTRAST)
        self.assertGreater(count, 5, what)
        self.assertEqual(wrong, [], what)


class Keyboard(BrowsingPage):
    """Everything without a pointer."""

    def press(self, key):
        self.chromium.press(key, {"Tab": 9, "Enter": 13}[key])

    def focused(self):
        """Returns the name of what has the focus, once it is seen: the link that skips moves into the window."""
        self.chromium.run(STOPS)
        found = []

        def seen():
            found[:] = [self.chromium.run(FOCUSED)]
            return found[0]["seen"] and found[0]["outlined"]

        try:
            wait_until(seen, RUN_LIMIT_SECONDS, "what has the focus is seen")
        except AssertionError as late:
            raise AssertionError(f"{late}: {found}") from None
        return found[0]["name"]

    def go_to(self, name):
        """Presses Tab until the focus is there; returns the stops on the way."""
        way = []
        while not way or name not in way[-1]:
            self.assertLess(len(way), 50, way)
            self.press("Tab")
            way.append(self.focused())
        return way

    def wait_for_path(self, path):
        self.chromium.wait_for(f'location.pathname === "/{path}" && document.readyState === "complete"', path)

    def test_tab_stops_at_everything_that_can_be_used_in_order_each_time_visibly(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        ben = self.start_as("ben")
        self.assertIn("place 1 of 1", ben.stderr.readline())
        self.sign_in_by_keyboard(self.code())
        for width, height in ((1280, 900), (390, 844)):
            self.chromium.look(width, height)
            for path in VIEWS:
                self.open(path)
                self.wait_for_text("These figures are live.")
                way = self.go_to("Pause")
                self.assertEqual(way[0], "A #main")
                self.press("Enter")
                self.wait_for_text("These figures are paused.")
                expected = self.chromium.run(STOPS)
                while len(way) < len(expected):
                    self.press("Tab")
                    way.append(self.focused())
                self.assertEqual(way, [name.replace("Resume", "Pause") for name in expected])
                if path == "overview":
                    self.assertEqual(sum(name.startswith("A end?session=") for name in way), 2, way)
        ben.kill()
        self.assert_passes(anna)

    def test_a_visitor_does_everything_by_tab_and_enter(self):
        program = self.start_as("anna")
        self.assert_works(program)
        self.open("sign-in")
        self.go_to("secret")
        self.chromium.ask("Input.insertText", text=self.secret_of("anna").strip())
        self.press("Tab")
        self.assertEqual(self.focused(), "BUTTON Sign in")
        self.press("Enter")
        self.wait_for_path("overview")
        for path in (*VIEWS[1:], VIEWS[0]):
            self.go_to(f"A {path}")
            self.press("Enter")
            self.wait_for_path(path)
        self.assertEqual(self.go_to("#main"), ["A #main"])
        self.press("Enter")
        self.chromium.wait_for('location.hash === "#main"', "the content")
        self.assertEqual(self.go_to("Pause"), ["BUTTON Pause"])  # the link has skipped the header
        for ends, button in ((False, "A overview"), (True, "BUTTON End session")):
            self.go_to("A end?session=")
            self.press("Enter")
            self.wait_for_path("end")
            self.go_to(button)
            self.press("Enter")
            self.wait_for_path("overview")
            if not ends:
                self.assertIsNone(program.poll())
        self.wait_for_text("None of your sessions runs.")
        self.assertNotEqual(program.wait(), 0)
        self.go_to("BUTTON Sign out")
        self.press("Enter")
        self.wait_for_path("sign-in")
        self.assert_quiet()


class Crowd(Looking, web_page_test.Page):
    """Two hundred sessions of a real server, whose workers are simulated: programs of their own would take the memory
    of a large machine."""

    page_keys = f"sessions_max = {RUNNING}\n"
    server_options = ("--worker", os.path.join(BUILD, "test_bin", "gpuwire_simulated_worker"))

    def start_server(self):
        os.environ["GPUWIRE_TEST_DEVICES"] = str(DEVICES)
        self.addCleanup(os.environ.pop, "GPUWIRE_TEST_DEVICES")
        super().start_server()

    def log_in(self, token):
        link, word, text = attackers.log_in(self.server.address, token.encode())
        self.addCleanup(link.close)
        self.assertIn(word, (attackers.ADMITTED, attackers.QUEUED), text)

    def test_two_hundred_sessions_are_shown_run_and_wait_on_a_desk_and_a_phone(self):
        self.chromium = Chromium()
        self.addCleanup(self.chromium.close)
        tokens = [self.secret_of(tenant).split()[-1] for tenant in self.tenant_keys]
        for number in range(RUNNING + WAITING):
            self.log_in(tokens[number % len(tokens)])
        for width, height in ((1280, 900), (390, 844)):
            self.chromium.look(width, height)
            self.chromium.ask("Network.clearBrowserCookies")
            self.sign_in_by_keyboard(self.code())
            for part, count in (("sessions", RUNNING), ("queue", WAITING)):
                self.chromium.wait_for(f'document.querySelectorAll("#{part} tbody tr").length === {count}', part)
            self.wait_for_text("These figures are live.")
            self.assertTrue(self.chromium.run(WITHIN_THE_WINDOW))
            for path in VIEWS[1:]:
                self.open(path)
                self.chromium.wait_for(f'document.querySelector("main[data-view={path}]") !== null', path)
                self.assertTrue(self.chromium.run(WITHIN_THE_WINDOW), path)
        # Each session's own number is there, and the last place of the queue.
        self.open("overview")
        self.chromium.wait_for(f'document.querySelectorAll("a[id^=end-]").length === {RUNNING + WAITING}', "every link")
        self.assertEqual(self.chromium.run('document.querySelector("#queue tbody tr:last-child th").textContent'),
                         str(WAITING))
        self.assert_quiet()


class BrowsingBehindProxy(Looking, web_proxy_test.ProxyPage):
    def open(self, path):
        self.chromium.open(f"https://{self.proxy.address}{self.PATH}{path}")

    def test_a_visitor_signs_in_sees_a_session_appear_and_ends_it_below_the_proxys_path(self):
        self.chromium = Chromium(trusted=self.certificate)
        self.addCleanup(self.chromium.close)
        self.chromium.look()
        self.sign_in_by_keyboard(self.secret_of("anna"))
        self.wait_for_text("None of your sessions runs.")
        self.wait_for_text("These figures are live.")
        program = self.start_as("anna")
        self.assert_works(program)
        self.chromium.wait_for('document.querySelector("a[id^=end-]") !== null', "the session's link")
        self.end_by_keyboard(program)
        self.assertTrue(self.chromium.run("location.pathname").startswith(self.PATH))
        self.assert_quiet()


class BrowsingOverHttps(Looking, web_tls_test.TlsPage):
    def browse(self, certificate=None):
        self.chromium = Chromium(trusted=self.page_certificate, own=certificate and self.path(certificate))
        self.addCleanup(self.chromium.close)
        self.chromium.look()
        self.open("overview")

    def test_a_tenants_certificate_signs_in_with_the_first_page_which_is_live_and_ends_a_session(self):
        program = self.start_as("anna")
        self.assert_works(program)
        self.browse("anna.pem")
        self.wait_for_text("Signed in as tenant anna")
        self.wait_for_text("These figures are live.")
        self.chromium.wait_for('document.querySelector("a[id^=end-]") !== null', "the session's link")
        self.assertEqual(self.chromium.run("[window.isSecureContext, document.cookie]"), [True, ""])
        self.picture("by_certificate")
        self.end_by_keyboard(program)
        self.assert_quiet()

    def test_a_user_who_has_signed_out_signs_in_again_with_the_certificate_by_a_button(self):
        self.browse("anna.pem")
        self.wait_for_text("Signed in as tenant anna")
        self.chromium.run('document.querySelector(".who button").click()')
        self.wait_for_text("Sign in as anna with the certificate")
        self.picture("sign_in_by_certificate")
        self.chromium.run("""[...document.querySelectorAll("button")].find(
            one => one.textContent.includes("with the certificate")).click()""")
        self.wait_for_text("Signed in as tenant anna")
        self.assert_quiet()

    def test_a_revoked_certificate_is_refused_in_words(self):
        self.admin("add-tenant", "carl", "--user", "cleo", "--out", self.path("cleo.pem"))
        self.revoke("cleo.pem")
        self.browse("cleo.pem")
        self.wait_for_text("was revoked on")

    def test_a_visitor_without_a_certificate_signs_in_with_a_token(self):
        self.browse()
        self.sign_in_by_keyboard(self.secret_of("anna"))
        self.wait_for_text("Signed in as tenant anna")
        self.assert_quiet()


if __name__ == "__main__":
    program = unittest.main(exit=False)
    left_out = program.result.skipped and not program.result.testsRun
    if left_out:
        print(f"left out: {program.result.skipped[0][1]}")
    sys.exit(LEFT_OUT if left_out else not program.result.wasSuccessful())
