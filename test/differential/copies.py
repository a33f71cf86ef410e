"""Scenarios that copy and fill in every form that there is: between contexts, in batches, to and from arrays."""

from grammar import structure
from scenarios import HOST_BYTES, allocate, check, stream_of

ROWS, PITCH = 8, 64
NOWHERE = 4096  # an address of nothing


def box(kind, source, target, **fields):
    return structure(
        kind, {
            "srcMemoryType": 2, "srcDevice": source, "srcPitch": PITCH, "srcHeight": ROWS, "dstMemoryType": 2,
            "dstDevice": target, "dstPitch": PITCH, "dstHeight": ROWS, "WidthInBytes": 32, "Height": ROWS, "Depth": 1,
            **fields
        })


def flat(source, target):
    return structure(
        "CUDA_MEMCPY2D", {
            "srcMemoryType": 2, "srcDevice": source, "srcPitch": PITCH, "dstMemoryType": 2, "dstDevice": target,
            "dstPitch": PITCH, "WidthInBytes": 48, "Height": ROWS
        })


def peer_boxes(source, target, context):
    """Returns the right structure, and ones with a wrong address, extent or pitch."""
    ends = {"srcContext": context, "dstContext": context}
    return (box("CUDA_MEMCPY3D_PEER", source, target, **ends), box("CUDA_MEMCPY3D_PEER", 0, target, **ends),
            box("CUDA_MEMCPY3D_PEER", source, NOWHERE, **ends),
            box("CUDA_MEMCPY3D_PEER", source, target, **{**ends, "Height": 1000, "dstHeight": 1000}),
            box("CUDA_MEMCPY3D_PEER", source, target, **{**ends, "srcPitch": 8}))


def copies(sequence, thread):
    """Copies and fills in one stream, so that their effects have one order."""
    source, target = allocate(sequence, thread, 4096), allocate(sequence, thread, 4096)
    stream = stream_of(sequence, thread)
    mine = sequence.context_of(thread)
    operand = {"src.type": 1, "src.op.ptr.ptr": source, "dst.type": 1, "dst.op.ptr.ptr": target, "extent.width": 64,
               "extent.height": 4, "extent.depth": 1, "srcAccessOrder": 1}
    order = structure("CUmemcpyAttributes", {"srcAccessOrder": 1})
    beyond = 1 << 40
    choices = [
        ("cuMemcpyAsync", (target, 0), (source, 0), (512, beyond), stream),
        ("cuMemcpyPeer", (target, 0, NOWHERE), mine, (source, 0, NOWHERE), mine, (512, 0, 4097, beyond)),
        ("cuMemcpyPeerAsync", (target, 0, NOWHERE), mine, (source, 0, NOWHERE), mine, (512, 0, 4097, beyond), stream),
        ("cuMemcpy2DUnaligned_v2", (flat(source, target), 0)),
        ("cuMemcpy2DAsync_v2", (flat(source, target), flat(0, target), 0), stream),
        ("cuMemcpy3DAsync_v2", (box("CUDA_MEMCPY3D", source, target), box("CUDA_MEMCPY3D", 0, target), 0), stream),
        ("cuMemcpy3DPeer", peer_boxes(source, target, mine)),
        ("cuMemcpy3DPeerAsync", peer_boxes(source, target, mine), stream),
        ("cuMemcpyBatchAsync", f"[{target}]", f"[{source}]", "[256]", (1, 0), order, "[0]", (1,), "?hide", stream),
        ("cuMemcpyBatchAsync_v2", f"[{target}]", f"[{source}]", "[256]", (1, 0), order, "[0]", (1,), stream),
        ("cuMemcpy3DBatchAsync", (1, 0), structure("CUDA_MEMCPY3D_BATCH_OP", operand), "?hide", (0, 99), stream),
        ("cuMemcpy3DBatchAsync_v2", (1, 0), structure("CUDA_MEMCPY3D_BATCH_OP", operand), (0, 99), stream),
        ("cuMemsetD16Async", (target, target.at(1), 0), 0x5151, (64, beyond), stream),
        ("cuMemsetD2D8Async", (target, 0), (PITCH, 8), 7, 32, (ROWS, beyond), stream),
        ("cuMemsetD2D16Async", (target, target.at(1)), (PITCH, 63), 7, 16, (ROWS, 0), stream),
        ("cuMemsetD2D32Async", (target, target.at(2)), (PITCH, 62), 7, 8, (ROWS, 0), stream),
        ("cuMemsetD2D16_v2", (target, target.at(1)), (PITCH, 63), 9, 16, (ROWS, 0)),
    ]
    for name, *arguments in sequence.random.sample(choices, sequence.random.randrange(3, len(choices) + 1)):
        sequence.risky(thread, name, *arguments)
        # Some are in the NULL stream, for which streams that do not block do not wait.
        target.needs += [sequence.call(thread, "cuStreamSynchronize", each) for each in (stream, 0)]
        yield
    check(sequence, thread, target)
    for name, thing in (("cuStreamDestroy_v2", stream), ("cuMemFree_v2", source), ("cuMemFree_v2", target)):
        sequence.call(thread, name, thing)


def arrays(sequence, thread):
    """Arrays of up to three dimensions, mipmapped ones, their objects, and copies of their rows."""
    stream = stream_of(sequence, thread)
    array, out = sequence.new("array")
    shape = {"Width": 64, "Height": 4, "Format": 1, "NumChannels": 1}
    # CUDA_ARRAY3D_SURFACE_LDST, for the surface.
    sequence.call(thread, "cuArray3DCreate_v2", out, structure("CUDA_ARRAY3D_DESCRIPTOR", {**shape, "Flags": 2}))
    sequence.risky(thread, "cuArray3DCreate_v2", (">never", 0),
                   (structure("CUDA_ARRAY3D_DESCRIPTOR", {**shape, "Format": 99}),
                    structure("CUDA_ARRAY3D_DESCRIPTOR", {**shape, "NumChannels": 3}), 0), probability=1)
    line, out = sequence.new("array")
    sequence.call(thread, "cuArrayCreate_v2", out, structure("CUDA_ARRAY_DESCRIPTOR", {**shape, "Height": 0}))
    yield
    shown = structure("CUDA_ARRAY3D_DESCRIPTOR", {}, "Width Height Depth Format NumChannels Flags")
    sequence.risky(thread, "cuArray3DGetDescriptor_v2", (shown, 0), (array, 0))
    needs = structure("CUDA_ARRAY_MEMORY_REQUIREMENTS", {})
    sequence.risky(thread, "cuArrayGetMemoryRequirements", (needs, 0), (array, 0), 0)
    sparse = structure("CUDA_ARRAY_SPARSE_PROPERTIES", {})
    sequence.risky(thread, "cuArrayGetSparseProperties", (sparse, 0), (array, 0))
    yield
    host, back, block = sequence.host(thread, HOST_BYTES), sequence.host(thread, HOST_BYTES), allocate(
        sequence, thread, 4096)
    # A copy from pageable memory may still be in flight when the call returns.
    done = [sequence.call(thread, "cuMemcpyHtoA_v2", line, 0, host, 64)]
    done.append(sequence.call(thread, "cuStreamSynchronize", 0))
    sequence.risky(thread, "cuMemcpyHtoA_v2", (line, 0), (0, 65), (host, 0), (64, 1 << 30), probability=0.5)
    yield
    done.append(sequence.call(thread, "cuMemcpyHtoAAsync_v2", line, 0, host.at(64), 32, stream))
    done.append(sequence.call(thread, "cuStreamSynchronize", stream))
    done.append(sequence.call(thread, "cuMemcpyAtoD_v2", block, line, 0, 64))
    done.append(sequence.call(thread, "cuMemcpyDtoA_v2", line, 0, block, 32))
    done.append(sequence.call(thread, "cuMemcpyAtoA_v2", line, 32, line, 0, 32))
    done.append(sequence.call(thread, "cuMemcpyAtoH_v2", back, line, 0, 64))
    sequence.digest(thread, back, 0, 64, done)
    yield
    done.append(sequence.call(thread, "cuMemcpyAtoHAsync_v2", back.at(64), line, 16, 32, stream))
    done.append(sequence.call(thread, "cuStreamSynchronize", stream))
    sequence.digest(thread, back, 64, 32, done)
    for name, *arguments in (("cuMemcpyAtoH_v2", back, (line, 0), (0, 60), 32), ("cuMemcpyAtoD_v2", (block, 0), line, 0,
                                                                                (64, 65)),
                             ("cuMemcpyDtoA_v2", (line, 0), 0, block, 64), ("cuMemcpyAtoA_v2", (line, 0), 0, line, 32,
                                                                            32)):
        sequence.risky(thread, name, *arguments, probability=0.4)
    yield
    resource = structure("CUDA_RESOURCE_DESC", {"resType": 0, "res.array.hArray": array})
    texture, out = sequence.new("texture")
    sequence.call(thread, "cuTexObjectCreate", out, resource, structure("CUDA_TEXTURE_DESC", {"addressMode[0]": 1}), 0)
    sequence.risky(thread, "cuTexObjectGetResourceDesc", (structure("CUDA_RESOURCE_DESC", {},
                                                                    "resType res.array.hArray"), 0), texture)
    sequence.risky(thread, "cuTexObjectGetTextureDesc", (structure("CUDA_TEXTURE_DESC", {},
                                                                   "addressMode[0] filterMode flags"), 0), texture)
    sequence.risky(thread, "cuTexObjectGetResourceViewDesc", (structure("CUDA_RESOURCE_VIEW_DESC", {}, "format width"),
                                                              0), texture)
    surface, out = sequence.new("surface")
    sequence.risky(thread, "cuSurfObjectCreate", (">never", 0), (0,), probability=0.5)
    sequence.call(thread, "cuSurfObjectCreate", out, resource)
    sequence.risky(thread, "cuSurfObjectGetResourceDesc", (structure("CUDA_RESOURCE_DESC", {},
                                                                     "resType res.array.hArray"), 0), surface)
    sequence.call(thread, "cuSurfObjectDestroy", surface)
    sequence.call(thread, "cuTexObjectDestroy", texture)
    yield
    levels, out = sequence.new("mipmapped")
    tall = structure("CUDA_ARRAY3D_DESCRIPTOR", {**shape, "Height": 64})
    sequence.call(thread, "cuMipmappedArrayCreate", out, tall, 3)
    sequence.call(thread, "cuMipmappedArrayCreate", ">never", tall, sequence.pick(0, 100))
    sequence.risky(thread, "cuMipmappedArrayGetLevel", (">level", 0), (levels, 0), (0, 99))
    sequence.risky(thread, "cuMipmappedArrayGetMemoryRequirements", (needs, 0), (levels, 0), 0)
    sequence.risky(thread, "cuMipmappedArrayGetSparseProperties", (sparse, 0), (levels, 0))
    sequence.call(thread, "cuMipmappedArrayDestroy", levels)
    for name, thing in (("cuArrayDestroy", array), ("cuArrayDestroy", line), ("cuStreamDestroy_v2", stream),
                        ("cuMemFree_v2", block)):
        sequence.call(thread, name, thing)
