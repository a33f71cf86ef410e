"""What a job's prolog and epilog do: a token for the job, in a folder of the node, as a file of the job's user.

usage: job.py prolog|epilog|controller-epilog

prolog and epilog run as root on each node of a job, controller-epilog where slurmctld runs. None of them fails
because of a GPU server: a prolog that fails takes the node out of service. The plugin tells the job instead.
"""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import syslog

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from site_configuration import COMMAND_LIMIT_SECONDS, Site, SiteError, SlurmJob  # noqa: E402

UNLIMITED_SECONDS = 365 * 24 * 3600
MARK = "@before@"  # stands for the list's former value


def log(text):
    print(f"gpuwire: {text}", file=sys.stderr)
    syslog.syslog(syslog.LOG_WARNING, text)


def job_name(cluster, number):
    """Returns the job's name in the servers' registers."""
    return f"slurm/{cluster or 'cluster'}/{number}"


def write(path, text, mode, owner=0):
    """Creates a file that no other user can read before it has its owner."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), owner, -1)
        os.fchmod(file.fileno(), mode)


def choose(servers, gpus, name):
    """Returns the server that another node of the job uses already; else the one with most GPUs without a job."""
    best, reasons = None, []
    for server in servers:
        try:
            tokens = server.job_tokens()
            if any(one["job"] == name for one in tokens):
                return server
            there = server.gpus()
            taken = {one["job"]: one["gpus"] for one in tokens}
            free = there - sum(taken.values())
        except SiteError as error:
            reasons.append(str(error))
            continue
        if there < gpus:
            reasons.append(f"server {server.name} has {there} GPUs for jobs, and the job needs {gpus}")
        elif best is None or free > best[0]:
            best = (free, server)
    if best is None:
        raise SiteError("; ".join(reasons))
    return best[1]


def spread(servers, gpus, number):
    """Returns the server for a job of several nodes, whose prologs run at the same time: the same one on all of
    them."""
    large = [one for one in servers if one.gpus() >= gpus]
    if not large:
        raise SiteError(f"no server has {gpus} GPUs for jobs")
    return large[number % len(large)]


def environment_lines(site, server, folder, gpus, memory):
    """Returns the variables that `gpuwire run` would set, as lines of the plugin's file."""
    command = [
        *site.client,
        "env",
        "--server",
        server.address,
        "--token-file",
        f"{folder}/token",
        "--ca",
        f"{folder}/ca.pem",
    ]
    clean = {"PATH": MARK, "LD_LIBRARY_PATH": MARK, "PYTHONPATH": MARK, "HOME": "/dev/null"}
    ran = subprocess.run(
        command + (["--memory", memory] if memory else []),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean,
        timeout=COMMAND_LIMIT_SECONDS,
        check=False,
    )
    if ran.returncode != 0:
        raise SiteError(f"{shlex.join(site.client)} env: {ran.stderr.strip()}")
    lines = [f"gpus\t{gpus}", "unset\tGPUWIRE_USE"]
    seen = set()
    for line in ran.stdout.splitlines():
        name, _, value = shlex.split(line.removeprefix("export ").rstrip(";"))[0].partition("=")
        if name in ("GPUWIRE_GPUS", "GPUWIRE_IDENTITY"):
            continue
        seen.add(name)
        otherwise = "/usr/local/bin:/usr/bin:/bin" if name == "PATH" else ""
        if value.endswith(":" + MARK):
            lines.append(f"prepend\t{name}\t{value.removesuffix(':' + MARK)}\t{otherwise}")
        elif value.startswith(MARK + ":"):
            lines.append(f"append\t{name}\t{value.removeprefix(MARK + ':')}\t{otherwise}")
        else:
            lines.append(f"set\t{name}\t{value}")
    # The user's own variables for other servers do not apply in a job.
    lines += [
        f"unset\t{name}" for name in ("GPUWIRE_IDENTITY", "GPUWIRE_MEMORY", "GPUWIRE_TRANSPORT") if name not in seen
    ]
    return lines + [f"set\tGPUWIRE_SLURM_JOB\t{os.path.basename(folder)}"]


class Prolog:
    """One job on this node."""

    def __init__(self, site, environment):
        self.site, self.environment = site, environment
        self.number = int(environment["SLURM_JOB_ID"])
        self.user = int(environment["SLURM_JOB_UID"])
        self.folder = os.path.join(site.run_directory, str(self.number))
        self.name = job_name(environment.get("SLURM_CLUSTER_NAME"), self.number)

    def run(self):
        """Creates the job's folder, with a token or with the reason why there is none."""
        os.makedirs(self.site.run_directory, mode=0o755, exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)  # left by a job that was requeued
        os.mkdir(self.folder, 0o755)
        os.chmod(self.folder, 0o755)
        try:
            self._credential()
        except (SiteError, subprocess.SubprocessError, OSError) as error:
            log(f"job {self.number}: {error}")
            write(os.path.join(self.folder, "error"), f"{error}\n", 0o444)

    def _credential(self):
        job = SlurmJob(self.number)
        gpus = job.gpus()
        if gpus == 0:
            raise SiteError("the job has no licences for GPUs: is JobSubmitPlugins=gpuwire in slurm.conf?")
        tenant = self.site.tenant_of(
            self.environment.get("SPANK_GPUWIRE_CLASS", ""), self._user_name(), job.account, job.partition
        )
        limit = job.limit_seconds()
        lifetime = min(
            UNLIMITED_SECONDS, UNLIMITED_SECONDS if limit is None else limit + self.site.lifetime_margin_seconds
        )
        server = self._server(gpus)
        made = server.ask_json(
            "admin", "job-token", tenant, "--job", self.name, "--gpus", str(gpus), "--lifetime", f"{max(60, lifetime)}s"
        )
        # The epilog's file comes first, so that the token is revoked whatever happens next.
        write(os.path.join(self.folder, "revoke"), f"{server.name}\n{made['id']}\n", 0o400)
        write(os.path.join(self.folder, "ca.pem"), made["ca"], 0o444)
        write(os.path.join(self.folder, "token"), made["token"] + "\n", 0o400, self.user)
        lines = environment_lines(self.site, server, self.folder, gpus, self.environment.get("SPANK_GPUWIRE_MEM", ""))
        write(os.path.join(self.folder, "environment"), "".join(line + "\n" for line in lines), 0o444)

    def _server(self, gpus):
        several_nodes = any(
            mark in self.environment.get("SLURM_NODELIST", self.environment.get("SLURM_JOB_NODELIST", ""))
            for mark in ",["
        )
        return (
            spread(self.site.servers, gpus, self.number)
            if several_nodes
            else choose(self.site.servers, gpus, self.name)
        )

    def _user_name(self):
        try:
            return self.environment.get("SLURM_JOB_USER") or pwd.getpwuid(self.user).pw_name
        except KeyError:
            return str(self.user)


def prolog(environment):
    """Runs the prolog for jobs that asked for GPUs; ignores others."""
    if environment.get("SPANK_GPUWIRE_GPUS"):
        Prolog(Site(), environment).run()


def epilog(environment):
    """Revokes this node's token, ends its sessions, and removes the folder."""
    site = Site()
    folder = os.path.join(site.run_directory, str(int(environment["SLURM_JOB_ID"])))
    try:
        with open(os.path.join(folder, "revoke"), encoding="utf-8") as file:
            server, token = file.read().split()
        site.server(server).ask("admin", "revoke", token, "--end-sessions")
    except FileNotFoundError:
        pass  # a job without gpuwire, or without a token
    except SiteError as error:
        log(f"job {environment['SLURM_JOB_ID']}: its token could not be revoked: {error}")
    shutil.rmtree(folder, ignore_errors=True)


def controller_epilog(environment):
    """Revokes the job's remaining tokens at all servers: a node that has died has run no epilog."""
    if not environment.get("SPANK_GPUWIRE_GPUS") and not environment.get("SLURM_JOB_LICENSES"):
        return
    name = job_name(environment.get("SLURM_CLUSTER_NAME"), int(environment["SLURM_JOB_ID"]))
    for server in Site().servers:
        try:
            if any(one["job"] == name for one in server.job_tokens()):
                server.ask("admin", "revoke", "--job", name, "--end-sessions")
        except SiteError as error:
            log(f"{name}: {error}")


ACTIONS = {"prolog": prolog, "epilog": epilog, "controller-epilog": controller_epilog}


def main():
    """Returns 0, except for wrong arguments."""
    if len(sys.argv) != 2 or sys.argv[1] not in ACTIONS:
        print(__doc__.strip(), file=sys.stdout if sys.argv[1:] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    syslog.openlog("gpuwire-slurm", syslog.LOG_PID, syslog.LOG_DAEMON)
    try:
        ACTIONS[sys.argv[1]](os.environ)
    except (SiteError, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
        log(f"{sys.argv[1]}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
