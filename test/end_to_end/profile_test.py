"""`gpuwire run --profile FILE`: a program's work over time, on its machine and on the GPU, as Chrome's trace events."""

import collections
import json
import os
import shlex
import signal
import subprocess
import tempfile
import unittest

from queue_test import QueueCase
from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, ServerCase, command, wait_until

MEBIBYTE = 1 << 20


def profiled(line, file):
    line[2:2] = ["--profile", file]
    return line


def events(file):
    with open(file, encoding="utf-8") as text:
        return json.load(text)


class Profile:
    def __init__(self, file):
        self.events = events(file)
        self.spans = [event for event in self.events if event["ph"] == "X"]

    def of(self, category, name=None):
        return [span for span in self.spans
                if span["cat"] == category and (name is None or name in span["name"])]

    def clocks(self):
        """Returns the possible error of the GPU's times, in microseconds."""
        told = [event["args"] for event in self.events if event["name"] == "gpuwire clocks at the end"]
        return sum(one["error_ns"] + one["gpu_error_ns"] for one in told) / 1000

    def methods(self):
        """Returns the method of measurement of each process."""
        labels = [event["args"]["labels"] for event in self.events if event["name"] == "process_labels"]
        assert all(label.startswith("measured by: ") for label in labels), labels
        return [label.removeprefix("measured by: ") for label in labels]

    def totals(self):
        return next(event["args"] for event in self.events if event["name"] == "gpuwire clocks at the end")


class ProfileCase(ServerCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "profile.json")

    def profile(self, program, *arguments):
        ran = subprocess.run(profiled(command(self.server.address, program, *arguments), self.file),
                             capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assert_passed(ran)
        return Profile(self.file)


class Profiles(ProfileCase):
    method = "events (CUPTI knows no software device)"

    def test_it_says_how_the_work_was_measured(self):
        method, = self.profile(os.path.join(BUILD, "examples", "vector_add")).methods()
        self.assertEqual(method, self.method if DEVICE == "software" else method)

    def test_it_has_the_calls_the_waits_the_kernel_and_the_copies_of_a_program(self):
        profile = self.profile(os.path.join(BUILD, "examples", "vector_add"))
        self.assertEqual(len(profile.of("api", "cuLaunchKernel")), 1)
        self.assertTrue(profile.of("wait", "wait for the reply"))
        kernel, = profile.of("kernel")
        self.assertEqual(kernel["name"], "vector_add(float const*, float const*, float*, int)")
        self.assertEqual(sum(copy["args"].get("bytes", 0) for copy in profile.of("copy")), 3 * 4 * MEBIBYTE)
        totals = profile.totals()
        self.assertEqual(totals["dropped"], 0)
        self.assertEqual(totals["timed"], len([span for span in profile.spans if span["pid"] == kernel["pid"]]))

    def test_the_gpus_work_lies_between_the_calls_that_asked_for_it_and_saw_it_done(self):
        profile = self.profile(os.path.join(BUILD, "examples", "vector_add"))
        error = profile.clocks()
        kernel, = profile.of("kernel")
        launch, = profile.of("api", "cuLaunchKernel")
        self.assertGreaterEqual(kernel["ts"] + error, launch["ts"])
        seen = min(span["ts"] + span["dur"] for span in profile.of("api", "Synchronize") if span["ts"] > launch["ts"])
        self.assertLessEqual(kernel["ts"] + kernel["dur"], seen + error)

    def test_spans_of_a_stream_follow_each_other_and_each_track_has_a_name(self):
        profile = self.profile(os.path.join(BUILD, "examples", "streams_events"))
        tracks = collections.defaultdict(list)
        gpu = {span["pid"] for span in profile.of("kernel")}
        for span in profile.spans:
            if span["pid"] in gpu:
                tracks[span["pid"], span["tid"]].append(span)
        named = {(event["pid"], event["tid"]) for event in profile.events if event["name"] == "thread_name"}
        self.assertLessEqual(set(tracks), named)
        self.assertGreaterEqual(len(tracks), 2)
        for spans in tracks.values():
            for before, after in zip(spans, spans[1:]):
                # Written in microseconds with three places.
                self.assertGreaterEqual(round(1000 * after["ts"]), round(1000 * before["ts"]))

    def test_launches_of_a_graph_are_one_span_each_and_what_is_captured_is_none(self):
        profile = self.profile("graph_loop", "20")
        self.assertEqual(len(profile.of("graph")), 20)
        self.assertEqual(profile.of("kernel"), [])

    def test_a_program_says_the_same_with_a_profile_and_without(self):
        for program, *arguments in (("threads",), ("copies",), ("graph_memory_nodes",), ("stream_ordered",),
                                    ("managed_memory",), ("callbacks",)):
            with self.subTest(program=program):
                plain = subprocess.run(command(self.server.address, program, *arguments), capture_output=True,
                                       text=True, timeout=RUN_LIMIT_SECONDS)
                ran = subprocess.run(profiled(command(self.server.address, program, *arguments), self.file),
                                     capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
                self.assert_passed(ran)
                self.assertEqual(ran.stdout, plain.stdout)
                self.assertTrue(Profile(self.file).of("api"))

    def test_each_process_of_a_program_has_its_part(self):
        program = shlex.quote(os.path.join(BUILD, "examples", "add_one"))
        profile = self.profile("/bin/sh", "-c", f"{program} && {program}")
        named = [event["pid"] for event in profile.events if event["name"] == "process_name"]
        self.assertEqual(len(named), len(set(named)))
        self.assertEqual(len({span["pid"] for span in profile.of("api", "cuLaunchKernel")}), 2)

    def test_a_program_without_a_call_has_an_empty_profile(self):
        self.assertEqual(self.profile("/bin/sh", "-c", "echo PASSED").events, [])

    def test_a_process_that_outlives_the_program_adds_its_part(self):
        add_one = shlex.quote(os.path.join(BUILD, "examples", "add_one"))
        # The program begins when its input ends; its output ends with it.
        later = f"exec 3<&0; (read _ <&3; exec {add_one}) & exec {add_one}"
        ran = subprocess.Popen(profiled(command(self.server.address, "/bin/sh", "-c", later), self.file),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(ran.stdout.close)
        self.assertEqual(ran.wait(RUN_LIMIT_SECONDS), 0)
        self.assertEqual(len({span["pid"] for span in Profile(self.file).of("api", "cuLaunchKernel")}), 1)
        ran.stdin.close()
        ran.stdout.read()
        self.assertEqual(len({span["pid"] for span in Profile(self.file).of("api", "cuLaunchKernel")}), 2)

    def test_a_program_that_is_killed_leaves_what_was_written(self):
        program = subprocess.Popen(profiled(command(self.server.address, "rounds"), self.file), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "ready\n")
        # The profile is written once enough events are collected: the program repeats rounds.
        while os.path.getsize(self.file) < 4096:
            program.stdin.write("more\n")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), "done\n")
        program.kill()
        self.assertEqual(program.wait(RUN_LIMIT_SECONDS), -signal.SIGKILL)
        self.assertTrue(Profile(self.file).of("api"))

    def test_a_file_that_cannot_be_written_is_told_before_the_program_runs(self):
        ran = subprocess.run(profiled(command(self.server.address, "rounds"), "/nowhere/profile.json"),
                             capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, stdin=subprocess.DEVNULL)
        self.assertEqual(ran.returncode, 2)
        self.assertEqual(ran.stdout, "")
        self.assertIn("cannot write the profile /nowhere/profile.json: No such file or directory", ran.stderr)

    def test_a_device_that_is_full_is_told_before_the_program_runs(self):
        ran = subprocess.run(profiled(command(self.server.address, "copies"), "/dev/full"), capture_output=True,
                             text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""), ran.stderr)
        self.assertIn("cannot write the profile /dev/full: No space left on device", ran.stderr)


class CuptiCase(ProfileCase):
    """A fake CUPTI (test/server/profiler/fake_cupti.cpp), at the path of the configuration."""

    library = os.path.join(BUILD, "test_bin", "libgpuwire_fake_cupti.so")
    goes_wrong = ""

    @classmethod
    def setUpClass(cls):
        if DEVICE != "software":
            raise unittest.SkipTest("it knows the software device alone")
        with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
            file.write(f'[server]\nopen_tenant = "open"\ncupti = "{cls.library}"\n[tenants.open]\n')
        cls.addClassCleanup(os.unlink, file.name)
        cls.server_arguments = ("--config", file.name)
        cls.server_environment = dict(os.environ, GPUWIRE_FAKE_CUPTI=cls.goes_wrong)
        super().setUpClass()


class ByCupti(CuptiCase, Profiles):
    """The same tests as with events, by CUPTI's records in buffers that are soon full."""

    method = "CUPTI 13.0"
    goes_wrong = "full=16"

    def test_only_the_process_of_a_session_that_wants_a_profile_opens_the_library(self):
        for line, opened in ((command(self.server.address, "rounds"), False),
                             (profiled(command(self.server.address, "rounds"), self.file), True)):
            with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
                self.assertEqual(program.stdout.readline(), "ready\n")
                have = [worker for worker in self.worker_ids() if self.library in self.maps(worker)]
                self.assertEqual(len(have), int(opened))
                program.stdin.close()
                program.stdout.read()

    @staticmethod
    def maps(process_id):
        try:
            with open(f"/proc/{process_id}/maps", encoding="utf-8") as file:
                return file.read()
        except (FileNotFoundError, ProcessLookupError):
            return ""  # it has ended


class RefusedByCupti(CuptiCase):
    goes_wrong = "refuse=10:35"

    def test_events_measure_and_the_profile_and_the_log_say_why(self):
        why = "CUPTI 13.0: kernels: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"
        profile = self.profile(os.path.join(BUILD, "examples", "vector_add"))
        self.assertEqual(profile.methods(), [f"events (no CUPTI: {why})"])
        self.assertEqual(len(profile.of("kernel", "vector_add")), 1)
        wait_until(lambda: f"a profile is measured by events and not by CUPTI: {why}" in self.server_log(),
                   RUN_LIMIT_SECONDS, "the server's log says why")


class NoCuptiThere(CuptiCase):
    library = "/usr/lib/no_such_folder/libcupti.so"

    def test_events_measure_and_the_profile_says_why(self):
        method, = self.profile(os.path.join(BUILD, "examples", "vector_add")).methods()
        self.assertIn("events (no CUPTI: /usr/lib/no_such_folder/libcupti.so: cannot open shared object file", method)


class CuptiWithoutItsDriver(CuptiCase):
    """NVIDIA's own library, where the toolkit is installed: it refuses the software device, but is opened and called
    inside the worker's confinement as on a GPU."""

    library = "/usr/local/cuda/lib64/libcupti.so.13"

    @classmethod
    def setUpClass(cls):
        if not os.path.exists(cls.library):
            raise unittest.SkipTest(f"there is no {cls.library}")
        super().setUpClass()

    def test_the_confined_worker_outlives_it_and_events_measure(self):
        method, = self.profile(os.path.join(BUILD, "examples", "vector_add")).methods()
        self.assertRegex(method, r"^events \(no CUPTI: CUPTI 13\.\d+: .*CUPTI_ERROR_\w+ \(\d+\)\)$")


class CuptiThatDrops(CuptiCase):
    goes_wrong = "lose=3"

    def test_the_program_is_right_and_what_is_missing_is_told(self):
        ran = subprocess.run(profiled(command(self.server.address, "graph_loop", "30"), self.file),
                             capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assert_passed(ran)
        totals = Profile(self.file).totals()
        self.assertGreaterEqual(totals["dropped"], 10)
        self.assertIn(f"the profile lacks the times of {totals['dropped']} pieces of work on the GPU", ran.stderr)


class DamagedRecords(CuptiCase):
    goes_wrong = "damage=20"

    def test_the_program_is_right_and_what_can_be_read_is_told(self):
        profile = self.profile("graph_loop", "300")
        totals = profile.totals()
        self.assertGreater(totals["dropped"], 0)
        self.assertEqual(totals["timed"], sum(len(profile.of(kind)) for kind in ("graph", "kernel", "copy", "memset")))
        for span in profile.of("graph"):
            self.assertGreaterEqual(span["dur"], 0)


class Queued(QueueCase):
    def test_the_wait_in_the_queue_is_a_span(self):
        self.start()
        runs = self.program()
        self.hear(runs, "ready")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "profile.json")
            line = profiled(command(self.address, "rounds"), file)
            waits = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     text=True)
            self.addCleanup(waits.wait)
            self.addCleanup(waits.kill)
            for told in waits.stderr:
                if "place 1 of 1" in told:
                    break
            self.passes(runs)
            out, _ = waits.communicate(timeout=RUN_LIMIT_SECONDS)
            self.assertIn("PASSED", out)
            self.assertEqual(len(Profile(file).of("queue")), 1)


if __name__ == "__main__":
    unittest.main()
