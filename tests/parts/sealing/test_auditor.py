"""A proof is accepted only if nobody has touched it; two verifiers that share no line say the same."""

import argparse
import asyncio
import base64
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from audit import auditor
from audit.heads.inspection import UNWATCHED
from audit.proof import bundle
from audit.proof.canonical import canonical_json
from audit.proof.keys import read_public_keys
from audit.proof.verdict import PROVEN, Report, Verdict
from engine import settings as settings_file
from engine import wiring
from engine.cli import main
from engine.cli.audit_log import audit_commands
from engine.errors import ConfigurationError
from engine.storage.database import Database
from tests import proofs, second_verifier
from tests.command_line import affidavit
from tests.conftest import CAMPAIGN_ROUNDS, ROOT
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.product.http.metrics_text import read
from tests.proofs import KEY, ROTATED, STRANGER

MUTATIONS = CAMPAIGN_ROUNDS * 5_000 or 3_000
Command = Callable[..., tuple[int, str, str]]  # of its words: exit code, stdout, stderr
KEYS = [KEY.public, ROTATED.public]
EXAMPLES = json.loads(proofs.FILE.read_text())
WRITTEN = [(item["name"], item["verdict"], base64.b64decode(item["base64"])) for item in EXAMPLES["proofs"]]
FILE = next(file for name, _, file in WRITTEN if name == "odd text and numbers")
ERASED = next(file for name, _, file in WRITTEN if name == "erased")

# Says what was loaded, and breaks if anything opens a socket.
ALONE = """
import runpy, sys
def watch(event, _):
    if event.startswith("socket."):
        raise RuntimeError(event)
sys.addaudithook(watch)
before = {name.split(".")[0] for name in sys.modules}
try:
    runpy.run_module("audit.auditor", run_name="__main__")
finally:
    loaded = {name.split(".")[0] for name in sys.modules}
    print(*sorted(loaded - before - sys.stdlib_module_names), file=sys.stderr)
"""


def test_the_examples_are_those_that_are_made() -> None:
    """Else run `python -m tests.proofs`, and say in the CHANGELOG why old proofs would not be the same."""
    assert proofs.FILE.read_text() == proofs.page()


# Seen red with proofs longer than needed taken, and with a salt in large digits.
@pytest.mark.parametrize(
    ("expected", "file"), [item[1:] for item in WRITTEN], ids=[item[0] for item in WRITTEN]
)
def test_both_verifiers_agree(expected: str, file: bytes) -> None:
    assert auditor.check(file, KEYS).verdict == expected
    assert second_verifier.verdict(file, EXAMPLES["public_keys"]) == expected


def test_the_second_verifier_imports_nothing_of_the_first() -> None:
    assert "audit" not in {
        line.split()[1].split(".")[0]
        for line in Path(second_verifier.__file__).read_text().splitlines()
        if line.strip().startswith(("import ", "from "))
    }


def test_a_proof_names_its_record_when_it_fails() -> None:
    body = json.loads(FILE)
    body["row"]["outcome"] = "refused"
    (finding,) = auditor.check(canonical_json(body) + b"\n", KEYS).findings
    assert (finding.leaf_index, finding.log_id) == (3, body["row"]["log_id"])
    assert f"{finding.month:%Y-%m}" == "2026-11"


def mutated(file: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """One small change of one of the kinds that happen, or that somebody makes."""
    content = bytearray(file)
    at, other = chance.randrange(len(file)), chance.randrange(len(file))
    match chance.randrange(8):
        case 0:
            content[at] = chance.randrange(256)
        case 1:
            content[at] ^= 1 << chance.randrange(8)
        case 2:
            content = content[:at]
        case 3:
            content += chance.choice([b"\n", b" ", b"\0", b"{}", chance.randbytes(chance.randrange(1, 9))])
        case 4:
            content[at], content[other] = content[other], content[at]
        case 5:
            content[at:at] = chance.choice([b" ", b"0", b",", b"\n", b"\\", bytes([file[at]])])
        case 6:
            del content[at]
        case _:
            donor = chance.choice(others)
            content[at : at + 64] = donor[at : at + 64]
    return bytes(content)


A_WITNESS = b"witness.example"  # signed a checkpoint too, with a key that is not given: nothing covers such a signature


# Seen red with the salt read by `bytes.fromhex` alone, and with the file not compared with its canonical form.
@pytest.mark.rounds
def test_no_mutation_of_a_proof_is_accepted() -> None:
    chance = random.Random(20261118)
    valid = [file for _, verdict, file in WRITTEN if verdict in {"VALID", "ERASED"} and A_WITNESS not in file]
    accepted, made = [], 0
    while made < MUTATIONS:
        file = chance.choice(valid)
        changed = mutated(file, chance, valid)
        if changed in valid:
            continue
        made += 1
        verdicts = {
            auditor.check(changed, KEYS).verdict,
            second_verifier.verdict(changed, EXAMPLES["public_keys"]),
        }
        if verdicts & PROVEN:
            accepted.append(changed)
    assert accepted == []


def test_every_byte_of_a_proof_counts() -> None:
    for at in range(len(ERASED)):
        changed = ERASED[:at] + bytes([ERASED[at] ^ 1]) + ERASED[at + 1 :]
        assert auditor.check(changed, KEYS).verdict not in PROVEN, at
        assert auditor.check(ERASED[:at], KEYS).verdict not in PROVEN, at


def test_a_key_of_somebody_else_proves_nothing() -> None:
    assert auditor.check(FILE, [STRANGER.public]).verdict == Verdict.TAMPERED
    assert auditor.check(FILE, []).verdict == Verdict.CANNOT_TELL


def test_a_proof_goes_with_the_receipt_of_its_record_alone() -> None:
    rows = [proofs.row(place) for place in range(5)]
    file = bundle.encode(proofs.proven(rows, 1))

    def checked(receipt: dict[str, str]) -> Verdict:
        return auditor.check(file, KEYS, json.dumps(receipt).encode()).verdict

    assert checked(proofs.receipt(rows[1])) == Verdict.VALID
    assert checked(proofs.receipt(rows[2])) == Verdict.TAMPERED
    assert checked(proofs.receipt(rows[1], STRANGER)) == Verdict.TAMPERED
    assert auditor.check(file, KEYS, b"{}").verdict == Verdict.TAMPERED


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "proof.json").write_bytes(FILE)
    (tmp_path / "keys.pub").write_text(f"{ROTATED.public}\n{KEY.public}\n")
    return tmp_path / "proof.json", tmp_path / "keys.pub"


def test_the_auditor_needs_only_python_and_cryptography(written: tuple[Path, Path]) -> None:
    command = [sys.executable, "-c", ALONE, str(written[0]), "--public-key", str(written[1])]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert (said.returncode, said.stdout) == (0, "VALID (1 checked)\n"), said.stderr
    assert set(said.stderr.split()) - {"_cffi_backend", "_openssl"} == {"audit", "cryptography"}


def test_check_needs_no_settings(written: tuple[Path, Path]) -> None:
    said = affidavit(
        "audit", "check", written[0], "--public-key", written[1], "--json", AFFIDAVIT_NONSENSE="1", DATABASE_URL="no",
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {
        "verdict": "VALID", "checked": 1, "findings": [], "findings_left_off": 0, "counted": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("proof", "keys"),
    [(b"", None), (FILE[:-1], None), (FILE, b""), (FILE, b"x\n"), (FILE, b"\xff")],
    ids=["empty", "cut", "no key", "not a key", "not text"],
)
def test_check_fails_on_what_is_no_proof_and_on_what_is_no_key(
    written: tuple[Path, Path], command: Command, proof: bytes, keys: bytes | None
) -> None:
    written[0].write_bytes(proof)
    if keys is not None:
        written[1].write_bytes(keys)
    code, out, err = command("check", written[0], "--public-key", written[1])
    assert (code, err) == (1, "")
    assert out.startswith("TAMPERED" if keys is None else "CANNOT_TELL")


def test_check_of_a_file_that_is_not_there_is_no_verdict_about_it(
    written: tuple[Path, Path], command: Command
) -> None:
    code, out, _ = command("check", "no-such-file", "--public-key", written[1], "--json")
    assert (code, json.loads(out)["verdict"]) == (1, "CANNOT_TELL")


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("proven")) as made:
        yield made


@pytest.fixture
def command(log: SealedLog, capsys: pytest.CaptureFixture[str]) -> Command:
    """`affidavit audit …` in this process: starting it a dozen times would take longer than all that it does."""
    settings = settings_file.load({"DATABASE_URL": log.url}, data_dir=log.folder)

    def run(*words: object) -> tuple[int, str, str]:
        given = main.parser().parse_args(["audit", *map(str, words)])
        code = asyncio.run(given.run(settings, given) if given.has_settings else given.run(given))
        return code, *capsys.readouterr()

    return run


async def test_every_record_of_a_log_has_a_proof(log: SealedLog) -> None:
    for (month, index), row in log.rows.items():
        content = await log.prove(row)
        assert auditor.check(content, log.keys).verdict == Verdict.VALID, (month, index)
        assert second_verifier.verdict(content, [str(key) for key in log.keys]) == "VALID"
        assert json.loads(content)["leaf_index"] == index


# Seen red with the roots of chunks kept for the last, unfinished chunk too.
async def test_proofs_reach_over_chunks_of_leaves(log: SealedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.checking.prover.CHUNK_LEAVES", 4)
    await test_every_record_of_a_log_has_a_proof(log)


def test_a_proof_is_written_and_checked_at_the_command_line(
    log: SealedLog, command: Command, tmp_path: Path
) -> None:
    query_id = log.rows[FEBRUARY, 5]["query_id"]
    file = tmp_path / "proof.json"
    assert command("prove", query_id, "-o", file) == (0, "", "")
    assert command("prove", query_id)[1].encode() == file.read_bytes()
    keys = log.folder / "signing.key.pub"
    assert command("check", file, "--public-key", keys) == (0, "VALID (1 checked)\n", "")


def test_without_a_record_there_is_no_proof(command: Command) -> None:
    code, out, err = command("prove", uuid4())
    assert (code, out) == (1, "")
    assert err.startswith("MISSING: There is no record")


def test_verify_at_the_command_line(log: SealedLog, command: Command, tmp_path: Path) -> None:
    said = affidavit("audit", "verify", "--json", data_dir=log.folder, DATABASE_URL=log.url)
    assert said.returncode == 0, said.stderr
    with psycopg.connect(
        log.url
    ) as connection:  # no sealer runs here, and other commands left records of their reads
        ((reads,),) = connection.execute(
            "SELECT (SELECT count(*) FROM audit_logs) - (SELECT count(*) FROM audit_leaves)"
        )
    counted = {UNWATCHED: 0} | ({"records wait for the sealer": reads} if reads else {})
    assert json.loads(said.stdout) == {
        "verdict": "VALID", "checked": 17, "findings": [], "findings_left_off": 0, "counted": counted,
    }  # fmt: skip
    code, out, _ = command("verify", "--from", "2025-02-01", "--to", "2025-02-10T12:03:00+00:00")
    assert (code, out.splitlines()[0]) == (0, "VALID (3 checked)")
    code, out, _ = command("verify", "--from", "2026-01-01", "--json")
    assert (code, json.loads(out)["verdict"]) == (1, "CANNOT_TELL")
    (tmp_path / "other.pub").write_text(f"{STRANGER.public}\n")
    code, out, _ = command("verify", "--public-key", tmp_path / "other.pub")
    assert code == 1 and out.startswith("TAMPERED")
    (tmp_path / "empty.pub").write_text("")
    with pytest.raises(ConfigurationError, match="holds no public key"):
        command("verify", "--public-key", tmp_path / "empty.pub")
    with pytest.raises(SystemExit, match="2"):
        command("verify", "--from", "yesterday")


def test_a_verification_tells_its_verdict_for_prometheus(
    log: SealedLog, command: Command, tmp_path: Path
) -> None:
    file, began = tmp_path / "verification.prom", wiring.now().timestamp()
    assert command("verify", "--metrics", file)[0] == 0
    told = read(file.read_text())
    assert told["affidavit_verification_verdict", 'verdict="VALID"'] == 1
    assert sum(value for (name, _), value in told.items() if name == "affidavit_verification_verdict") == 1
    assert told["affidavit_verification_checked", ""] == 17
    assert told["affidavit_verification_time_seconds", ""] >= began
    assert file.stat().st_mode & 0o777 == 0o644, "its reader is another user"
    (tmp_path / "other.pub").write_text(f"{STRANGER.public}\n")
    assert command("verify", "--public-key", tmp_path / "other.pub", "--metrics", file)[0] == 1
    assert read(file.read_text())["affidavit_verification_verdict", 'verdict="TAMPERED"'] == 1
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".draft"] == []
    with pytest.raises(ConfigurationError, match="metrics cannot be written"):
        command("verify", "--metrics", tmp_path / "nowhere" / "verification.prom")


async def test_who_interrupts_gets_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 means VALID: an auditor's script must not take a stopped one for that."""
    begun, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(show: Any) -> Report:
        loop.call_soon_threadsafe(begun.set)
        try:
            while True:
                show("records", 1, 2)
        finally:
            loop.call_soon_threadsafe(ended.set)

    verifying = asyncio.create_task(audit_commands._check_in_thread(work, argparse.Namespace(json=False)))
    await begun.wait()
    verifying.cancel()
    assert await verifying == 1
    assert capsys.readouterr().out == ""
    async with asyncio.timeout(10):
        await ended.wait()


def test_what_is_found_names_its_place_at_the_command_line(log: SealedLog, command: Command) -> None:
    log.attack(f"UPDATE audit_logs SET answer_text = 'else' WHERE log_id = '{log.log_id(FEBRUARY, 5)}'")
    try:
        code, out, _ = command("verify", "--json")
        (finding,) = json.loads(out)["findings"]
        assert (code, finding["month"], finding["leaf_index"]) == (1, "2025-02", 5)
        assert f"2025-02, leaf 5, record {log.log_id(FEBRUARY, 5)}" in command("verify")[1]
        code, out, err = command("prove", log.rows[FEBRUARY, 5]["query_id"])
        assert (code, out) == (1, "")
        assert err.startswith("TAMPERED")
    finally:
        log.restore()


def sealed_answer(client: httpx.Client, database: Database) -> dict[str, Any]:
    async def seal() -> None:
        async with wiring.open_sealer(database.settings, database) as sealer:
            await sealer.seal_once()

    answer: dict[str, Any] = client.post("/v1/query", json={"query": "What does an IMU measure?"}).json()
    asyncio.run(seal())
    return answer


def key_of(database: Database, client: str, scope: str) -> dict[str, str]:
    async def made() -> str:
        async with wiring.open_keys(database) as keys:
            return await keys.create(client, [scope], None)

    return {"Authorization": f"Bearer {asyncio.run(made())}"}


def test_who_asked_gets_the_proof_of_the_answer(
    client: httpx.Client, database: Database, tmp_path: Path
) -> None:
    answer = sealed_answer(client, database)
    given = client.get(f"/v1/receipts/{answer['query_id']}")
    assert given.status_code == 200
    keys = client.get("/v1/signing-keys", headers={"Authorization": ""}).json()["keys"]
    (tmp_path / "keys.pub").write_text("".join(f"{key}\n" for key in keys))
    known = read_public_keys(tmp_path / "keys.pub")
    report = auditor.check(given.content, known, json.dumps(answer).encode())
    assert report.verdict == Verdict.VALID, str(report)
    assert json.loads(given.content)["row"]["query_id"] == answer["query_id"]
    assert second_verifier.verdict(given.content, keys) == "VALID"
    assert auditor.check(json.dumps(answer).encode(), known).verdict == Verdict.UNSEALED


def test_the_proof_of_somebody_elses_answer_is_for_auditors(client: httpx.Client, database: Database) -> None:
    answer = sealed_answer(client, database)
    path = f"/v1/receipts/{answer['query_id']}"
    theirs = client.get(path, headers=key_of(database, "somebody else", "ask"))
    unknown = client.get(f"/v1/receipts/{uuid4()}")
    assert (theirs.status_code, unknown.status_code) == (404, 404)
    same = ("type", "title", "detail", "error_type", "retryable")
    assert [theirs.json()[name] for name in same] == [unknown.json()[name] for name in same]
    assert client.get(path, headers=key_of(database, "an auditor", "audit")).status_code == 200
    assert client.get(path, headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.get("/v1/receipts/no-id").status_code == 422


def test_a_record_that_is_not_sealed_yet_says_when_to_ask_again(
    client: httpx.Client, database: Database, records: Any
) -> None:
    answer = client.post("/v1/query", json={"query": "What does an IMU measure?"}).json()
    given = client.get(f"/v1/receipts/{answer['query_id']}")
    if given.status_code == 200:
        pytest.skip("the sealer was faster")
    assert given.status_code == 409
    assert 1 <= int(given.headers["Retry-After"]) <= 60
    assert given.json()["retryable"] is True
