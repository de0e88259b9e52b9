"""What each role may say and hear in NATS: exactly this, tried subject by subject against the real server.

`tests/integration/test_authorization.py` shows each role at work; here every subject of the contract is tried by every
role, so that a right that is added by mistake is seen whoever gets it.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from shared.bus import Bus, Denied
from tests.support.servers import TandemServers

ROLES = ("coordinator", "provisioner", "watcher", "agent:mini", "publisher:cms")
OTHERS = ("agent:book", "publisher:shop")

_API = (
    "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.WORK", "STREAM.CREATE.X", "STREAM.UPDATE.WORK",
    "STREAM.DELETE.WORK", "STREAM.PURGE.WORK", "STREAM.SNAPSHOT.WORK", "STREAM.RESTORE.X", "STREAM.MSG.GET.WORK",
    "STREAM.MSG.DELETE.WORK", "STREAM.MSG.DELETE.SUBMIT", "STREAM.MSG.DELETE.RESULTS", "STREAM.PEER.REMOVE.WORK",
    "STREAM.LEADER.STEPDOWN.WORK",
    "DIRECT.GET.WORK", "CONSUMER.NAMES.WORK", "CONSUMER.LIST.WORK", "CONSUMER.INFO.WORK.article--any",
    "CONSUMER.CREATE.WORK.x.tandem.work.a.any.*", "CONSUMER.CREATE.X.y", "CONSUMER.DELETE.WORK.article--any",
    "CONSUMER.PAUSE.WORK.article--any", "CONSUMER.RESET.WORK.article--any", "CONSUMER.LEADER.STEPDOWN.WORK.a",
    "CONSUMER.MSG.NEXT.WORK.article--any", "CONSUMER.MSG.NEXT.SUBMIT.intake", "CONSUMER.MSG.NEXT.REPORTS.reports",
    "CONSUMER.MSG.NEXT.RESULTS.results-cms", "CONSUMER.MSG.NEXT.RESULTS.results-shop", "ACCOUNT.PURGE.JOBS",
    "META.LEADER.STEPDOWN", "SERVER.REMOVE",
)  # fmt: skip
SAID = (
    "tandem.submit.cms", "tandem.submit.shop", "tandem.work.article.any.1", "tandem.result.cms.article.1",
    "tandem.event.1.state", "tandem.control.mini", "tandem.control.book", "tandem.claim.mini", "tandem.claim.book",
    "tandem.lease.mini", "tandem.lease.book", "tandem.presence.mini", "tandem.presence.book", "tandem.report.mini.1",
    "tandem.report.book.1", "tandem.report.mini", "tandem.anything", "anything", "_INBOX.x", "_INBOX.mini.x",
    "_INBOX.book.x", "_INBOX.cms.x", "_INBOX.coordinator.x", "_R_.x", "$JS.ACK.WORK.article--any.1.1.1.1.0",
    "$JS.ACK.SUBMIT.intake.1.1.1.1.0", "$JS.ACK.REPORTS.reports.1.1.1.1.0", "$JS.ACK.RESULTS.results-cms.1.1.1.1.0",
    "$JS.ACK.RESULTS.results-shop.1.1.1.1.0", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.JOBS.CONNZ", "$KV.x.y",
    *(f"{prefix}.{suffix}" for prefix in ("$JS.API", "JSJ.API") for suffix in _API),
)  # fmt: skip
HEARD = (
    ">", "*", "tandem.>", "tandem.submit.*", "tandem.work.>", "tandem.result.>", "tandem.result.cms.>",
    "tandem.event.>", "tandem.control.*", "tandem.control.mini", "tandem.control.book", "tandem.claim.*",
    "tandem.claim.mini", "tandem.lease.*", "tandem.presence.*", "tandem.report.>", "tandem.report.mini.*",
    "_INBOX.>", "_INBOX.mini.>",
    "_INBOX.book.>", "_INBOX.cms.>", "_INBOX.shop.>", "_INBOX.coordinator.>", "_INBOX.provisioner.>",
    "_INBOX.watcher.>", "_R_.>", "$JS.ACK.>", "$JS.ACK.WORK.>", "$JS.API.>", "JSJ.API.>", "$JS.EVENT.>", "$SYS.>",
    "$SYS.ACCOUNT.AGENTS.DISCONNECT", "$SYS.ACCOUNT.AGENTS.CONNECT", "$SYS.ACCOUNT.JOBS.DISCONNECT",
)  # fmt: skip

MAY_SAY: dict[str, set[str]] = {
    "coordinator": {
        "tandem.submit.cms", "tandem.submit.shop", "tandem.work.article.any.1", "tandem.result.cms.article.1",
        "tandem.event.1.state", "tandem.control.mini", "tandem.control.book", "_R_.x",
        "$JS.ACK.WORK.article--any.1.1.1.1.0", "$JS.ACK.SUBMIT.intake.1.1.1.1.0",
        "$JS.ACK.REPORTS.reports.1.1.1.1.0", "$JS.ACK.RESULTS.results-cms.1.1.1.1.0",
        "$JS.ACK.RESULTS.results-shop.1.1.1.1.0", "$JS.API.INFO", "$JS.API.STREAM.INFO.WORK",
        "$JS.API.STREAM.MSG.GET.WORK", "$JS.API.STREAM.MSG.DELETE.WORK", "$JS.API.CONSUMER.NAMES.WORK",
        "$JS.API.CONSUMER.INFO.WORK.article--any", "$JS.API.CONSUMER.CREATE.WORK.x.tandem.work.a.any.*",
        "$JS.API.CONSUMER.MSG.NEXT.SUBMIT.intake", "$JS.API.CONSUMER.MSG.NEXT.REPORTS.reports",
    },
    "provisioner": {f"$JS.API.{suffix}" for suffix in _API},
    "watcher": set(),
    "agent:mini": {
        "tandem.claim.mini", "tandem.lease.mini", "tandem.presence.mini", "tandem.report.mini.1",
        "$JS.ACK.WORK.article--any.1.1.1.1.0", "JSJ.API.CONSUMER.MSG.NEXT.WORK.article--any",
    },
    "publisher:cms": {
        "tandem.submit.cms", "$JS.ACK.RESULTS.results-cms.1.1.1.1.0", "JSJ.API.CONSUMER.MSG.NEXT.RESULTS.results-cms",
    },
}  # fmt: skip
MAY_HEAR: dict[str, set[str]] = {
    "coordinator": {
        "tandem.claim.*", "tandem.claim.mini", "tandem.lease.*", "tandem.presence.*", "tandem.event.>",
        "_INBOX.coordinator.>", "$JS.ACK.WORK.>",
    },
    "provisioner": {"_INBOX.provisioner.>"},
    "watcher": {"$SYS.ACCOUNT.AGENTS.DISCONNECT"},
    "agent:mini": {"_INBOX.mini.>", "tandem.control.mini"},
    "publisher:cms": {"_INBOX.cms.>"},
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def connected(servers: TandemServers) -> AsyncIterator[dict[str, Bus]]:
    async with AsyncExitStack() as stack:
        yield {role: await stack.enter_async_context(servers.open(role)) for role in (*ROLES, *OTHERS)}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_say_this_and_nothing_else(connected: dict[str, Bus], role: str) -> None:
    bus, said = connected[role], set()
    for subject in SAID:
        bus.denials.clear()
        await bus.publish(subject, b"no JSON")  # which no API takes for an order
        await bus.flush()
        if not bus.denials:
            said.add(subject)
    assert said == MAY_SAY[role]


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_hear_this_and_nothing_else(connected: dict[str, Bus], role: str) -> None:
    heard = set()
    for subject in HEARD:
        try:
            subscription = await connected[role].subscribe(subject, lambda _: None)
        except Denied:
            continue
        heard.add(subject)
        await subscription.close()
    assert heard == MAY_HEAR[role]
