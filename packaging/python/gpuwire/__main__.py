"""`python -m gpuwire ARGUMENTS`, and the command `gpuwire` that pip installs: becomes the launcher."""

import os
import sys

from gpuwire import launcher


def main():
    try:
        os.execv(launcher(), ["gpuwire", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"gpuwire: cannot start {launcher()}: {error.strerror}")


if __name__ == "__main__":
    main()
