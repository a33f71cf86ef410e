"""Writes text as man pages: escapes characters that roff would interpret."""

import re

PREFORMATTED = ".nf\n{}\n.fi"


def escaped(text):
    """Text of a line: backslashes and hyphens as themselves, no request at the line's beginning."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def bold(text):
    return f"\\fB{escaped(text)}\\fR"


def italic(text):
    return f"\\fI{escaped(text)}\\fR"


def header(name, section, release):
    return f'.TH "{name.upper()}" {section} "" "gpuwire {release}" "gpuwire"\n.nh\n.ad l'


def section(title, body):
    return f'.SH "{title.upper()}"\n{body}'


def paragraphs(text):
    """Blank lines part paragraphs; an indented one stays as it is."""
    out = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        out.append(".PP\n" + (
            PREFORMATTED.format(escaped(block)) if block.startswith(" ") else escaped(" ".join(block.split("\n")))))
    return "\n".join(out)


def footer_sections(text):
    """Converts the end of a help text: "Title:" and indented lines, or "Title: a sentence.", become sections; other
    text goes under NOTES."""
    out, notes = [], []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = [line for line in block.split("\n")]
        titled = re.match(r"([A-Z][A-Za-z ]*):(?: (.*))?$", lines[0])
        if titled and titled[2] is None:
            # A title's lines end where a line is not indented; those are notes.
            indented = [line for line in lines[1:] if line.startswith(" ")]
            notes += [line for line in lines[1:] if not line.startswith(" ")]
            out.append(section(titled[1], PREFORMATTED.format(escaped("\n".join(indented)))))
        elif titled:
            out.append(section(titled[1], escaped(" ".join([titled[2], *lines[1:]]))))
        elif block.strip():
            notes.append(" ".join(lines))
    if notes:
        out.append(section("Notes", "\n.PP\n".join(escaped(line) for line in notes)))
    return "\n".join(out)


def option_entry(option):
    names = ", ".join(bold(name) for name in option["names"])
    if option.get("value"):
        names += " " + italic(option["value"])
    text = option["text"]
    if option.get("values"):
        text += (": " if not text.endswith((".", ":")) else " ") + ", ".join(option["values"])
    if option.get("default"):
        text += f" (default: {option['default']})"
    return f".TP\n{names}\n{escaped(text)}"


def synopsis(command):
    words = [bold(command["full_name"]), "[" + italic("OPTIONS") + "]"]
    words += [italic(positional["names"][-1]) for positional in command["positionals"]]
    if command["commands"]:
        words.append(italic("COMMAND"))
    return " ".join(words)


def command_page(command, summary, release, others):
    """The page of a command (its description with full_name), section 1."""
    name = command["full_name"].replace(" ", "-")
    parts = [header(name, 1, release), section("Name", f"{escaped(name)} \\- {escaped(summary)}")]
    description = command["description"].strip("\n")
    usage = re.match(r"(gpuwire [^\n]*)\n\n", description)  # a description may begin with how it is used
    parts.append(section("Synopsis", bold(usage[1]) if usage else synopsis(command)))
    parts.append(section("Description", paragraphs(description[usage.end():] if usage else description)))
    parts.append(section("Options", "\n".join(option_entry(option) for option in command["options"])))
    for sub in command["commands"]:
        sub = {**sub, "full_name": command["full_name"] + " " + sub["name"]}
        body = [synopsis(sub), ".PP", escaped(sub["description"])]
        body += [
            option_entry(option) for option in sub["positionals"] + sub["options"] if "--help" not in option["names"]
        ]
        if sub["footer"].strip():
            body += [".PP", escaped(" ".join(sub["footer"].split()))]
        parts.append(section(sub["full_name"].split(" ", 1)[1], "\n".join(body)))
    parts.append(footer_sections(command["footer"]))
    parts.append(section("See also",
                         ", ".join(f"{bold(other)}({number})" for other, number in others if other != name)))
    return "\n".join(parts) + "\n"
