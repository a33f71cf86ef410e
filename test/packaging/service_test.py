"""The packaged service under systemd itself (machine/systemd_machine.py): started, restarted and killed below a running
program, reloaded, watched, stopped."""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine"))
from installed import Installed  # noqa: E402
from systemd_machine import SystemdMachine, why_not  # noqa: E402

SERVICE = "gpuwire-server"
GROUP = f"/sys/fs/cgroup/system.slice/{SERVICE}.service"
CONFIGURATION = "/etc/gpuwire/server.toml"


def software_device_drop_in():
    """The drop-in of docs/install.md for a machine without a GPU."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/install.md"),
              encoding="utf-8") as page:
        return re.search(r"```ini\n(\[Service\]\nExecStartPre=\n.*?)```", page.read(), re.S)[1]


@unittest.skipIf(why_not(), why_not())
class Service(Installed):
    def setUp(self):
        self.begin(SystemdMachine())
        self.install()
        self.machine.write(f"/etc/systemd/system/{SERVICE}.service.d/override.conf", software_device_drop_in())
        self.machine.run("systemctl", "daemon-reload")
        self.adopted = 0  # times of the journal's reports

    def systemctl(self, *words):
        ran = self.machine.try_run("systemctl", *words, SERVICE)
        self.assertEqual(ran.returncode, 0, ran.stderr + self.log())
        return ran.stdout

    def log(self):
        return self.machine.try_run("journalctl", "--no-pager", "--output=cat", "--unit", SERVICE).stdout

    def shown(self, name):
        return self.systemctl("show", "--value", f"--property={name}").strip()

    def assert_next_process(self, before):
        """A new process answers for the service, and continues the session of the previous one."""
        self.wait_until(lambda: self.shown("ActiveState") == "active" and self.shown("MainPID") not in ("0", before),
                        "another process of the service")
        self.wait_until(lambda: self.log().count("1 session of an earlier server goes on") > self.adopted,
                        "the session with the next process, in the journal")
        self.adopted = self.log().count("1 session of an earlier server goes on")

    def test_a_program_goes_on_when_the_service_is_restarted_and_when_its_process_is_killed(self):
        self.systemctl("start")
        program = self.start_program()
        before = self.shown("MainPID")
        self.systemctl("restart")
        self.assert_next_process(before)
        for kill in ("KILL", "ABRT"):
            before = self.shown("MainPID")
            self.systemctl("kill", "--kill-whom=main", f"--signal={kill}")
            self.assert_next_process(before)
        self.assertEqual(self.shown("NRestarts"), "2")
        self.assert_passes(program)

    def test_a_process_that_no_longer_answers_the_watchdog_is_replaced_below_its_programs(self):
        self.machine.write(f"/etc/systemd/system/{SERVICE}.service.d/impatient.conf",
                           "[Service]\nWatchdogSec=5\nTimeoutAbortSec=2\n")
        self.machine.run("systemctl", "daemon-reload")
        self.systemctl("start")
        program = self.start_program()
        before = self.shown("MainPID")
        self.systemctl("kill", "--kill-whom=main", "--signal=STOP")
        self.assert_next_process(before)
        self.assert_passes(program)

    def test_a_reload_says_what_is_wrong_and_the_service_goes_on(self):
        self.systemctl("start")
        right = self.machine.read(CONFIGURATION)
        self.machine.write(CONFIGURATION, right + "\n[tenants.anna]\nclass = \"batch\"\n")
        self.systemctl("reload")
        self.assertIn("anna", self.machine.run("gpuwire", "status", "--json"))
        self.machine.write(CONFIGURATION, right + "\n[tenants.anna]\nnonsense = 1\n")
        self.assertNotEqual(self.machine.try_run("systemctl", "reload", SERVICE).returncode, 0)
        self.wait_until(lambda: re.search(r"server\.toml:\d+: .*nonsense", self.log()), "the mistake in the journal")
        self.assertEqual(self.shown("ActiveState"), "active")
        self.assert_passes(self.start_program())

    def test_the_service_writes_where_its_unit_says_and_runs_as_its_own_user_without_rights(self):
        self.systemctl("start")
        self.assert_passes(self.start_program())
        main = self.shown("MainPID")
        status = self.machine.run("cat", f"/proc/{main}/status")
        self.assertRegex(status, r"CapBnd:\s+0+\n")
        self.assertRegex(status, r"NoNewPrivs:\s+1\n")
        user = self.machine.run("id", "-u", "gpuwire").strip()
        self.assertRegex(status, rf"Uid:\s+{user}\s+{user}\s")
        mounts = self.machine.run("cat", f"/proc/{main}/mounts")
        self.assertRegex(mounts, r"(?m)^\S+ / \S+ ro,")
        for folder in ("/var/lib/gpuwire", "/var/cache/gpuwire", "/var/log/gpuwire", "/run/gpuwire"):
            self.assertRegex(mounts, rf"(?m)^\S+ {folder} \S+ rw,", folder)
        self.await_in_file('"event":"ended"', "/var/log/gpuwire/audit.log")

    def test_the_workers_of_a_tenant_are_bounded_by_a_group_of_theirs_also_after_a_restart(self):
        self.systemctl("start")
        controllers = self.machine.run("cat", GROUP + "/cgroup.controllers").split()
        if not {"memory", "pids"} <= set(controllers):
            self.assertIn("host memory: bounded without control groups: ", self.log())
            self.skipTest("cgroup v2 has not the controllers of memory and processes here")
        program = self.start_program()
        before = self.shown("MainPID")
        self.systemctl("restart")
        self.assert_next_process(before)
        groups = self.machine.run("ls", GROUP).split()
        tenants = [name for name in groups if re.fullmatch(r"gpuwire-tenant-\d+", name)]
        self.assertEqual(len(tenants), 1, groups)
        self.assertTrue(self.machine.run("cat", f"{GROUP}/{tenants[0]}/cgroup.procs").split())
        self.assertRegex(self.machine.run("cat", f"{GROUP}/{tenants[0]}/memory.max"), r"^\d+\n")
        self.assert_passes(program)

    def test_nothing_is_left_of_the_service_when_it_is_stopped(self):
        self.systemctl("start")
        self.assert_passes(self.start_program())
        self.systemctl("stop")
        self.assertEqual(self.shown("ActiveState"), "inactive", self.log())
        self.wait_until(lambda: "gpuwire" not in self.machine.run("ps", "-e", "-o", "comm"), "the last process ends")
        self.wait_until(lambda: not os.path.exists(self.machine.path(GROUP)), "its control group is gone")
        self.assertFalse(os.path.exists(self.machine.path("/run/gpuwire")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
