"""The completions of bash, zsh and fish, from the commands' descriptions."""

# Placeholders whose value is a file or a folder.
FILES = ("FILE", "PATH", "DIR")


def contexts(commands):
    """Each command and each of its subcommands, as (command, subcommand or "", description)."""
    for command in commands:
        yield command["command"], "", command
        for sub in command["commands"]:
            yield command["command"], sub["name"], sub


def takes_value(option):
    return "value" in option and any(name.startswith("-") for name in option["names"])


def kind_of(option):
    """Returns "words", "files" or "anything": the kind of values of an option."""
    if option.get("values"):
        return "words"
    return "files" if any(word in FILES for word in option["value"].replace("|", " ").split()) else "anything"


def bash(commands):
    values, options = [], []
    for command, sub, description in contexts(commands):
        for option in filter(takes_value, description["options"]):
            patterns = "|".join(f'"{command} {sub} {name}"' for name in option["names"])
            answer = {
                "words": f'words="{" ".join(option.get("values", []))}"',
                "files": 'COMPREPLY=($(compgen -f -- "$current")); return', "anything": "return"
            }[kind_of(option)]
            values.append(f"        {patterns}) {answer} ;;")
        names = [name for option in description["options"]
                 for name in option["names"]] + [one["name"] for one in description["commands"]]
        options.append(f'        "{command} {sub}") words="{" ".join(names)}" ;;')
    subcommands = "\n".join(
        f'        {one["command"]}) subcommands="{" ".join(sub["name"] for sub in one["commands"])}" ;;'
        for one in commands if one["commands"])
    newline = "\n"
    return f"""# bash completion of gpuwire, made from the commands' own descriptions.
_gpuwire() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" sub="" subcommands="" words="" i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{" ".join(one["command"] for one in commands)} --help --version" -- "$current"))
        return
    fi
    # From the program's name on nothing is gpuwire's.
    for ((i = 2; i < COMP_CWORD; i++)); do
        if [[ "${{COMP_WORDS[i]}}" == -- ]]; then
            if ((i + 1 == COMP_CWORD)); then COMPREPLY=($(compgen -c -- "$current")); fi
            COMPREPLY+=($(compgen -f -- "$current"))
            return
        fi
    done
    case "$command" in
{subcommands}
    esac
    for ((i = 2; i < COMP_CWORD; i++)); do
        [[ -n "$subcommands" && " $subcommands " == *" ${{COMP_WORDS[i]}} "* ]] && sub="${{COMP_WORDS[i]}}"
    done
    case "$command $sub $previous" in
{newline.join(values)}
    esac
    if [[ -z "$words" ]]; then
        case "$command $sub" in
{newline.join(options)}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _gpuwire gpuwire
"""


def zsh_quoted(text):
    return text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_option(option):
    names = option["names"]
    both = f"'({' '.join(names)})'" + "{" + ",".join(names) + "}" if len(names) > 1 else names[0]
    value = ""
    if takes_value(option):
        what = {"words": "(" + " ".join(option.get("values", [])) + ")", "files": "_files",
                "anything": " "}[kind_of(option)]
        value = f":{option['value'] or 'value'}:{what}"
    return f"{both}'[{zsh_quoted(option['text'])}]{value}'"


def zsh(commands, summaries):
    newline = "\n"
    cases = []
    for one in commands:
        arguments = [zsh_option(option) for option in one["options"]]
        if one["commands"]:
            listed = " ".join(f"'{sub['name']}[{zsh_quoted(sub['description'])}]'" for sub in one["commands"])
            inner = newline.join("                " + f"{sub['name']}) _arguments " +
                                 " ".join([zsh_option(option)
                                           for option in sub["options"]] + ["'*:file:_files'"]) + " ;;"
                                 for sub in one["commands"])
            cases.append(f"""        {one['command']})
            _arguments -C {' '.join(arguments)} '1:command:_values command {listed.replace("'", '"')}' '*::argument:->rest'
            case $words[1] in
{inner}
            esac ;;""")
        elif one["command"] in ("run",):
            cases.append(f"        run) _arguments -S {' '.join(arguments)} '(-)1:program:_command_names -e'"
                         " '*::argument:_normal' ;;")
        else:
            cases.append(f"        {one['command']}) _arguments {' '.join(arguments)} ;;")
    listed = newline.join(f"        '{one['command']}:{zsh_quoted(summaries.get(one['command'], ''))}'"
                          for one in commands)
    return f"""#compdef gpuwire
# zsh completion of gpuwire, made from the commands' own descriptions.
_gpuwire() {{
    # Not `commands`: that is zsh's own, of which the programs' names are offered.
    local -a summaries
    summaries=(
{listed}
    )
    if (( CURRENT == 2 )); then
        _describe command summaries
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
{newline.join(cases)}
    esac
}}
_gpuwire "$@"
"""


def fish_quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# From the program's name on nothing is gpuwire's.
FISH_PROGRAM = """function __gpuwire_complete_program
    set -l words (string escape -- (commandline -opc)) (commandline -ct)
    set -l dashes (contains -i -- -- $words); or return
    complete -C (string join ' ' -- $words[(math $dashes + 1)..-1])
end"""


def fish(commands, summaries):
    lines = ["# fish completion of gpuwire, made from the commands' own descriptions.", FISH_PROGRAM,
             "complete -c gpuwire -f"]
    for one in commands:
        lines.append(
            f"complete -c gpuwire -n __fish_use_subcommand -a {one['command']} -d"
            f" {fish_quoted(summaries.get(one['command'], ''))}"
        )
    for command, sub, description in contexts(commands):
        condition = f"__fish_seen_subcommand_from {command}" + (f"; and __fish_seen_subcommand_from {sub}"
                                                                if sub else "")
        for one in description["commands"]:
            lines.append(f"complete -c gpuwire -n '{condition}' -a {one['name']} -d {fish_quoted(one['description'])}")
        for option in description["options"]:
            names = " ".join(
                ("-l " + name[2:]) if name.startswith("--") else "-s " + name[1:] for name in option["names"])
            value = ""
            if takes_value(option):
                value = {
                    "words": " -x -a " + fish_quoted(" ".join(option.get("values", []))), "files": " -r -F",
                    "anything": " -x"
                }[kind_of(option)]
            lines.append(f"complete -c gpuwire -n '{condition}' {names}{value} -d {fish_quoted(option['text'])}")
    lines.append("complete -c gpuwire -n '__fish_seen_subcommand_from run' -a '(__gpuwire_complete_program)'")
    return "\n".join(lines) + "\n"
