"""The rows of bench/sharing/run: the tenants, the arms, and the goals."""

import json
import os
import re
import statistics
import subprocess
import sys
import time

import figures
from pairs import pairs
from results import Result
from tenants import Gpuwire, Mps, Native, run_together

HERE = os.path.dirname(os.path.abspath(__file__))
EDGE_SECONDS = 0.5
ALONE_SECONDS = 1.5
ALONE_TIMES = 3  # the placement of a process's threads changes loops that wait for each kernel by some percent


class Bench:
    """Starts arms; stores the rate of each kind of kernel alone."""

    def __init__(self, build, device, client_prefix, seconds, python, arms=("native", "MPS", "gpuwire"), only="",
                 limit=0):
        self.build, self.device, self.client_prefix, self.seconds, self.python, self.wanted = (
            build,
            device,
            client_prefix,
            seconds,
            python,
            arms,
        )
        self.only = only
        self.begun, self.limit = time.monotonic(), limit  # seconds after which no more pairs are begun; 0: none
        self.program = os.path.join(build, "bench", "sharing", "tenant")
        self.software = device == "software"
        # "full" fills all slots of an H200, "light" half of its multiprocessors' slots: what a request typically does.
        self.shapes = {"full": (2, 32), "light": (2,
                                                  32)} if self.software else {"full": (264, 1024), "light": (132, 256)}
        self._iterations_per_us = {}
        self._alone = {}

    def chosen(self, name):
        """Returns whether the measurement of this name is selected."""
        return re.search(self.only, name) is not None

    # --- arms
    # -----------------------------------------------------------------------------------------------------------------
    def native(self):
        return Native(self.build, self.software)

    def arms(self, tenants, mps=False):
        """Returns the selected arms, native first; gpuwire with these tenants."""
        every = [self.native(), self.mps() if mps else None, self.gpuwire(tenants)]
        return [arm for arm in every if arm and arm.name in self.wanted]

    def mps(self):
        return Mps(self.build, self.software) if not self.software and Mps.available() else None

    def gpuwire(self, tenants, scheduling=True):
        return Gpuwire(self.build, self.device, self.client_prefix, tenants, scheduling)

    def iterations_per_us(self, shape):
        """Returns the work of a kernel of this shape that takes one microsecond alone."""
        if shape not in self._iterations_per_us:
            with self.native() as native:
                ran = subprocess.run([self.program, "--mode", "calibrate", *self._shape(shape)], env=native.environment,
                                     capture_output=True, text=True, check=True)
            self._iterations_per_us[shape] = json.loads(ran.stdout)["iterations_per_us"]
        return self._iterations_per_us[shape]

    def _shape(self, shape):
        blocks, threads = self.shapes[shape]
        return ["--blocks", str(blocks), "--threads", str(threads)]

    # --- tenants -----------------------------------------------------------------------------------------------------
    def saturating(self, seconds=None, **options):
        return self._command("saturate", seconds, "full", options)

    def requesting(self, seconds=None, **options):
        return self._command("request", seconds, "light", options)

    def _command(self, mode, seconds, shape, options):
        command = [self.program, "--mode", mode, "--iterations-per-us", str(self.iterations_per_us(shape)),
                   "--seconds", str(seconds or self.seconds + 2 * EDGE_SECONDS), *self._shape(shape)]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        return command

    def torch(self, mode, seconds=None, **options):
        command = [self.python, os.path.join(HERE, "torch_tenant.py"), mode, "--seconds", str(seconds or self.seconds)]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        return command

    def alone(self, arm_name, **options):
        """Chunks per second of one saturating tenant that has the GPU to itself: the median of several processes.
        Measured once for each kind."""
        key = (arm_name, tuple(sorted(options.items())))
        if key not in self._alone:
            arm = self.native() if arm_name == "native" else self.gpuwire({"one": {}})
            rates = []
            with arm:
                for _ in range(ALONE_TIMES):
                    results = run_together(
                        [arm.starter(self.saturating(ALONE_SECONDS + 2 * EDGE_SECONDS, **options), "one")],
                        ALONE_SECONDS)
                    rates.append(figures.rates(results, EDGE_SECONDS)[0][0])
            self._alone[key] = statistics.median(rates)
        return self._alone[key]


# --- shares by weights -----------------------------------------------------------------------------------------------

# name, then (weight, options of the saturating tenant) of each
SHARES = [("2:1, 100 us and 100 us", [(2, {"kernel_us": 100}), (1, {"kernel_us": 100})]),
          ("9:1, 20 us and 1 ms", [(9, {"kernel_us": 20}), (1, {"kernel_us": 1000})]),
          ("2:1, 20 us and 50 ms", [(2, {"kernel_us": 20}), (1, {"kernel_us": 50000})]),
          ("8:4:2:1, 100 us, 1 ms, 20 us, 10 ms", [(8, {"kernel_us": 100}), (4, {"kernel_us": 1000}),
                                                   (2, {"kernel_us": 20}), (1, {"kernel_us": 10000})]),
          ("2:1, graphs of 20 x 20 us and 100 us", [(2, {"kernel_us": 20, "graph": 20}), (1, {"kernel_us": 100})]),
          ("2:1, sync loops of 100 us", [(2, {"kernel_us": 100, "sync_every": 1}),
                                         (1, {"kernel_us": 100, "sync_every": 1})]), ]


def shares(bench):
    for name, tenants in SHARES:
        if not bench.chosen(name):
            continue
        wanted = figures.shares([weight for weight, _ in tenants])
        settings = {f"t{i}": {"class": "batch", "weight": weight} for i, (weight, _) in enumerate(tenants)}
        commands = [bench.saturating(**options) for _, options in tenants]
        alone = [bench.alone("native", **options) for _, options in tenants]
        alone_remote = [bench.alone("gpuwire", **options) for _, options in tenants]
        for arm in bench.arms(settings, mps=True):
            with arm:
                results = run_together([arm.starter(command, f"t{i}") for i, command in enumerate(commands)],
                                       bench.seconds)
            rates, seconds = figures.rates(results, EDGE_SECONDS)
            base = alone_remote if arm.name == "gpuwire" else alone
            of_alone = [rate / one for rate, one in zip(rates, base)]
            got = figures.shares(of_alone)
            error = max(abs(share - want) for share, want in zip(got, wanted))
            total = 100 * sum(of_alone)
            values = {
                "shares": "/".join(f"{share:.2f}" for share in got), "error": error, "total %": total, "s": seconds
            }
            if arm.name == "gpuwire":
                values["total % of native alone"] = 100 * sum(rate / one for rate, one in zip(rates, alone))
                yield Result(f"shares {name}", arm.name, values, "error <= 1 point, total >= 98 %", error <= 1
                             and total >= 98)
            else:
                yield Result(f"shares {name}", arm.name + " together", values)


# --- what the server's accounts say ----------------------------------------------------------------------------------

def accounts(bench):
    """Compares the GPU time charged to tenants with the time that their counted work takes alone; and measures how fast
    a closing gate drains."""
    kind = {"kernel_us": 100}
    settings = {f"t{i}": {"class": "batch", "weight": 1} for i in range(2)}
    with bench.gpuwire(settings) as arm:
        before = []
        results = run_together([arm.starter(bench.saturating(**kind), f"t{i}") for i in range(2)], bench.seconds,
                               when_ready=lambda: before.append(arm.status()["devices"][0]["gpu_time_ns"]))
        status = arm.status()
    device = status["devices"][0]
    # The tenants' work before they count (modules, warm-up) is charged, too.
    charged = (device["gpu_time_ns"] - before[0]) / 1e9
    counted = sum(figures.chunks(result) for result in results) / bench.alone("gpuwire", **kind)
    error = 100 * (charged / counted - 1)
    yield Result(
        "GPU time charged against work counted", "gpuwire", {
            "charged s": charged, "counted s": counted, "error %": error, "before s": before[0] / 1e9,
            "system s": device["system_time_ns"] / 1e9
        }, "within 1 %",
        abs(error) <= 1)
    yield drained("drained among equals, 100 us kernels", status)
    # With an interactive tenant the bound of work in flight is lower.
    with bench.gpuwire({**settings, "front": {"class": "interactive"}}) as arm:
        seldom = bench.requesting(kernel_us=97, pause_us=1_000_000)
        run_together([arm.starter(seldom, "front")] +
                     [arm.starter(bench.saturating(**kind), f"t{i}") for i in range(2)], bench.seconds)
        status = arm.status()
    yield drained("drained near a higher class, 100 us kernels", status, 250)
    # Such a tenant's request does not wait for it; if the hardware's slice ends at this time, the kernel in flight is
    # preempted and ends after the request.
    with bench.gpuwire(INTERACTIVE_AND_BATCH) as arm:
        run_together(
            [arm.starter(bench.requesting(kernel_us=97), "front"),
             arm.starter(bench.saturating(**kind), "back")], bench.seconds)
        status = arm.status()
    yield drained("drained beside an interactive request, 100 us kernels", status)


def drained(what, status, goal_us=None):
    """Returns the time from the closing of a batch session's gate to the last observed completion, from the server's
    histogram."""
    drains = status["devices"][0]["drain_us"]["batch"]
    p99 = figures.histogram_percentile(drains, 0.99)
    late = sum(count for bound, count in zip(drains["bounds"] + [float("inf")], drains["counts"]) if bound > 250)
    values = {
        "p50 us <=": figures.histogram_percentile(drains, 0.5), "p99 us <=": p99, "n": sum(drains["counts"]),
        "later than 250 us %": 100 * late / sum(drains["counts"])
    }
    return Result(what, "gpuwire", values, f"p99 <= {goal_us} us", p99 <= goal_us) if goal_us else Result(
        what, "gpuwire", values)


# --- interactive requests beside batch -------------------------------------------------------------------------------

# name, request, neighbour, goal as (text, limit of p99 from p99 alone)
REQUESTS = [
    ("0.1 ms beside 100 us", {"kernel_us": 97}, {"kernel_us": 100}, ("p99 <= alone + 400 us",
                                                                     lambda alone: alone + 400)),
    ("0.1 ms beside 1 ms", {"kernel_us": 97}, {"kernel_us": 1000}, ("p99 <= alone + 1200 us",
                                                                    lambda alone: alone + 1200)),
    ("0.1 ms beside 50 ms", {"kernel_us": 97}, {"kernel_us": 50000}, ("p99 <= alone + 2500 us",
                                                                      lambda alone: alone + 2500)),
    ("1 ms beside 100 us", {"kernel_us": 97, "launches": 10}, {"kernel_us": 100}, None),
    ("5 ms beside 100 us", {"kernel_us": 97,
                            "launches": 50}, {"kernel_us": 100}, ("p99 <= 1.08 x alone", lambda alone: alone * 1.08)),
    ("5 ms, sync each, beside 100 us", {"kernel_us": 97, "launches": 50, "sync_each": 1}, {"kernel_us": 100},
     ("p99 <= 1.08 x alone", lambda alone: alone * 1.08)),
    ("5 ms beside 1 ms", {"kernel_us": 97,
                          "launches": 50}, {"kernel_us": 1000}, ("p99 <= 1.08 x alone", lambda alone: alone * 1.08)),
]
INTERACTIVE_AND_BATCH = {"front": {"class": "interactive"}, "back": {"class": "batch"}}


def hand_overs(arm):
    """Returns the number of hand-overs of the GPU's lease so far; natively there are none."""
    return arm.status()["devices"][0]["hand_overs"] if arm.name == "gpuwire" else 0


def requests(bench):
    seconds = bench.seconds * 0.6
    alone = {}
    for name, request, neighbour, goal in REQUESTS:
        if not bench.chosen(name):
            continue
        command = bench.requesting(seconds, **request)
        beside = bench.saturating(seconds + 1, **neighbour)
        for arm in bench.arms(INTERACTIVE_AND_BATCH):
            with arm:
                key = (arm.name, str(request))
                if key not in alone:
                    alone[key] = figures.latency(run_together([arm.starter(command, "front")], seconds)[0])
                before = hand_overs(arm)
                front, back = run_together([arm.starter(command, "front"), arm.starter(beside, "back")], seconds)
                hands = hand_overs(arm) - before
            one, both = alone[key], figures.latency(front)
            rate = figures.rates([back], EDGE_SECONDS)[0][0]
            values = {
                "alone p50": one["p50"], "p99": one["p99"], "beside p50": both["p50"], "p99 ": both["p99"],
                "n": both["n"], "ratio": both["p99"] / one["p99"],
                "neighbour %": 100 * rate / bench.alone(arm.name, **neighbour)
            }
            if hands:
                values["hand-overs a request"] = hands / both["n"]  # two, without an interruption
            if arm.name == "gpuwire" and goal:
                yield Result(f"request of {name}", arm.name, values, goal[0], both["p99"] <= goal[1](one["p99"]))
            else:
                yield Result(f"request of {name}", arm.name, values)


# --- PyTorch ---------------------------------------------------------------------------------------------------------

def pytorch(bench):
    """Inference of batch 1 in class interactive beside training."""
    if bench.software:
        return
    infer, train = bench.torch("infer", pause_ms=4), bench.torch("train-large", bench.seconds + 1)
    for arm in bench.arms(INTERACTIVE_AND_BATCH):
        with arm:
            one = figures.latency(run_together([arm.starter(infer, "front")], bench.seconds)[0])
            training = figures.iteration_rates(run_together([arm.starter(train, "back")], bench.seconds))[0]
            front, back = run_together([arm.starter(infer, "front"), arm.starter(train, "back")], bench.seconds)
        both = figures.latency(front)
        yield Result(
            "PyTorch inference, batch 1, beside training", arm.name, {
                "alone p50": one["p50"], "p99": one["p99"], "beside p50": both["p50"], "p99 ": both["p99"],
                "n": both["n"], "ratio": both["p99"] / one["p99"],
                "training %": 100 * figures.iteration_rates([back])[0] / training
            })


def co_run(bench):
    """Two PyTorch tenants of equal class: leasing must not cost what co-running gives."""
    if bench.software:
        return
    equal = {"t0": {"class": "batch"}, "t1": {"class": "batch"}}
    for mode in ["infer", "train-small", "train-large"]:
        command = bench.torch(mode)
        plain = None
        # Without scheduling, sessions run side by side through gpuwire.
        for name, arm in [("native", bench.native()), ("gpuwire, open", bench.gpuwire(equal, scheduling=False)),
                          ("gpuwire", bench.gpuwire(equal))]:
            with arm:
                one = figures.iteration_rates(run_together([arm.starter(command, "t0")], bench.seconds))[0]
                rates = figures.iteration_rates(
                    run_together([arm.starter(command, f"t{i}") for i in range(2)], bench.seconds))
            total = 100 * sum(rates) / one
            values = {"alone it/s": one, "each": "/".join(f"{rate:.1f}" for rate in rates), "total %": total}
            if name == "gpuwire, open":
                plain = total
            if name == "gpuwire":
                met = total >= 0.95 * plain and total >= 97
                yield Result(f"PyTorch {mode} twice", name, values, f">= 95 % of {plain:.1f}, >= 97", met)
            else:
                yield Result(f"PyTorch {mode} twice", name, values)


# --- what scheduling costs -------------------------------------------------------------------------------------------

def cost(bench):
    kind = {"kernel_us": 100}
    # The arms alternate, so that a drift of the machine does not look like a cost.
    rates = {True: [], False: []}
    for _ in range(3):
        for scheduling in (False, True):
            with bench.gpuwire({"one": {}}, scheduling) as arm:
                results = run_together([arm.starter(bench.saturating(bench.seconds / 2, kernel_us=20), "one")],
                                       bench.seconds)
            rates[scheduling].append(figures.rates(results, EDGE_SECONDS)[0][0])
    loss = 100 * (1 - sorted(rates[True])[1] / sorted(rates[False])[1])
    yield Result("cost alone, 20 us kernels", "gpuwire", {"loss %": loss}, "<= 0.3 %", loss <= 0.3)
    for sessions, limit in [(2, 2), (8, 3)]:
        settings = {f"t{i}": {"class": "batch"} for i in range(sessions)}
        with bench.gpuwire(settings) as arm:
            results = run_together([arm.starter(bench.saturating(**kind), f"t{i}") for i in range(sessions)],
                                   bench.seconds)
        total = sum(figures.rates(results, EDGE_SECONDS)[0]) / bench.alone("gpuwire", **kind)
        loss = 100 * (1 - total)
        yield Result(f"cost with {sessions} sessions, 100 us kernels", "gpuwire", {"loss %": loss}, f"<= {limit} %",
                     loss <= limit)


# --- neighbours that grab --------------------------------------------------------------------------------------------

def hostile(bench):
    kind = {"kernel_us": 100}
    settings = {"good": {"class": "batch"}, "bad": {"class": "batch"}}
    neighbours = [
        ("8 processes", [bench.saturating(**kind) for _ in range(8)]),
        ("16 processes", [bench.saturating(**kind) for _ in range(16)]),
        ("64 contexts", [bench.saturating(**kind, contexts=64)]),
        ("64 streams", [bench.saturating(**kind, streams=64)]),
        ("graphs of 64 kernels", [bench.saturating(**kind, graph=64)]),
        ("kernels of 50 ms", [bench.saturating(kernel_us=50000)]),
        ("a sync after each kernel", [bench.saturating(**kind, sync_every=1)]),
        ("1 s of work queued", [bench.saturating(**kind, ahead_us=1_000_000)]),
        ("an open capture", [bench.saturating(kernel_us=50000, capturing=1)]),
        ("kernels of 2 s and heartbeats", [bench.saturating(kernel_us=2_000_000, ahead_us=4_000_000,
                                                            heartbeat_us=100_000)]),
    ]
    for name, bad in neighbours:
        if not bench.chosen(name):
            continue
        for arm in bench.arms(settings):
            with arm:
                results = run_together([arm.starter(bench.saturating(**kind), "good")] +
                                       [arm.starter(command, "bad") for command in bad], bench.seconds)
            rates, _ = figures.rates(results, EDGE_SECONDS)
            share = 100 * rates[0] / bench.alone(arm.name, **kind)
            every = 100 * sum(rates) / bench.alone(arm.name, **kind)
            values = {"the good one's % of alone": share, "all %": every, "its share": 100 * share / every}
            if arm.name == "gpuwire":
                # More than half is not taken from the other tenant: a hostile tenant that wastes its turns does less
                # work in them.
                yield Result(f"beside {name}", arm.name, values, "share moves <= 2 points from 50",
                             100 * share / every >= 48)
            else:
                yield Result(f"beside {name}", arm.name, values)


ROWS = {
    "shares": shares, "accounts": accounts, "requests": requests, "pytorch": pytorch, "co-run": co_run, "pairs": pairs,
    "cost": cost, "hostile": hostile
}
