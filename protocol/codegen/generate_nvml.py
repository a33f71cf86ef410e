#!/usr/bin/env python3
"""Writes everything that follows from protocol/nvml/: generated code into --output, docs/nvml_coverage.md into the
tree.

Without arguments: the coverage table only (the build writes the code into its own folder).
"""

import argparse
import sys
from pathlib import Path

import emit_nvml
from generate import ROOT, write_if_changed
from model import DescriptionError
from nvml_model import read_nvml


def outputs(nvml):
    """Returns {path under the output folder: text}."""
    return {
        "nvml/sizes.hpp": emit_nvml.sizes_header(nvml),
        "nvml/custom.hpp": emit_nvml.custom_header(nvml),
        "nvml/exports.cpp": emit_nvml.exports_source(nvml),
        "nvml/table.hpp": emit_nvml.table_header(nvml),
        "nvml/replay.cpp": emit_nvml.replay_source(nvml),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--description", type=Path, default=ROOT / "protocol/nvml", help="folder of the description")
    parser.add_argument("--output", type=Path, help="folder for the generated code")
    parser.add_argument("--stamp", type=Path, help="file to touch when all is written")
    parser.add_argument("--coverage", type=Path, help="where docs/nvml_coverage.md is written")
    options = parser.parse_args()
    try:
        nvml = read_nvml(options.description)
    except DescriptionError as error:
        sys.exit(f"generate_nvml.py: {error}")
    if options.output:
        for path, text in outputs(nvml).items():
            write_if_changed(options.output / path, text)
    else:
        options.coverage = options.coverage or ROOT / "docs/nvml_coverage.md"
    if options.coverage:
        write_if_changed(options.coverage, emit_nvml.coverage(nvml))
    if options.stamp:
        options.stamp.touch()


if __name__ == "__main__":
    main()
