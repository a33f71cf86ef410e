"""Uses PyCUDA like its users: contexts, arrays, streams, events, pools, page-locked memory, kernels, errors."""

import numpy
import pycuda
import pycuda.driver as cuda
from pycuda import gpuarray, tools

COUNT = 1000
KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .global .align 4 .u32 step = 3;
.visible .entry add_step(.param .u64 values, .param .u32 count) {
  .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %d<5>;
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
  ld.global.u32 %r7, [step];
  add.s32 %r8, %r6, %r7;
  st.global.u32 [%d4], %r8;
DONE: ret;
}
"""


def kernels(module):
    add, values = module.get_function("add_step"), numpy.arange(COUNT, dtype=numpy.uint32)
    wanted = values + 3
    add(cuda.InOut(values), numpy.uint32(COUNT), block=(256, 1, 1), grid=(4, 1))
    assert (values == wanted).all()
    step, size = module.get_global("step")
    assert size == 4
    cuda.memcpy_htod(step, numpy.array([10], dtype=numpy.uint32))
    on_device = gpuarray.to_gpu(values)
    add.prepare("Pi")
    add.prepared_call((4, 1), (256, 1, 1), on_device.gpudata, COUNT)
    assert (on_device.get() == wanted + 10).all()
    assert add.max_threads_per_block >= 256


def streams(module):
    stream, before, after = cuda.Stream(), cuda.Event(), cuda.Event()
    values = cuda.pagelocked_empty(COUNT, numpy.uint32)
    values[:] = 7
    pool = tools.DeviceMemoryPool()
    memory = pool.allocate(values.nbytes)
    before.record(stream)
    cuda.memcpy_htod_async(memory, values, stream)
    module.get_function("add_step")(memory, numpy.uint32(COUNT), block=(256, 1, 1), grid=(4, 1), stream=stream)
    cuda.memcpy_dtoh_async(values, memory, stream)
    after.record(stream)
    stream.synchronize()
    assert (values == 17).all() and after.time_since(before) >= 0


def errors():
    try:
        cuda.mem_alloc(1 << 60)
        raise SystemExit("more than there is was allocated")
    except cuda.MemoryError:
        pass
    try:
        cuda.module_from_buffer(b"no module")
        raise SystemExit("what is no module was loaded")
    except cuda.Error:
        pass


def main():
    cuda.init()
    device = cuda.Device(0)
    context = device.make_context()
    try:
        module = cuda.module_from_buffer(KERNEL)
        kernels(module)
        streams(module)
        errors()
        free, total = cuda.mem_get_info()
        assert 0 < free <= total == device.total_memory()
    finally:
        context.pop()
    print(f"PyCUDA {pycuda.VERSION_TEXT} on {device.name()}, CUDA {cuda.get_driver_version()}")
    print("PASSED")


main()
