"""A machine (machine.py) whose first process is systemd itself, with a control group, devices and system services of
its own: what a packaged unit does there, it does for those who install it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time

from machine import BEGIN, LIMIT_SECONDS, Machine, why_not as why_no_machine

SYSTEMD = "/lib/systemd/systemd"

# Runs the script $2 in a new group for all of the machine, below the caller's of cgroup v2, wherever that is mounted;
# there it is the root.
GROUP = r"""
set -e
mount=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
group=$mount$(sed -n s,^0::,,p /proc/self/cgroup)/$(basename "$1")
mkdir "$group"
echo 0 >"$group/cgroup.procs"
exec unshare --cgroup sh -c "$2" sh "$1"
"""

# Nothing of this machine's devices, kernel settings or services is within systemd's reach.
BOOT = r"""
mount -t sysfs -o ro sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mkdir /run/devices
mount -t tmpfs -o mode=0755 tmpfs /run/devices
mkdir /run/devices/pts /run/devices/shm
for node in null zero full random urandom tty; do
  touch /run/devices/$node
  mount --bind /dev/$node /run/devices/$node
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts /run/devices/pts
ln -s pts/ptmx /run/devices/ptmx
for name in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${name%:*} /run/devices/${name#*:}; done
ln -s /proc/self/fd /run/devices/fd
mount -t tmpfs -o mode=1777 tmpfs /run/devices/shm
umount -l /dev
mount --move /run/devices /dev
: >/etc/fstab
for folder in /lib/systemd/system /etc/systemd/system; do rm -rf $folder/*.wants $folder/*.requires; done
mkdir /lib/systemd/system/sysinit.target.wants
for unit in systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket; do
  ln -s ../$unit /lib/systemd/system/sysinit.target.wants/
done
echo made
exec setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-mknod env -i container=test PATH="$PATH" \
  /lib/systemd/systemd --unit=basic.target --log-target=null --show-status=no
"""


def why_not():
    """Why systemd runs on no machine here; empty: it does."""
    if missing := why_no_machine():
        return missing
    if not os.path.exists(SYSTEMD) or not shutil.which("systemctl"):
        return "systemd is not installed"
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        if not any(line.split()[2] == "cgroup2" for line in mounts):
            return "cgroup v2 is not mounted"
    folder = tempfile.mkdtemp(prefix="gpuwire-machine-")
    try:
        tried = subprocess.run(["unshare", "--pid", "--fork", "sh", "-c", GROUP, "sh", folder, "true"],
                               capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        remove_group(os.path.basename(folder))
    finally:
        os.rmdir(folder)
    return "" if tried.returncode == 0 else "no control group can be made: " + tried.stderr.strip()


def group_folder(name):
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        mount = next(line.split()[1] for line in mounts if line.split()[2] == "cgroup2")
    with open("/proc/self/cgroup", encoding="utf-8") as groups:
        own = next(line[len("0::"):].strip() for line in groups if line.startswith("0::"))
    return os.path.join(mount, own.lstrip("/"), name)


def remove_group(name):
    """The kernel releases a group a moment after its last process has ended."""
    top = group_folder(name)
    limit = time.monotonic() + LIMIT_SECONDS
    while os.path.isdir(top):
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                if time.monotonic() > limit:
                    raise
        time.sleep(0.01)


class SystemdMachine(Machine):
    def __init__(self):
        super().__init__()
        limit = time.monotonic() + LIMIT_SECONDS
        while self.state() not in ("running", "degraded"):
            if time.monotonic() > limit:
                self.end()
                raise RuntimeError("systemd has not come up: " + self.state())
            time.sleep(0.05)

    def state(self):
        return self.try_run("systemctl", "is-system-running").stdout.strip()

    def _first_words(self):
        return ["sh", "-c", GROUP, "sh", self.folder, BEGIN + BOOT]

    def _bring_tools(self):
        """systemctl is systemd's own."""

    def end(self):
        os.kill(self.first, signal.SIGKILL)  # and with the first process all others
        self.process.wait(LIMIT_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        remove_group(os.path.basename(self.folder))
        os.rmdir(self.folder)
