"""The happens-before order of streams, events and the host, by vector clocks (Mattern, Virtual time and global states
of distributed systems, 1989).

A clock has, for each stream, the number of its operations that are known to be done. Memory that is accessed only when
a clock shows all earlier conflicting accesses as done has one value, however slow a device or a client is.
"""

HOST = None  # the id of the host, whose accesses are done when they return


def joined(one, other):
    """Returns the clock that joins both."""
    clock = dict(one)
    for stream, count in other.items():
        if clock.get(stream, 0) < count:
            clock[stream] = count
    return clock


class Stream:
    """A stream, with the clock of its next operation's begin. `legacy`: the NULL stream, which waits for all blocking
    streams, as they wait for it."""

    def __init__(self, thing, number, blocking=True, legacy=False):
        self.thing, self.number, self.blocking, self.legacy = thing, number, blocking, legacy
        self.count, self.clock = 0, {}

    def __str__(self):
        return str(self.thing)


class Access:
    """The newest accesses to a piece of memory: its writer, as (stream, number of the operation), and all readers since
    then."""

    def __init__(self):
        self.writer, self.readers = None, {}

    def copy(self):
        other = Access()
        other.writer, other.readers = self.writer, dict(self.readers)
        return other

    def written_before(self, clock):
        return self.writer is None or clock.get(self.writer[0], 0) >= self.writer[1]

    def unused_before(self, clock):
        return self.written_before(clock) and all(clock.get(stream, 0) >= count
                                                  for stream, count in self.readers.items())

    def read(self, stream, count):
        if stream is not HOST:
            self.readers[stream] = max(self.readers.get(stream, 0), count)

    def write(self, stream, count):
        self.writer, self.readers = (None if stream is HOST else (stream, count)), {}


class Order:
    """The order of a program with one host. `host`: the clock of work known to be done; `behind`: the clock after which
    all later work runs, done or not."""

    def __init__(self):
        self.host, self.behind, self.streams, self.ended = {}, {}, [], {}
        self.numbers = 0

    def add(self, thing, blocking=True, legacy=False):
        self.numbers += 1
        stream = Stream(thing, self.numbers, blocking, legacy)
        self.streams.append(stream)
        return stream

    def end(self, stream):
        """The stream is destroyed: its work continues, and only a wait for everything shows its end."""
        self.streams.remove(stream)
        self.ended = joined(self.ended, stream.clock)

    def clock_for(self, stream, implicitly=True):
        """Returns the clock of the begin of an operation that the stream gets now. `implicitly`: the operation waits
        for the NULL stream, or in the NULL stream for the others; CUDA's documentation does not promise this for
        events."""
        clock = joined(joined(stream.clock, self.host), self.behind)
        if stream.blocking and implicitly:
            for other in self.streams:
                if other is not stream and (other.legacy or stream.legacy and other.blocking):
                    clock = joined(clock, other.clock)
        return clock

    def give(self, stream, clock=None):
        """Adds an operation of the stream, and returns its number."""
        stream.count += 1
        stream.clock = joined(clock or self.clock_for(stream), {stream.number: stream.count})
        return stream.count

    def learn(self, clock):
        """The host knows that this work is done."""
        self.host = joined(self.host, clock)

    def put_behind(self, clock):
        """A call has returned whose work may still be in flight, but not concurrently with later work."""
        self.behind = joined(self.behind, clock)

    def everything(self):
        clock = self.ended
        for stream in self.streams:
            clock = joined(clock, stream.clock)
        return clock

    def idle(self):
        return all(self.host.get(stream, 0) >= count for stream, count in self.everything().items())
