"""Provider registry, the only file that names vendors: a new one is a new file in engine/providers and one line here."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cryptography.x509 import Certificate

from audit.errors import PolicyError
from audit.export.following import Sink
from audit.export.formats import Form
from audit.export.position import PositionFile
from audit.heads.policy import WitnessPolicy, parse_policy
from audit.heads.submission import WitnessNetwork
from audit.sealing.stamper import TimeStampAuthority
from audit.vault import FolderVault, Vault
from engine.errors import ConfigurationError
from engine.ports import Embedder, Generator, IdentityProvider, Index, Limiter, RemoteSigner, Reranker
from engine.retrieval.words_only import WordsOnly
from engine.settings import Settings
from engine.spans import OURS, Exporter

S3 = "s3://"

# What a process of ours does not get with the settings: the vault's and the database's own variables, and the way to the network.
FROM_ENVIRONMENT = (
    "AWS_", "PG", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


def _provider(module: str, factory: str) -> Callable[..., Any]:
    """A lazy import: every command imports this file, and only the chosen vendor's library is worth loading."""

    def make(*given: Any) -> Any:
        return getattr(import_module(f"engine.providers.{module}"), factory)(*given)

    return make


EMBEDDERS: dict[str, Callable[[Settings], Embedder]] = {
    "cohere": _provider("cohere", "embedder"),
    "minilm": _provider("minilm", "embedder"),
}

INDEXES: dict[str, Callable[[Settings], Index]] = {
    "edge": _provider("embedded", "index"),
    "qdrant": _provider("qdrant", "index"),
}

RERANKERS: dict[str, Callable[[Settings], Reranker | None]] = {
    "cohere": _provider("cohere", "reranker"),
    "none": lambda _: None,
}

GENERATORS: dict[str, Callable[[Settings, Embedder, Mapping[str, Embedder]], Generator]] = {
    "claude": _provider("claude", "generator"),
    "extractive": _provider("extractive", "generator"),
}

# Generators by their names in the conventions for traces.
VENDORS = {"claude": "anthropic", "extractive": OURS}

LIMITERS: dict[str, Callable[[Settings], Limiter]] = {
    "memory": _provider("limits", "memory"),
    "redis": _provider("limits", "redis"),
}

VAULTS: dict[str, Callable[[Settings], Vault]] = {
    "folder": lambda settings: FolderVault(settings.data_dir / "vault"),
    "s3": _provider("s3", "vault"),
}


SIGNERS: dict[str, Callable[[Settings], RemoteSigner]] = {
    "kms": _provider("signing_kms", "signer"),
    "pkcs11": _provider("signing_pkcs11", "signer"),
    "transit": _provider("signing_transit", "signer"),
}

Made = TypeVar("Made")


def embedder_of(settings: Settings) -> Embedder:
    return _choose("embedder", EMBEDDERS, settings.providers.embedder)(settings)


def other_embedders(settings: Settings) -> list[Embedder]:
    """For books that the chosen embedder cannot read, the best one first."""
    multilingual = _provider("multilingual", "embedder")
    return [multilingual(settings), WordsOnly()]


def index_of(settings: Settings) -> Index:
    return _choose("index", INDEXES, settings.providers.index)(settings)


def generator_of(settings: Settings, embedder: Embedder, others: Mapping[str, Embedder]) -> Generator:
    return _choose("generator", GENERATORS, settings.providers.generator)(settings, embedder, others)


def reranker_of(settings: Settings) -> Reranker | None:
    return _choose("reranker", RERANKERS, settings.providers.reranker)(settings)


def limiter_of(settings: Settings) -> Limiter:
    return _choose("limits", LIMITERS, settings.providers.limits)(settings)


def trace_exporter_of(settings: Settings) -> Exporter | None:
    """To be made in a running event loop."""
    made: Exporter | None = _provider("otlp", "exporter")(settings) if settings.traces.endpoint else None
    return made


def collector_sink(
    settings: Settings, url: str, positions: PositionFile, form: Form, wait: Callable[[float], bool], say: Callable[[str], None]
) -> Sink:  # fmt: skip
    headers = _provider("otlp", "headers_of")(settings.export.headers.get_secret_value())
    made: Sink = _provider("log_collector", "CollectorSink")(url, headers, positions, form, wait, say)
    return made


def time_stamp_authority_of(settings: Settings) -> TimeStampAuthority:
    made: TimeStampAuthority = _provider("time_stamps", "authority")(settings)
    return made


def pinned_authorities(settings: Settings) -> list[Certificate]:
    """Read each time: a file that is missing must not stop the engine."""
    if not settings.time_stamps.certificates:
        return []
    path = settings.data_dir / settings.time_stamps.certificates
    found: list[Certificate] = _provider("time_stamps", "certificates_of")(path)
    return found


def identity_provider_of(settings: Settings) -> IdentityProvider:
    made: IdentityProvider = _provider("openid", "provider")(settings)
    return made


def remote_signer_of(settings: Settings) -> RemoteSigner:
    return _choose("signing", SIGNERS, settings.signing.provider)(settings)


def vault_of(settings: Settings) -> Vault:
    return _choose("vault", VAULTS, settings.providers.vault)(settings)


def vault_at(settings: Settings, place: str) -> Vault:
    """The vault of an address, `s3://bucket/prefix`, or of a folder; locks are those of the settings."""
    if not place.startswith(S3):
        return FolderVault(Path(place))
    bucket, _, prefix = place.removeprefix(S3).partition("/")
    archive = settings.archive.model_copy(
        update={"bucket": bucket, "prefix": f"{prefix.rstrip('/')}/".lstrip("/")}
    )
    return VAULTS["s3"](settings.model_copy(update={"archive": archive}))


def witness_policy_of(settings: Settings) -> WitnessPolicy | None:
    """None if the settings name no file."""
    if not settings.witness.policy:
        return None
    path = settings.data_dir / settings.witness.policy
    try:
        return parse_policy(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, PolicyError) as wrong:
        raise ConfigurationError(f"witness.policy, {path}, cannot be used: {wrong}") from None


def witnesses_of(settings: Settings) -> "ClosingNetwork":
    made: ClosingNetwork = _provider("witnesses", "network")(settings)
    return made


def _choose(seam: str, providers: dict[str, Made], name: str) -> Made:
    if name not in providers:
        raise ConfigurationError(
            f'providers.{seam} = "{name}" is not available here. Available: {", ".join(sorted(providers))}.'
        )
    return providers[name]


def now() -> datetime:
    return datetime.now(UTC)


class Closing(Protocol):
    async def close(self) -> None: ...


class ClosingNetwork(Closing, WitnessNetwork, Protocol): ...


Part = TypeVar("Part", bound=Closing)


def closed_by(stack: AsyncExitStack, part: Part) -> Part:
    """The part, which the stack will close."""
    stack.push_async_callback(part.close)
    return part
