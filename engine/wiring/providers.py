"""Provider registry, the only file that names vendors: a new one is a new file in engine/providers and one line here."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Protocol, TypeVar

from audit.vault import FolderVault, Vault
from engine.errors import ConfigurationError
from engine.ports import Embedder, Generator, Index, Limiter, Reranker
from engine.retrieval.words_only import WordsOnly
from engine.settings import Settings


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
    "edge": _provider("edge", "index"),
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

LIMITERS: dict[str, Callable[[Settings], Limiter]] = {
    "memory": _provider("limits", "memory"),
    "redis": _provider("limits", "redis"),
}

VAULTS: dict[str, Callable[[Settings], Vault]] = {
    "folder": lambda settings: FolderVault(settings.data_dir / "vault"),
    "s3": _provider("s3", "vault"),
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


def vault_of(settings: Settings) -> Vault:
    return _choose("vault", VAULTS, settings.providers.vault)(settings)


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


Part = TypeVar("Part", bound=Closing)


def closed_by(stack: AsyncExitStack, part: Part) -> Part:
    """The part, which the stack will close."""
    stack.push_async_callback(part.close)
    return part
