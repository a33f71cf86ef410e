#!/bin/sh
# For slurm.conf: EpilogSlurmctld.
exec /usr/bin/env python3 -B "$(dirname "$(readlink -f "$0")")/job.py" controller-epilog
