"""Shows in a notebook which gpuwire server it uses, how long it waits there, and what it has.

%load_ext gpuwire_notebook
%gpuwire            the server, and the session there or whether there would be room for one
%gpuwire start      begins the session now, and shows the place in the queue until it has begun
"""

import ctypes
import html
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

INTERVAL_SECONDS = 0.5
COMMAND_SECONDS = 60  # for one answer of the server
MESSAGES = "GPUWIRE_MESSAGES"
GIB = 1 << 30
USAGE = "usage: %gpuwire [start]"


class Messages:
    """The lines that the stub has written since they were read last."""

    def __init__(self):
        file, self.path = tempfile.mkstemp(prefix="gpuwire-notebook-", suffix=".messages")
        os.close(file)
        self._at = 0

    def read(self):
        """Whole lines, without the number of the process that has written them."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        end = text.rfind(b"\n") + 1
        self._at += end
        lines = text[:end].decode("utf-8", "replace").splitlines()
        return [line.partition(" ")[2] for line in lines]

    def remove(self):
        try:
            os.unlink(self.path)
        except OSError:
            pass


class Display:
    """One output for each cell, which is changed in place as long as the cell runs."""

    def __init__(self, show):
        self._show = show  # (text, handle or None) -> handle
        self._handle = None
        self._lock = threading.Lock()

    def line(self, text):
        with self._lock:
            self._handle = self._show(text, self._handle)

    def next_cell(self, *_):
        with self._lock:
            self._handle = None


def show_in_notebook(text, handle):
    """By IPython's display, which a kernel sends to the cell that runs. Without IPython: on standard output."""
    try:
        from IPython.display import display
    except ImportError:
        print(text, flush=True)
        return None
    data = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
    if handle is None:
        return display(data, raw=True, display_id=True)
    handle.update(data, raw=True)
    return handle


class Watcher:
    """Shows the newest message, on a thread of its own."""

    def __init__(self, messages, display, interval=INTERVAL_SECONDS):
        self._messages = messages
        self._display = display
        self._interval = interval
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpuwire-notebook", daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._ending.wait(self._interval):
            self.look()

    def look(self):
        lines = self._messages.read()
        if not lines:
            return
        try:
            self._display.line("gpuwire: " + lines[-1])
        except Exception as error:  # a display that fails must not end the thread
            print(f"gpuwire: {lines[-1]} (it cannot be displayed: {error})", file=sys.stderr)

    def end(self):
        self._ending.set()
        self._thread.join()


def command(name):
    """The words that start a command of the installation that this file is of, else of the one in PATH."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "commands", "gpuwire-" + name)
    if os.access(own, os.X_OK):
        return [own]
    front = shutil.which("gpuwire")
    return [front, name] if front else None


def ask(name, *options):
    """What a command prints as JSON, or a line that says why there is none."""
    words = command(name)
    if words is None:
        return None, "the command gpuwire is not installed here"
    try:
        ran = subprocess.run([*words, *options], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {COMMAND_SECONDS} s"
    except OSError as error:
        return None, f"{words[0]}: {error.strerror}"
    try:
        return json.loads(ran.stdout), ""
    except ValueError:
        return None, ran.stderr.strip() or f"{words[0]} says nothing"


def own_sessions(told, servers):
    """Those of this process and its children, of what `gpuwire ps --json` says, with their servers."""
    lists = [(one.get("server"), one.get("answer")) for one in told] if len(servers) > 1 else [(servers[0], told)]
    for server, sessions in lists:
        for session in sessions or []:
            if session.get("client_pid") == os.getpid() and session.get("host") == socket.gethostname():
                yield server, session


def session_text(server, session):
    if session.get("place"):
        return f"waits at {server}: place {session['place']} ({session.get('waits_for', '')})"
    devices = session.get("devices", [])
    used = sum(device.get("memory_used_bytes", 0) for device in devices)
    return (f"session {session.get('id')} at {server}: {session.get('state')}, {len(devices)} GPU"
            f"{'' if len(devices) == 1 else 's'}, {used / GIB:.1f} GiB used, "
            f"{session.get('gpu_time_ns', 0) / 1e9:.1f} s of GPU time")


def check_text(told):
    lines = []
    for one in told.get("servers", []):
        if one.get("answer") == "yes":
            lines.append(f"no session yet; {one['server']} has room for one")
        elif one.get("answer") == "queued":
            when = f", for about {one['start_in_s']} s" if one.get("start_in_s") is not None else ""
            lines.append(f"no session yet; one would wait at {one['server']}, at place {one['place']}{when}")
        else:
            lines.append(f"no session at {one.get('server')}: {one.get('why') or 'the server does not say'}")
    return "\n".join(lines)


def status_text():
    servers = [name.strip() for name in os.environ.get("GPUWIRE_SERVER", "").split(",") if name.strip()]
    if not servers:
        return "gpuwire: no server is named: start the kernel under `gpuwire run`, or set GPUWIRE_SERVER"
    told, error = ask("queue", "--json")
    if told is None:
        return f"gpuwire: {error}"
    sessions = [session_text(*one) for one in own_sessions(told, servers)]
    if sessions:
        return "\n".join(f"gpuwire: {text}" for text in sessions)
    told, error = ask("run", "--check", "--json")
    return f"gpuwire: {error}" if told is None else "gpuwire: " + check_text(told)


def begin_session(library="libcuda.so.1"):
    """The result of the call that begins it; it is made without the interpreter's lock."""
    return ctypes.CDLL(library).cuInit(0)


class Extension:
    def __init__(self, show=show_in_notebook, begin=begin_session, interval=INTERVAL_SECONDS):
        self._begin = begin
        self.display = Display(show)
        self.messages = Messages()
        self._before = os.environ.get(MESSAGES)
        os.environ[MESSAGES] = self.messages.path
        self.watcher = Watcher(self.messages, self.display, interval)

    def magic(self, line=""):
        """%gpuwire: the server and the session. %gpuwire start: begin it now, and show how it waits."""
        word = line.strip()
        if word == "start":
            return self.start()
        print(status_text() if word in ("", "status") else USAGE)
        return None

    def start(self):
        result = []

        def begin():
            try:
                result.append(self._begin())
            except OSError:  # there is no such library
                pass

        thread = threading.Thread(target=begin, name="gpuwire-start", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(INTERVAL_SECONDS)
        except KeyboardInterrupt:
            print("gpuwire: the program keeps its place in the queue; restart the kernel to give it up")
            return
        self.watcher.look()
        if not result:
            print("gpuwire: libcuda.so.1 cannot be loaded: start the kernel under `gpuwire run`")
        elif result[0] != 0:
            print(f"gpuwire: the session did not begin (CUDA error {result[0]})")
        else:
            print(status_text())

    def end(self):
        self.watcher.end()
        if os.environ.get(MESSAGES) == self.messages.path:
            if self._before is None:
                del os.environ[MESSAGES]
            else:
                os.environ[MESSAGES] = self._before
        self.messages.remove()


_loaded = None


def load_ipython_extension(shell):
    global _loaded
    if _loaded is not None:
        return
    _loaded = Extension()
    shell.register_magic_function(_loaded.magic, "line", "gpuwire")
    shell.events.register("pre_run_cell", _loaded.display.next_cell)
    print(status_text())


def unload_ipython_extension(shell):
    global _loaded
    if _loaded is None:
        return
    shell.events.unregister("pre_run_cell", _loaded.display.next_cell)
    shell.magics_manager.magics["line"].pop("gpuwire", None)
    _loaded.end()
    _loaded = None
