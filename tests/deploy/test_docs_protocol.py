"""docs/protocol.md says what the code reads: each JSON example is read by its model, and every model is shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from shared import subjects, wire
from shared.client_nats import _JS_PREFIX
from shared.ids import NAME_PATTERN
from shared.streams import STREAMS, results_consumer
from shared.submission import Submission

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
EXAMPLES = re.findall(r"```json (\S+)\n(.*?)```", PAGE, re.DOTALL)
READERS: dict[str, type[BaseModel] | TypeAdapter[Any]] = {
    "submission": Submission,
    "presence": wire.Presence,
    "presence-answer": wire.PresenceAnswer,
    "offer": wire.Offer,
    "claim": wire.Claim,
    "claim-answer": wire.ClaimReply,
    "lease": wire.LeaseQuestion,
    "lease-answer": wire.LeaseReply,
    "report": wire.Report,
    "control": wire.ControlMessage,
    "result": wire.ResultMessage,
}


def read(name: str, text: str) -> BaseModel:
    reader = READERS[name]
    found = reader.validate_json(text) if isinstance(reader, TypeAdapter) else reader.model_validate_json(text)
    assert isinstance(found, BaseModel)
    return found


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[f"{n}-{name}" for n, (name, _) in enumerate(EXAMPLES)])
def test_an_example_is_read_and_has_no_field_that_nobody_reads(name: str, text: str) -> None:
    fields = {field.alias or key for key, field in type(read(name, text)).model_fields.items()}
    assert set(json.loads(text)) <= fields


def test_every_message_has_its_example() -> None:
    assert {name for name, _ in EXAMPLES} == set(READERS)


def test_every_field_of_a_message_is_named() -> None:
    for name, text in EXAMPLES:
        fields = [field.alias or key for key, field in type(read(name, text)).model_fields.items()]
        assert [field for field in fields if f"`{field}`" not in PAGE and f'"{field}"' not in PAGE] == [], name


def test_streams_subjects_and_names_are_the_codes() -> None:
    for name in STREAMS:
        assert f"| {name} |" in PAGE
    assert NAME_PATTERN in PAGE
    assert wire.Capability.model_fields["kind"] is not None
    for subject in (subjects.claim, subjects.lease, subjects.presence, subjects.control):
        assert f"`{subject('<worker>')}`" in PAGE


def test_every_header_of_a_heartbeat_is_named() -> None:
    source = (Path(__file__).parents[2] / "coordinator" / "heartbeats.py").read_text()
    headers = set(re.findall(r'"(Tandem-[A-Za-z]+)"', source))
    assert headers
    assert [header for header in headers if f"`{header}`" not in PAGE] == []


def test_every_wire_decision_is_told() -> None:
    """Words that the decisions marked **wire** added to the contract."""
    words = ["presence_s", "as_of", "replaced", "models", "facts.probes", "no_progress_s", "failures", "simulate"]
    words += ["down", "rules", "better_free"]
    words += [":<state>", "agent-<worker>-<instance>"]
    assert [word for word in words if word not in PAGE] == []


def test_how_a_publisher_takes_its_results_is_how_the_client_does() -> None:
    assert f"`{_JS_PREFIX}.CONSUMER.MSG.NEXT.RESULTS.{results_consumer('<source>')}`" in PAGE
    assert "exactly `+ACK`" in PAGE.split("## Results")[1]
