"""The agent's settings: where they come from, in which order, and what is refused."""

import os

import pytest

from agent.settings import load_settings
from shared.errors import ConfigurationError
from shared.nkey import new_seed


@pytest.fixture
def toml(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("TANDEM_")]:
        monkeypatch.delenv(name)

    def write(text):
        path = tmp_path / "agent.toml"
        path.write_text(text)
        return path

    return write


def test_flags_win_over_environment_and_that_over_the_file(toml, monkeypatch):
    path = toml('worker = "file"\nslots = 2\nrank = 3\nnats = "tls://file"\nlinger_s = 2')
    monkeypatch.setenv("TANDEM_AGENT_SLOTS", "4")
    monkeypatch.setenv("TANDEM_RANK", "5")
    monkeypatch.setenv("TANDEM_NATS", "tls://shared")
    monkeypatch.setenv("TANDEM_AGENT_NATS", "tls://own")
    monkeypatch.setenv("TANDEM_LEASE_TTL_S", "1")  # the coordinator's
    settings = load_settings(path, {"slots": 7, "worker": None})
    assert (settings.worker, settings.slots, settings.rank) == ("file", 7, 5)
    assert (settings.nats, settings.linger_s) == ("tls://own", 2)


def test_executors_come_from_the_file_the_environment_and_flags(toml, monkeypatch):
    path = toml('worker = "w"\n[executors.sketch]\nkinds = ["noop"]\n')
    settings = load_settings(path, executors=["sketch", "command"])
    assert settings.executors == {"sketch": {"kinds": ["noop"]}, "command": {}}
    monkeypatch.setenv("TANDEM_AGENT_EXECUTORS", '{"sketch": {"kinds": ["image"]}}')
    assert load_settings(path).executors == {"sketch": {"kinds": ["image"]}}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "worker"),
        ('worker = "Not A Name"', "worker"),
        ('worker = "w"\nslotz = 1', "slotz"),
        ('worker = "w"\nslots = 0', "slots"),
        ('worker = "w"\nlinger_s = 11', "linger_s"),
        ("worker = ", "agent.toml"),
        (
            'worker = "w"\nnats = "tls://a.example,nats://b.example:4222"',
            "nats: nats://b.example:4222 is not encrypted",
        ),
        ('worker = "w"\nnats = "ws://a.example/nats"\nca_file = "ca.crt"', "nats: ws://a.example is not encrypted"),
        ('worker = "w"\nnats = "natss://a.example"', "nats: natss://a.example is not encrypted"),
        ('worker = "w"\nnats = "tls://[fd00::1"', "nats: that is no URL"),
        ('worker = "w"\nnats = "192.168.1.10:4222"', "nats: 192.168.1.10:4222 is not encrypted"),
    ],
)
def test_a_wrong_setting_is_named(toml, text, named):
    with pytest.raises(ConfigurationError, match=named):
        load_settings(toml(text))


@pytest.mark.parametrize(
    "text",
    [
        'nats = "nats://localhost:4222"',
        'nats = "wss://vps.example.org/nats,tls://vps.example.org"',
        'nats = "nats://vps.example.org"\nca_file = "ca.crt"',  # with which a link without TLS is refused
    ],
)
def test_what_stays_here_or_is_encrypted_is_taken(toml, text):
    load_settings(toml(f'worker = "w"\n{text}'))


def test_an_unknown_variable_of_ours_is_refused(toml, monkeypatch):
    monkeypatch.setenv("TANDEM_AGENT_SLOTZ", "1")
    with pytest.raises(ConfigurationError, match="TANDEM_AGENT_SLOTZ"):
        load_settings(toml('worker = "w"'))


def test_a_seed_file_must_be_the_owners_alone_and_hold_a_seed(toml, tmp_path):
    seed, path = new_seed(), tmp_path / "w.seed"
    path.write_text(seed + "\n")
    settings = load_settings(None, {"worker": "w", "seed_file": path})
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        settings.read_seed()
    path.chmod(0o600)
    assert settings.read_seed() == seed
    path.write_text("SUNOTASEED")
    with pytest.raises(ConfigurationError, match="no nkey seed"):
        settings.read_seed()
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"w[.]seed"):
        settings.read_seed()
    assert seed not in repr(load_settings(None, {"worker": "w", "seed": seed}))
