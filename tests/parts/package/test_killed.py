"""A package whose making is killed (-9), again and again, goes on where it was and is the same in the end."""

import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from audit.packing import making, pieces, zip_writing
from engine.storage.database import Database
from tests.conftest import CAMPAIGN_ROUNDS
from tests.logs.packing import content, make, quoting_log
from tests.logs.sealed_log import SealedLog

STEP = 1 if CAMPAIGN_ROUNDS else 8  # every point in a campaign
POINTS = (
    (pieces.PieceInWork, "write"), (pieces.PieceInWork, "finish"), (pieces, "put"), (zip_writing.ZipWriting, "_add"),
    (making, "sync_folder"), (pieces, "remove"),
)  # fmt: skip


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with quoting_log(database, tmp_path_factory.mktemp("killed")) as made:
        yield made


def killed_at(point: int, log: SealedLog, file: Path) -> bool:
    """In a child of its own, killed before its call number `point`; False if it ended before."""
    child = os.fork()
    if not child:
        try:
            _count_down(point)
            make(log, file)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _count_down(point: int) -> None:
    left = [point]

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return counted

    for place, name in POINTS:
        setattr(place, name, counting(getattr(place, name)))


# Seen red with the package written under its own name, and with a run that went on at the beginning of its last piece.
@pytest.mark.rounds
def test_a_killed_making_goes_on_and_gives_the_same_package(
    log: SealedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 2)
    whole, file = tmp_path / "whole.zip", tmp_path / "killed.zip"
    make(log, whole)
    kills, point = 0, 1
    while killed_at(point, log, file):
        kills, point = kills + 1, point + STEP
        if file.exists():  # killed after the last step: it is whole
            pieces.remove(file.with_name("killed.zip.parts"))
        else:
            make(log, file)
        assert _without_time(file) == _without_time(whole), point
        assert sorted(each.name for each in tmp_path.iterdir()) == ["killed.zip", "whole.zip"]
        file.unlink()
    assert kills > 5


def _without_time(file: Path) -> dict[str, Any]:
    files: dict[str, Any] = dict(content(file))
    manifest = json.loads(files["manifest.json"])
    return files | {
        "manifest.json": {name: manifest[name] for name in manifest if name not in {"made_at", "signature"}}
    }
