"""Three NATS servers that are one: made as docs/operations.md says (Grow), by `tandem init` and deploy/nats/.

It stands where one `EmbeddedNats` would (`TandemServers(cluster)`): the same identities on each, TLS among them, none
to clients, since the tests' buses speak none.
"""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coordinator.embedded import nats_server
from coordinator.identities import Identities, ServerSettings
from coordinator.init import Answers, Programs, deployed, initialise
from coordinator.init_certificates import make_server
from shared.bus import Bus
from tests.support.servers import QUICK_S
from tests.support.vps import ended, free_ports

NAMES = ("one", "two", "three")
PATIENCE_S = 60.0


class ThreeServers:
    """The servers by name; `identities` are written on each before it is told to read them."""

    def __init__(self, folder: Path) -> None:
        self.folders = {name: folder / name for name in NAMES}
        ports = free_ports(3 * len(NAMES))
        self._ports = dict(zip(NAMES, ports, strict=False))
        self._routes = dict(zip(NAMES, ports[3:], strict=False))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._names: dict[str, str] = {}
        for name, websocket_port in zip(NAMES, ports[6:], strict=True):
            self._prepare(name, websocket_port)
        self.identities = Identities(self.folders["one"])

    @property
    def url(self) -> str:
        """Where clients connect: all three."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.values())

    def url_of(self, name: str) -> str:
        """Where clients connect to one of them."""
        return f"nats://127.0.0.1:{self._ports[name]}"

    def named(self, server_name: str) -> str:
        """Return which of them has this server name."""
        return next(name for name, known in self._names.items() if known == server_name)

    def start(self, name: str) -> None:
        """Start one, or start it again."""
        folder = self.folders[name]
        with (folder / "nats.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [nats_server(), "-c", str(folder / "nats-server.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        """End one as a power cut would."""
        self._processes[name].kill()
        self._processes[name].wait(10)

    def reload(self) -> None:
        """Have all read the users again."""
        self._share_users()
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(1)

    async def reloaded(self) -> None:
        """Nothing to wait for: a client that is turned away tries again."""

    async def agreed(self, *, streams: bool = False) -> None:
        """Return when all three have a leader, and (`streams`) each replica of each stream is current."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self._agree(streams=streams):  # noqa: ASYNC110 - the servers' own view of things
                await asyncio.sleep(0.1)

    async def _agree(self, *, streams: bool) -> bool:
        async with Bus(
            self.url,
            name="agreed",
            seed=self.identities.provisioner,
            inbox_prefix="_INBOX.provisioner",
            reconnect_delays_s=QUICK_S,
        ) as bus:
            try:
                await bus.wait_connected(5)
                found = await bus.api("STREAM.LIST", timeout_s=5)
            except Exception:  # noqa: BLE001 - no leader yet, in any of the ways in which that shows
                return False
        if not streams:
            return True
        clusters = [stream["cluster"] for stream in found["streams"]]
        return all(
            cluster.get("leader")
            and len(cluster.get("replicas", ())) == 2
            and all(r["current"] for r in cluster["replicas"])
            for cluster in clusters
        )

    def stop(self) -> None:
        """End all."""
        for process in self._processes.values():
            ended(process)

    def _prepare(self, name: str, websocket_port: int) -> None:
        folder, first = self.folders[name], self.folders["one"]
        answers = Answers(host="localhost", user="tandem", nats_port=self._ports[name], websocket_port=websocket_port)
        initialise(folder, answers, Programs(tandem=Path("/bin/true"), nats_server=Path("/bin/true")))
        if name != "one":
            for file in ("ca.crt", "ca.key"):
                shutil.copyfile(first / "tls" / file, folder / "tls" / file)
            (folder / "tls" / "nats.crt").unlink()
            make_server(folder / "tls", "nats", ["localhost", "127.0.0.1"])
            for seed in (first / "identities").glob("*.seed"):
                shutil.copyfile(seed, folder / "identities" / seed.name)
            self._share_users(name)
        store = folder / "nats"
        self._names[name] = Identities(folder).write_server(
            ServerSettings(host="127.0.0.1", port=self._ports[name], store_dir=store)
        )
        routes = ", ".join(f'"tls://127.0.0.1:{port}"' for port in self._routes.values())
        filled = (
            deployed("nats/cluster.conf")
            .read_text()
            .replace("@ROUTES@ are", "ROUTES are")
            .replace("@SELF@ is", "SELF is")
        )
        filled = filled.replace("@SELF@", f"127.0.0.1:{self._routes[name]}").replace("@ROUTES@", routes)
        (folder / "cluster.conf").write_text(filled.replace("@DIR@", str(folder)))
        path = folder / "nats-server.conf"
        text = path.read_text()
        assert '# include "cluster.conf"' in text
        path.write_text(text.replace('# include "cluster.conf"', 'include "cluster.conf"'))

    def _share_users(self, *names: str) -> None:
        """Copy what the first one's identities say of users to the others, as a VPS's `nats_reload` has to."""
        for name in names or NAMES[1:]:
            for users in ("sys", "jobs", "agents", "publishers"):
                file = Path("identities") / f"{users}.conf"
                shutil.copyfile(self.folders["one"] / file, self.folders[name] / file)


def _is_whole(cluster: dict[str, Any]) -> bool:
    replicas = cluster.get("replicas", ())
    return bool(cluster.get("leader")) and len(replicas) == 2 and all(one["current"] for one in replicas)


@asynccontextmanager
async def three_servers(folder: Path) -> AsyncIterator[ThreeServers]:
    """Run three, and return when they have found each other."""
    made = ThreeServers(folder)
    try:
        for name in NAMES:
            made.start(name)
        await made.agreed()
        yield made
    finally:
        made.stop()
