"""The kinds of values that driver functions and session calls share."""

# kind -> (C type, Cap'n Proto type)
SCALARS = {
    "i32": ("int", "Int32"),
    "u32": ("unsigned int", "UInt32"),
    "u64": ("unsigned long long", "UInt64"),
    "uint64": ("cuuint64_t", "UInt64"),
    "size": ("size_t", "UInt64"),
    "u8": ("unsigned char", "UInt8"),
    "u16": ("unsigned short", "UInt16"),
    "f32": ("float", "Float32"),
    "f64": ("double", "Float64"),
    "device": ("CUdevice", "Int32"),
    "deviceptr": ("CUdeviceptr", "UInt64"),
    "pointer": ("void*", "UInt64"),  # a device address that the C interface declares as void*
}

# wire::HandleKind -> C type
HANDLES = {
    "context": "CUcontext",
    "stream": "CUstream",
    "event": "CUevent",
    "module": "CUmodule",
    "function": "CUfunction",
    "library": "CUlibrary",
    "kernel": "CUkernel",
    "graph": "CUgraph",
    "graph_node": "CUgraphNode",
    "graph_exec": "CUgraphExec",
    "array": "CUarray",
    "mipmapped_array": "CUmipmappedArray",
    "memory_pool": "CUmemoryPool",
    "link_state": "CUlinkState",
    "green_context": "CUgreenCtx",
    "memory_allocation": "CUmemGenericAllocationHandle",
    "texture_object": "CUtexObject",
    "surface_object": "CUsurfObject",
    "texture_reference": "CUtexref",
    "surface_reference": "CUsurfref",
    "user_object": "CUuserObject",
    "external_memory": "CUexternalMemory",
    "external_semaphore": "CUexternalSemaphore",
    "graphics_resource": "CUgraphicsResource",
    "async_callback": "CUasyncCallbackHandle",
    "logs_callback": "CUlogsCallbackHandle",
    "device_resource_desc": "CUdevResourceDesc",
    "func": "CUfunction",  # a function, or a kernel handle in its place
}
