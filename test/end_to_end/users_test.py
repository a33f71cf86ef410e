"""Users of one tenant: made from a list, shown, bounded and billed by name; and budgets, over a server that is killed.
Real processes, tokens over loopback."""

import json
import os
import signal
import subprocess
import tempfile
import unittest

from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, command, wait_until
from loopback_ports import LoopbackPorts  # noqa: E402, in the folder that support names

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
SECOND_NS = 1_000_000_000


class Users(unittest.TestCase):
    """A server whose tenant `course` has users, with budgets that each test sets."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-users-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # While no server has the port, no connection of another test may get it.
        ports = LoopbackPorts()
        self.addCleanup(ports.close)
        self.address = f"127.0.0.1:{ports.take()}"
        self.file, self.audit = self.path("server.toml"), self.path("audit.log")
        self.admin("init", "--host", "127.0.0.1")
        self.server = None
        self.addCleanup(self.stop)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def admin(self, *arguments):
        ran = subprocess.run([GPUWIRE, "admin", "--directory", self.path("identity"), *arguments], capture_output=True,
                             text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""), arguments)
        return ran.stdout

    def make_users(self, *names):
        with open(self.path("students.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(names) + "\n")
        return self.admin("users", "add", "--tenant", "course", "--from", self.path("students.txt"), "--out",
                          self.path("bundles"), "--token", "--server", self.address)

    def configure(self, keys):
        self.write(f'[tenants.course]\nclass = "interactive"\n{keys}\n')

    def write(self, tenants):
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(
                f'[server]\nlisten = "{self.address}"\naudit_log = "{self.audit}"\nbudget_file ='
                f' "{self.path("budgets")}"\ncontrol_socket = "{self.path("control")}"\nruntime_directory ='
                f' "{self.path("runtime")}"\n[tls]\ndirectory = "{self.path("identity")}"\n{tenants}'
            )

    def start(self):
        with open(self.path("log"), "a", encoding="utf-8") as log:
            self.server = subprocess.Popen([GPUWIRE, "serve", "--config", self.file, "--device", DEVICE],
                                           stdout=subprocess.PIPE, stderr=log, text=True)
        self.assertIn("listening on", self.server.stdout.readline(), self.log())

    def stop(self, number=signal.SIGTERM):
        if self.server and self.server.poll() is None:
            self.server.send_signal(number)
            self.server.wait(RUN_LIMIT_SECONDS)
        if self.server:
            self.server.stdout.close()
        self.server = None

    def reload(self, keys):
        self.configure(keys)
        ran = self.ask("admin", "reload", "--control", self.path("control"))
        self.assertIn("course has another", ran)

    def log(self):
        with open(self.path("log"), encoding="utf-8") as log:
            return log.read()

    def ask(self, *arguments):
        ran = subprocess.run([GPUWIRE, *arguments], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr + self.log()[-6000:])
        return ran.stdout

    def environment(self, user):
        # A bundle is the user's ~/.config/gpuwire.
        home = self.path("homes", user)
        os.makedirs(home, exist_ok=True)
        if not os.path.exists(os.path.join(home, "gpuwire")):
            os.symlink(self.path("bundles", user), os.path.join(home, "gpuwire"))
        return {**os.environ, "XDG_CONFIG_HOME": home}

    def program(self, user, name="neighbour"):
        """Starts a program; the usual one works until its standard input closes."""
        line = command(self.address, name)
        at = line.index("--server")
        started = subprocess.Popen(line[:at] + line[at + 2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment(user))
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        return started

    def works(self, program):
        self.assertEqual(program.stdout.readline(), "working\n", self.log()[-6000:])

    def passes(self, program):
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(program.returncode, 0, err)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)

    def status(self):
        return json.loads(self.ask("status", "--json", "--control", self.path("control")))

    def tenant(self):
        return next(one for one in self.status()["tenants"] if one["name"] == "course")

    def used(self, user):
        return {one["name"]: one["budget_used_ns"] for one in self.tenant()["users"]}.get(user, 0)

    def sessions(self, user):
        """Returns the user's running sessions, the oldest first."""
        return [one for one in self.status()["sessions"] if one["user"] == user and one["place"] == 0]

    def session(self, user):
        return next(iter(self.sessions(user)), None)

    def class_of(self, user):
        return (self.session(user) or {}).get("class")

    def own(self, user, *arguments):
        ran = subprocess.run([GPUWIRE, *arguments], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env=self.environment(user))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def test_the_lines_and_certificates_that_are_written_for_a_list_serve_its_users(self):
        with open(self.path("students.txt"), "w", encoding="utf-8") as file:
            file.write("anna\nben  # the second\n")
        made = self.admin("users", "add", "--tenant", "course", "--from", self.path("students.txt"), "--out",
                          self.path("bundles"), "--server", "tls://" + self.address, "--budget", "20h/month",
                          "--sessions-max", "2")
        self.assertIn("2 made", made)
        self.assertEqual(sorted(os.listdir(self.path("bundles", "anna"))), ["config.toml", "identity.pem"])
        with open(self.path("bundles", "server.toml"), encoding="utf-8") as file:
            self.write(file.read())
        self.start()
        programs = {user: self.program(user) for user in ("anna", "ben")}
        for user, program in programs.items():
            self.works(program)
            self.assertEqual(self.class_of(user), "batch")
        bounds = {user["name"]: (user["sessions_max"], user["budget_ns"]) for user in self.tenant()["users"]}
        self.assertEqual(bounds, {user: (2, 20 * 3600 * SECOND_NS) for user in programs})
        with open(self.audit, encoding="utf-8") as lines:
            begun = [event for event in map(json.loads, lines) if event["event"] == "begun"]
        self.assertEqual({(event["user"], event["identified_by"]) for event in begun},
                         {(user, "tls certificate") for user in programs})
        for program in programs.values():
            self.passes(program)

    def test_a_users_budget_falls_alone_outlives_a_kill_and_what_is_billed_is_what_was_charged(self):
        self.assertIn("2 made", self.make_users("anna", "ben"))
        self.configure('[tenants.course.each_user]\nsessions_max = 2\nbudget = "1h/month"\n'
                       '[tenants.course.users.anna]\nbudget = "1s/month"')
        self.start()
        anna, ben = self.program("anna"), self.program("ben")
        self.works(anna)
        self.works(ben)
        self.assertIn("course/anna", self.ask("top", "--once", "--control", self.path("control")))
        self.assertEqual(self.class_of("ben"), "interactive")
        wait_until(lambda: self.class_of("anna") == "scavenger", RUN_LIMIT_SECONDS, "anna's fall")
        self.assertGreaterEqual(self.used("anna"), SECOND_NS)
        self.assertEqual(self.class_of("ben"), "interactive")
        me = self.own("anna", "info", "--quick")
        self.assertRegex(me, r"user +anna, [12] of 2 programs run or wait")
        self.assertRegex(me, r"budget +you: .* 0 h left; beyond it they are scavengers")
        second = self.program("anna")
        # The session of `gpuwire info` may still be ending.
        wait_until(lambda: [one["program"] for one in self.sessions("anna")] == ["neighbour"] * 2, RUN_LIMIT_SECONDS,
                   "anna's second program has its place")
        third = self.program("anna")
        self.assertIn("the user has reached the limit of sessions (2)", third.stderr.readline())
        for program in (third, second):
            program.kill()
        wait_until(lambda: len(self.sessions("anna")) == 1, RUN_LIMIT_SECONDS, "the end of anna's second program")

        before = self.used("anna"), self.used("ben"), self.session("anna")["id"]
        self.stop(signal.SIGKILL)
        self.start()
        wait_until(lambda: self.class_of("anna") == "scavenger", RUN_LIMIT_SECONDS, "anna's class after the kill")
        self.assertEqual(self.session("anna")["id"], before[2])
        self.assertGreaterEqual(self.used("anna"), before[0])
        wait_until(lambda: self.used("ben") > before[1], RUN_LIMIT_SECONDS, "ben's program works on, and is charged")

        self.passes(ben)  # first: beside it a scavenger may get nothing
        self.passes(anna)
        wait_until(lambda: not self.status()["sessions"], RUN_LIMIT_SECONDS, "the end of all sessions")
        rows = json.loads(self.ask("usage", "--json", "--by", "user", self.audit))
        billed = {}
        for row in rows:
            self.assertEqual(row["tenant"], "course")
            billed[row["user"]] = billed.get(row["user"], 0) + row["gpu_seconds"]
        self.assertEqual(set(billed), {"anna", "ben"})
        tenant = sum(row["gpu_seconds"] for row in json.loads(self.ask("usage", "--json", self.audit)))
        self.assertAlmostEqual(sum(billed.values()), tenant, places=6)
        for user, seconds in billed.items():
            self.assertAlmostEqual(seconds, self.used(user) / SECOND_NS, places=6, msg=user)
        self.assertAlmostEqual(tenant, self.tenant()["budget_used_ns"] / SECOND_NS, places=6)
        own = json.loads(self.own("ben", "usage", "--server", self.address, "--json", "--by", "user"))
        self.assertEqual({row["user"] for row in own}, {"ben"})
        since = self.own("ben", "usage", "--server", self.address, "--json", "--by", "user", "--since", own[0]["day"])
        self.assertEqual(json.loads(since), own)

    def holds(self, user, mib):
        """Returns a program of the user that holds so much memory; None: the memory was refused."""
        line = command(self.address, os.path.join(BUILD, "bench", "sharing", "memory_clearing"), "hold", str(mib))
        at = line.index("--server")
        holder = subprocess.Popen(line[:at] + line[at + 2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=self.environment(user))
        self.addCleanup(holder.communicate)
        self.addCleanup(holder.kill)
        if "holds" in holder.stdout.readline():
            return holder
        holder.communicate()
        return None

    def test_a_users_bound_of_memory_holds_beside_others_and_over_a_server_that_is_killed(self):
        self.make_users("anna", "ben")
        self.configure('each_user.memory.limit = "600MiB"')
        self.start()
        first = self.holds("anna", 400)
        self.assertTrue(first, self.log()[-6000:])
        self.assertIsNone(self.holds("anna", 400))
        self.assertTrue(self.holds("ben", 400))
        shown = {user["name"]: user for user in self.tenant()["users"]}
        self.assertEqual({user["memory_limit_bytes"] for user in shown.values()}, {600 << 20})
        self.assertGreaterEqual(shown["anna"]["memory_used_bytes"], 400 << 20)
        self.assertRegex(self.ask("status", "--control", self.path("control")), r"course +anna +1 +4\d\d / 600 MiB")
        self.assertRegex(self.own("anna", "info", "--quick", "--server", self.address),
                         r"memory +you: 4\d\d MiB of 600 MiB on a GPU")
        ran = subprocess.run([GPUWIRE, "run", "--memory", "601MiB", "--server", self.address, "--", *command(
            self.address, "neighbour")[-1:]], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env=self.environment("anna"))
        self.assertIn("601 MiB asked for, and the user can never have that much: 600 MiB at most on a GPU", ran.stderr)
        self.stop(signal.SIGKILL)
        self.start()
        wait_until(lambda: len(self.sessions("anna")) == 1 and len(self.sessions("ben")) == 1, RUN_LIMIT_SECONDS,
                   "the sessions are the next server's")
        self.assertIsNone(self.holds("anna", 400))
        first.communicate()
        wait_until(lambda: not self.sessions("anna"), RUN_LIMIT_SECONDS, "the first one's memory is back")
        self.assertTrue(self.holds("anna", 400))

    def test_a_hard_budget_queues_with_the_reason_over_a_restart_until_a_reload_raises_it(self):
        self.make_users("anna", "ben")
        keys = 'budget_hard = true\nbudget = "%s"\n'
        self.configure(keys % "1s/month")
        self.start()
        anna = self.program("anna")
        self.works(anna)
        wait_until(lambda: self.class_of("anna") == "scavenger", RUN_LIMIT_SECONDS, "the tenant's budget is used up")
        # The tenant's budget applies to all its users.
        ben = self.program("ben")
        self.assertRegex(ben.stderr.readline(),
                         r"the tenant has used the GPU time of this month \(.*\); the next begins on \d{4}-\d\d-01 ")
        self.passes(anna)  # the running program continues
        self.stop(signal.SIGKILL)
        self.start()
        wait_until(lambda: any(one["user"] == "ben" and "GPU time of this month" in one["waits_for"]
                               for one in self.status()["sessions"]), RUN_LIMIT_SECONDS, "ben's place, after the kill")
        self.assertIsNone(self.session("ben"))
        self.reload(keys % "100h/month")
        self.works(ben)
        self.assertEqual(self.class_of("ben"), "interactive")
        self.passes(ben)

    def test_a_user_suspends_and_resumes_their_own_idle_programs_alone(self):
        self.make_users("anna", "ben")
        self.configure("")
        self.start()
        anna, ben = self.program("anna", "works_again"), self.program("ben", "works_again")
        for program in (anna, ben):
            self.assertEqual(program.stdout.readline(), "ready\n", self.log()[-6000:])
        annas, bens = self.session("anna")["id"], self.session("ben")["id"]

        def asks(user, *words):
            return subprocess.run([GPUWIRE, *words], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                                  env=self.environment(user))

        for verb in ("suspend", "resume"):
            for options in ((str(annas),), (str(annas), str(annas + 100))):
                ran = asks("ben", verb, *options)
                self.assertEqual((ran.returncode, ran.stdout), (1, ""))
                self.assertIn(f"gpuwire {verb}: no program that you may {verb} has the number {annas} ", ran.stderr)
        ran = asks("ben", "resume", str(bens))
        self.assertEqual((ran.returncode, ran.stdout), (1, f"session {bens}: not done: it is not suspended\n"))
        self.assertIn("no program that you may resume is suspended", asks("ben", "resume").stderr)
        # Its last call may still be ending.
        wait_until(lambda: asks("ben", "suspend", str(bens)).returncode == 0, RUN_LIMIT_SECONDS, "ben's suspension")
        self.assertEqual((self.session("ben")["state"], self.session("anna")["state"]), ("suspended", "running"))
        ran = asks("ben", "suspend", str(bens))
        self.assertEqual((ran.returncode, ran.stdout), (0, f"session {bens}: already suspended\n"), ran.stderr)
        # Without a number the user's only program is meant.
        self.assertEqual(self.own("ben", "resume"), f"session {bens}: resumed\n")
        wait_until(lambda: asks("anna", "suspend").returncode == 0, RUN_LIMIT_SECONDS, "anna's suspension")
        self.assertEqual(self.session("anna")["state"], "suspended")
        self.assertEqual(self.own("anna", "suspend", "--all"), "no program that you may suspend runs\n")
        for program in (anna, ben):
            program.stdin.write("work 7\n")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), "right\n")
            self.passes(program)
        with open(self.audit, encoding="utf-8") as lines:
            events = [json.loads(line) for line in lines]
        for event, users in (("suspend_asked", {"anna", "ben"}), ("resume_asked", {"ben"})):
            asked = [one for one in events if one["event"] == event]
            self.assertEqual({one["user"] for one in asked}, users)
            self.assertTrue(all(("result" in one) != ("reason" in one) and one["peer"] for one in asked), asked)
        self.assertEqual({one["for"] for one in events if one["event"] == "suspended"}, {"its user"})

    def test_a_user_ends_their_own_programs_alone(self):
        self.make_users("anna", "ben")
        self.configure("")
        self.start()
        anna, ben = self.program("anna"), self.program("ben")
        self.works(anna)
        self.works(ben)
        annas = self.session("anna")["id"]
        # With --yes the refusal comes from the server.
        ran = subprocess.run([GPUWIRE, "end", str(annas), "--yes"], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS, env=self.environment("ben"))
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn(f"no program that you may end has the number {annas} ", ran.stderr)
        self.assertEqual(self.own("ben", "end", "--all", "--yes").count("was told to end"), 1)
        self.assertNotEqual(ben.wait(RUN_LIMIT_SECONDS), 0)
        self.assertEqual(self.own("ben", "end", "--all", "--yes"), "no program that you may end runs or waits\n")
        self.assertEqual([one["id"] for one in self.status()["sessions"] if one["state"] != "ending"], [annas])
        self.assertIn(f"session {annas} at ", self.own("anna", "end", str(annas), "--yes"))
        self.assertNotEqual(anna.wait(RUN_LIMIT_SECONDS), 0)
        with open(self.audit, encoding="utf-8") as lines:
            asked = [event for event in map(json.loads, lines) if event["event"] == "end_asked"]
        self.assertEqual([(event["tenant"], event["user"]) for event in asked], [("course", "ben"), ("course", "anna")])


if __name__ == "__main__":
    unittest.main()
