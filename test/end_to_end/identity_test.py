"""Tenants over TLS on loopback: accepted and refused credentials, and each side's messages."""

import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from support import BUILD, PREFACE_TLS, RUN_LIMIT_SECONDS, ServerCase, command, one_line_naming, preface, wait_until


class TenantsCase(ServerCase):
    """One server for two tenants: anna has a certificate, ben a token."""

    SERVER_WORDS = ""
    VALIDITY = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpuwire-identity-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.identity = os.path.join(cls.folder, "identity")
        cls.admin("init", "--host", "gpu7.example", *cls.VALIDITY)
        cls.admin("add-tenant", "anna", "--out", cls.path("anna.pem"))
        cls.admin("add-tenant", "ben", "--token", "--out", cls.path("ben.token"))
        configuration = cls.path("server.toml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(
                f'[server]\nlisten = "127.0.0.1:0"\naudit_log = "{cls.path("audit.jsonl")}"\ncontrol_socket ='
                f' "{cls.path("control")}"\n{cls.SERVER_WORDS}[tls]\ndirectory ='
                f' "{cls.identity}"\n[tenants.anna]\n[tenants.ben]\n'
            )
        cls.server_arguments = ("--config", configuration)
        super().setUpClass()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    @classmethod
    def admin(cls, *arguments, identity=None):
        subprocess.run(
            [os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", identity or cls.identity, *arguments],
            check=True, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)

    def add(self, tenant, *arguments):
        """Makes a certificate or token of a tenant; returns its file."""
        out = self.path(f"{tenant}-{self.id().rsplit('.', 1)[1]}{len(os.listdir(self.folder))}")
        self.admin("add-tenant", tenant, "--out", out, *arguments)
        return out

    def run_as(self, *identity, program="first_error", address=None):
        line = command(address or self.server.address, program)
        line[2:2] = identity
        return subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                              env={**os.environ, "XDG_CONFIG_HOME": self.path("nothing")})

    def vector_add(self, *identity, address=None):
        return self.run_as(*identity, program=os.path.join(BUILD, "examples", "add_one"), address=address)

    def assert_refused(self, ran, *words):
        self.assertNotEqual(ran.returncode, 0, ran.stdout)
        self.assertTrue(one_line_naming(ran.stderr, *words), f"expected one line with {words} in:\n{ran.stderr}")

    def audit(self):
        with open(self.path("audit.jsonl"), encoding="utf-8") as file:
            return file.readlines()

    def events(self, event, after=0):
        """Returns the audit lines of an event after so many lines."""
        return [line for line in self.audit()[after:] if f'"event":"{event}"' in line]

    def assert_audited(self, *words):
        def found():
            with open(self.path("audit.jsonl"), encoding="utf-8") as file:
                return any(all(word in line for word in words) for line in file)

        wait_until(found, RUN_LIMIT_SECONDS, f"an audit line with {words}")


class Identity(TenantsCase):
    def test_a_certificate_makes_its_tenant(self):
        self.assert_passed(self.vector_add("--identity", self.path("anna.pem")))
        self.assert_audited('"anna"', "tls certificate")

    def test_a_token_makes_its_tenant(self):
        self.assert_passed(self.vector_add("--token-file", self.path("ben.token"), "--ca", self.path("ca.pem")))
        self.assert_audited('"ben"', "tls token")

    def test_a_token_that_is_named_comes_before_a_certificate_that_is_not(self):
        home = self.path("home")
        os.makedirs(os.path.join(home, "gpuwire"))
        shutil.copy(self.path("anna.pem"), os.path.join(home, "gpuwire", "identity.pem"))
        line = command(self.server.address, os.path.join(BUILD, "examples", "add_one"))
        line[2:2] = ["--token-file", self.path("ben.token"), "--ca", self.path("ca.pem")]
        before = len(self.audit())
        self.assert_passed(
            subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                           env={**os.environ, "XDG_CONFIG_HOME": home}))

        # The end of an earlier test's session may be audited only now.
        def admitted(tenant):
            return [one for one in self.events("admitted", before) if f'"{tenant}"' in one]

        wait_until(lambda: admitted("ben"), RUN_LIMIT_SECONDS, "an audit line")
        self.assertFalse(admitted("anna"))

    def test_an_identity_in_the_folder_is_used_on_this_machine_and_nothing_is_refused(self):
        home = self.path("anna")
        os.makedirs(os.path.join(home, "gpuwire"))
        shutil.copy(self.path("anna.pem"), os.path.join(home, "gpuwire", "identity.pem"))
        # Refusals of earlier tests may be audited only now, but before a session that begins later.
        told = len(self.audit())
        self.assert_passed(self.vector_add("--identity", self.path("anna.pem")))
        wait_until(lambda: self.events("admitted", told), RUN_LIMIT_SECONDS, "an audit line")
        before = len(self.audit())
        self.assert_passed(
            subprocess.run(command(self.server.address, os.path.join(BUILD, "examples", "add_one")),
                           capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                           env={**os.environ, "XDG_CONFIG_HOME": home}))
        wait_until(lambda: self.events("admitted", before), RUN_LIMIT_SECONDS, "an audit line")
        own, = self.events("admitted", before)
        self.assertIn('"anna"', own)
        self.assertEqual(self.events("refused", before), [])

    def test_nobody_comes_in_without_saying_who(self):
        self.assert_refused(self.run_as(), "this server requires a certificate or a token")
        self.assert_refused(self.run_as("--ca", self.path("ca.pem")), "this server requires a certificate or a token")
        self.assert_audited("no_identity")

    def test_a_revoked_certificate_is_refused_at_once(self):
        identity = self.add("anna")
        self.assert_passed(self.vector_add("--identity", identity))
        with open(identity, encoding="utf-8") as file:
            serial = file.readline().split("certificate ")[1].split(",")[0]
        self.admin("revoke", serial)
        self.assert_refused(self.run_as("--identity", identity), "tenant anna was revoked on")
        self.assert_audited('"revoked"', serial)
        self.assert_passed(self.vector_add("--identity", self.path("anna.pem")))

    def test_revoking_with_end_sessions_ends_what_runs(self):
        token = self.add("ben", "--token")
        with open(token, encoding="utf-8") as file:
            token_id = file.readline().split("token ")[1].split(",")[0]
        line = command(self.server.address, "endless_copies")
        line[2:2] = ["--token-file", token, "--ca", self.path("ca.pem")]
        running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(running.stdout.readline(), "copying\n")
        self.admin("revoke", token_id, "--end-sessions")
        out, err = running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(running.returncode, 3, out + err)
        self.assertIn("the token of tenant ben was revoked on", err)
        self.assertIn("cudaErrorNotPermitted\n", out)

    def test_a_program_whose_session_an_administrator_ends_gets_an_error_of_a_gpu_that_is_gone_and_the_reason(self):
        line = command(self.server.address, "endless_copies")
        line[2:2] = ["--identity", self.path("anna.pem")]
        running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(running.stdout.readline(), "copying\n")
        ended = subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), "admin", "end", "--tenant", "anna", "--reason",
                                "the card is needed", "--control", self.path("control")],
                               capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        out, err = running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(out, "cudaErrorDevicesUnavailable\n", err)
        self.assertIn("the server ended the session: the card is needed", err)

    def test_a_foreign_certificate_is_refused_by_both_sides(self):
        other = self.path("other")
        self.admin("init", identity=other)
        self.admin("add-tenant", "anna", "--out", self.path("foreign.pem"), identity=other)
        self.assert_refused(self.run_as("--identity", self.path("foreign.pem")), "is not signed by the CA in")
        ran = self.run_as("--identity", self.path("foreign.pem"), "--ca", self.path("ca.pem"))
        self.assert_refused(ran, "issued by another authority than this server's")
        self.assert_audited('"foreign"')

    def test_a_tenant_that_the_configuration_does_not_know_is_refused(self):
        self.assert_refused(self.run_as("--identity", self.add("carol")), 'no tenant "carol"')

    def test_hundreds_of_half_open_connections_keep_no_tenant_out(self):
        host, port = self.server.address.rsplit(":", 1)
        links = []
        for index in range(400):
            link = socket.create_connection((host, int(port)), timeout=RUN_LIMIT_SECONDS)
            self.addCleanup(link.close)
            links.append(link)
            try:
                if index % 4:
                    link.sendall(preface(flags=PREFACE_TLS))  # and then nothing of a handshake
                if index % 4 == 3:
                    link.recv(64)
                    link.sendall(b"\x16\x03\x01\x40\x00")  # or its beginning
            except OSError:
                pass  # it was dropped to make room
        self.assert_passed(self.vector_add("--identity", self.path("anna.pem")))

    def test_the_servers_name_is_checked(self):
        port = self.server.address.rsplit(":", 1)[1]
        self.assert_passed(self.vector_add("--identity", self.path("anna.pem"), address=f"localhost:{port}"))
        self.assert_refused(self.run_as("--identity", self.path("anna.pem"), address=f"127.0.0.2:{port}"), "127.0.0.2")


class Renewal(TenantsCase):
    """All credentials are near expiry, and are renewed during a running session."""

    VALIDITY = ("--ca-days", "25", "--days", "10")

    def gpuwire(self, *arguments):
        ran = subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), *arguments], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran

    def test_ends_are_told_and_all_is_renewed_while_a_session_runs(self):
        almost = self.add("anna", "--days", "3")
        for user, days in (("cleo", "4"), ("dave", "300")):
            self.admin("add-tenant", "anna", "--user", user, "--days", days, "--token", "--out", self.path(user))
        old = self.path("anna.pem")
        with open(old, encoding="utf-8") as file:
            serial = file.readline().split("certificate ")[1].split(",")[0]
        self.admin("revoke", serial)
        due = ("the certificate authority expires on", "the server's certificate expires on",
               "the certificate of tenant anna expires on", "the token of tenant anna for user cleo expires on")
        status = self.gpuwire("status", "--control", self.path("control")).stdout
        checked = self.gpuwire("serve", "--config", self.path("server.toml"), "--check-config", "--device",
                               "software").stderr
        for line in due:
            self.assertIn(line, status)
            self.assertIn(line, checked)
        self.assertNotIn("for user dave", status + checked)
        for owner in ("anna", "anna/cleo", "anna/dave"):
            self.assertRegex(status, rf"(?m)^(certificate|token) +{owner} ")
        for line in (*due[:2], due[3]):
            wait_until(lambda line=line: line in self.server_log(), RUN_LIMIT_SECONDS, line)
        ran = self.vector_add("--identity", almost)
        self.assert_passed(ran)
        self.assertRegex(ran.stderr, r"gpuwire: your certificate for 127\.0\.0\.1 expires on \S+, in [23] days: ask")

        line = command(self.server.address, "neighbour")
        line[2:2] = ["--identity", almost]
        running = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(running.kill)
        self.assertEqual(running.stdout.readline(), "working\n")
        self.admin("renew", "--ca")
        new = self.add("anna", "--days", "300")
        self.admin("add-tenant", "anna", "--user", "cleo", "--token", "--out", self.path("cleo-2"))
        for identity, trusted in ((almost, None), (new, None), (new, almost), (almost, new)):
            more = ["--ca", trusted] if trusted else []
            wait_until(lambda used=("--identity", identity, *more): self.vector_add(*used).returncode == 0,
                       RUN_LIMIT_SECONDS, f"{identity} with {trusted}")
        self.assertNotIn("expires", self.vector_add("--identity", new).stderr)
        status = self.gpuwire("status", "--control", self.path("control")).stdout
        self.assertNotIn("expires", status)
        out, err = running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
