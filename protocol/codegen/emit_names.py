"""generated/cuda_names.hpp: cuda.h without its renaming macros, so that a name refers to the exported symbol with that
name."""

from text import banner


def emit(api):
    undefs = "".join(f"#undef {f.name}\n" for f in api.functions)
    return f"""{banner()}// cuda.h renames functions by macros (cuMemAlloc means cuMemAlloc_v2). Behind this header a name is the exported symbol of that name.
#pragma once

#include <cuda.h>
#include <cudaProfiler.h>

{undefs}"""
