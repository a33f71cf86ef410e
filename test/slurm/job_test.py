"""Tests prolog and epilog without Slurm: the choice of a job's server, the content of its folder, the site's
configuration."""

import os
import shutil
import stat
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTER = os.path.join(HERE, "..", "..", "scheduler", "adapters", "slurm")
sys.path.insert(0, ADAPTER)
import job  # noqa: E402  pylint: disable=wrong-import-position
import remote_admin  # noqa: E402  pylint: disable=wrong-import-position
import sync  # noqa: E402  pylint: disable=wrong-import-position
from site_configuration import Site, SiteError, SlurmJob  # noqa: E402  pylint: disable=wrong-import-position


class FakeServer:
    """A server with some GPUs, and jobs that have some of them."""

    def __init__(self, name, gpus, jobs=None, fails=False):
        self.name, self._gpus, self._jobs, self._fails = name, gpus, jobs or {}, fails

    def gpus(self):
        if self._fails:
            raise SiteError(f"server {self.name} does not answer")
        return self._gpus

    def job_tokens(self):
        self.gpus()
        return [{"job": name, "gpus": gpus} for name, gpus in self._jobs.items()]


class Choice(unittest.TestCase):
    """One of several servers."""

    def test_a_job_goes_where_most_gpus_are_free_of_jobs(self):
        servers = [FakeServer("a", 4, {"x": 3}), FakeServer("b", 4, {"y": 1}), FakeServer("c", 1)]
        self.assertEqual(job.choose(servers, 1, "slurm/lab/1").name, "b")

    def test_a_job_that_is_at_a_server_from_another_node_stays_there(self):
        servers = [FakeServer("a", 8), FakeServer("b", 2, {"slurm/lab/1": 2})]
        self.assertEqual(job.choose(servers, 2, "slurm/lab/1").name, "b")

    def test_a_full_server_is_better_than_none_and_a_small_one_is_not(self):
        servers = [FakeServer("small", 1), FakeServer("full", 2, {"x": 2, "y": 2})]
        self.assertEqual(job.choose(servers, 2, "slurm/lab/1").name, "full")

    def test_a_server_that_does_not_answer_is_passed_over_and_reported_if_no_other_is_left(self):
        down, small = FakeServer("down", 8, fails=True), FakeServer("small", 1)
        self.assertEqual(job.choose([down, small], 1, "slurm/lab/1").name, "small")
        with self.assertRaisesRegex(
            SiteError, "down does not answer; server small has 1 GPUs for jobs, and the job needs 2"
        ):
            job.choose([down, small], 2, "slurm/lab/1")

    def test_prologs_of_one_job_that_run_at_the_same_time_choose_the_same_server(self):
        servers = [FakeServer("small", 1), FakeServer("a", 4), FakeServer("b", 4)]
        for number in range(8):
            names = {job.spread(servers, 2, number).name for _ in range(3)}
            self.assertEqual(len(names), 1)
            self.assertNotIn("small", names)
        self.assertEqual({job.spread(servers, 2, number).name for number in range(8)}, {"a", "b"})
        with self.assertRaisesRegex(SiteError, "no server has 9 GPUs"):
            job.spread(servers, 9, 1)


class Files(unittest.TestCase):
    """What is read and written."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name, text=None, mode=0o644):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, mode)
        return path

    def site(self, text):
        return Site(self.path("slurm.conf", text))

    def squeue(self, *lines):
        """Puts a squeue that prints these lines first in PATH."""
        self.path("squeue", "#!/bin/sh\ncat <<'end'\n" + "".join(line + "\n" for line in lines) + "end\n", 0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = self.folder + ":" + before
        self.addCleanup(os.environ.__setitem__, "PATH", before)

    def test_a_file_is_written_for_its_owner_and_never_over_another_or_through_a_link(self):
        path = self.path("token")
        job.write(path, "secret", 0o400)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o400)
        with self.assertRaises(FileExistsError):
            job.write(path, "other", 0o400)
        os.symlink("/nonexistent/elsewhere", self.path("link"))
        with self.assertRaises(FileExistsError):
            job.write(self.path("link"), "other", 0o400)

    def test_a_jobs_gpus_are_its_licences_and_the_arrays_other_elements_do_not_count(self):
        self.squeue("18|gpuwire:4|10:00|main|main", "17|matlab:2,gpuwire:2,x:1|1-02:00:00|physics|main")
        found = SlurmJob(17)
        self.assertEqual(
            (found.gpus(), found.limit_seconds(), found.account, found.partition), (2, 26 * 3600, "physics", "main")
        )
        self.assertEqual((SlurmJob(18).gpus(), SlurmJob(18).limit_seconds()), (4, 600))
        with self.assertRaisesRegex(SiteError, "squeue does not know job 19"):
            SlurmJob(19)

    def test_a_job_without_our_licences_has_no_gpus(self):
        for licences in ("(null)", "mygpuwire:3", "gpuwire2:3", "a:1,b"):
            self.squeue(f"1|{licences}|UNLIMITED|(null)|main")
            self.assertEqual(SlurmJob(1).gpus(), 0, licences)
            self.assertIsNone(SlurmJob(1).limit_seconds())

    def test_a_sites_mistakes_are_told_with_the_file(self):
        for text, words in (
            ("", "there is no .server NAME."),
            ("[server a]\n", "needs address"),
            ("[gpuwire]\ntenants = x\n", "has no tenants"),
            ("[servers]\n", "is neither"),
            ("[gpuwire]\noversubscription = 0\n[server a]\naddress = a\n", "oversubscription must be"),
            ("tenant = x", "File contains no section headers"),
        ):
            with self.assertRaisesRegex(SiteError, "slurm.conf: .*" + words):
                self.site(text)
        with self.assertRaisesRegex(SiteError, "absent.conf"):
            Site(self.path("absent.conf"))

    def test_a_tenant_is_made_of_the_jobs_user_and_never_of_anything_else(self):
        site = self.site("[gpuwire]\ntenant = u-{user}\n[server a]\naddress = a:1\n[class batch]\ntenant = {account}\n")
        self.assertEqual(site.tenant_of("", "anna", "physics", "main"), "u-anna")
        self.assertEqual(site.tenant_of("batch", "anna", "physics", "main"), "physics")
        with self.assertRaisesRegex(SiteError, "is not a tenant name"):
            site.tenant_of("", "anna; x", "physics", "main")

    def test_licences_stand_in_one_line_with_the_sites_others(self):
        site = self.site("[gpuwire]\noversubscription = 1.5\nother_licences = matlab:5\n[server a]\naddress = a:1\n")
        self.assertEqual(sync.licences_line(site, 3), "Licenses=matlab:5,gpuwire:4\n")

    def test_the_clusters_key_has_five_commands(self):
        for words in (
            "gpuwire status --json",
            "/usr/bin/gpuwire admin list --json",
            "gpuwire admin job-token slurm --job slurm/lab/17 --gpus 2 --lifetime 60s",
            "gpuwire admin revoke 0123456789abcdef --end-sessions",
            "gpuwire admin revoke --job slurm/lab/17 --end-sessions",
        ):
            self.assertEqual(remote_admin.allowed(words.split()), words.split()[1:])
        for words in (
            "",
            "sh -c gpuwire",
            "gpuwire",
            "gpuwire admin revoke anna --end-sessions",
            "gpuwire admin add-tenant eve",
            "gpuwire status --json --control /x",
            "gpuwire admin job-token slurm --job slurm/lab/17 --gpus 2 --lifetime 60s --directory /x",
            "gpuwire admin revoke --job anna --end-sessions",
        ):
            self.assertIsNone(remote_admin.allowed(words.split()), words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
