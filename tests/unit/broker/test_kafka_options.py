"""Options of Kafka's clients, and that their secrets are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsets_pipeline.common.config import load_settings
from offsets_pipeline.common.config.sections import KafkaSettings
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.kafka.broker.kafka_options import (
    KafkaOptions,
    are_bootstrap_servers,
    literal_secret,
    parse_options,
)


def test_options_go_to_clients_without_the_prefix() -> None:
    options = KafkaOptions("b:9092", {"kafka.security.protocol": "SSL", "client.id": "me"})
    assert options.for_clients() == {"bootstrap.servers": "b:9092", "security.protocol": "SSL", "client.id": "me"}


@pytest.mark.parametrize("location", ["b:9092", "SSL://b.example.com:1 , [::1]:2", "b:9092,c:9092"])
def test_bootstrap_servers_are_hosts_with_ports(location: str) -> None:
    assert are_bootstrap_servers(location)


@pytest.mark.parametrize("location", ["b", "b:9092,c", "/data/s:1", "s3://bucket/store", "", Path("b:9092"), None])
def test_a_folder_is_no_bootstrap_server(location: object) -> None:
    assert not are_bootstrap_servers(location)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("ssl.key.password=open-sesame", "ssl.key.password"),
        ("ssl.key.password=", None),
        ("ssl.key.password=env:KEY", None),
        ("ssl.key.password=file:/run/key", None),
        ("ssl.keystore.certificate.chain=open", None),
        ("client.id=open-sesame", None),
        ("sasl.oauthbearer.token.endpoint.url=https://t", None),
        ('sasl.jaas.config=Login required username="me" password="open-sesame";', "sasl.jaas.config"),
        ("sasl.jaas.config=Login required;", None),
    ],
)
def test_an_option_on_the_command_line_is_a_secret_if_its_value_is_one(option: str, name: str | None) -> None:
    assert literal_secret(option) == name


@pytest.mark.parametrize(
    ("entry", "secrets"),
    [
        ('Login required username="me" password="open sesame";', ["open sesame"]),
        ("Login required username=me password=open-sesame;", ["open-sesame"]),
        ("Login required username='me' password='a;b' tokenauth=true;", ["a;b"]),
        (r'Login required username="me" password="a\"b";', ['a"b', r"a\"b"]),
        ('Login required\n username="me"\n password = "open-sesame"\n;', ["open-sesame"]),
        ('Bearer required clientId="me" clientSecret="s3cret" ssl.truststore.password="t0p";', ["s3cret", "t0p"]),
    ],
)
def test_of_a_jaas_entry_passwords_are_hidden_and_nothing_else(entry: str, secrets: list[str]) -> None:
    options = KafkaOptions("b:9092", {"sasl.jaas.config": entry})
    for secret in secrets:
        assert options.without_secrets(f"a {secret} b") == "a *** b"
    plain = "some are me, required, true, Login, clientId, tokenauth=true, a message for whom it may concern"
    assert options.without_secrets(plain) == plain
    assert options.without_secrets(f"<{entry}>") == "<***>"


def test_secrets_come_from_the_environment_and_from_files_and_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAAS", 'Login required username="me" password="open-sesame";')
    (tmp_path / "secret").write_text("pass1\n")
    options = KafkaOptions(
        "b:9092",
        {
            "sasl.jaas.config": "env:JAAS",
            "ssl.truststore.password": f"file:{tmp_path / 'secret'}",
            "ssl.key.password": "plain-one",
        },
    )
    assert options.for_clients()["sasl.jaas.config"].endswith('password="open-sesame";')
    assert options.for_clients()["ssl.truststore.password"] == "pass1"
    said = options.without_secrets(f"no login with open-sesame, pass1, plain-one or {options.for_clients()}")
    for secret in ("open-sesame", "pass1", "plain-one"):
        assert secret not in said + repr(options) + str(options)
    short = KafkaOptions("b:9092", {"ssl.key.password": "x", "ssl.keystore.password": "yz"})
    assert short.without_secrets("xyz") == "x***"  # a single character would be in most messages


@pytest.mark.parametrize(
    "name", ["group.id", "groupIdPrefix", "kafka.isolation.level", "bootstrap.servers", "enable.auto.commit"]
)
def test_options_that_the_reading_rests_on_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot set the Kafka option {name.removeprefix('kafka.')}:"):
        KafkaOptions("b:9092", {name: "x"})


def test_a_secret_that_is_not_there_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH is not set"):
        KafkaOptions("b:9092", {"ssl.key.password": "env:NO_SUCH"})
    with pytest.raises(ConfigError, match="No such file"):
        KafkaOptions("b:9092", {"ssl.key.password": f"file:{tmp_path / 'none'}"})
    with pytest.raises(ConfigError, match=r"from the file a\0b: the path holds a NUL character$"):
        KafkaOptions("b:9092", {"ssl.key.password": "file:a\0b"})


def test_options_of_the_command_line_may_hold_equals_signs() -> None:
    assert parse_options(["a.b=c=d", " e =f"]) == {"a.b": "c=d", "e": "f"}
    with pytest.raises(ConfigError, match="write NAME=VALUE") as refused:
        parse_options(["open-sesame"])
    assert "sesame" not in str(refused.value)  # who forgot the name may have written the secret alone
    with pytest.raises(ConfigError, match="write NAME=VALUE"):
        parse_options([" =x"])


def test_settings_hold_options_as_toml_has_them_and_show_none(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(
        '[kafka]\nsecurity.protocol = "SSL"\n"sasl.mechanism" = "PLAIN"\nretries = 3\nssl.key.password = "x"\n'
    )
    settings = load_settings(path)
    assert settings.kafka.options == {
        "security.protocol": "SSL",
        "sasl.mechanism": "PLAIN",
        "retries": "3",
        "ssl.key.password": "x",
    }
    assert "ssl" not in repr(settings.kafka)
    path.write_text("[kafka]\na.b = [1]\n")
    with pytest.raises(ConfigError, match=r"\[kafka\] a\.b: it takes text"):
        load_settings(path)
    assert KafkaSettings.of_document({"a": True}).options == {"a": "true"}
