"""config/engine.toml, the environment, and what is made of them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from engine.errors import ConfigurationError
from engine.settings import CONFIG, CONVENTIONAL, PREFIX, Settings, load

FILE = CONFIG / "engine.toml"
TEXT = FILE.read_text("utf-8")


def settings_of(model: type[BaseModel], *tables: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and the type of each setting."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from settings_of(field.annotation, *tables, name)
        else:
            yield (*tables, name), field.annotation


ALL = dict(settings_of(Settings))
SECRETS = [path for path, kind in ALL.items() if kind is SecretStr]
SECRET = "key=hunter2"  # in a form that headers have too


def prefixed(path: tuple[str, ...]) -> str:
    return PREFIX + "__".join(path).upper()


def value_of(settings: Settings, path: tuple[str, ...]) -> Any:
    value: Any = settings
    for name in path:
        value = getattr(value, name)
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def refused(environment: dict[str, str], file: Path = FILE) -> str:
    with pytest.raises(ConfigurationError) as wrong:
        load(environment, file)
    return str(wrong.value)


def test_file_and_model_name_the_same_settings() -> None:
    in_file: set[tuple[str, ...]] = set()
    for name, value in tomllib.loads(TEXT).items():
        in_file.update({(name, key) for key in value} if isinstance(value, dict) else {(name,)})
    assert in_file == set(ALL)


def test_every_setting_has_its_comment_right_above() -> None:
    lines = TEXT.splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"\w+ = ", line)]
    assert len(keys) == len(ALL)
    assert [lines[number] for number in keys if not re.match(r"# \S", lines[number - 1])] == []


def test_usual_names_stand_in_the_file() -> None:
    assert [name for name in CONVENTIONAL if name not in TEXT] == []


def test_file_alone_is_enough() -> None:
    settings = load({})
    assert settings.retrieval.threshold == 0.60
    assert settings.data_dir == Path(".affidavit").absolute()


@pytest.mark.parametrize("path", ALL, ids=".".join)
def test_missing_setting_is_named(path: tuple[str, ...], tmp_path: Path) -> None:
    *tables, key = path
    before, header, after = TEXT.partition(f"[{tables[0]}]\n") if tables else ("", "", TEXT)
    file = tmp_path / "engine.toml"
    file.write_text(before + header + re.sub(rf"(?m)^{key} = .*$", "", after, count=1), "utf-8")
    assert ".".join(path) in refused({}, file)


def test_unknown_setting_of_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(TEXT + "enabld = true\n", "utf-8")
    assert "page.enabld: there is no such setting" in refused({}, file)


@pytest.mark.parametrize("content", [b"[page\n", b"top_k = ", b"# caf\xe9\n"], ids=repr)
def test_unreadable_file_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_bytes(content)
    assert str(file) in refused({}, file)


def test_absent_file_is_named(tmp_path: Path) -> None:
    assert "absent.toml" in refused({}, tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AFFIDAVIT_NOSUCH", "nosuch: there is no such setting"),
        ("AFFIDAVIT_NOSUCH__TOP_K", "nosuch: there is no such setting"),
        ("AFFIDAVIT_RETRIEVAL__TOPK", "retrieval.topk: there is no such setting"),
        ("AFFIDAVIT_TOP_K", "top_k: there is no such setting"),
        ("AFFIDAVIT_RETRIEVAL_TOP_K", "retrieval_top_k: there is no such setting"),
        ("AFFIDAVIT_RETRIEVAL__TOP_K__X", "AFFIDAVIT_RETRIEVAL__TOP_K__X: top_k is a setting, not a table"),
        ("AFFIDAVIT_DATA_DIR__X", "AFFIDAVIT_DATA_DIR__X: data_dir is a setting, not a table"),
        ("AFFIDAVIT_RETRIEVAL", "retrieval: "),
    ],
)
def test_unknown_name_is_refused_and_named(name: str, said: str) -> None:
    message = refused({name: "unheard-of"})
    assert said in message
    assert "unheard-of" not in message


def test_all_that_is_wrong_is_said_at_once() -> None:
    message = refused({"AFFIDAVIT_RETRIEVAL__TOP_K": "0", "AFFIDAVIT_NOSUCH": "1"})
    assert "retrieval.top_k" in message
    assert "nosuch" in message


def test_environment_comes_before_the_file() -> None:
    assert load({"AFFIDAVIT_RETRIEVAL__TOP_K": "3"}).retrieval.top_k == 3


def test_foreign_names_are_left_alone() -> None:
    others = {"PATH": "/bin", "affidavit_retrieval__top_k": "3", "MY_AFFIDAVIT_X": "1", "AFFIDAVIT": "1"}
    assert load(others) == load({})


@pytest.mark.parametrize(("name", "path"), CONVENTIONAL.items(), ids=CONVENTIONAL)
def test_usual_name_wins(name: str, path: tuple[str, ...]) -> None:
    assert value_of(load({name: "usual", prefixed(path): "prefixed"}), path) == "usual"
    assert value_of(load({name: "", prefixed(path): "prefixed"}), path) == "prefixed"


def test_usual_names_are_those_of_their_vendor() -> None:
    tables = {"ANTHROPIC": "claude", "CO": "cohere", "VAULT": "signing"}
    for name, (table, key) in CONVENTIONAL.items():
        vendor, _, what = name.partition("_")
        assert table == tables.get(vendor, vendor.lower())
        assert key.split("_")[-1] == what.lower().split("_")[-1]


@pytest.mark.parametrize("path", sorted(set(CONVENTIONAL.values())), ids=".".join)
def test_first_of_the_usual_names_wins(path: tuple[str, ...]) -> None:
    names = [name for name, where in CONVENTIONAL.items() if where == path]
    assert value_of(load({name: name for name in reversed(names)}), path) == names[0]


def test_argument_comes_before_the_environment(tmp_path: Path) -> None:
    environment = {"AFFIDAVIT_DATA_DIR": "/elsewhere"}
    assert load(environment).data_dir == Path("/elsewhere")
    assert load(environment, data_dir=tmp_path).data_dir == tmp_path
    assert load(environment, data_dir=None).data_dir == Path("/elsewhere")


def test_data_dir_is_absolute_and_knows_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/reader")
    assert load({"AFFIDAVIT_DATA_DIR": "~/data"}).data_dir == Path("/home/reader/data")
    assert load({"AFFIDAVIT_DATA_DIR": "data"}).data_dir.is_absolute()


def test_home_of_nobody_is_a_wrong_setting() -> None:
    assert "data_dir" in refused({"AFFIDAVIT_DATA_DIR": "~no-such-user/data"})


def test_frozen() -> None:
    settings = load({})
    for target, name in ((settings, "data_dir"), (settings.retrieval, "top_k"), (settings, "unheard")):
        with pytest.raises(ValidationError):
            setattr(target, name, 1)


def test_api_keys_and_passwords_are_secrets() -> None:
    assert {("database", "url"), ("redis", "url")} <= set(SECRETS)
    assert [path for path in ALL if path[-1] == "api_key" and path not in SECRETS] == []


@pytest.mark.parametrize("path", SECRETS, ids=".".join)
def test_secret_does_not_show(path: tuple[str, ...]) -> None:
    settings = load({prefixed(path): SECRET})
    assert value_of(settings, path) == SECRET
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert "hunter2" not in shown


@pytest.mark.parametrize("path", SECRETS, ids=".".join)
def test_secret_does_not_show_in_the_fingerprint(path: tuple[str, ...]) -> None:
    one, two = load({prefixed(path): SECRET}), load({prefixed(path): f"{SECRET}3"})
    assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize("path", SECRETS, ids=".".join)
def test_secrets_do_not_take_part_in_the_fingerprint(path: tuple[str, ...]) -> None:
    """Whether one is set says how the engine is reached, not how it decides."""
    assert load({prefixed(path): SECRET}).fingerprint() == load({}).fingerprint()


@pytest.mark.parametrize(
    "name", ["AFFIDAVIT_DATA_DIR", "QDRANT_URL", "ANTHROPIC_BASE_URL", "COHERE_BASE_URL"]
)
def test_places_do_not_take_part_in_the_fingerprint(name: str) -> None:
    assert load({name: "http://one"}).fingerprint() == load({name: "http://two"}).fingerprint()


def test_fingerprint_names_the_numbers_that_decide() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", load({}).fingerprint())
    assert load({"AFFIDAVIT_RETRIEVAL__THRESHOLD": "0.61"}).fingerprint() != load({}).fingerprint()
    assert load({"AFFIDAVIT_RETRIEVAL__THRESHOLD": "0.60"}).fingerprint() == load({}).fingerprint()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("retrieval.top_k", "0", "greater than or equal to 1"),
        ("retrieval.top_k", "11", "less than or equal to 10"),
        ("retrieval.top_k", "eleven", "valid integer"),
        ("retrieval.top_k", "", "valid integer"),
        ("retrieval.threshold", "1.01", "less than or equal to 1"),
        ("retrieval.threshold", "nan", ""),
        ("chunking.overlap", "1", "less than 1"),
        ("budget.total_s", "0", "greater than 0"),
        ("budget.total_s", "-inf", "greater than 0"),
        ("database.connections_max", "2", "greater than or equal to 3"),
        ("limits.per_key", "100/week", "must be a rate such as"),
        ("limits.per_key", "0/minute", "must be a rate such as"),
        ("limits.per_key", "100/minute\n", "must be a rate such as"),
        ("page.enabled", "perhaps", "valid boolean"),
        ("server.trusted_proxies", "proxy", "IP address"),
        ("server.allowed_origins", "*", "an origin"),
        ("server.allowed_origins", "null", "an origin"),
        ("server.allowed_origins", "book.example.org", "an origin"),
        ("server.allowed_origins", "https://book.example.org/", "an origin"),
        ("server.allowed_origins", "https://Book.example.org", "an origin"),
        ("server.allowed_origins", "https://book.example.org:443", "an origin"),
        ("server.allowed_origins", "https://a.example, https://*.b.example", "an origin"),
        ("server.trusted_proxies", "10.0.0.7, 10.0.0.1/8", "IP address"),
        ("server.trusted_proxies", "10.0.0.0/99", "IP address"),
        ("archive.object_lock_mode", "NONE", "'COMPLIANCE' or 'GOVERNANCE'"),
    ],
)
def test_wrong_value_is_explained(path: str, value: str, said: str) -> None:
    message = refused({prefixed(tuple(path.split("."))): value})
    assert f"  {path}: " in message
    assert said in message


@pytest.mark.parametrize(
    ("given", "trusted"),
    [
        ("", ()),
        ("10.0.0.7", ("10.0.0.7",)),
        ("10.0.0.7,fd00::/8", ("10.0.0.7", "fd00::/8")),
        (" 10.0.0.0/8 , ", ("10.0.0.0/8",)),
    ],
)
def test_proxies_are_listed_with_commas_in_the_environment(given: str, trusted: tuple[str, ...]) -> None:
    assert load({"AFFIDAVIT_SERVER__TRUSTED_PROXIES": given}).server.trusted_proxies == trusted


def test_proxies_are_a_list_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(TEXT.replace("trusted_proxies = []", 'trusted_proxies = ["10.0.0.7"]'), "utf-8")
    assert load({}, file).server.trusted_proxies == ("10.0.0.7",)
    file.write_text(TEXT.replace("trusted_proxies = []", "trusted_proxies = [7]"), "utf-8")
    assert "server.trusted_proxies" in refused({}, file)


def test_no_proxy_is_trusted_unless_it_is_named() -> None:
    assert load({}).server.trusted_proxies == ()


def test_proxies_do_not_take_part_in_the_fingerprint() -> None:
    named = load({"AFFIDAVIT_SERVER__TRUSTED_PROXIES": "10.0.0.7"})
    assert named.fingerprint() == load({}).fingerprint()


def test_wrong_name_of_a_secret_does_not_show_the_secret() -> None:
    message = refused(
        {"AFFIDAVIT_CLAUDE__APIKEY": "hunter2", "AFFIDAVIT_CLAUDE__MAX_OUTPUT_TOKENS": "hunter2"}
    )
    assert "hunter2" not in message


@pytest.mark.parametrize("name", ["AFFIDAVIT_KEY", "AFFIDAVIT_KEY_FILE", "AFFIDAVIT_GATEWAY_PER_DAY"])
def test_a_gateway_may_share_the_environment(name: str) -> None:
    assert load({name: "anything"}) == load({})


def test_sites_that_may_read_answers_are_listed_like_proxies() -> None:
    given = "https://book.example.org, http://localhost:3000,http://[::1]:3000"
    assert load({"AFFIDAVIT_SERVER__ALLOWED_ORIGINS": given}).server.allowed_origins == tuple(
        part.strip() for part in given.split(",")
    )
    assert load({}).server.allowed_origins == ()


@pytest.mark.parametrize(
    "wrong",
    ["127.0.0.1:4318", "ftp://host/", "http://user:hunter2@host/v1/traces", "http://host/v1/traces?key=hunter2", "http:// host/"],
)  # fmt: skip
def test_the_address_of_a_collector_is_a_url_without_a_secret(wrong: str) -> None:
    told = refused({"AFFIDAVIT_TRACES__ENDPOINT": wrong})
    assert "traces.endpoint: must be a URL" in told
    assert "hunter2" not in told


@pytest.mark.parametrize("wrong", ["hunter2", "a=b c=hunter2", "=hunter2", "a=hunter2,,b=c", "a b=hunter2"])
def test_headers_of_a_collector_are_pairs_and_a_message_does_not_show_them(wrong: str) -> None:
    told = refused({"AFFIDAVIT_TRACES__HEADERS": wrong})
    assert "traces.headers: must be headers" in told
    assert "hunter2" not in told


def test_traces_are_off_unless_a_collector_is_named() -> None:
    assert load({}).traces.endpoint == ""


def test_a_file_of_ones_own_has_what_differs_and_the_environment_has_the_last_word(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[limits]\nper_key = "7/minute"\n[retrieval]\ntop_k = 4\n', "utf-8")
    settings = load({"AFFIDAVIT_SETTINGS_FILE": str(own), "AFFIDAVIT_RETRIEVAL__TOP_K": "3"})
    assert (settings.limits.per_key, settings.retrieval.top_k) == ("7/minute", 3)
    assert settings.limits.anonymous == load({}).limits.anonymous


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[limts]\n", "limts: there is no such setting"),
        ("limits = 3\n", "limits: "),
        ("[data_dir]\nx = 1\n", "data_dir: "),
        ("[limits\n", "own.toml cannot be read"),
        (None, "own.toml cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_of_ones_own_is_named(content: str | None, said: str, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    if content is not None:
        own.write_text(content, "utf-8")
    assert said in refused({"AFFIDAVIT_SETTINGS_FILE": str(own)})


OIDC = {
    "ISSUER": "https://id.example/x",
    "CLIENT_ID": "c",
    "ADDRESS": "https://answers.example",
    "LEADS": "a, b",
}


def oidc(**changed: str) -> dict[str, str]:
    return {f"{PREFIX}OIDC__{name}": value for name, value in (OIDC | changed).items()}


def test_single_sign_on_with_all_that_it_needs() -> None:
    assert load(oidc()).oidc.leads == ("a", "b")
    assert load(oidc(ISSUER="http://localhost:8080", ADDRESS="http://127.0.0.1:8000")).oidc.issuer
    assert load(oidc()).fingerprint() == load({}).fingerprint()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ISSUER": "http://id.example"}, "must be the provider's issuer"),
        ({"ISSUER": "http://localhost.evil.example"}, "must be the provider's issuer"),
        ({"ISSUER": "https://user:pass@id.example"}, "must be the provider's issuer"),
        ({"ISSUER": "https://id.example/?x"}, "must be the provider's issuer"),
        ({"ISSUER": "https://"}, "must be the provider's issuer"),
        ({"ADDRESS": "http://answers.example"}, "must be the origin of the console"),
        ({"ADDRESS": "https://answers.example/"}, "must be the origin of the console"),
        ({"ADDRESS": ""}, "oidc.address"),
        ({"CLIENT_ID": ""}, "oidc.client_id"),
        ({"LEADS": ""}, "nobody else gets in"),
        ({"TIMEOUT_S": "5"}, "oidc.timeout_s"),
    ],
)
def test_single_sign_on_that_could_not_work_or_could_be_overheard_is_refused(
    changed: dict[str, str], words: str
) -> None:
    assert words in refused(oidc(**changed))
