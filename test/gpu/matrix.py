"""The rows of test/gpu/run: which programs, how they are started, and what a right result is."""

import dataclasses
import os
from typing import Callable, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))


def ends_with_passed(result, native) -> bool:
    return result["code"] == 0 and result["out"].rstrip().endswith("PASSED")


def same_output(result, native) -> bool:
    """The remote run prints exactly what the native one printed."""
    return result["code"] == 0 and (native is None or result["out"] == native["out"])


@dataclasses.dataclass
class Row:
    group: str
    name: str
    command: List[str]
    right: Callable[[dict, Optional[dict]], bool] = ends_with_passed
    environment: Dict[str, str] = dataclasses.field(default_factory=dict)
    limit_seconds: float = 120
    shown_lines: int = 30


def rows(build: str) -> List[Row]:
    def example(name):
        return os.path.join(build, "examples", name)

    found = [Row("examples", name, [example(name)]) for name in (
        "add_one", "vector_add", "reduction", "matmul_tiled", "streams_events", "pinned_async",
        "context_bound_modules", "context_free_library", "managed_symbol")]
    found.append(Row("examples", "errors", [example("errors")], right=same_output))
    found.append(Row("libraries", "cublas_sgemm", [example("cublas_sgemm")]))

    def program(name, group, **more):
        return Row(group, name, ["python3", os.path.join(HERE, "programs", name + ".py")], **more)

    found += [
        program("torch_basic", "frameworks"),
        program("torch_steps", "frameworks"),
        program("torch_mnist", "frameworks", limit_seconds=200),
        program("jax_basic", "frameworks", environment={"WITHOUT_GPU_MARKER": "1"}),
        program("cupy_basic", "frameworks"),
        program("numba_basic", "frameworks"),
        program("triton_basic", "frameworks"),
    ]
    variables = {"expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "no_caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}}
    found += [Row("torch", "torch " + feature, ["python3", os.path.join(HERE, "programs", "torch_features.py"), feature],
                  environment=variables.get(feature, {}))
              for feature in ("graphs", "graphed_training", "compile", "autocast", "attention", "fp8", "workers", "memory", "expandable",
                              "no_caching", "saving", "sharing", "profiler", "illegal_address", "resnet", "gpt2", "nccl", "lstm", "linalg")]
    tests = os.path.join(build, "test_programs")
    found += [Row("programs", name, [os.path.join(tests, name)])
              for name in ("threads", "callbacks", "forks", "bad_modules", "out_of_memory", "fresh_thread", "copies", "mapped_memory")]
    found += [Row("programs", name, [os.path.join(tests, name)]) for name in ("large_library",)]
    found += [Row("programs", name, [os.path.join(tests, name)])
              for name in ("tensor_maps", "batch_copies", "peer", "ipc_events", "launch_attributes")]
    found += [Row("programs", name, [os.path.join(tests, name)]) for name in ("textures",)]
    found.append(Row("programs", "device_output", [os.path.join(tests, "device_output")], right=same_output))
    return found
