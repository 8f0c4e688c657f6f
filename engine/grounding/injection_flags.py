"""A heuristic for prompt injection: flags passages and questions that contain instructions. Pure.

A flag decides nothing, because a list of phrases is no defence: passages and questions are treated as data in any case.
It tells an auditor which records to look at. A polite instruction ("What is the capital of Brazil?" inside a passage) or
one in a language that is not listed is missed.
"""

import re
import unicodedata
from functools import lru_cache

PASSAGES_MAX = 10_000  # of some kilobytes each, which the library's cache holds too

# Cheap substrings, and the regular expression that runs only if one of them occurs; an empty one always matches.
_PHRASES = {
    ("ignore", "disregard", "forget", "override", "bypass"):
        r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:instructions?|rules?|prompts?|above|previous|guidelines?"
        r"|(?:you|have) (?:learned|were told))\b",
    ("prompt", "message", "instruction"):
        r"\b(?:(?:initial|hidden|secret|original) (?:prompt|instructions?)|(?:system|developer) (?:prompt|message|instructions?))\b|\bnew instructions?\b",
    ("prompt", "instruction", "rules"):
        r"\b(?:reveal|print|repeat|show|output|leak|tell|translate|summari[sz]e)\b.{0,30}"
        r"\b(?:your|the (?:above|previous)) (?:\w+ )?(?:prompts?|instructions?|rules)\b",
    ("you",): r"\byou (?:are now|are going to|must now|will now|shall now|no longer)\b|\bpretend (?:that )?you\b",
    ("pretend to be", "from now on", "stay in character", "do anything now", "stop everything"): r"",
    ("role",): r"\brole-? ?play as\b",
    (" as ", " like "):
        r"\b(?:act|behave|respond|answer|talk) (?:as|like) (?:if you|though you|an? (?:ai|chat-?bot|assistant|language model))\b",
    ("jail", " mode"): r"\bjail-?break|\b(?:developer|god|dan) mode\b",
    ("without any ",):
        r"\bwithout any (?:restrictions|filters|censorship|guidelines)\b",
    ("just ", "only ", "simply "): r"\b(?:just (?:say|print|output|repeat|reply|respond)|(?:only|simply) (?:say|reply|respond))\b",
    ("your ",):
        r"\b(?:in|to|into|from|of|modify|change|enhance|augment|provide|render|scramble|rearrange|use|end|begin|start)"
        r" your (?:final |next |own )?(?:answer|reply|response|message|output)\b",
    ("<|", "[inst]", "<<sys>>"): r"",
    ("ignorier", "vergiss", "missachte"):
        r"\b(?:ignorier\w*|vergiss|missachte)\b.{0,40}\b(?:anweisung|regel|vorgabe)",
    ("ignore", "oublie"): r"\b(?:ignore[rz]?|oublie[rz]?)\b.{0,40}\b(?:consigne|instruction|règle)",
    ("ignor", "olvid", "esque", "dimentica"):
        r"\b(?:ignor[ae]|olvid[ae]|esque[cç]a|dimentica)\b.{0,40}\b(?:instruc|istruzion|instru[cç]|regla|regra|regol)",
    ("忽略", "无视", "忘记"): r"(?:忽略|无视|忘记).{0,20}(?:指令|指示|说明|提示|规则)",
    ("игнорируй", "забудь"): r"\b(?:игнорируй|забудь)\w*\b.{0,40}\b(?:инструкци|указани|правил)",
}  # fmt: skip
_COMPILED = {words: re.compile(pattern) for words, pattern in _PHRASES.items()}


@lru_cache(PASSAGES_MAX)
def is_flagged(passage: str) -> bool:
    """`is_instruction_like` of a passage of the book: the same ones are found again and again."""
    return is_instruction_like(passage)


def is_instruction_like(text: str) -> bool:
    plain = _plain(text)
    return any(
        any(word in plain for word in words) and pattern.search(plain) for words, pattern in _COMPILED.items()
    )


def _plain(text: str) -> str:
    """Normalises: lower case, one line, compatibility characters replaced, invisible ones removed."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    return " ".join(text.lower().split())
