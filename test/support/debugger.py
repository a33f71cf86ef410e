"""Traces a program as a debugger does, under a debugger's name, and continues it after every stop.

usage: debugger.py NAME COMMAND [ARGUMENT...]     its exit status is the program's
"""

import ctypes
import os
import signal
import sys

PR_SET_NAME = 15
PTRACE_TRACEME, PTRACE_CONT = 0, 7
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


def trace(name, command):
    LIBC.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    child = os.fork()
    if child == 0:
        LIBC.ptrace(PTRACE_TRACEME, 0, None, None)
        os.execvp(command[0], command)
    while True:
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        if os.WIFSIGNALED(status):
            return 128 + os.WTERMSIG(status)
        stopped_by = os.WSTOPSIG(status)
        # The stop of each execve() is the debugger's own.
        LIBC.ptrace(PTRACE_CONT, child, None, 0 if stopped_by == signal.SIGTRAP else stopped_by)


if __name__ == "__main__":
    sys.exit(trace(sys.argv[1], sys.argv[2:]))
