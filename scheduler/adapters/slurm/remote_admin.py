"""What the cluster may have done on a GPU server, and nothing else: a forced command for SSH.

usage: remote_admin.py [--gpuwire PROGRAM] [--directory DIR] [--control PATH]

In the authorized_keys of the server's administrator, for the key that nodes and controller have:
  restrict,command="/usr/bin/python3 /usr/lib/gpuwire/slurm/remote_admin.py" ssh-ed25519 AAAA... cluster

Takes from SSH_ORIGINAL_COMMAND what job.py and sync.py ask: the server's figures, its tokens of jobs, new ones, and
revocations of tokens and jobs. No shell reads these words.
"""

import argparse
import json
import os
import re
import subprocess
import sys

NAME = r"[A-Za-z0-9._-]{1,64}"
JOB = r"slurm/[A-Za-z0-9._@+-]{1,64}/[0-9]{1,10}"
ALLOWED = [
    re.compile(words)
    for words in (
        r"status --json",
        r"admin list --json",
        rf"admin job-token {NAME} --job {JOB} --gpus [0-9]{{1,4}} --lifetime [0-9]{{1,9}}s",
        r"admin revoke [0-9a-f]{16} --end-sessions",
        rf"admin revoke --job {JOB} --end-sessions",
    )
]


def allowed(words):
    """Returns the words after the program's name if this command is allowed, else None."""
    text = " ".join(words[1:])
    return (
        words[1:]
        if words and os.path.basename(words[0]) == "gpuwire" and any(one.fullmatch(text) for one in ALLOWED)
        else None
    )


def is_job_token(listed, token):
    """Whether the list has this token, made for a Slurm job."""
    return any(
        one.get("id") == token and one.get("job", "").startswith("slurm/") for one in listed.get("credentials", [])
    )


def main():
    parser = argparse.ArgumentParser(
        prog="remote_admin.py",
        description=__doc__.split("\n\n", maxsplit=1)[0],
        epilog=__doc__.split("\n\n", maxsplit=2)[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpuwire", default="/usr/bin/gpuwire", metavar="PROGRAM")
    parser.add_argument("--directory", metavar="DIR", help="the folder of the server's identity, as for gpuwire admin")
    parser.add_argument("--control", metavar="PATH", help="the server's control socket, as for gpuwire admin")
    options = parser.parse_args()
    words = allowed(os.environ.get("SSH_ORIGINAL_COMMAND", "").split())
    if words is None:
        print("this key is only for gpuwire's Slurm adapter", file=sys.stderr)
        return 1
    admin = ["admin", *(["--directory", options.directory] if options.directory else [])]
    if words[:2] == ["admin", "revoke"] and words[2] != "--job":
        listed = subprocess.run(
            [options.gpuwire, *admin, "list", "--json"], capture_output=True, text=True, check=False
        )
        if listed.returncode != 0 or not is_job_token(json.loads(listed.stdout), words[2]):
            print("there is no token of a job with this id", file=sys.stderr)
            return 1
    command = [options.gpuwire, *(admin + words[1:] if words[0] == "admin" else words)]
    if options.control and words[:2] != ["admin", "list"] and words[:2] != ["admin", "job-token"]:
        command += ["--control", options.control]
    os.execv(command[0], command)
    return 1


if __name__ == "__main__":
    sys.exit(main())
