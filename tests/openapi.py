"""`make openapi` writes docs/reference/openapi.json: the description of the interface, for readers and code generators."""

import json
from contextlib import nullcontext
from typing import Any

from engine.http.app import create_app
from tests.conftest import ROOT

FILE = ROOT / "docs" / "reference" / "openapi.json"


def text() -> str:
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def document() -> dict[str, Any]:
    return create_app(nullcontext).openapi()  # type: ignore[arg-type]  # it is never started


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
