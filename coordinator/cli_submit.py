"""`tandem submit`: options into a submission. What the coordinator would refuse is refused here first, by its rules."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from coordinator import cli_show
from coordinator.cli_where import Data, Json, Token, Url, ask
from shared.client import Client, JobView, Submitted
from shared.errors import ConfigurationError
from shared.states import JobState, Priority
from shared.submission import parse_submission

_OF_KIND: Mapping[str, frozenset[str]] = {
    "article": frozenset({"prompt", "system", "format", "options"}),
    "image": frozenset(
        {"prompt", "negative_prompt", "width", "height", "steps", "seed", "n", "upscale"},
    ),
}
"""Which parts of a spec have an option; those of other kinds are given with --spec."""

_FLAGS: Mapping[str, str] = {"negative_prompt": "--negative-prompt", "options": "--seed"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(submit)


def submit(  # noqa: PLR0917 - options, given by name
    kind: Annotated[str, typer.Argument(help="article, image, or a custom kind.")],
    prompt: Annotated[str | None, typer.Option(help="What it is made from.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Only an agent with this model takes it, else any; repeated: in order of preference."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency: the same key is the same job.")] = None,
    priority: Annotated[Priority, typer.Option(help="Order in the backlog.")] = Priority.NORMAL,
    system: Annotated[str | None, typer.Option(help="Article: the system prompt.")] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="Article: markdown, json, or @FILE with a JSON schema.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Image: pixels, a multiple of 8.")] = None,
    height: Annotated[int | None, typer.Option(help="Image: pixels, a multiple of 8.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Image: how many.")] = None,
    seed: Annotated[int | None, typer.Option(help="The generator's seed.")] = None,
    steps: Annotated[int | None, typer.Option(help="Image: sampling steps.")] = None,
    upscale: Annotated[int | None, typer.Option(help="Image: 1, 2 or 4.")] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="Image: what it must not show.")] = None,
    spec: Annotated[
        str | None, typer.Option(help="The spec as JSON, @FILE, or - for stdin; other options go on top.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, kept with the job (repeatable).")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one attempt may take.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Failures after which it is given up.")] = None,
    callback_url: Annotated[str | None, typer.Option(help="Told, signed, what it settles in.")] = None,
    *,
    review: Annotated[bool, typer.Option("--review", help="A person must approve the result.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is settled, and show it.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Submit a job; prints its id. Exit status 1 with --wait if it does not complete."""
    given = {
        "prompt": prompt,
        "system": system,
        "format": _format(format_),
        "width": width,
        "height": height,
        "n": n,
        "steps": steps,
        "upscale": upscale,
        "negative_prompt": negative_prompt,
        **({"options": {"seed": seed}} if kind == "article" and seed is not None else {"seed": seed}),
    }
    body = orjson.dumps(
        {
            "kind": kind,
            "spec": _spec(kind, _json_of(spec, "--spec") if spec else {}, given),
            **({"models": model} if model and len(model) > 1 else {"model": model[0] if model else None}),
            "key": key,
            "priority": priority,
            "labels": labels_of(label or []),
            "timeout_s": timeout,
            "max_attempts": max_attempts,
            "review": review,
            "callback_url": callback_url,
        }
    )
    parse_submission(body)

    async def work(client: Client) -> tuple[Submitted, JobView | None]:
        sent = await client.submit(body)
        if not wait:
            return sent, None
        typer.echo(f"{sent.id} {_SAID[sent.how]}; waiting for it", err=True)
        try:
            return sent, await client.wait(sent.id)
        except asyncio.CancelledError:
            typer.echo(f"it goes on: tandem show {sent.id}", err=True)
            raise

    sent, job = ask(url, token, data, work, role="publisher")
    if job is None:
        typer.echo(cli_show.as_json(sent) if json else sent.id)
        if not json:
            typer.echo(_SAID[sent.how], err=True)
        return
    typer.echo(cli_show.as_json(job)) if json else cli_show.job(job)
    if job.state not in (JobState.COMPLETED, JobState.AWAITING_REVIEW):
        raise typer.Exit(1)


_SAID = {
    "created": "created",
    "same": "the same job again: that key was submitted before",
    "queued": "accepted; the ledger is away, it will be admitted when it is back",
}


def _spec(kind: str, base: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Put the options on top of --spec; ConfigurationError for options that the kind does not have."""
    if not isinstance(base, dict):
        msg = "--spec: not a JSON object"
        raise ConfigurationError(msg)
    chosen = {name: value for name, value in given.items() if value is not None}
    known = _OF_KIND.get(kind, frozenset({"prompt"}))
    foreign = [_FLAGS.get(name, f"--{name}") for name in chosen if name not in known]
    if foreign:
        hint = "" if kind in _OF_KIND else "; give the spec of a custom kind with --spec"
        msg = f"{kind} has no {', '.join(foreign)}{hint}"
        raise ConfigurationError(msg)
    if isinstance(base.get("options"), dict) and "options" in chosen:
        chosen["options"] = {**base["options"], **chosen["options"]}
    return {**base, **chosen}


def _format(text: str | None) -> Any:
    return _json_of(text, "--format") if text and text.startswith("@") else text


def _json_of(text: str, flag: str) -> Any:
    """Read JSON as it stands, from @FILE, or from stdin (-)."""
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return orjson.loads(text)
    except (OSError, ValueError) as error:
        msg = f"{flag}: {error}"
        raise ConfigurationError(msg) from None


def labels_of(pairs: list[str]) -> dict[str, str]:
    """Read --label NAME=VALUE, as often as it was given; ConfigurationError for one that is none."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            msg = f"--label: not NAME=VALUE: {pair!r}"
            raise ConfigurationError(msg)
        found[name] = value
    return found
