"""How often somebody may ask: tries come back steadily, names are bounded, and who an address is."""

from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict

from coordinator.web import rates
from coordinator.web.rates import Rates, address_of


class Time:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_burst_goes_at_once_then_one_comes_back_after_the_other() -> None:
    time = Time()
    limited = Rates(per_s=0.5, burst=3, clock=time)
    assert [limited.take("a") for _ in range(4)] == [0, 0, 0, 2]
    time.s = 1.0
    assert limited.take("a") == 1  # who asks too early waits no longer for it
    time.s = 2.0
    assert (limited.take("a"), limited.take("a")) == (0, 2)


def test_names_do_not_share_and_a_long_rest_fills_the_bucket_no_further_than_the_burst() -> None:
    time = Time()
    limited = Rates(per_s=1, burst=2, clock=time)
    assert [limited.take("a") for _ in range(3)] == [0, 0, 1]
    assert limited.take("b") == 0
    time.s = 1000.0
    assert [limited.take("a") for _ in range(3)] == [0, 0, 1]


def test_what_is_given_back_does_not_count() -> None:
    limited = Rates(per_s=1, burst=2, clock=Time())
    for _ in range(10):
        assert limited.take("a") == 0
        limited.give_back("a")
    limited.give_back("a")
    assert [limited.take("a") for _ in range(3)] == [0, 0, 1]


def test_names_are_bounded_and_the_one_that_asked_least_lately_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_MOST_NAMES", 3)
    limited = Rates(per_s=1, burst=1, clock=Time())
    for name in ("a", "b", "c"):
        assert limited.take(name) == 0
    assert limited.take("a") == 1  # refused, and asked for lately all the same
    assert limited.take("d") == 0
    assert len(limited._left) == 3
    assert (limited.take("a"), limited.take("c")) == (1, 1)
    assert limited.take("b") == 0  # forgotten, so full again


def request(remote: str | None, forwarded: str | None = None) -> Any:
    lines = [] if forwarded is None else forwarded.split("\n")
    return SimpleNamespace(remote=remote, headers=CIMultiDict([("X-Forwarded-For", line) for line in lines]))


@pytest.mark.parametrize(
    ("remote", "forwarded", "address"),
    [
        ("192.0.2.7", None, "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", None, "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.7", None, "192.0.2.7"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),  # anybody can say that
        ("127.0.0.1", "198.51.100.1", "198.51.100.1"),  # a proxy on this machine
        ("::1", "2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:127.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "203.0.113.9, 198.51.100.1", "198.51.100.1"),  # the proxy's own word is the last
        ("127.0.0.1", "203.0.113.9, 192.0.2.7\n198.51.100.1", "198.51.100.1"),  # in a line of its own, too
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("127.0.0.1", None, "127.0.0.1"),
        (None, None, "unknown"),
        ("/run/tandem.sock", None, "/run/tandem.sock"),
    ],
)
def test_who_asks_is_an_address_or_a_network(remote: str | None, forwarded: str | None, address: str) -> None:
    assert address_of(request(remote, forwarded)) == address
