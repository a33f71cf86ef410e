"""Man pages and completions of what the build has made. usage: make_manual.py BUILD_FOLDER SOURCE_FOLDER"""

import json
import os
import re
import subprocess
import sys

import completions
import markdown_page
import roff

# `top` and `usage` are in both packages, and the server's package depends on the client's.
CLIENT = ("run", "shell", "env", "attach", "detach", "info", "queue", "end", "suspend", "resume", "top", "usage")
# The documents that describe a file: page, package, text of NAME.
CONFIGURATIONS = {
    "gpuwire-server.toml": ("docs/configuration.md", "server", "the configuration of a gpuwire server"),
    "gpuwire-client.toml": ("docs/client_configuration.md", "client", "the configuration of gpuwire's client"),
}
FRONT_DOOR = "CUDA programs on machines without a GPU"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "LC_ALL": "C"}).stdout


def write(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def front_door_page(text, release, others):
    """gpuwire(1), from its help."""
    usage, commands = re.search(r"Usage: (.*?)\n\nCommands:\n(.*?)\n\n", text, re.S).groups()
    entries = [line.split(None, 1) for line in commands.splitlines()]
    parts = [
        roff.header("gpuwire", 1, release),
        roff.section("Name", f"gpuwire \\- {roff.escaped(FRONT_DOOR)}"),
        roff.section("Synopsis", "\n.br\n".join(roff.bold(line.strip()) for line in usage.splitlines())),
        roff.section("Description", roff.escaped(text.split("\n")[0])),
        roff.section("Commands",
                     "\n".join(f".TP\n{roff.bold(name)}\n{roff.escaped(summary)}" for name, summary in entries)),
        roff.section("See also",
                     ", ".join(f"{roff.bold(other)}({number})" for other, number in others if other != "gpuwire"))
    ]
    return "\n".join(parts) + "\n"


def main(build, source):
    gpuwire = os.path.join(build, "bin", "gpuwire")
    text = output(gpuwire, "--help")
    release = output(gpuwire, "--version").split()[1]
    summaries = dict(re.findall(r"^  (\w+) +(\S.*)$", text, re.M))
    commands = []
    for name in summaries:
        described = json.loads(output(gpuwire, name, "--describe"))
        commands.append({**described, "command": name, "full_name": described["name"]})
    # `ps` is another name of `queue`, and has its page there.
    own_pages = [one for one in commands if one["full_name"] == "gpuwire " + one["command"]]
    pages = ([("gpuwire", 1)] + [("gpuwire-" + one["command"], 1) for one in own_pages]
             + [(name, 5) for name in CONFIGURATIONS])
    share = os.path.join(build, "share")
    write(os.path.join(share, "client", "man", "man1"), "gpuwire.1", front_door_page(text, release, pages))
    for command in own_pages:
        package = "client" if command["command"] in CLIENT else "server"
        write(os.path.join(share, package, "man", "man1"), f"gpuwire-{command['command']}.1",
              roff.command_page(command, summaries[command["command"]], release, pages))
    for name, (document, package, summary) in CONFIGURATIONS.items():
        with open(os.path.join(source, document), encoding="utf-8") as file:
            write(os.path.join(share, package, "man", "man5"), name + ".5",
                  markdown_page.configuration_page(name, summary, file.read(), release, pages))
    write(os.path.join(share, "client", "bash-completion", "completions"), "gpuwire", completions.bash(commands))
    write(os.path.join(share, "client", "zsh", "vendor-completions"), "_gpuwire", completions.zsh(commands, summaries))
    write(os.path.join(share, "client", "fish", "vendor_completions.d"), "gpuwire.fish",
          completions.fish(commands, summaries))


if __name__ == "__main__":
    main(*sys.argv[1:3])
