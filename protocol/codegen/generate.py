#!/usr/bin/env python3
"""Writes everything that follows from protocol/api/: generated code into --output, docs/api_coverage.md into the tree.

Without arguments: the coverage table only (the build writes the code into its own folder).
"""

import argparse
import sys
from pathlib import Path

import emit_captures
import emit_client
import emit_coverage
import emit_layers
import emit_mocks
import emit_names
import emit_schema
import emit_server
import emit_session
import emit_structures
import emit_trace
from model import DescriptionError, read_api

ROOT = Path(__file__).resolve().parents[2]


def outputs(api):
    """Returns {path under the output folder: text}."""
    files = {
        "cuda_names.hpp": emit_names.emit(api),
        "forbidden_by_captures.hpp": emit_captures.emit(api),
        "client/forward.hpp": emit_client.forward_header(api),
        "client/custom.hpp": emit_client.custom_header(api),
        "client/structures.hpp": emit_structures.client_header(api),
        "server/structures.hpp": emit_structures.server_header(api),
        "client/symbols.hpp": emit_client.symbols_header(api),
        "client/symbols.cpp": emit_client.symbols_source(api),
        "client/trace.hpp": emit_trace.header(),
        "client/trace.cpp": emit_trace.source(),
        "server/driver_table.hpp": emit_server.driver_table_header(api),
        "server/driver_table.cpp": emit_server.driver_table_source(api),
        "server/driver_table_entries.hpp": emit_server.driver_table_entries_header(api),
        "server/custom.hpp": emit_server.custom_header(api),
        "server/replay_functions.hpp": emit_server.replay_functions_header(api),
        "server/replay_table.cpp": emit_server.replay_table_source(api),
    }
    for family in api.families:
        files[f"client/exports_{family.name}.cpp"] = emit_client.exports_source(family)
        if family.forwarded:
            files[f"schema/api_{family.name}.capnp"] = emit_schema.emit(family)
            files[f"client/forward_{family.name}.cpp"] = emit_client.forward_source(family)
            files[f"server/replay_{family.name}.cpp"] = emit_server.replay_source(family)
    return files | emit_layers.outputs(api) | emit_session.outputs(api.session)


def write_if_changed(path, text):
    """Writes the file unless its content is equal, so that nothing is compiled again for it."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", type=Path, default=ROOT / "protocol/api", help="folder of the description")
    parser.add_argument("--output", type=Path, help="folder for the generated code")
    parser.add_argument("--stamp", type=Path, help="file to touch when all is written")
    parser.add_argument("--tests", action="store_true", help="write the mocks of the tests instead of the code")
    parser.add_argument("--list", action="store_true", help="only print the paths under --output, one a line")
    parser.add_argument("--coverage", type=Path, help="where docs/api_coverage.md is written")
    options = parser.parse_args()
    try:
        api = read_api(options.api)
    except DescriptionError as error:
        sys.exit(f"generate.py: {error}")
    files = emit_mocks.emit(api) if options.tests else outputs(api)
    if options.list:
        print("\n".join(files))
        return
    if options.output:
        for path, text in files.items():
            write_if_changed(options.output / path, text)
    else:
        options.coverage = options.coverage or ROOT / "docs/api_coverage.md"
    if options.coverage:
        write_if_changed(options.coverage, emit_coverage.emit(api))
    if options.stamp:
        options.stamp.touch()


if __name__ == "__main__":
    main()
