"""What ComfyUI's answers mean: a refused prompt, dropped outputs, an entry of the history.

Pure. It makes one line of text of each fault, `type: name: words`, and the table in verdicts.toml says what that means;
values, prompts and `current_inputs` are never part of it. Called by `comfyui_prompt`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.executors.comfyui_client import ImageRef, Posted
from agent.executors.verdicts import Finding, Verdict, look_up

BACKEND = "comfyui"
_OK = 200
_GRAVITY = (Verdict.FAIL, Verdict.UNKNOWN)
"""Among several faults of a graph the one that no other machine can heal decides."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, in the server's words, and what that means."""

    finding: Finding
    text: str
    status: int | None = None
    interrupted: bool = False


def fault_of(text: str, status: int | None = None) -> Fault:
    """Return what the table says of a text."""
    return Fault(look_up(BACKEND, text, status=status), text, status)


def refusal(posted: Posted) -> Fault | None:
    """Return why a posted prompt was refused; None: it was accepted."""
    if posted.status == _OK:
        return None
    error = posted.body.get("error")
    if not isinstance(error, dict):
        return fault_of(f"refused: {posted.text}", posted.status)
    inner = list(_node_faults(posted.body.get("node_errors"), posted.status))
    if inner:
        return gravest(inner)
    extra = error.get("extra_info")
    unnamed = isinstance(extra, dict) and "class_type" in extra and extra["class_type"] is None
    kind = f"{error.get('type')}{'_no_class' if unnamed else ''}"
    return fault_of(f"{kind}: {error.get('message')} {error.get('details') or ''}", posted.status)


def dropped(posted: Posted, outputs: frozenset[str]) -> Fault | None:
    """Return why an accepted prompt will not make what we want: a 200 may say that outputs were dropped."""
    errors = posted.body.get("node_errors")
    if not isinstance(errors, dict) or not errors:
        return None
    gone = {
        str(output)
        for error in errors.values()
        if isinstance(error, dict)
        for output in error.get("dependent_outputs") or ()
    }
    if outputs and not gone & outputs:
        return None
    inner = list(_node_faults(errors, posted.status))
    return gravest(inner) if inner else fault_of("dropped: outputs were dropped", posted.status)


def gravest(faults: Sequence[Fault]) -> Fault:
    """Return the fault that decides."""
    for verdict in _GRAVITY:
        for fault in faults:
            if fault.finding.verdict is verdict:
                return fault
    return faults[0]


def ending(entry: Mapping[str, Any]) -> Fault | None:
    """Return how an entry of the history ended badly; None: well, as far as its messages say.

    The last message decides: a failure while a node is staged leaves `status_str` at "success".
    """
    status = entry.get("status")
    messages = status.get("messages") if isinstance(status, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, list) or len(last) != 2 or not isinstance(last[1], dict):  # noqa: PLR2004
        return fault_of("history: the entry has no messages")
    kind, data = last
    if kind == "execution_success":
        return None
    if kind == "execution_error":
        where = f"{data.get('node_type')} ({data.get('node_id')})"
        return fault_of(f"{data.get('exception_type')}: {data.get('exception_message')} in {where}")
    if kind == "execution_interrupted":
        text = f"interrupted by somebody in {data.get('node_type')} ({data.get('node_id')})"
        return Fault(Finding(Verdict.RETRY, "interrupted"), text, interrupted=True)
    return fault_of(f"history: ended with {kind}")


def images(entry: Mapping[str, Any], outputs: frozenset[str]) -> list[ImageRef]:
    """Return the saved images of the wanted nodes, in the order of nodes and batches; `outputs` empty: of all."""
    found: list[ImageRef] = []
    made = entry.get("outputs")
    for node_id in sorted(made, key=_natural) if isinstance(made, dict) else ():
        if outputs and node_id not in outputs:
            continue
        node = made[node_id] if isinstance(made, dict) else None
        listed = node.get("images") if isinstance(node, dict) else None
        found += [
            ImageRef(str(image["filename"]), str(image.get("subfolder", "")), str(image["type"]))
            for image in listed or ()
            if isinstance(image, dict) and image.get("type") in ("output", *(("temp",) if outputs else ()))
        ]
    return found


def _natural(node_id: str) -> tuple[int, str]:
    return (int(node_id) if node_id.isdecimal() else 0, node_id)


def _node_faults(node_errors: Any, status: int) -> Iterator[Fault]:
    if not isinstance(node_errors, dict):
        return
    for node_id, node in node_errors.items():
        for error in node.get("errors", ()) if isinstance(node, dict) else ():
            extra = error.get("extra_info")
            name = extra.get("input_name", "") if isinstance(extra, dict) else ""
            words = f"{error.get('message')} {error.get('details') or ''}"
            yield fault_of(f"{error.get('type')}: {name}: {words} in {node.get('class_type')} ({node_id})", status)
