"""Tells JAX that there are NVIDIA devices.

JAX calls initialize() of every module in the namespace package jax_plugins. It leaves CUDA out where none of the
driver's device files exists;
under `gpuwire run` the devices are on another machine.
"""

import os


def initialize():
    if not os.environ.get("GPUWIRE_SERVER"):
        return
    from jax._src import hardware_utils
    hardware_utils.has_visible_nvidia_gpu = lambda: True
