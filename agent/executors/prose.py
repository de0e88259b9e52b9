"""Articles without a model: real Markdown, or an object for a JSON schema, the same for the same prompt and seed.

Pure; called by `sketch`. Nothing in it pretends to know anything about its subject, and it says so.
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

_WORD = re.compile(r"[^\W_][\w'-]*")
_SMALL = frozenset((
    "about", "and", "are", "article", "for", "from", "how", "into", "its", "our", "please", "that", "the", "their",
    "this", "what", "with", "words", "write", "you", "your",
))  # fmt: skip
_LEAST_LETTERS = 3
_OPENINGS = (
    "Most of what is said about {a} leaves out {b}.",
    "Whoever begins with {a} meets {b} sooner than expected.",
    "There are two ways to look at {a}, and {b} belongs to both.",
    "It is easy to speak of {a} and forget {b}.",
)
_SENTENCES = (
    "A good start is to take {a} as it is, and to ask what {b} would change.",
    "That is why {a} rarely comes alone: {b} is never far away.",
    "In practice {a} and {b} are settled together, or not at all.",
    "The plain answer is that {a} takes time, while {b} takes attention.",
    "Small steps help here, since each one shows whether {a} still fits {b}.",
    "What holds for {a} in the morning may not hold for {b} in the evening.",
    "One can count {a}; {b} has to be judged.",
    "Nothing about {a} is hidden, as long as somebody writes down {b}.",
)
_HEADINGS = (
    "Where {a} begins",
    "What {a} asks of us",
    "{a} in practice",
    "Between {a} and {b}",
    "The trouble with {a}",
)
_POINTS = (
    "Write down what {a} is for.",
    "Look at {b} before changing {a}.",
    "Keep {a} and {b} apart until both are understood.",
    "Ask who will miss {a} when it is gone.",
    "Try {b} on a small scale first.",
)
_CLOSING = "*Drafted by Tandem's sketch executor, without a model, from the words of its prompt.*"


def topic_of(prompt: str) -> str:
    """Return the first words of a prompt as a title."""
    words = _WORD.findall(prompt)[:9]
    return " ".join(words)[:1].upper() + " ".join(words)[1:] if words else "Untitled"


def article(prompt: str, seed: int) -> str:
    """Return a Markdown article about the words of the prompt."""
    chance = random.Random(f"{seed}\n{prompt}")  # noqa: S311 - a drawing lot, not a secret
    words = _keywords(prompt)
    parts = [f"# {topic_of(prompt)}", _paragraph(chance, words, chance.choice(_OPENINGS), 2)]
    for heading in chance.sample(_HEADINGS, 3):
        parts.append("## " + _capital(_fill(chance, heading, words)))
        parts += [_paragraph(chance, words, chance.choice(_SENTENCES), 3) for _ in range(2)]
    parts.append("## What to take along")
    parts.append("\n".join(f"- {_fill(chance, point, words)}" for point in chance.sample(_POINTS, 4)))
    parts.append(_CLOSING)
    return "\n\n".join(parts) + "\n"


def document(prompt: str, seed: int, schema: Mapping[str, Any] | None) -> Any:
    """Return an object about the prompt; with a schema, one of its shape."""
    chance = random.Random(f"{seed}\n{prompt}")  # noqa: S311
    words = _keywords(prompt)
    if schema is None:
        return {
            "title": topic_of(prompt),
            "summary": _paragraph(chance, words, chance.choice(_OPENINGS), 2),
            "keywords": list(words)[:8],
            "sections": [
                {
                    "heading": _capital(_fill(chance, heading, words)),
                    "text": _paragraph(chance, words, _SENTENCES[0], 2),
                }
                for heading in chance.sample(_HEADINGS, 2)
            ],
        }
    return _of_schema(schema, chance, words, "title", 0)


def _of_schema(schema: Mapping[str, Any], chance: random.Random, words: Sequence[str], name: str, depth: int) -> Any:
    """Return a value for the common part of JSON schema: type, enum, const, properties, items, and the limits."""
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return chance.choice(schema["enum"])
    for choice in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(choice), list) and schema[choice]:
            return _of_schema(schema[choice][0], chance, words, name, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties", {}) if depth < 8 else {}  # noqa: PLR2004 - deep enough for anybody
        return {key: _of_schema(part, chance, words, key, depth + 1) for key, part in properties.items()}
    if kind == "array":
        many = max(int(schema.get("minItems", 2)), 0)
        many = min(many, int(schema.get("maxItems", many)), 100)
        return [_of_schema(schema.get("items", {}), chance, words, name, depth + 1) for _ in range(many)]
    if kind in {"integer", "number"}:
        low = schema.get("minimum", 0)
        return low if kind == "number" else int(low)
    if kind == "boolean":
        return chance.random() < 0.5  # noqa: PLR2004 - a coin
    if kind == "null":
        return None
    text = _capital(_fill(chance, "{a} and {b}", words)) if name in {"title", "heading", "name"} else None
    text = text or _paragraph(chance, words, chance.choice(_OPENINGS), 1)
    most = schema.get("maxLength")
    return text[:most] if isinstance(most, int) else text


def _keywords(prompt: str) -> Sequence[str]:
    words = (match.lower() for match in _WORD.findall(prompt[:4000]))
    found = dict.fromkeys(word for word in words if len(word) >= _LEAST_LETTERS and word not in _SMALL)
    return [*list(found)[:40], "the beginning", "the rest"]


def _paragraph(chance: random.Random, words: Sequence[str], opening: str, more: int) -> str:
    sentences = [opening, *chance.sample(_SENTENCES, more)]
    return " ".join(_capital(_fill(chance, sentence, words)) for sentence in sentences)


def _fill(chance: random.Random, template: str, words: Sequence[str]) -> str:
    one, other = chance.sample(words, 2)
    return template.replace("{a}", one).replace("{b}", other)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
