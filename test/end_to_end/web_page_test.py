"""The web page over HTTP, with a real server: sign-in, each visitor's view and rights, live updates, bounds."""

import contextlib
import html
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import unittest
import urllib.parse

import tenants_test
from support import PROGRAMS, RUN_LIMIT_SECONDS, children, command, wait_for_answer, wait_until
from tenants_test import GPUWIRE

CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')
# A valid file name that a document must escape: markup, quotes, a character that turns the writing direction.
HOSTILE = "<img src=x onerror=alert(1)>&\"'\u202e"
SIGN_IN, FORM = "gpuwire_sign_in", "gpuwire_form"


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()
        self.location = response.headers.get("Location", "")


class Browser:
    """A minimal browser: cookies and forms."""

    folder = ""  # that the page is in, where a proxy gives it one

    def __init__(self, address):
        self.address = address
        self.cookies = {}

    def connect(self):
        return http.client.HTTPConnection(self.address, timeout=RUN_LIMIT_SECONDS)

    def headers(self, more):
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {**({"Cookie": cookie} if cookie else {}), **more}

    def request(self, method, path, body=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connect()
        with contextlib.closing(connection):
            connection.request(method, f"/{self.folder}{path}", body, self.headers(headers))
            reply = Reply(connection.getresponse())
        for line in reply.headers.get_all("Set-Cookie", []):
            name, value = line.split(";")[0].split("=", 1)
            self.cookies[name] = value
            if "Max-Age=0" in line:
                del self.cookies[name]
        return reply

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def post(self, path, fields, **headers):
        return self.request("POST", path, urllib.parse.urlencode(fields),
                            Content_Type="application/x-www-form-urlencoded", **headers)

    def send_form(self, page, action, fields, **headers):
        """Sends the page's form with these fields, like a browser."""
        return self.post(action, {"csrf": CSRF.search(self.get(page).text)[1], **fields}, **headers)

    def sign_in(self, secret):
        return self.send_form("sign-in", "sign-in", {"secret": secret})


class Page(tenants_test.Tenants):
    SCHEME = "http"
    page_keys = "sessions_per_gpu_max = 1\ngpus = [0]\n"
    web_keys = ""

    def setUp(self):
        self.audit = os.path.join(self.folder.name, f"{self.id()}.audit")
        self.control = os.path.join(self.folder.name, "control")
        type(self).server_keys = (f'{self.page_keys}web_listen = "127.0.0.1:0"\n'
                                  f'{self.web_keys}audit_log = "{self.audit}"\ncontrol_socket = "{self.control}"')
        super().setUp()
        self.find_page()

    def find_page(self):
        self.assert_logged(rf"web page at {self.SCHEME}://\S+/")
        self.address = re.findall(rf"web page at {self.SCHEME}://(\S+)/", self.log())[-1]

    def browser(self):
        return Browser(self.address)

    def secret_of(self, tenant):
        with open(self.token(tenant), encoding="ascii") as file:
            return file.read()

    def signed_in(self, tenant):
        browser = self.browser()
        reply = browser.sign_in(self.secret_of(tenant))
        self.assertEqual((reply.status, reply.location), (303, "overview"), reply.text + self.log()[-3000:])
        return browser

    def code(self):
        ran = subprocess.run([GPUWIRE, "admin", "web-code", "--control", self.control], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn(f"at {self.SCHEME}://{self.address}/, once", ran.stdout)
        return ran.stdout.split("\n")[0]

    def administrator(self):
        browser = self.browser()
        self.assertEqual(browser.sign_in(self.code()).status, 303)
        return browser

    def sessions(self, browser):
        """Returns the numbers of the sessions in the overview."""
        return [int(number) for number in re.findall(r'href="end\?session=(\d+)"', browser.get("overview").text)]

    def wait_for_sessions(self, browser, count):
        wait_until(lambda: len(self.sessions(browser)) == count, RUN_LIMIT_SECONDS, f"{count} sessions on the page")
        return self.sessions(browser)

    def audited(self, event):
        with open(self.audit, encoding="ascii") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [line for line in lines if line["event"] == event]


class SignIn(Page):
    def test_a_visitor_who_is_not_signed_in_sees_the_form_and_nothing_else(self):
        stranger = self.browser()
        for path in ("", "overview", "history", "tenants", "server", "end?session=1"):
            reply = stranger.get(path)
            self.assertEqual((reply.status, reply.location, reply.text), (303, "sign-in", ""), path)
        for cookie in ("x", "../../etc", "a" * 4000, '"' * 4000):
            stranger.cookies[SIGN_IN] = cookie
            self.assertEqual(stranger.get("overview").location, "sign-in")
        self.assertEqual(self.browser().get("events?view=overview").status, 403)
        self.assertEqual(stranger.get("nothing").status, 404)
        self.assertIn('<label for="secret">', self.browser().get("sign-in").text)

    def test_a_wrong_token_a_revoked_one_and_a_used_code_are_refused(self):
        wrong = self.secret_of("anna")[:-3] + "xy"
        for secret in (wrong, "", "x" * 300, "\x01" * 1300, "<script>"):
            reply = self.browser().sign_in(secret)
            self.assertEqual((reply.status, "Not signed in" in reply.text), (403, True), reply.text)
            self.assertNotIn("<script>", reply.text)
        code = self.code()
        self.assertEqual(self.browser().sign_in(code).status, 303)
        self.assertEqual(self.browser().sign_in(code).status, 403)
        dora = self.signed_in("dora")
        self.admin("revoke", "dora")
        self.assertEqual(dora.get("overview").location, "sign-in")
        self.assertIn("was revoked on", self.browser().sign_in(self.secret_of("dora")).text)

    def test_cookies_are_out_of_scripts_reach_and_secure_behind_a_proxy_with_tls(self):
        for proxy in (False, True):
            browser = self.browser()
            headers = {"X_Forwarded_Proto": "https"} if proxy else {}
            replies = [browser.get("sign-in", **headers)]
            fields = {"csrf": CSRF.search(replies[0].text)[1], "secret": self.secret_of("anna")}
            replies.append(browser.post("sign-in", fields, **headers))
            cookies = [line for reply in replies for line in reply.headers.get_all("Set-Cookie", [])]
            self.assertEqual({line.split("=")[0] for line in cookies}, {SIGN_IN, FORM})
            for line in cookies:
                self.assertIn("HttpOnly; SameSite=Strict", line)
                self.assertEqual("; Secure" in line, proxy, line)

    def test_every_answer_forbids_foreign_and_inline_code_frames_and_guesses_of_types(self):
        anna = self.signed_in("anna")
        for path in ("overview", "history", "tenants", "server", "sign-in", "style.css", "live.js", "icon.svg", "none"):
            reply = anna.get(path)
            policy = reply.headers["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertIn("script-src 'self';", policy)
            self.assertIn("style-src 'self';", policy)
            self.assertIn("frame-ancestors 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(reply.headers["X-Frame-Options"], "DENY")
            if not path.endswith((".css", ".js", ".svg")):
                self.assertEqual(reply.headers["Cache-Control"], "no-store")
                self.assertNotRegex(reply.text, r"<style|\sstyle=|\son[a-z]+=|javascript:|<script>")

    def test_a_form_that_the_page_has_not_given_is_refused(self):
        anna = self.signed_in("anna")
        own = CSRF.search(anna.get("overview").text)[1]
        others = CSRF.search(self.signed_in("ben").get("overview").text)[1]
        for action in ("sign-out", "end", "suspend", "resume"):
            for fields in ({}, {"csrf": ""}, {"csrf": others}, {"csrf": own[:-1]}):
                reply = anna.post(action, {"session": "1", **fields})
                self.assertEqual(reply.status, 403, reply.text)
            reply = anna.post(action, {"session": "1", "csrf": own}, Sec_Fetch_Site="cross-site")
            self.assertEqual(reply.status, 403, reply.text)
        self.assertEqual(self.browser().post("sign-in", {"secret": self.secret_of("anna")}).status, 403)
        self.assertEqual(anna.get("overview").status, 200)
        self.assertEqual(anna.post("sign-out", {"csrf": own}).location, "sign-in")
        self.assertEqual(anna.get("overview").location, "sign-in")

    def test_a_cookie_does_not_outlive_signing_out(self):
        anna = self.signed_in("anna")
        kept = dict(anna.cookies)
        anna.send_form("overview", "sign-out", {})
        self.assertNotIn(SIGN_IN, anna.cookies)
        anna.cookies = kept
        self.assertEqual(anna.get("overview").location, "sign-in")

    def test_sign_ins_are_audited_without_their_secrets(self):
        self.signed_in("anna")
        self.administrator()
        self.browser().sign_in("a guess")
        wait_until(lambda: self.audited("web_refused"), RUN_LIMIT_SECONDS, "the refusal in the audit log")
        self.assertEqual([(line.get("tenant"), line["administrator"]) for line in self.audited("web_sign_in")],
                         [("anna", False), (None, True)])
        self.assertEqual(len(self.audited("web_code_made")), 1)
        with open(self.audit, encoding="ascii") as file:
            text = file.read()
        self.assertNotIn("gpuwire_", text)
        self.assertNotIn("a guess", text)

    def test_a_code_is_for_a_server_that_has_a_page(self):
        self.server.stop()
        type(self).server_keys = f'control_socket = "{self.control}"'
        self.write(self.server_keys, self.tenant_keys)
        self.start_server()
        ran = subprocess.run([GPUWIRE, "admin", "web-code", "--control", self.control], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("web_listen is not configured", ran.stderr)


class Sessions(Page):
    def test_a_tenant_sees_its_own_sessions_and_no_other_tenants_names_in_any_view(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        ben = self.start_as("ben")
        self.assertIn("place 1 of 1", ben.stderr.readline())
        mine, his, root = self.signed_in("anna"), self.signed_in("ben"), self.administrator()
        self.assertIn("reached their limit of sessions", his.get("overview").text)
        self.assertIn("1 session of others", his.get("overview").text)
        for path in ("overview", "history", "tenants", "server"):
            self.assertNotIn("ben", mine.get(path).text)
            self.assertNotIn("anna", his.get(path).text)
        text = root.get("overview").text
        self.assertIn("<bdi>anna</bdi>", text)
        self.assertIn("<bdi>ben</bdi>", text)
        self.assertIn("carl", root.get("tenants").text)
        self.assertIn("tenant <bdi>dora</bdi>", root.get("server").text)
        self.assert_passes(anna)
        self.assert_works(ben)
        self.assert_passes(ben)

    def test_names_of_programs_are_text(self):
        path = os.path.join(self.folder.name, HOSTILE)
        shutil.copy(os.path.join(PROGRAMS, "neighbour"), path)
        program = subprocess.Popen(command(self.server.address, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment("anna"))
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assert_works(program)
        text = self.signed_in("anna").get("overview").text
        self.assertIn(html.escape("<img src=x"), text)
        self.assertNotIn("<img", text)
        self.assertNotIn("\u202e", text)
        self.assert_passes(program)

    def test_a_tenant_ends_its_own_session_after_a_question_and_not_anothers(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        mine, his = self.signed_in("anna"), self.signed_in("ben")
        number, = self.wait_for_sessions(mine, 1)
        self.assertEqual(self.sessions(his), [])
        self.assertEqual(his.get(f"end?session={number}").status, 404)
        reply = his.send_form("overview", "end", {"session": number})
        self.assertEqual((reply.status, f"there is no session {number}" in reply.text), (404, True), reply.text)
        self.assertEqual(mine.send_form("overview", "end", {"session": "1e9"}).status, 400)
        self.assertEqual(self.sessions(mine), [number])
        self.assertIn(f"End session {number}?", mine.get(f"end?session={number}").text)
        reply = mine.send_form(f"end?session={number}", "end", {"session": number})
        self.assertEqual((reply.status, reply.location), (303, "overview"))
        self.assertIn("ended on the web page by tenant anna", self.assert_ended(anna))
        self.wait_for_sessions(mine, 0)
        asked, = self.audited("end_asked")
        self.assertEqual((asked["session"], asked["tenant"], asked["by"]), (number, "anna", "web page"))

    def test_an_administrator_ends_any_session_also_one_that_waits(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        ben = self.start_as("ben")
        self.assertIn("place 1 of 1", ben.stderr.readline())
        root = self.administrator()
        for number in self.wait_for_sessions(root, 2):
            self.assertEqual(root.send_form(f"end?session={number}", "end", {"session": number}).status, 303)
        for program in (anna, ben):
            self.assertIn("ended on the web page by the administrator", self.assert_ended(program))

    def test_an_administrator_and_its_tenant_suspend_an_idle_session_and_resume_it_and_another_tenant_cannot(self):
        program = subprocess.Popen(command(self.server.address, "works_again"), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
                                   env=self.environment("anna"))
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)

        def works():
            program.stdin.write("work 7\n")
            self.assertEqual(program.stdout.readline(), "right\n", self.log()[-3000:])

        self.assertEqual(program.stdout.readline(), "ready\n")
        works()
        root, mine, his = self.administrator(), self.signed_in("anna"), self.signed_in("ben")
        number, = self.wait_for_sessions(root, 1)
        for action in ("suspend", "resume"):
            self.assertEqual(his.get(f"{action}?session={number}").status, 404)
            reply = his.send_form("overview", action, {"session": number})
            self.assertEqual((reply.status, f"there is no session {number}" in reply.text), (403, True), reply.text)

        def moved(visitor, action, state):
            """Asks until the program is idle: its last call may still be ending."""
            text = visitor.get("overview").text
            if f"<td>{state}</td>" in text.replace(' class="sentence"', ""):
                return True
            if f'href="{action}?session={number}"' in text:
                reply = visitor.send_form(f"{action}?session={number}", action, {"session": number})
                self.assertEqual((reply.status, reply.location), (303, "overview"), reply.text)
            return False

        for visitor in (root, mine):
            wait_until(lambda: moved(visitor, "suspend", "suspended"), RUN_LIMIT_SECONDS, "the session to be suspended")
            wait_until(lambda: moved(visitor, "resume", "running"), RUN_LIMIT_SECONDS, "the session to run")
        wait_until(lambda: moved(mine, "suspend", "suspended"), RUN_LIMIT_SECONDS, "the session to be suspended")
        works()  # its memory is back
        self.assert_passes(program)
        for event in ("suspend_asked", "resume_asked"):
            def done(event=event):
                return [line for line in self.audited(event) if "result" in line]

            # The state is seen earlier than its audit line.
            wait_for_answer(lambda: {line.get("tenant") for line in done()}, {None, "anna"}, f"audit lines {event}")
            self.assertTrue(all(line["by"] == "web page" for line in done()), self.audited(event))

    def test_whoever_suspends_a_session_is_told_why_it_is_not_suspended(self):
        program = self.start_as("anna")
        self.assert_works(program)
        root, mine = self.administrator(), self.signed_in("anna")
        number, = self.wait_for_sessions(root, 1)
        reply = root.send_form(f"suspend?session={number}", "suspend", {"session": number})
        self.assertEqual(reply.status, 303)
        wait_until(lambda: "running: <strong>suspend: not done: " in root.get("overview").text, RUN_LIMIT_SECONDS,
                   "the reason why a busy session is not suspended")
        self.assertIn("not done", mine.get("overview").text)
        self.assert_passes(program)

    def test_the_past_day_and_month_have_what_was_used_also_after_a_restart(self):
        program = self.start_as("anna")
        self.assert_works(program)
        self.assert_passes(program)
        wait_until(lambda: self.audited("ended"), RUN_LIMIT_SECONDS, "the session's end in the audit log")
        self.assertEqual(self.server.stop(), 0)
        with open(self.audit, encoding="ascii") as file:
            lines = file.read()
        with open(self.audit, "w", encoding="ascii") as file:  # as if it had worked for hours
            lines, changed = re.subn(r'"gpu_seconds":[0-9.e-]+', '"gpu_seconds":9000.0', lines)
            self.assertEqual(changed, 1, lines)
            file.write(lines)
        self.start_server()
        self.find_page()
        mine, his = self.signed_in("anna").get("history").text, self.signed_in("ben").get("history").text
        for span in ("24 hours", "30 days"):
            self.assertRegex(mine, rf'(?s)last {span}.*?<bdi>anna</bdi></th><td class="number">0</td>'
                                   r'<td class="number">2\.50 h')
            self.assertRegex(his, rf'(?s)last {span}.*?>all others</th><td class="number">0</td>'
                                  r'<td class="number">2\.50 h')

    def test_the_last_sessions_are_shown_with_their_gpus_times_and_waits_also_after_a_restart(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        ben = self.start_as("ben")
        self.assertIn("place 1 of 1", ben.stderr.readline())
        self.assert_passes(anna)
        self.assert_passes(ben)
        wait_until(lambda: len(self.audited("ended")) == 2, RUN_LIMIT_SECONDS, "the ends in the audit log")
        waited, = (line["waited_seconds"] for line in self.audited("admitted") if "waited_for" in line)
        self.assertGreater(waited, 0)
        day = r"20\d\d-\d\d-\d\d \d\d:\d\d UTC"
        row = (rf"<bdi>neighbour</bdi> on [^\n]*<bdi>%s</bdi></td><td>0</td><td>{day}</td><td>{day}</td>"
               r'<td class="number">\d+\.\d s</td><td class="number">%s</td><td class="sentence">%s</td>'
               "<td>finished</td>")
        why = "the GPUs have reached their limit of sessions"
        for restarted in (False, True):
            if restarted:
                self.assertEqual(self.server.stop(), 0)
                self.start_server()
                self.find_page()
            mine, his = self.signed_in("ben").get("history").text, self.signed_in("anna").get("history").text
            self.assertRegex(mine, row % ("ben", r"\d+ (?:s|min)", why))
            self.assertNotIn("anna", mine)
            self.assertRegex(his, row % ("anna", "-", "-"))
            self.assertNotIn("ben", his)
            everything = self.administrator().get("history").text
            self.assertLess(everything.index("<bdi>ben</bdi></td><td>0</td>"),
                            everything.index("<bdi>anna</bdi></td><td>0</td>"))


    def test_a_session_that_waits_has_an_estimate_once_three_programs_have_ended(self):
        row = (r"<bdi>neighbour</bdi> on [^\n]*<bdi>ben</bdi></td><td>batch</td>"
               r'<td class="number">\d+ (?:s|min)</td><td class="number">%s</td>'
               r'<td class="sentence">the GPUs have reached their limit of sessions')
        root, his = self.administrator(), self.signed_in("ben")
        for estimate in ("-", r"about \d+ (?:s|min)"):
            anna = self.start_as("anna")
            self.assert_works(anna)
            ben = self.start_as("ben")
            self.assertIn("place 1 of 1", ben.stderr.readline())
            for browser in (root, his):
                self.wait_for_sessions(browser, 2 if browser is root else 1)
                self.assertRegex(browser.get("overview").text, row % estimate)
            self.assert_passes(anna)
            self.assert_passes(ben)
            self.assert_passes(self.start_as("carl"))
            wait_until(lambda: len(self.audited("ended")) >= 3, RUN_LIMIT_SECONDS, "the ends of three programs")
            self.wait_for_sessions(root, 0)

    def used(self, browser, who):
        """Returns the seconds of GPU 0 in the last day and in the last month, in the row of the tenant."""
        rows = re.findall(rf'>{who}</(?:bdi></)?th><td class="number">0</td><td class="number">([\d.]+) (s|min)</td>',
                          browser.get("history").text)
        return [float(number) * (1 if unit == "s" else 60) for number, unit in rows]

    def test_a_running_sessions_use_is_in_the_past_day_and_month_and_counts_once_when_it_has_ended(self):
        mine, his = self.signed_in("anna"), self.signed_in("ben")
        self.assertEqual(self.used(mine, "anna"), [])
        program = self.start_as("anna")
        self.assert_works(program)
        for browser, who in ((mine, "anna"), (his, "all others")):
            wait_until(lambda: [one > 0.3 for one in self.used(browser, who)] == [True, True], RUN_LIMIT_SECONDS,
                       f"the use of the running program in the row of {who}")
        self.assertEqual(self.audited("ended"), [])
        before = self.used(mine, "anna")
        self.assert_passes(program)
        wait_until(lambda: self.audited("ended"), RUN_LIMIT_SECONDS, "the session's end in the audit log")
        charged, = (line["gpu_seconds"] for line in self.audited("ended"))
        self.wait_for_sessions(mine, 0)
        for browser, who in ((mine, "anna"), (his, "all others")):
            for now, then in zip(self.used(browser, who), before, strict=True):
                self.assertAlmostEqual(now, charged, delta=0.06)  # one digit behind the point is shown
                self.assertGreaterEqual(now, then)


class Budgets(Page):
    tenant_keys = {**Page.tenant_keys, "anna": 'budget = "1s/month"\nbudget_hard = true'}

    @property
    def page_keys(self):
        return Page.page_keys + f'budget_file = "{self.audit}.budgets"\n'

    def test_use_grows_against_the_budget_and_who_waits_for_the_next_month_is_told_so(self):
        shown = re.compile(r'<bdi>anna</bdi></th><td>all</td>[^\n]*aria-label="budget of anna"></meter> '
                           r"([\d.]+) s of 1\.0 s \(([\d.]+) %\)</td><td>programs wait for the next month</td>")
        mine, his, root = self.signed_in("anna"), self.signed_in("ben"), self.administrator()

        def used(browser):
            return tuple(map(float, shown.search(browser.get("tenants").text).groups()))

        self.assertEqual(used(mine), (0, 0))
        program = self.start_as("anna")
        self.assert_works(program)
        for browser in (mine, root):
            wait_until(lambda: used(browser)[0] > 1 and used(browser)[1] > 100, RUN_LIMIT_SECONDS, "the used budget")
        self.assertNotIn("anna", his.get("tenants").text)
        self.assertIn("No tenant has a budget or users.", his.get("tenants").text)
        waits = self.start_as("anna")
        self.assertIn("has used the GPU time of this month", waits.stderr.readline())
        self.assert_passes(program)
        reason = re.compile(r'<td class="sentence">[^<]*has used the GPU time of this month[^<]*; the next begins on '
                            r"\d{4}-\d\d-01")
        for browser in (mine, root):
            wait_until(lambda: reason.search(browser.get("overview").text), RUN_LIMIT_SECONDS, "the reason of the wait")
        waits.kill()


class Live(Page):
    def events(self, browser, view="overview"):
        """Yields the page's updated parts as they arrive."""
        connection = browser.connect()
        self.addCleanup(connection.close)
        connection.request("GET", f"/{browser.folder}events?view={view}", headers=browser.headers({}))
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertEqual(response.headers["Content-Type"], "text/event-stream; charset=utf-8")
        name = ""
        for line in response:
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:] or "null")

    def test_a_session_that_begins_and_ends_is_told_as_it_happens(self):
        events = self.events(self.signed_in("anna"))
        first = {part["id"] for _, part in (next(events), next(events), next(events))}
        self.assertEqual(first, {"gpus", "sessions", "queue"})
        program = self.start_as("anna")
        self.assert_works(program)
        for _, part in events:
            if part["id"] == "sessions" and "neighbour" in part["html"]:
                break
        self.assert_passes(program)
        for _, part in events:
            if part["id"] == "sessions" and "None of your sessions runs." in part["html"]:
                break

    def test_a_page_that_is_signed_out_elsewhere_says_so_and_gets_no_more_events(self):
        anna = self.signed_in("anna")
        events = self.events(anna, "tenants")
        self.assertEqual(next(events)[1]["id"], "tenants")
        anna.send_form("overview", "sign-out", {})
        self.assertEqual([event for event in events if event[0] != "part"], [("signed-out", None)])

    def test_a_visitor_has_few_live_windows_and_others_have_theirs(self):
        anna = self.signed_in("anna")
        windows = [self.events(anna) for _ in range(4)]
        for window in windows:
            next(window)
        self.assertEqual(anna.get("events?view=overview").status, 503)
        next(self.events(self.signed_in("ben")))
        self.assertEqual(anna.get("events?view=nothing").status, 404)


class Bounds(Page):
    def test_requests_that_are_too_long_or_none_are_refused_and_the_page_goes_on(self):
        browser = self.browser()
        self.assertEqual(browser.get("overview", Cookie="a" * 9000).status, 431)
        self.assertEqual(browser.request("POST", "sign-in", "secret=" + "a" * 5000).status, 413)
        self.assertEqual(browser.request("DELETE", "overview").status, 405)
        for nonsense in (b"\x00\xff\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            connection = browser.connect()
            with contextlib.closing(connection):
                connection.connect()
                connection.sock.sendall(nonsense)
                answer = connection.sock.recv(4096)
                self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 400"), answer)
        head = browser.request("HEAD", "sign-in")
        self.assertEqual((head.status, head.text), (200, ""))
        self.assertEqual(self.signed_in("anna").get("overview").status, 200)

    def test_idle_connections_without_end_do_not_keep_others_out(self):
        idle = [self.browser().connect() for _ in range(300)]
        for connection in idle:
            self.addCleanup(connection.close)
            connection.connect()
        self.assertEqual(self.signed_in("anna").get("overview").status, 200)

    def test_an_address_that_guesses_on_and_on_has_to_wait(self):
        browser = self.browser()
        form = CSRF.search(browser.get("sign-in").text)[1]
        statuses = set()

        def refused():
            statuses.add(browser.post("sign-in", {"csrf": form, "secret": "guess"}).status)
            return 429 in statuses

        wait_until(refused, RUN_LIMIT_SECONDS, "too many attempts")
        self.assertEqual(statuses, {403, 429})

    def test_the_process_of_the_page_has_no_rights_and_is_started_again_when_it_dies(self):
        anna = self.signed_in("anna")
        server = self.server.process.pid
        page, = children(server, "gpuwire-web")
        with open(f"/proc/{page}/status", encoding="ascii") as file:
            status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
        self.assertEqual(int(status["CapEff"], 16), 0)
        self.assertEqual(int(status["NoNewPrivs"]), 1)
        self.assertEqual(int(status["Seccomp"]), 2)
        if os.geteuid() == 0:
            self.assertEqual(status["Uid"].split(), ["65534"] * 4)
        os.kill(page, signal.SIGKILL)
        self.assert_logged("the web page's process: ended with signal 9")
        # Visitors stay signed in: the server stores the sign-ins, not the page's process.
        self.assertEqual(anna.get("overview").status, 200)
        self.assertNotEqual(children(server, "gpuwire-web"), [page])


class Configuration(Page):
    def test_addresses_of_a_network_and_addresses_that_others_have_are_mistakes(self):
        def check(address, *more):
            self.write("\n".join([f'web_listen = "{address}"', *more]), self.tenant_keys)
            return subprocess.run([GPUWIRE, "serve", "--config", self.file, "--device", "software", "--check-config"],
                                  capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)

        self.assertEqual(check("127.0.0.1:0").returncode, 0)
        self.assertEqual(check(self.address).returncode, 0)  # the address belongs to this server, which releases it
        self.assertIn("web_listen of [server] must be an address of loopback", check("0.0.0.0:0").stderr)
        self.assertEqual(check("0.0.0.0:0", "allow_unencrypted_network = true").returncode, 0)
        self.assertIn("the address is in use, and not by a gpuwire server", check(self.server.address).stderr)
        self.assertIn("web_listen of [server] must be HOST:PORT", check("unix:/run/page").stderr)


if __name__ == "__main__":
    unittest.main()
