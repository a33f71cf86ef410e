"""The parts of the differential machine, nearly all without a device: sequences, comparing, shrinking, rules."""

import fnmatch
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import comparing
import jobs
import order
import reporting
import sequences
import streaming
from grammar import Sequence

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "support"))
from gpuwire_server import Server  # noqa: E402

API = sequences.model.read_api(HERE.parents[1] / "protocol" / "api")
SEEDS = range(1, 200)
MANY_SEEDS = range(1, 1500)
EARLY_SEEDS = range(1, 60)
HANDLES_GIVEN_BEFORE_ONE_COMES_AGAIN = 260  # the client gives one again after 256 others of its kind
LIMIT_SECONDS = 120  # it only ends a hang


class Sequences(unittest.TestCase):
    def test_a_seed_names_one_sequence(self):
        self.assertEqual(sequences.make(7, API), sequences.make(7, API))
        self.assertNotEqual(sequences.make(7, API), sequences.make(8, API))

    def test_every_driver_call_is_described(self):
        described = {f.name for f in API.functions if not f.unsupported}
        called = {line.split()[2].lstrip("~") for seed in SEEDS for line in sequences.make(seed, API)}
        self.assertEqual({name for name in called if name.startswith("cu") and not name.startswith("cuda")} - described,
                         set())

    def test_each_function_is_called_or_is_named_with_the_reason_why_not(self):
        described = {f.name for f in API.functions if not f.unsupported}
        called = {line.split()[2].lstrip("~") for seed in MANY_SEEDS for line in sequences.make(seed, API)}
        never = set(sequences.NEVER_CALLED)
        self.assertEqual(described - called - never, set(), "in no sequence, and nobody says why")
        self.assertEqual(never & called, set(), "called all the same")
        self.assertEqual(never - described, set(), "no function of the description")
        self.assertLess(len(never), len(described) / 10)

    def test_functions_that_the_software_device_does_not_offer_are_left_out_for_it_alone(self):
        called = {line.split()[2] for seed in SEEDS for line in sequences.make(seed, API, software=True)}
        self.assertFalse(called & sequences.LEFT_OUT_BY_SOFTWARE)
        self.assertFalse(sequences.LEFT_OUT_BY_SOFTWARE & set(sequences.NEVER_CALLED))

    def test_sequences_without_contexts_of_their_own_are_as_many_as_wanted(self):
        making = ("cuCtxCreate", "cuCtxDestroy", "cuDevicePrimaryCtxReset", "cuGreenCtxStreamCreate")
        heavy = [seed for seed in range(1, 400)
                 if any(line.split()[2].startswith(making) for line in sequences.make(seed, API, contexts_chance=0.1))]
        self.assertTrue(10 < len(heavy) < 60, heavy)

    def test_after_a_fault_each_handle_is_one_that_there_is_or_null(self):
        called, nulls = set(), 0
        for seed in SEEDS:
            lines = [line.split() for line in sequences.make(seed, API, ["faulted"], scenarios_max=1)]
            fault = next(i for i, line in enumerate(lines) if line[2] == "cuLaunchKernel")
            named = {word[1:].split("@")[0] for line in lines[:fault] for word in line if word.startswith(">")}
            for line in lines[fault + 1:]:
                called.add(line[2])
                nulls += "0" in line[3:]
                self.assertEqual({word[1:] for word in line if word.startswith("$")} - named, set(), line)
        self.assertGreater(len(called), 100)
        self.assertGreater(nulls, 100)
        self.assertFalse(called & set(sequences.NEVER_CALLED))
        self.assertNotIn("cuLibraryUnload", called, "NVIDIA's driver crashes there")
        self.assertIn("cuStreamGetPriority", called)
        self.assertNotIn("cuGraphEventRecordNodeSetEvent", called, "the node is of another kind")

    def test_seeds_in_a_row_ask_every_question_after_a_fault_once(self):
        parts = sequences.faulted.parts(API, sequences.NEVER_CALLED)
        asked = []
        for seed in range(parts):
            lines = sequences.make(seed, API, ["faulted"], scenarios_max=1, contexts_chance=0)
            words = [line.split(" ", 3) for line in lines]
            fault = next(i for i, line in enumerate(words) if line[2] == "cuLaunchKernel")
            asked += [(line[2], line[3]) for line in words[fault + 2:] if len(line) == 4]
        modules = [arguments for name, arguments in asked if name == "cuModuleGetFunction"]
        self.assertEqual({re.sub(r"\$\w+", "M", arguments) for arguments in modules},
                         {'?hide M "nothing"', '0 M "nothing"', '?hide 0 "nothing"', "?hide M 0", "0 0 0"})
        self.assertEqual(len(modules), 5)

    def test_a_fault_within_a_sequence_comes_once_with_calls_before_and_behind_it(self):
        behind = 0
        for seed in SEEDS:
            lines = [line.split() for line in sequences.make(seed, API, contexts_chance=0, fault_within=True)]
            trap = next(line[3][1:] for line in lines if line[2] == "cuModuleGetFunction" and '"trap_always"' in line)
            at = [i for i, line in enumerate(lines) if line[2] == "cuLaunchKernel" and line[3] == f"${trap}"]
            self.assertEqual(len(at), 1)
            behind += len(lines) - at[0] - 2
            self.assertNotIn("cuLibraryUnload", {line[2] for line in lines[at[0]:]}, "NVIDIA's driver crashes there")
        self.assertGreater(behind, 10 * len(SEEDS))

    def test_every_family_takes_part(self):
        for family in sequences.SCENARIOS:
            with self.subTest(family):
                self.assertTrue(any(len(sequences.make(seed, API, [family])) > 8 for seed in range(1, 6)))

    def test_a_digest_of_memory_names_the_lines_that_wrote_it(self):
        for seed in SEEDS:
            lines = [line.split() for line in sequences.make(seed, API)]
            for line in lines:
                if line[2] != "digest":
                    continue
                needs = [lines[int(number)][2] for number in line[6:]]
                self.assertTrue(
                    [name for name in needs if name.lower().startswith(("cumem", "cudamem", "cugraphlaunch"))], line)

    def test_branches_of_a_capture_write_memory_of_their_own(self):
        writes = 0
        for seed in SEEDS:
            on = {}
            for line in sequences.make(seed, API, ["capture"]):
                words = line.split()
                if words[2] in ("cuMemsetD32Async", "cuMemcpyDtoDAsync_v2") and words[3] != "0":
                    memory, stream = words[3].split("+")[0], words[-1]
                    writes += 1
                    self.assertEqual(on.setdefault(memory, stream), stream, f"seed {seed}: {line}")
        self.assertGreater(writes, 100)

    def test_parameters_are_set_at_no_offset_at_which_nvidias_driver_crashes(self):
        offsets = [line.split()[4] for seed in MANY_SEEDS for line in sequences.make(seed, API, ["modules"])
                   if line.split()[2] in ("cuParamSetv", "cuParamSeti", "cuParamSetf")]
        self.assertGreater(len(offsets), 100)
        self.assertEqual([offset for offset in offsets if offset.startswith("-")], [])

    def test_a_call_has_at_most_one_wrong_argument(self):
        sequence = Sequence(1, 1)
        for _ in range(200):
            chosen = sequence.one_wrong([("right", "wrong"), ("right", "wrong"), "right"], probability=1)
            self.assertEqual(chosen.count("wrong"), 1)


class Order(unittest.TestCase):
    """The happens-before order of streams and the host."""

    def setUp(self):
        self.order = order.Order()
        self.null = self.order.add(0, legacy=True)
        self.plain, self.free = self.order.add("plain"), self.order.add("free", blocking=False)
        self.memory = order.Access()

    def write(self, stream):
        self.memory.write(stream.number, self.order.give(stream))

    def may_read(self, stream):
        return self.memory.written_before(self.order.clock_for(stream))

    def test_a_stream_knows_of_its_own_work_and_others_of_none(self):
        self.write(self.plain)
        self.assertTrue(self.may_read(self.plain))
        self.assertFalse(self.may_read(self.free))
        self.assertFalse(self.memory.written_before(self.order.host))

    def test_the_null_stream_waits_for_blocking_streams_and_they_for_it(self):
        self.write(self.plain)
        self.assertTrue(self.may_read(self.null))
        self.write(self.null)
        self.assertTrue(self.may_read(self.plain))
        self.assertFalse(self.may_read(self.free))
        self.write(self.free)
        self.assertFalse(self.may_read(self.null))

    def test_an_event_tells_a_stream_of_what_was_before_it_alone(self):
        self.write(self.plain)
        event = dict(self.plain.clock)
        self.order.give(self.free, order.joined(self.order.clock_for(self.free), event))
        self.assertTrue(self.may_read(self.free))
        self.write(self.plain)
        self.assertFalse(self.may_read(self.free))

    def test_all_later_work_knows_the_state_that_the_host_knows(self):
        self.write(self.plain)
        self.order.learn(self.plain.clock)
        self.assertTrue(self.may_read(self.free))
        self.assertTrue(self.order.idle())
        self.order.give(self.free)
        self.assertFalse(self.order.idle())

    def test_the_host_need_not_know_the_order_of_later_work(self):
        self.write(self.plain)
        self.order.put_behind(self.plain.clock)
        self.assertTrue(self.may_read(self.free))
        self.assertFalse(self.memory.written_before(self.order.host))

    def test_memory_that_is_read_is_not_written_before_each_reader_is_done(self):
        for stream in (self.plain, self.free):
            self.memory.read(stream.number, self.order.give(stream))
        self.order.learn(self.plain.clock)
        self.assertFalse(self.memory.unused_before(self.order.host))
        self.order.learn(self.free.clock)
        self.assertTrue(self.memory.unused_before(self.order.host))

    def test_only_who_waits_for_everything_knows_what_an_ended_stream_has_done(self):
        self.write(self.free)
        self.order.end(self.free)
        self.assertFalse(self.order.idle())
        self.order.learn(self.order.everything())
        self.assertTrue(self.memory.written_before(self.order.host))


class Early(unittest.TestCase):
    """Programs that check early."""

    def programs(self, family):
        return [[line.split() for line in sequences.make_early(seed, [family], software=True)]
                for seed in EARLY_SEEDS]

    def test_a_seed_names_one_program(self):
        self.assertEqual(sequences.make_early(7), sequences.make_early(7))
        self.assertNotEqual(sequences.make_early(7), sequences.make_early(8))

    def test_each_family_looks_behind_what_promises_something(self):
        promising = {"cuStreamSynchronize", "@cuStreamQuery", "cuEventSynchronize", "@cuEventQuery", "cuMemFree_v2",
                     "cuMemFreeHost", "cuMemcpyDtoH_v2", "cuCtxSynchronize"}
        for family in sequences.promises.SCENARIOS:
            with self.subTest(family):
                behind = {one[2] for lines in self.programs(family) for one, other in zip(lines, lines[1:])
                          if other[2] in ("digest", "ran")}
                self.assertTrue(behind & promising)

    def test_a_program_ends_graphs_while_they_are_under_way(self):
        ended = 0
        for lines in self.programs("launched"):
            names = [line[2] for line in lines]
            ended += sum(one == "cuGraphLaunch" and other == "cuGraphExecDestroy"
                         for one, other in zip(names, names[1:]))
        self.assertGreater(ended, 10)

    def test_a_thread_that_waits_beside_others_comes_back_before_it_is_given_more(self):
        beside = 0
        for lines in self.programs("threads"):
            waiting = set()
            for line in lines:
                if line[1].endswith("&"):
                    waiting.add(line[1][:-1])
                    beside += 1
                elif line[1] in waiting:
                    self.assertEqual(line[2], "join", line)
                    waiting.remove(line[1])
            self.assertFalse(waiting)
        self.assertGreater(beside, 100)

    def test_a_stream_that_waits_for_a_word_is_released_before_anything_waits_for_it(self):
        for lines in self.programs("held"):
            held = None
            for line in lines:
                if line[2] == "cuStreamWaitValue32_v2":
                    held = line[4]
                elif line[2] == "cuStreamWriteValue32_v2" and held == line[4]:
                    held = None
                elif held:
                    name = line[2].lstrip("@")
                    self.assertFalse(name.endswith(("Synchronize", "Query", "Free_v2", "FreeHost")), line)


class Comparing(unittest.TestCase):
    def test_lines_that_differ_are_found_unless_a_rule_explains_them(self):
        direct, remote = ["0 cuInit CUDA_SUCCESS", "1 cuMemFree_v2 CUDA_SUCCESS",
                          "end"], ["0 cuInit CUDA_SUCCESS", "1 cuMemFree_v2 CUDA_ERROR_INVALID_VALUE", "end"]
        found = comparing.differences(direct, remote)
        self.assertEqual([each.kind for each in found], [("cuMemFree_v2", "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE")])
        answers = ("CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE", "any", "for the test")
        self.assertEqual(comparing.differences(direct, remote, [comparing.Rule(["cuMemFree*"], *answers)]), [])
        self.assertEqual(len(comparing.differences(direct, remote, [comparing.Rule(["cuMemAlloc*"], *answers)])), 1)

    def test_a_rule_about_a_fault_explains_each_error_of_one_and_no_other(self):
        rule = comparing.Rule(["cuLaunch*"], "CUDA_ERROR_INVALID_VALUE", "a fault", "any", "for the test")
        for answer, left in (("LAUNCH_FAILED", 0), ("ILLEGAL_ADDRESS", 0), ("INVALID_HANDLE", 1)):
            sides = [[f"0 cuLaunch CUDA_ERROR_{each}", "end"] for each in ("INVALID_VALUE", answer)]
            self.assertEqual(len(comparing.differences(*sides, [rule])), left, answer)

    def test_a_side_that_ends_early_differs(self):
        found = comparing.differences(["0 cuInit CUDA_SUCCESS", "end"], ["- - ended:-11"])
        self.assertEqual(len(found), 1)

    def test_shrinking_leaves_what_matters(self):
        lines = [str(i) for i in range(60)]
        self.assertEqual(comparing.shrink(lines, lambda some: "17" in some and "42" in some), ["17", "42"])

    def test_the_rules_can_be_read_and_are_few(self):
        for rule in comparing.read_rules(HERE / "explained.toml"):
            self.assertGreater(len(rule.reason), 20)

    def test_each_rule_is_about_calls_that_there_are_and_about_few_of_them(self):
        names = {function.name for function in API.functions}
        for rule in comparing.read_rules(HERE / "explained.toml"):
            self.assertIn(rule.device, ("any", "cuda", "software"))
            for pattern in rule.calls:
                self.assertTrue(fnmatch.filter(names, pattern), pattern)
            meant = {name for pattern in rule.calls for name in fnmatch.filter(names, pattern)}
            self.assertLess(len(meant), len(names) / 4, rule)
            self.assertNotIn("*", (rule.direct, rule.remote))

    def test_rules_about_nvidias_driver_explain_nothing_between_software_devices(self):
        software, cuda = (comparing.read_rules(HERE / "explained.toml", device) for device in ("software", "cuda"))
        self.assertFalse([rule for rule in software if "CAPTURE" in rule.direct + rule.remote])
        self.assertTrue([rule for rule in cuda if "CAPTURE" in rule.direct + rule.remote])

    def test_each_rule_is_said_to_users(self):
        text = " ".join((HERE.parents[1] / "docs" / "differences.md").read_text().split())
        for rule in comparing.read_rules(HERE / "explained.toml"):
            if "software device" not in rule.reason:
                self.assertIn(rule.reason, text)


INTERPRETER = """
import os, sys, time
def say(text):
    print(text, flush=True)
for path in sys.stdin:
    say("sequence " + path.strip())
    for line in open(path.strip()):
        word = line.strip()
        if word == "crash": sys.exit(9)
        if word == "fault": say("end"); sys.exit(3)
        if word == "hang": time.sleep(1000)
        if word == "complain": print("as printed", file=sys.stderr, flush=True)
        say(str(os.getpid()) if word == "who" else word)
    say("end")
    if word == "leaves": say("renewed")
"""


class Streams(unittest.TestCase):
    """Sequences that share a process on each side: each has the log that it has alone."""

    def pair(self, batch=100, limit_seconds=LIMIT_SECONDS):
        side = comparing.Side("test", [sys.executable, "-c", INTERPRETER], {}, limit_seconds)
        return streaming.Pair((side, side), batch)

    def logs(self, *sequences_, **settings):
        """Returns one side's logs; the other's are equal."""
        rows = list(self.pair(**settings).run(enumerate(sequences_)))
        self.assertEqual([key for key, _, _ in rows], list(range(len(sequences_))))
        for _, lines, logs in rows:
            if lines != ["who"]:
                self.assertEqual(*logs)
        return [logs[0] for _, _, logs in rows]

    def test_each_sequence_has_a_log(self):
        many = [[str(number)] for number in range(20)]
        self.assertEqual(self.logs(*many), [[*lines, "end"] for lines in many])

    def test_sequences_behind_a_crash_run_in_another_process(self):
        self.assertEqual(self.logs(["a"], ["b", "crash"], ["c"]), [["a", "end"], ["b", "- - ended:9"], ["c", "end"]])

    def test_sequences_behind_a_fault_run_in_another_process(self):
        self.assertEqual(self.logs(["fault"], ["c"]), [["end"], ["c", "end"]])

    def test_a_sequence_that_hangs_ends_its_processes_alone(self):
        # The time is over once "a" has been read, and never before, so that a busy machine is not too slow.
        read = streaming.Living.readable

        def readable(living, _):
            return not living.unread.endswith(b"\na\n") and read(living, LIMIT_SECONDS)

        with mock.patch.object(streaming.Living, "readable", readable):
            self.assertEqual(self.logs(["a", "hang"], ["c"], limit_seconds=0), [["a", comparing.HUNG], ["c", "end"]])

    def test_a_batch_shares_a_process_and_the_next_has_another(self):
        who = [log[0] for log in self.logs(*[["who"]] * 5, batch=2)]
        self.assertEqual([who[0] == who[1], who[1] == who[2], who[2] == who[3], who[3] == who[4]],
                         [True, False, True, False])

    def test_behind_a_difference_come_other_processes(self):
        pair, who = self.pair(), []
        for number, _, logs in pair.run(enumerate([["who"]] * 3)):
            who.append(logs[0][0])
            pair.tainted = number == 0
        self.assertNotEqual(who[0], who[1])
        self.assertEqual(who[1], who[2])
        self.assertEqual(pair.processes, 4)

    def test_output_beside_the_logs_is_known_while_the_processes_live(self):
        pair = self.pair()
        said = [pair.said() for _ in pair.run(enumerate([["complain"], ["a"]]))]
        self.assertEqual(said, [["as printed\n"] * 2] * 2)

    def test_contexts_that_had_to_be_ended_are_counted_and_in_no_log(self):
        pair = self.pair()
        self.assertEqual([logs for _, _, logs in pair.run(enumerate([["leaves"], ["a"]]))],
                         [[["leaves", "end"]] * 2, [["a", "end"]] * 2])
        self.assertEqual(pair.renewed, 2)

    def test_when_the_time_is_over_nobody_waits_for_a_sequence(self):
        with self.assertRaises(streaming.TooLate):
            list(self.pair().run(enumerate([["hang"]]), give_up=0))


class Sources(unittest.TestCase):
    def test_jobs_share_the_seeds(self):
        source = jobs.Source(lambda: jobs.seeds_of("1-3,7,9-10"))
        source.start()
        first, second = iter(source), iter(source)
        given = [next(first), next(second), next(second), next(first), *second, *first]
        self.assertEqual(given, [1, 2, 3, 7, 9, 10])

    def test_nothing_is_begun_after_so_many_calls(self):
        source = jobs.Source(lambda: jobs.seeds_of("1-100"), calls=10)
        source.start()
        mine = iter(source)
        self.assertEqual([next(mine), next(mine)], [1, 2])
        source.note_calls(10)
        self.assertEqual(list(mine), [])


class Judging(unittest.TestCase):
    DIFFER = [["0 cuInit CUDA_SUCCESS", "end"], ["0 cuInit CUDA_ERROR_UNKNOWN", "end"]]

    def judge(self, alone):
        """Returns a judge whose sides, each alone, have this log."""
        self.runs = []

        class Side:
            limit_seconds = 1

            def __init__(self, log):
                self.log = log

            def run(side, lines, limit_seconds):  # noqa: N805
                self.runs.append(lines)
                return side.log

        return jobs.Judge([Side(log) for log in alone], [], alone=False)

    def test_a_sequence_that_differs_alone_too_is_a_difference_and_a_kind_is_confirmed_so_often(self):
        judge = self.judge(self.DIFFER)
        for _ in range(jobs.CONFIRMED_MAX + 3):
            found, _, unrepeated, _ = judge.judge(["0 t0 cuInit 0"], self.DIFFER)
            self.assertEqual((len(found), unrepeated), (1, []))
        self.assertEqual(len(self.runs), 2 * jobs.CONFIRMED_MAX)

    def test_a_sequence_that_differs_behind_others_only_is_listed_apart(self):
        found, _, unrepeated, _ = self.judge([self.DIFFER[0]] * 2).judge(["0 t0 cuInit 0"], self.DIFFER)
        self.assertEqual((found, len(unrepeated)), ([], 1))


class Interpreter(unittest.TestCase):
    """The interpreter of sequences, on the software device."""

    def test_a_size_is_a_number_whatever_handle_has_the_same_value(self):
        build = Path(os.environ.get("GPUWIRE_BUILD", HERE.parents[1] / "build"))
        side = comparing.Side("direct", [str(build / "test_bin" / "differential_interpreter")],
                              {"LD_LIBRARY_PATH": str(build / "lib" / "software_direct")})
        log = side.run([
            "0 t0 cuInit 0", "1 t0 cuDevicePrimaryCtxRetain >context1 0", "2 t0 cuCtxSetCurrent $context1",
            "3 t0 cuMemAlloc_v2 >m1@4096 4096", "4 t0 cuDriverGetVersion >width", "5 t0 cuGraphCreate >graph1 0",
            "6 t0 cuGraphAddMemcpyNode >node1 $graph1 0 0 {CUDA_MEMCPY3D srcMemoryType=2 srcDevice=$m1"
            " dstMemoryType=2 dstDevice=$m1 srcPitch=$width dstPitch=$width WidthInBytes=1 Height=1 Depth=1} $context1",
            "7 t0 cuGraphMemcpyNodeGetParams $node1 {CUDA_MEMCPY3D | srcPitch srcDevice}"
        ])
        self.assertRegex("\n".join(log), r"(?m)^7 cuGraphMemcpyNodeGetParams CUDA_SUCCESS [0-9]+ \$m1$")

    def remote_log(self, calls):
        """Returns the calls' answers through a server of the software device."""
        build = Path(os.environ.get("GPUWIRE_BUILD", HERE.parents[1] / "build"))
        with Server(str(build), ["--device", "software"]) as server:
            return comparing.Side("remote", [str(build / "bin" / "gpuwire"), "run", "--server", server.address, "--",
                                             str(build / "test_bin" / "differential_interpreter")], {}).run(
                [f"{number} t0 {call}" for number, call in enumerate(calls)])

    def test_handles_of_a_library_that_has_ended_are_free_for_other_things(self):
        image = '".version 7.0 .target sm_80 .address_size 64 .visible .entry nothing() { ret; }"'
        calls = ["cuInit 0", "cuDevicePrimaryCtxRetain >context1 0", "cuCtxSetCurrent $context1"]
        for _ in range(HANDLES_GIVEN_BEFORE_ONE_COMES_AGAIN):
            calls += [f"cuLibraryLoadData >library1 {image} 0 0 0 0 0 0",
                      'cuLibraryGetKernel >kernel1 $library1 "nothing"',
                      "cuKernelGetFunction >function1 $kernel1", "cuLibraryGetModule >its1 $library1",
                      'cuModuleGetFunction >inside1 $its1 "nothing"', "cuLibraryUnload $library1"]
        self.assertEqual([line for line in self.remote_log(calls) if "CUDA_SUCCESS" not in line], ["end"])

    def test_the_handle_of_a_graph_that_ended_with_a_capture_is_free_for_another(self):
        calls = ["cuInit 0", "cuDevicePrimaryCtxRetain >context1 0", "cuCtxSetCurrent $context1",
                 "cuStreamCreate >stream1 1", "cuStreamCreate >stream2 1", "cuEventCreate >event1 2",
                 "cuMemAlloc_v2 >m1@64 64"]
        # A stream that has joined a capture and never joins back ends it with an error.
        for _ in range(HANDLES_GIVEN_BEFORE_ONE_COMES_AGAIN):
            calls += ["cuGraphCreate >graph1 0", "cuStreamBeginCaptureToGraph $stream1 $graph1 0 0 0 2",
                      "cuEventRecord $event1 $stream1", "cuStreamWaitEvent $stream2 $event1 0",
                      "cuMemsetD8Async $m1 1 64 $stream2", "cuStreamEndCapture $stream1 >ended1"]
        failed = [line for line in self.remote_log(calls) if "CUDA_SUCCESS" not in line]
        self.assertEqual({line.split(" ", 1)[-1].strip() for line in failed},
                         {"cuStreamEndCapture CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "end"})


class Reporting(unittest.TestCase):
    LINES = ["0 t0 cuInit 0", "1 t0 cuMemAlloc_v2 >m1@64 64", "2 t0 cuStreamCreate >stream2 0", "3 t0 cuMemFree_v2 $m1"]

    def test_a_kind_is_told_once_with_the_calls_that_its_example_depends_on(self):
        report = reporting.Report()
        logs = [["1 cuMemAlloc_v2 CUDA_SUCCESS $m1", "3 cuMemFree_v2 CUDA_SUCCESS"],
                ["1 cuMemAlloc_v2 CUDA_SUCCESS $m1", "3 cuMemFree_v2 CUDA_ERROR_UNKNOWN"]]
        for seed in (1, 2):
            report.count(seed, self.LINES, logs)
            report.add(seed, self.LINES, comparing.differences(*logs), logs)
        report.count(3, self.LINES, logs)
        [(kind, row)] = report.ordered()
        self.assertEqual(kind, ("cuMemFree_v2", "CUDA_SUCCESS", "CUDA_ERROR_UNKNOWN"))
        self.assertEqual((row["count"], row["first"], row["seeds"], report.differing), (2, 2, [1, 2], 2))
        self.assertEqual(row["examples"][0]["lines"], ["1 t0 cuMemAlloc_v2 >m1@64 64  => CUDA_SUCCESS $m1",
                                                       "3 t0 cuMemFree_v2 $m1  => CUDA_SUCCESS | CUDA_ERROR_UNKNOWN"])

    def test_output_beside_the_logs_is_in_the_report_and_makes_no_difference(self):
        report = reporting.Report()
        logs = [["1 cuMemAlloc_v2 CUDA_SUCCESS $m1"], ["1 cuMemAlloc_v2 CUDA_ERROR_UNKNOWN"]]
        report.add(7, self.LINES, [], logs, comparing.differences(*logs), ["natively", "remotely"])
        report.server_said = ["a warning"]
        with tempfile.TemporaryDirectory() as folder:
            report.write(Path(folder, "report.json"), {})
            written = json.loads(Path(folder, "report.json").read_text())
        self.assertEqual(written["unrepeated"], [{
            "difference": "seed 7: 1 cuMemAlloc_v2: direct CUDA_SUCCESS $m1, remote CUDA_ERROR_UNKNOWN",
            "said": ["natively", "remotely"]
        }])
        self.assertEqual((written["server_said"], written["differing"], written["kinds"]), (["a warning"], 0, []))
        self.assertIn("  in a batch only: " + written["unrepeated"][0]["difference"], list(report.summary(1)))

    def test_reports_of_several_jobs_are_one(self):
        logs = [[f"1 cuMemAlloc_v2 {answer}", "2 host done"] for answer in ("CUDA_SUCCESS $m1", "CUDA_ERROR_UNKNOWN")]
        whole = reporting.Report()
        for seed in (1, 2):
            part = reporting.Report()
            part.count(seed, self.LINES, logs)
            part.add(seed, self.LINES, comparing.differences(*logs), logs)
            whole.merge(part)
        self.assertEqual((whole.sequences, whole.calls, whole.threads, whole.differing), (2, 2, 2, 2))
        [(_, row)] = whole.ordered()
        self.assertEqual((row["count"], row["seeds"], len(row["examples"])), (2, [1, 2], 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
