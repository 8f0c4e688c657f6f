"""README.md of a package, for somebody who has never heard of this program. Pure."""

from datetime import datetime
from pathlib import Path
from string import Template
from typing import Any

from audit.package.manifest import PackageManifest, time_text

_TEMPLATE = Path(__file__).with_suffix(".md")
_MARKED = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_{}[]<>()#+-.!|~&"})


def readme(manifest: PackageManifest, words: str, page_sha256: str) -> bytes:
    """Says nothing that differs between two packages of the same records."""
    case = manifest.chosen.get("case")
    page = f"Its SHA-256 is `{page_sha256}`." if page_sha256 else "This package was made without it."
    text = Template(_TEMPLATE.read_text("utf-8")).substitute(
        case=f": {plain(case)}" if case else "", origin=manifest.origin, page=page, words=plain(words),
        since=_day(manifest.since), until=_day(manifest.until), records=manifest.counts["records"],
    )  # fmt: skip
    return text.encode()


def plain(text: Any) -> str:
    """Without any effect in Markdown: a name may be anything."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(text)).translate(_MARKED)


def _day(moment: datetime) -> str:
    return time_text(moment)[:19].replace("T", " ") + " UTC"
