"""Programs through the wire, each checking itself, and programs that end in unusual ways."""

import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import facts
from support import (
    BUILD,
    DEVICE,
    HERE,
    LONG,
    PROGRAMS,
    RUN_LIMIT_SECONDS,
    ServerCase,
    command,
    one_line_naming,
    run,
    wait_until,
)

CUDA = os.environ.get("CUDA_PATH", "/usr/local/cuda")

# C programs may pass numbers outside cuda.h's enumerations, which end a client built with the sanitizer of undefined
# behaviour; a program's own operator new ends one with the address sanitizer.
SANITIZED = os.environ.get("GPUWIRE_TEST_SANITIZED")
# Sections of facts that are not compared, with the reason.
NOT_COMPARED = {
    "textures and surfaces": "driver 580 crashed there, and its line says no more than that",
    "clusters": "was not recorded",
}


class Programs(ServerCase):
    def test_eight_threads_share_one_session(self):
        self.assert_passed(run(self.server.address, "threads"))

    def test_threads_retain_and_release_the_primary_context_whenever_they_like(self):
        for _ in range(3):
            self.assert_passed(run(self.server.address, "primary_contexts"))

    def test_nothing_tells_that_freed_memory_is_kept(self):
        for kept in ("64MiB", "0"):
            with self.subTest(kept):
                self.assert_passed(
                    run(self.server.address, "cached_memory", env={**os.environ, "GPUWIRE_KEPT_MEMORY": kept}))

    def test_nothing_tells_that_memory_of_an_earlier_run_comes_ahead(self):
        for program in ("cached_memory", "out_of_memory"):
            with self.subTest(program), tempfile.TemporaryDirectory() as home:
                user = {"GPUWIRE_LOOK_AHEAD": "on", "GPUWIRE_CACHE_KEY_FILE": os.path.join(home, "cache_key")}
                for _ in range(3):
                    self.assert_passed(run(self.server.address, program, env={**os.environ, **user}))
                folder, written = os.path.join(home, "cache_key.warm_start"), ""
                for name in os.listdir(folder):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        written += file.read()
                self.assertIn("memory 0 ", written)

    def test_a_size_without_a_known_unit_is_told_and_nothing_is_kept(self):
        for wish, word in (("4096", "a unit is missing"), ("64M", "the unit must be one of B, KB")):
            ran = run(self.server.address, "neighbour", stdin=subprocess.DEVNULL,
                      env={**os.environ, "GPUWIRE_KEPT_MEMORY": wish})
            self.assert_passed(ran)
            self.assertTrue(one_line_naming(ran.stderr, "GPUWIRE_KEPT_MEMORY", word), ran.stderr)

    def test_callbacks_run_in_stream_order(self):
        self.assert_passed(run(self.server.address, "callbacks"))

    def test_a_program_goes_on_while_a_host_function_stands(self):
        self.assert_passed(run(self.server.address, "callbacks_busy", *(["native"] if DEVICE == "cuda" else [])))

    def test_host_functions_get_a_lock_that_threads_hold_in_calls_which_do_not_wait(self):
        for _ in range(5 if LONG else 1):
            self.assert_passed(run(self.server.address, "callbacks_locked"))

    def test_memory_is_freed_between_host_functions_and_nobody_waits_for_ever(self):
        self.assert_passed(run(self.server.address, "freed_between_callbacks"))

    @unittest.skipIf(SANITIZED, "the program's operator new is not the sanitizer's")
    def test_a_program_may_have_functions_of_the_clients_libraries_and_its_own_operator_new(self):
        self.assert_passed(run(self.server.address, "clashing_symbols"))

    def test_any_number_of_threads_waits_for_what_a_later_call_ends(self):
        self.assert_passed(run(self.server.address, "many_waits"))

    def test_callbacks_behind_a_fault_are_told_and_host_functions_left_out(self):
        self.assert_passed(run(self.server.address, "callbacks_fault"))

    def test_streams_wait_for_words_and_write_them(self):
        self.assert_passed(run(self.server.address, "memory_operations"))

    def test_a_program_that_has_emptied_its_environment_finds_its_server(self):
        self.assert_passed(run(self.server.address, "emptied_environment"))

    def test_a_forked_child_is_told_and_the_parent_goes_on(self):
        self.assert_passed(run(self.server.address, "forks"))

    def test_a_blocking_copys_data_are_there_for_every_reader(self):
        for way in ("stream", "rows", "priority", "earlier", "waited", "green", "context", "process"):
            for size in ((), ("large",)):
                with self.subTest(way, size=size):
                    self.assert_passed(run(self.server.address, "upload_order", way, *size))

    def test_calls_that_captures_forbid_are_refused_with_a_server_and_without(self):
        self.assert_passed(run(self.server.address, "forbidden_in_captures"))
        self.assert_passed_alone("forbidden_in_captures")

    def assert_passed_alone(self, program):
        """Runs the program on the software device without a server; with a GPU, another test runs it natively."""
        if DEVICE == "software":
            alone = {**os.environ, "LD_LIBRARY_PATH": os.path.join(BUILD, "lib", "software_direct")}
            self.assert_passed(
                subprocess.run([os.path.join(PROGRAMS, program)], capture_output=True, text=True, env=alone,
                               timeout=RUN_LIMIT_SECONDS))

    def facts(self, program):
        """Compares a program's facts, with a server and without, with the rules of driver 580's answers."""
        if DEVICE != "software":
            self.skipTest("the software device is compared with what was recorded")
        path, = glob.glob(os.path.join(HERE, "programs", "*", program + ".rules"))
        with open(path, encoding="utf-8") as file:
            rules = facts.read_rules(file.read())
        alone = {**os.environ, "LD_LIBRARY_PATH": os.path.join(BUILD, "lib", "software_direct")}
        return rules, {
            "with a server": run(self.server.address, program).stdout,
            "without": subprocess.run([os.path.join(PROGRAMS, program)], capture_output=True, text=True, env=alone,
                                      timeout=RUN_LIMIT_SECONDS).stdout
        }

    def test_calls_beside_captures_are_answered_as_driver_580_did_with_a_server_and_without(self):
        # The software device does not offer cuIpcGetMemHandle.
        self.assert_answered_by_the_rules("capture_facts", otherwise="cuIpcGetMemHandle")

    def test_wrong_arguments_are_answered_as_driver_580_did_with_a_server_and_without(self):
        self.assert_answered_by_the_rules("argument_facts")

    def assert_answered_by_the_rules(self, program, otherwise=""):
        rules, told = self.facts(program)
        for how, text in told.items():
            found = facts.sections(text)
            self.assertEqual(rules.keys() - NOT_COMPARED.keys(), found.keys() - NOT_COMPARED.keys(), how)
            for section in rules.keys() - NOT_COMPARED.keys():
                with self.subTest(how=how, section=section):
                    wrong = facts.differences(rules[section], found[section])
                    self.assertEqual([line for line in wrong if not otherwise or not line.startswith(otherwise)], [])

    def test_copies_of_every_shape_and_order_are_right(self):
        self.assert_passed(run(self.server.address, "copies"))

    def test_a_thread_without_a_context_finds_a_kernel(self):
        self.assert_passed(run(self.server.address, "fresh_thread"))

    def test_an_executable_of_many_programs_runs_the_one_that_its_first_argument_names(self):
        self.assert_passed(run(self.server.address, "programs_concurrency", "fresh_thread"))
        ran = run(self.server.address, "programs_concurrency", "no_program")
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertIn(" fresh_thread ", ran.stderr)

    def test_pinned_memory_is_reached_at_its_host_address(self):
        self.assert_passed(run(self.server.address, "pinned_pointers"))

    def test_pinned_memory_is_reached_by_the_device(self):
        self.assert_passed(run(self.server.address, "mapped_memory"))

    def test_host_memory_of_every_kind_is_copied(self):
        self.assert_passed(run(self.server.address, "host_memory"))

    def test_stream_ordered_allocation_and_pools(self):
        self.assert_passed(run(self.server.address, "stream_ordered"))

    def test_memory_is_reserved_created_and_mapped(self):
        self.assert_passed(run(self.server.address, "virtual_memory"))

    def test_events_tell_times_and_order_streams(self):
        self.assert_passed(run(self.server.address, "events"))

    def test_a_cooperative_grid_synchronises(self):
        self.assert_passed(run(self.server.address, "cooperative"))

    def test_texture_objects_filter_anywhere_and_are_many(self):
        self.assert_passed(run(self.server.address, "texture_objects"))

    def test_green_contexts_have_their_multiprocessors_and_share_the_rest(self):
        self.assert_passed(run(self.server.address, "green_contexts"))

    def test_attributes_that_are_set_on_a_function_are_those_of_a_launch_of_cuda_3(self):
        ran = run(self.server.address, "staged_launch", "offsets")
        self.assert_passed(ran)
        answers = ["CUDA_SUCCESS", "CUDA_ERROR_INVALID_HANDLE"] + 3 * ["CUDA_ERROR_INVALID_VALUE"]
        self.assertEqual(ran.stdout.splitlines()[:len(answers)], answers)  # like NVIDIA's driver 580

    def test_limits_and_function_attributes_are_kept(self):
        self.assert_passed(run(self.server.address, "limits"))

    def test_a_reset_device_begins_again(self):
        self.assert_passed(run(self.server.address, "device_reset"))

    def test_peer_copies_are_right(self):
        self.assert_passed(run(self.server.address, "peer_copies"))

    def test_memory_that_another_device_may_reach_is_right(self):
        self.assert_passed(run(self.server.address, "peer_mappings"))

    def test_work_that_passes_data_round_the_devices_is_right(self):
        self.assert_passed(run(self.server.address, "several_devices", "steps", "20"))

    def test_per_thread_streams_do_not_wait_for_each_other(self):
        self.assert_passed(run(self.server.address, "per_thread_streams"))

    def test_streams_keep_their_priorities_and_flags(self):
        self.assert_passed(run(self.server.address, "stream_properties"))

    def test_kernels_take_large_parameters(self):
        self.assert_passed(run(self.server.address, "large_parameters"))

    def test_device_code_of_several_units_is_linked_at_the_server(self):
        self.assert_passed(run(self.server.address, "separate_units"))

    def test_constants_and_symbols_are_copied(self):
        self.assert_passed(run(self.server.address, "symbols"))

    def test_managed_memory_is_read_and_written_by_both_sides(self):
        self.assert_passed(run(self.server.address, "managed_memory"))

    def test_managed_memory_may_be_larger_than_the_rest_of_the_device(self):
        self.assert_passed(run(self.server.address, "managed_beyond_device"))

    def test_threads_share_managed_memory_between_host_and_device(self):
        for _ in range(5 if LONG else 2):
            self.assert_passed(run(self.server.address, "managed_threads"))

    def test_a_program_ends_while_threads_touch_managed_memory(self):
        for _ in range(20 if LONG else 4):
            ran = run(self.server.address, "managed_threads", "exit")
            self.assertEqual(ran.returncode, 23, ran.stdout + ran.stderr)

    def test_graphs_copy_from_and_to_memory_of_the_program_when_they_run(self):
        self.assert_passed(run(self.server.address, "graph_copies"))

    def test_a_launchs_data_arrive_whatever_becomes_of_its_graph(self):
        self.assert_passed(run(self.server.address, "graphs_under_way"))

    def test_giving_memory_up_waits_for_the_work_of_the_context(self):
        self.assert_passed(run(self.server.address, "frees_wait"))

    def test_a_copy_from_pinned_memory_reads_it_when_its_stream_gets_there(self):
        self.assert_passed(run(self.server.address, "late_sources"))

    def test_kernel_nodes_are_made_asked_and_changed(self):
        self.assert_passed(run(self.server.address, "graph_kernel_nodes"))

    def test_events_that_graphs_record_are_asked_waited_for_and_timed(self):
        self.assert_passed(run(self.server.address, "graph_events"))
        self.assert_passed_alone("graph_events")

    def test_host_functions_of_graphs_see_what_was_copied_and_are_seen(self):
        self.assert_passed(run(self.server.address, "graph_host_nodes"))

    @unittest.skipIf(DEVICE != "software", "a GPU has it")
    def test_a_function_that_the_software_device_lacks_is_named_before_the_error(self):
        for how, code, reason in (("instruction", "218", "instruction 'multimem' is not supported"),
                                  ("function", "801", "cuIpcGetMemHandle is not supported"), ("image", "209",
                                                                                              "PTX is needed")):
            ran = run(self.server.address, "refused", how)
            self.assertEqual(ran.stdout, code + "\n", ran.stderr)
            self.assertRegex(ran.stderr, "(?m)^gpuwire.*" + reason)

    def test_nodes_of_random_graphs_run_after_those_before_them(self):
        self.assert_passed(run(self.server.address, "graph_orders"))

    def test_captures_across_streams_and_threads_and_their_mistakes(self):
        ran = run(self.server.address, "graph_capture")
        self.assert_passed(ran)
        # The lines of a native run.
        for line in ("the end of a thread-local capture in another thread: cudaErrorStreamCaptureWrongThread",
                     "the end with a stream not joined: cudaErrorStreamCaptureUnjoined",
                     "a launch into an invalid capture: cudaErrorStreamCaptureInvalidated",
                     "an allocation in a global capture: cudaErrorStreamCaptureUnsupported",
                     "a launch into the legacy stream: cudaErrorStreamCaptureImplicit",
                     "a wait that merges two captures: cudaErrorStreamCaptureMerge",
                     "a wait for work outside the capture: cudaErrorStreamCaptureIsolation",
                     "the end in a stream that only joined: cudaErrorStreamCaptureUnmatched"):
            self.assertIn(line + "\n", ran.stdout)

    def test_graphs_allocate_and_free_memory(self):
        self.assert_passed(run(self.server.address, "graph_memory_nodes"))

    def test_conditional_nodes_decide_as_kernels_say(self):
        self.assert_passed(run(self.server.address, "graph_conditional"))

    def test_graphs_are_nested_cloned_updated_and_told_as_text(self):
        self.assert_passed(run(self.server.address, "graph_updates"))

    def test_bad_modules_are_refused_with_a_log(self):
        self.assert_passed(run(self.server.address, "bad_modules"))

    def test_out_of_memory_is_an_error_and_the_program_goes_on(self):
        self.assert_passed(run(self.server.address, "out_of_memory"))

    def test_blocking_launches_tell_what_became_of_their_kernels(self):
        self.assert_passed(run(self.server.address, "launch_blocking", env=dict(os.environ, CUDA_LAUNCH_BLOCKING="1")))
        self.assert_passed(run(self.server.address, "launch_blocking", env=dict(os.environ, CUDA_LAUNCH_BLOCKING="0")))

    def test_textures_surfaces_and_arrays_are_read_and_written(self):
        self.assert_passed(run(self.server.address, "textures"))

    def test_threads_blocks_and_clusters_work_together(self):
        self.assert_passed(run(self.server.address, "cooperation"))

    def test_device_printf_comes_before_the_synchronize_returns(self):
        ran = run(self.server.address, "device_output")
        self.assertEqual(ran.stdout, "kernel says 42, 2.500 and a string\nafter the synchronize\nPASSED\n", ran.stderr)

    def test_device_printf_keeps_its_place_in_a_pipe(self):
        ran = run(self.server.address, "device_output", "order")
        self.assertEqual(ran.stdout,
                         "before the kernel\nkernel says 42, 2.500 and a string\nafter the synchronize\nPASSED\n",
                         ran.stderr)

    def test_single_calls_are_right_at_their_edges_with_a_server_and_without(self):
        self.assert_passed(run(self.server.address, "edges"))
        self.assert_passed_alone("edges")

    def test_a_fault_and_a_wrong_argument_are_told_in_the_drivers_order_with_a_server_and_without(self):
        self.assert_passed(run(self.server.address, "after_a_fault"))
        self.assert_passed_alone("after_a_fault")

    def test_a_tool_that_wants_the_driver_is_told_in_one_line(self):
        ran = run(self.server.address, "device_output",
                  env={**os.environ, "CUDA_INJECTION64_PATH": "/opt/tool/libtool.so"})
        self.assertTrue(ran.stdout.endswith("PASSED\n"), ran.stdout)
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)
        self.assertIn("CUDA_INJECTION64_PATH", ran.stderr)

    def test_a_program_below_cuda_gdb_says_that_device_code_is_out_of_its_reach(self):
        debugger = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "debugger.py")
        for name, lines in (("cuda-gdb-minimal", 1), ("gdb", 0)):
            with self.subTest(debugger=name):
                ran = subprocess.run([sys.executable, debugger, name, *command(self.server.address, "edges")],
                                     capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
                self.assert_passed(ran)
                self.assertEqual(len([line for line in ran.stderr.splitlines() if "cuda-gdb" in line]), lines,
                                 ran.stderr)

    def test_a_profiler_is_told_that_it_sees_nothing(self):
        cupti = next(iter(glob.glob(os.path.join(CUDA, "lib*", "libcupti.so.*"))), None)
        if not cupti:
            self.skipTest("the toolkit has no CUPTI")
        kind = 10  # CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
        script = (
            f"import ctypes; cupti = ctypes.CDLL({cupti!r}); cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0);"
            f" print(cupti.cuptiActivityEnable({kind}) != 0)"
        )
        ran = run(self.server.address, sys.executable, "-c", script)
        self.assertEqual(ran.stdout, "True\n", ran.stderr)
        self.assertEqual(len([line for line in ran.stderr.splitlines() if "CUPTI" in line]), 1, ran.stderr)

    def test_a_failed_assert_is_an_error_with_its_text(self):
        ran = run(self.server.address, "device_output", "assert")
        self.assertIn("cudaErrorAssert", ran.stdout)
        self.assertIn("the value is zero", ran.stderr)

    def test_a_trap_is_an_error_after_what_was_printed_however_it_is_found(self):
        for how in ("trap", "trap-polled", "trap-launched"):
            with self.subTest(how):
                ran = run(self.server.address, "device_output", how)
                self.assertEqual(
                    ran.stdout,
                    (
                        "kernel says 42, 2.500 and a string\nafter the synchronize\nbefore the"
                        " trap\ncudaErrorLaunchFailure\nPASSED\n"
                    ),
                    ran.stderr,
                )

    def test_exit_codes_and_signals_are_the_programs_own(self):
        expected = {"return": 9, "exit": 7, "_exit": 8, "abort": -signal.SIGABRT, "sigterm": -signal.SIGTERM,
                    "sigkill": -signal.SIGKILL, "segv": -signal.SIGSEGV}
        for how, code in expected.items():
            with self.subTest(how):
                ran = run(self.server.address, "endings", how)
                self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
                self.assertEqual(ran.stdout, f"ending by {how}\n")

    def test_workers_map_memory_where_programs_do_not(self):
        # Device addresses are the worker's, and the program needs the same ranges free: they must not overlap its own
        # mappings. A worker just forked still has the broker's mappings, and an ending one has none.
        def highest_library(worker):
            try:
                with open(f"/proc/{worker}/maps", encoding="ascii") as maps:
                    return max((int(line.split("-")[0], 16) for line in maps if ".so" in line), default=None)
            except (FileNotFoundError, ProcessLookupError):
                return None

        wait_until(lambda: any((highest_library(worker) or 1 << 64) < 0x5000_0000_0000 for worker in self.worker_ids()),
                   RUN_LIMIT_SECONDS, "a prewarmed worker whose libraries are where programs have none")

    def test_sessions_that_ended_leave_no_worker_behind(self):
        run(self.server.address, "endings", "return")
        wait_until(lambda: len(self.worker_ids()) <= 1, RUN_LIMIT_SECONDS, "only the prewarmed worker is left")

    def test_trace_has_a_line_for_each_call(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            line = command(self.server.address, "endings", "return")
            line[2:2] = ["--trace", trace]
            subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
            with open(trace, encoding="utf-8") as lines:
                text = lines.read()
        self.assertRegex(text, r"cuLaunchKernel.*posted.*CUDA_SUCCESS")
        self.assertRegex(text, r"cuDeviceGetAttribute.*local.*CUDA_SUCCESS")
        self.assertRegex(text, r"cuMemAlloc_v2.*called.*CUDA_SUCCESS")

    def test_batches_copy_in_every_direction(self):
        self.assert_passed(run(self.server.address, "batch_copies"))

    def test_peer_copies_work_and_a_reset_device_is_used_again(self):
        self.assert_passed(run(self.server.address, "peer"))

    def test_memory_is_shared_between_processes_by_a_descriptor(self):
        self.assert_passed(run(self.server.address, "vmm_share"))

    def test_texts_are_linked_and_the_linker_says_what_is_wrong(self):
        self.assert_passed(run(self.server.address, "link"))

    def test_failed_calls_are_in_the_error_log(self):
        self.assert_passed(run(self.server.address, "error_log"))

    def test_tensor_maps_are_made_without_asking_the_server(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            line = command(self.server.address, "tensor_maps", "encode")
            line[2:2] = ["--trace", trace]
            self.assert_passed(subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS))
            with open(trace, encoding="utf-8") as lines:
                maps = [text for text in lines if "cuTensorMapEncodeTiled" in text and "cuGetProcAddress" not in text]
        self.assertGreater(len(maps), 1000)
        self.assertEqual([text for text in maps if " local = " not in text], [])

    def test_stats_give_an_account(self):
        line = command(self.server.address, "endings", "return")
        line[2:2] = ["--stats"]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        for word in ("device", "server", "local", "posted", "called", "sent", "received", "waits"):
            self.assertIn(word, ran.stderr)
        self.assertRegex(ran.stderr, r"(?m)^gpuwire: account of endings, process \d+$")

    def test_stats_tell_which_functions_waited(self):
        line = command(self.server.address, "endings", "return")
        line[2:2] = ["--stats=calls"]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        rows = {words[1]: words for words in (row.split() for row in ran.stderr.splitlines()) if len(words) > 5}
        self.assertEqual(rows["cuMemAlloc_v2"][2:4], ["1", "1"], ran.stderr)
        self.assertEqual(rows["cuLaunchKernel"][3], "0", ran.stderr)
        in_calls = sum(int(row[3]) for name, row in rows.items() if name.startswith("cu"))
        self.assertEqual(in_calls, int(re.search(r"waits: (\d+)", ran.stderr).group(1)), ran.stderr)
        self.assertRegex(ran.stderr, r"images: 1 used, ")

    def test_info_shows_the_devices(self):
        ran = subprocess.run([BUILD + "/bin/gpuwire", "info", "--server", self.server.address], capture_output=True,
                             text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout.lower(), r"round.trip")

    def test_a_program_that_is_not_there_is_said(self):
        ran = run(self.server.address, "/no/such/program")
        self.assertEqual(ran.returncode, 127)
        self.assertIn("/no/such/program", ran.stderr)



@unittest.skipIf(DEVICE != "software", "when another driver waits cannot be chosen")
class LoadsThatWait(ServerCase):
    server_environment = {**os.environ, "GPUWIRE_SOFTWARE_LOADS_WAIT": "1"}

    def test_calls_do_not_stand_behind_a_load_of_another_thread_that_waits_for_a_host_function(self):
        self.assert_passed(run(self.server.address, "loads_beside_functions"))

    def test_host_functions_get_a_lock_that_threads_hold_in_calls_which_do_not_stand_behind_loads(self):
        self.assert_passed(run(self.server.address, "callbacks_locked"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
