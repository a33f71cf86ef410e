"""What `bench/run` shows, and what its remote values should be: relative to the native value and to the raw link of the
same run, as the field measures them."""

import dataclasses

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
}


@dataclasses.dataclass(frozen=True)
class Goal:
    """`relation` of a remote value to `native` times the native one, `round_trips` raw ones, polled, `link` times the
    raw bandwidth of as many streams, and `more`."""

    relation: str
    more: float = 0
    native: float = 0
    round_trips: float = 0
    link: float = 0

    def value(self, native, raw):
        return (self.native * native + self.round_trips * raw["round_trip_polling_us"] +
                self.link * raw["bandwidth_gb_s"] + self.more)


def met(relation, value, goal):
    return value <= goal if relation == "<=" else value >= goal


COPIES = [f"{way}_{size}{kind}_gb_s" for size in ("64m", "1g") for kind in ("", "_pinned") for way in ("h2d", "d2h")]
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
    **{name: Goal(">=", link=0.9) for name in COPIES},
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
# There a launch is the device's work, and no copy leaves the processor: whole processes alone say something.
ON_THE_SOFTWARE_DEVICE = {"vector_add_ms": Goal("<=", 300), "matmul_ms": Goal("<=", 2000)}

BY_ROAD = {"tcp": OVER_TCP, "tls": OVER_TCP, "shm": IN_SHARED_MEMORY}


def of(road, software):
    """{figure: Goal} of a column."""
    return ON_THE_SOFTWARE_DEVICE if software else BY_ROAD.get(road, EVERYWHERE)
