"""What the tenants' counters and times mean: rates, shares, percentiles."""

import math


def window(results, edge_seconds):
    """The bins, of the GPU's clock, in which all tenants were at work, without the edges."""
    bin_seconds = results[0]["bin_ms"] / 1000
    edge = math.ceil(edge_seconds / bin_seconds)
    first = max(result["first_bin"] for result in results) + edge
    last = min(result["first_bin"] + len(result["bins"]) for result in results) - edge
    return first, last


def rate(result, first, last):
    """Counted chunks per second of the GPU's clock in [first, last)."""
    begin = result["first_bin"]
    counted = sum(result["bins"][max(first - begin, 0):max(last - begin, 0)])
    return counted / ((last - first) * result["bin_ms"] / 1000)


def rates(results, edge_seconds=0.5):
    """Of each, over the time in which all were at work; and how long that was, in seconds."""
    first, last = window(results, edge_seconds)
    if last <= first:
        raise RuntimeError("the tenants were never at work together")
    return [rate(result, first, last) for result in results], (last - first) * results[0]["bin_ms"] / 1000


def iteration_rates(results):
    """Of PyTorch tenants: iterations per second while all were at work."""
    first = max(result["ends"][0] for result in results)
    last = min(result["ends"][-1] for result in results)
    return [sum(first < end <= last for end in result["ends"]) / (last - first) for result in results]


def shares(of_alone):
    """Parts of the whole, in percent, from each one's part of what it does alone."""
    return [100 * part / sum(of_alone) for part in of_alone]


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


def latency(result):
    values = result["latencies_us"]
    return {"n": len(values), "p50": percentile(values, 0.50), "p99": percentile(values, 0.99), "max": max(values)}


def chunks(result):
    """All that the tenant's kernels have counted."""
    return sum(result["bins"])


def histogram_percentile(histogram, part):
    """The upper bound of the bucket in which that part of the observations is complete; infinite for the last one."""
    total, seen = sum(histogram["counts"]), 0
    for bound, count in zip(histogram["bounds"] + [math.inf], histogram["counts"]):
        seen += count
        if seen >= part * total:
            return bound
    return math.inf
