"""What is wrong with the agent's settings, in plain words. Called by `settings` and by the executors' registry."""

from typing import Final

from pydantic import ValidationError

from shared.wire import faults_of

_WORDS: Final = {"extra_forbidden": "is not a setting", "missing": "is needed"}
"""By pydantic's word for the kind of error; what stands for the others is plain already."""
_NOT_JOINED: Final = (
    "no worker is named: run `tandem-agent join LINE` first, or name it (--worker, or worker in the settings)"
)


def settings_faults(error: ValidationError, place: str = "") -> str:
    """Return every fault in one line; `place`: the table that the settings stand in."""
    said = []
    for fault, one in zip(faults_of(error, place), error.errors(include_url=False, include_input=False), strict=True):
        words = _WORDS.get(one["type"])
        if (fault.field, one["type"]) == ("worker", "missing"):
            said.append(_NOT_JOINED)
        elif not one["loc"]:
            said.append(fault.message)  # a rule about several: it names them
        else:
            said.append(f"{fault.field} {words}" if words else f"{fault.field}: {fault.message}")
    return "; ".join(said)
