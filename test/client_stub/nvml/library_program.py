"""Run by library_test.py under `gpuwire run`: uses libnvidia-ml.so.1 as pynvml does, and prints PASSED."""

import ctypes
import os
import struct
import sys
import threading
import time

(SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION) = range(5)
NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, TIMEOUT, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = (
    6,
    7,
    9,
    10,
    15,
    25,
    999,
)

nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlErrorString.restype = ctypes.c_char_p


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: {found!r}, expected {wanted!r}")


def handle(index=0):
    device = ctypes.c_void_p()
    expect(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)), SUCCESS, f"handle of device {index}")
    return device


def text(function, *arguments, room=96):
    buffer = ctypes.create_string_buffer(room)
    status = getattr(nvml, function)(*arguments, buffer, room)
    return status if status else buffer.value.decode()


def number(function, *arguments):
    value = ctypes.c_uint(0xdead)
    status = getattr(nvml, function)(*arguments, ctypes.byref(value))
    return (status, value.value if status == SUCCESS else None)


def initialising_is_counted():
    expect(number("nvmlDeviceGetCount_v2"), (UNINITIALIZED, None), "before nvmlInit")
    expect(text("nvmlSystemGetDriverVersion"), UNINITIALIZED, "a query before nvmlInit")
    expect(nvml.nvmlDeviceSetPersistenceMode(None, 1), UNINITIALIZED, "a setter before nvmlInit")
    expect(nvml.nvmlShutdown(), UNINITIALIZED, "nvmlShutdown before nvmlInit")
    for call in (nvml.nvmlInit, nvml.nvmlInit_v2, lambda: nvml.nvmlInitWithFlags(1)):
        expect(call(), SUCCESS, "nvmlInit")
    for left in range(3):
        expect(number("nvmlDeviceGetCount_v2")[0], SUCCESS, "initialised")
        expect(nvml.nvmlShutdown(), SUCCESS, "nvmlShutdown")
    expect(number("nvmlDeviceGetCount_v2"), (UNINITIALIZED, None), "after the last nvmlShutdown")


def devices_are_found_by_every_name():
    expect(number("nvmlDeviceGetCount"), (SUCCESS, 2), "devices")
    expect(nvml.nvmlDeviceGetHandleByIndex_v2(2, ctypes.byref(ctypes.c_void_p())), INVALID_ARGUMENT, "device 2 of 2")
    seen = set()
    for index in range(2):
        device = handle(index)
        expect(number("nvmlDeviceGetIndex", device), (SUCCESS, index), "index")
        expect(text("nvmlDeviceGetName", device), "gpuwire software device", "name")
        uuid = text("nvmlDeviceGetUUID", device)
        pci = ctypes.create_string_buffer(68)
        expect(nvml.nvmlDeviceGetPciInfo_v3(device, pci), SUCCESS, "PCI information")
        bus_id = pci.raw[36:].split(b"\0")[0]
        found = ctypes.c_void_p()
        for function, name in (("nvmlDeviceGetHandleByUUID", uuid.encode()), ("nvmlDeviceGetHandleByPciBusId_v2",
                                                                              bus_id)):
            expect(getattr(nvml, function)(name, ctypes.byref(found)), SUCCESS, function)
            expect(found.value, device.value, function)
        as_bytes = struct.pack("<II41s", 1 << 24 | 52, 2, bytes.fromhex(uuid[4:].replace("-", ""))) + b"\0" * 3
        expect(nvml.nvmlDeviceGetHandleByUUIDV(as_bytes, ctypes.byref(found)), SUCCESS, "UUID as bytes")
        expect(found.value, device.value, "UUID as bytes")
        seen.add((uuid, bus_id))
    expect(len(seen), 2, "different names")
    expect(nvml.nvmlDeviceGetHandleByUUID(b"GPU-0", ctypes.byref(found)), NOT_FOUND, "a UUID of no device")
    expect(nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0000:ff:1f.0", ctypes.byref(found)), NOT_FOUND,
           "an address of no device")
    expect(nvml.nvmlDeviceGetHandleByPciBusId_v2(b"nonsense", ctypes.byref(found)), INVALID_ARGUMENT, "no address")
    for nothing in (None, ctypes.c_void_p(8), ctypes.c_void_p(handle().value + 1),
                    ctypes.c_void_p(handle().value + 4 * 100)):
        expect(number("nvmlDeviceGetComputeMode", nothing)[0], INVALID_ARGUMENT, "a handle that is none")


def values_are_those_of_the_device():
    device = handle()
    memory = (ctypes.c_ulonglong * 3)()
    expect(nvml.nvmlDeviceGetMemoryInfo(device, memory), SUCCESS, "memory")
    total, free, used = memory
    expect((total > 1 << 20, free + used), (True, total), "memory")
    second = ctypes.create_string_buffer(struct.pack("<IIQQQQ", 2 << 24 | 40, 0, 0, 0, 0, 0), 40)
    expect(nvml.nvmlDeviceGetMemoryInfo_v2(device, second), SUCCESS, "memory, version 2")
    expect(struct.unpack("<IIQQQQ", second.raw)[2:], (total, 0, free, used), "memory, version 2")
    major, minor = ctypes.c_int(), ctypes.c_int()
    expect(nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)), SUCCESS,
           "capability")
    cuda = ctypes.CDLL("libcuda.so.1")
    expect(cuda.cuInit(0), 0, "cuInit")
    attribute = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(attribute), 75, 0)
    expect(major.value, attribute.value, "capability as CUDA tells it")
    name = ctypes.create_string_buffer(16)
    cuda.cuDeviceGetUuid(name, 0)
    expect(text("nvmlDeviceGetUUID", device)[4:].replace("-", ""), name.raw.hex(), "UUID as CUDA tells it")


def arguments_are_checked():
    device = handle()
    wrong = ctypes.create_string_buffer(struct.pack("<I", 3 << 24 | 40), 40)
    expect(nvml.nvmlDeviceGetMemoryInfo_v2(device, wrong), VERSION_MISMATCH, "a version that does not exist")
    expect(nvml.nvmlDeviceGetMemoryInfo(device, None), INVALID_ARGUMENT, "no place for the answer")
    expect(nvml.nvmlDeviceGetName(device, None, 10), INVALID_ARGUMENT, "no place for a text")
    expect(text("nvmlDeviceGetName", device, room=3), INSUFFICIENT_SIZE, "little room for a text")
    expect(nvml.nvmlDeviceGetName(device, ctypes.create_string_buffer(1), 0), INSUFFICIENT_SIZE, "no room for a text")
    expect(text("nvmlDeviceGetName", device, room=1 << 20), "gpuwire software device", "much room for a text")
    expect(nvml.nvmlDeviceGetSupportedMemoryClocks(device, None, None), INVALID_ARGUMENT, "no count")
    expect(nvml.nvmlDeviceGetFieldValues(device, 0, None), INVALID_ARGUMENT, "no fields")
    expect(number("nvmlDeviceGetTemperature", device, 0), (NOT_SUPPORTED, None), "a sensor that the device lacks")


def the_card_cannot_be_changed():
    device = handle()
    for call in (lambda: nvml.nvmlDeviceSetPowerManagementLimit(device, 100000),
                 lambda: nvml.nvmlDeviceSetPersistenceMode(device, 1), lambda: nvml.nvmlDeviceSetComputeMode(device, 3),
                 lambda: nvml.nvmlDeviceResetGpuLockedClocks(device),
                 lambda: nvml.nvmlDeviceSetMigMode(device, 1, None),
                 lambda: nvml.nvmlDeviceClearEccErrorCounts(device, 0)):
        expect(call(), NO_PERMISSION, "a setter")
    expect(nvml.nvmlErrorString(NO_PERMISSION), b"Insufficient Permissions", "its text")
    expect(nvml.nvmlErrorString(12345), b"Unknown Error", "the text of no error")
    expect(nvml.nvmlInternalGetExportTable(None, None), NOT_SUPPORTED, "private tables")


def events_come_to_their_time_limit():
    events = ctypes.c_void_p()
    expect(nvml.nvmlEventSetCreate(ctypes.byref(events)), SUCCESS, "an event set")
    types = ctypes.c_ulonglong(1)
    expect(nvml.nvmlDeviceGetSupportedEventTypes(handle(), ctypes.byref(types)), SUCCESS, "event types")
    expect(types.value, 0, "event types")
    expect(nvml.nvmlDeviceRegisterEvents(handle(), ctypes.c_ulonglong(8), events), NOT_SUPPORTED,
           "an event that does not come")
    data = ctypes.create_string_buffer(32)
    before = time.monotonic()
    expect(nvml.nvmlEventSetWait_v2(events, data, 30), TIMEOUT, "waiting")
    expect(time.monotonic() - before >= 0.03, True, "waiting takes its time")
    expect(nvml.nvmlEventSetFree(events), SUCCESS, "the end of an event set")


def processes_are_ones_own():
    count = ctypes.c_uint(8)
    expect(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(), ctypes.byref(count), None), SUCCESS, "processes")
    expect(count.value, 0, "processes")
    expect(
        text("nvmlSystemGetProcessName", os.getpid(), room=1024).split("/")[-1], os.path.basename(sys.executable),
        "this program's name")
    expect(text("nvmlSystemGetProcessName", 0x7fffffff, room=1024), NOT_FOUND, "the name of no process")


def threads_ask_at_once():
    failures = []

    def ask():
        for _ in range(50):
            if text("nvmlDeviceGetName", handle(1)) != "gpuwire software device" or number(
                    "nvmlDeviceGetComputeMode", handle())[0]:
                failures.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(failures, [], "eight threads")


def a_child_after_fork_asks_anew():
    device = handle()
    child = os.fork()
    if child == 0:
        good = number("nvmlDeviceGetComputeMode", device)[0] == SUCCESS and nvml.nvmlShutdown() == SUCCESS
        os._exit(0 if good else 1)
    expect(os.waitpid(child, 0)[1], 0, "the child")
    expect(number("nvmlDeviceGetComputeMode", device)[0], SUCCESS, "the parent after it")


def all():
    initialising_is_counted()
    expect(nvml.nvmlInit_v2(), SUCCESS, "nvmlInit")
    for check in (devices_are_found_by_every_name, values_are_those_of_the_device, arguments_are_checked,
                  the_card_cannot_be_changed, events_come_to_their_time_limit, processes_are_ones_own,
                  threads_ask_at_once, a_child_after_fork_asks_anew):
        check()
    expect(nvml.nvmlShutdown(), SUCCESS, "nvmlShutdown")


def no_server():
    for _ in range(2):
        expect(nvml.nvmlInit_v2(), DRIVER_NOT_LOADED, "nvmlInit without a server")


def bad_replies():
    """With a server that sends impossible answers: every call returns an error, and nothing is written past an output's
    end."""
    expect(nvml.nvmlInit_v2(), SUCCESS, "nvmlInit")
    guard = ctypes.create_string_buffer(b"\xaa" * 64, 64)
    status = nvml.nvmlDeviceGetName(handle(), guard, 8)
    expect((status in (UNKNOWN, GPU_IS_LOST), guard.raw[8:]), (True, b"\xaa" * 56),
           f"a bad reply to nvmlDeviceGetName ({status})")
    status = nvml.nvmlDeviceGetMemoryInfo(handle(), guard)
    expect((status in (UNKNOWN, GPU_IS_LOST), guard.raw[24:]), (True, b"\xaa" * 40),
           f"a bad reply to nvmlDeviceGetMemoryInfo ({status})")


def lost():
    """Prints when it is ready, then queries again after its line of input: the server has ended by then."""
    expect(nvml.nvmlInit_v2(), SUCCESS, "nvmlInit")
    print("ready", flush=True)
    sys.stdin.readline()
    # The session's own process may answer for a moment longer.
    end = time.monotonic() + 120  # only ends a program that hangs
    status = SUCCESS
    while status == SUCCESS and time.monotonic() < end:
        status = number("nvmlDeviceGetComputeMode", handle())[0]
    expect(status, GPU_IS_LOST, "a query after the end of the server")
    expect(nvml.nvmlShutdown(), SUCCESS, "nvmlShutdown")
    expect(nvml.nvmlInit_v2(), DRIVER_NOT_LOADED, "nvmlInit after the end of the server")


globals()[sys.argv[1]]()
print("PASSED")
