"""Trains the judge: `python -m bench.reader.train DATA MODEL OUT`. README.md says what the three folders hold.

Two threads take half of each step; bfloat16, no dropout: the same seed gives the same weights on the same machine.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bench.reader import bert
from bench.reader.examples import Collection, Example, collected, near_misses
from bench.reader.pairs import Pair, PairReader, before

SEED = 15
LISTS = 12  # questions in a step
CANDIDATES = 4  # sentences of a question
RATE, HEAD_RATE, WARM_UP, DECAY = 6e-5, 3e-4, 0.08, 0.01
SPAN_SHARE, EACH_SHARE = 0.3, 0.5  # of the loss
EXCHANGED_SHARE = 0.4  # of the near misses made by exchange, in an epoch
WITHOUT_ANSWER = 0.08  # of the answerable questions, shown again without their answer
WITH_BEFORE, WITH_HEADING = 0.5, 0.75
SIMILAR, SIMILAR_ELSEWHERE = 16, 6
HELD_OUT_SIMILAR = 3
HELD_OUT = 320  # questions, all unanswerable ones among them
AT_ONCE = 64
SAID = 20  # steps between two lines about the loss

Similar = dict[str, tuple[list[int], list[int]]]  # by question: in the article, elsewhere


@dataclass(frozen=True)
class Listed:
    """A question's pairs. `right` marks those that answer."""

    pairs: list[Pair]
    right: list[bool]


@dataclass
class Course:
    """What an epoch is drawn from."""

    made: Collection
    reader: PairReader
    similar: Similar
    chosen: random.Random


def main(data: Path, model: Path, out: Path, epochs: int, share: float) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    reader, judge = PairReader(model / "tokenizer.json"), bert.pretrained(model / "model.safetensors")
    judge.words.weight.requires_grad = False
    made = collected(data)
    exchanged = list(near_misses(made, random.Random(SEED)))
    similar = kept(
        out.parent / "similar.json", lambda: most_similar(judge, reader, made, [*made.examples, *exchanged])
    )
    course = Course(made, reader, similar, random.Random(SEED))
    held_out = [example for example in made.examples if example.is_held_out]
    held_out.sort(key=lambda example: bool(example.spans))
    unanswerable = sum(not example.spans for example in held_out)
    held_out = held_out[:unanswerable] + course.chosen.sample(
        held_out[unanswerable:], HELD_OUT - unanswerable
    )
    learned = [example for example in made.examples if not example.is_held_out]
    learned = course.chosen.sample(learned, int(share * len(learned)))
    exchanged = course.chosen.sample(exchanged, int(share * len(exchanged)))
    steps = epochs * (len(drawn(course, learned, exchanged)) // LISTS)
    optimizer, schedule = optimizer_of(judge, steps)
    for epoch in range(epochs):
        learn(judge, optimizer, schedule, drawn(course, learned, exchanged), course.chosen)
        print("epoch", epoch + 1, json.dumps(figures(judge, course, held_out)), flush=True)
        torch.save(judge.state_dict(), out / f"epoch-{epoch + 1}.pt")


def kept(file: Path, make: Callable[[], Similar]) -> Similar:
    """Minutes of embedding, the same in each run."""
    if not file.exists():
        file.write_text(json.dumps(make()))
    found: Similar = json.loads(file.read_text())
    return found


def optimizer_of(judge: bert.Judge, steps: int) -> tuple[Any, Any]:
    heads = [*judge.verdict.parameters(), *judge.span.parameters()]
    known = {id(value) for value in heads}
    body = [value for value in judge.parameters() if value.requires_grad and id(value) not in known]
    groups = [{"params": body, "lr": RATE}, {"params": heads, "lr": HEAD_RATE}]
    optimizer = torch.optim.AdamW(groups, weight_decay=DECAY)
    warm = max(1, int(WARM_UP * steps))

    def share(step: int) -> float:
        return min(1.0, (step + 1) / warm) * max(0.02, (steps - step) / steps)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def learn(
    judge: bert.Judge, optimizer: Any, schedule: Any, lists: list[Listed], chosen: random.Random
) -> None:
    started, total, twin = time.monotonic(), 0.0, twin_of(judge)
    batches = list(batched(lists, chosen))
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as halves:
        for number, batch in enumerate(batches, start=1):
            optimizer.zero_grad()
            total += sum(halves.map(stepped, (judge, twin), (batch[::2], batch[1::2]))) / 2
            gather(judge, twin)
            torch.nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if number % SAID == 0:
                seconds = time.monotonic() - started
                print(f"{number}/{len(batches)} loss {total / SAID:.3f} {seconds:.0f} s", flush=True)
                total = 0.0


def twin_of(judge: bert.Judge) -> bert.Judge:
    """The same weights in the same memory, with gradients of its own."""
    twin = bert.Judge()
    for own, shared in zip(twin.parameters(), judge.parameters(), strict=True):
        own.data, own.requires_grad = shared.data, shared.requires_grad
    return twin


def stepped(judge: bert.Judge, half: Sequence[Listed]) -> float:
    if not half:
        return 0.0
    loss = loss_of(judge, half)
    loss.backward()
    return float(loss.detach())


def gather(judge: bert.Judge, twin: bert.Judge) -> None:
    for own, other in zip(judge.parameters(), twin.parameters(), strict=True):
        if own.grad is not None and other.grad is not None:
            own.grad.add_(other.grad).mul_(0.5)
            other.grad = None


def loss_of(judge: bert.Judge, batch: Sequence[Listed]) -> Tensor:
    """Listwise with "none of these" as a candidate of logit 0, each pair by itself, and the answer's tokens."""
    pairs = [pair for item in batch for pair in item.pairs]
    right = torch.tensor([is_right for item in batch for is_right in item.right])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, spans = judge(*tensors(pairs))
    each = functional.binary_cross_entropy_with_logits(logits, right.float())
    listwise, at = [], 0
    for item in batch:
        own, answering = logits[at : at + len(item.pairs)], right[at : at + len(item.pairs)]
        everything = torch.cat([own, own.new_zeros(1)])
        wanted = own[answering] if answering.any() else own.new_zeros(1)
        listwise.append(everything.logsumexp(0) - wanted.logsumexp(0))
        at += len(item.pairs)
    return torch.stack(listwise).mean() + EACH_SHARE * each + SPAN_SHARE * span_loss(spans, pairs, right)


def span_loss(spans: Tensor, pairs: Sequence[Pair], right: Tensor) -> Tensor:
    """The first token stands for "no answer here". An answering pair whose span is unknown is left out."""
    known = [n for n, pair in enumerate(pairs) if pair.span or not right[n]]
    ends = torch.tensor([pairs[n].span or (0, 0) for n in known])
    lengths = torch.tensor([len(pairs[n].ids) for n in known])
    read = spans[known].masked_fill(
        (torch.arange(spans.shape[1])[None] >= lengths[:, None])[:, :, None], -1e4
    )
    weights = torch.where(ends[:, 0] > 0, 1.0, 0.4)
    each = functional.cross_entropy(read[:, :, 0], ends[:, 0], reduction="none") + functional.cross_entropy(
        read[:, :, 1], ends[:, 1], reduction="none"
    )
    return (each * weights).sum() / weights.sum() / 2


def tensors(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    length = -(-max(len(pair.ids) for pair in pairs) // 8) * 8  # few shapes: each is compiled once
    ids, mask, types = (torch.zeros(len(pairs), length, dtype=torch.long) for _ in range(3))
    for row, pair in enumerate(pairs):
        ids[row, : len(pair.ids)] = torch.tensor(pair.ids)
        types[row, : len(pair.ids)] = torch.tensor(pair.types)
        mask[row, : len(pair.ids)] = 1
    return ids, mask, types


def batched(lists: list[Listed], chosen: random.Random) -> Iterator[list[Listed]]:
    """Lists of nearly the same length together, in a random order."""
    chosen.shuffle(lists)
    pool, batches = 40 * LISTS, []
    for start in range(0, len(lists), pool):
        part = sorted(lists[start : start + pool], key=lambda item: max(len(p.ids) for p in item.pairs))
        batches += [part[n : n + LISTS] for n in range(0, len(part), LISTS)]
    chosen.shuffle(batches)
    yield from batches


# --- What an epoch shows


def drawn(course: Course, learned: Sequence[Example], exchanged: Sequence[Example]) -> list[Listed]:
    chosen, lists = course.chosen, []
    for example in learned:
        lists.append(listed(course, example, CANDIDATES, right=1))
        if not example.spans or chosen.random() < WITHOUT_ANSWER:
            lists.append(listed(course, example, CANDIDATES, right=0))
    few = chosen.sample(exchanged, int(EXCHANGED_SHARE * len(exchanged)))
    return lists + [listed(course, example, 3, right=0) for example in few]


def listed(course: Course, example: Example, size: int, right: int) -> Listed:
    """An answering sentence, and others: of its paragraph, similar ones of its article, similar ones of others."""
    chosen = course.chosen
    answering = chosen.sample(sorted(example.spans), min(right, len(example.spans)))
    here, elsewhere = course.similar[_key(example)]
    near = [n for n in example.near if n not in example.spans]
    first = [near.pop(0)] if near and not example.spans else []
    pools = [chosen.sample(pool, min(2, len(pool))) for pool in (near, here)]
    rest = [*pools[0][1:], *pools[1][1:], *chosen.sample(elsewhere, 1)]
    chosen.shuffle(rest)
    others = dict.fromkeys([*first, *pools[0][:1], *pools[1][:1], *rest])
    numbers = [*answering, *list(others)[: size - len(answering)]]
    with_before, with_heading = chosen.random() < WITH_BEFORE, chosen.random() < WITH_HEADING
    pairs = [paired(course, example, n, with_before=with_before, with_heading=with_heading) for n in numbers]
    return Listed(pairs, [n in example.spans for n in numbers])


def paired(course: Course, example: Example, number: int, *, with_before: bool, with_heading: bool) -> Pair:
    read = course.made.sentences[number]
    above = before(read.heading if with_heading else "", read.before if with_before else "")
    return course.reader.pair(example.question, above, read.text, example.spans.get(number))


def most_similar(
    judge: bert.Judge, reader: PairReader, made: Collection, examples: Sequence[Example]
) -> Similar:
    """By the untrained weights, the sentences most similar to each question that do not hold its answer."""
    texts = [before(item.heading, item.text) for item in made.sentences]
    vectors, asked = embedded(judge, reader, texts), embedded(judge, reader, [e.question for e in examples])
    numbered = {name: n for n, name in enumerate(dict.fromkeys(item.group for item in made.sentences))}
    groups = np.array([numbered[item.group] for item in made.sentences])
    found = {}
    for example, vector in zip(examples, asked, strict=True):
        order = np.argsort(-(vectors @ vector))
        is_here = groups[order] == numbered[example.group]
        found[_key(example)] = (
            _without_answer(made, example, order[is_here][: 2 * SIMILAR])[:SIMILAR],
            _without_answer(made, example, order[~is_here][: 2 * SIMILAR])[:SIMILAR_ELSEWHERE],
        )
    return found


def _without_answer(made: Collection, example: Example, numbers: Any) -> list[int]:
    held = [answer.casefold() for answer in example.answers]
    return [
        int(n)
        for n in numbers
        if n not in example.spans and not any(a in made.sentences[n].text.casefold() for a in held)
    ]


def _key(example: Example) -> str:
    return f"{example.group} {example.paragraph} {example.question}"


def embedded(judge: bert.Judge, reader: PairReader, texts: Sequence[str]) -> Any:
    judge.eval()
    pairs = [Pair(ids := [101, *reader.tokens(text)[0][:126], 102], [0] * len(ids), None) for text in texts]
    order = sorted(range(len(pairs)), key=lambda n: len(pairs[n].ids))
    vectors = np.zeros((len(pairs), bert.WIDTH), dtype=np.float32)
    for start in range(0, len(order), AT_ONCE):
        rows = order[start : start + AT_ONCE]
        ids, mask, types = tensors([pairs[n] for n in rows])
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            mean = bert.mean(judge.hidden(ids, mask, types).float(), mask)
        vectors[rows] = functional.normalize(mean, dim=1).numpy()
    return vectors


# --- Held-out questions


def figures(judge: bert.Judge, course: Course, held_out: Sequence[Example]) -> dict[str, float]:
    """Of each question the sentences of its paragraph and similar ones: is the first right, is "none" told apart?"""
    numbers = [_read_of(course, example) for example in held_out]
    made: dict[str, float] = {}
    for name, with_before in (("alone", False), ("before", True)):
        pairs = [
            paired(course, e, n, with_before=with_before, with_heading=True)
            for e, read in zip(held_out, numbers, strict=True)
            for n in read
        ]
        logits, at, marks = logits_of(judge, pairs), 0, []
        for example, read in zip(held_out, numbers, strict=True):
            best = int(np.argmax(logits[at : at + len(read)]))
            marks.append((example, read[best] in example.spans, float(logits[at + best])))
            at += len(read)
        made |= {f"{name} {key}": value for key, value in _shares(marks).items()}
    return made


def _read_of(course: Course, example: Example) -> list[int]:
    similar = course.similar[_key(example)][0][:HELD_OUT_SIMILAR]
    return list(dict.fromkeys([*example.near, *similar]))


def _shares(marks: Sequence[tuple[Example, bool, float]]) -> dict[str, float]:
    near = np.array([best for example, _, best in marks if not example.spans])
    kept = np.array([best for example, _, best in marks if example.answers])
    made = {
        "first right squad": np.mean([right for example, right, _ in marks if example.answers]),
        "first right selqa": np.mean([right for e, right, _ in marks if e.spans and not e.answers]),
        "auroc": np.mean(kept[:, None] > near[None]),
        "let through at 80": np.mean(near >= np.quantile(kept, 0.2)),
    }
    return {key: round(float(value), 3) for key, value in made.items()}


def logits_of(judge: bert.Judge, pairs: Sequence[Pair]) -> Any:
    order = sorted(range(len(pairs)), key=lambda n: len(pairs[n].ids))
    logits = np.zeros(len(pairs))
    for start in range(0, len(order), AT_ONCE):
        rows = order[start : start + AT_ONCE]
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            logits[rows] = judge(*tensors([pairs[n] for n in rows]))[0].numpy()
    return logits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "model", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the questions, for a first look")
    given = parser.parse_args()
    main(given.data, given.model, given.out, given.epochs, given.share)
