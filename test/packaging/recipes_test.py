"""The recipes (docs/recipes): what they say is done on machines made for the test (machine/README.md), with a stand-in
where the product that a recipe is for would be. No block of theirs is left out."""

import configparser
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
import tomllib
import unittest

BUILD, SOURCE, VERSION = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_SOURCE"], os.environ["GPUWIRE_VERSION"]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "machine"))
sys.path.insert(0, os.path.join(SOURCE, "scheduler", "adapters", "slurm"))
from machine import Machine, why_not  # noqa: E402
from site_configuration import Site  # noqa: E402

PROGRAM = os.path.join(BUILD, "test_programs", "neighbour")
PACKAGES = os.path.join(BUILD, "packages")
RECIPES = os.path.join(SOURCE, "docs", "recipes")
ADDRESS = "192.0.2.1"
HOME = "/home/anna"
# Elsewhere: containers_test.py reads the manifests and does what the Dockerfiles say; test/slurm has a Slurm.
TESTED_ELSEWHERE = {"kubernetes.md"}

# Replaces a CUDA program in Python, a kernel or a service: prints the name of its GPU.
PYTHON_PROGRAM = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
name = ctypes.create_string_buffer(256)
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetName(name, len(name), 0) == 0
print(os.getpid(), *sys.argv[1:])
print("GPU:", name.value.decode())
"""

# Replaces ssh and sshd: a tunnel between two machines that share /dev/shm and no network.
TUNNEL = """#!/usr/bin/python3
import os, socket, sys, threading

def pass_on(source, target):
    while piece := source.recv(65536):
        target.sendall(piece)
    target.shutdown(socket.SHUT_WR)

def join(one, other):
    threading.Thread(target=pass_on, args=(one, other), daemon=True).start()
    threading.Thread(target=pass_on, args=(other, one), daemon=True).start()

if sys.argv[1] == "sshd":
    far = socket.socket(socket.AF_UNIX)
    far.bind(sys.argv[2])
    os.chmod(sys.argv[2], 0o666)
    far.listen()
    print("ready", flush=True)
    while True:
        link, _ = far.accept()
        host, port = link.recv(256).decode().split()
        link.sendall(b"y")
        join(link, socket.create_connection((host, int(port))))
assert sys.argv[1:4] == ["-f", "-N", "-L"], sys.argv
here, host, port = sys.argv[4].rsplit(":", 2)
assert sys.argv[5:] == ["gpuhost"], sys.argv
if here.isdigit():
    near = socket.create_server(("127.0.0.1", int(here)))
else:
    near = socket.socket(socket.AF_UNIX)
    near.bind(here)
    near.listen()
if os.fork():
    sys.exit()
for stream in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
while True:
    client, _ = near.accept()
    link = socket.socket(socket.AF_UNIX)
    link.connect("WAY")
    link.sendall(f"{host} {port}".encode())
    link.recv(1)
    join(client, link)
"""


def blocks(name):
    """(kind, text) of every block of a recipe, fenced or indented, in their order."""
    with open(os.path.join(RECIPES, name), encoding="utf-8") as file:
        text = file.read()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$|((?:^ {4}[^\n]*\n)+)", text, re.M | re.S)
    return [(block[1], block[2]) if block[3] is None else ("", textwrap.dedent(block[3])) for block in found]


def package(name, end=""):
    found, = (file for file in os.listdir(PACKAGES) if file.startswith(name) and file.endswith(end))
    return os.path.join(PACKAGES, found)


class Lab(unittest.TestCase):
    """`gpuhost` with a server, and a machine of anna's with the client and her identity."""

    def make(self, **which):
        machine = Machine(**which)
        self.addCleanup(machine.end)
        machine.write("/etc/hosts", f"127.0.0.1 localhost\n{ADDRESS} gpuhost\n")
        machine.put(package("gpuwire-client_"), "/run/client.deb")
        return machine

    def serve(self, configuration=None, with_tls=False, prepare=lambda host: None):
        host = self.make()
        prepare(host)
        host.put(package("gpuwire-server_"), "/run/server.deb")
        host.run("dpkg", "--install", "/run/client.deb", "/run/server.deb")
        host.run("ip", "address", "add", ADDRESS + "/32", "dev", "lo")
        host.run("gpuwire", "admin", "init", "--host", "gpuhost")
        host.run("gpuwire", "admin", "add-tenant", "anna", "--out", "/root/anna.pem")
        host.write("/root/server.toml", configuration or '[server]\nlisten = "0.0.0.0:9750"\n[tenants.anna]\n')
        tls = "" if configuration and not with_tls else '[tls]\ndirectory = "/etc/gpuwire/identity"\n'
        host.write("/root/server.toml", host.read("/root/server.toml") + tls)
        self.start_server(host)
        return host

    def start_server(self, host):
        serving = host.start("gpuwire", "serve", "--config", "/root/server.toml", "--device", "software",
                             "--software-memory", "80GiB", "--module-cache", "none")
        self.addCleanup(host.stop, serving)
        self.assertIn("listening on", serving.stdout.readline())
        self.serving = serving

    def client(self, host, installed=True, same_network=True):
        machine = self.make(of_network=host if same_network else None)
        if installed:
            machine.run("dpkg", "--install", "/run/client.deb")
        machine.add_user("anna")
        machine.write(HOME + "/.config/gpuwire/identity.pem", host.read("/root/anna.pem"), 0o600)
        machine.put(PROGRAM, HOME + "/my_cuda_program", 0o755)
        for name in ("train.py", "serve.py", "ipykernel_launcher.py"):
            machine.write(f"{HOME}/{name}", PYTHON_PROGRAM)
        machine.run("ln", "-sf", "/usr/bin/python3", "/usr/local/bin/python")
        machine.run("chown", "-R", "anna", HOME)
        return machine

    def assert_remote(self, said):
        self.assertIn("gpuwire software device", said)

    def type(self, machine, line, user="anna"):
        return machine.run("sh", "-c", line, user=user)


@unittest.skipIf(why_not(), why_not())
@unittest.skipUnless(os.path.exists(PROGRAM), "the test programs were not built: no nvcc")
class Recipes(Lab):
    def test_environment_module_md_has_two_modules_that_say_the_same_and_make_programs_remote(self):
        (_, lua), (_, tcl), (_, commands) = blocks("environment_module.md")
        acts = r"(prepend|append|set)[-_]?(?:path|env)"
        plain = r'help|whatis|conflict|local root = "/opt/gpuwire"|module-whatis|set root /opt/gpuwire|#%Module1.0'
        says = {"lua": [], "tcl": []}
        for kind, text, form in (("lua", lua, rf'{acts}\("(\w+)", (root \.\. )?"([^"]*)"\)'),
                                 ("tcl", tcl, rf"{acts} (\w+) (\$root)?(\S+)")):
            for line in text.splitlines():
                found = re.fullmatch(form, line)
                self.assertTrue(found or re.match(plain, line), line)
                if found:
                    says[kind].append((found[1], found[2], ("/opt/gpuwire" if found[3] else "") + found[4]))
        self.assertEqual(says["lua"], says["tcl"])

        machine = self.client(self.serve(), installed=False)
        machine.run("mkdir", "/opt/gpuwire")
        machine.put(package(f"gpuwire-client-{VERSION}", ".tar.gz"), "/run/client.tar.gz")
        machine.run("tar", "-xzf", "/run/client.tar.gz", "-C", "/opt/gpuwire", "--strip-components=1")
        exports = []
        for act, name, value in says["lua"]:
            if value.startswith("/"):
                self.assertTrue(os.path.isdir(machine.path(value)), value)
            exports.append({"prepend": f'{name}="{value}${{{name}:+:${name}}}"', "set": f"{name}={value}",
                            "append": f'{name}="${{{name}:+${name}:}}{value}"'}[act])
        load, *typed = commands.splitlines()
        self.assertEqual(load, "module load gpuwire")
        set_up = "".join(f"export {one}; " for one in exports)
        self.assertEqual(len(typed), 2)
        said = [self.type(machine, set_up + line) for line in typed]
        self.assert_remote(said[0])
        self.assertTrue(said[1].endswith("PASSED\n"))

    def test_jupyter_md_s_kernel_is_started_with_the_gpu_and_as_the_process_that_jupyter_started(self):
        (_, install), (_, edit) = blocks("jupyter.md")
        name, = re.findall(r"--name (\S+) --display-name", install)
        machine = self.client(self.serve())
        # The file that ipykernel writes for a user's environment.
        path = f"{HOME}/.local/share/jupyter/kernels/{name}/kernel.json"
        before = ["/usr/bin/env", "python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        machine.write(path, json.dumps({"argv": before, "display_name": "Python (remote GPU)"}))
        machine.run("chown", "-R", "anna", f"{HOME}/.local")
        self.type(machine, edit)
        kernel = json.loads(machine.read(path))
        self.assertEqual(kernel["argv"][-len(before):], before)
        words = shlex.join(word.format(connection_file="/tmp/kernel-1.json") for word in kernel["argv"])
        said = self.type(machine, f"echo $$; exec {words}").splitlines()
        self.assertEqual(said[1], said[0] + " -f /tmp/kernel-1.json")
        self.assert_remote(said[2])

    def test_vscode_md_gives_terminals_and_debuggers_the_remote_gpu(self):
        (_, settings), (_, file) = blocks("vscode.md")
        settings = json.loads(settings)
        self.assertEqual(settings["python.envFile"], "${workspaceFolder}/.env")
        machine = self.client(self.serve())
        of_terminals = " ".join(f"{name}={re.sub(r'[$][{]env:(.*?)[}]', r'${1}', value)}".replace("${1}", "$" + name)
                                for name, value in settings["terminal.integrated.env.linux"].items())
        for line in ("nvidia-smi", "python train.py"):
            self.assert_remote(self.type(machine, f"export {of_terminals}; {line}"))
        self.assert_remote(self.type(machine, f"export {' '.join(file.split())}; python train.py"))

    def docker_run(self, line):
        """Returns what a command `docker run` says: the mounts (source, target), the environment, the other options,
        and the image with the command."""
        words = shlex.split(line.replace("\\\n", " ").replace("$HOME", HOME).replace("$(id -u)", "anna"))
        self.assertEqual(words[:3], ["docker", "run", "--rm"])
        mounts, environment, others, rest = [], {}, {}, words[3:]
        while rest[0].startswith("-"):
            option, value, *rest = rest
            if option == "-e":
                environment.update([value.split("=", 1)])
            elif option == "-v":
                source, target, mode = value.split(":")
                self.assertEqual(mode, "ro")
                mounts.append((source, target))
            else:
                others[option] = value
        return mounts, environment, others, rest

    def copy_between(self, owner, source, container, target):
        """Keeps owner and mode, like a mount."""
        with tempfile.TemporaryDirectory(prefix="gpuwire-mount-", dir="/dev/shm") as folder:
            owner.run("cp", "-a", source, folder + "/it")
            container.run("mkdir", "-p", os.path.dirname(target))
            container.run("cp", "-a", "--no-target-directory", folder + "/it", target)

    def test_unix_socket_md_s_container_has_the_gpu_by_the_socket_s_folder_alone(self):
        (_, configuration), (_, mounted), (_, pod) = blocks("unix_socket.md")
        mounts, environment, others, (_, *command) = self.docker_run(mounted)
        self.assertEqual(others, {"--network": "none", "--user": "anna"})
        of_socket, = (source for source, _ in mounts if source.startswith("/run/"))
        # The lines for Kubernetes have the same folder and socket.
        self.assertIn(f'value: "{environment["GPUWIRE_SERVER"]}"', pod)
        self.assertIn(f"mountPath: {of_socket}, readOnly: true", pod)
        self.assertIn(f"hostPath: {{ path: {of_socket}, type: Directory }}", pod)
        # Both machines have this machine's /dev, so a folder in /dev/shm can be mounted in both.
        shared = tempfile.mkdtemp(prefix="gpuwire-socket-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, shared)
        os.chmod(shared, 0o755)

        def prepare(host):
            host.add_user("anna")
            host.run("mkdir", of_socket)
            host.run("mount", "--bind", shared, of_socket)

        host = self.serve(configuration, with_tls=True, prepare=prepare)
        container = self.make()  # with a network of its own, in which nothing is
        container.add_user("anna")
        for source, target in mounts:
            if source != of_socket:
                self.copy_between(host, source, container, target)
        container.run("mkdir", of_socket)
        container.run("mount", "--bind", shared, of_socket)
        container.run("mount", "-o", "remount,bind,ro", of_socket)
        container.run("mount", "-t", "tmpfs", "none", "/dev/shm")
        container.run("ln", "-sf", "/usr/bin/python3", "/usr/local/bin/python")
        container.write(HOME + "/train.py", PYTHON_PROGRAM)
        container.put(PROGRAM, HOME + "/my_cuda_program", 0o755)
        said = ("env", *(f"{name}={value}" for name, value in environment.items()))
        self.assert_remote(container.run(*said, *command, user="anna"))
        ran = container.try_run(*said, "gpuwire", "run", "--stats", "--", "./my_cuda_program", user="anna")
        self.assertTrue(ran.stdout.endswith("PASSED\n"), ran.stdout + ran.stderr)
        self.assertIn(" over shm", ran.stderr)
        self.assertEqual(container.run(*said, "gpuwire", "info", "--quick", "--json", user="anna").count('"vision"'), 1)
        # A user who is in no `unix_users` is refused.
        container.add_user("ben")
        ran = container.try_run(*said, "gpuwire", "info", "--quick", user="ben")
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("this server requires a certificate or a token", ran.stderr)
        # The folder shows the socket that the next server makes.
        host.stop(self.serving)
        self.start_server(host)
        self.assert_remote(container.run(*said, *command, user="anna"))

    def test_docker_md_s_containers_have_the_gpu_by_what_is_mounted(self):
        (_, mounted), (_, built) = blocks("docker.md")
        host = self.serve()
        owner = self.client(host)
        container = self.client(host, installed=False)
        self.type(container, "rm -r ~/.config")
        mounts, environment, others, (image, *command) = self.docker_run(mounted)
        self.assertEqual(others, {})
        for source, target in mounts:
            self.copy_between(owner, source, container, target)
        container.write("/root/train.py", PYTHON_PROGRAM)
        self.assert_remote(container.run("env", *(f"{name}={value}" for name, value in environment.items()), *command))

        # containers_test.py executes the steps of the file; this test compares the recipe with the lines in the file.
        with open(os.path.join(SOURCE, "packaging", "docker", "client.Dockerfile"), encoding="utf-8") as file:
            said = file.read()
        for line in built.splitlines():
            self.assertIn("# " + line.replace("--rm ", ""), said)
            self.assertIn(image if "build" in line else "pytorch-remote", line)

    def test_systemd_user_unit_md_starts_a_service_with_memory_of_its_own(self):
        (_, unit), (_, commands) = blocks("systemd_user_unit.md")
        parsed = configparser.ConfigParser(interpolation=None)
        parsed.optionxform = str
        parsed.read_string(unit)
        self.assertEqual(set(parsed), {"DEFAULT", "Unit", "Service", "Install"})
        self.assertEqual(parsed["Install"]["WantedBy"], "default.target")
        with open(os.path.join(RECIPES, "systemd_user_unit.md"), encoding="utf-8") as file:
            name, = re.findall(r"systemd/user/(\w+)\.service`", file.read())
        self.assertIn(f"systemctl --user enable --now {name}\n", commands)
        machine = self.client(self.serve())
        self.type(machine, "mkdir -p venv/bin; ln -s /usr/bin/python3 venv/bin/python")
        self.assert_remote(self.type(machine, parsed["Service"]["ExecStart"].replace("%h", HOME)))

    def test_ssh_tunnel_md_reaches_a_server_that_listens_on_its_loopback_alone(self):
        (_, configuration), (_, commands) = blocks("ssh_tunnel.md")
        host = self.serve(configuration)
        machine = self.client(host, same_network=False)
        with tempfile.TemporaryDirectory(prefix="gpuwire-tunnel-", dir="/dev/shm") as folder:
            os.chmod(folder, 0o755)
            way = os.path.join(folder, "way")
            host.write("/run/sshd", TUNNEL, 0o755)
            machine.write("/usr/local/bin/ssh", TUNNEL.replace("WAY", way), 0o755)
            far = host.start("/run/sshd", "sshd", way)
            self.addCleanup(host.stop, far)
            self.assertEqual(far.stdout.readline(), "ready\n")
            tunnel, program = commands.splitlines()
            self.type(machine, tunnel)
            self.assertTrue(self.type(machine, program).endswith("PASSED\n"))
            # Without the tunnel there is no connection, because the machines share no network.
            self.assertNotEqual(machine.try_run("gpuwire", "info", "--server", "gpuhost:9750").returncode, 0)
            with open(os.path.join(RECIPES, "ssh_tunnel.md"), encoding="utf-8") as file:
                said = " ".join(file.read().split())
            other, = re.findall(r"With `(-L \S+)` and `--server (\S+)`", said)
            self.type(machine, tunnel.replace("-L 9750:127.0.0.1:9750", other[0]))
            self.assert_remote(self.type(machine, f"gpuwire info --server {other[1]}"))

    def test_slurm_md_s_files_are_read_and_what_they_name_is_in_the_packages(self):
        shown = blocks("slurm.md")
        host = self.make()
        names = os.listdir(PACKAGES)
        if not any(name.startswith("gpuwire-slurm_") for name in names):
            self.skipTest("gpuwire-slurm was not made: no header of Slurm's")
        for name in ("client", "server", "slurm"):
            host.put(package(f"gpuwire-{name}_"), f"/run/{name}.deb")
        host.run("dpkg", "--install", "--force-depends", "/run/client.deb", "/run/server.deb", "/run/slurm.deb")
        seen = set()
        for kind, text in shown:
            if kind == "toml":
                host.write("/root/server.toml", "[server]\nopen_tenant = \"slurm\"\n" + text)
                host.run("gpuwire", "serve", "--config", "/root/server.toml", "--device", "software", "--check-config")
                self.assertEqual(list(tomllib.loads(text)["tenants"]), ["slurm"])
            elif kind == "ini":
                host.write("/root/site.conf", text)
                site = Site(host.path("/root/site.conf"))
                self.assertEqual([server.address for server in site.servers], ["gpuhost:9750"])
                self.assertEqual(list(site.classes), ["interactive"])
            for path in re.findall(r"/usr/lib/[\w./-]+", text):
                if path.endswith((".sh", ".py", ".so")):
                    self.assertTrue(os.path.exists(host.path(path)), path)
                    seen.add(os.path.basename(path))
            for service in re.findall(r"enable --now (\S+)", text):
                self.assertTrue(os.path.exists(host.path(f"/usr/lib/systemd/system/{service}.service")), service)
        self.assertEqual(seen, {"prolog.sh", "epilog.sh", "controller-epilog.sh", "remote_admin.py", "sync.py",
                                "spank_gpuwire.so"})


class AllRecipes(unittest.TestCase):
    def test_no_recipe_is_without_a_test(self):
        tested = {name.split("_md_")[0].removeprefix("test_") for name in dir(Recipes) if "_md_" in name}
        there = {name.removesuffix(".md") for name in os.listdir(RECIPES)} - {"README"}
        self.assertEqual(tested | {name.removesuffix(".md") for name in TESTED_ELSEWHERE}, there)


if __name__ == "__main__":
    unittest.main(verbosity=2)
