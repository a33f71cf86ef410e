"""The web page behind a real nginx with TLS, which serves it below a path: the configuration of docs/web_page.md."""

import os
import ssl
import unittest
import urllib.parse
import urllib.request

import web_page_test
import web_tls_test
from proxy import Proxy
from support import RUN_LIMIT_SECONDS
from web_page_test import CSRF, FORM, SIGN_IN


class ProxyPage(web_page_test.Page):
    PATH, OTHER = "/gpus/", "/others/"

    def setUp(self):
        super().setUp()
        self.certificate, self.key = (os.path.join(self.folder.name, name) for name in ("proxy.pem", "proxy.key"))
        if not os.path.exists(self.certificate):
            web_tls_test.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                                 "-keyout", self.key, "-out", self.certificate, "-subj", "/CN=proxy", "-addext",
                                 "subjectAltName=IP:127.0.0.1")
        pages = {path: self.address for path in (self.PATH, self.OTHER)}
        self.proxy = Proxy(self, self.folder.name, pages, self.certificate, self.key)

    def browser(self):
        browser = web_tls_test.TlsBrowser(self.proxy.address, self.certificate)
        browser.folder = self.PATH[1:]
        return browser


class BehindProxy(ProxyPage):
    def test_a_tenant_signs_in_with_secure_cookies_sees_every_page_and_signs_out(self):
        anna = self.browser()
        replies = [anna.get("sign-in")]
        fields = {"csrf": CSRF.search(replies[0].text)[1], "secret": self.secret_of("anna")}
        replies.append(anna.post("sign-in", fields))
        self.assertEqual((replies[1].status, replies[1].location), (303, "overview"))
        cookies = [line for reply in replies for line in reply.headers.get_all("Set-Cookie", [])]
        self.assertEqual({line.split("=")[0] for line in cookies}, {SIGN_IN, FORM})
        for line in cookies:
            self.assertIn("; HttpOnly; SameSite=Strict", line)
            self.assertTrue(line.endswith("; Secure"), line)
        for path in ("overview", "history", "tenants", "server"):
            reply = anna.get(path)
            self.assertEqual(reply.status, 200, path)
            self.assertIn("Signed in as tenant <bdi>anna</bdi>", reply.text)
            self.assertNotRegex(reply.text, r'(?:href|src|action)="(?:/|[a-z]+:)', "an address that leaves the path")
            self.assertIn("default-src 'none'", reply.headers["Content-Security-Policy"])
        for path in ("style.css", "live.js", "icon.svg"):
            self.assertEqual(anna.get(path).status, 200, path)
        self.assertEqual(anna.send_form("overview", "sign-out", {}).location, "sign-in")
        self.assertEqual(anna.get("overview").location, "sign-in")

    def test_a_visitor_of_the_path_is_led_to_the_sign_in_below_it(self):
        stranger = self.browser()
        self.assertEqual((stranger.get("").status, stranger.get("").location), (303, "sign-in"))
        self.assertEqual(web_tls_test.TlsBrowser(self.proxy.address, self.certificate).get("overview").status, 404)

    def test_updates_pass_as_they_happen_and_a_session_is_ended(self):
        anna = self.signed_in("anna")
        events = web_page_test.Live.events(self, anna)
        first = {part["id"] for _, part in (next(events), next(events), next(events))}
        self.assertEqual(first, {"gpus", "sessions", "queue"})
        program = self.start_as("anna")
        self.assert_works(program)
        for _, part in events:
            if part["id"] == "sessions" and "neighbour" in part["html"]:
                break
        number, = self.sessions(anna)
        self.assertEqual(anna.post("end", {"session": number}).status, 403)
        reply = anna.send_form(f"end?session={number}", "end", {"session": number})
        self.assertEqual((reply.status, reply.location), (303, "overview"))
        self.assertIn("ended on the web page by tenant anna", self.assert_ended(program))
        for _, part in events:
            if part["id"] == "sessions" and "None of your sessions runs." in part["html"]:
                break

    def test_an_administrator_signs_in_through_the_proxy_with_a_code(self):
        self.assertIn("Signed in as administrator", self.administrator().get("overview").text)

    def test_one_browser_is_signed_in_at_two_pages_behind_one_proxy_at_once(self):
        """A cookie belongs to the path of its page, so the second sign-in does not replace the first."""
        opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.certificate)))

        def open_page(path, fields=None):
            data = urllib.parse.urlencode(fields).encode() if fields else None
            with opener.open(f"https://{self.proxy.address}{path}", data, timeout=RUN_LIMIT_SECONDS) as reply:
                return reply.read().decode()

        for path, tenant in ((self.PATH, "anna"), (self.OTHER, "ben")):
            csrf = CSRF.search(open_page(path + "sign-in"))[1]
            open_page(path + "sign-in", {"csrf": csrf, "secret": self.secret_of(tenant)})
        for path, tenant in ((self.PATH, "anna"), (self.OTHER, "ben")):
            self.assertIn(f"Signed in as tenant <bdi>{tenant}</bdi>", open_page(path + "overview"))


if __name__ == "__main__":
    unittest.main()
