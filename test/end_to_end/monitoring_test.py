"""An administrator's view of a server: top, status, metrics, the control socket, the audit log."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from support import (
    BUILD,
    DEVICE,
    RUN_LIMIT_SECONDS,
    Server,
    audit_lines,
    children,
    run,
    start,
    wait_for_answer,
    wait_until,
)
import debian_tools  # noqa: E402, in the folder that support names

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
OTHER_USER = 54321  # any other user
MONITORING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "packaging", "monitoring")


class Monitored(unittest.TestCase):
    """A server with a folder of its own for its control socket."""

    arguments = ()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-watch-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.server = Server(BUILD, ["--device", DEVICE, *self.server_arguments()])
        self.addCleanup(self.server.stop)
        self.server.__enter__()
        self.control = self.control_socket()

    def server_arguments(self):
        return self.arguments

    def control_socket(self):
        return f"/run/gpuwire/{self.server.process.pid}.sock" if os.geteuid(
        ) == 0 else f"/tmp/gpuwire-{os.geteuid()}/{self.server.process.pid}.sock"

    def command(self, name, *arguments):
        return subprocess.run([GPUWIRE, name, "--control", self.control, *arguments], capture_output=True, text=True,
                              timeout=RUN_LIMIT_SECONDS)

    def top(self, interval="0.2"):
        ran = self.command("top", "--json", "--once", "--interval", interval)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(len(ran.stdout.splitlines()), 1)
        return json.loads(ran.stdout)

    def status(self):
        ran = self.command("status", "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def ask(self, **request):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(RUN_LIMIT_SECONDS)
            link.connect(self.control)
            link.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(link.makefile().readline())

    def neighbours(self, count):
        """Starts programs that work until their standard input closes."""
        started = []
        for _ in range(count):
            program = start(self.server.address, "neighbour")
            self.addCleanup(program.wait)
            self.addCleanup(program.communicate)
            self.addCleanup(program.kill)
            self.assertEqual(program.stdout.readline(), "working\n")
            started.append(program)
        # A program works as soon as its worker does, and the server gets the report a moment later.
        wait_until(lambda: [session["state"] for session in self.status()["sessions"]].count("running") >= count,
                   RUN_LIMIT_SECONDS, "their sessions")
        return started

    def audit_lines(self):
        return audit_lines(self.server.log)

    def audited(self, event, least=1):
        found = []

        def there():
            found[:] = [line for line in self.audit_lines() if line["event"] == event]
            return len(found) >= least

        wait_until(there, RUN_LIMIT_SECONDS, f"{least} audit lines {event}")
        return found


class WithoutPrewarmed(Monitored):
    arguments = ("--prewarmed-workers", "0")

    def test_each_program_is_counted_that_has_waited_for_a_worker_and_no_spare_is_started_for_the_next(self):
        program = os.path.join(BUILD, "examples", "vector_add")
        for _ in range(3):
            self.assertEqual(run(self.server.address, program).returncode, 0)

        def counted():
            tenant = next(one for one in self.status()["tenants"] if one["name"] == "open")
            return tenant["begun"], tenant["worker_waits"]

        wait_for_answer(counted, (3, 3), "three programs that have waited")
        self.assertEqual(self.status()["devices"][0]["prewarmed_workers"], 0)


class Figures(Monitored):
    def test_two_programs_are_two_sessions_with_figures_that_add_up(self):
        programs = self.neighbours(2)
        figures = self.top()
        sessions = figures["sessions"]
        self.assertEqual(len(sessions), 2)
        self.assertEqual({session["state"] for session in sessions}, {"running"})
        self.assertEqual({session["tenant"] for session in sessions}, {"open"})
        self.assertEqual({session["worker_pid"]
                          for session in sessions} - set(children(self.server.process.pid, "gpuwire-worker")), set())
        self.assertGreater(figures["interval_s"], 0.19)
        tenant = figures["tenants"][0]
        self.assertEqual(tenant["sessions"], {"running": 2})
        self.assertEqual(tenant["begun"], 2)
        for device in figures["devices"]:
            shares = [
                entry for one in figures["tenants"] for entry in one["devices"] if entry["device"] == device["index"]
            ]
            self.assertEqual(sum(share["gpu_time_ns"] for share in shares), device["gpu_time_ns"])
            self.assertEqual(sum(share["memory_used_bytes"] for share in shares), device["memory_used_bytes"])
            on_it = [
                session for session in sessions if any(used["device"] == device["index"] for used in session["devices"])
            ]
            self.assertEqual(len(on_it), device["sessions"])
        self.assertEqual(sum(session["bytes_in"] for session in sessions), tenant["bytes_in"])
        for program in programs:
            out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
            self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        wait_until(lambda: not self.status()["sessions"], RUN_LIMIT_SECONDS, "no session")
        wait_for_answer(lambda: self.status()["tenants"][0]["ended"], {"finished": 2}, "two sessions that have ended")
        self.assertEqual(self.status()["tenants"][0]["begun"], 2)

    def test_the_tables_are_printed_when_standard_output_is_no_terminal(self):
        self.neighbours(1)
        ran = self.command("top", "--once", "--interval", "0.1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotIn("\x1b", ran.stdout)
        for word in ("GPU%", "TENANT", "open", "SESSION", "running"):
            self.assertIn(word, ran.stdout)
        ran = self.command("status")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("open", ran.stdout)

    def test_top_prints_one_object_for_each_interval_and_ends_with_the_server(self):
        watching = subprocess.Popen([GPUWIRE, "top", "--control", self.control, "--json", "--interval", "0.1"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first, second = json.loads(watching.stdout.readline()), json.loads(watching.stdout.readline())
        self.assertGreater(second["taken_ns"], first["taken_ns"])
        self.server.stop()
        _, err = watching.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(watching.returncode, 1)
        self.assertEqual(len(err.splitlines()), 1)

    def test_the_control_socket_goes_with_the_server(self):
        self.assertTrue(os.path.exists(self.control))
        self.assertEqual(self.server.stop(), 0)
        self.assertFalse(os.path.exists(self.control))
        ran = self.command("status")
        self.assertEqual(ran.returncode, 1)
        self.assertIn(self.control, ran.stderr)


class Commands(Monitored):
    def test_an_administrator_ends_one_session_and_the_program_hears_why(self):
        first, second = self.neighbours(2)
        sessions = sorted(self.status()["sessions"], key=lambda session: session["id"])
        answer = self.ask(command="end", session=sessions[0]["id"], reason="maintenance tonight")
        self.assertEqual(answer, {"ok": True, "ended": 1})
        self.assertNotEqual(first.wait(RUN_LIMIT_SECONDS), 0)
        _, err = first.communicate()
        self.assertIn("maintenance tonight", err)
        ended = self.audited("ended")[0]
        self.assertEqual((ended["session"], ended["cause"], ended["reason"]),
                         (sessions[0]["id"], "stopped", "maintenance tonight"))
        self.assertGreater(ended["seconds"], 0)
        self.assertEqual(self.audited("end_asked")[0]["by_uid"], os.geteuid())
        out, err = second.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)

    def test_all_sessions_of_a_tenant_are_ended_at_once(self):
        programs = self.neighbours(2)
        self.assertEqual(self.ask(command="end", tenant="open", reason="enough"), {"ok": True, "ended": 2})
        for program in programs:
            self.assertNotEqual(program.wait(RUN_LIMIT_SECONDS), 0)
            _, err = program.communicate()
            self.assertIn("enough", err)

    def test_a_killed_worker_is_audited_as_died(self):
        self.neighbours(1)
        os.kill(self.status()["sessions"][0]["worker_pid"], signal.SIGKILL)
        self.assertEqual(self.audited("ended")[0]["cause"], "died")
        wait_until(lambda: self.status()["tenants"][0]["ended"] == {"died": 1}, RUN_LIMIT_SECONDS,
                   "the session counted as died")


class Refusals(Monitored):
    arguments = ("--max-sessions", "2")

    def test_a_refused_program_is_counted_and_audited(self):
        ran = run(self.server.address, "neighbour", stdin=subprocess.DEVNULL, env={**os.environ, "GPUWIRE_GPUS": "2"})
        self.assertNotEqual(ran.returncode, 0)
        refused = self.audited("refused")[0]
        self.assertEqual(refused["tenant"], "open")
        self.assertIn("2 GPUs asked for", refused["reason"])
        wait_for_answer(lambda: self.status()["tenants"][0]["refused"], {"never_fits": 1}, "the refusal")

    def test_programs_beyond_the_servers_places_wait_and_are_all_served(self):
        first = self.neighbours(2)
        waiting = [start(self.server.address, "neighbour") for _ in range(10)]
        for program in waiting:
            self.addCleanup(program.kill)
        wait_until(lambda: [session["state"] for session in self.status()["sessions"]].count("queued") == 10,
                   RUN_LIMIT_SECONDS, "ten programs in the queue")
        for program in waiting:  # each works only as long as needed, in any order of service
            program.stdin.close()
            program.stdin = None
        for program in first:
            self.assertEqual(program.communicate(timeout=RUN_LIMIT_SECONDS)[0].splitlines()[-1], "PASSED")
        for program in waiting:
            out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
            self.assertEqual(out.splitlines()[-1], "PASSED", err)
            self.assertIn("all 2 sessions of the server are in use", err)


class Configured(Monitored):
    """Keys of the section [server]: the paths of the audit log, the metrics and the control socket, and the log as
    JSON."""

    TENANT = '[tenants.lab]\nclass = "interactive"\nweight = 2\n'

    def write_configuration(self, tenants):
        with open(os.path.join(self.folder, "server.toml"), "w", encoding="utf-8") as file:
            file.write(f'''[server]
open_tenant = "lab"
audit_log = "{self.folder}/audit.log"
control_socket = "{self.folder}/control"
metrics_listen = "127.0.0.1:0"
log_format = "json"
{tenants}''')

    def server_arguments(self):
        self.write_configuration(self.TENANT)
        return ("--config", os.path.join(self.folder, "server.toml"))

    def control_socket(self):
        return os.path.join(self.folder, "control")

    def audit_lines(self):
        with open(os.path.join(self.folder, "audit.log"), encoding="ascii") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def test_the_audit_file_tells_a_session_from_its_beginning_to_its_end(self):
        program, = self.neighbours(1)
        program.communicate(timeout=RUN_LIMIT_SECONDS)
        ended = self.audited("ended")[0]
        lines = self.audit_lines()
        # A machine that stalls for seconds loses connections, which are resumed.
        events = [line["event"] for line in lines if line["event"] not in ("detached", "attached")]
        self.assertEqual(events, ["admitted", "begun", "ended"], lines)
        self.assertEqual((ended["tenant"], ended["cause"], ended["gpus"]), ("lab", "finished", [0]), lines)
        self.assertGreater(ended["bytes_in"], 0)
        self.assertGreater(ended["bytes_out"], 0)
        self.assertEqual(os.stat(os.path.join(self.folder, "audit.log")).st_mode & 0o777, 0o600)
        tenant = self.status()["tenants"][0]
        self.assertEqual((tenant["bytes_in"], tenant["bytes_out"]), (ended["bytes_in"], ended["bytes_out"]))

    def test_a_reload_opens_the_audit_file_anew_and_is_audited(self):
        self.write_configuration(self.TENANT + '[tenants.guests]\nclass = "scavenger"\n')
        os.rename(os.path.join(self.folder, "audit.log"), os.path.join(self.folder, "audit.1"))
        self.server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: os.path.exists(os.path.join(self.folder, "audit.log")), RUN_LIMIT_SECONDS,
                   "a new audit file")
        self.assertIn("2 tenants", self.audited("reload")[0]["result"])
        wait_for_answer(lambda: [tenant["name"] for tenant in self.status()["tenants"]], ["guests", "lab"],
                        "the tenants of the new configuration")
        self.write_configuration("[tenants.lab]\nweight = -1\n")
        answer = self.ask(command="reload")
        self.assertFalse(answer["ok"])
        self.assertIn("server.toml", answer["errors"][0])
        self.assertEqual(self.audited("reload", least=2)[1]["result"], "refused")

    @unittest.skipUnless(os.geteuid() == 0, "only root can ask as another user")
    def test_a_user_that_a_tenant_names_by_number_sees_that_tenant_and_no_other(self):
        self.write_configuration(self.TENANT + f'[tenants.guests]\nunix_users = ["{OTHER_USER}"]\n')
        self.assertTrue(self.ask(command="reload")["ok"])
        os.chmod(self.folder, 0o755)
        os.seteuid(OTHER_USER)
        try:
            answer = self.ask(command="snapshot")
        finally:
            os.seteuid(0)
        self.assertEqual([tenant["name"] for tenant in answer["snapshot"]["tenants"]], ["guests"])

    def test_the_server_runs_the_exporter_and_logs_json(self):
        found = []

        def listening():
            found[:] = [
                line["text"] for line in map(json.loads, list(self.server.log)) if "metrics at" in line.get("text", "")
            ]
            return found

        wait_until(listening, RUN_LIMIT_SECONDS, "the exporter's line in the log")
        with urllib.request.urlopen(re.search(r"http\S+", found[0])[0], timeout=RUN_LIMIT_SECONDS) as answer:
            self.assertIn('gpuwire_sessions{tenant="lab",state="running"} 0', answer.read().decode())
        for line in list(self.server.log):
            self.assertEqual(set(json.loads(line)) - {"time", "level", "event", "text", "fields"}, set())


class Metrics(Monitored):
    def setUp(self):
        super().setUp()
        self.exporter = subprocess.Popen([GPUWIRE, "metrics", "--listen", "127.0.0.1:0", "--control", self.control],
                                         stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.exporter.communicate)
        self.addCleanup(self.exporter.kill)
        self.url = re.search(r"http\S+", self.exporter.stderr.readline())[0]

    def scrape(self):
        with urllib.request.urlopen(self.url, timeout=RUN_LIMIT_SECONDS) as answer:
            self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            text = answer.read().decode()
        return {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        }

    def test_a_scrape_shows_the_sessions_and_what_they_have_had(self):
        programs = self.neighbours(2)
        figures = {}

        def counted():
            figures.update(self.scrape())
            return figures['gpuwire_sessions{tenant="open",state="running"}'] == 2

        wait_until(counted, RUN_LIMIT_SECONDS, "two running sessions in the metrics")
        self.assertEqual(figures["gpuwire_up"], 1)
        self.assertEqual(figures['gpuwire_sessions_begun_total{tenant="open"}'], 2)
        self.assertEqual(figures['gpuwire_queue_wait_seconds_count{tenant="open"}'], 2)
        for program in programs:
            program.communicate(timeout=RUN_LIMIT_SECONDS)
        wait_until(lambda: self.scrape().get('gpuwire_sessions_ended_total{tenant="open",cause="finished"}') == 2,
                   RUN_LIMIT_SECONDS, "two ended sessions")

    def test_promtool_finds_nothing_to_say_about_a_scrape_with_sessions(self):
        for program in self.neighbours(2)[:1]:
            program.communicate(timeout=RUN_LIMIT_SECONDS)
        wait_until(lambda: self.scrape().get('gpuwire_sessions_ended_total{tenant="open",cause="finished"}') == 1,
                   RUN_LIMIT_SECONDS, "an ended session")
        with urllib.request.urlopen(self.url, timeout=RUN_LIMIT_SECONDS) as answer:
            scraped = answer.read()
        self.assert_promtool_is_content("metrics", input=scraped)
        # promtool does find a counter without a counter's name.
        self.assertIn("counter metrics should have", self.promtool("metrics", input=scraped.replace(
            b"gpuwire_sessions_begun_total", b"gpuwire_sessions_begun")).stderr.decode())

    def test_promtool_finds_nothing_to_say_about_the_alert_rules(self):
        self.assert_promtool_is_content("rules", "--lint=all", "--lint-fatal",
                                        os.path.join(MONITORING, "prometheus_alerts.yml"))

    def promtool(self, *what, **extra):
        program = debian_tools.tool(BUILD, "promtool", "prometheus", ("./usr/bin/promtool",)).program
        return subprocess.run([program, "check", *what], capture_output=True, timeout=RUN_LIMIT_SECONDS, check=False,
                              **extra)

    def assert_promtool_is_content(self, *what, **extra):
        ran = self.promtool(*what, **extra)
        self.assertEqual((ran.returncode, ran.stderr), (0, b""), ran.stdout.decode())

    def test_when_the_server_has_gone_the_exporter_says_so(self):
        self.assertEqual(self.scrape()["gpuwire_up"], 1)
        self.server.stop()
        wait_until(lambda: self.scrape() == {"gpuwire_up": 0}, RUN_LIMIT_SECONDS, "gpuwire_up 0")

    def test_other_requests_and_garbage_are_refused_and_scrapes_go_on(self):
        host, port = re.match(r"http://([^:/]+):(\d+)/", self.url).groups()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(self.url.replace("metrics", "secret"), timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(refused.exception.code, 404)
        silent = [socket.create_connection((host, int(port))) for _ in range(80)]
        for link in silent[:10]:
            link.sendall(b"\x00\xff" * 8000)
        self.assertEqual(self.scrape()["gpuwire_up"], 1)
        for link in silent:
            link.close()


class Quiet(Monitored):
    arguments = ("--log-level", "info")

    def test_the_log_has_one_line_for_a_program_at_its_end(self):
        before = len(self.server.log)
        ran = run(self.server.address, "neighbour", stdin=subprocess.DEVNULL)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        wait_until(lambda: len(self.server.log) > before, RUN_LIMIT_SECONDS, "a line of the log")
        self.server.stop()
        lines = [line for line in self.server.log[before:] if "session" in line and "sessions" not in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(
            lines[0], r"info session 1 of open, neighbour on \S+ \(127\.0\.0\.1:\d+\): finished; "
            r"\d+\.\d s, GPU \d+\.\d s, \d+ MiB at most")


class MetricsAddress(unittest.TestCase):
    def test_one_that_somebody_else_has_is_an_error_at_the_start(self):
        with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory() as folder:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            path = os.path.join(folder, "server.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'[server]\nlisten = "127.0.0.1:0"\nopen_tenant = "open"\nmetrics_listen = "{address}"\n'
                           f'control_socket = "{folder}/control"\n[tenants.open]\n')
            ran = subprocess.run([GPUWIRE, "serve", "--config", path, "--device", DEVICE], capture_output=True,
                                 text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn(f"metrics_listen: cannot listen on {address}: Address already in use", ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
