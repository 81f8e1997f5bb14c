"""Loads one library and prints what it says as JSON. Run by path, in a process of its own.

python probe.py plugin | driver | library NAME...
"""

import ctypes
import json
import sys


def plugin():
    """Whether `import zarr_dali` works, and which file it loads."""
    try:
        import zarr_dali
    except ImportError as error:
        return {"problem": str(error)}
    return {"loaded": str(zarr_dali.library_path())}


def driver():
    """The CUDA release of the driver and its GPUs, by the driver API."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"problem": "the driver's library libcuda.so.1 is not found"}
    number = ctypes.c_int()
    if status := cuda.cuDriverGetVersion(ctypes.byref(number)):
        return {"problem": f"cuDriverGetVersion gives error {status}"}
    found = {"cuda": f"{number.value // 1000}.{number.value % 1000 // 10}", "gpus": []}
    if status := cuda.cuInit(0):
        return found | {"problem": f"cuInit gives error {status}{_name(cuda, status)}"}
    cuda.cuDeviceGetCount(ctypes.byref(number))
    found["gpus"] = [_gpu(cuda, ordinal) for ordinal in range(number.value)]
    return found


def _name(cuda, status):
    text = ctypes.c_char_p()
    known = hasattr(cuda, "cuGetErrorName") and cuda.cuGetErrorName(status, ctypes.byref(text)) == 0
    return f" ({text.value.decode()})" if known and text.value else ""


def _gpu(cuda, ordinal):
    device, number, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, bus = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
    if status := cuda.cuDeviceGet(ctypes.byref(device), ordinal):
        return {"problem": f"cuDeviceGet gives error {status}"}
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    cuda.cuDeviceGetPCIBusId(bus, len(bus), device)
    capability = []
    for attribute in (75, 76):  # COMPUTE_CAPABILITY_MAJOR and _MINOR
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    # MEM_DECOMPRESS_ALGORITHM_MASK; drivers before CUDA 12.8 do not know it.
    unknown = cuda.cuDeviceGetAttribute(ctypes.byref(number), 136, device)
    algorithms = 0 if unknown else number.value
    return {
        "name": name.value.decode(errors="replace"),
        "memory_bytes": memory.value,
        "compute_capability": capability,
        "bus": bus.value.decode().lower(),
        "decompression_engine": [
            name for bit, name in enumerate(("deflate", "snappy", "lz4")) if algorithms >> bit & 1
        ],
    }


def library(*names):
    """The first of some libraries that can be loaded; of nvCOMP its release."""
    problem = "no name is given"
    for name in names:
        try:
            loaded = ctypes.CDLL(name)
        except OSError as error:
            problem = str(error)
            continue
        found = {"loaded": name}
        if hasattr(loaded, "nvcompGetProperties"):
            properties = (ctypes.c_uint32 * 16)()
            loaded.nvcompGetProperties(ctypes.byref(properties))
            number = properties[0]
            found["release"] = f"{number // 1000}.{number % 1000 // 100}.{number % 100}"
        return found
    return {"problem": problem}


if __name__ == "__main__":
    what = {"plugin": plugin, "driver": driver, "library": library}[sys.argv[1]]
    print("\n" + json.dumps(what(*sys.argv[2:])))
