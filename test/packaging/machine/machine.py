"""A machine of its own for a test: an overlay of this one, with its own processes and network, on which packages are
installed and commands are typed. Everything in it ends with it, and nothing of it is left."""

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "support"))
import time_limit  # noqa: E402,F401, no test waits for a machine without end
LIMIT_SECONDS = 300

# Runs in the new namespaces: makes the overlay the root. Then the first process waits, and reaps orphaned processes.
BEGIN = r"""
set -e
folder=$1
mount --make-rprivate /
mount -t tmpfs -o mode=0755 overlay "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$folder/upper",workdir="$folder/work" "$folder/root"
cd "$folder/root"
mount --rbind /dev dev
mount -t tmpfs -o mode=0755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mkdir -p run/systemd/system run/lock run/changes
mount --bind "$folder/upper" run/changes
mount -t proc proc proc
mkdir -p mnt
pivot_root . mnt
cd /
umount -l /mnt
# What a server of this machine has left is not there. One that runs may write there meanwhile.
for try in 1 2 3 4 5 6 7 8 9 10; do
  rm -rf /etc/gpuwire /var/cache/gpuwire /var/lib/gpuwire /var/log/gpuwire && break
done 2>/dev/null
test ! -e /var/cache/gpuwire
# Each installation would have an index of all manual pages made anew, most of what it costs.
rm -f /var/lib/man-db/auto-update
ip link set lo up 2>/dev/null || true
"""
WAIT = r"""
exec python3 -c '
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("made", flush=True)
sys.stdin.read()'
"""

# A copy of setpriv that becomes root, since scripts cannot.
SUDO = r"""#!/bin/sh
exec /usr/local/libexec/become-root --reuid=0 --regid=0 --clear-groups -- "$@"
"""

# In the editor's place: the text that the test has left for it.
SUDOEDIT = r"""#!/bin/sh
exec sudo cp /run/edited "$1"
"""


def why_not():
    """Why no machine can be made here; empty: one can."""
    if os.geteuid() != 0:
        return "only root makes a machine"
    missing = [tool for tool in ("unshare", "nsenter", "setpriv", "dpkg", "apt") if not shutil.which(tool)]
    if missing:
        return f"{missing[0]} is missing"
    with tempfile.TemporaryDirectory(prefix="gpuwire-machine-") as folder:
        script = ('mount --make-rprivate / && mount -t tmpfs none "$0" && mkdir "$0/u" "$0/w" "$0/r" &&'
                  ' mount -t overlay overlay -o lowerdir=/,upperdir="$0/u",workdir="$0/w" "$0/r"')
        tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", script, folder],
                               capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    return "" if tried.returncode == 0 else "overlays cannot be mounted: " + tried.stderr.strip()


class Machine:
    """`of_network`: another machine, whose network this one shares, including loopback."""

    def __init__(self, of_network=None):
        self.folder = tempfile.mkdtemp(prefix="gpuwire-machine-")
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts"]
        prefix = [] if of_network is None else ["nsenter", f"--net=/proc/{of_network.first}/ns/net"]
        self.process = subprocess.Popen(
            [*prefix, *unshare, *([] if of_network else ["--net"]), *self._first_words()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_SECONDS)
        if not ready or self.process.stdout.readline() != "made\n":
            self.process.kill()
            raise RuntimeError("no machine: " + self.process.communicate()[1])
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as children:
            self.first = int(children.read().split()[0])
        self.root = f"/proc/{self.first}/root"
        self._bring_tools()

    def _first_words(self):
        """Returns the command of its first process."""
        return ["sh", "-c", BEGIN + WAIT, "sh", self.folder]

    def _bring_tools(self):
        self.put(os.path.join(HERE, "systemctl"), "/usr/bin/systemctl", 0o755)
        self.put(shutil.which("setpriv"), "/usr/local/libexec/become-root", 0o4755)
        self.write("/usr/local/bin/sudo", SUDO, 0o755)
        self.write("/usr/local/bin/sudoedit", SUDOEDIT, 0o755)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(self.first, signal.SIGKILL)
            self.process.wait(LIMIT_SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()
        os.rmdir(self.folder)

    def path(self, inside):
        """Returns the path of a file of the machine, as seen from this machine."""
        return self.root + inside

    def put(self, file, inside, mode=0o644):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        if os.path.lexists(self.path(inside)):
            os.unlink(self.path(inside))
        shutil.copy(file, self.path(inside))
        os.chmod(self.path(inside), mode)

    def write(self, inside, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(inside), mode)

    def read(self, inside):
        with open(self.path(inside), encoding="utf-8") as file:
            return file.read()

    def add_user(self, name):
        self.run("useradd", "--create-home", name)

    def _words(self, words, user):
        home = "/root" if user == "root" else "/home/" + user
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user != "root" else []
        enter = ["nsenter", f"--target={self.first}", "--mount", "--pid", "--net", "--uts", "--root",
                 f"--wd={self.root}{home}"]
        return [
            *enter, *become, "env", "-i", f"HOME={home}", f"USER={user}", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *words
        ]

    def try_run(self, *words, user="root", **extra):
        return subprocess.run(self._words(words, user), capture_output=True, text=True, timeout=LIMIT_SECONDS,
                              check=False, **{"stdin": subprocess.DEVNULL, **extra})

    def run(self, *words, user="root", **extra):
        """Returns the output; raises AssertionError with all output if the command fails."""
        ran = self.try_run(*words, user=user, **extra)
        if ran.returncode != 0:
            raise AssertionError(f"{user}: {' '.join(words)}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def start(self, *words, user="root", **extra):
        return subprocess.Popen(self._words(words, user), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **extra)

    def stop(self, process):
        """Ends the process that `start` has started, and waits. This machine only sees nsenter, which forwards no
        signals."""
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        if process.poll() is None:
            with open(children, encoding="ascii") as file:
                for child in file.read().split():
                    os.kill(int(child), signal.SIGTERM)
        return process.communicate(timeout=LIMIT_SECONDS)

    def changes(self):
        """Returns the paths that the machine has and this machine lacks, and the removed ones."""
        top = self.path("/run/changes")
        new, gone = set(), set()
        for path, folders, names in os.walk(top):
            for name in folders + names:
                inside, facts = os.path.join(path, name)[len(top):], os.lstat(os.path.join(path, name))
                # The marker that an overlay creates for a removed file.
                if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
                    gone.add(inside)
                elif not os.path.lexists(inside):
                    new.add(inside)
        return new, gone

    def accounts(self):
        return {file: self.read(file) for file in ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow")}
