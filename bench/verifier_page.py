"""Verifier page benchmark: seconds to check a package of many records in Chromium and in Firefox, from a file.

Run as `python -m bench.verifier_page [--records 100000]`. Needs Node, the browsers and what docusaurus/package.json installs.
"""

import argparse
import os
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.results import Figure, record, show
from supply import verifier_page
from tests.conftest import ROOT
from tests.made_package import of_many
from tests.product.browser import CHROMIUM, FIREFOX
from tests.proofs import KEY

RECORDS = 100_000
PROMPT = (
    "Answer only from these passages, and quote them word for word. " * 50
)  # about 3 kB, as prompts with five passages are
PROGRAM = Path(__file__).with_suffix(".mjs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    records = parser.parse_args().records
    with tempfile.TemporaryDirectory(prefix="affidavit-page-") as folder:
        file = Path(folder) / "package.zip"
        file.write_bytes(of_many(records, PROMPT).zipped())
        size_mb = file.stat().st_size // 2**20
        figures = [
            Figure(
                f"verifier page in {name}, {records} records, {size_mb} MB: seconds",
                _seconds(name, program, file, records),
                "",
            )
            for name, program in (("chromium", CHROMIUM), ("firefox", FIREFOX))
            if program
        ]
    for figure in figures:
        show(figure)
    record("verifier page", [asdict(figure) for figure in figures])


def _seconds(name: str, program: str, file: Path, records: int) -> float:
    environment = {
        **os.environ, "VERIFIER_PAGE": str(verifier_page.PAGE), "VERIFIER_PACKAGE": str(file), "VERIFIER_KEYS": str(KEY.public),
        "VERIFIER_RECORDS": str(records), "VERIFIER_PLUGIN": str(ROOT / "docusaurus"), "E2E_BROWSER": name, name.upper(): program,
    }  # fmt: skip
    said = subprocess.run(["node", PROGRAM], env=environment, check=True, capture_output=True, text=True)
    return float(said.stdout)


if __name__ == "__main__":
    main()
