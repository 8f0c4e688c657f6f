"""Text that reads like an instruction, in what was only to be read. Pure.

It decides nothing: passages and questions are data whatever they say, and a list of phrases is no defence. It tells an
auditor which records to look at.
"""

import re

_LIKE_AN_INSTRUCTION = re.compile(
    r"""
    \b(?:ignore|disregard|forget|override|bypass)\b .{0,40} \b(?:instructions?|rules?|prompts?|above|previous|guidelines?)\b
    | \b(?:system|developer|initial|hidden|secret)\s+(?:prompt|message|instructions?)\b
    | \b(?:you\s+are|act|pretend|behave|respond)\s+(?:now\s+)?(?:as|to\s+be|like)\b | \byou\s+are\s+now\b
    | \bfrom\s+now\s+on\b | \bdo\s+anything\s+now\b | \bjailbreak\b | \bnew\s+instructions?\b
    | \b(?:reveal|print|repeat|show|output|leak)\b .{0,30} \b(?:prompt|instructions?|rules)\b
    | \b(?:without|no)\s+(?:any\s+)?(?:restrictions?|filters?|censorship|limitations?)\b
    | \bstay\s+in\s+character\b | \brole-?\s?play\b
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def is_instruction_like(text: str) -> bool:
    return bool(_LIKE_AN_INSTRUCTION.search(text))
