"""`gpuwire admin`: its commands, files and exit codes. usage: admin_test.py BUILD_DIRECTORY"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(sys.argv.pop(1))


class Admin(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.identity = os.path.join(self.folder.name, "identity")

    def run_admin(self, *arguments):
        return subprocess.run(
            [os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", self.identity, *arguments],
            cwd=self.folder.name, capture_output=True, text=True, timeout=120)

    def ok(self, *arguments):
        result = self.run_admin(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def fails(self, status, words, *arguments):
        result = self.run_admin(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(words, result.stderr)
        return result.stderr

    def credentials(self):
        return json.loads(self.ok("list", "--json"))["credentials"]

    def test_two_tenants_from_nothing(self):
        self.assertIn("gpu7.lab.example", self.ok("init", "--host", "gpu7.lab.example"))
        said = self.ok("add-tenant", "alice")
        self.assertIn("[tenants.alice]", said)
        self.ok("add-tenant", "bob", "--token")
        for name in ("alice.pem", "bob.token"):
            self.assertEqual(os.stat(os.path.join(self.folder.name, name)).st_mode & 0o777, 0o600)
        self.assertTrue(os.path.exists(os.path.join(self.folder.name, "ca.pem")))
        self.assertEqual([(one["tenant"], one["kind"], one["counts"]) for one in self.credentials()],
                         [("alice", "certificate", True), ("bob", "token", True)])
        self.assertIn("alice", self.ok("list"))

    def test_the_server_certificate_always_holds_for_this_machine_itself(self):
        self.ok("init", "--host", "gpu7")
        self.assertEqual(
            json.loads(self.ok("list", "--json"))["server"]["hosts"], ["gpu7", "localhost", "127.0.0.1", "::1"])

    def hosts(self):
        return json.loads(self.ok("list", "--json"))["server"]["hosts"]

    def test_renewing_adds_names_and_replaces_them_only_when_that_is_asked_for(self):
        self.ok("init", "--host", "gpu7")
        self.ok("renew", "--host", "gpu8")
        self.assertEqual(self.hosts(), ["gpu7", "localhost", "127.0.0.1", "::1", "gpu8"])
        self.ok("renew")
        self.assertEqual(len(self.hosts()), 5)
        renewed = self.run_admin("renew", "--host", "gpu8", "--replace-hosts")
        self.assertEqual(renewed.returncode, 0)
        self.assertIn("warning: the certificate no longer names gpu7: clients", renewed.stderr)
        self.assertEqual(self.hosts(), ["gpu8", "localhost", "127.0.0.1", "::1"])

    def test_a_tenant_that_the_configuration_knows_needs_no_more_lines(self):
        self.ok("init")
        configuration = os.path.join(self.folder.name, "server.toml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write("[tenants.alice]\nweight = 2\n")
        self.assertNotIn("[tenants", self.ok("add-tenant", "alice", "--config", configuration))
        self.assertIn('server.toml does not have the tenant yet:\n\n    [tenants."b.c"]',
                      self.ok("add-tenant", "b.c", "--config", configuration))

    def test_revoking_by_id_leaves_the_tenants_other_credentials(self):
        self.ok("init")
        self.ok("add-tenant", "alice")
        self.ok("add-tenant", "alice", "--out", "second.pem")
        first, second = self.credentials()
        self.assertIn(first["id"], self.ok("revoke", first["id"], "--end-sessions"))
        self.assertEqual([one["counts"] for one in self.credentials()], [False, True])
        self.assertIn("had been revoked already", self.ok("revoke", first["id"]))

    def test_a_jobs_token_is_made_and_taken_back_with_its_job(self):
        self.ok("init")
        made = json.loads(self.ok("job-token", "alice", "--job", "slurm/lab/17", "--gpus", "2", "--lifetime", "3h"))
        self.assertTrue(made["token"].startswith("gpuwire_"))
        self.assertIn("BEGIN CERTIFICATE", made["ca"])
        second = json.loads(self.ok("job-token", "alice", "--job", "slurm/lab/17", "--gpus", "2"))
        self.assertIn("valid, job slurm/lab/17 (2 GPUs)", self.ok("list"))
        self.assertEqual([(one["job"], one["gpus"]) for one in self.credentials()], [("slurm/lab/17", 2)] * 2)
        revoked = self.ok("revoke", "--job", "slurm/lab/17", "--end-sessions")
        self.assertIn(made["id"], revoked)
        self.assertIn(second["id"], revoked)
        self.assertEqual([one["counts"] for one in self.credentials()], [False, False])
        self.ok("revoke", "--job", "slurm/lab/18")
        self.fails(1, "is not a job name", "job-token", "alice", "--job", "a job")
        self.fails(1, "lifetime", "job-token", "alice", "--job", "17", "--lifetime", "1s")
        self.fails(1, "--lifetime", "job-token", "alice", "--job", "17", "--lifetime", "soon")
        self.fails(2, "--job", "revoke")
        self.fails(2, "--job", "revoke", "alice", "--job", "17")

    def list_of(self, *names):
        path = os.path.join(self.folder.name, "students.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(names) + "\n")
        return path

    def add_users(self, names, *more):
        return self.ok("users", "add", "--tenant", "course", "--from", self.list_of(*names), "--out", "bundles", *more)

    def bundle(self, *path):
        with open(os.path.join(self.folder.name, "bundles", *path), encoding="utf-8") as file:
            return file.read()

    def test_a_list_of_users_becomes_bundles_and_lines_of_configuration(self):
        self.ok("init", "--host", "gpu7.lab.example")
        names = ["student%02d" % number for number in range(30)]
        said = self.add_users(["# the course of autumn", "", *names, "  spaced.out  # last"],
                              "--budget", "10h/month", "--sessions-max", "2")
        self.assertIn("31 made, 0 had one already", said)
        self.assertEqual([(one["tenant"], one["user"], one["counts"]) for one in self.credentials()],
                         [("course", name, True) for name in [*names, "spaced.out"]])
        self.assertEqual(self.bundle("student07", "config.toml"), 'server = "gpu7.lab.example:9750"\n')
        self.assertIn("tenant course, user student07", self.bundle("student07", "identity.pem"))
        for path in ("student07", os.path.join("student07", "identity.pem")):
            mode = os.stat(os.path.join(self.folder.name, "bundles", path)).st_mode & 0o777
            self.assertEqual(mode & 0o077, 0, path)
        lines = self.bundle("server.toml")
        self.assertIn("[tenants.course]\n", lines)
        self.assertIn('[tenants.course.each_user]\nsessions_max = 2\nbudget = "10h/month"\n', lines)
        self.assertIn(lines, said)
        self.assertIn("course/student07", self.ok("list"))

    def test_a_list_that_has_grown_makes_only_the_new_users(self):
        self.ok("init")
        self.add_users(["anna", "ben"], "--token")
        before = self.bundle("anna", "token")
        self.assertIn("BEGIN CERTIFICATE", self.bundle("anna", "ca.pem"))
        said = self.add_users(["anna", "ben", "carol"], "--token")
        self.assertIn("anna has one that is valid until", said)
        self.assertIn("1 made, 2 had one already", said)
        self.assertEqual(self.bundle("anna", "token"), before)
        self.assertEqual([one["user"] for one in self.credentials()], ["anna", "ben", "carol"])
        self.ok("revoke", "course/ben")
        self.assertEqual([one["counts"] for one in self.credentials()], [True, False, True])
        words = self.fails(1, "move it away", "users", "add", "--tenant", "course", "--from", self.list_of("ben"),
                           "--out", "bundles", "--token")
        self.assertIn("0 of 1 users were made", words)
        os.remove(os.path.join(self.folder.name, "bundles", "ben", "token"))
        self.assertIn("1 made", self.add_users(["ben"], "--token"))

    def test_a_list_with_mistakes_makes_nobody(self):
        self.ok("init")
        arguments = ("users", "add", "--tenant", "course", "--out", "bundles", "--from")
        words = self.fails(1, "nothing was made", *arguments, self.list_of("anna", "../ben", "b c", "anna", ".hidden"))
        self.assertIn('line 2: "../ben" is not a user name', words)
        self.assertIn('line 3: "b c" is not a user name', words)
        self.assertIn("line 4: anna stands in line 1 already", words)
        self.assertIn('line 5: ".hidden" is not a user name', words)
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "bundles")))
        self.assertEqual(self.credentials(), [])
        self.fails(1, "has no name", *arguments, self.list_of("# nobody"))
        self.fails(1, "--budget must be GPU time in a month", *arguments, self.list_of("anna"), "--budget", "soon")
        self.fails(1, "nowhere.txt: cannot be read", *arguments, "nowhere.txt")
        self.fails(2, "--tenant", "users", "add", "--from", "students.txt", "--out", "bundles")

    def test_lines_that_the_configuration_has_are_not_said_again(self):
        self.ok("init")
        configuration = os.path.join(self.folder.name, "lab.toml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write('[server]\nlisten = "127.0.0.1:9799"\n[tenants.course.each_user]\nbudget = "10h/month"\n')
        said = self.add_users(["anna"], "--config", configuration, "--budget", "10h/month")
        self.assertNotIn("lacks these lines", said)
        self.assertIn(":9799", self.bundle("anna", "config.toml"))

    def test_a_token_can_go_to_standard_output(self):
        self.ok("init")
        self.assertIn("gpuwire_", self.ok("add-tenant", "bob", "--token", "--out", "-"))
        self.assertEqual(os.listdir(self.folder.name), ["identity"])

    def test_an_impossible_command_is_one_line_and_status_1(self):
        self.fails(1, "identity", "add-tenant", "alice")
        self.ok("init")
        self.fails(1, "there is an identity already", "init")
        self.fails(1, "no tenant, user, serial or token id", "revoke", "carol")
        self.ok("add-tenant", "alice")
        self.assertEqual(self.fails(1, "alice.pem: File exists", "add-tenant", "alice").count("\n"), 1)
        self.fails(1, "is not a tenant name", "add-tenant", "a b")

    def test_a_folder_without_an_identity_says_what_makes_one(self):
        for command in ("list",), ("add-tenant", "anna"), ("add-tenant", "anna", "--token"), ("revoke", "anna"), (
                "renew",), ("job-token", "anna", "--job", "1"):
            self.fails(1, f"there is no identity in {self.identity}: `gpuwire admin --directory {self.identity} init`"
                       " makes one", *command)

    def test_wrong_arguments_are_status_2(self):
        self.fails(2, "the command must be init, add-tenant, users, job-token", *())
        self.fails(2, "NAME", "add-tenant")
        self.fails(2, "--days", "add-tenant", "alice", "--days", "0")
        self.fails(2, "end needs a session's number or --tenant", "end")
        self.fails(2, "--host", "renew", "--replace-hosts")

    def test_a_server_that_does_not_run_is_named(self):
        for command in (("sessions",), ("end", "3"), ("reload",)):
            self.fails(1, "no server answers at /nonexistent/control", *command, "--control", "/nonexistent/control")

    def test_help_is_there_for_every_command(self):
        general = "From nothing to two tenants:"
        for command in ("init", "add-tenant", "job-token", "revoke", "renew", "list", "sessions", "end", "reload"):
            said = self.ok(command, "--help")
            self.assertIn("Usage: gpuwire admin " + command, said)
            self.assertNotIn(general, said)
        self.assertIn("Exit status", self.ok("--help"))
        self.assertIn(general, self.ok("--help"))


if __name__ == "__main__":
    unittest.main()
