"""The verifier as one file, `auditor.pyz`: the pure rooms and nothing else, always the same bytes. Pure."""

import io
import zlib
from pathlib import Path

import audit
from audit.package.container import DEFLATE, ZipEntry, directory, local_header

_FILES = ("__init__.py", "auditor.py", "errors.py")
_FOLDERS = ("heads", "package", "proof", "stamps")
_MAIN = b"from audit.auditor import main\n\nif __name__ == '__main__':\n    main()\n"


def program() -> bytes:
    """A zipapp: Python runs it as it is."""
    here = Path(audit.__file__).parent
    sources = [here / name for name in _FILES]
    for folder in _FOLDERS:
        sources += sorted((here / folder).glob("*.py"))
    contents = {"__main__.py": _MAIN}
    contents |= {f"audit/{source.relative_to(here).as_posix()}": source.read_bytes() for source in sources}
    return _zipped(contents)


def _zipped(contents: dict[str, bytes]) -> bytes:
    written, entries = io.BytesIO(), list[ZipEntry]()
    for name, content in contents.items():
        packing = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packing.compress(content) + packing.flush()
        entry = ZipEntry(name, DEFLATE, zlib.crc32(content), len(packed), len(content), written.tell())
        entries.append(entry)
        written.write(local_header(entry) + packed)
    written.write(directory(entries, written.tell()))
    return written.getvalue()
