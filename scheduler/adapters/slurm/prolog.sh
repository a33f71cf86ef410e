#!/bin/sh
# For slurm.conf: Prolog.
exec /usr/bin/env python3 -B "$(dirname "$(readlink -f "$0")")/job.py" prolog
