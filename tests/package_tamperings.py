"""`python -m tests.package_tamperings DIR` writes every tampered package there, with keys.pub and expected.json.

In that, `rung` and `verdict` are of the finding that there must be, among others; `overall` is what the command says of the whole.
"""

import io
import json
import re
import sys
from pathlib import Path

from audit.package.verification import check_package
from tests.logs import packages
from tests.logs.package_tampering import tamperings
from tests.proofs import KEY


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "keys.pub").write_text(f"{KEY.public}\n")
    expected = {}
    for is_redacted, name in ((False, "whole"), (True, "redacted")):
        (folder / f"{name}.zip").write_bytes(packages.zipped(packages.made(is_redacted=is_redacted)))
        expected[f"{name}.zip"] = {"name": name, "rung": None, "verdict": None, "overall": "ERASED"}
    for number, each in enumerate(tamperings(), 1):
        file = f"{number:03d}-{re.sub('[^a-z]+', '-', each.name.lower()).strip('-')}.zip"
        (folder / file).write_bytes(each.content)
        overall = check_package(io.BytesIO(each.content), [KEY.public]).verdict
        expected[file] = {"name": each.name, "rung": each.rung, "verdict": each.verdict, "overall": overall}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
