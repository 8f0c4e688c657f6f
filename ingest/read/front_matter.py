"""Parser for YAML front matter: the fields of a page above its text. Pure.

A page comes from the book's author and not from us, so depth, length and aliases are limited.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

import yaml

CHARACTERS_MAX = 65_536
DEPTH_MAX = 100
MODULE_MAX = 2**31 - 1  # what the database can hold

_FRONT_MATTER = re.compile(r"\A---[ \t]*$(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_NOT_STORED = re.compile("[\0\ud800-\udfff]")


def split(page: str) -> tuple[dict[str, Any], str]:
    found = _FRONT_MATTER.match(page)
    if not found:
        return {}, page
    if len(found[1]) > CHARACTERS_MAX:
        raise ValueError(f"the front matter is longer than {CHARACTERS_MAX} characters")
    front = _yaml(found[1])
    if not isinstance(front, dict | None):
        raise ValueError("the front matter must be a list of `name: value`")  # noqa: TRY004
    return front or {}, page[found.end() :]


def _yaml(text: str) -> Any:
    """Aliases are refused: an alias of aliases grows exponentially when it is expanded. And PyYAML takes time that is
    quadratic in the depth of brackets."""
    depths = accumulate((sign in "[{") - (sign in "]}") for sign in text)
    if max(depths, default=0) > DEPTH_MAX:
        raise ValueError("the brackets in the front matter are nested too deeply")
    try:
        aliases = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader))
        loaded = None if aliases else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as wrong:
        raise ValueError(f"the front matter is not YAML: {wrong}") from wrong
    if aliases:
        raise ValueError(
            "the front matter has aliases (*name), which are not supported: write the values out"
        )
    return loaded


def format_of(front: Mapping[str, Any], path: PurePosixPath) -> str:
    """The parser for the page: Docusaurus reads `.md` as MDX unless the front matter says otherwise."""
    match front.get("mdx"):
        case {"format": "md"}:
            return "md"
        case {"format": "detect"} if path.suffix.lower() == ".md":
            return "md"
    return "mdx"


def text(front: Mapping[str, Any], name: str) -> str:
    value = front.get(name)
    if value is None or isinstance(value, (dict, list, set)):
        return ""
    return storable(str(value).strip(), f"“{name}” in the front matter")


def stored(front: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a document keeps."""
    difficulty = text(front, "difficulty") or None
    return {"module": _module(front), "difficulty": difficulty, "tags": tuple(_tags(front))}


def _module(front: Mapping[str, Any]) -> int | None:
    given = front.get("module")
    if not isinstance(given, int) or isinstance(given, bool):
        return None
    if abs(given) > MODULE_MAX:
        raise ValueError(f"“module” in the front matter is beyond ±{MODULE_MAX}")
    return given


def _tags(front: Mapping[str, Any]) -> Iterator[str]:
    """Tags are texts, or objects with a label."""
    given = front.get("tags")
    for tag in given if isinstance(given, list) else ():
        name = tag.get("label") if isinstance(tag, dict) else tag
        if isinstance(name, str):
            yield storable(name, "“tags” in the front matter")


def storable(text: str, name: str) -> str:
    if found := _NOT_STORED.search(text):
        raise ValueError(
            f"{name} has the character U+{ord(found[0]):04X}, which the database cannot store: remove it"
        )
    return text
