"""Drives a headless Chromium of this system's Debian over its DevTools protocol, on a pair of pipes. It may have client
certificates, and authorities that it trusts."""

import base64
import json
import os
import subprocess
import tempfile
import unittest

from support import BUILD, RUN_LIMIT_SECONDS, wait_until
import debian_tools

# The libraries are those missing in a Debian 12 without a desktop.
PACKAGES = ("chromium chromium-common libdouble-conversion3 libogg0 libflac12 libharfbuzz-subset0 libminizip1 "
            "libopenh264-7 libopenjp2-7 libopus0 libasyncns0 libmp3lame0 libmpg123-0 libvorbis0a libvorbisenc2 "
            "libsndfile1 libpulse0 libxnvctrl0 libcolord2 libepoxy0 libwayland-cursor0 libwayland-egl1 libgtk-3-0")
COMMANDS, ANSWERS = 3, 4  # the descriptors of --remote-debugging-pipe
# A profile in which Chromium shows its certificate to every site instead of asking its user.
SHOWS_CERTIFICATE = {"profile": {"content_settings": {"exceptions": {"auto_select_certificate": {
    "*,*": {"setting": {"filters": [{}]}}}}}}}
PASSWORD = "of the file"  # of a PKCS#12 file that has to have one


class Certificates:
    """Puts certificates into the database (of NSS) in a browser's home."""

    def __init__(self, home):
        self.folder = os.path.join(home, ".pki", "nssdb")
        os.makedirs(self.folder)
        self.tools = {name: debian_tools.tool(BUILD, name, "libnss3-tools") for name in ("certutil", "pk12util")}
        self.run("certutil", "-N", "--empty-password")

    def run(self, name, *words):
        tool = self.tools[name]
        subprocess.run([tool.path("usr", "bin", name), "-d", "sql:" + self.folder, *words], check=True,
                       capture_output=True, timeout=RUN_LIMIT_SECONDS, env={**os.environ, **tool.environment})

    def trust(self, certificate):
        self.run("certutil", "-A", "-n", os.path.basename(certificate), "-t", "C,,", "-i", certificate)

    def own(self, bundle):
        """`bundle`: a file of key and certificate, as `gpuwire admin add-tenant` writes it."""
        file = os.path.join(self.folder, "own.p12")
        subprocess.run(["openssl", "pkcs12", "-export", "-in", bundle, "-out", file, "-passout", "pass:" + PASSWORD],
                       check=True, capture_output=True, timeout=RUN_LIMIT_SECONDS)
        self.run("pk12util", "-i", file, "-W", PASSWORD)


class Chromium:
    """One browser with one page. Without Chromium it skips the test, with the reason."""

    def __init__(self, trusted=None, own=None):
        """`trusted`: the file of an authority; `own`: of the certificate that the browser shows, with its key."""
        tool = debian_tools.tool(BUILD, "chromium", PACKAGES)
        program = tool.path("usr", "lib", "chromium", "chromium")
        libraries = tool.environment.get("LD_LIBRARY_PATH", "")
        libraries += f":{libraries}/pulseaudio" if libraries else ""
        self.home = tempfile.TemporaryDirectory(prefix="gpuwire-chromium-")
        if trusted:
            certificates = Certificates(self.home.name)
            certificates.trust(trusted)
            if own:
                certificates.own(own)
                os.mkdir(os.path.join(self.home.name, "Default"))
                with open(os.path.join(self.home.name, "Default", "Preferences"), "w", encoding="ascii") as file:
                    json.dump(SHOWS_CERTIFICATE, file)
        command_reads, self.commands = os.pipe()
        self.answers, answer_writes = os.pipe()
        # Bash moves the pipes to Chromium's descriptors; other shells know only descriptors below 10. Chromium's own
        # sandbox needs rights that a container lacks.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" {COMMANDS}<&{command_reads} {ANSWERS}>&{answer_writes}', "bash", program,
             "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--hide-scrollbars", f"--user-data-dir={self.home.name}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(command_reads, answer_writes), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "HOME": self.home.name, "LD_LIBRARY_PATH": libraries})
        os.close(command_reads)
        os.close(answer_writes)
        self.received = b""
        self.number = 0
        self.messages = []  # of the page's console
        self.session = None
        try:
            target = next(one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        except EOFError:
            why = self.process.communicate()[1].strip().splitlines()[:1]
            self.home.cleanup()
            raise unittest.SkipTest(f"Chromium does not start: {why}") from None
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.communicate()
        os.close(self.commands)
        os.close(self.answers)
        self.home.cleanup()

    def ask(self, method, **parameters):
        self.number += 1
        question = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            question["sessionId"] = self.session
        os.write(self.commands, json.dumps(question).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                self.messages.append(json.dumps(answer["params"]))

    def message(self):
        while b"\0" not in self.received:
            piece = os.read(self.answers, 1 << 16)
            if not piece:
                raise EOFError("Chromium has ended")
            self.received += piece
        text, _, self.received = self.received.partition(b"\0")
        return json.loads(text)

    def run(self, script):
        """Returns the value of an expression in the page; None while the page is being replaced."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def wait_for(self, script, what):
        def holds():
            try:
                return self.run(script)
            except RuntimeError:  # a replaced page loses its objects
                return False

        wait_until(holds, RUN_LIMIT_SECONDS, what)

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.wait_for(f'document.readyState === "complete" && location.href.startsWith({json.dumps(url[:20])})', url)

    def look(self, width=1280, height=900, dark=False, scripts=True):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)

    def press(self, key, code):
        text = {"text": "\r"} if key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", key=key, code=key,
                 windowsVirtualKeyCode=code, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path):
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
