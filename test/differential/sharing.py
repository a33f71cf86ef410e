"""Scenarios about sharing with other processes, as far as one process can test it."""

from grammar import PAGE, on_device, structure
from scenarios import allocate, check

DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def sharing(sequence, thread):
    """Memory, events and pools, by handles of each kind."""
    block = allocate(sequence, thread, 4096)
    sequence.risky(thread, "cuIpcGetMemHandle", ("?hide", 0), (block, 0))
    event, out = sequence.new("event")
    sequence.call(thread, "cuEventCreate", out, sequence.edge(6, 4))
    sequence.risky(thread, "cuIpcGetEventHandle", ("?hide", 0), (event, 0))
    # Handles that were never exported.
    sequence.call(thread, sequence.pick("cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle"), ">never",
                  structure("CUipcMemHandle", {}), 1)
    sequence.call(thread, "cuIpcOpenEventHandle", ">never", structure("CUipcEventHandle", {}))
    yield
    sequence.call(thread, "cuIpcCloseMemHandle", sequence.pick(0, block))
    sequence.call(thread, "cuEventDestroy_v2", event)
    sequence.call(thread, "cuMemFree_v2", block)
    yield
    pool, out = sequence.new("pool")
    sequence.call(thread, "cuMemPoolCreate", out, structure("CUmemPoolProps", {
        "allocType": 1, "handleTypes": sequence.edge(DESCRIPTOR, 0), **on_device(0)}))
    file, out = sequence.new("file")
    sequence.risky(thread, "cuMemPoolExportToShareableHandle", out, pool, (DESCRIPTOR, 0), (0, 1))
    again, out = sequence.new("pool")
    sequence.call(thread, "cuMemPoolImportFromShareableHandle", out, file, DESCRIPTOR, 0)
    sequence.call(thread, "cuMemPoolDestroy", again)
    sequence.call(thread, "cuMemPoolDestroy", pool)


def descriptors(sequence, thread):
    """Physical memory exported as a descriptor and imported again: both mappings have the same contents."""
    prop = structure("CUmemAllocationProp", {"type": 1, "requestedHandleTypes": DESCRIPTOR, **on_device(0)})
    plain = structure("CUmemAllocationProp", {"type": 1, **on_device(0)})
    made, out = sequence.new("physical")
    sequence.call(thread, "cuMemCreate", out, PAGE, prop, 0)
    other, out = sequence.new("physical")
    sequence.call(thread, "cuMemCreate", out, PAGE, plain, 0)
    yield
    sequence.risky(thread, "cuMemExportToShareableHandle", (">never", 0), (made, other), (DESCRIPTOR, 0), (0, 1),
                   probability=1)
    file, out = sequence.new("file")
    sequence.call(thread, "cuMemExportToShareableHandle", out, made, DESCRIPTOR, 0)
    again, out = sequence.new("physical")
    sequence.call(thread, "cuMemImportFromShareableHandle", out, file, DESCRIPTOR)
    yield
    space, out = sequence.new("memory", 2 * PAGE)
    sequence.call(thread, "cuMemAddressReserve", out, 2 * PAGE, 0, 0, 0)
    access = structure("CUmemAccessDesc", {**on_device(0), "flags": 3})
    for page, handle in enumerate((made, again)):
        sequence.call(thread, "cuMemMap", space.at(page * PAGE), PAGE, 0, handle, 0)
        space.needs.append(sequence.call(thread, "cuMemSetAccess", space.at(page * PAGE), PAGE, access, 1))
    yield
    space.needs.append(sequence.call(thread, "cuMemsetD8_v2", space, 1, PAGE))
    space.needs.append(sequence.call(thread, "cuMemsetD8_v2", space.at(PAGE), sequence.random.randrange(256), 4096))
    space.needs.append(sequence.call(thread, "cuCtxSynchronize"))
    check(sequence, thread, space, 8192)
    yield
    for page in range(2):
        sequence.call(thread, "cuMemUnmap", space.at(page * PAGE), PAGE)
    for handle in (made, again, other):
        sequence.call(thread, "cuMemRelease", handle)
    sequence.call(thread, "cuMemAddressFree", space, 2 * PAGE)
