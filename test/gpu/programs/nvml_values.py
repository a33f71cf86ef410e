"""Prints NVML's constant facts about device 0; the native and the remote output must be equal."""

import ctypes
import subprocess
import sys

nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()
if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
    sys.exit("NVML cannot be initialised")


def text(function, *arguments):
    buffer = ctypes.create_string_buffer(96)
    status = getattr(nvml, function)(*arguments, buffer, 96)
    print(function, status, buffer.value.decode())


def number(function, *arguments):
    value = ctypes.c_uint(0)
    status = getattr(nvml, function)(device, *arguments, ctypes.byref(value))
    print(function, *arguments, status, value.value if status == 0 else "")


text("nvmlSystemGetDriverVersion")
text("nvmlSystemGetNVMLVersion")
for name in ("Name", "UUID", "Serial", "VbiosVersion", "BoardPartNumber", "InforomImageVersion"):
    text(f"nvmlDeviceGet{name}", device)
for name in ("Brand", "Architecture", "MinorNumber", "ModuleId", "BoardId", "MultiGpuBoard", "PersistenceMode",
             "ComputeMode", "NumGpuCores", "MemoryBusWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth",
             "PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit", "DisplayActive", "NumFans"):
    number(f"nvmlDeviceGet{name}")
for kind in range(4):
    number("nvmlDeviceGetMaxClockInfo", kind)
for threshold in range(4):
    number("nvmlDeviceGetTemperatureThreshold", threshold)
memory = (ctypes.c_ulonglong * 3)()
print("total memory", nvml.nvmlDeviceGetMemoryInfo(device, memory), memory[0], memory[1] + memory[2] == memory[0])
clocks, count = (ctypes.c_uint * 512)(), ctypes.c_uint(512)
status = nvml.nvmlDeviceGetSupportedMemoryClocks(device, ctypes.byref(count), clocks)
print("clocks", status, list(clocks[: count.value]) if status == 0 else "")
pci = ctypes.create_string_buffer(68)
print("PCI", nvml.nvmlDeviceGetPciInfo_v3(device, pci), pci.raw.hex())
temperature = ctypes.c_uint()
status = nvml.nvmlDeviceGetTemperature(device, 0, ctypes.byref(temperature))
print("temperature", status, 0 < temperature.value < 120)
fields = ("index,name,uuid,pci.bus_id,driver_version,memory.total,power.limit,clocks.max.sm,compute_cap,"
          "ecc.mode.current,mig.mode.current,count,serial")
print(
    subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv"], capture_output=True, text=True,
                   check=True).stdout, end="")
