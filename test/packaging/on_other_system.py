"""A program of another system, for its own Python from 3.9 on: uses the libraries named as arguments, then a GPU
through gpuwire's libraries, then its own again. Prints which C library it runs with, and PASSED."""

import ctypes
import hashlib
import ssl
import sys

COUNT = 1000
KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add_index(.param .u64 values, .param .u32 count) {
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<5>;
  ld.param.u64 %d1, [values];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %d2, %d1;
  mul.wide.u32 %d3, %r5, 4;
  add.s64 %d4, %d2, %d3;
  ld.global.u32 %r6, [%d4];
  add.s32 %r7, %r6, %r5;
  st.global.u32 [%d4], %r7;
DONE: ret;
}
"""


def check(result, what):
    if result:
        raise SystemExit(f"{what}: error {result}")


def own_libraries(paths):
    """What the program links against itself, for all to see, as a program's libraries are."""
    return [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths]


def own_openssl():
    """Computes a digest and begins a handshake with the system's OpenSSL."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="example.org")
    try:
        handshake.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    if hello[:1] != b"\x16":
        raise SystemExit("the system's OpenSSL began no handshake")
    return hashlib.new("sha256", b"gpuwire").hexdigest()


def on_gpu():
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0), "cuInit")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory = ctypes.c_uint64()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    check(cuda.cuModuleLoadData(ctypes.byref(module), KERNEL), "cuModuleLoadData")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"add_index"), "cuModuleGetFunction")
    values = (ctypes.c_uint32 * COUNT)(*range(COUNT))
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4 * COUNT)), "cuMemAlloc")
    check(cuda.cuMemcpyHtoD_v2(memory, values, ctypes.c_size_t(4 * COUNT)), "cuMemcpyHtoD")
    count = ctypes.c_uint32(COUNT)
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(count))
    check(cuda.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, None, parameters, None), "cuLaunchKernel")
    check(cuda.cuMemcpyDtoH_v2(values, memory, ctypes.c_size_t(4 * COUNT)), "cuMemcpyDtoH")
    if list(values) != [2 * number for number in range(COUNT)]:
        raise SystemExit("the kernel's sums are wrong")


def nvml():
    library, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
    check(library.nvmlInit_v2(), "nvmlInit")
    check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
    if count.value < 1:
        raise SystemExit("NVML tells of no device")
    check(library.nvmlShutdown(), "nvmlShutdown")


def main():
    kept = own_libraries(sys.argv[1:])
    before = own_openssl()
    on_gpu()
    nvml()
    if own_openssl() != before or len(kept) != len(sys.argv) - 1:
        raise SystemExit("the system's OpenSSL gives something else than before")
    version = ctypes.CDLL(None).gnu_get_libc_version
    version.restype = ctypes.c_char_p
    print(f"glibc {version().decode()}, {ssl.OPENSSL_VERSION}")
    print("PASSED")


main()
