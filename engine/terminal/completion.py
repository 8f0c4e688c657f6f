"""Scripts that complete the command line in bash, zsh and fish, made from the parser (pure)."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Word:
    """A command, an option, or the place of an argument (without a name), and what may follow it."""

    names: tuple[str, ...]
    about: str
    takes_value: bool = False
    takes_file: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A command or a group of them, by its words: `audit query`."""

    path: str
    words: tuple[Word, ...]

    def matching(self, *, options: bool) -> list[Word]:
        return [word for word in self.words if bool(word.names) == options]


def nodes(parser: argparse.ArgumentParser, path: str = "") -> list[Node]:
    """The node of a parser, and those of the parsers below it."""
    below: list[Node] = []
    words: list[Word] = []
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to read them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            words += [Word((one.dest,), _in_a_line(one.help)) for one in action._choices_actions]  # noqa: SLF001
            for name, found in action.choices.items():
                below += nodes(found, f"{path} {name}".strip())
        else:
            words.append(_word(action))
    return [Node(path, tuple(words)), *below]


def _word(action: argparse.Action) -> Word:
    takes_value = action.nargs != 0
    is_listed = action.choices is not None and not isinstance(action.choices, range)
    values = tuple(map(str, action.choices or ())) if is_listed else ()
    return Word(
        tuple(action.option_strings),
        _in_a_line(action.help),
        takes_value,
        action.type is Path or action.metavar == "PATH",
        values,
    )


def _in_a_line(text: str | None) -> str:
    return " ".join((text or "").split())


# bash

_BASH = """\
# Completes affidavit. Made by `affidavit completion bash`.
_affidavit() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at= next words= files= IFS=$' \\t\\n'
  for next in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "${at:+$at }$next" in
      %s) at="${at:+$at }$next" ;;
    esac
  done
  case "$at:$before" in
%s
    *) case "$at" in
%s
    esac ;;
  esac
  IFS=$'\\n'
  COMPREPLY=($(IFS=' '; compgen -W "$words" -- "$word"))
  if [[ -n $files && $word != -* ]]; then COMPREPLY+=($(compgen -f -- "$word")); fi
}
complete -o filenames -F _affidavit affidavit
"""


def bash(tree: Sequence[Node]) -> str:
    commands = "|".join(shlex.quote(node.path) for node in tree if node.path)
    after = [
        f"    {_either(node.path, word)}) {_bash_words(word.values, word.takes_file)} ;;"
        for node in tree for word in node.matching(options=True) if word.takes_value
    ]  # fmt: skip
    own = [f"      {shlex.quote(node.path)}) {_bash_own(node)} ;;" for node in tree]
    return _BASH % (commands, "\n".join(after), "\n".join(own))


def _either(path: str, word: Word) -> str:
    return "|".join(shlex.quote(f"{path}:{name}") for name in word.names)


def _bash_own(node: Node) -> str:
    places = node.matching(options=False)
    words = [name for word in node.matching(options=True) for name in word.names]
    values = [value for place in places for value in place.values]
    return _bash_words([*values, *words], any(place.takes_file for place in places))


def _bash_words(words: Sequence[str], takes_file: bool) -> str:  # noqa: FBT001
    return f"words={shlex.quote(' '.join(words))} files={'1' if takes_file else ''}"


# zsh

_ZSH = """\
#compdef affidavit
# Completes affidavit. Made by `affidavit completion zsh`.
_affidavit() {
  local at= next before=${words[CURRENT-1]}
  local -a own
  for next in "${(@)words[2,CURRENT-1]}"; do
    case "${at:+$at }$next" in
      %s) at="${at:+$at }$next" ;;
    esac
  done
  case "$at:$before" in
%s
    *) case "$at" in
%s
    esac ;;
  esac
}
if [[ $funcstack[1] == _affidavit ]]; then _affidavit "$@"; else compdef _affidavit affidavit; fi
"""


def zsh(tree: Sequence[Node]) -> str:
    commands = "|".join(shlex.quote(node.path) for node in tree if node.path)
    after = [
        f"    {_either(node.path, word)}) {_zsh_value(word)} ;;"
        for node in tree for word in node.matching(options=True) if word.takes_value
    ]  # fmt: skip
    own = [f"      {shlex.quote(node.path)}) {_zsh_own(node)} ;;" for node in tree]
    return _ZSH % (commands, "\n".join(after), "\n".join(own))


def _zsh_value(word: Word) -> str:
    if word.values:
        return f"compadd -- {' '.join(map(shlex.quote, word.values))}"
    return "_files" if word.takes_file else "_message value"


def _zsh_own(node: Node) -> str:
    places = node.matching(options=False)
    described = [_described(value, "") for place in places for value in place.values]
    described += [_described(name, word.about) for word in node.matching(options=True) for name in word.names]
    offered = f"own=({' '.join(described)}); _describe affidavit own"
    return f"{offered}; [[ $PREFIX == -* ]] || _files" if any(p.takes_file for p in places) else offered


def _described(name: str, about: str) -> str:
    text = f"{name}:{about}" if about else name
    return shlex.quote(text)


# fish

_FISH = """\
# Completes affidavit. Made by `affidavit completion fish`.
function __affidavit_at
    set -l at
    for word in (commandline -opc)[2..]
        set -l next (string trim -- "$at $word")
        if contains -- $next %s
            set at $next
        end
    end
    test "$at" = "$argv[1]"
end
complete -c affidavit -f
"""


def fish(tree: Sequence[Node]) -> str:
    commands = " ".join(shlex.quote(node.path) for node in tree if node.path)
    return _FISH % commands + "".join(f"{line}\n" for node in tree for line in _fish_lines(node))


def _fish_lines(node: Node) -> Iterator[str]:
    where = f"complete -c affidavit -n {_fish_quoted(f'__affidavit_at {shlex.quote(node.path)}')}"
    for word in node.words:
        about = f" -d {_fish_quoted(word.about)}" if word.about else ""
        value = _fish_value(word)
        if not word.names:
            yield f"{where}{value}"
        elif word.names[0].startswith("-"):
            flags = "".join(
                f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in word.names
            )
            yield f"{where}{flags}{value if word.takes_value else ''}{about}"
        else:
            yield f"{where} -a {word.names[0]}{about}"


def _fish_value(word: Word) -> str:
    if word.values:
        return f" -x -a {_fish_quoted(' '.join(word.values))}"
    return " -r -F" if word.takes_file else " -x"


def _fish_quoted(text: str) -> str:
    """Within single quotes fish knows two escapes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: dict[str, Callable[[Sequence[Node]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
