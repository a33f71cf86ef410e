"""Several tenants on one server: GPUs, waits, the effects of a reload and a revocation. Real processes, tokens over
loopback."""

import collections
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from support import (BUILD, DEVICE, LONG, RUN_LIMIT_SECONDS, OneAnswer, Server, audit_lines, command, one_line_naming,
                     wait_for_answer, wait_until)

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
TENANTS = ("anna", "ben", "carl", "dora")
DEVICE_BYTES = 1 << 30


class Tenants(unittest.TestCase):
    """A server of two small software devices with a configuration file, and a token for each tenant."""

    server_keys = "sessions_per_gpu_max = 1"
    server_options = ()  # of the command, beside those that start_server() names
    tenant_keys = {name: "" for name in TENANTS}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="gpuwire-tenants-")
        cls.identity = os.path.join(cls.folder.name, "identity")
        cls.admin("init", "--host", "127.0.0.1")
        for name in cls.tenant_keys:
            cls.admin("add-tenant", name, "--token", "--out", cls.token(name), "--ca-out",
                      os.path.join(cls.folder.name, name + "-ca.pem"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def admin(cls, *arguments):
        subprocess.run([GPUWIRE, "admin", "--directory", cls.identity, *arguments], check=True, capture_output=True,
                       timeout=RUN_LIMIT_SECONDS)

    @classmethod
    def token(cls, tenant):
        return os.path.join(cls.folder.name, tenant + ".token")

    def setUp(self):
        self.file = os.path.join(self.folder.name, "server.toml")
        self.write(self.server_keys, self.tenant_keys)
        self.start_server()

    def start_server(self):
        self.server = Server(BUILD, [
            "--config", self.file, "--device", DEVICE, "--software-devices", "2", "--software-memory",
            f"{DEVICE_BYTES}B", *self.server_options
        ])
        self.addCleanup(self.server.stop)
        self.server.__enter__()

    def write(self, server_keys, tenants):
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(f'[server]\n{server_keys}\n[tls]\ndirectory = "{self.identity}"\n')
            for name, keys in tenants.items():
                file.write(f"[tenants.{name}]\n{keys}\n")

    def reload(self, server_keys, tenants):
        """Reloads the configuration; returns the log's lines about it."""
        self.write(server_keys, tenants)
        before = len(self.server.log)
        self.server.process.send_signal(signal.SIGHUP)
        said = []

        def told():
            said[:] = [line for line in self.server.log[before:] if "the configuration was" in line]
            return said

        wait_until(told, RUN_LIMIT_SECONDS, "a word of the log about the reload")
        return said[0]

    def environment(self, tenant, **more):
        return {**os.environ, "GPUWIRE_TOKEN_FILE": self.token(tenant), **more}

    def run_as(self, tenant, program, *arguments, **more):
        return subprocess.run(command(self.server.address, program, *arguments), capture_output=True, text=True,
                              timeout=RUN_LIMIT_SECONDS, env=self.environment(tenant, **more))

    def start_as(self, tenant, **more):
        """Starts a program that works until its standard input closes."""
        started = subprocess.Popen(command(self.server.address,
                                           "neighbour"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment(tenant, **more))
        self.addCleanup(started.wait)
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        return started

    def assert_ended(self, program):
        """Returns the stderr of a program that the server has ended. Its input stays open, or it would end normally."""
        self.assertNotEqual(program.wait(RUN_LIMIT_SECONDS), 0)
        return program.stderr.read()

    def assert_works(self, program):
        self.assertEqual(program.stdout.readline(), "working\n", "".join(self.server.log[-20:]))

    def assert_passes(self, program):
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(program.returncode, 0, err)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)

    def devices_of(self, tenant, **more):
        ran = subprocess.run([GPUWIRE, "info", "--server", self.server.address, "--json", "--quick"],
                             capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env=self.environment(tenant, **more))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)["devices"]

    def log(self):
        return "".join(self.server.log)

    def assert_logged(self, pattern):
        """Waits for a line of the log, which a thread reads from the server's pipe."""
        wait_until(lambda: re.search(pattern, self.log()), RUN_LIMIT_SECONDS, f"a line of the log with {pattern}")


class Queueing(Tenants):
    def test_each_session_gets_a_gpu_of_its_own_and_the_next_one_waits_until_one_is_free(self):
        anna, ben = self.start_as("anna"), self.start_as("ben")
        self.assert_works(anna)
        self.assert_works(ben)
        carl = self.start_as("carl")
        self.assertIn("place 1 of 1", carl.stderr.readline())
        dora = self.start_as("dora")
        self.assertIn("place 2 of 2", dora.stderr.readline())
        carl.kill()  # a program that leaves gives up its place
        self.assertIn("place 1 of 1", dora.stderr.readline())
        self.assert_passes(ben)
        self.assert_works(dora)
        self.assert_passes(anna)
        self.assert_passes(dora)

    def test_a_session_sees_as_many_gpus_as_it_asks_for(self):
        one, two = self.devices_of("anna"), self.devices_of("anna", GPUWIRE_GPUS="2")
        self.assertEqual(len(one), 1)
        self.assertEqual(len(two), 2)
        anna = self.start_as("anna")
        self.assert_works(anna)
        self.assertEqual([device["uuid"] for device in self.devices_of("ben")], [two[1]["uuid"]],
                         "anna's program has the first one")
        self.assert_passes(anna)

    def test_a_request_that_can_never_fit_is_refused_with_the_reason(self):
        for more, reason in ({"GPUWIRE_GPUS": "3"}, "3 GPUs asked for"), ({"GPUWIRE_MEMORY": "20GiB"},
                                                                          "20 GiB asked for"):
            ran = self.run_as("anna", "neighbour", **more)
            self.assertNotEqual(ran.returncode, 0)
            self.assertIn(reason, ran.stderr)

    def test_queries_of_nvml_wait_for_nothing(self):
        programs = [self.start_as("anna"), self.start_as("ben")]
        for program in programs:
            self.assert_works(program)
        ran = self.run_as("carl", os.path.join(BUILD, "lib", "gpuwire", "bin", "nvidia-smi"), "-L")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(len(ran.stdout.splitlines()), 1, ran.stdout)
        for program in programs:
            self.assert_passes(program)


class Memory(Tenants):
    server_keys = ""
    tenant_keys = {
        "anna": 'memory = { guaranteed = "200MiB", limit = "300MiB" }', "ben": 'memory.limit = "500MiB"', "carl": "",
        "dora": "sessions_max = 1"
    }

    def test_a_session_that_was_promised_memory_makes_the_next_one_wait(self):
        first = self.start_as("carl", GPUWIRE_MEMORY="600MiB", GPUWIRE_GPUS="2")
        self.assert_works(first)
        second = self.start_as("carl", GPUWIRE_MEMORY="600MiB")
        self.assertIn("place 1 of 1", second.stderr.readline())
        self.assert_passes(first)
        self.assert_works(second)
        self.assert_passes(second)

    def test_each_tenant_is_shown_its_own_limit_and_gets_no_more(self):
        self.assertEqual([device["memory_bytes"] for device in self.devices_of("anna", GPUWIRE_GPUS="2")],
                         [300 << 20] * 2)
        self.assertEqual([device["memory_bytes"] for device in self.devices_of("ben")], [500 << 20])
        ran = self.run_as("ben", "out_of_memory")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        refused = self.run_as("ben", "neighbour", GPUWIRE_MEMORY="600MiB")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("500 MiB at most", refused.stderr)

    def test_a_tenant_with_all_its_sessions_waits_for_itself_and_holds_up_nobody(self):
        first = self.start_as("dora")
        self.assert_works(first)
        second = self.start_as("dora")
        self.assertIn("its limit of sessions (1)", second.stderr.readline())
        other = self.start_as("carl")
        self.assert_works(other)
        self.assert_passes(first)
        self.assert_works(second)
        self.assert_passes(second)
        self.assert_passes(other)


class Crowd(Tenants):
    """More programs at once than the server has places, and the tenant may have waiting."""

    PLACES, WAITING, REFUSED = (64, 24, 3) if LONG else (4, 3, 2)
    tenant_keys = {"anna": f"queued_max = {WAITING}", "ben": ""}

    def setUp(self):
        self.control = os.path.join(self.folder.name, "control")
        type(self).server_keys = f'sessions_max = {self.PLACES}\ncontrol_socket = "{self.control}"'
        super().setUp()

    def states(self):
        """Returns the number of each state of the sessions, and of refused programs."""
        ran = subprocess.run([GPUWIRE, "status", "--json", "--control", self.control], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS, check=True)
        status = json.loads(ran.stdout)
        refused = sum(sum(tenant["refused"].values()) for tenant in status["tenants"])
        return {**collections.Counter(one["state"] for one in status["sessions"]), "refused": refused}

    def test_those_that_have_no_place_wait_and_beyond_the_tenants_bound_each_is_refused_in_one_clear_line(self):
        # The last place is not anna's: it waits for the other tenant.
        crowd = [self.start_as("anna") for _ in range(self.PLACES - 1 + self.WAITING + self.REFUSED)]
        expected = {"running": self.PLACES - 1, "queued": self.WAITING, "refused": self.REFUSED}
        wait_for_answer(self.states, expected, "the crowd")
        other = self.start_as("ben")
        self.assert_works(other)
        for program in crowd:
            program.stdin.close()
            program.stdin = None
        other.stdin.close()
        other.stdin = None
        refused = 0
        for program in [*crowd, other]:
            out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
            if program.returncode == 0:
                self.assertTrue(out.endswith("PASSED\n"), out + err)
                continue
            refused += 1
            self.assertTrue(one_line_naming(
                err, f"the tenant has reached its limit of waiting programs ({self.WAITING})"), err)
        self.assertEqual(refused, self.REFUSED)


class Reloading(Tenants):
    server_keys = ""

    def test_a_reload_disturbs_no_session_and_counts_for_the_next(self):
        anna, ben = self.start_as("anna"), self.start_as("ben")
        self.assert_works(anna)
        self.assert_works(ben)
        said = self.reload("sessions_per_gpu_max = 1", {"anna": 'class = "realtime"', "carl": ""})
        self.assertIn("2 tenants", said)
        refused = self.run_as("ben", "neighbour")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("ben", refused.stderr)
        carl = self.start_as("carl")
        self.assertIn("place 1 of 1", carl.stderr.readline())
        self.assert_passes(ben)
        self.assert_works(carl)
        self.assert_passes(anna)
        self.assert_passes(carl)

    def test_a_file_with_mistakes_changes_nothing(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        self.assertIn("the old one stays", self.reload("sesions_max = 3", {"ben": "weight = -1"}))
        self.assert_logged(r"server\.toml:2: \[server\] has no \"sesions_max\"; did you mean \"sessions_max\"\?")
        self.assert_logged(r"server\.toml:6: weight of \[tenants\.ben\] must be a number above 0")
        again = self.start_as("anna")
        self.assert_works(again)
        self.assertIn("the old one stays", self.reload("", {"anna": 'memory.guaranteed = "2GiB"'}))
        self.assert_logged(r"guaranteed 2\.0 GiB together on GPU 0")
        self.assert_passes(again)
        self.assert_passes(anna)

    def test_a_revoked_tenant_is_refused_and_its_sessions_are_ended_when_that_is_asked_for(self):
        dora, anna = self.start_as("dora"), self.start_as("anna")
        self.assert_works(dora)
        self.assert_works(anna)
        self.admin("revoke", "dora", "--end-sessions")
        self.assertIn("revoked", self.assert_ended(dora))
        refused = self.run_as("dora", "neighbour")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("revoked", refused.stderr)
        self.assert_passes(anna)

    def test_four_tenants_work_at_once(self):
        programs = [self.start_as(name) for name in ("anna", "ben", "carl")] + [self.start_as("carl", GPUWIRE_GPUS="2")]
        for program in programs:
            self.assert_works(program)
        for program in programs:
            self.assert_passes(program)
        wait_until(lambda: len(re.findall(r"ended: ", self.log())) >= len(programs), RUN_LIMIT_SECONDS,
                   "the ends of all sessions in the log")


class Administering(Tenants):
    """An administrator's view and actions on a running server, and their lines in the audit log."""

    server_keys = ""

    def write(self, server_keys, tenants):
        self.control = os.path.join(self.folder.name, "control")
        super().write(f'{server_keys}\ncontrol_socket = "{self.control}"', tenants)

    def ask(self, *arguments):
        ran = subprocess.run([GPUWIRE, "admin", "--directory", self.identity, *arguments, "--control", self.control],
                             capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def events(self, name):
        return [line for line in audit_lines(self.server.log) if line["event"] == name]

    def test_sessions_are_listed_and_ended_with_a_reason_that_their_program_is_told(self):
        anna, ben = self.start_as("anna"), self.start_as("ben")
        self.assert_works(anna)
        self.assert_works(ben)
        self.assertIn("anna", self.ask("sessions"))
        listed = {session["tenant"]: session["id"] for session in json.loads(self.ask("sessions", "--json"))}
        self.assertEqual(sorted(listed), ["anna", "ben"])
        self.assertIn("1 session was told to end", self.ask("end", str(listed["anna"]), "--reason", "maintenance"))
        self.assertIn("maintenance", self.assert_ended(anna))
        wait_until(lambda: self.events("end_asked"), RUN_LIMIT_SECONDS, "a line of the audit log")
        self.assertEqual((self.events("end_asked")[0]["session"], self.events("end_asked")[0]["reason"]),
                         (listed["anna"], "maintenance"))
        self.assert_passes(ben)

    def test_a_reload_over_the_control_socket_tells_what_has_changed_and_who_asked(self):
        self.assertIn("4 tenants", self.ask("reload"))
        wait_until(lambda: self.events("reload_asked") and self.events("reload"), RUN_LIMIT_SECONDS,
                   "lines of the audit log")
        self.assertEqual(self.events("reload_asked")[0]["by_uid"], os.geteuid())

    def test_a_revocation_is_in_the_audit_log_with_who_has_done_it(self):
        dora = self.start_as("dora")
        self.assert_works(dora)
        self.ask("revoke", "dora", "--end-sessions")
        dora.wait(RUN_LIMIT_SECONDS)
        wait_until(lambda: self.events("revoked"), RUN_LIMIT_SECONDS, "a line of the audit log")
        self.assertEqual((self.events("revoked")[0]["tenant"], self.events("revoked")[0]["by_uid"]),
                         ("dora", os.geteuid()))

    def test_a_session_that_ends_by_itself_has_had_a_peak_of_memory(self):
        anna = self.start_as("anna")
        self.assert_works(anna)
        self.assert_passes(anna)
        wait_until(lambda: self.events("ended"), RUN_LIMIT_SECONDS, "a line of the audit log")
        self.assertGreater(self.events("ended")[0]["peak_memory_bytes"], 0)


class Checking(Tenants):
    """`--check-config` finds what a start would find."""

    server_keys = ""

    def check(self, server_keys, tenants, *words, warns=(), arguments=(), prefix=(), **environment):
        """`words`: parts of the expected errors; none: no error. `warns`: parts of the expected warnings."""
        self.write(server_keys, tenants)
        ran = subprocess.run([
            *prefix, GPUWIRE, "serve", "--config", self.file, "--device", DEVICE, "--software-memory", "1GiB",
            "--check-config", *arguments
        ], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, env={**os.environ, **environment})
        self.assertEqual(ran.returncode, 2 if words else 0, ran.stdout + ran.stderr)
        for word in (*words, *warns):
            self.assertIn(word, ran.stderr)
        if not words and not warns:
            self.assertEqual(ran.stderr, "")

    def test_files_addresses_devices_and_guarantees_are_looked_at(self):
        audit_log = os.path.join(self.folder.name, "new.audit")
        self.check(f'listen = "{self.server.address}"\naudit_log = "{audit_log}"',
                   {"anna": 'memory.guaranteed = "512MiB"'})  # a running server has the address
        self.assertFalse(os.path.exists(audit_log))
        self.check('audit_log = "/dev/null/audit.log"', {"anna": ""}, "/dev/null/audit.log")
        self.check('control_socket = "/dev/null/control"', {"anna": ""}, "/dev/null")
        self.check('listen = "192.0.2.1:9750"', {"anna": ""}, "cannot listen on 192.0.2.1:9750")
        self.check("", {"anna": 'memory.guaranteed = "2GiB"', "ben": "gpus_allowed = [3]"},
                   "guaranteed 2.0 GiB together on GPU 0", "names GPU 3, and the server has 1")

    def test_an_address_that_something_else_has_is_refused_and_a_gpuwire_server_may_have_it(self):
        taken = OneAnswer(b"SSH-2.0-OpenSSH_9.2\r\n")
        self.addCleanup(taken.close)
        port = self.server.address.rpartition(":")[2]
        for mine in (self.server.address, f"0.0.0.0:{port}"):
            self.check(f'listen = "{mine}"\nallow_unencrypted_network = true', {"anna": ""})
        strange = taken.address.rpartition(":")[2]
        for key, address in (("listen", taken.address), ("listen", f"0.0.0.0:{strange}"),
                             ("metrics_listen", taken.address), ("metrics_listen", self.server.address)):
            self.check(f'{key} = "{address}"\nallow_unencrypted_network = true', {"anna": ""},
                       f"cannot listen on {address}: the address is in use, and not by a gpuwire server")

    def test_the_running_server_logs_no_foreign_client_because_of_a_check(self):
        refusals = r"refused 127\.0\.0\.1"
        for _ in range(3):
            self.check(f'listen = "{self.server.address}"', {"anna": ""})
        host, port = self.server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as foreign:
            foreign.sendall(b"GET / HTTP/1.0\r\n\r\n")
            self.assert_logged(refusals)  # the log's first, although the checks came before
            self.assertEqual(len(re.findall(refusals, self.log())), 1, self.log())

    def test_a_unix_socket_that_something_else_listens_on_is_refused(self):
        path = os.path.join(self.folder.name, "there")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            self.check(f'listen = "unix:{path}"', {"anna": ""})  # without a listener
            listening.listen()
            answering = threading.Thread(target=self.hang_up_on_all, args=(listening,))
            answering.start()
            try:
                self.check(f'listen = "unix:{path}"', {"anna": ""},
                           "the address is in use, and not by a gpuwire server")
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                answering.join()

    def hang_up_on_all(self, listening):
        with contextlib.suppress(OSError):
            while True:
                listening.accept()[0].close()

    def test_folders_of_chunks_and_of_what_outlives_the_server_are_looked_at(self):
        self.check('dedup_directory = "/dev/null/chunks"', {"anna": ""}, "/dev/null is not a folder")
        self.check("", {"anna": 'dedup_disk = "1GiB"'}, "/dev/null is not a folder", XDG_CACHE_HOME="/dev/null")
        self.check("", {"anna": ""}, XDG_CACHE_HOME="/dev/null")
        if os.geteuid() != 0:  # root's folder is always /run/gpuwire
            self.check('listen = "127.0.0.1:9750"', {"anna": ""}, warns=["sessions will end with this process"],
                       XDG_RUNTIME_DIR="/dev/null")

    def test_all_is_told_at_once_also_what_lies_behind_mistakes_in_the_text(self):
        taken = OneAnswer(b"SSH-2.0-OpenSSH_9.2\r\n")
        self.addCleanup(taken.close)
        self.check(f"""
listen = ["{taken.address}", "nonsense"]
metrics_listen = "unix:/run/metrics"
audit_log = "/dev/null/audit.log"
dedup_directory = "chunks"
control_socket = "/dev/null/control"
cupti = "sometimes"
gpus = [0, 5, "six"]
sessions_mox = 3""", {"anna": 'memory.guaranteed = "2GiB"\nweight = -1', "ben": "gpus_allowed = [3]"},
                   'listen of [server] must be HOST:PORT or unix:PATH, got "nonsense"',
                   "metrics_listen of [server] must",
                   "dedup_directory of [server] must be an absolute path", "cupti of [server] must",
                   "gpus of [server] must hold whole numbers", 'did you mean "sessions_max"?',
                   "weight of [tenants.anna] must",
                   f"cannot listen on {taken.address}: the address is in use", "/dev/null/audit.log",
                   "/dev/null/control", "gpus of [server] names GPU 5, and the server has 1",
                   "guaranteed 2.0 GiB together on GPU 0", "gpus_allowed of [tenants.ben] names GPU 3",
                   "/proc/gpuwire: /proc cannot be written", arguments=["--module-cache", "/proc/gpuwire"])
        self.write("", {"anna": ""})
        with open(self.file, "a", encoding="utf-8") as file:
            file.write("this is no TOML")
        ran = subprocess.run([GPUWIRE, "serve", "--config", self.file, "--device", DEVICE, "--check-config",
                              "--module-cache", "/dev/null/cache"], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 2)
        first, second = ran.stderr.splitlines()
        self.assertIn(self.file, first)
        self.assertIn("/dev/null is not a folder", second)

    def test_a_folder_where_nobody_can_write_is_a_mistake_for_root_too(self):
        for key, path in (("dedup_directory", "/proc/chunks"), ("runtime_directory", "/proc/self/gpuwire"),
                          ("dedup_directory", "/sys/chunks"), ("control_socket", "/proc/control"),
                          ("listen", "unix:/proc/socket")):
            self.check(f'{key} = "{path}"', {"anna": ""}, path.removeprefix("unix:"), "cannot be written")
        # The check leaves no files.
        folder = os.path.join(self.folder.name, "tried")
        os.makedirs(folder)
        self.check(f'dedup_directory = "{folder}"\nruntime_directory = "{folder}/run"\n'
                   f'control_socket = "{folder}/control"', {"anna": ""})
        self.assertEqual(os.listdir(folder), [])

    @unittest.skipUnless(os.geteuid() == 0, "only root mounts")
    def test_a_file_system_that_is_read_only_is_a_mistake(self):
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no namespace of mounts can be made here")
        folder = os.path.join(self.folder.name, "read_only")
        os.makedirs(folder, exist_ok=True)
        mount = f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}" && exec "$@"'
        self.check(f'dedup_directory = "{folder}/chunks"', {"anna": ""},
                   f"{folder}/chunks: {folder} cannot be written: Read-only file system",
                   prefix=["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"])

    def test_users_that_the_machine_lacks_and_a_cupti_that_is_nowhere_are_told(self):
        self.check('cupti = "/nowhere/libcupti.so"', {"anna": 'unix_users = ["no such user"]'},
                   warns=['this machine has no user "no such user"', "cupti: /nowhere/libcupti.so: No such file"])

    def test_a_server_that_is_to_offer_rdma_and_cannot_is_told(self):
        self.check('rdma = "trusted"', {"anna": ""}, warns=["no RDMA: "], UCX_TLS="no-such-transport")

    def test_the_folder_of_gpu_code_that_nobody_has_named_is_named_in_the_log(self):
        cache = os.environ.get("XDG_CACHE_HOME")
        folder = os.path.join(cache, "gpuwire") if cache else "/var/cache/gpuwire"
        if os.geteuid() != 0 and not cache:
            folder = os.path.expanduser("~/.cache/gpuwire")
        self.assert_logged(re.escape(f"programs' GPU code is kept in {folder} (--module-cache DIR, or none)"))

    def test_an_identity_that_cannot_be_used_is_named(self):
        os.rename(os.path.join(self.identity, "server.key"), os.path.join(self.identity, "server.key.away"))
        self.addCleanup(os.rename, os.path.join(self.identity, "server.key.away"),
                        os.path.join(self.identity, "server.key"))
        self.check("", {"anna": ""}, "server.key")


if __name__ == "__main__":
    unittest.main(verbosity=2)
