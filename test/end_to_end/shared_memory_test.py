"""Sessions of a client on the server's own machine: rings in shared memory, pinned memory in place, and faults of
both."""

import os
import re
import socket
import subprocess
import tempfile
import unittest

import crashes_test
import faults_test
import resume_test
from ring_peer import LIMIT_SECONDS, READ, WRITTEN, RingPeer
from stages import CutsAtStages, EndsAtStages
from support import BUILD, CLIENT_BUILD, FRAME, LONG, PROGRAMS, RUN_LIMIT_SECONDS, ServerCase, run, wait_until
from unreliable_way import UnixWay

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251122"))
GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
SENT = re.compile(r"sent ([\d.]+) (bytes|KiB|MiB|GiB) in \d+ writes, received ([\d.]+) (bytes|KiB|MiB|GiB)")
STAGED = re.compile(r"shared staging: ([\d.]+) (bytes|KiB|MiB|GiB) to the device, ([\d.]+) (bytes|KiB|MiB|GiB) from it")
UNIT = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def account(program, *arguments, server, options=()):
    """Runs a program with --stats; returns its outcome and the account."""
    ran = subprocess.run(
        [GPUWIRE, "run", "--server", server, "--stats", *options, "--",
         os.path.join(PROGRAMS, program), *arguments], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
    return ran, ran.stderr


def travelled(text):
    """Returns an account's sent and received bytes."""
    found = SENT.search(text)
    return float(found[1]) * UNIT[found[2]], float(found[3]) * UNIT[found[4]]


def staged(text):
    """Returns an account's bytes to and from the device through shared staging."""
    found = STAGED.search(text)
    return (float(found[1]) * UNIT[found[2]], float(found[3]) * UNIT[found[4]]) if found else (0, 0)


class LocalServer(ServerCase):
    """A server that listens on a Unix socket, too."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "gpuwire.sock")
        cls.address = "unix:" + cls.path
        cls.addClassCleanup(cls.folder.cleanup)
        arguments = cls.server_arguments
        cls.server_arguments = ("--listen", cls.address, *arguments)
        super().setUpClass()
        cls.server_arguments = arguments

    def way(self, cuts, seed):
        return UnixWay(self.folder.name, self.path, cuts, seed)


class Programs(LocalServer):
    def test_programs_run_as_over_any_other_road(self):
        for program in ("threads", "callbacks", "forks", "copies", "host_memory", "mapped_memory", "pinned_pointers",
                        "managed_memory", "graph_copies", "events", "stream_ordered", "batch_copies", "graph_capture",
                        "graphs_under_way", "late_sources", "frees_wait", "bad_modules", "link", "graph_updates",
                        "graph_events", "graph_host_nodes", "callbacks_locked"):
            with self.subTest(program=program):
                self.assert_passed(run(self.address, program))

    def test_the_account_and_info_say_which_road_was_taken(self):
        for options, road in (((), "shm"), (("--transport", "auto"), "shm"), (("--transport", "shm"), "shm"),
                              (("--transport", "tcp"), "unix")):
            with self.subTest(options=options):
                ran, text = account("copies", server=self.address, options=options)
                self.assert_passed(ran)
                self.assertIn(f"server: {self.address} over {road}, release", text)
        _, text = account("copies", server=self.server.address)
        self.assertIn(f"server: {self.server.address} over tcp, release", text)
        info = subprocess.run([GPUWIRE, "info", "--server", self.address, "--quick"], capture_output=True, text=True,
                              timeout=RUN_LIMIT_SECONDS)
        self.assertRegex(info.stdout, r"(?m)^transport   shm$")

    def test_the_environment_chooses_too(self):
        for name, road in (("tcp", "unix"), ("shm", "shm")):
            ran = run(self.address, "copies", env={**os.environ, "GPUWIRE_TRANSPORT": name, "GPUWIRE_STATS": "1"})
            self.assert_passed(ran)
            self.assertIn(f"over {road}, release", ran.stderr)
        ran = run(self.address, "copies", env={**os.environ, "GPUWIRE_TRANSPORT": "pigeon"})
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("GPUWIRE_TRANSPORT must be auto, tcp, shm or rdma, got pigeon", ran.stderr)

    def test_shared_memory_with_another_machine_is_refused_with_the_reason(self):
        ran = run(self.server.address, "copies", env={**os.environ, "GPUWIRE_TRANSPORT": "shm"})
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("shared memory is for a server on this machine: --server unix:/PATH", ran.stderr)

    def test_pinned_memory_is_copied_where_it_is(self):
        ran, text = account("pinned_in_place", "small", server=self.address)
        self.assert_passed(ran)
        # Of 16 MiB that are copied to and fro five times, only bytes for pageable memory are sent.
        sent, received = travelled(text)
        self.assertLess(sent, 1 << 20)
        self.assertLess(received, 24 << 20)

    def test_pinned_memory_is_right_over_the_other_roads_too(self):
        self.assert_passed(run(self.address, "pinned_in_place", "small",
                               env={**os.environ, "GPUWIRE_TRANSPORT": "tcp"}))
        self.assert_passed(run(self.server.address, "pinned_in_place", "small"))

    def test_small_blocking_copies_of_pinned_memory_bring_what_it_holds_in_their_turn(self):
        for server in (self.address, self.server.address):
            with self.subTest(server=server):
                self.assert_passed(run(server, "pinned_small_copies"))

    def test_small_blocking_copies_of_pinned_memory_wait_for_nothing(self):
        ran, text = account("pinned_small_copies", "loop", server=self.address)
        self.assert_passed(ran)
        # A thousand such copies.
        self.assertLess(int(re.search(r"waits: (\d+)", text)[1]), 50, text)

    def test_pageable_memory_is_copied_once_by_way_of_shared_staging(self):
        for seed in range(SEED, SEED + 2):
            with self.subTest(seed=seed):
                ran, text = account("pageable_copies", str(seed), server=self.address)
                self.assert_passed(ran)
                to_device, from_device = staged(text)
                self.assertGreater(to_device, 64 << 20)
                self.assertGreater(from_device, 32 << 20)
                # Copies too short for staging, and copies without a free block, are sent.
                sent, received = travelled(text)
                self.assertLess(sent, to_device / 4)
                self.assertLess(received, from_device / 4)

    def test_pageable_memory_goes_over_the_other_roads_as_ever(self):
        for server, options in ((self.address, ("--transport", "tcp")), (self.server.address, ())):
            with self.subTest(server=server):
                ran, text = account("pageable_copies", str(SEED), server=server, options=options)
                self.assert_passed(ran)
                self.assertEqual(staged(text), (0, 0))

    def test_copies_return_that_a_standing_stream_leaves_no_staging_for(self):
        ran, text = account("pageable_copies", "standing", server=self.address)
        self.assert_passed(ran)
        self.assertGreater(staged(text)[0], 32 << 20)
        self.assertGreater(travelled(text)[0], 16 << 20)


# A root of its own: the system's programs, the client and the programs that it runs, the folder of the server's socket
# under another name, and of devices those that any container has. The build tree may lie below any of these folders.
CONTAINER = """
set -eu
root=$1 socket=$2 build=$3 client=$4
shift 4
mount -t tmpfs none "$root"
for folder in /usr /bin /lib /lib32 /lib64 /sbin; do
  if [ -L $folder ]; then cp -P $folder "$root/"
  elif [ -d $folder ]; then mkdir "$root$folder"; mount --rbind $folder "$root$folder"; fi
done
mkdir "$root/proc" "$root/dev" "$root/tmp" "$root/socket_of_the_server"
for folder in "$build" "$client"; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
mount --bind "$socket" "$root/socket_of_the_server"
mount -o remount,bind,ro,nosuid,nodev "$root/socket_of_the_server"
mount -t proc proc "$root/proc"
for device in null zero full random urandom; do
  touch "$root/dev/$device"; mount --bind /dev/$device "$root/dev/$device"
done
exec chroot "$root" "$@"
"""
SOCKET_IN_CONTAINER = "unix:/socket_of_the_server/gpuwire.sock"
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc",
           "--uts")


def container_why_not():
    """Returns why no container can be made here; empty: it can."""
    made = subprocess.run([*UNSHARE, "--mount-proc", "true"], capture_output=True, text=True, check=False)
    return made.stderr.strip() if made.returncode else ""


@unittest.skipIf(container_why_not(), "no namespaces can be made here")
class InAContainer(LocalServer):
    """A client that shares only the folder of the server's socket: no devices, no network, no processes, no IPC, and
    other user ids."""

    def container(self, build, client, *command):
        """Returns a command in a container with these two folders."""
        root = tempfile.TemporaryDirectory()
        self.addCleanup(root.cleanup)
        return [*UNSHARE, "sh", "-c", CONTAINER, "container", root.name, self.folder.name, build, client, *command]

    def words(self, program, *arguments):
        return self.container(BUILD, CLIENT_BUILD, os.path.join(CLIENT_BUILD, "bin", "gpuwire"), "run", "--stats",
                              "--server", SOCKET_IN_CONTAINER, "--", os.path.join(PROGRAMS, program), *arguments)

    def test_a_build_tree_may_lie_below_any_folder_and_have_a_space_in_its_path(self):
        for parent in ("/tmp", "/dev/shm", "/usr/src", "/root"):
            if not os.access(parent, os.W_OK):
                continue
            with self.subTest(parent=parent), tempfile.TemporaryDirectory(prefix="gpuwire tree ", dir=parent) as tree:
                with open(os.path.join(tree, "there"), "w", encoding="ascii"):
                    pass
                ran = subprocess.run(self.container(tree, tree, "test", "-e", os.path.join(tree, "there")),
                                     capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
                self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_programs_run_and_share_memory_with_the_server(self):
        for program in (("copies",), ("pinned_in_place", "small"), ("pageable_copies", str(SEED)), ("mapped_memory",),
                        ("forks",), ("callbacks",)):
            with self.subTest(program=program):
                ran = subprocess.run(self.words(*program), capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
                self.assert_passed(ran)
                self.assertIn(f"server: {SOCKET_IN_CONTAINER} over shm, release", ran.stderr)

    def test_pinned_and_pageable_memory_is_shared_as_without_a_container(self):
        ran = subprocess.run(self.words("pinned_in_place", "small"), capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assert_passed(ran)
        self.assertLess(travelled(ran.stderr)[0], 1 << 20)
        ran = subprocess.run(self.words("pageable_copies", str(SEED)), capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assert_passed(ran)
        self.assertGreater(staged(ran.stderr)[0], 64 << 20)

    def test_the_server_hears_of_a_container_that_is_killed(self):
        copier = subprocess.Popen(self.words("endless_copies"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        self.addCleanup(copier.communicate)
        self.addCleanup(copier.kill)
        self.assertEqual(copier.stdout.readline(), "copying\n")
        # The session of the test before may not be over at the server.
        wait_until(lambda: len(self.status()["sessions"]) == 1, LIMIT_SECONDS, "the session, and no other")
        copier.kill()
        wait_until(lambda: not self.status()["sessions"], LIMIT_SECONDS, "the end of the session")


class ByUnixSocket(LocalServer):
    """For suites that use only the server's address."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server.address = cls.address


class FaultsOfRawPeers(faults_test.Faults, ByUnixSocket):
    """On the socket itself, without shared memory."""

    def connection(self):
        link = socket.socket(socket.AF_UNIX)
        self.addCleanup(link.close)
        link.settimeout(LIMIT_SECONDS)
        link.connect(self.path)
        return link


class FaultsInSharedMemory(FaultsOfRawPeers):
    """Raw peers whose frames go through the rings."""

    def greeted(self):
        return RingPeer(super().greeted())

    def test_indices_that_cannot_be(self):
        # Written positions beyond the ring; and a read position beyond the written one.
        for which, value in ((WRITTEN, 1 << 40), (WRITTEN, (1 << 64) - 1), (READ, 1 << 40)):
            with self.subTest(which=which, value=value):
                link = self.greeted()
                link.set_index(link.to_server if which == WRITTEN else link.to_client, which, value)
                link.bell()
                if which == READ:  # the worker checks it when it answers
                    link.sendall(FRAME.pack(1, 0, 0x5747, 1, 0, 2, 0, 0) + b"\0" * 16)
                self.read_to_end(link)

    def test_an_index_that_runs_backwards(self):
        link = self.greeted()
        quarter = link.ring_bytes // 4  # the worker reports these bytes once it has read them
        link.sendall(FRAME.pack(1, 0, 0x5747, 1, 0, quarter // 8 + 1, 0, 0) + bytes(quarter))
        wait_until(lambda: link.index(link.to_server, READ) >= quarter, LIMIT_SECONDS, "the worker has read")
        link.set_index(link.to_server, WRITTEN, 0)
        link.bell()
        self.read_to_end(link)

    def test_a_socket_that_says_what_is_no_bell(self):
        link = self.greeted()
        link.link.sendall(b"\xff" * 64)
        self.read_to_end(link)

    def test_a_client_whose_socket_ends_with_a_frame_half_written(self):
        link = self.greeted()
        link.sendall(FRAME.pack(1, 0, 0x5747, 1, 0, 8, 0, 0)[:20])
        link.link.shutdown(socket.SHUT_RDWR)
        self.read_to_end(link)


class Ends(EndsAtStages, crashes_test.BesideANeighbour, ByUnixSocket):
    ROAD = "shm"
    resume_grace = "300ms"


class Resume(CutsAtStages, LocalServer):
    ROAD = "shm"
    CUTS = resume_test.CUTS if LONG else 40
    # A side that never sleeps needs no doorbell, so a machine with many idle cores makes fewer cuts.
    CUTS_LEAST, RUNS_MOST = CUTS // 8, 72
    resume_grace = "60s"

    def test_programs_notice_nothing_of_sockets_that_are_cut(self):
        # The machine's speed decides where a program's socket is cut, and some programs end before.
        left, number = self.CUTS, 0
        while left > 0 and number < self.RUNS_MOST:
            program = resume_test.PROGRAMS_TO_CUT[number % len(resume_test.PROGRAMS_TO_CUT)]
            seed = resume_test.SEED + number
            with self.subTest(program=program, seed=seed):
                way = self.way(left, seed)
                there, cut = run(self.address, *program), run(way.address, *program)
                way.close()
                left -= way.lost
                self.assertEqual(there.returncode, 0, there.stderr)
                self.assertEqual(cut.returncode, 0, cut.stderr + "".join(self.server.log[-20:]))
                self.assertEqual(cut.stdout, there.stdout)
            number += 1
        print(f"{self.CUTS - left} cuts in {number} programs")
        self.assertGreaterEqual(self.CUTS - left, self.CUTS_LEAST)

    def test_a_session_that_is_cut_at_its_stages_goes_on_in_new_shared_memory(self):
        rounds, cuts = (12, 80) if LONG else (4, 25)
        self.assertGreaterEqual(self.cut_at_stages(rounds=rounds, cuts=cuts, seed=resume_test.SEED), cuts - 1)

    def test_connections_that_are_cut_while_they_carry_it_on_count_for_nothing(self):
        self.assertGreaterEqual(self.cut_at_stages(rounds=4, cuts=10, seed=resume_test.SEED, more=20), 20)

    def test_memory_in_place_is_right_when_its_socket_is_cut(self):
        for seed in range(resume_test.SEED, resume_test.SEED + 4):
            with self.subTest(seed=seed):
                way = self.way(8, seed)
                self.addCleanup(way.close)
                ran, text = account("pinned_in_place", "small", server=way.address)
                self.assert_passed(ran)
                self.assertIn("over shm, release", text)

    def test_staging_is_right_when_its_socket_is_cut(self):
        for seed in range(resume_test.SEED, resume_test.SEED + 4):
            with self.subTest(seed=seed):
                way = self.way(8, seed)
                self.addCleanup(way.close)
                ran, text = account("pageable_copies", str(seed), server=way.address)
                self.assert_passed(ran)
                self.assertGreater(staged(text)[0], 0)
                self.assertIn("over shm, release", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
