"""Computes rates, shares and percentiles from the tenants' counters and times."""

import math


def window(results, edge_seconds):
    """Returns the bins of the GPU's clock in which all tenants worked, without the edges."""
    bin_seconds = results[0]["bin_ms"] / 1000
    edge = math.ceil(edge_seconds / bin_seconds)
    first = max(result["first_bin"] for result in results) + edge
    last = min(result["first_bin"] + len(result["bins"]) for result in results) - edge
    return first, last


def rate(result, first, last):
    """Returns the counted chunks per second of the GPU's clock in [first, last)."""
    begin = result["first_bin"]
    counted = sum(result["bins"][max(first - begin, 0):max(last - begin, 0)])
    return counted / ((last - first) * result["bin_ms"] / 1000)


def rates(results, edge_seconds=0.5):
    """Returns the rate of each tenant over the time in which all worked, and this time in seconds."""
    first, last = window(results, edge_seconds)
    if last <= first:
        raise RuntimeError("the tenants were never at work together")
    return [rate(result, first, last) for result in results], (last - first) * results[0]["bin_ms"] / 1000


def iteration_rates(results):
    """Returns the iterations per second of PyTorch tenants while all worked."""
    first = max(result["ends"][0] for result in results)
    last = min(result["ends"][-1] for result in results)
    return [sum(first < end <= last for end in result["ends"]) / (last - first) for result in results]


def shares(of_alone):
    """Returns the shares in percent, from each tenant's work relative to its work alone."""
    return [100 * part / sum(of_alone) for part in of_alone]


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


def latency(result):
    values = result["latencies_us"]
    return {"n": len(values), "p50": percentile(values, 0.50), "p99": percentile(values, 0.99), "max": max(values)}


def chunks(result):
    """Returns the total count of the tenant's kernels."""
    return sum(result["bins"])


def histogram_percentile(histogram, part):
    """Returns the upper bound of the bucket that completes this part of the observations; infinite for the last one."""
    total, seen = sum(histogram["counts"]), 0
    for bound, count in zip(histogram["bounds"] + [math.inf], histogram["counts"]):
        seen += count
        if seen >= part * total:
            return bound
    return math.inf
