"""A parser for the settings: config/engine.toml, overridden by a file of one's own, and both by environment variables.

They are one immutable value. config/engine.toml has every default, so this module has none: a setting that is missing in
either place is an error. Nothing is built here; wiring/ does that.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from engine.book_id import book_id_of
from engine.errors import ConfigurationError

# An installed wheel carries sql/, config/ and docs/ inside (pyproject.toml); a checkout has them beside the code.
SHIPPED = Path(__file__).resolve().parent / "shipped"
HOUSE = SHIPPED if SHIPPED.is_dir() else SHIPPED.parent.parent
CONFIG = HOUSE / "config"
PROMPT = CONFIG / "prompts" / "answer.md"

PREFIX = "AFFIDAVIT_"
OWN_FILE = "AFFIDAVIT_SETTINGS_FILE"
# The settings of docusaurus/'s gateway, which may share the environment.
GATEWAYS = ("AFFIDAVIT_KEY", "AFFIDAVIT_KEY_FILE")
GATEWAYS_PREFIX = "AFFIDAVIT_GATEWAY_"

# The usual names of other tools, and the settings that they override. The first one that is set wins.
CONVENTIONAL = {
    "DATABASE_URL": ("database", "url"),
    "QDRANT_URL": ("qdrant", "url"),
    "QDRANT_API_KEY": ("qdrant", "api_key"),
    "REDIS_URL": ("redis", "url"),
    "ANTHROPIC_API_KEY": ("claude", "api_key"),
    "ANTHROPIC_BASE_URL": ("claude", "base_url"),
    "COHERE_API_KEY": ("cohere", "api_key"),
    "CO_API_KEY": ("cohere", "api_key"),
    "COHERE_BASE_URL": ("cohere", "base_url"),
    "CO_API_URL": ("cohere", "base_url"),
    "VAULT_TOKEN": ("signing", "token"),
}

# Locations and secrets do not influence how a question is answered.
_NOT_IN_FINGERPRINT: dict[str, bool | set[str]] = {
    "data_dir": True,
    "database": {"url"},
    "books": {"manual"},
    "claude": {"api_key", "base_url"},
    "cohere": {"api_key", "base_url"},
    "qdrant": {"url", "api_key"},
    "redis": {"url"},
    "signing": True,
    "archive": {"bucket", "prefix", "parquet"},
    "server": True,
    "access": True,
    "oidc": True,
    "traces": True,
    "export": True,
    "witness": True,
    "time_stamps": True,
    "prices": True,
}

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

_ORIGIN = re.compile(r"https?://(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[1-9][0-9]{0,4})?")
_ADDRESS = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")
_ISSUER = re.compile(
    r"(?:https://[^\s/@?#]+|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?)(/[^\s@?#]*)?", re.ASCII
)
_HEADERS = re.compile(r"\s*[\w.-]+=[^\s,]+\s*(,\s*[\w.-]+=[^\s,]+\s*)*", re.ASCII)
_PRICE = re.compile(r"\S+ \d+(\.\d+)? \d+(\.\d+)?", re.ASCII)
_OWN_PORT = {"http": ":80", "https": ":443"}  # browsers leave it out

RETENTION_DAYS_MIN = 183  # six months, the legal minimum


def _absolute(folder: Path) -> Path:
    try:
        return folder.expanduser().absolute()
    except RuntimeError as wrong:
        raise ValueError(str(wrong)) from wrong


def _listed(value: Any) -> Any:
    """An environment variable has one text for all."""
    return [name for part in value.split(",") if (name := part.strip())] if isinstance(value, str) else value


def _is_rate(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]*/(second|minute|hour|day)", text):
        raise ValueError("must be a rate such as 100/minute, 50/hour or 1000/day")
    return text


def _are_networks(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for name in names:
            ipaddress.ip_network(name)
    except ValueError:
        raise ValueError("each must be an IP address, or a network such as 10.0.0.0/8") from None
    return names


def _are_origins(names: tuple[str, ...]) -> tuple[str, ...]:
    """Spelt as browsers do, because they are compared as text."""
    if not all(
        _ORIGIN.fullmatch(name) and not name.endswith(_OWN_PORT[name.partition(":")[0]]) for name in names
    ):
        raise ValueError(
            "each must be an origin as browsers write it, such as https://book.example.org, without a path"
        )
    return names


def _is_address(text: str) -> str:
    if text and not _ADDRESS.fullmatch(text):
        raise ValueError(
            "must be a URL such as http://127.0.0.1:4318/v1/traces, without a user and without a query; credentials go into"
            " traces.headers"
        )
    return text


def _is_authority(text: str) -> str:
    if text and not _ADDRESS.fullmatch(text):
        raise ValueError(
            "must be a URL such as http://tsa.example.org/tsr, without a user and without a query"
        )
    return text


def _is_server(text: str) -> str:
    if text and not _ADDRESS.fullmatch(text):
        raise ValueError(
            "must be a URL such as https://vault.example:8200, without a user and without a query"
        )
    return text


def _is_issuer(text: str) -> str:
    """Whoever is between would sign in as anybody."""
    if text and not _ISSUER.fullmatch(text):
        raise ValueError(
            "must be the provider's issuer, such as https://id.example.org/realms/staff: https (http on this machine alone),"
            " without a user and without a query"
        )
    return text


def _is_console(text: str) -> str:
    if text and not (_ORIGIN.fullmatch(text) and _ISSUER.fullmatch(text)):
        raise ValueError(
            "must be the origin of the console as browsers write it, such as https://answers.example.org: https (http on this"
            " machine alone), without a path"
        )
    return text


def _are_headers(text: SecretStr) -> SecretStr:
    """The message must not repeat a secret."""
    if text.get_secret_value() and not _HEADERS.fullmatch(text.get_secret_value()):
        raise ValueError("must be headers as name=value,name=value, the values percent-encoded")
    return text


Rate = Annotated[str, AfterValidator(_is_rate)]


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Providers(Table):
    embedder: str
    generator: str
    index: str
    reranker: str
    vault: str
    limits: str


class DatabaseTable(Table):
    url: SecretStr
    connections_max: Annotated[int, Field(ge=3)]


class Books(Table):
    default: Annotated[str, AfterValidator(book_id_of)]
    manual: str


class Budget(Table):
    total_s: Seconds
    retrieval_s: Seconds
    generation_s: Seconds
    audit_s: Seconds


class Retrieval(Table):
    weight_semantic: Share
    weight_lexical: Share
    threshold: Share
    top_k: Annotated[int, Field(ge=1, le=10)]
    candidates: Annotated[int, Field(ge=10, le=1000)]


class CalibrationTable(Table):
    probes_refused: Share
    probes_file: str


class Confidence(Table):
    weight_retrieval: Share
    weight_generation: Share
    high: Share
    medium: Share
    default_generation: Share


class Chunking(Table):
    tokens: Count
    overlap: Annotated[float, Field(ge=0, lt=1)]
    tokens_min: Annotated[int, Field(ge=0)]


class ClaudeTable(Table):
    model: str
    max_output_tokens: Count
    api_key: SecretStr
    base_url: str


class Cohere(Table):
    embed_model: str
    dimension: Count
    rerank_model: str
    api_key: SecretStr
    base_url: str


class Qdrant(Table):
    url: str
    api_key: SecretStr
    prefer_grpc: bool
    shards: Count
    replicas: Count
    timeout_s: Seconds


class Redis(Table):
    url: SecretStr


class Audit(Table):
    spool_dir: str
    spool_bytes_max: Count
    seal_every_s: Seconds
    seal_in_serve: bool
    anchor_every_s: Seconds
    hot_days: Count
    warm_days: Count
    clock_behind_days_max: Count
    query_s: Seconds
    query_bytes_max: Count
    signing_key_file: str

    @property
    def clock_behind_max(self) -> timedelta:
        return timedelta(days=self.clock_behind_days_max)


class WitnessTable(Table):
    policy: str
    required: bool
    timeout_s: Seconds

    @field_validator("required")
    @classmethod
    def _has_policy(cls, required: bool, others: ValidationInfo) -> bool:  # noqa: FBT001  pydantic calls it
        if required and not others.data.get("policy"):
            raise ValueError(
                "a quorum of witnesses is required, but witness.policy names no file that has them"
            )
        return required


class SigningTable(Table):
    provider: Literal["file", "kms", "transit", "pkcs11"]
    key: str
    timeout_s: Annotated[float, Field(gt=0, le=10)]
    address: Annotated[str, AfterValidator(_is_server)]
    mount: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$")]
    token: SecretStr
    token_file: str
    module: str
    token_label: str
    pin: SecretStr

    @model_validator(mode="after")
    def _names_a_key(self) -> Self:
        wanted = {"kms": ("key",), "transit": ("key", "address"), "pkcs11": ("key", "module", "token_label")}
        for name in wanted.get(self.provider, ()):
            if not getattr(self, name):
                raise ValueError(f'provider = "{self.provider}" needs signing.{name}')
        return self


class Archive(Table):
    retention_days: Count
    retention_acknowledged: str
    grace_days: Annotated[int, Field(ge=0)]
    parquet: bool
    bucket: str
    prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]+/)*$")]
    object_lock_mode: Literal["COMPLIANCE", "GOVERNANCE"]
    object_lock_days: Count

    @field_validator("retention_acknowledged")
    @classmethod
    def _is_long_enough(cls, reason: str, others: ValidationInfo) -> str:
        days = others.data.get("retention_days", RETENTION_DAYS_MIN)
        if days < RETENTION_DAYS_MIN and not reason.strip():
            raise ValueError(
                f"retention_days = {days} is less than the {RETENTION_DAYS_MIN} days for which logs must be kept."
                " Raise it, or give the reason in retention_acknowledged, which is recorded"
            )
        return reason


class ServerTable(Table):
    log_level: Literal["info", "warning", "error"]
    trusted_proxies: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_are_networks)]
    allowed_origins: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_are_origins)]


class Limits(Table):
    per_key: Rate
    anonymous: Rate
    authenticated: Rate
    body_bytes: Count


class SessionsTable(Table):
    enabled: bool
    purge_days: Count


class AccessTable(Table):
    masked_roles: Annotated[
        tuple[Literal["auditor", "reviewer", "lead", "operator"], ...], BeforeValidator(_listed)
    ]
    basis_required: bool
    second_person: bool
    leads: Annotated[tuple[str, ...], BeforeValidator(_listed)]
    approval_minutes: Count


class OidcTable(Table):
    issuer: Annotated[str, AfterValidator(_is_issuer)]
    client_id: str
    client_secret: SecretStr
    client_secret_file: str
    address: Annotated[str, AfterValidator(_is_console)]
    scopes: Annotated[tuple[str, ...], BeforeValidator(_listed)]
    role_claim: str
    auditors: Annotated[tuple[str, ...], BeforeValidator(_listed)]
    reviewers: Annotated[tuple[str, ...], BeforeValidator(_listed)]
    leads: Annotated[tuple[str, ...], BeforeValidator(_listed)]
    timeout_s: Annotated[float, Field(gt=0, le=4)]

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        missing = [name for name in ("client_id", "address", "role_claim") if not getattr(self, name)]
        if self.issuer and missing:
            raise ValueError(f"issuer needs {' and '.join(f'oidc.{name}' for name in missing)} too")
        if self.issuer and not (self.auditors or self.reviewers or self.leads):
            raise ValueError(
                "issuer needs a group in oidc.auditors, oidc.reviewers or oidc.leads: nobody else gets in"
            )
        return self


class TracesTable(Table):
    endpoint: Annotated[str, AfterValidator(_is_address)]
    headers: Annotated[SecretStr, AfterValidator(_are_headers)]
    share: Share


class ExportTable(Table):
    headers: Annotated[SecretStr, AfterValidator(_are_headers)]


class TimeStamps(Table):
    url: Annotated[str, AfterValidator(_is_authority)]
    certificates: str
    mode: Literal["off", "best effort", "required"]

    @field_validator("mode")
    @classmethod
    def _has_what_it_needs(cls, mode: str, others: ValidationInfo) -> str:
        missing = [name for name in ("url", "certificates") if others.data.get(name) == ""]
        if mode != "off" and missing:
            raise ValueError(f'"{mode}" needs {" and ".join(f"time_stamps.{name}" for name in missing)} too')
        return mode


class PageTable(Table):
    enabled: bool


def _are_prices(lines: tuple[str, ...]) -> tuple[str, ...]:
    for line in lines:
        if not _PRICE.fullmatch(line):
            raise ValueError(
                f'{line!r} is not a price: write "MODEL 1.00 5.00", with what a million tokens cost, read and written'
            )
    return lines


class PricesTable(Table):
    tokens: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_are_prices)]
    currency: Annotated[str, Field(min_length=1, max_length=8)]

    @property
    def by_model(self) -> dict[str, tuple[float, float]]:
        """Of a million tokens, read and written."""
        parts = (line.split() for line in self.tokens)
        return {model: (float(read), float(written)) for model, read, written in parts}


class Settings(Table):
    data_dir: Annotated[Path, AfterValidator(_absolute)]
    providers: Providers
    database: DatabaseTable
    books: Books
    budget: Budget
    retrieval: Retrieval
    calibration: CalibrationTable
    confidence: Confidence
    chunking: Chunking
    claude: ClaudeTable
    cohere: Cohere
    qdrant: Qdrant
    redis: Redis
    audit: Audit
    witness: WitnessTable
    signing: SigningTable
    archive: Archive
    server: ServerTable
    limits: Limits
    sessions: SessionsTable
    access: AccessTable
    oidc: OidcTable
    traces: TracesTable
    export: ExportTable
    time_stamps: TimeStamps
    prices: PricesTable
    page: PageTable

    def fingerprint(self) -> str:
        """A hash of these settings for every record, without secrets and locations."""
        return sha256(self.model_dump_json(exclude=_NOT_IN_FINGERPRINT).encode()).hexdigest()


def load(
    environment: Mapping[str, str] = os.environ, file: Path = CONFIG / "engine.toml", **overrides: Any
) -> Settings:
    """The effective settings; `ConfigurationError` names the ones that are wrong."""
    try:
        values = tomllib.loads(file.read_text("utf-8"))
        if own := environment.get(OWN_FILE):
            file = Path(own)
            _lay_over(values, tomllib.loads(file.read_text("utf-8")))
        for path, value in (*_prefixed(environment), *_conventional(environment)):
            _put(values, path, value)
        values |= {name: value for name, value in overrides.items() if value is not None}
        return Settings.model_validate(values)
    except ValidationError as wrong:
        raise ConfigurationError(_explain(wrong)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        raise ConfigurationError(f"{file} cannot be read: {wrong}") from None


def _lay_over(values: dict[str, Any], own: Mapping[str, Any]) -> None:
    """A file of one's own has only what differs. A table that should be none, or the reverse, is for the validation to say."""
    for name, value in own.items():
        table = values.get(name)
        values[name] = table | value if isinstance(table, dict) and isinstance(value, dict) else value


def _prefixed(environment: Mapping[str, str]) -> list[tuple[tuple[str, ...], str]]:
    """AFFIDAVIT_RETRIEVAL__TOP_K=3 is ("retrieval", "top_k"), "3"."""
    return [
        (tuple(name.removeprefix(PREFIX).lower().split("__")), value)
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX)
        and not name.startswith(GATEWAYS_PREFIX)
        and name not in {*GATEWAYS, OWN_FILE}
    ]


def _conventional(environment: Mapping[str, str]) -> list[tuple[tuple[str, ...], str]]:
    found: dict[tuple[str, ...], str] = {}
    for name, path in CONVENTIONAL.items():
        if environment.get(name):
            found.setdefault(path, environment[name])
    return list(found.items())


def _put(values: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    """Sets unknown names too, because the validation that follows reports them."""
    *tables, key = path
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"{PREFIX}{'__'.join(path).upper()}: {table} is a setting, not a table; correct the name"
            )
    values[key] = value


def _unknown(path: tuple[int | str, ...]) -> str:
    """With the nearest names that there are; AFFIDAVIT_RETRIEVAL_TOP_K lacks an underscore between table and key."""
    named = ".".join(map(str, path))
    by_flat = {name.replace(".", "_"): name for name in _names()}
    near = difflib.get_close_matches(named.replace(".", "_"), by_flat, n=1)
    if not near:
        return "there is no such setting; check its spelling"
    meant = by_flat[near[0]]
    variable = f"{PREFIX}{meant.replace('.', '__').upper()}" + ("__…" if meant in _TABLES else "")
    return f"there is no such setting; did you mean {meant} ({variable})?"


_TABLES = {
    name: field.annotation.model_fields
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Table)
}


def _names() -> Iterator[str]:
    """Of all settings and tables."""
    yield from Settings.model_fields
    yield from (f"{table}.{key}" for table, keys in _TABLES.items() for key in keys)


def _explain(wrong: ValidationError) -> str:
    lines = []
    for error in wrong.errors(include_input=False, include_url=False):
        is_unknown = error["type"] == "extra_forbidden"
        what = _unknown(error["loc"]) if is_unknown else error["msg"].removeprefix("Value error, ")
        lines.append(f"  {'.'.join(map(str, error['loc']))}: {what}")
    return (
        "The settings are wrong. Correct them in config/engine.toml, in the file that AFFIDAVIT_SETTINGS_FILE names, or in the"
        " environment variables AFFIDAVIT_…:\n" + "\n".join(lines)
    )
