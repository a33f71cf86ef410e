"""A tenant's view of its own sessions from its own machine: `gpuwire queue`, `top` and `usage`."""

import csv
import datetime
import io
import json
import os
import pty
import subprocess
import unittest

from support import BUILD, RUN_LIMIT_SECONDS, wait_for_answer, wait_until
import tenants_test
from tenants_test import GPUWIRE


class Views(tenants_test.Tenants):
    def ask(self, tenant, view, *options):
        return subprocess.run([GPUWIRE, view, "--server", self.server.address, *options], capture_output=True,
                              text=True, timeout=RUN_LIMIT_SECONDS, env=self.environment(tenant))

    def told(self, tenant, view, *options):
        ran = self.ask(tenant, view, *options)
        self.assertEqual(ran.returncode, 0, ran.stderr + self.log()[-3000:])
        return ran.stdout


class OwnBounds(Views):
    """`gpuwire info` of tenants whose classes, weights, limits and credentials' ends differ."""

    tenant_keys = {
        "anna": 'class = "interactive"\nweight = 2.5\nsessions_max = 3\nhost_memory = "2GiB"\nmemory.limit = "512MiB"\n'
                'memory.guaranteed = "256MiB"\nbudget = "20h/month"\nbudget_hard = true\n',
        "ben": 'class = "batch"\n',
    }

    def test_info_has_the_values_of_the_configuration_and_of_the_register(self):
        text = self.told("anna", "info", "--quick")
        self.assertIn("\ntenant      anna, class interactive, weight 2.5\n", text)
        # Sessions of `gpuwire info` count: this one, and an earlier one that may still be ending.
        self.assertRegex(text, r"\nsessions    [012] of 3 run, 0 wait\n")
        for gpu in (0, 1):
            self.assertRegex(text, rf"\nmemory      GPU {gpu}: \d+ MiB of 512 MiB, 256 MiB guaranteed\n")
        self.assertRegex(text, r"\nhost memory \d+ MiB of 2\.0 GiB\n")
        self.assertIn("\nbudget      the tenant: ", text)
        self.assertIn(" 20 h left; beyond it programs wait\n", text)
        with open(os.path.join(self.identity, "register.json"), encoding="utf-8") as file:
            ends = {one["tenant"]: one["expires"] for one in json.load(file)["credentials"]}
        for tenant, service_class, weight, sessions_max in (("anna", "interactive", 2.5, 3), ("ben", "batch", 1, 0)):
            mine = json.loads(self.told(tenant, "info", "--quick", "--json"))["tenant"]
            self.assertEqual((mine["name"], mine["class"], mine["weight"], mine["sessions_max"]),
                             (tenant, service_class, weight, sessions_max))
            end = datetime.datetime.fromisoformat(ends[tenant].replace("Z", "+00:00"))
            self.assertEqual(mine["identity_expires_unix_s"], end.timestamp())
            bounded = tenant == "anna"
            self.assertEqual([(one["memory_limit_bytes"], one["memory_guaranteed_bytes"]) for one in mine["devices"]],
                             [(512 << 20, 256 << 20) if bounded else (0, 0)] * 2)
            self.assertEqual((mine["budget_ns"], mine["budget_hard"]),
                             (20 * 3600 * 10**9 if bounded else 0, bounded))


class OwnView(Views):
    server_keys = "sessions_per_gpu_max = 1\ngpus = [0]"

    def setUp(self):
        self.audit = os.path.join(self.folder.name, f"{self.id()}.audit")
        type(self).server_keys = f'sessions_per_gpu_max = 1\ngpus = [0]\naudit_log = "{self.audit}"'
        super().setUp()

    def test_a_tenant_sees_its_own_programs_and_places_and_nobody_elses(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        ben = self.start_as("ben")
        self.assertIn("place 1 of 1", ben.stderr.readline())
        waiting = json.loads(self.told("ben", "queue", "--json"))
        self.assertEqual([(one["place"], one["tenant"]) for one in waiting], [(1, "ben")])
        self.assertIn("reached their limit of sessions", waiting[0]["waits_for"])
        text = self.told("ben", "queue")
        self.assertIn("PLACE", text)
        self.assertIn("reached their limit of sessions", text)
        self.assertNotIn("anna", text)
        self.assertNotIn("ben", self.told("anna", "queue"))
        self.assertEqual(self.told("carl", "queue"), "no program of tenant carl runs or waits\n")
        self.assert_passes(anna)
        self.assertRegex(ben.stderr.readline(), r"admitted at 127\.0\.0\.1 after \d+ s")
        self.assert_works(ben)
        self.assert_passes(ben)

    def test_info_says_who_one_is_to_the_server(self):
        text = self.told("anna", "info", "--quick")
        self.assertRegex(text, r"\ntenant      anna, class \S+, weight \S+\n")
        self.assertRegex(text, r"\nsessions    \d+.* run, 0 wait\n")
        self.assertRegex(text, r"\nmemory      GPU 0: ")
        self.assertNotIn("ben", text)
        mine = json.loads(self.told("ben", "info", "--quick", "--json"))["tenant"]
        self.assertEqual(mine["name"], "ben")
        self.assertEqual(self.told("ben", "ps"), self.told("ben", "queue"))

    def test_a_tenant_ends_its_own_programs_and_nobody_elses(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        ben = self.start_as("ben")
        self.assertIn("place 1 of 1", ben.stderr.readline())
        annas, = (one["id"] for one in json.loads(self.told("anna", "ps", "--json")))
        bens, = (one["id"] for one in json.loads(self.told("ben", "ps", "--json")))
        unknown = f"gpuwire end: no program that you may end has the number {annas} (gpuwire ps shows yours)\n"
        # With --yes the refusal comes from the server.
        for options in ((str(annas), "--yes"), (str(annas), str(bens + 100), "--yes")):
            ran = self.ask("ben", "end", *options)
            self.assertEqual((ran.returncode, ran.stdout), (1, ""))
            self.assertIn(unknown, ran.stderr)
        self.assertEqual(self.told("carl", "end", "--all", "--yes"), "no program that you may end runs or waits\n")
        # A waiting session is ended, too.
        self.assertIn(f"session {bens} at ", self.told("ben", "end", str(bens), "--yes"))
        self.assertIn("ended by gpuwire end on ", self.assert_ended(ben))
        self.assertEqual(len(json.loads(self.told("anna", "ps", "--json"))), 1)
        self.told("anna", "end", "--all", "--yes")
        self.assertIn("ended by gpuwire end on ", self.assert_ended(anna))
        with open(self.audit, encoding="utf-8") as lines:
            asked = [event for event in map(json.loads, lines) if event["event"] == "end_asked"]
        self.assertEqual([(event["session"], event["tenant"]) for event in asked], [(bens, "ben"), (annas, "anna")])

    def test_end_asks_on_a_terminal(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        session, = (one["id"] for one in json.loads(self.told("anna", "ps", "--json")))

        def answer(word):
            master, terminal = pty.openpty()
            asks = subprocess.Popen([GPUWIRE, "end", str(session), "--server", self.server.address], stdin=terminal,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=self.environment("anna"))
            os.close(terminal)
            os.write(master, word + b"\n")
            out, err = asks.communicate(timeout=RUN_LIMIT_SECONDS)
            os.close(master)
            return asks.returncode, out, err

        code, out, err = answer(b"n")
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, rf"session {session}: neighbour on \S+, running, at \S+\nEnd it\? \[y/N\] ")
        self.assertIn("nothing was ended", err)
        self.assertEqual(len(json.loads(self.told("anna", "ps", "--json"))), 1)
        code, out, err = answer(b"y")
        self.assertEqual(code, 0, err)
        self.assertIn("was told to end", out)
        self.assertNotEqual(anna.wait(RUN_LIMIT_SECONDS), 0)

    def test_a_tenant_sees_how_busy_the_gpus_are_without_other_names(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        own = json.loads(self.told("anna", "top", "--once", "--json", "--interval", "0.3"))
        self.assertEqual([one["name"] for one in own["tenants"]], ["anna"])
        self.assertGreater(own["interval_s"], 0)
        others = json.loads(self.told("ben", "top", "--once", "--json", "--interval", "0.3"))
        self.assertEqual(others["devices"][0]["sessions"], 1)
        self.assertIn("gpu_share", others["devices"][0])
        self.assertEqual(others["sessions"], [])
        text = self.told("ben", "top", "--once", "--interval", "0.2")
        self.assertIn("GPU%", text)
        self.assertNotIn("anna", text)
        self.assert_passes(anna)

    def test_usage_by_day_is_the_tenants_own_and_all_of_it_for_the_administrator(self):
        for tenant in ("anna", "anna", "ben"):
            program = self.start_as(tenant)
            self.assert_works(program)
            self.assert_passes(program)

        def counted(tenant):
            return [(one["tenant"], one["sessions"]) for one in json.loads(self.told(tenant, "usage", "--json"))]

        # A session is over once its worker has exited, which may be after the next tenant's.
        for tenant, sessions in (("anna", 2), ("ben", 1)):
            wait_for_answer(lambda tenant=tenant: counted(tenant), [(tenant, sessions)], f"the usage of {tenant}")
        own = json.loads(self.told("anna", "usage", "--json"))
        self.assertGreater(own[0]["peak_memory_bytes"], 0)
        rows = list(csv.DictReader(io.StringIO(self.told("ben", "usage", "--csv"))))
        self.assertEqual([(row["tenant"], row["sessions"]) for row in rows], [("ben", "1")])
        self.assertIn("GPU HOURS", self.told("ben", "usage"))
        day = own[0]["day"]
        self.assertEqual(json.loads(self.told("anna", "usage", "--since", day, "--json")), own)
        self.assertEqual(json.loads(self.told("anna", "usage", "--since", "9999-01-01", "--json")), [])
        self.assertEqual(self.told("anna", "usage", "--since", "9999-01-01", "--csv").count("\n"), 1)
        ran = self.ask("anna", "usage", "--since", "yesterday")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("--since: must be a day, YYYY-MM-DD", ran.stderr)
        ran = subprocess.run([GPUWIRE, "usage", "--json", "--config", self.file], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assertEqual({(one["tenant"], one["sessions"]) for one in json.loads(ran.stdout)},
                         {("anna", 2), ("ben", 1)}, ran.stderr)
        ran = subprocess.run([GPUWIRE, "usage", os.path.join(self.folder.name, "none")], capture_output=True,
                             text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertRegex(ran.stderr, r"^gpuwire usage: .*/none: No such file or directory\n$")
        with open(os.path.join(self.folder.name, "silent.toml"), "w", encoding="utf-8") as silent:
            silent.write("[tenants.anna]\n")
        ran = subprocess.run([GPUWIRE, "usage", "--config", silent.name], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("silent.toml does not name an audit_log; name the log", ran.stderr)

    def test_usage_is_known_after_a_restart(self):
        program = self.start_as("anna")
        self.assert_works(program)
        self.assert_passes(program)
        wait_until(lambda: self.told("anna", "usage", "--json").strip() != "[]", RUN_LIMIT_SECONDS, "anna's usage")
        self.assertEqual(self.server.stop(), 0)
        self.start_server()
        self.assertEqual(json.loads(self.told("anna", "usage", "--json"))[0]["sessions"], 1)

    def test_a_client_without_a_tenant_is_told_nothing(self):
        ran = subprocess.run([GPUWIRE, "queue", "--server", self.server.address], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS, env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent"})
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("this server requires a certificate or a token", ran.stderr)


if __name__ == "__main__":
    unittest.main()
