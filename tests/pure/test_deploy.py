"""What `deploy/` names exists: metrics, pages, commands, settings, roles; and nothing in it is open that need not be."""

import argparse
import json
import platform
import re
import shlex
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator  # type: ignore[import-untyped]  # it has no types of its own
from pydantic import SecretStr

from engine import settings as settings_file
from engine.cli.main import parser
from engine.http.metrics import FAMILIES, SCORES, SECONDS, VERIFICATION_FAMILIES
from supply.image import BOTOCORE_KEPT, STRIPPED, unused
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "alerts" / "rules.yaml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
CHART = DEPLOY / "chart"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# Of kube-state-metrics and of node_exporter.
FOREIGN = {"kube_cronjob_status_last_successful_time", "node_systemd_timer_last_trigger_seconds", "node_systemd_unit_state"}  # fmt: skip


def _rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def _queries() -> dict[str, str]:
    """Each by where it stands."""
    shown = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    }
    return shown | {rule.get("alert") or rule["record"]: rule["expr"] for rule in _rules()}


def _series() -> set[str]:
    """All names that a query may ask for."""
    recorded = {rule["record"] for rule in _rules() if "record" in rule}
    kinds = {"histogram": ("_bucket", "_sum", "_count")}
    families = FAMILIES | VERIFICATION_FAMILIES
    ours = {name + end for name, (kind, _) in families.items() for end in kinds.get(kind, ("",))}
    return ours | recorded | FOREIGN


# Seen red with affidavit_spool_records, which there is not, in a rule.
@pytest.mark.parametrize(("place", "query"), _queries().items(), ids=list(_queries()))
def test_a_query_asks_for_metrics_that_exist(place: str, query: str) -> None:
    bare = re.sub(r'"[^"]*"', "", query)
    named = set(re.findall(r"\b(?:affidavit|kube|node)[:_][a-z0-9_:]+", bare))
    assert named, place
    assert named <= _series()


# Seen red with le="5", which Prometheus does not take for our "5.0".
def test_a_bucket_that_a_query_names_exists() -> None:
    limits = {str(limit) for limit in (*SECONDS, *SCORES)}
    named = {limit for query in _queries().values() for limit in re.findall(r'le="([^"]+)"', query)}
    assert named
    assert named <= limits


def test_every_metric_of_ours_is_watched_by_a_panel_or_a_rule() -> None:
    queries = " ".join(_queries().values())
    assert [name for name in FAMILIES | VERIFICATION_FAMILIES if name not in queries] == []


def test_every_alert_leads_to_a_section_that_exists_and_has_a_unit_test() -> None:
    tests = "".join((DEPLOY / "alerts" / name).read_text() for name in ("rules.test.yaml", "gate.test.yaml"))
    for rule in _rules():
        if "alert" in rule:
            page, _, anchor = rule["annotations"]["runbook"].partition("#")
            headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
            assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, rule["alert"]
            assert rule["labels"]["severity"] in {"page", "ticket"}
            fires = rf"alertname: {rule['alert']}\n +eval_time: \w+\n +exp_alerts:\n"
            assert re.search(fires, tests), f"{rule['alert']}: no test where it fires"


def _merged(base: Any, over: Any) -> Any:
    """As Helm merges values."""
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {key: _merged(base.get(key), value) for key, value in over.items()}
    return over


def _wrong(**changed: Any) -> list[str]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    example = yaml.safe_load((CHART / "example-values.yaml").read_text())
    found = Draft7Validator(schema).iter_errors(_merged(_merged(values, example), changed))
    return [".".join(map(str, error.absolute_path)) for error in found]


def test_the_schema_of_the_chart_takes_its_example() -> None:
    assert _wrong() == []


@pytest.mark.parametrize(
    ("where", "changed"),
    [
        ("database.host", {"database": {"host": ""}}),
        ("database.logins.sealer.existingSecret", {"database": {"logins": {"sealer": {"existingSecret": ""}}}}),
        ("database.logins.engine", {"database": {"logins": {"engine": {"password": "p"}}}}),
        ("database.sslmode", {"database": {"sslmode": "verified"}}),
        ("signingKey.existingSecret", {"signingKey": {"existingSecret": ""}}),
        ("vault.bucket", {"vault": {"bucket": ""}}),
        ("index.url", {"index": {"provider": "qdrant", "url": ""}}),
        ("image.tag", {"image": {"tag": "latest"}}),
        ("engine.replicas", {"engine": {"replicas": 0}}),
        ("settings", {"settings": {"AFFIDAVIT_CLAUDE__API_KEY": "a secret"}}),
        ("settings", {"settings": {"AFFIDAVIT_DATABASE__URL": "postgresql://site:p@db/affidavit"}}),
        ("settings", {"settings": {"AFFIDAVIT_TRACES__HEADERS": "key=p"}}),
        ("", {"postgresql": {"enabled": True}}),
        ("ingress.host", {"ingress": {"enabled": True, "tlsSecret": "tls"}}),
        ("ingress.tlsSecret", {"ingress": {"enabled": True, "host": "answers.example.org"}}),
        ("networkPolicy.from.0", {"networkPolicy": {"from": [{"namespaces": ["ingress"]}]}}),
        ("networkPolicy.egressPorts.0", {"networkPolicy": {"egressPorts": ["all"]}}),
        ("expiry.schedule", {"expiry": {"schedule": "daily"}}),
        ("serviceMonitor.interval", {"serviceMonitor": {"interval": "often"}}),
        ("podDisruptionBudget.maxUnavailable", {"podDisruptionBudget": {"maxUnavailable": 0}}),
    ],
    ids=["host", "login", "password", "sslmode", "key", "bucket", "qdrant", "latest", "replicas", "secret", "url", "headers", "other",
         "ingress", "tls", "peer", "port", "schedule", "interval", "budget"],
)  # fmt: skip
def test_the_schema_of_the_chart_refuses(where: str, changed: dict[str, Any]) -> None:
    assert _wrong(**changed) == [where]


# Seen red with every name that ends in KEY refused: limits.per_key is no key, and could not be set.
def test_the_schema_of_the_chart_takes_every_setting_that_is_no_secret() -> None:
    def names(*, secret: bool) -> Iterator[str]:
        for table, field in settings_file.Settings.model_fields.items():
            for key, of in getattr(field.annotation, "model_fields", {}).items():
                is_secret = of.annotation is SecretStr or key == "url"
                if is_secret is secret:
                    yield f"AFFIDAVIT_{table}__{key}".upper()

    assert _wrong(settings=dict.fromkeys(names(secret=False), "1")) == []
    for name in names(secret=True):
        assert _wrong(settings={name: "1"}) == ["settings"], name


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == chart["version"] == version
    assert COMPOSE["services"]["engine"]["image"] == f"affidavit:{version}"


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_of_compose_can_change_nothing_and_gain_nothing(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert re.search(r":[\w.-]*\d", service["image"]), "a version, never the latest"
    assert service["mem_limit"]
    assert [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")] == []


def test_no_password_is_in_the_compose_file() -> None:
    for name, service in COMPOSE["services"].items():
        literal = {
            key for key in service.get("environment", {}) if re.search("PASSWORD|SECRET|_KEY", key)
        } - {"POSTGRES_PASSWORD_FILE"}
        assert not literal, name
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert {given["file"].partition("/")[2].partition("/")[0] for given in COMPOSE["secrets"].values()} == {
        "secrets"
    }


def test_settings_that_are_deployed_exist() -> None:
    environments = [service.get("environment", {}) for service in COMPOSE["services"].values()]
    for environment in environments:
        settings_file.load(environment)
    templates = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    example = yaml.safe_load((CHART / "example-values.yaml").read_text())["settings"]
    named = dict.fromkeys(re.findall(r"AFFIDAVIT_[A-Z]+__[A-Z_]+", templates))
    for name in {*named, *example}:
        table, _, key = name.removeprefix("AFFIDAVIT_").lower().partition("__")
        assert key in getattr(settings_file.load({}), table).model_fields_set, name


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of ours that something in deploy/ starts, with its arguments."""
    for name, service in COMPOSE["services"].items():
        yield from ((f"compose {name}", words) for words in _ours(service.get("command", [])))
    for file in (CHART / "templates").glob("*.yaml"):
        for listed in re.findall(r"command: \[(affidavit.*)\]", file.read_text()):
            yield f"chart {file.name}", re.sub(r"\{\{.*?\}\}", "2", listed).replace('"', "").split(", ")[1:]
        yield from ((f"chart {file.name}", words) for words in _ours([file.read_text()]))
    for unit in UNITS:
        lines = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
        bare = [line.replace("$$", "$").replace("/opt/affidavit/bin/", "") for line in lines]
        yield from ((unit.name, words) for words in _ours(bare))


def _ours(command: list[str] | str) -> Iterator[list[str]]:
    if command[:1] == ["affidavit"]:
        yield list(command[1:])
    for text in command:
        for line in re.findall(r"(?:exec |=)affidavit (.+)", text):
            yield shlex.split(re.sub(r'"\$+\(date.*?\)"', "2026-01-01", line.rstrip("'")))


@pytest.mark.parametrize(
    ("place", "words"), list(_commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_command_that_is_deployed_exists(place: str, words: list[str]) -> None:
    parsed = parser().parse_args(words)
    assert isinstance(parsed, argparse.Namespace), place


def test_every_process_is_deployed_in_each_way() -> None:
    wanted = {"serve", "audit seal", "audit archive", "audit verify", "audit retention", "sessions purge"}
    for way in ("compose", "chart", "affidavit"):
        found = {" ".join(words) for place, words in _commands() if place.startswith(way)}
        assert {name for name in wanted if any(each.startswith(name) for each in found)} == wanted, way


def test_a_login_has_the_roles_of_the_manual_and_no_others() -> None:
    text = (DEPLOY / "postgresql" / "logins.sql").read_text()
    granted = {
        login: set(roles.split(", "))
        for roles, login in re.findall(r"^GRANT (.+) TO (\w+);$", text, re.MULTILINE)
    }
    assert granted == {
        "site": {"affidavit_engine", "affidavit_auditor"},
        "site_sealer": {"affidavit_sealer"},
        "site_archiver": {"affidavit_archiver", "affidavit_engine"},
        "site_auditor": {"affidavit_auditor"},
    }
    chart = yaml.safe_load((CHART / "values.yaml").read_text())["database"]["logins"]
    assert {login["user"] for name, login in chart.items() if name != "migrate"} == set(granted)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_the_command_under_a_login(unit: Path) -> None:
    text = unit.read_text()
    assert "EnvironmentFile=/etc/affidavit/settings\n" in text
    assert re.search(r"^EnvironmentFile=/etc/affidavit/site(_\w+)?$", text, re.MULTILINE)
    assert "MemoryMax=" in text


# Seen red with a pattern of a library that there is not, libarrow_gandiva.
@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="the image is for Linux"
)
def test_what_the_image_leaves_out_is_in_the_packages_of_today() -> None:
    packages = Path(sysconfig.get_path("purelib"))
    left_out = {str(path.relative_to(packages)) for path in unused(packages)}
    assert "botocore/data/ec2" in left_out
    assert not {f"botocore/data/{kept}" for kept in BOTOCORE_KEPT} & left_out
    assert all((packages / name).is_dir() for name in STRIPPED)
