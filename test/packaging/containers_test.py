"""The containers' recipes: the manifests name what there is, and the steps of the Dockerfiles, taken on machines made
for the test (machine/README.md), give a server and a client between which a program runs."""

import contextlib
import glob
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

try:
    import yaml
except ImportError:
    yaml = None

BUILD, SOURCE, VERSION = os.environ["GPUWIRE_BUILD"], os.environ["GPUWIRE_SOURCE"], os.environ["GPUWIRE_VERSION"]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine"))
sys.path.insert(0, os.path.join(SOURCE, "test", "support"))
from gpuwire_server import Server  # noqa: E402
from machine import Machine, why_not  # noqa: E402

PROGRAM = os.path.join(BUILD, "test_programs", "neighbour")
ADDRESS = "192.0.2.1"
LIMIT_SECONDS = 300
AFFINITY_SECONDS_MAX = 86400  # Kubernetes allows no more


def source(*path):
    return os.path.join(SOURCE, *path)


def text_of(*path):
    with open(source(*path), encoding="utf-8") as file:
        return file.read()


def steps(dockerfile):
    """(instruction, arguments) in their order."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text_of("packaging", "docker", dockerfile), flags=re.M))
    return [tuple(line.split(None, 1)) for line in lines.splitlines() if line.strip()]


def sources_of(pattern):
    """Returns the files of COPY and ADD; `build` is the folder of the build, wherever that is."""
    found = glob.glob(re.sub("^build/", BUILD + "/", pattern) if pattern.startswith("build/") else source(pattern))
    assert found, pattern
    return found


class Image:
    """A machine after the steps of a Dockerfile, and its processes."""

    def __init__(self, dockerfile, machine):
        self.machine, self.environment, self.entrypoint, self.command, self.ports = machine, {}, [], [], []
        for instruction, arguments in steps(dockerfile):
            getattr(self, "do_" + instruction.lower())(arguments)

    def do_from(self, _):
        """The machine: one of the system that the packages are for."""

    do_arg = do_stopsignal = do_from

    def do_copy(self, arguments):
        *patterns, target = arguments.split()
        for pattern in patterns:
            for file in sources_of(pattern):
                self.machine.put(file, target + os.path.basename(file) if target.endswith("/") else target)

    def do_add(self, arguments):
        pattern, target = arguments.split()
        for file in sources_of(pattern):
            self.machine.put(file, "/tmp/added.tar.gz")
            self.machine.run("tar", "-xzf", "/tmp/added.tar.gz", "-C", target)

    def do_run(self, command):
        # The machine has no network; it already contains the dependencies of the packages.
        self.machine.run("sh", "-c", command.replace("apt-get update && ", ""))

    def do_env(self, arguments):
        self.environment.update(word.split("=", 1) for word in shlex.split(arguments))

    def do_expose(self, arguments):
        self.ports += [int(port) for port in arguments.split()]

    def do_entrypoint(self, arguments):
        self.entrypoint = yaml.safe_load(arguments)

    def do_cmd(self, arguments):
        self.command = yaml.safe_load(arguments)


def secret_files():
    """Returns the files that the recipe for Kubernetes puts into the server's secret."""
    made, = re.findall(r"secret generic gpuwire-identity (.*)", text_of("docs", "recipes", "kubernetes.md"))
    return re.findall(r"--from-file=(\S+)", made)


def containers(manifest):
    for one in manifest:
        pod = one["spec"] if one["kind"] == "Pod" else one["spec"].get("template", {}).get("spec")
        if pod:
            for container in pod.get("initContainers", []) + pod["containers"]:
                yield pod, container


@unittest.skipUnless(yaml, "python3-yaml is missing")
class Manifests(unittest.TestCase):
    def manifest(self, name):
        return list(yaml.safe_load_all(text_of("packaging", "kubernetes", name)))

    def test_every_mount_is_of_a_volume_and_every_image_of_ours_is_of_this_version(self):
        for name in ("server.yaml", "client.yaml"):
            seen = 0
            for pod, container in containers(self.manifest(name)):
                volumes = {volume["name"] for volume in pod["volumes"]}
                self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
                if container["image"].startswith("REGISTRY/gpuwire-"):
                    seen += 1
                    self.assertEqual(container["image"].rsplit(":", 1)[1], VERSION)
            self.assertGreater(seen, 0)

    def test_files_and_ports_in_the_configuration_of_containers_are_mounted_and_open(self):
        configuration = tomllib.loads(text_of("packaging", "docker", "server.toml"))
        daemon, service = self.manifest("server.yaml")
        server = daemon["spec"]["template"]["spec"]["containers"][0]
        mounts = {mount["mountPath"] for mount in server["volumeMounts"]}
        self.assertIn(configuration["tls"]["directory"], mounts)
        self.assertIn(os.path.dirname(configuration["server"]["audit_log"]), mounts)
        self.assertIn("/etc/gpuwire/server.toml", mounts)
        self.assertIn("/var/cache/gpuwire", mounts)
        ports = {port["containerPort"] for port in server["ports"]}
        self.assertEqual(ports, {int(configuration["server"][key].rsplit(":", 1)[1])
                                 for key in ("listen", "metrics_listen")})
        for key in ("listen", "metrics_listen"):
            self.assertTrue(configuration["server"][key].startswith("0.0.0.0:"))
        self.assertEqual({port["port"] for port in service["spec"]["ports"]} - ports, set())
        exposed, = (arguments for instruction, arguments in steps("server.Dockerfile") if instruction == "EXPOSE")
        self.assertEqual({int(port) for port in exposed.split()}, ports)

    def test_all_connections_of_a_client_reach_one_server(self):
        daemon, service = self.manifest("server.yaml")
        self.assertEqual(service["spec"]["selector"], daemon["spec"]["template"]["metadata"]["labels"])
        self.assertEqual(service["spec"]["selector"], daemon["spec"]["selector"]["matchLabels"])
        self.assertEqual(service["spec"]["sessionAffinity"], "ClientIP")
        self.assertEqual(service["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], AFFINITY_SECONDS_MAX)
        pod, = self.manifest("client.yaml")
        variables = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        names = service["metadata"]
        self.assertEqual(variables["GPUWIRE_SERVER"],
                         f"{names['name']}.{names['namespace']}.svc:{service['spec']['ports'][0]['port']}")


    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "bin", "gpuwire")), "gpuwire was not built")
    def test_a_server_starts_from_the_files_of_the_secret_alone(self):
        daemon, _ = self.manifest("server.yaml")
        copy, = daemon["spec"]["template"]["spec"]["initContainers"]
        self.assertEqual(copy["command"][:2], ["sh", "-c"])
        gpuwire = os.path.join(BUILD, "bin", "gpuwire")
        with tempfile.TemporaryDirectory(prefix="gpuwire-secret-") as folder:

            def path(*names):
                return os.path.join(folder, *names)

            for words in (["init", "--host", "127.0.0.1"], ["add-tenant", "anna", "--out", path("anna.pem")]):
                subprocess.run([gpuwire, "admin", "--directory", path("host"), *words], check=True,
                               capture_output=True, timeout=LIMIT_SECONDS)
            for name in ("secret", "identity"):
                os.mkdir(path(name))
            # A mounted secret has links.
            for name in secret_files():
                os.symlink(path("host", name), path("secret", name))
            script = copy["command"][2].replace("/secret", path("secret")).replace("/identity", path("identity"))
            subprocess.run(["sh", "-c", script], check=True, timeout=LIMIT_SECONDS)
            self.assertEqual(sorted(os.listdir(path("identity"))), sorted(secret_files()))
            self.assertNotIn("ca.key", secret_files())
            configuration = text_of("packaging", "docker", "server.toml")
            for old, new in (("/etc/gpuwire/identity", path("identity")), ("0.0.0.0:9750", "127.0.0.1:0"),
                             ("0.0.0.0:9751", "127.0.0.1:0"), ("/var/log/gpuwire", path())):
                self.assertIn(old, configuration)
                configuration = configuration.replace(old, new)
            with open(path("server.toml"), "w", encoding="utf-8") as file:
                file.write(configuration)
            with Server(BUILD, ["--config", path("server.toml"), "--device", "software", "--module-cache",
                                "none"]) as server:
                asked = subprocess.run([gpuwire, "info", "--quick", "--identity", path("anna.pem"), "--server",
                                        "tls://" + server.address], capture_output=True, text=True,
                                       timeout=LIMIT_SECONDS, check=False)
                self.assertEqual(asked.returncode, 0, asked.stderr + "".join(server.log))
                self.assertIn("\ntenant      anna, ", asked.stdout)

    def test_a_changed_secret_reaches_the_servers_folder(self):
        daemon, _ = self.manifest("server.yaml")
        sync = daemon["spec"]["template"]["spec"]["containers"][1]
        self.assertEqual(sync["command"][:2], ["sh", "-c"])
        with tempfile.TemporaryDirectory(prefix="gpuwire-sync-") as folder:
            for name in ("secret", "identity"):
                os.mkdir(os.path.join(folder, name))

            def path(*names):
                return os.path.join(folder, *names)

            def write(text):
                with open(path("secret", "register.json.new"), "w", encoding="ascii") as file:
                    file.write(text)
                os.rename(path("secret", "register.json.new"), path("secret", "register.json"))

            def read():
                with contextlib.suppress(FileNotFoundError), \
                        open(path("identity", "register.json"), encoding="ascii") as file:
                    return file.read()

            write("old")
            script = sync["command"][2].replace("/secret", path("secret")).replace("/identity", path("identity"))
            running = subprocess.Popen(["sh", "-c", script.replace("sleep 10", "sleep 0.01")])
            try:
                for text in ("old", "new"):
                    write(text)
                    limit = time.monotonic() + LIMIT_SECONDS
                    while read() != text:
                        self.assertLess(time.monotonic(), limit)
                    self.assertEqual(os.stat(path("identity", "register.json")).st_mode & 0o777, 0o600)
            finally:
                running.kill()
                running.wait()

    def test_the_recipe_makes_what_the_manifests_ask_for(self):
        commands = re.findall(r"^    (kubectl .*)$", text_of("docs", "recipes", "kubernetes.md"), re.M)
        daemon, service = self.manifest("server.yaml")
        pod, = self.manifest("client.yaml")
        namespace = daemon["metadata"]["namespace"]
        self.assertEqual(service["metadata"]["namespace"], namespace)
        wanted = {("namespace", namespace)}
        for one, where in ((daemon["spec"]["template"], namespace), (pod, "default")):
            for volume in one["spec"]["volumes"]:
                if "secret" in volume:
                    wanted.add(("secret", where, volume["secret"]["secretName"]))
                if "configMap" in volume:
                    wanted.add(("configmap", where, volume["configMap"]["name"]))
        made = set()
        for command in commands:
            if created := re.fullmatch(r"kubectl create namespace (\S+)", command):
                made.add(("namespace", created[1]))
            elif created := re.fullmatch(
                    r"kubectl (?:-n (\S+) )?create (secret generic|configmap) (\S+)((?: --from-file=\S+)+)", command):
                made.add((created[2].split()[0], created[1] or "default", created[3]))
                files = re.findall(r"--from-file=(\S+)", created[4])
                if created[3] == "gpuwire-identity":  # the files that a server reads, without those that make tenants
                    self.assertEqual(files, secret_files())
                    self.assertEqual(files, ["ca.pem", "server.pem", "server.key", "register.json"])
                elif "=" not in files[0]:
                    self.assertEqual(files, ["packaging/docker/server.toml"])
            else:
                applied = re.fullmatch(r"kubectl apply -f packaging/kubernetes/(server|client).yaml", command)
                self.assertTrue(applied, command)
                where = namespace if applied[1] == "server" else "default"
                self.assertLessEqual({one for one in wanted if one[1] == where}, made)
        self.assertEqual(made, wanted)


@unittest.skipUnless(yaml, "python3-yaml is missing")
@unittest.skipIf(why_not(), why_not())
@unittest.skipUnless(os.path.exists(PROGRAM), "the test programs were not built: no nvcc")
class Dockerfiles(unittest.TestCase):
    def image(self, dockerfile, **which):
        machine = Machine(**which)
        self.addCleanup(machine.end)
        machine.write("/etc/hosts", f"127.0.0.1 localhost\n{ADDRESS} gpuhost\n")
        return Image(dockerfile, machine)

    def test_a_program_of_one_runs_on_the_other(self):
        server = self.image("server.Dockerfile")
        server.machine.run("ip", "address", "add", ADDRESS + "/32", "dev", "lo")
        with tempfile.TemporaryDirectory(prefix="gpuwire-identity-") as folder:
            # An identity of the host's, mounted: /etc/gpuwire/identity.
            identity, bundle = os.path.join(folder, "identity"), os.path.join(folder, "anna.pem")
            for words in (["init", "--host", "gpuhost"], ["add-tenant", "anna", "--out", bundle]):
                subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", identity, *words],
                               check=True, capture_output=True, timeout=LIMIT_SECONDS)
            for name in secret_files():
                server.machine.put(os.path.join(identity, name), "/etc/gpuwire/identity/" + name, 0o600)
            serving = server.machine.start(*server.entrypoint, *server.command)
            self.addCleanup(server.machine.stop, serving)
            self.assertIn("listening on 0.0.0.0:9750, 1 x ", serving.stdout.readline())
            server.machine.run("gpuwire", "status")  # readinessProbe of server.yaml

            client = self.image("client.Dockerfile", of_network=server.machine)
            client.machine.put(bundle, "/root/.config/gpuwire/identity.pem", 0o600)
            client.machine.put(PROGRAM, "/root/program", 0o755)
            ran = client.machine.run("env", "GPUWIRE_SERVER=gpuhost:9750", *client.entrypoint, "./program")
            self.assertTrue(ran.endswith("PASSED\n"), ran)
            self.assertIn('"tenant":"anna"', server.machine.read("/var/log/gpuwire/audit.log"))  # of its admission
            self.assertTrue(os.listdir(server.machine.path("/var/cache/gpuwire/modules")))

            # Tests the files that client.yaml copies into its volume, and a start from there.
            client.machine.run("mkdir", "/gpuwire")
            client.machine.run("cp", "-rL", "/opt/gpuwire/.", "/gpuwire")
            ran = client.machine.run("env", "GPUWIRE_SERVER=gpuhost:9750", "/gpuwire/bin/gpuwire", "run", "--",
                                     "./program")
            self.assertTrue(ran.endswith("PASSED\n"), ran)


if __name__ == "__main__":
    unittest.main(verbosity=2)
