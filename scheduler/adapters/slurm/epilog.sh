#!/bin/sh
# For slurm.conf: Epilog.
exec /usr/bin/env python3 -B "$(dirname "$(readlink -f "$0")")/job.py" epilog
