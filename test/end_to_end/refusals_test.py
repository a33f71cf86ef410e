"""A program that cannot have a session gets a CUDA error and one line that names the cause."""

import unittest

from support import OneAnswer, nobody_listens, one_line_naming, preface, run


class Refusals(unittest.TestCase):
    def assert_refused(self, ran, *words):
        self.assertEqual(ran.returncode, 3, ran.stdout + ran.stderr)
        self.assertTrue(ran.stdout.startswith("cudaError"), ran.stdout)
        self.assertTrue(one_line_naming(ran.stderr, *words), f"expected one line with {words} in:\n{ran.stderr}")

    def test_nobody_listens(self):
        with nobody_listens() as address:
            self.assert_refused(run(address, "first_error"), address, "refused")

    def test_a_host_name_that_does_not_exist(self):
        self.assert_refused(run("no-such-host.invalid:9750", "first_error"), "no-such-host.invalid")

    def test_an_address_without_a_port(self):
        for address in ("127.0.0.1:notaport", "127.0.0.1:99999", "http://127.0.0.1:9750"):
            ran = run(address, "first_error")
            self.assertEqual((ran.returncode, ran.stdout), (2, ""), ran.stderr)
            self.assertTrue(one_line_naming(ran.stderr, address), ran.stderr)

    def test_a_server_that_is_not_gpuwire(self):
        web = OneAnswer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" + b" " * 64)
        self.addCleanup(web.close)
        self.assert_refused(run(web.address, "first_error"), web.address, "not a gpuwire server")

    def test_a_server_that_closes_at_once(self):
        silent = OneAnswer(b"")
        self.addCleanup(silent.close)
        self.assert_refused(run(silent.address, "first_error"), silent.address)

    def test_a_server_of_another_protocol_version(self):
        text = b"this server speaks protocol 7.3"
        other = OneAnswer(preface(major=7, minor=3, status=1, text_bytes=len(text), release=b"9.9.9") + text)
        self.addCleanup(other.close)
        self.assert_refused(run(other.address, "first_error"), other.address, "7.3", "1.0")


if __name__ == "__main__":
    unittest.main(verbosity=2)
