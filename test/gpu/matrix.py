"""The rows of test/gpu/run: the programs, their commands, and the criteria of a right result."""

import dataclasses
import os
from typing import Callable, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))


def ends_with_passed(result, native) -> bool:
    return result["code"] == 0 and result["out"].rstrip().endswith("PASSED")


def same_output(result, native) -> bool:
    """The remote run prints exactly what the native one printed."""
    return result["code"] == 0 and (native is None or result["out"] == native["out"])


def same_output_and_assert(result, native) -> bool:
    return same_output(result, native) and "Assertion `" in result["err"]


@dataclasses.dataclass
class Row:
    group: str
    name: str
    command: List[str]  # "{steps}" in it: see `waits`
    right: Callable[[dict, Optional[dict]], bool] = ends_with_passed
    environment: Dict[str, str] = dataclasses.field(default_factory=dict)
    limit_seconds: float = 120
    shown_lines: int = 30
    waits: Optional[int] = None  # of a steady step: runs of STEPS and of twice as many are compared
    curve_tolerance: float = 0   # how far the loss curve may be from the native one, relative to the first loss
    time_ratio: float = 0        # how much longer than natively it may take
    best_of: int = 1             # runs of which the fastest counts
    goal: str = ""               # for the results, where the program's own tolerance does not say it
    not_tried: str = ""          # why this row is only named
    not_built: str = "a library that it needs was not installed where it was built"

    def same_output(self) -> bool:
        return self.right in (same_output, same_output_and_assert)


# Programs that test/toolkits/run builds with other toolkits, with both runtimes. A toolkit that is too old for a
# program does not build it.
TOOLKITS = ("11.8", "12.4")
RUNTIMES = ("static", "shared")
OF_TOOLKITS = [
    "vector_add", "reduction", "matmul_tiled", "streams_events", "pinned_async", "callbacks", "cooperative", "copies",
    "events", "graph_capture", "graph_kernel_nodes", "host_memory", "limits", "managed_memory", "mapped_memory",
    "memory_operations", "per_thread_streams", "separate_units", "stream_ordered", "stream_properties", "symbols",
    "texture_objects", "threads", "training_loop", "virtual_memory"
]
STEPS = 40
# Four native trainings from one seed on one H200 differed by up to 0.015 of the first loss, because some kernels add in
# an undefined order.
MNIST_CURVES = 0.03
JAX_CURVES = 0.01


def rows(build: str) -> List[Row]:
    def example(name, **more):
        return Row("examples", name, [os.path.join(build, "examples", name)], **more)

    def library(name, *arguments, **more):
        return Row("libraries", " ".join((name, *arguments[:1])) if arguments[:1] != ("{steps}",) else name,
                   [os.path.join(build, "gpu_programs", name), *arguments], **more)

    def program(name, *arguments, group="programs", shown=1, **more):
        return Row(group, " ".join((name, *arguments[:shown])),
                   [os.path.join(build, "test_programs", name), *arguments], **more)

    def python(name, *arguments, group="frameworks", **more):
        return Row(group, " ".join((name, *arguments[:1])) if arguments[:1] != ("{steps}",) else name,
                   ["python3", os.path.join(HERE, "programs", name + ".py"), *arguments], **more)

    def torch(feature, **more):
        return Row("torch", "torch " + feature,
                   ["python3", os.path.join(HERE, "programs", "torch_features.py"), feature], **more)

    def of_toolkit(version, runtime, name):
        folder = os.path.join(build, "toolkits", version)
        # The toolkit's own runtime comes first; its name contains the version.
        libraries = [os.path.join(folder, "root", "usr", "lib", "x86_64-linux-gnu"),
                     os.environ.get("LD_LIBRARY_PATH", "")]
        return Row("toolkits", f"{name} {version} {runtime}",
                   [os.path.join(folder, runtime, name), *(["20"] if name == "training_loop" else [])],
                   environment={"LD_LIBRARY_PATH": ":".join(filter(None, libraries))},
                   not_built="test/toolkits/run has not built it, or it is newer than the toolkit")

    def named(group, name, reason):
        return Row(group, name, [], not_tried=reason)

    return [
        example("add_one"),
        example("vector_add"),
        example("reduction"),
        example("matmul_tiled"),
        example("streams_events"),
        example("pinned_async"),
        example("context_bound_modules"),
        example("context_free_library"),
        example("managed_symbol"),
        example("errors", right=same_output),
        Row("libraries", "cublas_sgemm", [os.path.join(build, "examples", "cublas_sgemm")], goal="1e-05"),
        library("cublas_gemm"),
        library("cublas_lt"),
        library("cublas_steps", "{steps}", waits=0),
        library("cudnn_convolution"),
        library("cudnn_attention"),
        library("cufft_transforms"),
        library("cusolver_dense"),
        library("cusparse_products"),
        library("curand_numbers"),
        library("nvrtc_link"),
        library("nccl_one_rank"),
        library("cudart_static"),
        library("cudart_shared"),
        library("dynamic_parallelism"),
        python("torch_basic"),
        python("torch_steps"),
        python("torch_steps", "unread", "{steps}", waits=0),
        python("torch_steps", "read", "{steps}", waits=1),
        python("torch_mnist", limit_seconds=200, curve_tolerance=MNIST_CURVES,
               goal=f"97 % right, loss curve {MNIST_CURVES:g}"),
        python("jax_basic"),
        python("jax_training", "perceptron", curve_tolerance=JAX_CURVES, goal=f"95 % right, loss curve {JAX_CURVES:g}"),
        python("jax_training", "convolutional", curve_tolerance=JAX_CURVES,
               goal=f"95 % right, loss curve {JAX_CURVES:g}"),
        python("jax_steps", "{steps}", waits=0),
        python("cupy_basic"),
        python("numba_basic"),
        python("triton_basic"),
        python("onnx_runtime"),
        named("frameworks", "TensorFlow",
              "no build for CUDA 13 at hand; its GPU runtime is XLA, which `jax_training convolutional` runs"),
        named("frameworks", "MXNet",
              "retired in 2023, without a build for CUDA 12 or later; `jax_training perceptron` is the network"),
        torch("graphs"),
        torch("graphed_training"),
        torch("compile"),
        torch("autocast"),
        torch("attention"),
        torch("fp8"),
        torch("workers"),
        torch("memory"),
        torch("streams"),
        torch("out_of_memory"),
        torch("expandable", environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        torch("no_caching", environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        torch("saving"),
        torch("sharing"),
        torch("profiler"),
        torch("illegal_address", right=same_output),
        torch("illegal_address_blocking", right=same_output, environment={"CUDA_LAUNCH_BLOCKING": "1"}),
        torch("device_assert", right=same_output),
        torch("resnet"),
        torch("gpt2"),
        torch("nccl"),
        torch("reduce_overhead"),
        torch("fsdp"),
        torch("dtensor"),
        torch("lstm"),
        torch("linalg"),
        torch("green_contexts"),
        Row("torch", "torch start", ["python3", os.path.join(HERE, "programs", "torch_start.py")], time_ratio=1.2,
            best_of=2),
        program("threads"),
        program("callbacks"),
        program("callbacks_busy", "native"),
        program("many_waits"),
        program("callbacks_fault"),
        program("memory_operations"),
        program("forks"),
        program("emptied_environment"),
        program("bad_modules"),
        program("out_of_memory"),
        program("fresh_thread"),
        program("copies"),
        program("mapped_memory"),
        program("pinned_pointers"),
        Row("programs", "host_memory_facts", [os.path.join(build, "gpu_programs", "host_memory_facts")],
            right=same_output),
        program("managed_memory"),
        program("managed_threads"),
        program("tensor_maps"),
        program("batch_copies"),
        program("peer"),
        program("ipc_events"),
        program("launch_attributes"),
        program("staged_launch", right=same_output),
        program("vmm_share"),
        program("pool_export"),
        program("link"),
        program("green_contexts"),
        program("error_log"),
        program("host_memory"),
        program("stream_ordered"),
        program("virtual_memory"),
        program("edges"),
        program("after_a_fault"),
        program("events"),
        program("cooperative"),
        Row("programs", "clusters", [os.path.join(build, "gpu_programs", "clusters")]),
        program("textures"),
        program("cooperation"),
        program("texture_objects"),
        program("limits"),
        program("device_reset"),
        program("primary_contexts"),
        program("peer_copies"),
        program("peer_mappings"),
        program("several_devices", "steps", "200", right=same_output),
        program("per_thread_streams"),
        program("stream_properties"),
        program("large_parameters"),
        program("symbols"),
        program("separate_units"),
        program("graph_copies"),
        program("graph_kernel_nodes", right=same_output),
        program("graph_host_nodes"),
        program("graph_events"),
        program("graphs_under_way"),
        program("late_sources"),
        program("frees_wait"),
        program("graph_orders", "200"),
        program("graph_capture", right=same_output),
        program("forbidden_in_captures"),
        *(program("upload_order", way, *size, shown=2)
          for way in ("stream", "rows", "priority", "earlier", "waited", "green", "context", "process")
          for size in ((), ("large",))),
        program("graph_memory_nodes", right=same_output),
        program("graph_updates", right=same_output),
        program("graph_conditional"),
        program("training_loop", "step", "{steps}", waits=0),
        program("training_loop", "item", "{steps}", waits=1),
        program("training_loop", "graph", "{steps}", waits=0),
        program("launch_blocking", environment={"CUDA_LAUNCH_BLOCKING": "1"}),
        python("nvml_values", group="programs", right=same_output),
        program("device_output", right=same_output),
        program("device_output", "order", right=same_output),
        program("device_output", "assert", right=same_output_and_assert),
        program("device_output", "trap", right=same_output),
        *(of_toolkit(version, runtime, name)
          for version in TOOLKITS for runtime in RUNTIMES for name in OF_TOOLKITS),
    ]
