"""MDX plugin for markdown-it: the rules in which Docusaurus' Markdown differs from CommonMark. Pure.

Tags, expressions, comments, imports and the fences of admonitions become tokens of their own, so that the Markdown
between them is parsed as Markdown. Invalid MDX is tolerated: what cannot be a tag or an expression is text.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from markdown_it import MarkdownIt, helpers
from markdown_it.rules_block import StateBlock, list_block
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from ingest.read import jsx

NESTING_MAX = 100  # of quotes, lists and marks; each level is a few calls
INDENTED = 4  # columns that make a block of code in CommonMark, but not in MDX

_BLOCK_RULES = ["paragraph", "reference", "blockquote", "list"]

_EMPTY_LINE = re.compile(r"\n[ \t]*+(?:\n|\Z)")
_MODULE = re.compile(
    r"import\s*+(?:[\w$*{},\s]{1,500}?\bfrom\s*+)?[\"'][^\"'\n]+[\"']"
    r"|export\s++(?:default|const|let|var|function|async|class|type|interface|enum|[{*])"
)
_ADMONITIONS = "note|tip|info|warning|danger|caution|important|success|secondary"
_LABEL = r"(?:\[(?P<label>.*)\])?(?:\{[^{}]*\})?"
_FENCES = tuple(
    re.compile(fence)
    for fence in (
        r":{3,}",
        rf":{{3,}}[ \t]*(?:{_ADMONITIONS})(?![\w-])[ \t]*{_LABEL}",
        rf":{{3,}}[ \t]*(?:{_ADMONITIONS})[ \t]+(?P<label>.*?)(?:\{{[^{{}}]*\}})?",
        rf":{{2,}}[A-Za-z][\w-]*{_LABEL}",
    )
)
_DIRECTIVE = re.compile(
    r":[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?+(?![A-Za-z0-9_:-])"
    r"(?P<label>\[[^\[\]\n]*+\])?+(?P<attributes>\{[^{}\n]*+\})?+"
)
_UNWRAPPED = re.compile(r"(`{3,})mdx-code-block[ \t]*$")
_NOTE = re.compile(r"\[\^([^\[\]\s]+)\]:[ \t]*")
_NOTE_MARK = re.compile(r"\[\^([^\[\]\s]+)\]")
_MATHS = re.compile(r"\$(?=\S)[^$\n]*?(?<=\S)\$(?![0-9])")
_MATHS_SIGN = re.compile(r"[\\^_{]")
_BRACKETS = re.compile(r"\\.|`+|[\[\]]", re.DOTALL)


def parser(*, mdx: bool) -> MarkdownIt:
    """A parser for blocks. Parse the content of a line with `parse_inline`."""
    markdown = MarkdownIt("commonmark", {"html": not mdx, "maxNesting": NESTING_MAX})
    markdown.enable(["table", "strikethrough"])
    markdown.core.ruler.disable(["inline", "text_join"])
    markdown.helpers = _Helpers()  # type: ignore[assignment]  # it is declared as the module it comes from
    _add_block_rules(markdown, mdx=mdx)
    _add_inline_rules(markdown, mdx=mdx)
    return markdown


def parse_inline(markdown: MarkdownIt, content: str, environment: jsx.Environment) -> list[Token]:
    """The tokens of a line or a paragraph."""
    known: jsx.Environment = {
        name: environment[name] for name in ("references", "notes") if name in environment
    }
    tokens: list[Token] = []
    markdown.inline.parse(content, markdown, known, tokens)
    return tokens


def _add_block_rules(markdown: MarkdownIt, *, mdx: bool) -> None:
    ruler = markdown.block.ruler
    ruler.before("fence", "maths", _maths_block, {"alt": _BLOCK_RULES})
    ruler.before("fence", "directive", _directive_fence, {"alt": _BLOCK_RULES})
    ruler.before("reference", "note", _note, {"alt": _BLOCK_RULES})
    if mdx:
        ruler.disable(["code", "html_block"])
        ruler.before("fence", "unwrapped", _mdx_code_block, {"alt": _BLOCK_RULES})
        ruler.before("table", "module", _module)
        ruler.before("reference", "flow", _flow, {"alt": _BLOCK_RULES})
        ruler.at("list", _list, {"alt": _BLOCK_RULES[:3]})
        ruler.at("paragraph", _paragraph)


def _add_inline_rules(markdown: MarkdownIt, *, mdx: bool) -> None:
    ruler = markdown.inline.ruler
    ruler.before("link", "note_mark", _note_mark)
    ruler.after("autolink", "tag", _scanned_rule("<"))
    ruler.push("directive", _directive)
    ruler.before("escape", "maths", _maths)
    if mdx:
        ruler.disable("html_inline")
        ruler.before("autolink", "expression", _scanned_rule("{"))


# --- Rules for blocks


def _first(state: StateBlock, line: int) -> int:
    return state.bMarks[line] + state.tShift[line]


def _line(state: StateBlock, line: int) -> str:
    return state.src[_first(state, line) : state.eMarks[line]]


def _flow(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    """Lines that consist of tags, expressions and comments."""
    if state.src[_first(state, start)] not in "<{":
        return False
    found = _flow_items(state.src, _first(state, start), state.env)
    line = start
    while found and line < end and state.eMarks[line] < found[1]:
        line += 1
    if not found or line >= end:
        return False
    if not silent:
        token = state.push("flow", "", 0)
        token.meta = {"items": found[0]}
        state.line = line + 1
    return True


def _flow_items(text: str, position: int, environment: jsx.Environment) -> tuple[list[jsx.Item], int] | None:
    items = []
    while position < len(text) and text[position] != "\n":
        if text[position] in " \t":
            position += 1
            continue
        scanned = jsx.scan(text, position, environment) if text[position] in "<{" else None
        if not scanned:
            return None
        items.append(scanned[0])
        position = scanned[1]
    return items, position


def _module(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    """`import` and `export` outside of any block, up to the next empty line."""
    begin = state.bMarks[start]
    if silent or state.level or state.src[begin : begin + 6] not in {"import", "export"}:
        return False
    if not _MODULE.match(state.src, begin):
        return False
    finish = _module_end(state, begin)
    line = start + 1
    while line < end and state.eMarks[line] <= finish:
        line += 1
    state.push("module", "", 0).info = state.src[begin : begin + 6]
    state.line = line
    return True


def _module_end(state: StateBlock, begin: int) -> int:
    """The first empty line outside of brackets, or the very first if the brackets are never closed."""
    depth = 0
    if "(" in jsx.unclosed(state.env):
        return _first_empty(state.src, begin)
    for found in jsx.SCRIPT.finditer(state.src, begin):
        depth += (found[0] in "{([") - (found[0] in "})]")
        if depth <= 0 and found[0] == "\n":
            return found.start()
    if depth <= 0:
        return len(state.src)
    jsx.unclosed(state.env).add("(")
    return _first_empty(state.src, begin)


def _first_empty(text: str, begin: int) -> int:
    found = _EMPTY_LINE.search(text, begin)
    return found.start() if found else len(text)


def _directive_fence(state: StateBlock, start: int, _end: int, silent: bool) -> bool:  # noqa: FBT001
    """`:::note[Title]` becomes its title and `:::` nothing; the content between them is parsed as usual."""
    if not state.src.startswith("::", _first(state, start)):
        return False
    line = _line(state, start).rstrip()
    found = next(filter(None, (fence.fullmatch(line) for fence in _FENCES)), None)
    if found and not silent:
        state.push("border", "", 0)
        if label := found.groupdict().get("label"):
            _push_paragraph(state, label, start, start + 1)
        state.line = start + 1
    return found is not None


def _mdx_code_block(state: StateBlock, start: int, _end: int, silent: bool) -> bool:  # noqa: FBT001
    """The fences of an `mdx-code-block` are dropped: its content is MDX and not code."""
    if not state.src.startswith("```", _first(state, start)):
        return False
    line = _line(state, start).rstrip()
    opened = _UNWRAPPED.match(line)
    fence = state.env.get("unwrapped", "")
    closes = fence and line.startswith(fence) and not line.strip("`")
    if not opened and not closes:
        return False
    if not silent:
        state.env["unwrapped"] = opened[1] if opened else ""
        state.line = start + 1
    return True


def _maths_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    """Parses maths from `$$` to `$$`, verbatim."""
    if not state.src.startswith("$$", _first(state, start)):
        return False
    line = start
    if _line(state, start).strip() == "$$":
        line = _maths_end(state, start + 1, end)
    elif not _line(state, start).rstrip()[2:].endswith("$$"):
        return False
    if line >= end:
        return False
    if not silent:
        token = state.push("fence", "code", 0)
        token.content = state.getLines(start, line + 1, state.sCount[start], keepLastLF=False)
        state.line = line + 1
    return True


def _maths_end(state: StateBlock, line: int, end: int) -> int:
    if "$$" in jsx.unclosed(state.env):
        return end
    while line < end and state.sCount[line] >= 0 and not _line(state, line).rstrip().endswith("$$"):
        line += 1
    if line >= state.lineMax:
        jsx.unclosed(state.env).add("$$")
    return line


def _note(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    """The text of a footnote: after `[^name]:` and indented below it."""
    found = _NOTE.match(state.src, _first(state, start), state.eMarks[start])
    if not found or silent:
        return found is not None
    kept = state.bMarks[start], state.tShift[start], state.sCount[start], state.blkIndent
    state.env.setdefault("notes", set()).add(found[1].casefold())
    state.push("note_open", "", 1).info = found[1].casefold()
    state.blkIndent += 4
    state.bMarks[start], state.tShift[start], state.sCount[start] = found.end(), 0, state.blkIndent
    state.md.block.tokenize(state, start, end)
    state.push("note_close", "", -1)
    state.bMarks[start], state.tShift[start], state.sCount[start], state.blkIndent = kept
    return True


def _list(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    """markdown-it's rule, also for a list that is indented more than it expects, as between tags."""
    indent = state.sCount[start] - state.blkIndent
    if silent or indent < INDENTED:
        return list_block(state, start, end, silent)
    state.blkIndent += indent
    found = list_block(state, start, end, silent)
    state.blkIndent -= indent
    return found


def _paragraph(state: StateBlock, start: int, _end: int, silent: bool) -> bool:  # noqa: FBT001, ARG001
    """markdown-it's rule without indented code: an indented line can begin a new block."""
    parent, state.parentType = state.parentType, "paragraph"
    line = start + 1
    while line < state.lineMax and not state.isEmpty(line):
        if state.sCount[line] >= 0 and _interrupts_paragraph(state, line):
            break
        line += 1
    content = state.getLines(start, line, state.blkIndent, keepLastLF=False).strip()
    _push_paragraph(state, content, start, line)
    state.line = line
    state.parentType = parent
    return True


def _interrupts_paragraph(state: StateBlock, line: int) -> bool:
    silent = True
    return any(
        rule(state, line, state.lineMax, silent) for rule in state.md.block.ruler.getRules("paragraph")
    )


def _push_paragraph(state: StateBlock, content: str, start: int, end: int) -> None:
    state.push("paragraph_open", "p", 1).map = [start, end]
    state.push("inline", "", 0).content = content
    state.push("paragraph_close", "p", -1)


# --- Rules for the content of a line


def _scanned_rule(sign: str) -> Callable[[StateInline, bool], bool]:
    def rule(state: StateInline, silent: bool) -> bool:  # noqa: FBT001
        if state.src[state.pos] != sign:
            return False
        scanned = jsx.scan(state.src, state.pos, state.env)
        if not scanned or scanned[1] > state.posMax:
            return False
        if not silent:
            state.push("item", "", 0).meta = {"item": scanned[0]}
        state.pos = scanned[1]
        return True

    return rule


def _directive(state: StateInline, silent: bool) -> bool:  # noqa: FBT001
    """`:name[label]{attributes}` shows its label; without both it is text, but not part of an anchor."""
    start = state.pos
    found = _DIRECTIVE.match(state.src, start, state.posMax)
    if not found or state.src[max(0, start - 1) : start] == ":":
        return False
    if not silent:
        token = state.push("directive", "", 0)
        token.content = "" if found["label"] or found["attributes"] else found[0]
        if found["label"]:
            token.children = parse_inline(state.md, found["label"][1:-1], state.env)
    state.pos = found.end()
    return True


def _note_mark(state: StateInline, silent: bool) -> bool:  # noqa: FBT001
    found = _NOTE_MARK.match(state.src, state.pos, state.posMax)
    if not found or found[1].casefold() not in state.env.get("notes", ()):
        return False
    if not silent:
        state.push("note_mark", "", 0).info = found[1].casefold()
    state.pos = found.end()
    return True


def _maths(state: StateInline, silent: bool) -> bool:  # noqa: FBT001
    found = _MATHS.match(state.src, state.pos, state.posMax)
    if not found or not _MATHS_SIGN.search(found[0]):
        return False
    if not silent:
        state.push("text_special", "", 0).content = found[0]
    state.pos = found.end()
    return True


# --- Labels of links


@dataclass(frozen=True, slots=True)
class _Label:
    end: int
    holds_link: bool


class _Helpers:
    """markdown-it's helpers, with a linear search for the end of a label; its own search is quadratic."""

    parseLinkDestination = staticmethod(helpers.parseLinkDestination)  # noqa: N815
    parseLinkTitle = staticmethod(helpers.parseLinkTitle)  # noqa: N815

    @staticmethod
    def parseLinkLabel(state: StateInline, start: int, disableNested: bool = False) -> int:  # noqa: FBT001, FBT002, N802, N803
        known: dict[str, dict[int, _Label]] = state.env.setdefault("labels", {})
        if state.src not in known:
            known[state.src] = _labels(state.src)
        label = known[state.src].get(start)
        if not label or label.end >= state.posMax or (disableNested and label.holds_link):
            return -1
        return label.end


def _labels(text: str) -> dict[int, _Label]:
    """The label of each opening bracket outside of code that is closed."""
    labels: dict[int, _Label] = {}
    runs = _runs(text)
    opened: list[int] = []
    position, last_link = 0, -1
    while found := _BRACKETS.search(text, position):
        position = found.end()
        if found[0][0] == "`":
            position = _code_end(runs.get(len(found[0]), []), position, len(found[0]))
        elif found[0] == "[":
            opened.append(found.start())
        elif found[0] == "]" and opened:
            start = opened.pop()
            labels[start] = _Label(found.start(), last_link > start)
            if text[position : position + 1] in {"(", "["} and text[max(0, start - 1) : start] != "!":
                last_link = start
    return labels


def _runs(text: str) -> dict[int, list[int]]:
    """The positions of runs of backticks, by length."""
    runs: dict[int, list[int]] = {}
    for found in re.finditer("`+", text):
        runs.setdefault(len(found[0]), []).append(found.start())
    return runs


def _code_end(same_length: list[int], position: int, length: int) -> int:
    """The position after the next run of backticks of this length, or this position if there is none."""
    number = bisect_left(same_length, position)
    return same_length[number] + length if number < len(same_length) else position
