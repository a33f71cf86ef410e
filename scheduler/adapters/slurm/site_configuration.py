"""The site's configuration of gpuwire servers for Slurm, /etc/gpuwire/slurm.conf, and queries of these servers."""

import configparser
import json
import os
import re
import shlex
import subprocess

DEFAULT_FILE = "/etc/gpuwire/slurm.conf"
COMMAND_LIMIT_SECONDS = 30
LICENCE = "gpuwire"  # job_submit_gpuwire.c asks for it
# The keys of the section [gpuwire], and of sections whose names begin with these words.
KEYS = {
    "gpuwire": {
        "tenant",
        "oversubscription",
        "run_directory",
        "client",
        "lifetime_margin_hours",
        "licences_file",
        "other_licences",
    },
    "server": {"address", "command", "gpus_kept"},
    "class": {"tenant", "partitions"},
}


class SiteError(Exception):
    """An error of one line, for a log and for the job's user."""


class GpuServer:
    """One server: the address for programs, and the command for its administration."""

    def __init__(self, name, address, command, gpus_kept=0):
        self.name, self.address, self.command, self.gpus_kept = name, address, command, gpus_kept

    def ask(self, *words):
        """Returns the output of `gpuwire WORDS` on the server. Raises SiteError if the server cannot be reached or
        refuses."""
        try:
            ran = subprocess.run(
                [*self.command, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_LIMIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SiteError(f"server {self.name} does not answer: {error}") from error
        if ran.returncode != 0:
            lines = ran.stderr.strip().splitlines()
            raise SiteError(f"server {self.name}: {lines[-1] if lines else 'exit status %d' % ran.returncode}")
        return ran.stdout

    def ask_json(self, *words):
        try:
            return json.loads(self.ask(*words))
        except ValueError as error:
            raise SiteError(f"server {self.name} gave an answer that is not JSON: {error}") from error

    def gpus(self):
        """Returns the number of its GPUs for jobs."""
        return max(0, len(self.ask_json("status", "--json").get("devices", [])) - self.gpus_kept)

    def job_tokens(self):
        """Returns the valid tokens of jobs."""
        return [
            one
            for one in self.ask_json("admin", "list", "--json").get("credentials", [])
            if one.get("counts") and one.get("job")
        ]


class Site:
    """The file, read and checked."""

    def __init__(self, path=None):
        path = path or os.environ.get("GPUWIRE_SLURM_CONF") or DEFAULT_FILE
        parser = configparser.ConfigParser(interpolation=None, strict=True)
        try:
            with open(path, encoding="utf-8") as file:
                parser.read_file(file)
            self._take(parser)
        except (OSError, configparser.Error, ValueError, SiteError) as error:
            raise SiteError(f"{path}: {' '.join(str(error).split())}") from error

    def _take(self, parser):
        for section in parser.sections():
            known = KEYS.get(section.split()[0] if section.strip() else "")
            if known is None or (section == "gpuwire") != (len(section.split()) == 1):
                raise SiteError(f"[{section}] is neither [gpuwire] nor [server NAME] nor [class NAME]")
            unknown = set(parser[section]) - known
            if unknown:
                raise SiteError(
                    f"[{section}] has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
                )
        general = parser["gpuwire"] if parser.has_section("gpuwire") else {}
        self.tenant = general.get("tenant", "slurm")
        self.oversubscription = float(general.get("oversubscription", "1"))
        if not 0 < self.oversubscription <= 64:
            raise SiteError("oversubscription must be above 0 and at most 64")
        self.run_directory = general.get("run_directory", "/run/gpuwire-slurm")
        self.client = shlex.split(general.get("client", "/usr/bin/gpuwire"))
        self.lifetime_margin_seconds = int(float(general.get("lifetime_margin_hours", "24")) * 3600)
        self.licences_file = general.get("licences_file", "/etc/slurm/gpuwire-licences.conf")
        self.other_licences = general.get("other_licences", "")
        self.classes = {
            section.split(None, 1)[1]: dict(parser[section])
            for section in parser.sections()
            if section.startswith("class ")
        }
        self.servers = [
            self._server(section.split(None, 1)[1], parser[section])
            for section in parser.sections()
            if section.startswith("server ")
        ]
        if not self.servers:
            raise SiteError("there is no [server NAME]")

    @staticmethod
    def _server(name, section):
        if "address" not in section:
            raise SiteError(f"[server {name}] needs address = HOST:PORT")
        return GpuServer(
            name,
            section["address"],
            shlex.split(section.get("command", "/usr/bin/gpuwire")),
            int(section.get("gpus_kept", "0")),
        )

    def server(self, name):
        for one in self.servers:
            if one.name == name:
                return one
        raise SiteError(f"there is no [server {name}] any more")

    def tenant_of(self, class_name, user, account, partition):
        """Returns a job's tenant. Raises SiteError if the class does not exist or is not for this partition."""
        tenant = self.tenant
        if class_name:
            if class_name not in self.classes:
                raise SiteError(
                    f"there is no class {class_name}; there are: {', '.join(sorted(self.classes)) or 'none'}"
                )
            partitions = self.classes[class_name].get("partitions", "").replace(",", " ").split()
            if partitions and partition not in partitions:
                raise SiteError(f"the class {class_name} is for jobs of {', '.join(partitions)}, not {partition}")
            tenant = self.classes[class_name].get("tenant", tenant)
        tenant = tenant.replace("{user}", user).replace("{account}", account)
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", tenant):
            raise SiteError(f'"{tenant}" is not a tenant name')
        return tenant


class SlurmJob:
    """A job's data from Slurm's controller: only members that no user can write freely."""

    FORMAT = "%A|%W|%l|%a|%P"

    def __init__(self, number):
        ran = subprocess.run(
            ["squeue", "--noheader", "--states=all", "--jobs", str(number), "--format", self.FORMAT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_SECONDS,
            check=False,
        )
        # An array's first job has the number of the whole array.
        lines = [line.split("|") for line in ran.stdout.splitlines()]
        found = [line for line in lines if len(line) == 5 and line[0] == str(number)]
        if ran.returncode != 0 or not found:
            raise SiteError(f"squeue does not know job {number}: {ran.stderr.strip()}")
        _, self.licences, self.limit, self.account, self.partition = (word.strip() for word in found[0])

    def gpus(self):
        """Returns the job's number of gpuwire licences."""
        found = re.search(rf"(?:^|,){LICENCE}(?::(\d+))?(?:,|$)", self.licences)
        return int(found.group(1) or 1) if found else 0

    def limit_seconds(self):
        """Returns the job's time limit; None: it has none."""
        found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", self.limit)
        if not found:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
