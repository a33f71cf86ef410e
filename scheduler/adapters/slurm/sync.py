"""Keeps Slurm's licences "gpuwire" at what the servers have, and takes back tokens of jobs that Slurm does not know.

usage: gpuwire-slurm-sync [--once] [--interval SECONDS] [--dry-run]

Run it beside slurmctld, as SlurmUser or root. It writes the file that slurm.conf includes (licences_file in
/etc/gpuwire/slurm.conf), when the number has changed, and has the controller read it (scontrol reconfigure). A server
that does not answer counts nothing: jobs wait until it is back.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from site_configuration import COMMAND_LIMIT_SECONDS, LICENCE, Site, SiteError  # noqa: E402


def log(text):
    print(f"gpuwire-slurm-sync: {text}", file=sys.stderr, flush=True)


def licences_line(site, gpus):
    """Returns the line of slurm.conf; there can be only one, so it has the site's other licences, too."""
    others = site.other_licences.strip()
    return f"Licenses={others + ',' if others else ''}{LICENCE}:{math.floor(gpus * site.oversubscription)}\n"


def count(site):
    """Returns the number of GPUs of all servers that answer."""
    gpus = 0
    for server in site.servers:
        try:
            gpus += server.gpus()
        except SiteError as error:
            log(str(error))
    return gpus


def replace(path, text):
    """Replaces the file atomically: a reader sees the old text or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".gpuwire-")
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def slurm(*command):
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_LIMIT_SECONDS, check=False
    )


def update_licences(site, dry_run):
    """Returns whether the file has changed."""
    line = licences_line(site, count(site))
    if read(site.licences_file) == line:
        return False
    log(line.strip())
    if dry_run:
        return True
    replace(site.licences_file, line)
    told = slurm("scontrol", "reconfigure")
    if told.returncode != 0:
        log(f"scontrol reconfigure: {told.stderr.strip()}")
    return True


def jobs_of_slurm():
    """Returns the numbers of all jobs that hold or may get a token; None: the controller does not answer."""
    asked = slurm("squeue", "--noheader", "--array", "--format", "%A")
    return {int(word) for word in asked.stdout.split()} if asked.returncode == 0 else None


def cluster_name():
    for line in slurm("scontrol", "show", "config").stdout.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "ClusterName":
            return value.strip()
    return None


def revoke_orphans(site, dry_run):
    """Revokes tokens left by dead nodes and by epilogs that did not reach a server. Returns the number of jobs."""
    cluster = cluster_name()
    # The tokens are read first, so that a job that begins between the two queries does not look like an orphan.
    held = {}
    for server in site.servers:
        try:
            held[server] = {one["job"] for one in server.job_tokens() if one["job"].startswith(f"slurm/{cluster}/")}
        except SiteError:
            continue  # count() has logged it
    jobs = jobs_of_slurm() if cluster else None
    if jobs is None:
        return 0
    orphans = 0
    for server, names in held.items():
        for name in sorted(names):
            number = name.rsplit("/", 1)[1]
            if not number.isdigit() or int(number) in jobs:
                continue
            log(f"{name} is over, and server {server.name} has a token of it")
            orphans += 1
            if dry_run:
                continue
            try:
                server.ask("admin", "revoke", "--job", name, "--end-sessions")
            except SiteError as error:
                log(str(error))
    return orphans


def main():
    parser = argparse.ArgumentParser(
        prog="gpuwire-slurm-sync",
        description=__doc__.split("\n\n", maxsplit=1)[0],
        epilog=__doc__.split("\n\n", maxsplit=2)[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--once", action="store_true", help="look once, then exit")
    parser.add_argument("--interval", type=float, default=30, metavar="SECONDS", help="how often to look (30)")
    parser.add_argument("--dry-run", action="store_true", help="print what would change, but change nothing")
    options = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while True:
        try:
            site = Site()  # read each time, so that a change needs no signal
            update_licences(site, options.dry_run)
            revoke_orphans(site, options.dry_run)
        except (SiteError, OSError, subprocess.SubprocessError) as error:
            log(str(error))
            if options.once:
                return 1
        if options.once or ended.wait(max(1.0, options.interval)):
            return 0


if __name__ == "__main__":
    sys.exit(main())
