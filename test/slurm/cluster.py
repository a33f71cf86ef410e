"""A Slurm of Debian's own programs on loopback: munged, slurmctld and slurmd in a folder of their own.

Everything runs as the user of the test (root where jobs of other users are wanted), touches nothing in /etc or /var,
and ends with the cluster."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from loopback_ports import LoopbackPorts  # noqa: E402

LIMIT_SECONDS = 300
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SLURM_PLUGINS = "/usr/lib/x86_64-linux-gnu/slurm-wlm"


def missing():
    """Returns the missing parts of Slurm."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)] or (
        [] if os.path.isdir(SLURM_PLUGINS) else [SLURM_PLUGINS]
    )


def wait_until(condition, what, limit_seconds=LIMIT_SECONDS):
    """Polls a state until it is reached. The limit only ends a hanging test."""
    end = time.monotonic() + limit_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_seconds} s: {what}")
        time.sleep(0.05)


class Cluster:
    """One controller and some nodes on this machine."""

    def __init__(self, build, licences=2, nodes=1, accounting=None):
        self.build, self.nodes, self.accounting = build, nodes, accounting
        self.folder = tempfile.mkdtemp(prefix="gpuwire-slurm-", dir="/tmp")
        os.chmod(self.folder, 0o755)
        self.processes = []
        self.slurmds = []  # where they are among these
        self.ports = LoopbackPorts()
        self.environment = {"PATH": PATH, "SLURM_CONF": self.path("slurm.conf"), "LC_ALL": "C", "HOME": self.folder}
        for name in ("munge", "state", "spool", "log", "run"):
            os.mkdir(self.path(name), 0o755)
        # The folders of jobs' tokens, for each node; the first node's is "jobs".
        self.job_folders = [self.path("jobs" + (str(i) if i else "")) for i in range(nodes)]
        for folder in self.job_folders:
            os.mkdir(folder)
            os.chmod(folder, 0o1777)
        self.set_licences(licences)
        self._write_configuration()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def adapter(self, name):
        return os.path.join(self.build, "lib", "gpuwire", "slurm", name)

    def set_licences(self, number):
        with open(self.path("licences.conf"), "w", encoding="ascii") as file:
            file.write(f"Licenses=gpuwire:{number}\n")

    def write_site(self, text):
        """gpuwire.conf, which names the folder of the first node; each other node has one that names its own."""
        for i, folder in enumerate(self.job_folders):
            self.write(f"gpuwire{i or ''}.conf", text.replace(self.job_folders[0] + "\n", folder + "\n"))

    def _hook(self, name, node=0):
        """Writes a wrapper of the adapter's script with the paths of this cluster's files: Slurm gives its hooks nearly
        no environment."""
        path, site = self.path(f"{name}{node or ''}.sh"), self.path(f"gpuwire{node or ''}.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f"#!/bin/sh\nexport PATH={PATH} SLURM_CONF={self.path('slurm.conf')}\n"
                f"export GPUWIRE_SLURM_CONF={site}\n"
                f"exec {self.adapter(name + '.sh')} 2>>{self.path('log', 'hooks.log')}\n"
            )
        os.chmod(path, 0o755)
        return path

    def _write_configuration(self):
        user = pwd.getpwuid(os.geteuid()).pw_name
        node_lines = "".join(
            f"NodeName=node{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={self.ports.take()} CPUs=8"
            " RealMemory=2000\n"
            for i in range(self.nodes)
        )
        lines = f"""ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={self.ports.take()}
AuthType=auth/munge
AuthInfo=socket={self.path('munge', 'socket')}
CredType=cred/munge
StateSaveLocation={self.path('state')}
SlurmdSpoolDir={self.path('spool', '%n')}
SlurmctldPidFile={self.path('run', 'slurmctld.pid')}
SlurmdPidFile={self.path('run', '%n.pid')}
PluginDir={os.path.dirname(self.adapter(''))}:{SLURM_PLUGINS}
PlugStackConfig={self.path('plugstack.conf')}
JobSubmitPlugins=gpuwire
Prolog={self._hook('prolog')}
Epilog={self._hook('epilog')}
EpilogSlurmctld={self._hook('controller-epilog')}
include {self.path('licences.conf')}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0
JobCompType=jobcomp/filetxt
JobCompLoc={self.path('log', 'completed')}
{self.accounting.lines(self) if self.accounting else ""}ReturnToService=2
DebugFlags=NO_CONF_HASH
KillWait=5
MessageTimeout=60
SlurmdParameters=config_overrides
{node_lines}PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:8
PartitionName=quick Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=YES:8
"""
        self.write("slurm.conf", lines)
        # Nodes of one machine differ in their folder for jobs, so each but the first has files of its own.
        for i, folder in enumerate(self.job_folders):
            self.write(
                f"plugstack{i or ''}.conf", f"required {self.adapter('spank_gpuwire.so')} run_directory={folder}\n"
            )
            own = lines.replace("plugstack.conf", f"plugstack{i}.conf")
            for name in ("prolog", "epilog"):
                own = own.replace(self.path(name + ".sh"), self._hook(name, i))
            if i:
                self.write(f"slurm{i}.conf", own)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def start_daemon(self, *command, environment=None):
        log = open(
            self.path("log", os.path.basename(command[0]) + f"-{len(self.processes)}.log"), "wb"
        )  # pylint: disable=consider-using-with
        with log:
            self.processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    env={**self.environment, **(environment or {})}
                )
            )  # pylint: disable=consider-using-with

    def __enter__(self):
        try:
            key = self.path("munge", "key")
            with open(key, "wb") as file:
                file.write(os.urandom(128))
            os.chmod(key, 0o600)
            munge_socket = self.path("munge", "socket")
            self.start_daemon(
                "munged",
                "--foreground",
                "--force",
                f"--key-file={key}",
                f"--socket={munge_socket}",
                f"--pid-file={self.path('munge', 'pid')}",
                f"--log-file={self.path('log', 'munged')}",
                f"--seed-file={self.path('munge', 'seed')}",
                "--num-threads=2",
            )
            wait_until(lambda: os.path.exists(munge_socket), "munged listens")
            if self.accounting:
                self.accounting.start(self)
            self.start_daemon("slurmctld", "-D", "-c", "-f", self.path("slurm.conf"))
            for i in range(self.nodes):
                os.mkdir(self.path("spool", f"node{i}"))
                self.slurmds.append(len(self.processes))
                self.start_daemon("slurmd", "-D", "-N", f"node{i}", "-f", self.path(f"slurm{i or ''}.conf"))
            wait_until(self._all_idle, "all nodes are idle")
        except BaseException:
            sys.stderr.write(self.logs())
            self.stop()
            raise
        return self

    def _all_idle(self):
        ended = [process.args[0] for process in self.processes if process.poll() is not None]
        if ended:
            raise AssertionError(f"{', '.join(ended)} ended")
        return set(self.run("sinfo", "--Node", "--noheader", "--format=%T").stdout.split()) == {"idle"}

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for process in reversed(self.processes):
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    process.send_signal(number)
                    try:
                        process.wait(30)
                    except subprocess.TimeoutExpired:
                        pass
        self.ports.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_node(self, number):
        """Its slurmd, without a word."""
        slurmd = self.processes[self.slurmds[number]]
        slurmd.kill()
        slurmd.wait(LIMIT_SECONDS)

    def logs(self):
        """Returns the ends of all logs, for a failed test."""
        text = ""
        for name in sorted(os.listdir(self.path("log"))):
            with open(self.path("log", name), encoding="utf-8", errors="replace") as file:
                text += f"--- {name}\n" + "".join(file.readlines()[-40:])
        return text

    def run(self, *command, user=None, check=False, **extra):
        """A command of Slurm's, as a user of this machine (or as the test's)."""
        environment = {**self.environment, **extra.pop("environment", {})}
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            env=environment,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
            cwd=self.path("jobs"),
            check=False,
            **extra,
        )
        if check and ran.returncode != 0:
            raise AssertionError(f"{command}: {ran.returncode}\n{ran.stdout}{ran.stderr}{self.logs()}")
        return ran

    def start(self, *command, user=None, environment=None):
        """As run(), without waiting."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
            cwd=self.path("jobs"),
            env={**self.environment, **(environment or {})},
        )

    def submit(self, script, *options, user=None):
        """The number of a batch job; its output goes to jobs/NUMBER.out."""
        ran = self.run(
            "sbatch",
            "--parsable",
            "--output",
            self.path("jobs", "out-%A_%a" if any("--array" in one for one in options) else "out-%j"),
            *options,
            "--wrap",
            script,
            user=user,
            check=True,
        )
        return int(ran.stdout.strip().split(";")[0])

    def show(self, job):
        return self.run("scontrol", "--oneliner", "show", "job", str(job)).stdout

    def state(self, job):
        """Returns the job's state in one word, and the reason of its wait."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %r").stdout.strip()

    def wait_for(self, job, *states):
        return wait_until(
            lambda: self.state(job).split(" ")[0] in states,
            f"job {job} is {' or '.join(states)}: {self.state(job)}\n{self.logs()}",
        )

    def output(self, job):
        try:
            with open(self.path("jobs", f"out-{job}"), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""
