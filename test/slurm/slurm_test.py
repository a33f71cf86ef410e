"""Jobs of a real Slurm (Debian's slurmctld, slurmd and munged) whose CUDA programs run on a gpuwire server."""

import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
sys.path.insert(0, HERE)
from accounting import Accounting, allocated  # noqa: E402
from cluster import LIMIT_SECONDS, Cluster, missing, wait_until  # noqa: E402
from gpuwire_server import Server  # noqa: E402

# Slurm's files and the scripts of jobs split words at spaces, which the path of the build tree may contain.
LINKS = tempfile.TemporaryDirectory(prefix="gpuwire-slurm-build-", dir="/tmp")
BUILD = os.path.join(LINKS.name, "build")
os.chmod(LINKS.name, 0o755)
os.symlink(os.path.abspath(os.environ.get("GPUWIRE_BUILD", os.path.join(HERE, "..", "..", "build"))), BUILD)
GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
PROGRAM = os.path.join(BUILD, "examples", "vector_add")
HOLDS = os.path.join(
    BUILD, "test_programs", "endless_copies"
)  # prints a line when it works, and goes on until it is ended
USER, OTHER_USER = "nobody", "daemon"


def why_not():
    """Returns why these tests cannot run on this machine; None: they can."""
    if missing():
        return f"{', '.join(missing())} missing: apt-get install slurmctld slurmd slurm-client munge libslurm-dev"
    if os.geteuid() != 0:
        return "jobs of other users, and prologs, are root's business"
    if not os.path.exists(os.path.join(BUILD, "lib", "gpuwire", "slurm", "spank_gpuwire.so")):
        return "gpuwire-slurm was not built: no slurm/spank.h"
    if not os.path.exists(PROGRAM) or not os.path.exists(HOLDS):
        return "the CUDA programs were not built: no nvcc"
    for folder in (BUILD, HERE):
        if subprocess.run(["test", "-x", folder], user=USER, check=False).returncode != 0:
            return f"{USER} cannot enter {folder}"
    return None


REASON = why_not()


class SlurmCase(unittest.TestCase):
    """One cluster, of one node if nothing else is said, and one server with two GPUs, for all tests."""

    nodes = 1
    accounting = None

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, licences=2, nodes=cls.nodes, accounting=cls.accounting)
        cls.addClassCleanup(cls.cluster.stop)
        cls.identity = cls.cluster.path("identity")
        subprocess.run(
            [GPUWIRE, "admin", "--directory", cls.identity, "init", "--host", "localhost"],
            check=True,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )
        cls.cluster.write(
            "server.toml",
            f'[server]\nlisten = "127.0.0.1:0"\ncontrol_socket = "{cls.cluster.path("control")}"\n'
            f'[tls]\ndirectory = "{cls.identity}"\n[tenants.slurm]\n[tenants.quick]\nclass = "interactive"\n',
        )
        cls.server = Server(
            BUILD,
            [
                "--device",
                "software",
                "--software-devices",
                "2",
                "--software-memory",
                "32GiB",
                "--config",
                cls.cluster.path("server.toml"),
                "--module-cache",
                "none",
            ],
        ).__enter__()
        cls.addClassCleanup(cls.server.stop)
        port = cls.server.address.rsplit(":", 1)[1]
        # Acts like SSH with a forced command at a site, without the network.
        cls.command = cls.cluster.path("on-the-server")
        cls.cluster.write(
            "on-the-server",
            f"#!/bin/sh\n[ -e {cls.cluster.path('unreachable')} ] && echo 'no route to host' >&2 && exit 255\n"
            f'export SSH_ORIGINAL_COMMAND="gpuwire $*"\n'
            f'exec {sys.executable} -B {cls.cluster.adapter("remote_admin.py")} --gpuwire {GPUWIRE} '
            f"--directory {cls.identity} --control {cls.cluster.path('control')}\n",
        )
        os.chmod(cls.command, 0o755)
        cls.cluster.write_site(
            f"""[gpuwire]
tenant = slurm
run_directory = {cls.cluster.path('jobs')}
client = {GPUWIRE}
oversubscription = 1
licences_file = {cls.cluster.path('licences.conf')}
[server gpu7]
address = tls://localhost:{port}
command = {cls.command}
[class quick]
tenant = quick
[class elsewhere]
partitions = quick
""",
        )
        cls.cluster.__enter__()

    # --- what is seen --------------------------------------------------------------------------------------------

    def server_says(self, *words):
        return json.loads(
            subprocess.run(
                [self.command, *words, "--json"], check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS
            ).stdout
        )

    def sessions(self):
        return self.server_says("status")["sessions"]

    def tokens(self, job):
        return [one for one in self.server_says("admin", "list")["credentials"] if one.get("job") == f"slurm/lab/{job}"]

    def srun(self, *words, user=USER, **extra):
        return self.cluster.run("srun", *words, user=user, **extra)

    def assert_passed(self, ran, times=1):
        self.assertEqual(
            ran.returncode, 0, f"{ran.stdout}\n{ran.stderr}\n{self.cluster.logs()}\n{''.join(self.server.log[-20:])}"
        )
        self.assertEqual(ran.stdout.count("PASSED"), times, ran.stdout)

    def assert_says(self, ran, *words):
        self.assertNotEqual(ran.returncode, 0, ran.stdout)
        for word in words:
            self.assertIn(word, ran.stdout + ran.stderr, self.cluster.logs())

    def hold(self, *options, tasks=1):
        """A job that has its GPUs in use, and its number."""
        job = self.cluster.submit(f"srun {HOLDS}", *options, user=USER)
        self.addCleanup(self.cluster.run, "scancel", str(job))
        self.cluster.wait_for(job, "RUNNING", "FAILED", "COMPLETED")
        wait_until(
            lambda: self.cluster.output(job).count("copying") == tasks
            or self.cluster.state(job).split()[0] != "RUNNING",
            f"job {job} works: {self.cluster.logs()}",
        )
        self.assertEqual(self.cluster.state(job).split()[0], "RUNNING", self.cluster.output(job) + self.cluster.logs())
        return job

    def cancel(self, job):
        self.cluster.run("scancel", str(job), check=True)
        wait_until(lambda: not self.sessions(), "the server has no session left")
        wait_until(lambda: not any(one["counts"] for one in self.tokens(job)), "the job's tokens are revoked")


@unittest.skipIf(REASON, REASON or "")
class Jobs(SlurmCase):
    """What users do."""

    def test_a_program_computes_in_a_job_without_a_word_of_gpuwire_to_it(self):
        self.assert_passed(self.srun("--gpuwire=1", PROGRAM))
        self.assert_passed(self.srun("--gpuwire", "--gpuwire-mem=100M", PROGRAM))

    def test_a_program_without_the_option_is_left_alone(self):
        variables = self.srun("env").stdout
        self.assertNotIn("GPUWIRE", variables)
        self.assertNotIn("CUDA_VISIBLE_DEVICES", variables)

    def test_the_environment_is_as_with_the_nodes_own_gpus(self):
        variables = dict(
            line.split("=", 1)
            for line in self.srun("--gpuwire=2", "--gpuwire-mem=100M", "env").stdout.splitlines()
            if "=" in line
        )
        self.assertEqual(variables["CUDA_VISIBLE_DEVICES"], "0,1")
        self.assertEqual(variables["SLURM_GPUS"], "2")
        self.assertEqual(variables["GPUWIRE_GPUS"], "2")
        self.assertEqual(variables["GPUWIRE_MEMORY"], f"{100 << 20}B")
        self.assertTrue(variables["LD_LIBRARY_PATH"].split(":")[0].endswith("lib/gpuwire"))
        self.assertFalse(
            [value for value in variables.values() if "gpuwire_" in value and not value.startswith("/")],
            "no secret is in the environment",
        )

    def test_servers_in_the_users_own_environment_do_not_hold_in_a_job(self):
        mine = {
            "GPUWIRE_SERVER": "127.0.0.1:1",
            "GPUWIRE_IDENTITY": "/nonexistent/me.pem",
            "GPUWIRE_GPUS": "7",
            "LD_LIBRARY_PATH": "/my/own",
        }
        self.assert_passed(self.srun("--gpuwire=1", PROGRAM, environment=mine))
        self.assertIn(
            "lib/gpuwire:/my/own\n",
            self.srun("--gpuwire=1", "sh", "-c", "echo $LD_LIBRARY_PATH", environment=mine).stdout,
        )

    def test_a_batch_job_and_its_steps_have_the_jobs_gpus(self):
        job = self.cluster.submit(
            f"{PROGRAM}; srun {PROGRAM}; srun --gpuwire=1 sh -c 'echo step $CUDA_VISIBLE_DEVICES'\n"
            "echo batch $CUDA_VISIBLE_DEVICES",
            "--gpuwire=2",
            user=USER,
        )
        self.cluster.wait_for(job, "COMPLETED", "FAILED")
        output = self.cluster.output(job)
        self.assertEqual(output.count("PASSED"), 2, output + self.cluster.logs())
        self.assertIn("step 0\n", output)
        self.assertIn("batch 0,1\n", output)

    def test_scontrol_shows_a_jobs_memory_and_sacct_does_when_the_job_is_over(self):
        job = self.hold("--gpuwire=2", "--gpuwire-mem=20G")
        shown = self.cluster.show(job)
        self.assertIn("Licenses=gpuwire:2 ", shown)
        self.assertIn("AdminComment=gpuwire: 2 GPUs, 20GiB on each", shown)
        (session,) = self.sessions()
        self.assertEqual([one["memory_reserved_bytes"] for one in session["devices"]], [20 << 30] * 2)
        self.assertIn("Used=2 Free=0", self.cluster.run("scontrol", "--oneliner", "show", "license", "gpuwire").stdout)
        self.cancel(job)
        told = wait_until(
            lambda: self.cluster.run(
                "sacct",
                "--completion",
                f"--file={self.cluster.path('log', 'completed')}",
                "--noheader",
                f"--jobs={job}",
                "--format=JobID,State",
            ).stdout.split(),
            "the job's completion",
        )
        self.assertEqual(told[0], str(job))
        self.assertTrue(told[1].startswith("CANCELLED"), told)

    def test_jobs_wait_in_slurms_queue_and_not_in_the_servers(self):
        first = self.hold("--gpuwire=2")
        second = self.cluster.submit(PROGRAM, "--gpuwire=1", user=USER)
        wait_until(
            lambda: self.cluster.state(second) == "PENDING Licenses",
            f"job {second} waits: {self.cluster.state(second)}",
        )
        self.assertEqual([one["state"] for one in self.sessions()], ["running"])
        self.cancel(first)
        self.cluster.wait_for(second, "COMPLETED", "FAILED")
        self.assertIn("PASSED", self.cluster.output(second), self.cluster.logs())

    def test_the_elements_of_an_array_are_jobs_with_gpus_of_their_own(self):
        job = self.cluster.submit(PROGRAM, "--gpuwire=1", "--array=0-3", user=USER)
        wait_until(
            lambda: set(self.cluster.state(job).split("\n")) == {"COMPLETED None"},
            f"the array is over: {self.cluster.state(job)}",
        )
        for element in range(4):
            self.assertIn("PASSED", self.cluster.output(f"{job}_{element}"), self.cluster.logs())

    def test_the_tasks_of_a_job_share_its_gpus(self):
        job = self.hold("--gpuwire=1", "--ntasks-per-node=3", tasks=3)
        sessions = self.sessions()
        self.assertEqual(len(sessions), 3)
        self.assertEqual(
            len({tuple(device["device"] for device in one["devices"]) for one in sessions}),
            1,
            "on one GPU, of the server's two",
        )
        self.assertEqual({one["credential"] for one in sessions}, {self.tokens(job)[0]["id"]})
        self.cancel(job)
        self.assert_passed(self.srun("--ntasks-per-node=3", "--gpuwire=1", PROGRAM), times=3)

    def test_the_tasks_of_a_step_have_equal_parts_of_the_jobs_memory(self):
        job = self.hold("--gpuwire=1", "--gpuwire-mem=300M", "--ntasks-per-node=3", tasks=3)
        self.assertEqual(
            [[device["memory_reserved_bytes"] for device in one["devices"]] for one in self.sessions()],
            [[100 << 20]] * 3,
        )
        self.cancel(job)

    def test_a_job_has_no_more_gpus_than_its_licences(self):
        job = self.cluster.submit("srun --gpuwire=2 true", "--gpuwire=1", user=USER)
        self.cluster.wait_for(job, "FAILED", "COMPLETED")
        self.assertIn("the step asks for 2 GPUs, and the job has 1", self.cluster.output(job), self.cluster.logs())
        self.assert_says(
            self.srun("--gpuwire=1", "env", "GPUWIRE_GPUS=2", "CUDA_VISIBLE_DEVICES=0,1", PROGRAM),
            "has 1 GPU; 2 were asked for",
        )

    def test_a_class_is_a_tenant_of_the_servers(self):
        job = self.hold("--gpuwire=1", "--gpuwire-class=quick")
        self.assertEqual([(one["tenant"], one["class"]) for one in self.sessions()], [("quick", "interactive")])
        self.assertIn("class quick", self.cluster.show(job))
        self.cancel(job)
        self.assert_says(
            self.srun("--gpuwire=1", "--gpuwire-class=best", PROGRAM),
            "there is no class best; there are: elsewhere, quick",
        )
        self.assert_says(self.srun("--gpuwire=1", "--gpuwire-class=elsewhere", PROGRAM), "for jobs of quick, not main")
        self.assert_passed(self.srun("--partition=quick", "--gpuwire=1", "--gpuwire-class=elsewhere", PROGRAM))

    def test_mistakes_are_told_when_the_job_is_submitted(self):
        self.assert_says(
            self.srun("--gpuwire=0", PROGRAM), '--gpuwire must be a number of GPUs from 1 to 1024, got "0"'
        )
        self.assert_says(self.srun("--gpuwire=many", PROGRAM), 'got "many"')
        self.assert_says(self.srun("--gpuwire=1", "--gpuwire-mem=20", PROGRAM), "a size with a unit")
        self.assert_says(self.srun("--gpuwire-mem=20G", PROGRAM), "go with --gpuwire=N")
        self.assert_says(self.srun("--licenses=gpuwire:1", PROGRAM), "of no use alone")
        self.assert_says(self.srun("--gpuwire=1", "--licenses=gpuwire:1", PROGRAM), "leave it out of --licenses")


@unittest.skipIf(REASON, REASON or "")
class Credentials(SlurmCase):
    """Only the job has its token, and only while it runs."""

    def token_file(self, job):
        return self.cluster.path("jobs", str(job), "token")

    def run_with(self, token, user=None):
        port = self.server.address.rsplit(":", 1)[1]
        return subprocess.run(
            [
                GPUWIRE,
                "run",
                "--server",
                f"tls://localhost:{port}",
                "--token-file",
                token,
                "--ca",
                os.path.join(self.identity, "ca.pem"),
                "--",
                PROGRAM,
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            user=user,
            env={"PATH": "/usr/bin:/bin", "HOME": "/dev/null"},
            check=False,
        )

    def test_the_clusters_key_can_do_nothing_else_at_the_server(self):
        subprocess.run(
            [
                GPUWIRE,
                "admin",
                "--directory",
                self.identity,
                "add-tenant",
                "anna",
                "--token",
                "--out",
                self.cluster.path("anna.token"),
            ],
            check=True,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )
        (anna,) = [one["id"] for one in self.server_says("admin", "list")["credentials"] if one["tenant"] == "anna"]
        for words in (
            "admin add-tenant eve",
            "admin revoke slurm",
            f"admin revoke {anna} --end-sessions",
            "admin revoke --job slurm/lab/1;reboot --end-sessions",
            "admin end 1",
            "admin list --json --directory /",
            "serve",
            "",
            "admin job-token slurm --job lsf/lab/1 --gpus 1 --lifetime 60s",
        ):
            ran = subprocess.run(
                [self.command, *words.split()], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
            )
            self.assertEqual((ran.returncode, ran.stdout), (1, ""), words)
        self.assertEqual(
            [one["counts"] for one in self.server_says("admin", "list")["credentials"] if one["tenant"] == "anna"],
            [True],
        )

    def test_a_token_is_its_users_and_bound_to_its_job(self):
        job = self.hold("--gpuwire=2", "--time=60")
        facts = os.stat(self.token_file(job))
        self.assertEqual((facts.st_uid, facts.st_mode & 0o777), (pwd.getpwnam(USER).pw_uid, 0o400))
        (token,) = self.tokens(job)
        self.assertEqual((token["tenant"], token["gpus"], token["counts"]), ("slurm", 2, True))
        read = subprocess.run(
            ["cat", self.token_file(job)],
            user=OTHER_USER,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        self.assertNotEqual(read.returncode, 0)
        self.assertNotIn("gpuwire_", read.stdout)
        refused = self.cluster.run(
            "env",
            f"GPUWIRE_TOKEN_FILE={self.token_file(job)}",
            GPUWIRE,
            "info",
            "--quick",
            "--server",
            "tls://" + self.server.address,
            user=OTHER_USER,
        )
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("Permission denied", refused.stderr)
        for name in os.listdir(os.path.dirname(self.token_file(job))):
            if name not in ("token", "revoke"):
                with open(os.path.join(os.path.dirname(self.token_file(job)), name), encoding="utf-8") as file:
                    self.assertNotIn("gpuwire_", file.read(), f"{name} holds no secret")
        self.cancel(job)

    def test_a_token_that_was_kept_is_refused_when_its_job_is_over(self):
        job = self.hold("--gpuwire=1")
        kept = self.cluster.path("kept")
        with open(self.token_file(job), encoding="ascii") as file, open(kept, "w", encoding="ascii") as copy:
            copy.write(file.read())
        os.chmod(kept, 0o600)
        self.assert_passed(self.run_with(kept))
        self.cancel(job)
        self.assert_says(self.run_with(kept), "the token of tenant slurm was revoked on")
        wait_until(
            lambda: not os.path.exists(os.path.dirname(self.token_file(job))), "the epilog has removed the job's folder"
        )

    def test_a_job_whose_processes_are_killed_leaves_nothing_behind(self):
        job = self.hold("--gpuwire=2")
        self.cluster.run("scancel", "--signal=KILL", "--full", str(job), check=True)
        wait_until(lambda: not self.sessions(), "the server has no session left")
        wait_until(lambda: not any(one["counts"] for one in self.tokens(job)), "the job's tokens are revoked")
        self.assert_passed(self.srun("--gpuwire=2", PROGRAM))

    def test_a_server_that_cannot_be_reached_fails_the_job_in_words_and_keeps_the_node(self):
        mark = self.cluster.path("unreachable")
        self.cluster.write("unreachable", "")
        self.addCleanup(lambda: os.path.exists(mark) and os.unlink(mark))
        self.assert_says(self.srun("--gpuwire=1", PROGRAM), "server gpu7: no route to host")
        self.assertNotIn("drain", self.cluster.run("sinfo", "--noheader", "--format=%T").stdout)
        os.unlink(mark)
        self.assert_passed(self.srun("--gpuwire=1", PROGRAM))


@unittest.skipIf(REASON, REASON or "")
class Counting(SlurmCase):
    """gpuwire-slurm-sync: licences from the servers' GPUs; the remains of dead nodes."""

    def sync(self, *words):
        ran = self.cluster.run(
            sys.executable,
            "-B",
            self.cluster.adapter("sync.py"),
            "--once",
            *words,
            environment={"GPUWIRE_SLURM_CONF": self.cluster.path("gpuwire.conf")},
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stderr

    def licences(self):
        return int(
            re.search(
                r"LicenseName=gpuwire Total=(\d+)", self.cluster.run("scontrol", "--oneliner", "show", "license").stdout
            ).group(1)
        )

    def change(self, before, after):
        with open(self.cluster.path("gpuwire.conf"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn(before, text)
        self.cluster.write("gpuwire.conf", text.replace(before, after))
        self.addCleanup(self.cluster.write, "gpuwire.conf", text)

    def test_licences_follow_the_servers_gpus_and_the_sites_oversubscription(self):
        self.cluster.set_licences(7)
        self.assertIn("gpuwire:2", self.sync())
        wait_until(lambda: self.licences() == 2, "as many licences as GPUs")
        self.assertEqual(self.sync(), "")
        self.change("oversubscription = 1", "oversubscription = 2.5")
        self.sync("--dry-run")
        self.assertEqual(self.licences(), 2)
        self.sync()
        wait_until(lambda: self.licences() == 5, "2 GPUs, 2.5 times each")
        self.change("address = ", "gpus_kept = 1\naddress = ")
        self.sync()
        wait_until(lambda: self.licences() == 2, "one GPU, 2.5 times, rounded down")

    def test_a_server_that_does_not_answer_counts_nothing(self):
        self.addCleanup(self.sync)
        mark = self.cluster.path("unreachable")
        self.cluster.write("unreachable", "")
        self.addCleanup(lambda: os.path.exists(mark) and os.unlink(mark))
        self.assertIn("no route to host", self.sync())
        wait_until(lambda: self.licences() == 0, "no licences")

    def test_tokens_of_jobs_that_slurm_does_not_know_are_taken_back_and_others_stay(self):
        job = self.hold("--gpuwire=1")
        for name in ("slurm/lab/999999", "slurm/other/999999"):
            subprocess.run(
                [self.command, *f"admin job-token slurm --job {name} --gpus 1 --lifetime 3600s".split()],
                check=True,
                capture_output=True,
                timeout=LIMIT_SECONDS,
            )
        self.sync()
        self.assertEqual([one["counts"] for one in self.tokens(999999)], [False])
        self.assertEqual([one["counts"] for one in self.tokens(job)], [True])
        other = [
            one for one in self.server_says("admin", "list")["credentials"] if one.get("job") == "slurm/other/999999"
        ]
        self.assertEqual([one["counts"] for one in other], [True])
        self.assertEqual(len(self.sessions()), 1)


@unittest.skipIf(REASON, REASON or "")
class TwoNodes(SlurmCase):
    """Of which each has a prolog, an epilog and a folder for jobs."""

    nodes = 2

    def test_a_job_on_both_has_one_gpu_and_memory_that_its_tasks_share(self):
        says = "echo $SLURMD_NODENAME $GPUWIRE_SERVER $GPUWIRE_MEMORY"
        job = self.cluster.submit(
            f"echo script $GPUWIRE_MEMORY\nsrun sh -c '{says}'\n"
            f"srun --ntasks=1 --nodes=1 --gpuwire-mem=100MB sh -c '{says}'\n"
            f"srun {HOLDS}",
            "--gpuwire=1",
            "--gpuwire-mem=200M",
            "--nodes=2",
            "--ntasks-per-node=1",
            user=USER,
        )
        self.addCleanup(self.cluster.run, "scancel", str(job))
        wait_until(
            lambda: self.cluster.output(job).count("copying") == 2 or self.cluster.state(job).split()[0] == "FAILED",
            f"job {job} works on both nodes: {self.cluster.logs()}",
        )
        output = self.cluster.output(job)
        self.assertIn(f"script {200 << 20}B\n", output)
        for node in ("node0", "node1"):
            self.assertRegex(output, rf"{node} tls://localhost:\d+ {100 << 20}B\n")
        self.assertRegex(output, r"node0 tls://localhost:\d+ 100000000B\n")
        for folder in self.cluster.job_folders:
            self.assertTrue(os.path.exists(os.path.join(folder, str(job), "token")), folder)
        sessions = self.sessions()
        self.assertEqual(len({one["host"] for one in sessions}), 1, "both nodes are this machine")
        self.assertEqual(len({tuple(device["device"] for device in one["devices"]) for one in sessions}), 1)
        self.assertEqual([one["gpus"] for one in self.tokens(job) if one["counts"]], [1, 1], "one for each node")
        self.cancel(job)
        for folder in self.cluster.job_folders:
            own = os.path.join(folder, str(job))
            wait_until(lambda own=own: not os.path.exists(own), f"the node's epilog has removed {own}")


@unittest.skipIf(REASON, REASON or "")
class Accounted(SlurmCase):
    """A cluster with slurmdbd."""

    @classmethod
    def setUpClass(cls):
        cls.accounting = Accounting(BUILD)
        super().setUpClass()

    def test_sacct_says_what_a_job_has_and_had(self):
        job = self.hold("--gpuwire=2", "--gpuwire-mem=100M")
        wait_until(lambda: "license/gpuwire=2" in allocated(self.cluster, job)[0], "sacct says what the job has")
        self.cancel(job)
        wait_until(lambda: allocated(self.cluster, job)[1].startswith("CANCELLED"), "sacct says how the job ended")
        self.assertIn("license/gpuwire=2", allocated(self.cluster, job)[0])


@unittest.skipIf(REASON, REASON or "")
class DeadNode(SlurmCase):
    """A node whose slurmd is gone."""

    def steps_of(self, job):
        """Processes that supervise the job on its node, whether or not slurmd runs."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if file.read().startswith(b"slurmstepd: [%d." % job):
                        found.append(int(entry))
            except OSError:
                pass
        return found

    def test_a_node_that_dies_gives_its_jobs_gpus_back_without_its_epilog(self):
        job = self.hold("--gpuwire=2", "--no-requeue")
        self.assertTrue(self.steps_of(job))
        self.cluster.kill_node(0)
        self.cluster.run("scontrol", "update", "NodeName=node0", "State=DOWN", "Reason=died", check=True)
        wait_until(
            lambda: not any(one["counts"] for one in self.tokens(job)),
            f"the controller revokes the job's token: {self.cluster.logs()}",
        )
        wait_until(lambda: not self.sessions(), "the server has no session left")
        self.assertTrue(os.path.exists(self.cluster.path("jobs", str(job))), "no epilog has run on the node")
        wait_until(lambda: not self.steps_of(job), "what was left on the node has ended")


if __name__ == "__main__":
    if REASON:
        print(f"skipped: {REASON}")
        sys.exit(77)
    unittest.main(verbosity=2)
