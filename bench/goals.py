"""The figures that `bench/run` shows, and the goals of remote values: relative to the native value and to the raw link
of the same run."""

import dataclasses

# The figures of copies by size, as in copies_by_size.cu.
SIZES = {"4k": 4 << 10, "64k": 64 << 10, "256k": 256 << 10, "512k": 512 << 10, "768k": 768 << 10, "1m": 1 << 20,
         "2m": 2 << 20, "4m": 4 << 20, "16m": 16 << 20}
# {kind of copy: {figure: bytes}}
CURVES = {
    f"{way.upper()} {memory} {call}": {
        f"{way}_{size}{'_pinned' if memory == 'pinned' else ''}_{call}_us": bytes_
        for size, bytes_ in SIZES.items()
    }
    for way in ("h2d", "d2h") for memory in ("pageable", "pinned") for call in ("blocking", "async")
}


def size_text(bytes_):
    return f"{bytes_ >> 20} MiB" if bytes_ >= 1 << 20 else f"{bytes_ >> 10} KiB"


FIGURES = {
    "launch_async_us": "10k asynchronous launches, each, us",
    "launch_posted_us": "a posted launch on its caller, us",
    "launch_sync_us": "launch + synchronize, us",
    "launch_poll_us": "launch, then poll an event until done, us",
    "h2d_20_launches_d2h_us": "4 KiB H2D + 20 launches + D2H, us",
    "stream_query_us": "cudaStreamQuery, us",
    "event_query_us": "cudaEventQuery, us",
    "event_record_us": "cudaEventRecord, us",
    "event_create_destroy_us": "event create + destroy, us",
    "mem_get_info_us": "cudaMemGetInfo, us",
    "mem_get_info_busy_us": "the same, behind allocations and copies, us",
    "h2d_4k_us": "H2D 4 KiB, us",
    "d2h_4k_us": "D2H 4 KiB, us",
    "h2d_4k_pinned_us": "H2D 4 KiB pinned, us",
    "d2h_4k_pinned_us": "D2H 4 KiB pinned, us",
    "malloc_host_64m_ms": "cudaMallocHost + cudaFreeHost of 64 MiB, ms",
    "malloc_1m_us": "cudaMalloc + cudaFree of 1 MiB, us",
    "malloc_alone_1m_us": "cudaMalloc of 1 MiB, us",
    "free_alone_1m_us": "cudaFree of 1 MiB, us",
    "malloc_async_1m_us": "cudaMallocAsync + FreeAsync of 1 MiB, us",
    "h2d_64m_gb_s": "H2D 64 MiB pageable, GB/s",
    "d2h_64m_gb_s": "D2H 64 MiB pageable, GB/s",
    "h2d_64m_pinned_gb_s": "H2D 64 MiB pinned, GB/s",
    "d2h_64m_pinned_gb_s": "D2H 64 MiB pinned, GB/s",
    "h2d_1g_gb_s": "H2D 1 GiB pageable, GB/s",
    "d2h_1g_gb_s": "D2H 1 GiB pageable, GB/s",
    "h2d_1g_pinned_gb_s": "H2D 1 GiB pinned, GB/s",
    "d2h_1g_pinned_gb_s": "D2H 1 GiB pinned, GB/s",
    "vector_add_first_ms": "vector_add, whole process, the first, ms",
    "vector_add_ms": "the same, one after the other, ms",
    "matmul_ms": "matmul_tiled 256 x 256, whole process, ms",
    "gather_us": "few rows of a registered table, a step, us",
    "turn_us": "launch, D2H of 4 bytes, synchronize, us",
    "cnn_step_ms": "CNN, pageable batches, a step, ms",
    "cnn_read_step_ms": "the same, the loss read, ms",
    "cnn_first_step_ms": "the first step of the CNN, ms",
    "resnet50_step_ms": "ResNet-50 training, a step, ms",
    "resnet50_infer_step_ms": "ResNet-50, an image, ms",
    "gpt2_step_ms": "a token of GPT-2, ms",
    "llama_token_ms": "a token of llama.cpp, ms",
    **{figure: f"{name} {size_text(bytes_)}, us" for name, sizes in CURVES.items() for figure, bytes_ in sizes.items()},
}


# Copies should reach this share of the rate of the same number of plain streams.
LINK_SHARE = 0.9


@dataclasses.dataclass(frozen=True)
class Goal:
    """`relation` of a remote value to `native` times the native one, `round_trips` raw ones, polled, `link` times the
    raw bandwidth of as many streams, the microseconds that `link_bytes` take there at LINK_SHARE of it, and `more`."""

    relation: str
    more: float = 0
    native: float = 0
    round_trips: float = 0
    link: float = 0
    link_bytes: float = 0

    def value(self, native, raw):
        carried_us = self.link_bytes / (LINK_SHARE * raw["bandwidth_gb_s"] * 1e3) if self.link_bytes else 0
        return (self.native * native + self.round_trips * raw["round_trip_polling_us"] +
                self.link * raw["bandwidth_gb_s"] + carried_us + self.more)


def met(relation, value, goal):
    return value <= goal if relation == "<=" else value >= goal


COPIES = [f"{way}_{size}{kind}_gb_s" for size in ("64m", "1g") for kind in ("", "_pinned") for way in ("h2d", "d2h")]
# A smaller copy takes one round trip, whatever its size.
CURVE_BYTES_MIN = 16 << 10
BY_SIZE = {figure: bytes_ for sizes in CURVES.values() for figure, bytes_ in sizes.items() if bytes_ >= CURVE_BYTES_MIN}
# Over every road.
EVERYWHERE = {
    "launch_posted_us": Goal("<=", 0.5),
    "stream_query_us": Goal("<=", 0.5),
    "event_query_us": Goal("<=", 0.5),
    "malloc_alone_1m_us": Goal("<=", 2),
    "free_alone_1m_us": Goal("<=", 1),
    "malloc_async_1m_us": Goal("<=", 1),
    "event_create_destroy_us": Goal("<=", native=1),
    "mem_get_info_us": Goal("<=", native=1),
    "mem_get_info_busy_us": Goal("<=", native=1),
    "gather_us": Goal("<=", native=1.5),
    "cnn_step_ms": Goal("<=", native=0.9),
    "cnn_read_step_ms": Goal("<=", native=0.9),
    "resnet50_step_ms": Goal("<=", native=0.85),
    "resnet50_infer_step_ms": Goal("<=", native=0.8),
    "gpt2_step_ms": Goal("<=", native=0.8),
    "llama_token_ms": Goal("<=", native=1.15),
    "vector_add_first_ms": Goal("<=", 25),
    "vector_add_ms": Goal("<=", 40),
}
OVER_TCP = {
    **EVERYWHERE,
    "launch_sync_us": Goal("<=", 2, native=1, round_trips=1),
    "launch_poll_us": Goal("<=", 20),
    "h2d_20_launches_d2h_us": Goal("<=", native=1.05),
    "h2d_4k_us": Goal("<=", 15),
    "d2h_4k_us": Goal("<=", 15),
    **{name: Goal(">=", link=LINK_SHARE) for name in COPIES},
    **{name: Goal("<=", native=1, round_trips=1, link_bytes=bytes_) for name, bytes_ in BY_SIZE.items()},
}
IN_SHARED_MEMORY = {
    **EVERYWHERE,
    "launch_sync_us": Goal("<=", 2, native=1),
    "launch_poll_us": Goal("<=", 3, native=1),
    "h2d_20_launches_d2h_us": Goal("<=", native=1),
    "h2d_4k_us": Goal("<=", native=1),
    "d2h_4k_us": Goal("<=", native=1),
    **{name: Goal(">=", 50) if "pinned" in name else Goal(">=", native=1) for name in COPIES},
}
# On the software device the processor does the work of a launch, and copies stay in its memory, so only the times of
# whole processes are meaningful.
ON_THE_SOFTWARE_DEVICE = {"vector_add_ms": Goal("<=", 300), "matmul_ms": Goal("<=", 2000)}

# Over links with a delay the figures have no goals; the goals apply to one host.
BY_ROAD = {"tcp": OVER_TCP, "tls": OVER_TCP, "shm": IN_SHARED_MEMORY, "tcp-1ms": {}, "tcp-30ms": {}}


def of(road, software):
    """{figure: Goal} of a column."""
    return ON_THE_SOFTWARE_DEVICE if software else BY_ROAD.get(road, EVERYWHERE)
