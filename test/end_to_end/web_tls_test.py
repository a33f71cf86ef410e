"""The web page over HTTPS, with a real server: sign-in by a tenant's certificate, certificates that do not count,
renewed certificates of the page, visitors that never finish a handshake."""

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import unittest

import web_page_test
from support import RUN_LIMIT_SECONDS, children, wait_until
from tenants_test import GPUWIRE
from web_page_test import CSRF, FORM, SIGN_IN

# More than the bounds of server/web/limits.hpp.
HANDSHAKES, RELAYS = 128, 320


def has_ended(process):
    """Whether a process has ended, whether or not its new parent has asked for its status."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def openssl(*words, **more):
    return subprocess.run(["openssl", *words], check=True, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                          **more)


class TlsBrowser(web_page_test.Browser):
    """Shows a certificate, if it has one, and keeps no connection."""

    def __init__(self, address, authority, certificate=None):
        super().__init__(address)
        self.tls = ssl.create_default_context(cafile=authority)
        if certificate:
            self.tls.load_cert_chain(certificate)

    def connect(self):
        return http.client.HTTPSConnection(self.address, timeout=RUN_LIMIT_SECONDS, context=self.tls)


class TlsPage(web_page_test.Page):
    """The page's certificate is of another authority than the tenants', as one that browsers trust would be."""

    SCHEME = "https"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.page_certificate, cls.page_key = cls.path("page.pem"), cls.path("page.key")
        cls.make_page_certificate("first")
        cls.web_keys = f'web_certificate = "{cls.page_certificate}"\nweb_key = "{cls.page_key}"\n'
        for tenant in cls.tenant_keys:
            cls.admin("add-tenant", tenant, "--out", cls.path(tenant + ".pem"))

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    @classmethod
    def make_page_certificate(cls, name, *more):
        """Puts a new certificate and key in the place of the old ones, as tools that renew certificates do."""
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                cls.page_key + ".new", "-out", cls.page_certificate + ".new", "-subj", f"/CN={name}", "-addext",
                "subjectAltName=IP:127.0.0.1", *more)
        os.chmod(cls.page_key + ".new", 0o600)
        os.rename(cls.page_key + ".new", cls.page_key)
        os.rename(cls.page_certificate + ".new", cls.page_certificate)

    def revoke(self, certificate):
        serial = openssl("x509", "-in", self.path(certificate), "-noout", "-serial").stdout.split("=")[1].strip()
        self.admin("revoke", serial.lower())

    def browser(self, certificate=None):
        return TlsBrowser(self.address, self.page_certificate, certificate and self.path(certificate))

    def raw(self, certificate=None):
        """Returns a connection inside TLS."""
        host, port = self.address.rsplit(":", 1)
        bare = socket.create_connection((host, int(port)), timeout=RUN_LIMIT_SECONDS)
        inside = self.browser(certificate).tls.wrap_socket(bare, server_hostname=host)
        self.addCleanup(inside.close)
        return inside

    def bare(self):
        """Returns a connection on which nothing was said."""
        host, port = self.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=RUN_LIMIT_SECONDS)
        self.addCleanup(connection.close)
        return connection

    def sign_by_authority(self, name, subject, *, begins, ends):
        """Has the tenants' authority sign a certificate that the register does not have; returns its file."""
        with tempfile.TemporaryDirectory(prefix="gpuwire-ca-") as folder:
            files = {word: os.path.join(folder, word) for word in ("key", "request", "certificate", "configuration")}
            with open(files["configuration"], "w", encoding="ascii") as file:
                file.write(f"[ca]\ndefault_ca=c\n[c]\nnew_certs_dir={folder}\ndatabase={folder}/index\nserial={folder}/"
                           f"serial\ndefault_md=sha256\npolicy=p\nx509_extensions=x\n[p]\ncommonName=supplied\n[x]\n"
                           "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
                           "extendedKeyUsage=clientAuth\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
                           f"subjectAltName=URI:gpuwire://tenant/{subject}\n")
            for word, text in (("index", ""), ("serial", "1234\n")):
                with open(os.path.join(folder, word), "w", encoding="ascii") as file:
                    file.write(text)
            openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                    files["key"], "-out", files["request"], "-subj", f"/CN={subject}")
            openssl("ca", "-batch", "-notext", "-config", files["configuration"], "-cert",
                    os.path.join(self.identity, "ca.pem"), "-keyfile", os.path.join(self.identity, "ca.key"), "-in",
                    files["request"], "-out", files["certificate"], "-startdate", begins, "-enddate", ends)
            with open(self.path(name), "w", encoding="ascii") as out:
                for word in ("key", "certificate"):
                    with open(files[word], encoding="ascii") as file:
                        out.write(file.read())
        return name


class SignIn(TlsPage):
    def test_a_visitor_with_a_valid_certificate_sees_the_page_at_once_as_its_tenant(self):
        anna = self.browser("anna.pem")
        reply = anna.get("overview")
        self.assertEqual(reply.status, 200, reply.text)
        self.assertIn("Signed in as tenant <bdi>anna</bdi>", reply.text)
        cookie, = reply.headers.get_all("Set-Cookie")
        self.assertRegex(cookie, rf"^{SIGN_IN}=gpuwire_\S+; HttpOnly; SameSite=Strict; Secure$")
        # From then on the cookie is enough, also on a connection without a certificate.
        plain = self.browser()
        self.assertEqual(plain.get("overview").location, "sign-in")
        plain.cookies = dict(anna.cookies)
        self.assertIn("<bdi>anna</bdi>", plain.get("overview").text)
        self.assertNotIn("ben", anna.get("tenants").text)
        signed_in, = self.audited("web_sign_in")
        self.assertEqual((signed_in["tenant"], signed_in["administrator"]), ("anna", False))
        self.assertRegex(signed_in["credential"], "^[0-9a-f]{32}$")

    def test_a_users_certificate_signs_the_user_in(self):
        self.admin("add-tenant", "carl", "--user", "cleo", "--out", self.path("cleo.pem"))
        self.assertIn("Signed in as tenant <bdi>carl/cleo</bdi>", self.browser("cleo.pem").get("overview").text)

    def test_a_visitor_without_a_certificate_signs_in_with_a_token_or_a_code(self):
        browser = self.browser()
        replies = [browser.get("sign-in")]
        self.assertNotIn("with the certificate", replies[0].text)
        fields = {"csrf": CSRF.search(replies[0].text)[1], "secret": self.secret_of("anna")}
        replies.append(browser.post("sign-in", fields))
        self.assertEqual(replies[1].status, 303, replies[1].text)
        cookies = [line for reply in replies for line in reply.headers.get_all("Set-Cookie", [])]
        self.assertEqual({line.split("=")[0] for line in cookies}, {SIGN_IN, FORM})
        for line in cookies:
            self.assertIn("HttpOnly; SameSite=Strict", line)
            self.assertIn("; Secure", line)
        self.assertIn("Signed in as tenant <bdi>anna</bdi>", browser.get("overview").text)
        self.assertIn("Signed in as administrator", self.administrator().get("overview").text)

    def test_a_token_beside_a_certificate_has_to_be_of_the_same_tenant_and_a_code_is_an_administrators(self):
        anna = self.browser("anna.pem")
        self.assertEqual(anna.sign_in(self.secret_of("anna")).status, 303)
        reply = self.browser("anna.pem").sign_in(self.secret_of("ben"))
        self.assertEqual(reply.status, 403)
        self.assertIn("the client&#39;s certificate and its token are of different tenants", reply.text)
        self.assertEqual(self.browser("anna.pem").sign_in("a guess").status, 403)
        root = self.browser("anna.pem")
        self.assertEqual(root.sign_in(self.code()).status, 303)
        self.assertIn("Signed in as administrator", root.get("overview").text)

    def test_certificates_that_do_not_count_are_refused_in_words_whatever_else_is_shown(self):
        other = self.path("other")
        for words in (("init", "--host", "127.0.0.1"), ("add-tenant", "anna", "--out", self.path("foreign.pem"))):
            subprocess.run([GPUWIRE, "admin", "--directory", other, *words], check=True, capture_output=True,
                           timeout=RUN_LIMIT_SECONDS)
        self.admin("add-tenant", "dora", "--out", self.path("revoked.pem"))
        self.revoke("revoked.pem")
        self.admin("add-tenant", "eva", "--out", self.path("eva.pem"))
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                self.path("self.key"), "-out", self.path("self.crt"), "-subj", "/CN=anna")
        with open(self.path("self.pem"), "wb") as out:
            for name in ("self.key", "self.crt"):
                with open(self.path(name), "rb") as file:
                    shutil.copyfileobj(file, out)
        cases = {
            "foreign.pem": "issued by another authority",
            "self.pem": "is self-signed",
            "revoked.pem": "the certificate of tenant dora was revoked on",
            "eva.pem": "tenant is not in the server&#39;s configuration",
            self.sign_by_authority("expired.pem", "anna", begins="20200101000000Z", ends="20210101000000Z"):
                "the certificate of tenant anna expired on 2021-01-01",
            self.sign_by_authority("unknown.pem", "anna", begins="20200101000000Z", ends="20400101000000Z"):
                "is not in this server&#39;s register",
        }
        for certificate, why in cases.items():
            with self.subTest(certificate=certificate):
                reply = self.browser(certificate).get("overview")
                self.assertEqual((reply.status, "Your certificate is refused" in reply.text), (403, True), reply.text)
                self.assertIn(why, reply.text)
                self.assertEqual(reply.headers["Connection"], "close")
        visitor = self.browser("foreign.pem")
        visitor.cookies = dict(self.signed_in("anna").cookies)
        for path in ("overview", "sign-in", "events?view=overview", "end?session=1"):
            self.assertEqual(visitor.get(path).status, 403, path)
        self.assertEqual(visitor.post("sign-in", {"secret": self.secret_of("anna")}).status, 403)
        refused = self.audited("web_refused")
        self.assertTrue(any("another authority" in line["reason"] for line in refused), refused)
        # On and on, it is not even looked at.
        wait_until(lambda: "too many certificates from your address" in visitor.get("overview").text, RUN_LIMIT_SECONDS,
                   "too many certificates")
        self.assertEqual(self.browser("anna.pem").get("style.css").status, 200)

    def test_a_certificate_that_is_revoked_later_signs_nobody_in_and_ends_its_sign_ins(self):
        self.admin("add-tenant", "ben", "--out", self.path("later.pem"))
        ben = self.browser("later.pem")
        connection = ben.connect()
        with contextlib.closing(connection):
            connection.request("GET", "/overview")
            reply = web_page_test.Reply(connection.getresponse())
            self.assertEqual(reply.status, 200, reply.text)
            self.revoke("later.pem")
            ticket = reply.headers["Set-Cookie"].split(";")[0]
            connection.request("GET", "/overview", headers={"Cookie": ticket})
            signed_out = web_page_test.Reply(connection.getresponse())
            self.assertEqual(signed_out.location, "sign-in", signed_out.text)
            connection.request("GET", "/overview")
            refused = web_page_test.Reply(connection.getresponse())
            self.assertEqual(refused.status, 403)
            self.assertIn("was revoked on", refused.text)

    def test_forms_are_the_pages_own_also_where_a_browser_shows_a_certificate_by_itself(self):
        anna = self.browser("anna.pem")
        own = CSRF.search(anna.get("overview").text)[1]
        others = CSRF.search(self.browser("ben.pem").get("overview").text)[1]
        stranger = self.browser("anna.pem")  # shows the certificate, and has no cookie
        for action in ("sign-out", "end"):
            for visitor, fields in ((anna, {}), (anna, {"csrf": others}), (stranger, {"csrf": own}), (stranger, {})):
                self.assertEqual(visitor.post(action, {"session": "1", **fields}).status, 403)
        for fields in ({"by": "certificate"}, {"by": "certificate", "csrf": own}):
            self.assertEqual(self.browser("anna.pem").post("sign-in", fields).status, 403)
        # A link on another site replaces no sign-in by another, and signs nobody in.
        self.assertEqual(self.browser("anna.pem").get("overview", Sec_Fetch_Site="cross-site").location, "sign-in")
        self.assertEqual(anna.get("overview").status, 200)

    def test_a_user_who_has_signed_out_signs_in_again_by_a_button(self):
        anna = self.browser("anna.pem")
        kept = anna.send_form("overview", "sign-out", {})
        self.assertEqual(kept.location, "sign-in")
        self.assertNotIn(SIGN_IN, anna.cookies)
        self.assertIn("Sign in as <bdi>anna</bdi> with the certificate", anna.get("sign-in").text)
        reply = anna.send_form("sign-in", "sign-in", {"by": "certificate"})
        self.assertEqual((reply.status, reply.location), (303, "overview"), reply.text)
        self.assertIn("Signed in as tenant <bdi>anna</bdi>", anna.get("overview").text)
        self.assertIn("has shown no certificate",
                      self.browser().send_form("sign-in", "sign-in", {"by": "certificate"}).text)

    def test_a_tenant_ends_its_own_session_and_watches_it_live(self):
        program = self.start_as("anna")
        self.assert_works(program)
        anna = self.browser("anna.pem")
        number, = self.wait_for_sessions(anna, 1)
        connection = anna.connect()
        self.addCleanup(connection.close)
        connection.request("GET", "/events?view=overview", headers=anna.headers({}))
        response = connection.getresponse()
        self.assertEqual(response.headers["Content-Type"], "text/event-stream; charset=utf-8")
        self.assertIn(b"retry", response.readline())
        reply = anna.send_form(f"end?session={number}", "end", {"session": number})
        self.assertEqual((reply.status, reply.location), (303, "overview"), reply.text)
        self.assertIn("ended on the web page by tenant anna", self.assert_ended(program))
        for line in response:
            if b"None of your sessions runs." in line:
                break


class Certificates(TlsPage):
    def shown(self):
        """Returns the name in the page's certificate, as a visitor gets it; None: the process has just been ended."""
        host, port = self.address.rsplit(":", 1)
        try:
            pem = ssl.get_server_certificate((host, int(port)), timeout=RUN_LIMIT_SECONDS)
        except OSError:
            return None
        return re.search(r"CN\s*=\s*(\w+)", openssl("x509", "-noout", "-subject", input=pem).stdout)[1]

    def test_a_renewed_certificate_is_used_without_a_word_to_the_server_and_visitors_stay_signed_in(self):
        self.make_page_certificate("before")
        self.assert_logged("web page: the new certificate is used")
        wait_until(lambda: self.shown() == "before", RUN_LIMIT_SECONDS, "the certificate that the page began with")
        anna = self.signed_in("anna")
        self.make_page_certificate("after")
        wait_until(lambda: self.shown() == "after", RUN_LIMIT_SECONDS, "the new certificate")
        again = self.browser()
        again.cookies = anna.cookies
        self.assertEqual(again.get("overview").status, 200)
        self.assertNotIn("the web page's process: ended", self.log())

    def test_a_file_that_cannot_be_used_changes_nothing_and_is_told(self):
        name = self.shown()
        with open(self.page_certificate, encoding="ascii") as file:
            good = file.read()
        with open(self.page_certificate + ".new", "w", encoding="ascii") as file:
            file.write("no certificate\n")
        os.rename(self.page_certificate + ".new", self.page_certificate)
        self.assert_logged("web_certificate: there is no certificate in PEM format in it; the web page goes on with the"
                           " certificate that it had")
        self.assertEqual(self.shown(), name)
        page, = children(self.server.process.pid, "gpuwire-web")
        os.kill(page, signal.SIGKILL)  # the next process has the good files, too
        self.assert_logged("the web page's process: ended with signal 9")
        wait_until(lambda: self.shown() == name, RUN_LIMIT_SECONDS, "the certificate that it had")
        with open(self.page_certificate + ".new", "w", encoding="ascii") as file:
            file.write(good)
        os.rename(self.page_certificate + ".new", self.page_certificate)
        self.assert_logged("web page: the new certificate is used")

    def test_mistakes_in_the_configuration_are_found_by_the_check(self):
        def check(*keys):
            self.write("\n".join(keys), self.tenant_keys)
            ran = subprocess.run([GPUWIRE, "serve", "--config", self.file, "--device", "software", "--check-config"],
                                 capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
            return ran.returncode, ran.stderr

        listen, certificate, key = 'web_listen = "0.0.0.0:0"', *self.web_keys.splitlines()
        self.assertEqual(check(listen, certificate, key)[0], 0)
        # A running server of gpuwire has the address.
        self.assertEqual(check(f'web_listen = "{self.address}"', certificate, key)[0], 0)
        for keys, mistake in (
            ((listen, certificate), "web_certificate of [server] needs web_key"),
            ((listen, key), "web_key of [server] needs web_certificate"),
            ((certificate, key), "web_certificate of [server] needs web_listen"),
            ((listen, key, 'web_certificate = "page.pem"'), "web_certificate of [server] must be an absolute path"),
            ((listen, key, 'web_certificate = "/nothing/page.pem"'), "web_certificate: /nothing/page.pem: No such"),
            ((listen, key, f'web_certificate = "{self.page_key}"'), "there is no certificate in PEM format in it"),
            ((listen, certificate, f'web_key = "{self.page_certificate}"'), "web_key: "),
            ((listen, certificate, f'web_key = "{self.path("anna.pem")}"'),
             "web_key: not the key of the first certificate of web_certificate"),
        ):
            code, errors = check(*keys)
            self.assertNotEqual(code, 0)
            self.assertIn(mistake, errors)
        os.chmod(self.page_key, 0o644)
        self.assertIn("others can access it", check(listen, certificate, key)[1])
        os.chmod(self.page_key, 0o600)

    def test_the_servers_own_certificate_serves_the_page_too(self):
        self.server.stop()
        own = [os.path.join(self.identity, name) for name in ("server.pem", "server.key")]
        self.write(f'web_listen = "127.0.0.1:0"\nweb_certificate = "{own[0]}"\nweb_key = "{own[1]}"', self.tenant_keys)
        self.start_server()
        self.find_page()
        anna = TlsBrowser(self.address, os.path.join(self.identity, "ca.pem"), self.path("anna.pem"))
        self.assertIn("Signed in as tenant <bdi>anna</bdi>", anna.get("overview").text)


class Bounds(TlsPage):
    def test_visitors_that_never_finish_a_handshake_do_not_keep_others_out(self):
        silent = [self.bare() for _ in range(HANDSHAKES + 50)]
        for connection in silent[::3]:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the beginning of a ClientHello
        self.assertEqual(self.browser("anna.pem").get("overview").status, 200)
        # One address has a share of the places, so the earliest were closed, and the others when their time was over.
        for connection in silent:
            with contextlib.suppress(ConnectionError):
                self.assertEqual(connection.recv(1), b"")

    def test_visitors_that_say_nothing_inside_tls_do_not_keep_others_out(self):
        idle = [self.raw() for _ in range(RELAYS + 10)]
        self.assertEqual(self.browser("anna.pem").get("overview").status, 200)
        del idle

    def test_a_handshake_without_end_and_bytes_that_are_no_tls_end_one_connection(self):
        endless = self.bare()
        with contextlib.suppress(ConnectionError):
            record = b"\x16\x03\x03\x40\x00" + b"\x01\x01\xff\xff" + b"\0" * 0x3ffc
            for _ in range(40):
                endless.sendall(record)
            while endless.recv(4096):
                pass
        for nonsense in (b"\x00" * 100, b"\xff" * 70_000, b"\x15\x03\x01\x00\x02\x02\x28"):
            connection = self.bare()
            with contextlib.suppress(ConnectionError):
                connection.sendall(nonsense)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        self.assertEqual(self.browser("anna.pem").get("overview").status, 200)

    def test_http_without_encryption_is_answered_with_the_way_to_write_the_address(self):
        reply = web_page_test.Browser(self.address).get("overview")
        self.assertEqual((reply.status, reply.text),
                         (400, "This page is encrypted: its address begins with https://."))

    def test_older_versions_of_tls_are_refused(self):
        browser = self.browser("anna.pem")
        browser.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        with self.assertRaises(ssl.SSLError):
            browser.get("overview")
        self.assertEqual(self.raw().version(), "TLSv1.3")

    def test_a_request_and_its_end_inside_tls_are_answered_with_tls_own_end(self):
        inside = self.raw("anna.pem")
        inside.sendall(b"GET /sign-in HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := inside.recv(65536):  # an end without TLS's own would be an error
            answer += piece
        self.assertIn(b"HTTP/1.1 200 OK", answer)
        self.assertTrue(answer.endswith(b"</html>\n"), answer[-100:])

    def test_long_answers_arrive_whole_at_a_visitor_that_reads_slowly(self):
        inside = self.raw("anna.pem")
        inside.sendall(b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 20 + b"GET /nothing HTTP/1.0\r\n\r\n")
        answer = b""
        while piece := inside.recv(100):
            answer += piece
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 20)
        self.assertEqual(answer.count(b"HTTP/1.1 404 Not Found"), 1)

    def test_both_processes_have_no_rights_and_the_page_comes_back_when_one_dies(self):
        server = self.server.process.pid
        page, = children(server, "gpuwire-web")
        front, = children(page, "gpuwire-web")
        for process in (page, front):
            with open(f"/proc/{process}/status", encoding="ascii") as file:
                status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
            self.assertEqual(int(status["CapEff"], 16), 0)
            self.assertEqual(int(status["NoNewPrivs"]), 1)
            self.assertEqual(int(status["Seccomp"]), 2)
            if os.geteuid() == 0:
                self.assertEqual(status["Uid"].split(), ["65534"] * 4)
        anna = self.browser("anna.pem")
        self.assertEqual(anna.get("overview").status, 200)
        os.kill(front, signal.SIGKILL)
        # The process that serves the page ends by itself, or the server is the first to notice and kills it.
        self.assert_logged("the web page's process: ended with (exit code 0|signal 9)")
        self.assertEqual(anna.get("overview").status, 200)
        page, = children(server, "gpuwire-web")
        front, = children(page, "gpuwire-web")
        os.kill(page, signal.SIGKILL)
        wait_until(lambda: has_ended(front), RUN_LIMIT_SECONDS, "the end of the process that uses TLS")
        self.assertEqual(anna.get("overview").status, 200)

    def test_both_processes_end_with_the_server(self):
        page, = children(self.server.process.pid, "gpuwire-web")
        front, = children(page, "gpuwire-web")
        self.server.process.kill()
        self.server.process.wait()
        for process in (page, front):
            wait_until(lambda: has_ended(process), RUN_LIMIT_SECONDS, "the end with the server")


if __name__ == "__main__":
    unittest.main()
