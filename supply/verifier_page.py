"""Writes audit/verifier/verifier.html, one file without a request, from its sources: `python -m supply.verifier_page`.

And from the same sources the script with which a page of the console computes a proof again.

Each module of JavaScript becomes a function that is called where its imports are known; so a name means one thing in one module,
and nothing needs to be bundled by a program of others. The policy of the page allows exactly this script and this style.
"""

import base64
import re
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "audit/verifier/verifier.html"
PUBLISHED = ROOT / "docs/site/static/verifier.html"
RECOMPUTE = ROOT / "engine/http/console/assets/recompute.js"
DIGESTS = (ROOT / "docs/reference/verifier-page.md",)  # whoever holds the page can compare it with these
SOURCES = PAGE.with_name("sources")

_IMPORT = re.compile(r'^import \{ (?P<names>[\w, ]+) \} from "(?P<path>[\w./-]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function\*?|class) (?P<name>\w+))", re.MULTILINE)
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


def main() -> None:
    page = assembled()
    PAGE.write_bytes(page)
    PUBLISHED.write_bytes(page)
    RECOMPUTE.write_text(script_of("page/recompute.js"))
    for file in DIGESTS:
        file.write_text(with_digest(file.read_text(), page))


def assembled() -> bytes:
    script, style = script_of("page/main.js"), (SOURCES / "page.css").read_text()
    parts = {
        "script": script, "style": style, "script-hash": _policy_hash(script), "style-hash": _policy_hash(style),
    }  # fmt: skip
    page = re.sub(r"\{\{([a-z-]+)\}\}", lambda found: parts[found[1]], (SOURCES / "page.html").read_text())
    return page.encode()


def with_digest(text: str, page: bytes) -> str:
    return _DIGEST.sub(sha256(page).hexdigest(), text)


def script_of(module: str) -> str:
    """The module with all that it imports."""
    done: dict[Path, str] = {}
    _add(SOURCES / module, done)
    script = '\n"use strict";\n' + "".join(done.values())
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("The script would end early in the page")
    return script


def _add(module: Path, done: dict[Path, str]) -> None:
    """What it imports first; each module once."""
    text = module.read_text()
    imports = {found["path"]: (module.parent / found["path"]).resolve() for found in _IMPORT.finditer(text)}
    for imported in imports.values():
        if imported not in done:
            _add(imported, done)
    body = _IMPORT.sub(
        lambda found: f"const {{ {found['names']} }} = {_name(imports[found['path']])};\n", text
    )
    exported = ", ".join(found["name"] for found in _EXPORT.finditer(body))
    body = _EXPORT.sub("", body)
    if re.search(r"^(?:import|export)\b", body, re.MULTILINE):
        raise ValueError(f"{module.name} has an import or an export that is not of the one form")
    done[module] = f"\nconst {_name(module)} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _name(module: Path) -> str:
    return "_".join(module.relative_to(SOURCES).with_suffix("").parts)


def _policy_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


if __name__ == "__main__":
    main()
