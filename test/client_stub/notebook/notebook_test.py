"""The notebook's extension: a thread shows the stub's messages in the running cell, in place."""

import contextlib
import io
import os
import sys
import threading
import time
import unittest
from unittest import mock

SOURCE, BUILD = os.environ["GPUWIRE_SOURCE"], os.environ["GPUWIRE_BUILD"]
sys.path[:0] = [os.path.join(SOURCE, "client_stub", "notebook"), os.path.join(SOURCE, "test", "support")]
import gpuwire_notebook as notebook  # noqa: E402
import ipython  # noqa: E402

LIMIT_SECONDS = 300


def wait_until(condition):
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT_SECONDS} s")
        time.sleep(0.005)


class Events:
    def __init__(self):
        self.callbacks = {}

    def register(self, event, callback):
        self.callbacks.setdefault(event, []).append(callback)

    def unregister(self, event, callback):
        self.callbacks[event].remove(callback)


class FakeShell:
    """The part of IPython's shell that the extension uses."""

    def __init__(self):
        self.events = Events()
        self.magics_manager = mock.Mock(magics={"line": {}})

    def register_magic_function(self, function, kind, name):
        self.magics_manager.magics[kind][name] = function

    def magic(self, line):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.magics_manager.magics["line"]["gpuwire"](line)
        return out.getvalue()


class Shown:
    """Outputs of cells, each with its last shown content."""

    def __init__(self):
        self.outputs = []
        self.threads = set()

    def __call__(self, text, handle):
        self.threads.add(threading.current_thread().name)
        if handle is None:
            self.outputs.append([text])
            return self.outputs[-1]
        handle.append(text)
        return handle


class Notebook(unittest.TestCase):
    def extension(self, **parts):
        shown = Shown()
        extension = notebook.Extension(show=shown, interval=0.005, **parts)
        self.addCleanup(extension.end)
        return extension, shown

    @staticmethod
    def write(text):
        """Writes like the stub (client_stub/session/message_file)."""
        with open(os.environ[notebook.MESSAGES], "a", encoding="utf-8") as file:
            file.write(text)

    def test_lines_of_the_stub_are_shown_by_a_thread_and_replace_each_other_within_a_cell(self):
        extension, shown = self.extension()
        self.write("17 waiting for a place at gpu7: place 2 of 2\n")
        wait_until(lambda: shown.outputs)
        self.write("17 waiting for a place at gpu7: place 1 of 1\n")
        wait_until(lambda: len(shown.outputs[0]) == 2)
        self.assertEqual(shown.outputs, [[
            "gpuwire: waiting for a place at gpu7: place 2 of 2", "gpuwire: waiting for a place at gpu7: place 1 of 1"
        ]])
        self.assertEqual(shown.threads, {"gpuwire-notebook"})
        extension.display.next_cell()
        self.write("17 admitted at gpu7 after 3 s\n")
        wait_until(lambda: len(shown.outputs) == 2)
        self.assertEqual(shown.outputs[1], ["gpuwire: admitted at gpu7 after 3 s"])

    def test_a_line_is_shown_when_it_is_whole(self):
        extension, shown = self.extension()
        extension.watcher.end()
        self.write("17 waiting for a pl")
        extension.watcher.look()
        self.assertEqual(shown.outputs, [])
        self.write("ace\n18 other\n19 la")
        extension.watcher.look()
        self.assertEqual(shown.outputs, [["gpuwire: other"]])
        self.write("st \udcff\n".encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
        extension.watcher.look()
        self.assertEqual(len(shown.outputs[0]), 2)

    def test_a_display_that_fails_ends_nothing(self):
        def fails(_text, _handle):
            raise RuntimeError("no frontend")

        extension = notebook.Extension(show=fails, interval=3600)
        self.addCleanup(extension.end)
        self.write("17 waiting\n")
        with contextlib.redirect_stderr(io.StringIO()) as err:
            extension.watcher.look()
        self.assertIn("gpuwire: waiting (it cannot be displayed: no frontend)", err.getvalue())

    def test_a_message_file_that_was_removed_is_no_error(self):
        extension, shown = self.extension()
        extension.watcher.end()
        os.unlink(extension.messages.path)
        extension.watcher.look()
        self.assertEqual(shown.outputs, [])

    def test_start_shows_the_wait_while_the_call_blocks_and_then_what_there_is(self):
        begins = threading.Event()
        extension, shown = self.extension(begin=lambda: 0 if begins.wait(LIMIT_SECONDS) else 1)

        def server():
            self.write("17 waiting for a place at gpu7: place 1 of 1\n")
            wait_until(lambda: shown.outputs)
            begins.set()

        other = threading.Thread(target=server)
        other.start()
        with mock.patch.object(notebook, "status_text", lambda: "gpuwire: session 4"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                extension.magic("start")
        other.join()
        self.assertEqual(out.getvalue(), "gpuwire: session 4\n")
        self.assertIn("place 1 of 1", shown.outputs[0][0])

    def test_start_says_when_it_failed_and_when_there_is_no_library(self):
        for begin, line in ((lambda: 802, "the session did not begin (CUDA error 802)"),
                            (lambda: notebook.begin_session("libno-such-thing.so.1"), "cannot be loaded")):
            extension, _ = self.extension(begin=begin)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                extension.magic("start")
            self.assertIn(line, out.getvalue())

    def test_the_status_is_the_session_or_whether_there_is_room(self):
        mine = {"client_pid": os.getpid(), "host": notebook.socket.gethostname(), "id": 4, "state": "running",
                "devices": [{"memory_used_bytes": 3 << 29}], "gpu_time_ns": 2_500_000_000}
        other = {**mine, "client_pid": os.getpid() + 1, "id": 5}
        room = {"servers": [{"server": "gpu7", "answer": "yes"},
                            {"server": "gpu8", "answer": "queued", "place": 2, "start_in_s": 90},
                            {"server": "gpu9", "answer": "no", "why": "connection refused"}]}
        answers = {}
        with mock.patch.dict(os.environ, GPUWIRE_SERVER="gpu7"):
            with mock.patch.object(notebook, "ask", lambda name, *_: answers[name]):
                answers["queue"] = ([other, mine], "")
                self.assertEqual(notebook.status_text(), "gpuwire: session 4 at gpu7: running, 1 GPU, 1.5 GiB used, "
                                 "2.5 s of GPU time")
                answers["queue"] = ([{**mine, "place": 3, "waits_for": "GPUs"}], "")
                self.assertEqual(notebook.status_text(), "gpuwire: waits at gpu7: place 3 (GPUs)")
                answers.update(queue=([other], ""), run=(room, ""))
                self.assertEqual(notebook.status_text(),
                                 "gpuwire: no session yet; gpu7 has room for one\n"
                                 "no session yet; one would wait at gpu8, at place 2, for about 90 s\n"
                                 "no session at gpu9: connection refused")
                answers["queue"] = (None, "gpu7: connection refused")
                self.assertEqual(notebook.status_text(), "gpuwire: gpu7: connection refused")
                os.environ["GPUWIRE_SERVER"] = "gpu7,gpu8"
                answers["queue"] = ([{"server": "gpu7", "answer": []}, {"server": "gpu8", "answer": [mine]}], "")
                self.assertIn("session 4 at gpu8: running", notebook.status_text())
        with mock.patch.dict(os.environ):
            os.environ.pop("GPUWIRE_SERVER", None)
            self.assertIn("no server is named", notebook.status_text())

    def test_a_shell_gets_the_magic_and_loses_it_again(self):
        shell = FakeShell()
        before = os.environ.get(notebook.MESSAGES)
        with mock.patch.object(notebook, "status_text", lambda: "gpuwire: session 4"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                notebook.load_ipython_extension(shell)
                notebook.load_ipython_extension(shell)  # a second time changes nothing
            self.assertEqual(out.getvalue(), "gpuwire: session 4\n")
            path = os.environ[notebook.MESSAGES]
            self.assertTrue(os.path.exists(path))
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertEqual(shell.magic(""), "gpuwire: session 4\n")
            self.assertIn("usage: %gpuwire", shell.magic("fly"))
        self.assertEqual(len(shell.events.callbacks["pre_run_cell"]), 1)
        notebook.unload_ipython_extension(shell)
        notebook.unload_ipython_extension(shell)
        self.assertEqual(os.environ.get(notebook.MESSAGES), before)
        self.assertFalse(os.path.exists(path))
        self.assertEqual((shell.events.callbacks["pre_run_cell"], shell.magics_manager.magics["line"]), ([], {}))

    def test_without_ipython_a_line_is_printed(self):
        with mock.patch.dict(sys.modules, {"IPython": None, "IPython.display": None}):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertIsNone(notebook.show_in_notebook("gpuwire: waiting", None))
        self.assertEqual(out.getvalue(), "gpuwire: waiting\n")

    def test_ipython_itself_loads_it_and_displays_lines_in_place(self):
        sys.path.extend(ipython.folders(BUILD))
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        published = []
        self.addCleanup(InteractiveShell.clear_instance)
        shell.display_pub.publish = lambda data, **more: published.append((data, more))
        with mock.patch.object(notebook, "status_text", lambda: "gpuwire: session 4"):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                shell.run_line_magic("load_ext", "gpuwire_notebook")
                shell.run_line_magic("gpuwire", "")
        self.addCleanup(shell.run_line_magic, "unload_ext", "gpuwire_notebook")
        self.assertEqual(out.getvalue(), "gpuwire: session 4\n" * 2)
        self.write("17 waiting <b>\n")
        wait_until(lambda: published)
        data, more = published[0]
        self.assertEqual(data, {"text/plain": "gpuwire: waiting <b>",
                                "text/html": "<pre>gpuwire: waiting &lt;b&gt;</pre>"})
        self.write("17 admitted\n")
        wait_until(lambda: len(published) == 2)
        self.assertTrue(published[1][1]["update"])
        self.assertEqual(published[1][1]["transient"], more["transient"])


if __name__ == "__main__":
    unittest.main()
