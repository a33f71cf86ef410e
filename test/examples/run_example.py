#!/usr/bin/env python3
"""Runs one example on the software device, directly or through the wire, and checks its exit code and output.

usage: run_example.py BUILD_DIRECTORY direct|wire EXAMPLE [--devices N] [--expect FILE]
"""

import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gpuwire_server import Server  # noqa: E402

RUN_LIMIT_SECONDS = 300


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("way", choices=["direct", "wire"])
    parser.add_argument("example")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--expect", help="the output must equal this file; without it, it must end with PASSED")
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    program = os.path.join(build, "examples", options.example)
    client = os.environ.get("GPUWIRE_CLIENT_BUILD", build)

    if options.way == "direct":
        environment = dict(os.environ, GPUWIRE_SOFTWARE_DEVICES=str(options.devices),
                           LD_LIBRARY_PATH=os.path.join(build, "lib", "software_direct"))
        ran = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        log = ""
    else:
        with Server(build, ["--device", "software", "--software-devices", str(options.devices)]) as server:
            ran = subprocess.run(
                [os.path.join(client, "bin", "gpuwire"), "run", "--server", server.address, "--", program],
                capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        log = "".join(server.log)
        if server.process.returncode != 0:
            print(f"the server ended with {server.process.returncode}\n{log}")
            return 1

    if options.expect:
        with open(options.expect, encoding="utf-8") as expected:
            right = ran.returncode == 0 and ran.stdout == expected.read()
    else:
        right = ran.returncode == 0 and ran.stdout.rstrip().endswith("PASSED")
    print(ran.stdout, end="")
    if not right:
        print(f"exit code {ran.returncode}\nstandard error:\n{ran.stderr}\nserver log:\n{log}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
