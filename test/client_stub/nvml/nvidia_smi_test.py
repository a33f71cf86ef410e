"""gpuwire's nvidia-smi through a real server with the software device, with its output parsed like by scripts."""

import csv
import io
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "end_to_end"))
from support import BUILD, RUN_LIMIT_SECONDS, ServerCase, nobody_listens, one_line_naming  # noqa: E402

WRONG_USE, NO_PERMISSION, NOT_FOUND, NO_DRIVER = 2, 4, 6, 9
NAME = "gpuwire software device"
UUID = r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class NvidiaSmi(ServerCase):
    server_arguments = ("--software-devices", "2")

    def smi(self, *arguments, address=None):
        # The program is found by PATH, in which `gpuwire run` puts it first.
        command = [
            os.path.join(BUILD, "bin", "gpuwire"), "run", "--server", address or self.server.address, "--",
            "nvidia-smi", *arguments
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)

    def good(self, *arguments):
        ran = self.smi(*arguments)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""), ran.stdout)
        return ran.stdout

    def rows(self, *arguments):
        return list(csv.reader(io.StringIO(self.good(*arguments)), skipinitialspace=True))

    def test_the_table_has_its_width_and_a_line_for_each_device(self):
        lines = self.good().splitlines()
        self.assertEqual({len(line) for line in lines[1:] if line}, {91})
        self.assertRegex(lines[2], r"^\| NVIDIA-SMI \S+ +Driver Version: \S+ +CUDA Version: \d+\.\d+ +\|$")
        devices = [line for line in lines if NAME[:20] in line]
        self.assertEqual([line.split()[1] for line in devices], ["0", "1"])
        self.assertIn("MiB /", "".join(lines))
        self.assertIn("No running processes found", "".join(lines))

    def test_the_list_names_the_devices(self):
        lines = self.good("-L").splitlines()
        self.assertEqual(len(lines), 2)
        for index, line in enumerate(lines):
            self.assertRegex(line, rf"^GPU {index}: {NAME} \(UUID: {UUID}\)$")

    def test_chosen_properties_are_comma_separated(self):
        header, *rows = self.rows(
            "--query-gpu=index,name,gpu_uuid,memory.total,memory.used,compute_cap,temperature.gpu,power.draw",
            "--format=csv")
        self.assertEqual(header, [
            "index", "name", "uuid", "memory.total [MiB]", "memory.used [MiB]", "compute_cap", "temperature.gpu",
            "power.draw [W]"
        ])
        self.assertEqual([row[:2] for row in rows], [["0", NAME], ["1", NAME]])
        for row in rows:
            self.assertRegex(row[2], f"^{UUID}$")
            self.assertRegex(row[3], r"^\d+ MiB$")
            self.assertRegex(row[5], r"^\d+\.\d$")
            self.assertEqual(row[6:], ["[N/A]", "[N/A]"], "sensors that the device lacks")
        bare = self.rows("--query-gpu", "memory.total,count", "--format", "csv,noheader,nounits", "-i", "1")
        self.assertEqual(bare, [[rows[0][3].split()[0], "2"]])

    def test_every_property_of_the_help_can_be_asked(self):
        names = re.findall(r'^"([^"]+)"', self.good("--help-query-gpu"), re.MULTILINE)
        self.assertGreater(len(names), 120)
        header, first, _ = self.rows("--query-gpu=" + ",".join(names), "--format=csv")
        self.assertEqual([name.split(" [")[0] for name in header], names)
        self.assertEqual(len(first), len(names))

    def test_processes_are_a_header_without_lines(self):
        self.assertEqual(self.good("--query-compute-apps=pid,process_name,used_gpu_memory", "--format=csv"),
                         "pid, process_name, used_gpu_memory [MiB]\n")
        self.assertEqual(self.good("--query-compute-apps=pid", "--format=csv,noheader"), "")

    def test_the_report_is_text_with_one_column_of_values(self):
        text = self.good("-q")
        self.assertIn(f"    Product Name                                       : {NAME}\n", text)
        self.assertRegex(text, r"(?m)^Attached GPUs +: 2$")
        self.assertEqual(len(re.findall(r"(?m)^GPU [0-9A-F]{8}:[0-9A-F]{2}:", text)), 2)
        self.assertEqual({line.index(": ") for line in text.splitlines() if ": " in line}, {55})
        part = self.good("-q", "-d", "MEMORY", "-i", "0")
        self.assertIn("FB Memory Usage", part)
        self.assertNotIn("Product Name", part)

    def test_the_report_is_well_formed_xml(self):
        root = xml.etree.ElementTree.fromstring(self.good("-q", "-x"))
        self.assertEqual((root.tag, root.find("attached_gpus").text), ("nvidia_smi_log", "2"))
        gpus = root.findall("gpu")
        self.assertEqual(len(gpus), 2)
        header, *rows = self.rows("--query-gpu=uuid,memory.total,pci.bus_id", "--format=csv")
        for gpu, row in zip(gpus, rows):
            self.assertEqual([gpu.find("uuid").text, gpu.find("fb_memory_usage/total").text, gpu.get("id")], row)
            self.assertEqual(gpu.find("temperature/gpu_temp").text, "N/A")
            self.assertEqual(gpu.find("product_name").text, NAME)

    def test_devices_are_chosen_by_index_uuid_and_address(self):
        _, *rows = self.rows("--query-gpu=uuid,pci.bus_id", "--format=csv")
        for name in ("1", *rows[1]):
            self.assertEqual(self.rows("-i", name, "--query-gpu=index", "--format=csv,noheader"), [["1"]])
        self.assertEqual(self.rows("--id=1,0", "--query-gpu=index", "--format=csv,noheader"), [["0"], ["1"]])
        for name in ("2", "GPU-0", "nonsense", "0,7"):
            ran = self.smi("-i", name)
            self.assertEqual((ran.returncode, ran.stdout), (NOT_FOUND, "No devices were found\n"))

    def test_an_unknown_property_is_named(self):
        for option in ("--query-gpu=name,nonsense", "--query-compute-apps=pid,nonsense"):
            ran = self.smi(option, "--format=csv")
            self.assertEqual((ran.returncode, ran.stdout),
                             (WRONG_USE, 'Field "nonsense" is not a valid field to query.\n\n'))

    def test_wrong_use_is_told(self):
        for arguments in (["--query-gpu=name",
                           "--format=xml"], ["-x"], ["--frobnicate"], ["dmon"], ["-i"], ["-l", "-3"], ["-q", "-d",
                                                                                                       "X"]):
            ran = self.smi(*arguments)
            self.assertEqual(ran.returncode, WRONG_USE, arguments)
            self.assertNotEqual(ran.stdout, "")

    def test_the_card_cannot_be_changed(self):
        for arguments in (["-pm", "1"], ["-pl", "100"], ["--compute-mode=3"], ["-r"], ["-lgc", "300,300"]):
            ran = self.smi("-i", "0", *arguments)
            self.assertEqual(ran.returncode, NO_PERMISSION, arguments)
            self.assertIn("Insufficient Permissions", ran.stdout)

    def test_a_loop_goes_on_until_its_reader_leaves(self):
        command = [
            os.path.join(BUILD, "bin", "gpuwire"), "run", "--server", self.server.address, "--", "nvidia-smi",
            "--query-gpu=index", "--format=csv", "-i", "0", "-lms", "1"
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loop:
            self.assertEqual([loop.stdout.readline() for _ in range(4)], ["index\n", "0\n", "0\n", "0\n"])
            loop.stdout.close()
            self.assertNotEqual(loop.wait(RUN_LIMIT_SECONDS), 0)

    def test_a_server_that_cannot_be_reached_is_named(self):
        address = self.enterContext(nobody_listens())
        ran = self.smi(address=address)
        self.assertEqual(ran.returncode, NO_DRIVER)
        self.assertIn("NVIDIA-SMI has failed because it couldn't communicate with the gpuwire server " + address,
                      ran.stdout)
        self.assertNotIn("driver", ran.stdout)
        self.assertTrue(one_line_naming(ran.stderr, address), ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
