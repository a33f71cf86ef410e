"""A program's view of libcuda.so.1: its dependencies, its names, and the functions of cuGetProcAddress.

usage: stub_library_test.py LIBCUDA TOOLKIT_STUB PROC_ADDRESS_RULES
"""

import ctypes
import os
import re
import subprocess
import sys
import unittest

LIBRARY, TOOLKIT_STUB, RULES = sys.argv[1:4]

GRAPHICS = re.compile(r"cu(EGL|GL|VDPAU|GraphicsEGL|GraphicsGL|GraphicsVDPAU|GraphicsResourceGetMappedEgl)")
# The library's part of the 512 bytes of static thread-local storage for all late-loaded libraries
# (glibc.rtld.optional_static_tls).
STATIC_TLS_BYTES_MAX = 256
# All of these are parts of the C library.
ALLOWED_LIBRARIES = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(path):
    names = set()
    for line in output("nm", "-D", "--defined-only", path).splitlines():
        names.add(line.split()[-1].split("@")[0])
    return names


def rules():
    """Yields (name, per_thread, [(version, symbol)...])."""
    with open(RULES, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            legacy, _, per_thread = line.partition("|")
            name, *steps = legacy.split()
            for flag, listed in ((False, steps), (True, per_thread.split() or steps)):
                parsed = []
                for step in listed:
                    version, suffix = re.fullmatch(r"(\d+)(.*)", step).groups()
                    parsed.append((int(version), name + suffix))
                yield name, flag, parsed


# The cancellation points of the C library (pthreads(7)); of stdio's, those that are used not only after errors.
CANCELLATION_POINTS = set("""
accept accept4 aio_suspend clock_nanosleep close connect copy_file_range creat creat64 epoll_pwait epoll_wait fallocate
fallocate64 fclose fdatasync fflush fgetc fgets fopen fopen64 fputs fread freopen fsync fwrite getaddrinfo getc getdelim
gethostbyaddr gethostbyname getline getnameinfo getservbyname lockf mq_receive mq_send msgrcv msgsnd msync nanosleep
open open64 open_by_handle_at openat openat64 opendir pause poll ppoll pread pread64 preadv preadv2 preadv64 pselect
pthread_cond_clockwait pthread_cond_timedwait pthread_cond_wait pthread_join pthread_testcancel pwrite pwrite64 pwritev
pwritev2 pwritev64 read readdir readdir64 readv recv recvfrom recvmmsg recvmsg select sem_clockwait sem_timedwait
sem_wait send sendmmsg sendmsg sendto sigpause sigsuspend sigtimedwait sigwait sigwaitinfo sleep splice sync_file_range
system tcdrain tee usleep vmsplice wait wait3 wait4 waitid waitpid write writev __poll_chk __ppoll_chk __pread_chk
__read_chk __recv_chk __recvfrom_chk __fgets_chk __fread_chk
""".split())


class StubLibrary(unittest.TestCase):
    def test_no_call_is_a_place_where_a_thread_is_cancelled(self):
        points = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../client_stub/driver/process/library",
                              "cancellation_points.txt")
        with open(points, encoding="utf-8") as file:
            put_off = set(file.read().split())
        imported = {line.split()[-1].split("@")[0]
                    for line in output("nm", "-D", "--undefined-only", LIBRARY).splitlines()}
        self.assertEqual(imported & CANCELLATION_POINTS - put_off, set())
    def test_needs_nothing_but_the_c_library(self):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", LIBRARY)))
        self.assertLessEqual(needed, ALLOWED_LIBRARIES)

    def test_asks_the_program_for_nothing_that_is_not_the_c_librarys(self):
        """A program's own function of the same name would replace the library's."""
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", LIBRARY)))
        loaded = dict(re.findall(r"(\S+) => (\S+)", output("ldd", LIBRARY)))
        offered = set().union(*(exported(loaded[name]) for name in needed if name in loaded))
        offered |= exported("/lib64/ld-linux-x86-64.so.2")
        self.assertGreater(len(offered), 1000)
        undefined = output("nm", "-D", "--undefined-only", LIBRARY).splitlines()
        wanted = {line.split()[-1].split("@")[0] for line in undefined}
        # Weak symbols: those of the compiler's start files, and one that only a bug calls.
        weak = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__", "__cxa_pure_virtual"}
        self.assertEqual(sorted(wanted - offered - weak), [])

    def test_leaves_static_thread_local_storage_to_other_libraries(self):
        segment = re.search(r"^\s*TLS\s+(?:0x\w+\s+){4}(0x\w+)", output("readelf", "-lW", LIBRARY), re.MULTILINE)
        self.assertTrue(segment)
        self.assertLessEqual(int(segment[1], 16), STATIC_TLS_BYTES_MAX)

    def test_is_called_libcuda(self):
        self.assertIn("Library soname: [libcuda.so.1]", output("readelf", "-d", LIBRARY))
        link = os.path.join(os.path.dirname(LIBRARY), "libcuda.so")
        self.assertEqual(os.path.realpath(link), os.path.realpath(LIBRARY))

    def test_exports_every_name_of_the_toolkits_stub_and_of_graphics_and_nothing_else(self):
        ours, theirs = exported(LIBRARY), {name for name in exported(TOOLKIT_STUB) if name.startswith("cu")}
        self.assertGreater(len(theirs), 600)
        # NVIDIA's driver exports these, the toolkit's stub does not: programs linked against them have to load.
        graphics = {symbol for name, _, steps in rules() if GRAPHICS.match(name) for _, symbol in steps} - theirs
        self.assertGreater(len(graphics), 30)
        theirs |= graphics | {"cuEventCreateFromEGLSync"}
        self.assertEqual(sorted(theirs - ours), [], "missing")
        self.assertEqual(sorted(ours - theirs), [], "exported, but not part of the driver API")

    def test_loading_starts_no_thread_and_unloading_is_harmless(self):
        code = (
            "import ctypes, os, _ctypes\n"
            f"l = ctypes.CDLL({LIBRARY!r})\n"
            "v = ctypes.c_int(); assert l.cuDriverGetVersion(ctypes.byref(v)) == 0 and v.value == 13000\n"
            "assert len(os.listdir('/proc/self/task')) == 1\n"
            "_ctypes.dlclose(l._handle)\n"
            f"l = ctypes.CDLL({LIBRARY!r}); assert l.cuDriverGetVersion(ctypes.byref(v)) == 0\n"
            "c = ctypes.c_int(); assert l.cuDeviceGetCount(ctypes.byref(c)) == 3\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_without_a_server_there_is_no_device_and_one_line_says_why(self):
        code = (
            f"import ctypes; l = ctypes.CDLL({LIBRARY!r}); assert [l.cuInit(0), l.cuInit(0), l.cuInit(1)] == [100,"
            " 100, 1]"
        )
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUWIRE_")}
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("GPUWIRE_SERVER", done.stderr)

    def test_get_proc_address_follows_every_rule_and_hands_out_exported_addresses(self):
        library = ctypes.CDLL(LIBRARY)
        names = exported(LIBRARY)
        address_of = lambda symbol: ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        resolve = library.cuGetProcAddress_v2
        resolve.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
        asked = 0
        for name, per_thread, steps in rules():
            versions = {version for version, _ in steps} | {version - 1 for version, _ in steps} | {13000}
            for version in versions:
                pointer, status = ctypes.c_void_p(1), ctypes.c_int(-1)
                result = resolve(name.encode(), ctypes.byref(pointer), version, 2 if per_thread else 0,
                                 ctypes.byref(status))
                fitting = [symbol for since, symbol in steps if since <= version]
                wanted = fitting[-1] if fitting else None
                with self.subTest(name=name, version=version, per_thread=per_thread):
                    self.assertEqual(result, 0)
                    if wanted in names:
                        self.assertEqual((pointer.value, status.value), (address_of(wanted), 0))
                    else:
                        self.assertIsNone(pointer.value)
                        self.assertEqual(status.value, 1 if wanted else 2)
                asked += 1
        self.assertGreater(asked, 900)

    def test_functions_of_graphics_are_refused(self):
        library = ctypes.CDLL(LIBRARY)
        for name in ("cuGLInit", "cuGLCtxCreate_v2", "cuGraphicsGLRegisterBuffer", "cuVDPAUGetDevice"):
            self.assertEqual(getattr(library, name)(0, 0, 0), 801, name)

    def test_a_trace_that_cannot_be_written_says_which_and_why(self):
        load = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({LIBRARY!r})"]
        ran = subprocess.run(load, env={**os.environ, "GPUWIRE_TRACE": "/no/such/folder/trace"}, capture_output=True,
                             text=True, timeout=120, check=True)
        self.assertEqual(
            (ran.stdout, ran.stderr),
            ("", "gpuwire: cannot write the trace file /no/such/folder/trace: No such file or directory\n"))

    def test_get_proc_address_at_its_edges(self):
        library = ctypes.CDLL(LIBRARY)
        resolve = library.cuGetProcAddress_v2
        resolve.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]

        def ask(name, version, flags=0):
            pointer, status = ctypes.c_void_p(1), ctypes.c_int(-1)
            result = resolve(name, ctypes.byref(pointer), version, flags, ctypes.byref(status))
            return result, pointer.value, status.value

        self.assertEqual(ask(b"", 0), (0, None, 1))
        self.assertEqual(ask(b"cuMemAlloc_v2", 13000), (0, None, 1))
        self.assertEqual(ask(b"cuMemAlloc", 13010), (1, 1, -1))
        self.assertEqual(ask(b"cuMemAlloc", 1000), (0, None, 2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
