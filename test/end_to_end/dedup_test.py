"""Deduplication: a tenant's sessions do not send bytes again that its chunk store has, and no other tenant learns of
them. The tests count sent bytes, never time."""

import glob
import json
import os
import subprocess
import tempfile
import unittest

from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, Server, command, start, wait_until
from unreliable_way import UnreliableWay

CHUNK = 256 << 10
TAIL = 1000
BYTES = 32 * CHUNK + TAIL
MANY_BYTES = 64 << 20
SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251123"))
CUTS, CUT_BYTES = 40, (4_000, 60_000)


class Served(unittest.TestCase):
    """A server with chunk stores in memory and on disk; all clients are one tenant."""

    defaults = f'dedup_memory = "64MiB"\ndedup_disk = "64MiB"'

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="gpuwire-dedup-")
        self.addCleanup(self.folder.cleanup)
        self.disk = os.path.join(self.folder.name, "chunks")
        self.config = os.path.join(self.folder.name, "server.toml")
        self.server = self.serve(**self.tenants())

    def tenants(self):
        """Returns the tenants, in serve()'s form."""
        return {}

    def serve(self, defaults=None, server='open_tenant = "open"', tenants="[tenants.open]"):
        with open(self.config, "w", encoding="ascii") as out:
            out.write(f'[server]\n{server}\ndedup_directory = "{self.disk}"\n'
                      f'[defaults]\n{defaults or self.defaults}\n{tenants}\n')
        server = Server(BUILD, ["--device", DEVICE, "--config", self.config]).__enter__()
        self.addCleanup(server.stop)
        return server

    def environment(self, dedup="on", user="anna", token=None):
        """Returns the environment of a client whose user has a cache key of its own."""
        return {
            **os.environ, "GPUWIRE_DEDUP": dedup,
            "GPUWIRE_CACHE_KEY_FILE": os.path.join(self.folder.name, user + ".key"),
            **({"GPUWIRE_TOKEN_FILE": token} if token else {})
        }

    def tenant(self, name="open"):
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        ran = subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), "status", "--json", "--control",
                              f"{folder}/{self.server.process.pid}.sock"], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS, check=True)
        return next(one for one in json.loads(ran.stdout)["tenants"] if one["name"] == name)

    def load(self, *arguments, keeps=0, address=None, tenant="open", **environment):
        """Runs one load, until so many of its bytes are stored; returns the bytes that the server got and those that it
        had."""
        before = self.tenant(tenant)
        program = start(address or self.server.address, "repeated_uploads", *map(str, arguments),
                        env=self.environment(**environment))
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "PASSED\n")
        wait_until(lambda: self.tenant(tenant)["chunk_bytes_kept"] - before["chunk_bytes_kept"] >= keeps,
                   RUN_LIMIT_SECONDS, f"{keeps} bytes are kept")
        _, errors = program.communicate("")
        self.assertEqual(program.returncode, 0, errors)
        wait_until(lambda: not self.tenant(tenant)["sessions"].get("running"), RUN_LIMIT_SECONDS, "the session is over")
        after = self.tenant(tenant)
        self.assertEqual(after["chunk_bytes_kept"] - before["chunk_bytes_kept"], keeps)
        return after["bytes_in"] - before["bytes_in"], after["chunk_bytes_found"] - before["chunk_bytes_found"]


class Dedup(Served):
    """Users of one tenant, with different keys."""

    def test_a_second_load_of_the_same_bytes_sends_their_digests_only(self):
        for seed, form in enumerate(("blocking", "ordered", "pinned")):
            with self.subTest(form=form):
                sent, found = self.load(form, seed, BYTES, keeps=BYTES)
                self.assertGreater(sent, BYTES)
                self.assertEqual(found, 0)
                sent, found = self.load(form, seed, BYTES)
                self.assertLess(sent, CHUNK)
                self.assertEqual(found, BYTES)

    def test_a_copy_that_differs_in_one_place_sends_one_chunk(self):
        self.load("blocking", 1, BYTES, keeps=BYTES)
        for place, chunk in ((5 * CHUNK + 17, CHUNK), (0, CHUNK), (BYTES - 1, TAIL)):
            with self.subTest(place=place):
                sent, found = self.load("blocking", 1, BYTES, place, keeps=chunk)
                self.assertEqual(found, BYTES - chunk)
                self.assertLess(sent, chunk + CHUNK)

    def test_switched_off_nothing_is_kept_nor_asked_for(self):
        self.load("blocking", 1, BYTES, dedup="off")
        self.load("blocking", 1, BYTES, keeps=BYTES)
        sent, found = self.load("blocking", 1, BYTES, dedup="off")
        self.assertGreater(sent, BYTES)
        self.assertEqual(found, 0)

    def test_left_to_itself_it_measures_the_link_and_every_byte_is_right(self):
        for _ in range(2):
            before = self.tenant()["chunk_bytes_found"]
            program = subprocess.run(command(self.server.address, "repeated_uploads", "blocking", "3", str(MANY_BYTES)),
                                     env=self.environment(dedup="auto"), input="", capture_output=True, text=True,
                                     timeout=RUN_LIMIT_SECONDS)
            self.assertEqual((program.returncode, program.stdout), (0, "PASSED\n"), program.stderr)
            # The bytes that measure the link are sent.
            self.assertLess(self.tenant()["chunk_bytes_found"] - before, MANY_BYTES)

    def test_a_client_with_another_key_finds_nothing_that_was_stored_under_the_first(self):
        self.load("blocking", 1, BYTES, keeps=BYTES, user="anna")
        sent, found = self.load("blocking", 1, BYTES, keeps=BYTES, user="ben")
        self.assertGreater(sent, BYTES)
        self.assertEqual(found, 0)

    def test_a_store_keeps_within_its_bound_and_lets_go_of_what_was_used_least_recently(self):
        self.server.stop()
        self.server = self.serve('dedup_memory = "9MiB"')
        for seed in range(4):
            self.load("blocking", seed, BYTES, keeps=BYTES)
        held = self.tenant()
        self.assertGreater(held["chunk_memory_bytes"], 4 << 20)
        self.assertLessEqual(held["chunk_memory_bytes"], 9 << 20)
        _, found = self.load("blocking", 0, BYTES, keeps=BYTES)
        self.assertEqual(found, 0)

    def test_a_store_on_disk_outlives_the_server(self):
        self.load("blocking", 1, BYTES, keeps=BYTES)
        self.server.stop()
        self.server = self.serve()
        sent, found = self.load("blocking", 1, BYTES)
        self.assertLess(sent, CHUNK)
        self.assertEqual(found, BYTES)

    def test_chunks_that_were_damaged_on_disk_are_noticed_and_sent_again(self):
        self.load("blocking", 1, BYTES, keeps=BYTES)
        self.server.stop()
        stores = glob.glob(os.path.join(self.disk, "*"))
        self.assertEqual(len(stores), 1)
        with open(stores[0], "r+b") as store:
            slots = os.path.getsize(stores[0]) // (CHUNK + 64) // 16 * 16
            first = (slots * 64 + 4095) // 4096 * 4096
            for slot in range(slots):
                store.seek(first + slot * CHUNK + 100)
                if byte := store.read(1):
                    store.seek(first + slot * CHUNK + 100)
                    store.write(bytes([byte[0] ^ 0xff]))
        self.server = self.serve()
        sent, found = self.load("blocking", 1, BYTES, keeps=BYTES)
        self.assertGreater(sent, BYTES)
        self.assertEqual(found, 0)
        self.assertEqual(self.load("blocking", 1, BYTES)[1], BYTES)

    def test_a_session_that_is_cut_again_and_again_asks_once_for_each_chunk_and_loads_the_right_bytes(self):
        self.load("blocking", 1, BYTES, keeps=BYTES)
        for number, form in enumerate(("blocking", "pinned")):
            with self.subTest(form=form, seed=SEED + number):
                way = UnreliableWay(self.server.address, CUTS, SEED + number, CUT_BYTES)
                self.addCleanup(way.close)
                _, found = self.load(form, 1, BYTES, (number + 3) * CHUNK, keeps=CHUNK, address=way.address)
                self.assertEqual(found, BYTES - CHUNK)
                self.assertEqual(way.lost, CUTS)

    def test_a_store_that_is_switched_off_costs_a_client_that_wants_it_nothing_but_its_bytes(self):
        self.server.stop()
        self.server = self.serve('dedup_memory = 0\ndedup_disk = 0')
        for _ in range(2):
            sent, found = self.load("blocking", 1, BYTES)
            self.assertGreater(sent, BYTES)
            self.assertEqual(found, 0)


class NamedTenants(Served):
    """Two tenants with tokens, whose users have the same key."""

    def tenants(self):
        identities = os.path.join(self.folder.name, "identities")
        self.admin(identities, "init", "--host", "localhost")
        for name in ("anna", "ben"):
            self.admin(identities, "add-tenant", name, "--token", "--out", self.token(name))
        return {"server": "", "tenants": f'[tls]\ndirectory = "{identities}"\n[tenants.anna]\n[tenants.ben]'}

    def admin(self, identities, *words):
        ran = subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), "admin", *words, "--directory", identities],
                             capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def token(self, name):
        return os.path.join(self.folder.name, name + ".token")

    def test_chunks_of_one_tenant_are_not_there_for_another_that_holds_the_same_key(self):
        for keeps, found in ((BYTES, 0), (0, BYTES)):
            for name in ("anna", "ben"):
                with self.subTest(name=name, keeps=keeps):
                    loaded = self.load("blocking", 1, BYTES, keeps=keeps, tenant=name, token=self.token(name))
                    self.assertEqual(loaded[1], found)


if __name__ == "__main__":
    unittest.main()
