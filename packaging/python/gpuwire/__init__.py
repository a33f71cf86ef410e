"""gpuwire's client: CUDA programs run on machines without a GPU. `python -m gpuwire run -- PROGRAM` starts one."""

import os

# The installation of the client: bin/gpuwire, lib/gpuwire with the stub libraries.
CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "client")


def launcher():
    """The path of the command `gpuwire`."""
    return os.path.join(CLIENT, "bin", "gpuwire")
