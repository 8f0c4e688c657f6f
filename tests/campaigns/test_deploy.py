"""`deploy/` as its tools see it, and its logins, proxies and commands at work. What is not installed is skipped, and says so."""

import contextlib
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import pbkdf2_hmac, sha256
from hmac import digest
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from psycopg.conninfo import conninfo_to_dict

from engine.providers.postgres import PROGRAMS
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.conftest import ROOT, free_port
from tests.databases import empty_database
from tests.upstreams.validators import program

pytestmark = pytest.mark.campaign
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
WITHIN_S = 120
LOGINS = ("site", "site_sealer", "site_archiver", "site_auditor")
PASSWORD = "a b'c\"d$e\\f:g/h@i#j%k`l;m&n?o=ü"
HOST = "answers.example.org"


def _run(name: str, *arguments: object, **environment: str) -> str:
    """What it printed; skips if it cannot be had."""
    done = subprocess.run(
        [program(name), *map(str, arguments)],
        capture_output=True, text=True, timeout=WITHIN_S, check=False, cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1"} | environment,  # with CI=true some of them colour a pipe, in the middle of words
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("test", ["rules.test.yaml", "gate.test.yaml"])
def test_the_alerts_fire_when_they_should(test: str) -> None:
    _run("promtool", "check", "rules", DEPLOY / "alerts" / "rules.yaml")
    assert "SUCCESS" in _run("promtool", "test", "rules", DEPLOY / "alerts" / test)


def test_prometheus_reads_our_metrics(client: httpx.Client) -> None:
    client.post("/v1/query", json={"query": "What does an IMU measure?"})
    page = client.get("/metrics").text
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


EXAMPLE: dict[str, Any] = {}
EVERYTHING: dict[str, Any] = {
    "ingress": {"enabled": True, "host": HOST, "tlsSecret": "answers-tls", "className": "nginx", "annotations": {"a.example.org/b": "off"}},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]},
    "imagePullSecrets": ["registry"], "serviceAccount": {"name": "affidavit"}, "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "answers", "operator": "Exists"}], "image": {"digest": f"sha256:{'a' * 64}"},
    "engine": {"volume": {"storageClass": "fast"}}, "service": {"annotations": {"a.example.org/b": "c"}}, "vault": {"endpoint": "http://bucket:9000/"},
}  # fmt: skip
LITTLE: dict[str, Any] = {
    "archiver": {"enabled": False}, "verify": {"enabled": False}, "expiry": {"enabled": False}, "serviceMonitor": {"enabled": False},
    "index": {"provider": "edge", "url": ""}, "database": {"caSecret": "", "sslmode": "require"}, "existingSecrets": [], "settings": {},
    "vault": {"endpoint": "", "existingSecret": ""}, "networkPolicy": {"egressPorts": []},
}  # fmt: skip
OFF: dict[str, Any] = {"networkPolicy": {"enabled": False}, "database": {"caSecret": ""}}


def _rendered(folder: Path, values: dict[str, Any], helm: str = "helm4") -> Path:
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    given = ["--values", CHART / "example-values.yaml", "--values", folder / "values.yaml"]
    _run(helm, "lint", "--strict", CHART, *given)
    rendered = folder / "rendered.yaml"
    rendered.write_text(_run(helm, "template", "site", CHART, *given))
    return rendered


def _objects(rendered: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(rendered.read_text()) if each]
    return {(each["kind"], each["metadata"]["name"].removeprefix("site-affidavit")): each for each in found}


# Seen red with `replica: 2` in the StatefulSet, and with a probe's `periodSeconds: "5"`.
@pytest.mark.parametrize(
    "values", [EXAMPLE, EVERYTHING, LITTLE, OFF], ids=["example", "everything", "little", "off"]
)
@pytest.mark.parametrize("helm", ["helm3", "helm4"])
def test_the_chart_is_linted_rendered_and_valid(tmp_path: Path, helm: str, values: dict[str, Any]) -> None:
    rendered = _rendered(tmp_path, values, helm)
    ours = [
        kind for kind, _ in _objects(rendered) if kind != "ServiceMonitor"
    ]  # which Kubernetes does not know
    for version in ("1.27", "1.31", "1.36"):
        said = _run("kubernetes-validate", "--strict", "--kubernetes-version", version, rendered)
        assert said.count(" passed for resource ") == len(ours), said


def _allowed(policy: dict[str, Any], way: str) -> set[Any]:
    assert "Egress" in policy["spec"]["policyTypes"] and "Ingress" in policy["spec"]["policyTypes"]
    rules = policy["spec"].get(way, [])
    assert all(rule["ports"] for rule in rules), "a rule without ports allows all"
    return {port["port"] for rule in rules for port in rule["ports"]}


# Seen red with the engine's rule as it was: with no port of its own left it was empty, which allows every port.
@pytest.mark.parametrize(
    ("values", "everyones", "engines"),
    [
        (EXAMPLE, {53, 5432, 443}, {6333, 443, 6379}), (EVERYTHING, {53, 5432, 9000}, {6333, 443, 6379}),
        (LITTLE, {53, 5432, 443, 80}, set()),
    ],
    ids=["example", "everything", "little"],
)  # fmt: skip
def test_a_pod_reaches_what_it_needs_and_only_the_engine_is_reached(
    tmp_path: Path, values: dict[str, Any], everyones: set[int], engines: set[int]
) -> None:
    found = _objects(_rendered(tmp_path, values))
    of_all, of_engine = found["NetworkPolicy", ""], found["NetworkPolicy", "-engine"]
    assert (_allowed(of_all, "egress"), _allowed(of_all, "ingress")) == (everyones, set())
    assert (_allowed(of_engine, "egress"), _allowed(of_engine, "ingress")) == (engines, {"http"})
    assert of_engine["spec"]["ingress"][0].get("from", []) == values.get("networkPolicy", {}).get("from", [])
    selected = of_all["spec"]["podSelector"]["matchLabels"].items()
    for pod in _pods(found).values():
        assert selected <= pod["metadata"]["labels"].items()


def test_the_ingress_has_tls_and_keeps_the_metrics_inside(tmp_path: Path) -> None:
    found = _objects(_rendered(tmp_path, EVERYTHING))
    spec = found["Ingress", ""]["spec"]
    assert spec["tls"] == [{"hosts": [HOST], "secretName": "answers-tls"}]
    paths = {path["path"]: path["backend"]["service"]["name"] for path in spec["rules"][0]["http"]["paths"]}
    assert paths == {"/": "site-affidavit", "/metrics": "site-affidavit-nowhere"}
    assert "selector" not in found["Service", "-nowhere"]["spec"]
    assert ("Ingress", "") not in _objects(_rendered(tmp_path, EXAMPLE))


def _pods(found: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    templates = {
        name: each["spec"].get("jobTemplate", each)["spec"].get("template") for name, each in found.items() if "spec" in each
    }  # fmt: skip
    return {name: template for name, template in templates.items() if template}


# Seen red without `runAsNonRoot`.
def test_no_pod_can_change_or_gain_anything(tmp_path: Path) -> None:
    pods = _pods(_objects(_rendered(tmp_path, EXAMPLE)))
    assert len(pods) == 6
    for pod in (template["spec"] for template in pods.values()):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"] for volume in pod["volumes"]} | {"data"}
            assert mounted <= volumes


def test_the_chart_refuses_values_that_lack_something() -> None:
    done = subprocess.run(
        [program("helm4"), "template", "site", str(CHART)], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )  # fmt: skip
    assert done.returncode != 0
    assert "database/host" in done.stderr or "database.host" in done.stderr


def test_the_compose_file_is_linted() -> None:
    """It asks for digests of images; a site pins those of the registry that it uses."""
    _run("compose-lint", DEPLOY / "compose.yaml")


def test_the_compose_file_is_valid() -> None:
    assert "(0 errors, " in _run("dclint", DEPLOY / "compose.yaml")


def test_the_dockerfile_is_linted() -> None:
    _run("hadolint", ROOT / "Dockerfile")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as they are installed, with a program that exists here."""
    for unit in (DEPLOY / "systemd").glob("affidavit*"):
        (tmp_path / unit.name).write_text(
            unit.read_text().replace("/opt/affidavit/bin/affidavit", "/bin/true")
        )
        if unit.suffix == ".service":
            (tmp_path / f"{unit.name}.d").mkdir()
            shutil.copy(DEPLOY / "systemd" / "hardening.conf", tmp_path / f"{unit.name}.d")
    return tmp_path


def test_the_units_are_valid(units: Path) -> None:
    assert _run("systemd-analyze", "verify", *sorted(units.glob("affidavit*.*[er]"))) == ""


def test_the_units_are_exposed_to_little(units: Path) -> None:
    """From 0, nothing, to 10, everything. What is left is the network, and files that others may read."""
    for unit in sorted(units.glob("*.service")):
        _run("systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", unit)


def test_caddys_recipe_is_valid() -> None:
    _run("caddy", "validate", "--adapter", "caddyfile", "--config", DEPLOY / "proxies" / "Caddyfile")


class _Echo(http.server.BaseHTTPRequestHandler):
    """Says what the engine would have been told."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = "\n".join(f"{name.lower()}: {value}" for name, value in self.headers.items()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(
            name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, private = tmp_path / "fullchain.pem", tmp_path / "privkey.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return chain, private


@pytest.fixture
def proxy(
    request: pytest.FixtureRequest, upstream: int, certificate: tuple[Path, Path], tmp_path: Path
) -> Iterator[httpx.Client]:
    """The recipe at work, on ports of its own."""
    port, plain = free_port(), free_port()
    given = {"nginx": _nginx, "caddy": _caddy}[request.param]
    command = given(tmp_path, certificate, port, plain, upstream)
    process = subprocess.Popen([program(request.param), *command], env=os.environ | {"HOME": str(tmp_path)})
    try:
        _wait_for(port, process)
        trusted = ssl.create_default_context(cafile=str(certificate[0]))
        with httpx.Client(
            verify=trusted, base_url=f"https://127.0.0.1:{port}", headers={"Host": HOST}
        ) as client:
            yield client
    finally:
        process.terminate()
        process.wait(WITHIN_S)


def _nginx(folder: Path, certificate: tuple[Path, Path], port: int, plain: int, upstream: int) -> list[str]:
    site = (DEPLOY / "proxies" / "nginx.conf").read_text()
    for theirs, ours in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"), ("listen 80", f"listen 127.0.0.1:{plain}"),
        ("127.0.0.1:8000", f"127.0.0.1:{upstream}"),
        (f"/etc/letsencrypt/live/{HOST}/fullchain.pem", str(certificate[0])),
        (f"/etc/letsencrypt/live/{HOST}/privkey.pem", str(certificate[1])),
    ):  # fmt: skip
        assert theirs in site
        site = site.replace(theirs, ours)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{site}\n}}"
    )
    return ["-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


def _caddy(folder: Path, certificate: tuple[Path, Path], port: int, _: int, upstream: int) -> list[str]:
    site = (DEPLOY / "proxies" / "Caddyfile").read_text()
    for theirs, ours in (
        (f"{HOST} {{", f"https://{HOST}:{port} {{\n\ttls {certificate[0]} {certificate[1]}"),
        ("127.0.0.1:8000", f"127.0.0.1:{upstream}"),
    ):
        assert theirs in site
        site = site.replace(theirs, ours)
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https off\n}}\n{site}")
    return ["run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


@pytest.mark.parametrize("proxy", ["nginx", "caddy"], indirect=True)
def test_a_proxy_ends_tls_and_lets_nobody_choose_an_address(proxy: httpx.Client) -> None:
    sent = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9", "Authorization": "Bearer aff_x"}
    sni = {"sni_hostname": HOST}
    answer = proxy.post("/v1/query", json={"query": "?"}, headers=sent, extensions=sni)
    told = dict(line.split(": ", 1) for line in answer.text.splitlines())
    assert told["x-forwarded-for"] == "127.0.0.1"
    assert "forwarded" not in told
    assert told["authorization"] == "Bearer aff_x"
    assert told["host"] == HOST
    assert "max-age" in answer.headers["Strict-Transport-Security"]
    assert proxy.get("/metrics", extensions=sni).status_code == 404
    assert proxy.post("/v1/query", content=b"x" * 2_000_000, extensions=sni).status_code in {413, 502}


@pytest.fixture
def installation(database: Database, tmp_path: Path) -> Iterator[dict[str, str]]:
    """libpq's variables for a new database, migrated by an operator, with the logins of deploy/postgresql/logins.sql."""
    passwords = tmp_path / "secrets"
    passwords.mkdir()
    for login in LOGINS:
        (passwords / login).write_text(f"{login} {PASSWORD}\n")
    with empty_database(database) as url:
        given = conninfo_to_dict(url)
        address = {
            "PGHOST": str(given["host"]),
            "PGPORT": str(given.get("port", 5432)),
            "PGDATABASE": str(given["dbname"]),
        }
        operator = address | {
            "PGUSER": str(given["user"]),
            "DATABASE_URL": "postgresql://",
            "FOLDER": str(passwords),
        }
        try:
            assert affidavit("migrate", data_dir=tmp_path, **operator).returncode == 0
            for _ in range(2):  # again when a password has changed
                _run(
                    str(PROGRAMS / "psql"),
                    "--no-psqlrc",
                    "-f",
                    DEPLOY / "postgresql" / "logins.sql",
                    **operator,
                )
            assert affidavit("audit", "key", "--new", data_dir=tmp_path, **operator).returncode == 0
            yield operator
        finally:
            _forget_logins(database)


def _forget_logins(database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as superuser:
        for login in LOGINS:
            superuser.execute(f"DROP ROLE IF EXISTS {login}".encode())


def _is_password(verifier: str, password: str) -> bool:
    """RFC 5802's stored key."""
    _, count_and_salt, keys = verifier.split("$")
    count, salt = count_and_salt.split(":")
    salted = pbkdf2_hmac("sha256", password.encode(), b64decode(salt), int(count))
    return sha256(digest(salted, b"Client Key", "sha256")).digest() == b64decode(keys.split(":")[0])


def test_each_login_can_do_its_work_and_its_password_may_have_any_character(
    database: Database, installation: dict[str, str], tmp_path: Path
) -> None:
    with psycopg.connect(database.url) as superuser:
        stored = superuser.execute(
            "SELECT rolname, rolpassword FROM pg_authid WHERE rolpassword IS NOT NULL"
        ).fetchall()
    assert {login for login, verifier in stored if _is_password(verifier, f"{login} {PASSWORD}")} == set(
        LOGINS
    )

    deployed = installation | {"AFFIDAVIT_AUDIT__SEAL_IN_SERVE": "false"}

    def works(login: str, *words: str) -> str:
        done = affidavit(
            *words, data_dir=tmp_path, **deployed | {"PGUSER": login, "PGPASSWORD": f"{login} {PASSWORD}"}
        )
        assert done.returncode == 0, f"{login}: {done.stdout}{done.stderr}"
        return done.stdout

    _serve_one_request(tmp_path, deployed | {"PGUSER": "site"})
    assert " 0 records sealed" not in f" {works('site_sealer', 'audit', 'seal', '--once')}"
    works("site_archiver", "audit", "archive")
    works(
        "site_auditor",
        "audit",
        "verify",
        "--public-key",
        str(tmp_path / "signing.key.pub"),
        "--from",
        "2026-01-01",
    )
    works("site", "audit", "status")
    works("site_archiver", "sessions", "purge")
    works("site_archiver", "audit", "retention")


def _serve_one_request(data_dir: Path, environment: dict[str, str]) -> None:
    port = free_port()
    command = [sys.executable, "-m", "engine.cli", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    with (data_dir / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        assert (
            httpx.post(f"http://127.0.0.1:{port}/v1/query", json={"query": "?"}, timeout=WITHIN_S).status_code
            == 401
        )
        assert (
            "affidavit_unsealed_rows" in httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=WITHIN_S).text
        )
    finally:
        process.terminate()
        process.wait(WITHIN_S)
