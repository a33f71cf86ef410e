"""A real nginx in front of the web page, with the configuration of docs/web_page.md and TLS."""

import os
import pwd
import re
import socket
import subprocess

from loopback_ports import LoopbackPorts
from support import BUILD, HERE, RUN_LIMIT_SECONDS, wait_until
import debian_tools

DOCUMENT = os.path.join(HERE, "..", "..", "docs", "web_page.md")
PACKAGES = "nginx libpcre2-8-0"
DOCUMENTED = "http://127.0.0.1:9752/"  # the page's address in the document

# The global part of nginx's configuration, around a site's own. Without `user root`, an nginx that root starts changes
# to a user that cannot read a test's files.
CONFIGURATION = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
{locations}
    }}
}}
"""


def documented_location():
    """Returns the location of the document's configuration for nginx."""
    with open(DOCUMENT, encoding="utf-8") as file:
        location, = re.findall(r"```nginx\n(.*?)```", file.read(), re.DOTALL)
    return location


class Proxy:
    """nginx with one location for each page: {path: address}. Skips the test, with the reason, where there is none.

    `address` is HOST:PORT of the proxy, which speaks HTTPS only."""

    def __init__(self, test, folder, pages, certificate, key):
        tool = debian_tools.tool(BUILD, "nginx", PACKAGES)
        location = documented_location()
        test.assertEqual((location.count(DOCUMENTED), location.count("/gpus/")), (1, 1), location)
        ports = LoopbackPorts()
        test.addCleanup(ports.close)
        port = ports.take()
        self.address = f"127.0.0.1:{port}"
        user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
        file = os.path.join(folder, "nginx.conf")
        with open(file, "w", encoding="ascii") as out:
            out.write(CONFIGURATION.format(
                user=user, folder=folder, port=port, certificate=certificate, key=key,
                locations="".join(location.replace(DOCUMENTED, f"http://{address}/").replace("/gpus/", path)
                                  for path, address in pages.items())))
        self.process = subprocess.Popen([tool.program, "-p", folder, "-e", "stderr", "-c", file],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True, env={**os.environ, **tool.environment})
        test.addCleanup(self.process.communicate, timeout=RUN_LIMIT_SECONDS)
        test.addCleanup(self.process.terminate)
        wait_until(lambda: self.listens(test, port), RUN_LIMIT_SECONDS, "nginx to listen")

    def listens(self, test, port):
        if self.process.poll() is not None:
            test.fail("nginx has ended: " + self.process.stderr.read())
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
