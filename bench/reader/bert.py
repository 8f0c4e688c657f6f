"""MiniLM's BERT in plain torch: a judge's logit for each pair, and where in the sentence the answer starts and ends."""

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, INNER = 6, 12, 384, 1536
WORDS, POSITIONS, TYPES = 30522, 512, 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attended, self.inner, self.outer = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, INNER),
            nn.Linear(INNER, WIDTH),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        pairs, length, _ = hidden.shape
        query, key, value = (
            made(hidden).view(pairs, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for made in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + bias
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(pairs, length, WIDTH)
        hidden = self.norms[0](hidden + self.attended(mixed))
        return self.norms[1](hidden + self.outer(functional.gelu(self.inner(hidden))))


class Judge(nn.Module):
    """`forward` gives logits; the span logits serve the training only."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.types = nn.Embedding(TYPES, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.verdict, self.span = nn.Linear(2 * WIDTH, 1), nn.Linear(WIDTH, 2)

    def hidden(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.norm(self.words(ids) + self.positions(places)[None] + self.types(types))
        bias = (1.0 - mask[:, None, None, :].float()) * -1e4
        for layer in self.layers:
            hidden = layer(hidden, bias)
        return hidden

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(ids, mask, types)
        logits = self.verdict(torch.cat([hidden[:, 0], mean(hidden, mask)], dim=1))
        return logits[:, 0].float(), self.span(hidden).float()


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def pretrained(weights: Path) -> Judge:
    """The published weights of all-MiniLM-L6-v2, with new heads."""
    judge = Judge()
    known = judge.state_dict()
    known |= {_renamed(name): value for name, value in load_file(weights).items() if _renamed(name) in known}
    judge.load_state_dict(known)
    return judge


_NAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "layers",
    "attention.self.": "",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "norms.0",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "norms.1",
}


def _renamed(name: str) -> str:
    for old, new in _NAMES.items():
        name = name.replace(old, new)
    return name
