"""`gpuwire run --profile FILE`: what a program did when, on its machine and on the GPU, as Chrome's trace events."""

import collections
import json
import os
import signal
import subprocess
import tempfile
import unittest

from queue_test import QueueCase
from support import BUILD, RUN_LIMIT_SECONDS, ServerCase, command

MEBIBYTE = 1 << 20


def profiled(line, file):
    line[2:2] = ["--profile", file]
    return line


def events(file):
    """Those of a file whose end may be missing: each line is whole."""
    with open(file, encoding="utf-8") as text:
        lines = text.read()
    assert lines.startswith("[\n") and lines.endswith("\n"), lines[-200:]
    return json.loads(lines.rstrip().rstrip(",") + "]")


class Profile:
    def __init__(self, file):
        self.events = events(file)
        self.spans = [event for event in self.events if event["ph"] == "X"]

    def of(self, category, name=None):
        return [span for span in self.spans
                if span["cat"] == category and (name is None or name in span["name"])]

    def clocks(self):
        """How far the GPU's times may be wrong, in microseconds."""
        told = [event["args"] for event in self.events if event["name"] == "gpuwire clocks at the end"]
        return sum(one["error_ns"] + one["gpu_error_ns"] for one in told) / 1000

    def totals(self):
        return next(event["args"] for event in self.events if event["name"] == "gpuwire clocks at the end")


class Profiles(ServerCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "profile.json")

    def profile(self, program, *arguments):
        ran = subprocess.run(profiled(command(self.server.address, program, *arguments), self.file),
                             capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assert_passed(ran)
        return Profile(self.file)

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

    def test_what_the_gpu_did_lies_between_the_calls_that_asked_for_it_and_saw_it_done(self):
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
        program = os.path.join(BUILD, "examples", "add_one")
        profile = self.profile("/bin/sh", "-c", f"{program} && {program}")
        named = [event["pid"] for event in profile.events if event["name"] == "process_name"]
        self.assertEqual(len(named), len(set(named)))
        self.assertEqual(len({span["pid"] for span in profile.of("api", "cuLaunchKernel")}), 2)

    def test_a_program_that_is_killed_leaves_what_was_written(self):
        program = subprocess.Popen(profiled(command(self.server.address, "rounds"), self.file), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "ready\n")
        # What is written when enough has come together: round after round.
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
