"""Tests the guarantees of loopback_ports.py."""

import os
import socket
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loopback_ports import LoopbackPorts, candidates, outgoing_range  # noqa: E402


class Ports(unittest.TestCase):
    def test_no_port_is_one_that_an_outgoing_connection_may_be_given(self):
        first, last = outgoing_range()
        with LoopbackPorts() as ports:
            taken = [ports.take() for _ in range(50)]
        self.assertFalse([port for port in taken if first <= port <= last])

    def test_two_that_take_at_the_same_time_never_have_the_same(self):
        with LoopbackPorts() as one, LoopbackPorts() as other:
            taken = [ports.take() for _ in range(50) for ports in (one, other)]
        self.assertEqual(len(set(taken)), 100)

    def test_a_port_on_which_somebody_listens_is_passed_over(self):
        with LoopbackPorts() as ports:
            first = ports.take()
        with socket.socket() as somebody:
            somebody.bind(("127.0.0.1", first))
            somebody.listen()
            with LoopbackPorts() as ports:
                self.assertNotIn(first, [ports.take() for _ in range(50)])

    def test_a_returned_port_may_be_taken_again(self):
        with LoopbackPorts() as ports:
            first = {ports.take() for _ in range(50)}
        with LoopbackPorts() as ports:
            self.assertTrue(first & {ports.take() for _ in range(50)})

    def test_where_outgoing_connections_may_have_all_ports_there_still_are_some(self):
        self.assertTrue(candidates((1, 65535)))


if __name__ == "__main__":
    unittest.main()
