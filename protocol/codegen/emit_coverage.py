"""docs/api_coverage.md."""


def how(function):
    if function.unsupported:
        return "unsupported"
    if function.same_as:
        return f"as {function.same_as}"
    if function.via:
        return f"sent as {function.via}"
    return function.cls


def side(function):
    if function.unsupported or function.same_as or function.via:
        return "", ""
    server = {"generated": "generated", "hand": "by hand", "none": ""}[function.server]
    if function.server == "none" and function.cls != "local":
        server = "session message"
    return ("by hand" if function.is_hand else "generated"), server


def row(function):
    client, server = side(function)
    note = function.unsupported or ", ".join("also _" + v for v in function.variants)
    if function.unsupported and function.variants:
        note += "; also _" + ", _".join(function.variants)
    return f"| {function.name} | {how(function)} | {client} | {server} | {function.ordinal or ''} | {note} |\n"


def emit(api):
    functions = api.functions
    supported = [f for f in functions if not f.unsupported]
    counts = {
        c: sum(1 for f in supported if not f.same_as and not f.via and f.cls == c)
        for c in ("posted", "called", "local")
    }
    synonyms = sum(1 for f in supported if f.same_as or f.via)
    parts = [
        "# The driver API of CUDA 13.0, function by function\n\nWritten by `protocol/codegen/generate.py` from"
        f" `protocol/api/`; a test compares it.\n\nThe toolkit's library exports {len(api.symbols)} functions;"
        f" {len(functions)} of them are described, the rest are their\nper-thread-default-stream forms (`_ptds`,"
        " `_ptsz`). All are exported.\n\n| | functions |\n|---|---|\n| local: answered by the client |"
        f" {counts['local']} |\n| posted: sent, not waited for | {counts['posted']} |\n| called: sent, and waited for |"
        f" {counts['called']} |\n| other names of the above | {synonyms} |\n| unsupported: `CUDA_ERROR_NOT_SUPPORTED` |"
        f" {len(functions) - len(supported)} |\n\nThe functions of cudaGL.h, cudaEGL.h and cudaVDPAU.h are not"
        " exported: the other API's objects live on the client, and\nthe toolkit's own library lacks them too."
        " Programs look them up by name and find them missing.\n"
    ]
    for family in api.families:
        parts.append(
            f"\n## {family.name}\n\n{family.title}.\n\n| function | class | client | server | ordinal |"
            " |\n|---|---|---|---|---|---|\n"
        )
        parts += [row(f) for f in family.functions]
    return "".join(parts)
