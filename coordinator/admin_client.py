"""What only an administrator asks over HTTP, added to the client that everybody uses."""

from typing import Any
from urllib.parse import quote

import orjson

from shared.client import Client


class AdminClient(Client):
    """A client with an administrator's requests; answers are as `/openapi.json` has them."""

    async def invite(self, worker: str, *, good_s: float, replace: bool) -> dict[str, Any]:
        """Make a line by which a Mac joins."""
        return await self._post(f"/v1/invitations/{quote(worker, safe='')}", good_s=good_s, replace=replace)

    async def revoke_worker(self, worker: str) -> dict[str, Any]:
        """Cut a worker off."""
        _, answer = await self._http.ask("DELETE", f"/v1/workers/{quote(worker, safe='')}")
        return answer

    async def publishers(self) -> list[dict[str, Any]]:
        """Return every publisher that may connect to NATS."""
        found: list[dict[str, Any]] = (await self._http.get("/v1/publishers"))["publishers"]
        return found

    async def add_publisher(self, source: str, public_key: str, *, replace: bool) -> dict[str, Any]:
        """Let a publisher connect to NATS with this key."""
        body = orjson.dumps({"public_key": public_key, "replace": replace})
        _, answer = await self._http.ask("PUT", f"/v1/publishers/{quote(source, safe='')}", body=body)
        return answer

    async def revoke_publisher(self, source: str) -> dict[str, Any]:
        """Cut a publisher off NATS."""
        _, answer = await self._http.ask("DELETE", f"/v1/publishers/{quote(source, safe='')}")
        return answer

    async def rules(self, worker: str) -> dict[str, Any]:
        """Return by which rules a worker works."""
        found: dict[str, Any] = await self._http.get(_rules_of(worker))
        return found

    async def tell_rules(self, worker: str, rules: dict[str, Any]) -> dict[str, Any]:
        """Have a worker work by these rules."""
        _, answer = await self._http.ask("PUT", _rules_of(worker), body=orjson.dumps(rules))
        return answer

    async def clear_rules(self, worker: str) -> dict[str, Any]:
        """Have a worker work by its own rules."""
        _, answer = await self._http.ask("DELETE", _rules_of(worker))
        return answer

    async def new_token(self, role: str, name: str) -> dict[str, Any]:
        """Make a token."""
        return await self._post("/v1/tokens", role=role, name=name)

    async def tokens(self) -> list[dict[str, Any]]:
        """Return every token that is good."""
        found: list[dict[str, Any]] = (await self._http.get("/v1/tokens"))["tokens"]
        return found

    async def revoke_token(self, token_id: str) -> dict[str, Any]:
        """Make a token good no more."""
        _, answer = await self._http.ask("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")
        return answer

    async def _post(self, path: str, **said: Any) -> dict[str, Any]:
        _, answer = await self._http.ask("POST", path, body=orjson.dumps(said))
        return answer


def _rules_of(worker: str) -> str:
    return f"/v1/workers/{quote(worker, safe='')}/rules"
