"""The trace of the driver's calls that a worker writes if the server's environment asks for it (CONTRIBUTING.md)."""

import os
import re
import stat
import tempfile
import unittest

from support import BUILD, DEVICE, Server, run, wait_until

LINE = re.compile(r"(\d+) (cu\w+)((?: 0x[0-9a-f]+| \{[0-9a-f]*\})*) = (\d+) \d+\.\d{3}\n")
SUCCESS = 0
WAIT_SECONDS = 60


class Traced(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpuwire-trace-")
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "calls")

    def serve(self, environment):
        server = Server(BUILD, ["--device", DEVICE], environment={**os.environ, **environment}).__enter__()
        self.addCleanup(server.stop)
        return server

    def traces(self):
        """Returns the calls of each process: thread, function, arguments and result."""
        folder = os.path.dirname(self.file)
        found = {}
        for name in os.listdir(folder):
            self.assertRegex(name, r"^calls\.\d+$")
            with open(os.path.join(folder, name), encoding="ascii") as lines:
                found[name] = [LINE.fullmatch(line) for line in lines]
        return found

    def test_every_call_of_a_confined_worker_is_a_line(self):
        server = self.serve({"GPUWIRE_DRIVER_TRACE": self.file})
        ran = run(server.address, "fresh_thread")
        self.assertIn("PASSED", ran.stdout, ran.stderr)

        def of_program():
            return [calls for calls in self.traces().values()
                    if all(calls) and any(call[2] == "cuLaunchKernel" for call in calls)]

        wait_until(lambda: len(of_program()) == 1, WAIT_SECONDS, "a trace with a launch")
        calls, = of_program()
        names = [call[2] for call in calls]
        self.assertEqual(names[0], "cuInit")
        self.assertEqual({call[4] for call in calls if call[2] == "cuLaunchKernel"}, {str(SUCCESS)})
        self.assertEqual({len(call[3].split()) for call in calls if call[2] == "cuLaunchKernel"}, {11})
        self.assertLess(names.index("cuMemAlloc_v2"), names.index("cuLaunchKernel"))
        for name in os.listdir(os.path.dirname(self.file)):
            mode = os.stat(os.path.join(os.path.dirname(self.file), name)).st_mode
            self.assertEqual(stat.S_IMODE(mode), 0o600)

    def test_a_program_cannot_ask_for_a_trace(self):
        server = self.serve({})
        ran = run(server.address, "fresh_thread", env={**os.environ, "GPUWIRE_DRIVER_TRACE": self.file})
        self.assertIn("PASSED", ran.stdout, ran.stderr)
        self.assertEqual(self.traces(), {})


if __name__ == "__main__":
    unittest.main()
