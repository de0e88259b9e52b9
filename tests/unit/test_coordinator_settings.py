"""What the coordinator's settings refuse, with the numbers and names in the message."""

import pytest
from pydantic import ValidationError

from coordinator.settings import CoordinatorSettings
from shared.errors import ConfigurationError


@pytest.mark.parametrize("url", ["127.0.0.1:9", "ftp://host", "http://", "host"])
def test_a_public_url_that_no_agent_can_reach_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="public_url"):
        CoordinatorSettings(public_url=url)


def test_a_public_url_has_no_slash_at_its_end() -> None:
    assert CoordinatorSettings(public_url="https://jobs.example/").public_url == "https://jobs.example"


def test_a_heartbeat_that_is_too_slow_for_its_lease_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValidationError, match=r"30.0 is not below 20.0"):
        CoordinatorSettings(lease_ttl_s=40, heartbeat_s=30)


def test_an_unknown_name_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_LEASE_TTL", "5")
    with pytest.raises(ConfigurationError, match="TANDEM_LEASE_TTL"):
        CoordinatorSettings.load(None)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_MAX_ATTEMPTS", "7")
    assert CoordinatorSettings.load(None).max_attempts == 7
    assert CoordinatorSettings.load(None, max_attempts=2).max_attempts == 2
