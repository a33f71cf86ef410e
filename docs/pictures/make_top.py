#!/usr/bin/env python3
"""Prints what `gpuwire top` shows of a server with the software device and three tenants: README's picture of it.

usage: docs/pictures/make_top.py [BUILD]       (build: with all commands and the test program `neighbour`)
"""

import os
import shutil
import subprocess
import sys
import time

CONFIGURATION = """
[server]
listen = "unix:{folder}/socket"
control_socket = "{folder}/control"
runtime_directory = "{folder}/run"
sessions_per_gpu_max = 3
open_tenant = "students"
[tenants.anna]
class = "interactive"
memory = {{ guaranteed = "20GiB", limit = "60GiB" }}
unix_users = ["{users[0]}"]
[tenants.vision]
memory.limit = "60GiB"
unix_users = ["{users[1]}"]
[tenants.students]
class = "scavenger"
memory.limit = "20GiB"
unix_users = ["{users[2]}"]
"""
# Programs by tenant, with what they reserve; the last one waits.
PROGRAMS = (("anna", "notebook", "20GiB"), ("vision", "training", "30GiB"), ("vision", "inference", "8GiB"),
            ("students", "exercise", "8GiB"))
USERS = ("daemon", "bin", "games")
MACHINE = ("unshare", "--uts", "sh", "-c", 'hostname desk; exec "$@"', "sh")
LIMIT_SECONDS = 300


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"make_top.py: no {what} within {LIMIT_SECONDS} s")
        time.sleep(0.1)


def main():
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
    gpuwire = os.path.join(build, "bin", "gpuwire")
    if os.geteuid() != 0:
        sys.exit("make_top.py: the programs are of several users, so this needs root")
    folder = "/tmp/gpuwire-lab"  # its name is in the picture
    os.mkdir(folder, 0o755)
    try:
        os.mkdir(folder + "/run", 0o700)
        with open(folder + "/server.toml", "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(folder=folder, users=USERS))
        server = subprocess.Popen([gpuwire, "serve", "--config", folder + "/server.toml", "--device", "software",
                                   "--software-memory", "80GiB", "--module-cache", "none"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        running = [server]
        try:
            server.stdout.readline()
            tenants = dict(zip(("anna", "vision", "students"), USERS))
            for tenant, name, memory in PROGRAMS:
                shutil.copy(os.path.join(build, "test_programs", "neighbour"), f"{folder}/{name}")
                running.append(subprocess.Popen(
                    [*MACHINE, "setpriv", "--reuid", tenants[tenant], "--clear-groups", "env", "HOME=/nonexistent",
                     gpuwire, "run", "--server", f"unix:{folder}/socket", "--memory", memory, "--", f"{folder}/{name}"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
                if name != PROGRAMS[-1][1]:
                    running[-1].stdout.readline()
            top = [gpuwire, "top", "--once", "--interval", "2", "--control", folder + "/control"]

            def shown():
                return subprocess.run(top, capture_output=True, text=True, check=True).stdout

            wait_for(lambda: PROGRAMS[-1][1] in shown(), "program that waits")
            print("\n".join(line.rstrip() for line in shown().rstrip().split("\n")))
        finally:
            for process in reversed(running):
                process.terminate()  # a server that is told so ends what would wait for another one
                process.communicate()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
