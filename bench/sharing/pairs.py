"""The row "pairs" of bench/sharing/run: any two real programs of equal class.

On the hardware's own slices, without the scheduler, and with it.
"""

import contextlib
import os
import time

import figures
from results import Result
from tenants import Company

HERE = os.path.dirname(os.path.abspath(__file__))

SOFTWARE = ("sync", "managed")  # a short run for the software device
TORCH = ("infer", "train-small", "train-large", "nccl")
PAIRS = [
    ("infer", "infer"), ("train-small", "train-small"), ("train-large", "train-large"), ("infer", "train-small"),
    ("infer", "train-large"), ("train-small", "train-large"), ("graphs", "graphs"), ("sync", "sync"),
    ("copies", "copies"), ("managed", "managed"), ("nccl", "nccl"), ("copies", "infer"), ("copies", "train-large"),
    ("copies", "sync"), ("graphs", "infer"), ("graphs", "sync"), ("sync", "infer"), ("managed", "sync"),
    ("managed", "infer"), ("nccl", "infer")]
ARMS = ("native", "unscheduled", "scheduled")
TENANTS = {"t0": {"class": "batch"}, "t1": {"class": "batch"}}
TOTAL_GOAL, EACH_GOAL = 97, 45  # percent: of the best arm; of alone, nine tenths of a half


def name_of(pair):
    return " and ".join(pair)


def command(bench, kind):
    if kind in TORCH:
        return bench.torch(kind, rounds=0)
    return [os.path.join(bench.build, "bench", "sharing", "pair_tenant"), kind, str(bench.seconds), "0"]


def chosen(bench):
    kinds = SOFTWARE if bench.software else {kind for pair in PAIRS for kind in pair}
    return [pair for pair in PAIRS if bench.chosen(name_of(pair)) and set(pair) <= set(kinds)]


def regimes(arm):
    device = arm.status()["devices"][0]
    return {name: device["regime_ns"].get(name, 0) / 1e9 for name in ("co-run", "lease")}, device["side_by_side"]


class Arm:
    """One way to share the GPU, with every program that is needed, started once.

    Programs of slot 0 belong to tenant t0, of slot 1 to t1.
    """

    def __init__(self, name, where, company):
        self.name, self.where, self.company = name, where, company
        self.alone = {}

    def run_alone(self, kind, seconds):
        # A program that only appears as the second one has a process only in that slot.
        slot = 0 if (kind, 0) in self.company.programs else 1
        self.alone[kind] = figures.iteration_rates(self.company.run([(kind, slot)], seconds))[0]

    def run_pair(self, pair, seconds, base):
        before = regimes(self.where) if self.name == "scheduled" else None
        rates = figures.iteration_rates(self.company.run([(pair[0], 0), (pair[1], 1)], seconds))
        each = [100 * rate / base[kind] for rate, kind in zip(rates, pair)]
        joined = {name: "/".join(f"{value:.1f}" for value in of) for name, of in (("it/s", rates), ("each %", each))}
        values = {**joined, "total %": sum(each)}
        if before:
            spent, found = regimes(self.where)
            values["side by side s"] = spent["co-run"] - before[0]["co-run"]
            values["turns s"] = spent["lease"] - before[0]["lease"]
            values["trials"] = found["trials"] - before[1]["trials"]
            values["found"] = ", ".join(f"{name} {found[name]:.2f}" for name in ("turns", "together", "expected"))
        return values, each


def pairs(bench):
    """Steps through the pairs, each on every arm in turn.

    Totals are parts of what the programs do alone on the same arm (both of gpuwire's: alone without the scheduler),
    so that what the network costs a program does not look like sharing; "of native" says what they are of the
    programs alone on this machine.
    """
    todo = chosen(bench)
    if not todo:
        return
    begun = time.monotonic()
    programs = sorted({(kind, slot) for pair in todo for slot, kind in enumerate(pair)})
    with contextlib.ExitStack() as stack:
        arms = {}
        places = {"native": bench.native(), "unscheduled": bench.gpuwire(TENANTS, scheduling=False),
                  "scheduled": bench.gpuwire(TENANTS)}
        companies = {}
        for name in ARMS:
            where = stack.enter_context(places[name])
            starters = {(kind, slot): where.starter(command(bench, kind), f"t{slot}") for kind, slot in programs}
            companies[name] = stack.enter_context(Company(starters))
            arms[name] = Arm(name, where, companies[name])
        for name, company in companies.items():
            for program, why in company.await_ready().items():
                yield Result(f"{program[0]} as tenant t{program[1]} does not run", name, {"why": why})
        ready = time.monotonic() - begun
        for kind in sorted({kind for kind, _ in programs}):
            try:
                for arm in arms.values():
                    arm.run_alone(kind, bench.seconds)
            except RuntimeError as why:
                yield Result(f"{kind} alone failed", "", {"why": str(why)})
                continue
            rates = {name: arms[name].alone[kind] for name in ARMS}
            cost = 100 * (1 - rates["scheduled"] / rates["unscheduled"])
            values = {f"{name} it/s": rate for name, rate in rates.items()}
            yield Result(f"{kind} alone", "each arm", {**values, "cost of scheduling %": cost})
        one = time.monotonic()
        left = len(todo)
        for pair in todo:
            # Each pair takes about as long as the one before.
            if bench.limit and time.monotonic() - bench.begun > bench.limit:
                yield Result("pairs not measured", "", {"n": left, "from": name_of(pair), "limit s": bench.limit})
                return
            left -= 1
            if not all(kind in arm.alone for arm in arms.values() for kind in pair):
                yield Result(f"pair {name_of(pair)}", "not measured", {"why": "a program of it does not run"})
                continue
            try:
                yield from one_pair(pair, arms, bench.seconds)
            except RuntimeError as why:
                yield Result(f"pair {name_of(pair)}", "failed", {"why": str(why)})
        spent = {"programs started s": ready, "all pairs s": time.monotonic() - one}
        yield Result("pairs: time", "", {**spent, "programs": len(programs) * len(ARMS)})


def one_pair(pair, arms, seconds):
    totals = {}
    for name, arm in arms.items():
        base = arms["native" if name == "native" else "unscheduled"].alone
        values, each = arm.run_pair(pair, seconds, base)
        totals[name] = values["total %"]
        values["of native %"] = sum(part * base[kind] / arms["native"].alone[kind] for part, kind in zip(each, pair))
        if name != "scheduled":
            yield Result(f"pair {name_of(pair)}", name, values)
            continue
        best = max(totals.values())
        met = totals[name] >= TOTAL_GOAL / 100 * best and min(each) >= EACH_GOAL
        yield Result(f"pair {name_of(pair)}", name, {**values, "of the best %": 100 * totals[name] / best},
                     f">= {TOTAL_GOAL} % of {best:.1f}, each >= {EACH_GOAL}", met)
