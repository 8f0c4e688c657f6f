"""Static files of the console. Each address has a digest of its content, so a browser may keep it for good."""

import functools
from hashlib import sha256
from pathlib import Path

from audit.charts.drawing.sheet import STYLE_FILE

FOLDER = Path(__file__).with_name("assets")
PREFIX = "/console/assets/"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DIGITS = 12


def address_of(name: str) -> str:
    """The address of a file of the folder."""
    return PREFIX + _shipped_name(name)


def content_of(shipped_name: str) -> tuple[bytes, str] | None:
    """Content and media type of an address's last part."""
    name = _files().get(shipped_name)
    return (_sources()[name].read_bytes(), MEDIA_TYPES[Path(name).suffix]) if name else None


@functools.cache
def _files() -> dict[str, str]:
    return {_shipped_name(name): name for name in _sources()}


@functools.cache
def _sources() -> dict[str, Path]:
    """Charts bring their own style sheet, which is also in a chart that is a file of its own."""
    files = [*(file for file in FOLDER.iterdir() if file.suffix in MEDIA_TYPES), STYLE_FILE]
    return {file.name: file for file in files}


@functools.cache
def _shipped_name(name: str) -> str:
    file = _sources()[name]
    return f"{file.stem}.{sha256(file.read_bytes()).hexdigest()[:_DIGITS]}{file.suffix}"
