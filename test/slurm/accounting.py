"""Slurm's accounting for a cluster of a test: a MariaDB of its own and slurmdbd, on loopback. Where they are not
installed, Debian's packages are unpacked (8 MB)."""

import os
import pwd
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import debian_tools  # noqa: E402
from cluster import SLURM_PLUGINS, wait_until  # noqa: E402

DATABASE_PACKAGES = "mariadb-server-core libaio1 libnuma1 liburing2"
DAEMON_PACKAGES = "slurmdbd slurm-wlm-mysql-plugin libmariadb3"


def answers(port):
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


class Accounting:
    """Returns the accounting for a Cluster. Skips the test, with the reason, if it is not available."""

    def __init__(self, build):
        self.database = debian_tools.tool(build, "mariadbd", DATABASE_PACKAGES)
        self.daemon = debian_tools.tool(build, "slurmdbd", DAEMON_PACKAGES)
        self.database_port = self.port = None

    def lines(self, cluster):
        """For slurm.conf."""
        self.database_port, self.port = cluster.ports.take(), cluster.ports.take()
        own = self.daemon.path("usr", "lib", "x86_64-linux-gnu", "slurm-wlm")
        cluster.write(
            "slurmdbd.conf",
            f"""AuthType=auth/munge
AuthInfo=socket={cluster.path('munge', 'socket')}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={self.port}
SlurmUser={pwd.getpwuid(os.geteuid()).pw_name}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self.database_port}
StorageUser=slurm
StorageLoc=slurm_acct_db
PidFile={cluster.path('run', 'slurmdbd.pid')}
LogFile={cluster.path('log', 'slurmdbd')}
PluginDir={own}:{SLURM_PLUGINS}
""",
        )
        os.chmod(cluster.path("slurmdbd.conf"), 0o600)
        return (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={self.port}\nAccountingStoragePass={cluster.path('munge', 'socket')}\n"
            "AccountingStorageTRES=license/gpuwire\n"
        )

    def start(self, cluster):
        """Before slurmctld, which is registered here, and when munged is there."""
        os.mkdir(cluster.path("database"))
        # Only this machine can connect to it, and it contains only the jobs of the test.
        cluster.start_daemon(
            self.database.program, "--no-defaults", f"--datadir={cluster.path('database')}", "--skip-grant-tables",
            "--bind-address=127.0.0.1", f"--port={self.database_port}", f"--socket={cluster.path('run', 'database')}",
            f"--pid-file={cluster.path('run', 'database.pid')}", f"--user={pwd.getpwuid(os.geteuid()).pw_name}",
            f"--lc-messages-dir={self.database.path('usr', 'share', 'mysql')}", "--innodb-buffer-pool-size=16M",
            environment=self.database.environment)
        wait_until(lambda: answers(self.database_port), f"the database listens: {cluster.logs()}")
        cluster.start_daemon(
            self.daemon.program, "-D", environment={**self.daemon.environment,
                                                    "SLURM_CONF": cluster.path("slurm.conf")})
        wait_until(lambda: answers(self.port), f"slurmdbd listens: {cluster.logs()}")
        wait_until(
            lambda: cluster.run("sacctmgr", "--immediate", "add", "cluster", "lab").returncode == 0,
            f"the cluster is registered: {cluster.logs()}")


def allocated(cluster, job):
    """Returns sacct's resources of a job, as a set of NAME=NUMBER, and the job's state."""
    said = subprocess.run(
        ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=AllocTRES,State"],
        capture_output=True, text=True, timeout=120, env=cluster.environment, check=False).stdout.strip()
    resources, _, state = said.partition("|")
    return set(filter(None, resources.split(","))), state
