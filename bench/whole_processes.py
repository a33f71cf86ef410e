"""Times a command as a whole process, several times, one after the other.

usage: python3 bench/whole_processes.py --count N [--rest S] -- COMMAND...

bench/run and bench/one_after_another start it behind their --client-prefix: making a namespace without device files
takes as long as a small process, and is no part of any. Prints a list of milliseconds as JSON. Exit status 1: one of
them failed, or did not print PASSED.
"""

import argparse
import json
import subprocess
import sys
import time


def process_ms(command):
    start = time.monotonic()
    ran = subprocess.run(command, capture_output=True, text=True)
    elapsed = (time.monotonic() - start) * 1000
    if ran.returncode != 0 or "PASSED" not in ran.stdout:
        sys.exit(f"{command} failed ({ran.returncode}):\n{ran.stdout}{ran.stderr}")
    return elapsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--rest", type=float, default=0, metavar="S", help="seconds before the first")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    time.sleep(options.rest)
    print(json.dumps([process_ms(options.command) for _ in range(options.count)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
