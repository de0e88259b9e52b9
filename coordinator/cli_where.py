"""Which coordinator the command line talks to: --url and --token, or the folder of a `tandem up`.

`--url` (TANDEM_URL) wins; then `--data` (TANDEM_DATA), whose connection.json names URL and tokens; then `./data`, if
there is such a folder. Used by every command that asks a server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer
import uvloop

from coordinator.admin_client import AdminClient
from coordinator.up_folder import CONNECTION
from shared.errors import ConfigurationError, UnreachableError

DEFAULT_DATA = Path("data")

Url = Annotated[str | None, typer.Option("--url", envvar="TANDEM_URL", help="The coordinator's HTTP address.")]
Token = Annotated[str | None, typer.Option("--token", envvar="TANDEM_TOKEN", help="Bearer token for --url.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", envvar="TANDEM_DATA", help="Folder of a running `tandem up`, instead of --url."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_T = TypeVar("_T")


def ask(
    url: str | None,
    token: str | None,
    data: Path | None,
    work: Callable[[AdminClient], Awaitable[_T]],
    role: str = "admin",
) -> _T:
    """Run `work` with a client of the coordinator that the options name; `role`: whose token to take from a folder."""

    async def asked() -> _T:
        async with client_of(url, token, data, role) as client:
            return await work(client)

    return run(asked())


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run it to its end, on a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def client_of(url: str | None, token: str | None, data: Path | None, role: str) -> AdminClient:
    """Return a client, not yet entered; ConfigurationError when the options name no server."""
    if url is not None:
        return AdminClient(url, token)
    if data is None and not DEFAULT_DATA.is_dir():
        msg = "which coordinator? give --url and --token, or --data with the folder of a running `tandem up`"
        raise ConfigurationError(msg)
    connection = connection_of(data or DEFAULT_DATA)
    return AdminClient(connection["http"], token or connection["tokens"][role])


def connection_of(data: Path, otherwise: str = "") -> dict[str, Any]:
    """Read a folder's connection.json; UnreachableError when no `tandem up` runs there, which says what to do."""
    path = data.expanduser() / CONNECTION
    try:
        found: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        where = "" if data == DEFAULT_DATA else f" --data {data}"
        msg = f"no tandem up runs in {data} (there is no {CONNECTION}); start it: tandem up{where}{otherwise}"
        raise UnreachableError(msg) from None
    except (OSError, ValueError) as error:
        msg = f"{path} can't be read: {error}"
        raise ConfigurationError(msg) from None
    match found:
        case {"http": str(), "tokens": dict()}:
            return dict(found)
    msg = f"{path} was not written by a `tandem up`: it names no http and tokens"
    raise ConfigurationError(msg)
