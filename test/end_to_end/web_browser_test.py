"""The web page in a real Chromium: signing in by keyboard, live updates, ending a session, without scripts, dark, on a
phone; with hostile names and 200 rows; over HTTPS with a certificate."""

import json
import os
import shutil
import subprocess
import sys
import unittest

from chromium import Chromium
from support import PROGRAMS, RUN_LIMIT_SECONDS, command, wait_until
import web_page_test
import web_tls_test

# The folder for pictures of each view, if set; the documents' pictures are made this way.
PICTURES = os.environ.get("GPUWIRE_WEB_PICTURES", "")
LEFT_OUT = 77
WITHIN_THE_WINDOW = "document.documentElement.scrollWidth <= window.innerWidth"
# Whether no table has to be scrolled sideways.
WHOLE_TABLES = '[...document.querySelectorAll(".scroll")].every(one => one.scrollWidth <= one.clientWidth)'


class Looking:
    """A visitor with a Chromium, `self.chromium`, at the page of a web_page_test.Page."""

    def open(self, path):
        self.chromium.open(f"{self.SCHEME}://{self.address}/{path}")

    def sign_in_by_keyboard(self, secret):
        self.open("sign-in")
        self.chromium.run('document.getElementById("secret").focus()')
        self.chromium.ask("Input.insertText", text=secret.strip())
        self.chromium.press("Enter", 13)
        self.chromium.wait_for('location.pathname !== "/sign-in" || document.getElementById("wrong") !== null',
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
        self.chromium.wait_for('location.pathname === "/overview"', "the overview")
        self.wait_for_text("None of your sessions runs.")
        self.assertNotEqual(program.wait(), 0)


class Browsing(Looking, web_page_test.Page):
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

    def test_what_has_the_focus_keeps_it_when_its_part_is_replaced(self):
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
        for path in ("overview", "history", "tenants", "server"):
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
                for path in ("overview", "history", "tenants", "server"):
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

    def test_two_hundred_rows_are_shown_and_the_window_does_not_scroll_sideways(self):
        """Two hundred sessions would take too much memory: the test copies one session's row two hundred times."""
        program = self.start_as("anna")
        self.assert_works(program)
        self.chromium.look(390, 844)
        self.sign_in_by_keyboard(self.secret_of("anna"))
        self.chromium.wait_for('document.querySelector("#sessions tbody tr") !== null', "the session")
        rows, fits = self.chromium.run("""(() => {
            const body = document.querySelector("#sessions tbody"), row = body.rows[0];
            for (let i = 1; i < 200; ++i) body.append(row.cloneNode(true));
            return [body.rows.length, %s];
        })()""" % WITHIN_THE_WINDOW)
        self.assertEqual((rows, fits), (200, True))
        self.assert_passes(program)


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

    def test_who_has_signed_out_signs_in_again_with_the_certificate_by_a_button(self):
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
