"""Converts a page of docs/ to a man page: headings, paragraphs, lists, tables and code, which is all that these pages
contain."""

import re

import roff


def inline(text):
    """Converts emphasis, code and links of one paragraph."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"(`[^`]+`|\*\*[^*]+\*\*|\*[^*]+\*)", text)
    out = []
    for part in parts:
        if part.startswith("`"):
            out.append(roff.bold(part[1:-1]))
        elif part.startswith("**"):
            out.append(roff.bold(part[2:-2]))
        elif part.startswith("*") and part.endswith("*") and len(part) > 2:
            out.append(roff.italic(part[1:-1]))
        else:
            out.append(roff.escaped(part))
    joined = "".join(out)
    return "\\&" + joined if joined[:1] in (".", "'") else joined


def table_entries(lines):
    """Converts a table: the first cell is the term, the others are its text."""
    out = []
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            out = out[:-1]  # the line above it was the heading
            continue
        rest = "; ".join(inline(cell) for cell in cells[1:] if cell)
        out.append(f".TP\n{inline(cells[0])}\n{rest}")
    return "\n".join(out)


def blocks(text):
    """Returns (kind, lines) of each block of the document."""
    found, lines = [], text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif line.startswith("```"):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
            found.append(("code", lines[at + 1:end]))
            at = end + 1
        else:
            kind = "heading" if line.startswith("#") else "table" if line.startswith(
                "|") else "code" if line.startswith("    ") else "list" if re.match(r"(- |\d+\. )", line) else "text"
            end = at + 1
            while kind != "heading" and end < len(lines) and lines[end].strip() and (kind != "text"
                                                                                     or not lines[end].startswith(
                                                                                         ("|", "#", "```"))):
                end += 1
            found.append((kind, lines[at:end]))
            at = end
    return found


def configuration_page(name, summary, document, release, others):
    """A page of section 5."""
    parts = [
        roff.header(name, 5, release),
        roff.section("Name", f"{roff.escaped(name)} \\- {roff.escaped(summary)}"),
        roff.section("Description", "")
    ]
    for kind, lines in blocks(document):
        if kind == "heading":
            if not lines[0].startswith("# "):  # the document's own title is the page's name
                parts.append(roff.section(lines[0].lstrip("# ").strip(), ""))
        elif kind == "code":
            parts.append(".PP\n" + roff.PREFORMATTED.format(roff.escaped("\n".join(lines))))
        elif kind == "table":
            parts.append(table_entries(lines))
        elif kind == "list":
            items = re.split(r"\n(?=- |\d+\. )", "\n".join(lines))
            parts += [".IP \\(bu 2\n" + inline(" ".join(re.sub(r"^(- |\d+\. )", "", item).split())) for item in items]
        else:
            parts.append(".PP\n" + inline(" ".join(lines)))
    parts.append(
        roff.section("See also",
                     ", ".join(f"{roff.bold(other)}({number})" for other, number in others if other != name)))
    return "\n".join(part for part in parts if part) + "\n"
