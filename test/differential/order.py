"""Who may touch what when: the happens-before order of streams, events and the host, by vector clocks (Mattern, Virtual
time and global states of distributed systems, 1989).

A clock says of each stream how many of its operations are known to be done. What is touched only where a clock says
that all earlier accesses in conflict are done has one value, however slow a device or a client is.
"""

HOST = None  # the id of the host, whose accesses are done when they return


def joined(one, other):
    """The clock of who knows both."""
    clock = dict(one)
    for stream, count in other.items():
        if clock.get(stream, 0) < count:
            clock[stream] = count
    return clock


class Stream:
    """A stream, with what is done before its next operation begins. `legacy`: NULL, which waits for all blocking
    streams and which they wait for."""

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
    """Of a program with one host. `host`: what it knows to be done; `behind`: what all work that it gives from now on
    comes behind, which it need not know to be done."""

    def __init__(self):
        self.host, self.behind, self.streams, self.ended = {}, {}, [], {}
        self.numbers = 0

    def add(self, thing, blocking=True, legacy=False):
        self.numbers += 1
        stream = Stream(thing, self.numbers, blocking, legacy)
        self.streams.append(stream)
        return stream

    def end(self, stream):
        """Destroyed: what it was given goes on, and only who waits for everything knows when it is done."""
        self.streams.remove(stream)
        self.ended = joined(self.ended, stream.clock)

    def clock_for(self, stream, implicitly=True):
        """What is done before an operation begins that the stream is given now. `implicitly`: it is one that waits for
        the NULL stream, or there for the others; of events CUDA's documentation does not say so."""
        clock = joined(joined(stream.clock, self.host), self.behind)
        if stream.blocking and implicitly:
            for other in self.streams:
                if other is not stream and (other.legacy or stream.legacy and other.blocking):
                    clock = joined(clock, other.clock)
        return clock

    def give(self, stream, clock=None):
        """An operation of the stream; its number."""
        stream.count += 1
        stream.clock = joined(clock or self.clock_for(stream), {stream.number: stream.count})
        return stream.count

    def learn(self, clock):
        """The host has been told."""
        self.host = joined(self.host, clock)

    def put_behind(self, clock):
        """A call has returned whose work may still be under way, but not beside work that is given later."""
        self.behind = joined(self.behind, clock)

    def everything(self):
        clock = self.ended
        for stream in self.streams:
            clock = joined(clock, stream.clock)
        return clock

    def idle(self):
        return all(self.host.get(stream, 0) >= count for stream, count in self.everything().items())
