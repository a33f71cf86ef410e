"""The packages, unpacked into an empty folder: programs find each other there, a server and a program of its run from
there, nothing is left behind."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE, VERSION = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_SOURCE"], os.environ["GPUWIRE_VERSION"]
sys.path.insert(0, os.path.join(SOURCE, "test", "support"))
import debian_tools  # noqa: E402
from gpuwire_server import Server  # noqa: E402
from shipped_files import binaries, faults  # noqa: E402

LIMIT_SECONDS = 400
CLIENT_BYTES_MAX = 17 << 20
SERVICE_USER = 4242


def tree(folder):
    """Returns all files and links below a folder, relative to it."""
    return sorted(
        os.path.relpath(os.path.join(path, name), folder) for path, _, names in os.walk(folder) for name in names)


def size_of(folder):
    return sum(os.lstat(os.path.join(folder, name)).st_size for name in tree(folder))


@unittest.skipUnless(shutil.which("dpkg-deb"),
                     "dpkg-deb is missing: packages are made and unpacked on Debian and its kin")
class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="gpuwire-packages-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.packages = {
            name.split("_")[0]: os.path.join(BUILD, "packages", name)
            for name in os.listdir(os.path.join(BUILD, "packages")) if name.endswith(".deb")
        }
        cls.client, cls.both = os.path.join(cls.folder.name, "client"), os.path.join(cls.folder.name, "both")
        cls.unpack("gpuwire-client", cls.client)
        for package in ("gpuwire-client", "gpuwire-server"):
            cls.unpack(package, cls.both)

    @classmethod
    def unpack(cls, package, root):
        subprocess.run(["dpkg-deb", "-x", cls.packages[package], root], check=True, timeout=LIMIT_SECONDS)

    def field(self, package, name):
        return subprocess.run(["dpkg-deb", "-f", self.packages[package], name], check=True, capture_output=True,
                              text=True, timeout=120).stdout.strip()

    def control(self, package):
        folder = os.path.join(self.folder.name, "control-" + package)
        subprocess.run(["dpkg-deb", "-e", self.packages[package], folder], check=True, timeout=120)
        return folder

    def gpuwire(self, root, *words, **extra):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("GPUWIRE_", "LD_"))}
        return subprocess.run([os.path.join(root, "usr", "bin", "gpuwire"), *words], capture_output=True, text=True,
                              timeout=LIMIT_SECONDS, env=environment, **extra)

    def test_the_client_is_small_and_carries_no_server(self):
        names = tree(self.client)
        # The documents apart.
        programs = sum(size_of(os.path.join(self.client, "usr", name)) for name in ("bin", "lib"))
        self.assertLess(programs, CLIENT_BYTES_MAX)
        self.assertIn("usr/lib/gpuwire/libcuda.so.1", names)
        self.assertFalse([name for name in names if re.search("serve|worker|software", name)])
        self.assertEqual([name for name in names if name.startswith("etc/")], ["etc/gpuwire/client.toml"])
        self.assertEqual(self.field("gpuwire-client", "Depends"), "libc6 (>= %s)" % os.environ["GPUWIRE_OLDEST_GLIBC"])

    def test_a_package_says_how_large_it_is_when_installed(self):
        for package in self.packages:
            root = os.path.join(self.folder.name, "size-of-" + package)
            self.unpack(package, root)
            said, files = int(self.field(package, "Installed-Size")) << 10, tree(root)
            self.assertGreaterEqual(said, size_of(root), package)
            # A file counts in whole KiB, and a folder as one KiB.
            folders = {path for path, _, _ in os.walk(root)}
            self.assertLessEqual(said, size_of(root) + (len(files) + len(folders) << 10), package)

    def test_only_the_front_door_is_in_the_path(self):
        self.assertEqual([name for name in tree(self.both) if name.startswith("usr/bin/")], ["usr/bin/gpuwire"])
        self.assertEqual(self.gpuwire(self.both, "--version").stdout, f"gpuwire {VERSION}\n")

    def test_programs_are_stripped_and_their_symbols_are_apart(self):
        for name in tree(self.both):
            path = os.path.join(self.both, name)
            with open(path, "rb") as file:
                if file.read(4) != b"\x7fELF" or os.path.islink(path):
                    continue
            sections = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True,
                                      timeout=120).stdout
            self.assertNotIn(".debug_line", sections, name)
        symbols = [name for name in os.listdir(os.path.join(BUILD, "packages")) if "dbgsym" in name]
        self.assertEqual(len(symbols), len(self.packages), symbols)

    def test_a_program_runs_from_the_unpacked_packages(self):
        program = os.path.join(BUILD, "examples", "vector_add")
        if not os.path.exists(program):
            self.skipTest("the examples were not built: no nvcc")
        with Server(os.path.join(self.both, "usr"), ["--device", "software", "--module-cache", "none"]) as server:
            # Only the client's package, as on a machine without a server.
            ran = self.gpuwire(self.client, "run", "--server", server.address, "--", program)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr + "".join(server.log))
            info = self.gpuwire(self.client, "info", "--quick", "--server", server.address)
            self.assertIn("gpuwire software device", info.stdout, info.stderr)
            smi = self.gpuwire(self.client, "run", "--server", server.address, "--", "nvidia-smi", "-L")
            self.assertIn("gpuwire software device", smi.stdout, smi.stderr)
            self.assertEqual(server.stop(), 0)
        before = tree(self.both)
        clean = os.path.join(self.folder.name, "clean")
        for package in ("gpuwire-client", "gpuwire-server"):
            self.unpack(package, clean)
        self.assertEqual(before, tree(clean), "running leaves nothing in the installation")

    def test_removing_the_packages_leaves_nothing(self):
        root = os.path.join(self.folder.name, "removed")
        administration = os.path.join(root, "var", "lib", "dpkg")
        os.makedirs(os.path.join(administration, "updates"))
        os.makedirs(os.path.join(administration, "info"))
        for name in ("status", "available"):
            open(os.path.join(administration, name), "w", encoding="ascii").close()
        if os.geteuid() != 0 or not shutil.which("dpkg"):
            self.skipTest("dpkg installs into a folder for root only")
        # The scripts call the system's service manager; this test only checks files.
        dpkg = ["dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless", "--log=/dev/null"]
        environment = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        client = self.packages["gpuwire-client"]
        done = subprocess.run([*dpkg, "--install", client], capture_output=True, text=True, timeout=LIMIT_SECONDS,
                              env=environment, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.gpuwire(root, "--version").stdout, f"gpuwire {VERSION}\n")
        done = subprocess.run([*dpkg, "--purge", "gpuwire-client"], capture_output=True, text=True,
                              timeout=LIMIT_SECONDS, env=environment, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([name for name in tree(root) if not name.startswith("var/lib/dpkg/")], [])

    def test_the_server_package_has_a_service_and_its_user(self):
        unit = os.path.join(self.both, "usr", "lib", "systemd", "system", "gpuwire-server.service")
        with open(unit, encoding="utf-8") as file:
            text = file.read()
        for words in ("Type=notify", "WatchdogSec=", "KillMode=process", "User=gpuwire", "OOMPolicy=continue",
                      "Delegate=memory pids cpu",
                      "ExecStart=/usr/bin/gpuwire serve --device cuda --config /etc/gpuwire/server.toml"):
            self.assertIn(words, text)
        self.assertNotIn("@", text)
        with open(os.path.join(self.both, "usr", "lib", "sysusers.d", "gpuwire.conf"), encoding="utf-8") as file:
            self.assertIn("u gpuwire", file.read())
        self.assertIn(f"gpuwire-client (= {VERSION})", self.field("gpuwire-server", "Depends"))

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "only root becomes another user")
    def test_the_service_runs_as_a_user_of_its_own_on_an_identity_that_root_made(self):
        program = os.path.join(BUILD, "examples", "vector_add")
        if not os.path.exists(program):
            self.skipTest("the examples were not built: no nvcc")
        os.chmod(self.folder.name, 0o711)
        folder = os.path.join(self.folder.name, "service")
        identity, state = os.path.join(folder, "identity"), os.path.join(folder, "state")
        for path in (identity, state):
            os.makedirs(path, 0o700)
            os.chown(path, SERVICE_USER, SERVICE_USER)
        os.chmod(folder, 0o755)
        bundle = os.path.join(folder, "anna.pem")
        for words in (["init"], ["add-tenant", "anna", "--out", bundle]):
            ran = self.gpuwire(self.both, "admin", "--directory", identity, *words)
            self.assertEqual(ran.returncode, 0, ran.stderr)
        configuration = os.path.join(folder, "server.toml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(f'[server]\naudit_log = "{state}/audit.log"\n[tls]\ndirectory = "{identity}"\n[tenants.anna]\n')
        # Replaces the unit: its user, and its variables.
        service = os.path.join(folder, "bin", "gpuwire")
        os.makedirs(os.path.dirname(service))
        with open(service, "w", encoding="utf-8") as file:
            file.write(
                f"#!/bin/sh\nexec setpriv --reuid={SERVICE_USER} --regid={SERVICE_USER} --clear-groups"
                " --bounding-set=-all --no-new-privs env"
                f' HOME={state} XDG_RUNTIME_DIR={state} {self.both}/usr/bin/gpuwire "$@"\n'
            )
        os.chmod(service, 0o755)
        with Server(
                folder,
            ["--device", "software", "--config", configuration, "--module-cache", state + "/modules"]) as server:
            address = "tls://" + server.address.replace("127.0.0.1", "localhost")
            ran = self.gpuwire(self.client, "run", "--server", address, "--identity", bundle, "--", program)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr + "".join(server.log))
            socket, = os.listdir(os.path.join(state, "gpuwire"))
            status = self.gpuwire(self.both, "status", "--control", os.path.join(state, "gpuwire", socket))
            self.assertIn("anna", status.stdout, status.stderr)
            self.assertEqual(server.stop(), 0)

    def test_an_installation_elsewhere_keeps_to_its_folder(self):
        prefix = os.path.join(self.folder.name, "elsewhere")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, capture_output=True,
                       timeout=LIMIT_SECONDS)
        names = tree(prefix)
        self.assertLessEqual(
            {"etc/gpuwire/client.toml", "etc/gpuwire/server.toml", "bin/gpuwire", "share/man/man1/gpuwire.1"},
            set(names))
        with open(os.path.join(prefix, "lib", "systemd", "system", "gpuwire-server.service"), encoding="utf-8") as file:
            self.assertIn(f"ExecStart={prefix}/bin/gpuwire serve --device cuda"
                          f" --config {prefix}/etc/gpuwire/server.toml",
                          file.read())
        ran = subprocess.run([os.path.join(prefix, "bin", "gpuwire"), "serve", "--version"], capture_output=True,
                             text=True, check=True, timeout=120)
        self.assertEqual(ran.stdout, f"gpuwire {VERSION}\n")

    def profile(self):
        return os.path.join(self.both, "usr", "share", "doc", "gpuwire-server", "examples", "apparmor",
                            "gpuwire-server")

    def test_apparmor_understands_the_profile_that_is_an_example(self):
        parser = debian_tools.tool(BUILD, "apparmor_parser", "apparmor")
        base = parser.path("etc", "apparmor.d")
        quiet = os.path.join(self.folder.name, "parser.conf")
        open(quiet, "w", encoding="ascii").close()
        with open(self.profile(), encoding="utf-8") as file:
            text = file.read()
        for name, written, right in (("right", text, True), ("wrong", text.replace("rix,", "rix", 1), False)):
            copy = os.path.join(self.folder.name, name)
            with open(copy, "w", encoding="utf-8") as file:
                file.write(written)
            ran = subprocess.run([parser.program, f"--config-file={quiet}", "-Q", "-K", "-S", "--base", base, copy],
                                 capture_output=True, timeout=LIMIT_SECONDS, check=False,
                                 env={**os.environ, **parser.environment})
            self.assertEqual((ran.returncode == 0, ran.stdout != b""), (right, right), ran.stderr)
            self.assertEqual(re.search(b"(?i)warning|error", ran.stderr) is None, right, ran.stderr)

    def test_the_profile_has_every_path_of_the_table_of_files_and_of_the_service(self):
        with open(self.profile(), encoding="utf-8") as file:
            ruled = {word for line in file for word in line.split("#")[0].split() if word[0] in "/@"}
        with open(os.path.join(SOURCE, "docs", "install.md"), encoding="utf-8") as file:
            table = file.read().partition("## Files")[2].partition("\n## ")[0]
        rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
        listed = {path: who for paths, who in rows for path in re.findall(r"`(/[^`]+)`", paths)}
        servers = [path for path, who in listed.items() if "server" in who or "both" in who]
        self.assertGreater(len(servers), 12)
        unit = os.path.join(self.both, "usr", "lib", "systemd", "system", "gpuwire-server.service")
        with open(unit, encoding="utf-8") as file:
            made = dict(re.findall(r"^(\w+Directory)=(\w+)$", file.read(), re.M))
        places = {"RuntimeDirectory": "/run", "StateDirectory": "/var/lib", "CacheDirectory": "/var/cache",
                  "LogsDirectory": "/var/log"}
        self.assertEqual(set(made), set(places))
        for path in [*servers, *(os.path.join(places[key], name) for key, name in made.items())]:
            with self.subTest(path=path):
                named = path.replace("/proc", "@{PROC}")
                self.assertTrue(ruled & {named, named + "/", named + "/**", os.path.dirname(named) + "/**"}, ruled)
                self.assertIn(path, listed, "the table of docs/install.md lacks a folder of the unit")

    def test_the_shipped_configuration_is_right(self):
        # systemd makes a log folder for the service; here there is none.
        with open(os.path.join(self.both, "etc", "gpuwire", "server.toml"), encoding="utf-8") as file:
            text = file.read().replace("/var/log/gpuwire", self.folder.name)
        copy = os.path.join(self.folder.name, "server.toml")
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text)
        ran = self.gpuwire(self.both, "serve", "--config", copy, "--check-config")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_the_scripts_are_scripts_and_configuration_is_kept_on_removal(self):
        folder = self.control("gpuwire-server")
        for script in ("postinst", "prerm", "postrm"):
            path = os.path.join(folder, script)
            self.assertTrue(os.access(path, os.X_OK), script)
            subprocess.run(["sh", "-n", path], check=True, timeout=120)
        with open(os.path.join(folder, "conffiles"), encoding="ascii") as file:
            self.assertEqual(file.read().split(), ["/etc/gpuwire/server.toml", "/etc/logrotate.d/gpuwire-server"])

    def test_the_slurm_package_has_plugins_scripts_and_a_configuration_that_is_right(self):
        if "gpuwire-slurm" not in self.packages:
            self.skipTest("gpuwire-slurm was not built: no slurm/spank.h")
        root = os.path.join(self.folder.name, "slurm")
        self.unpack("gpuwire-slurm", root)
        names = tree(root)
        for name in ("usr/lib/gpuwire/slurm/prolog.sh", "usr/lib/gpuwire/slurm/sync.py",
                     "usr/lib/systemd/system/gpuwire-slurm-sync.service", "etc/gpuwire/slurm.conf",
                     "usr/share/doc/gpuwire-slurm/examples/plugstack.conf",
                     "usr/share/doc/gpuwire-slurm/examples/slurm.conf"):
            self.assertIn(name, names)
        plugins = sorted(name for name in names if name.endswith(".so"))
        self.assertEqual([os.path.basename(name) for name in plugins], ["job_submit_gpuwire.so", "spank_gpuwire.so"])
        # Every file that the examples and the unit name exists.
        for name in ("usr/share/doc/gpuwire-slurm/examples/plugstack.conf",
                     "usr/share/doc/gpuwire-slurm/examples/slurm.conf",
                     "usr/lib/systemd/system/gpuwire-slurm-sync.service"):
            with open(os.path.join(root, name), encoding="utf-8") as file:
                for path in re.findall(r"/usr/lib/\S*gpuwire[^\s;]*", file.read()):
                    self.assertIn(path.lstrip("/"), names)
        sys.path.insert(0, os.path.join(root, "usr", "lib", "gpuwire", "slurm"))
        import site_configuration  # pylint: disable=import-error,import-outside-toplevel
        site = site_configuration.Site(os.path.join(root, "etc", "gpuwire", "slurm.conf"))
        self.assertEqual([server.address for server in site.servers], ["gpuhost:9750"])
        folder = self.control("gpuwire-slurm")
        with open(os.path.join(folder, "conffiles"), encoding="ascii") as file:
            self.assertEqual(file.read().split(), ["/etc/gpuwire/slurm.conf"])

    def unpacked(self, name):
        """Returns the folder that contains the tarball's only folder."""
        root = os.path.join(self.folder.name, "of-" + name)
        os.makedirs(root)
        tarball = os.path.join(BUILD, "packages", name + ".tar.gz")
        subprocess.run(["tar", "xzf", tarball, "-C", root], check=True, timeout=120)
        self.assertEqual(os.listdir(root), [name])
        return root

    def test_the_servers_tarball_has_the_client_with_it_and_runs_from_wherever_it_is_unpacked(self):
        name = f"gpuwire-server-{VERSION}-x86_64"
        folder = os.path.join(self.unpacked(name), name)
        self.assertEqual(faults(folder, os.environ["GPUWIRE_OLDEST_GLIBC"]), [])
        with Server(folder, ["--device", "software", "--module-cache", "none"]) as server:
            ran = subprocess.run([os.path.join(folder, "bin", "gpuwire"), "info", "--quick", "--server",
                                  server.address], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
            self.assertIn("gpuwire software device", ran.stdout, ran.stderr)
            self.assertEqual(server.stop(), 0)

    def test_every_file_of_the_packages_runs_with_the_promised_glibc_and_what_is_in_them(self):
        self.assertGreater(len(list(binaries(self.both))), 12)
        self.assertEqual(faults(self.both, os.environ["GPUWIRE_OLDEST_GLIBC"]), [])
        depends = self.field("gpuwire-server", "Depends")
        self.assertEqual(re.findall(r"lib[^,]*", depends), ["libc6 (>= %s)" % os.environ["GPUWIRE_OLDEST_GLIBC"]])

    def test_the_documents_are_in_the_client_and_their_links_lead_to_each_other(self):
        folder = os.path.join(self.client, "usr", "share", "doc", "gpuwire-client")
        wanted = {os.path.relpath(os.path.join(path, name), SOURCE)
                  for path, _, names in os.walk(os.path.join(SOURCE, "docs")) for name in names}
        self.assertGreater(len(wanted), 20)
        self.assertLessEqual(wanted | {"README.md", "CHANGELOG.md", "LICENSE"}, set(tree(folder)))
        for name in ("README.md", os.path.join("docs", "README.md"), os.path.join("docs", "install.md")):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                for link in re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)", file.read()):
                    where = os.path.normpath(os.path.join(folder, os.path.dirname(name), link))
                    self.assertTrue(os.path.exists(where) or link == "CONTRIBUTING.md", f"{name}: {link}")

    def test_the_tarball_runs_from_wherever_it_is_unpacked(self):
        top = f"gpuwire-client-{VERSION}-x86_64"
        root = self.unpacked(top)
        self.assertFalse([name for name in tree(root) if re.search("serve|worker|software", name)])
        gpuwire = os.path.join(root, top, "bin", "gpuwire")
        link = os.path.join(self.folder.name, "gpuwire")
        os.symlink(gpuwire, link)
        for name in (gpuwire, link):
            ran = subprocess.run([name, "run", "-s", "nowhere:1", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"],
                                 capture_output=True, text=True, timeout=120, check=True)
            self.assertEqual(
                ran.stdout.split(":")[0].strip(), os.path.join(os.path.realpath(root), top, "lib", "gpuwire"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
