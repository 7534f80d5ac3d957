"""Every library opens S3 as the variables of Amazon's own programs say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.common.config import load_settings
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.store.delta.filesystems import open_path
from offsets_pipeline.store.delta.reader import UNREADABLE, open_table
from offsets_pipeline.store.delta.s3_access import (
    hadoop_keys,
    hadoop_options,
    is_s3,
    object_store_options,
    task_environment,
    use_settings,
)
from offsets_pipeline.store.delta.storage import storage_of
from tests.http_server import Quiet, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from email.message import Message
    from pathlib import Path

NOTHING = "http://127.0.0.1:1"  # no server listens there
KEY = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
CREDENTIALS = """
[default]
aws_access_key_id = usual
aws_secret_access_key = secret

[dev]
aws_access_key_id = developer
aws_secret_access_key = secret
aws_session_token = token

[role]
role_arn = arn:aws:iam::1:role/reader
"""
CONFIG = """
[profile dev]
region = eu-west-3
"""


# Arrow reads the profiles once in a process, so it needs one of its own.


ARROW, DELTALAKE, OBSTORE = "arrow", "deltalake", "obstore"
#: Opens an object of a bucket by one of the libraries.
OPEN = {
    ARROW: """
from offsets_pipeline.store.delta.filesystems import open_path
system, path = open_path("s3://{bucket}/table/file")
system.open_input_file(path)
""",
    DELTALAKE: """
from offsets_pipeline.store.delta.reader import open_table
open_table("s3://{bucket}/table")
""",
    OBSTORE: """
from offsets_pipeline.store.delta.storage import storage_of
storage_of("s3://{bucket}/table").read("file")
""",
}


class Signature(NamedTuple):
    """What a request was signed with."""

    key: str
    region: str
    token: str | None


@contextmanager
def serving_nothing(note: Callable[[Message, str], None]) -> Iterator[str]:
    """The URL of a server without objects, which notes headers and path of each request."""

    class Handler(Quiet):
        def do_GET(self) -> None:  # noqa: N802 - the name that the server calls
            note(self.headers, self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that the server calls

    with served(Handler) as url:
        yield url


@pytest.fixture
def requests() -> Iterator[tuple[str, list[Signature]]]:
    """The URL of a server without objects, and the signatures of the requests to it."""
    seen: list[Signature] = []

    def note(headers: Message, _: str) -> None:
        signed = re.search(r"Credential=(\w+)/\d+/([\w-]+)/s3/", headers["Authorization"] or "")
        if signed:
            seen.append(Signature(signed[1], signed[2], headers["x-amz-security-token"]))

    with serving_nothing(note) as url:
        yield url, seen


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's profiles; no variable is set otherwise."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP", *KEY, "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, variable in (("credentials", "AWS_SHARED_CREDENTIALS_FILE"), ("config", "AWS_CONFIG_FILE")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    return tmp_path


def use_profiles(folder: Path) -> None:
    (folder / "credentials").write_text(CREDENTIALS, encoding="utf-8")
    (folder / "config").write_text(CONFIG, encoding="utf-8")


@pytest.mark.parametrize(
    ("variables", "signature"),
    [
        (KEY | {"AWS_REGION": "eu-west-3", "AWS_SESSION_TOKEN": "t"}, Signature("key", "eu-west-3", "t")),
        (KEY | {"AWS_DEFAULT_REGION": "eu-west-3", "AWS_ALLOW_HTTP": "true"}, Signature("key", "eu-west-3", None)),
        (KEY, Signature("key", "us-east-1", None)),
        (KEY | {"AWS_PROFILE": "dev"}, Signature("key", "eu-west-3", None)),
        ({"AWS_PROFILE": "dev"}, Signature("developer", "eu-west-3", "token")),
        ({}, Signature("usual", "us-east-1", None)),
    ],
    ids=["session", "default region", "key", "key and profile", "profile", "default profile"],
)
def test_arrow_deltalake_and_obstore_sign_alike(
    requests: tuple[str, list[Signature]],
    profiles: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: Mapping[str, str],
    signature: Signature,
) -> None:
    use_profiles(profiles)
    endpoint, seen = requests
    for name, value in {"AWS_ENDPOINT_URL": endpoint, **variables}.items():
        monkeypatch.setenv(name, value)
    found = subprocess.run(
        [sys.executable, "-c", OPEN[ARROW].format(bucket="bucket")], capture_output=True, text=True, check=False
    )
    assert "FileNotFoundError" in found.stderr
    assert set(seen) == {signature}
    seen.clear()
    with suppress(*UNREADABLE):
        open_table("s3://bucket/table")
    assert set(seen) == {signature}
    seen.clear()
    assert storage_of("s3://bucket/table").read("file") is None
    assert set(seen) == {signature}


@pytest.fixture
def hosts() -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """The URL of a server without objects, and the hosts that requests named, with the first name in their paths."""
    seen: set[tuple[str, str]] = set()

    def note(headers: Message, path: str) -> None:
        seen.add((headers["Host"], path.strip("/").split("/")[0].split("?")[0]))

    with serving_nothing(note) as url:
        yield url, seen


def open_by(library: str, bucket: str, variables: Mapping[str, str]) -> str:
    """Open an object in a process with these variables; returns what it says on stderr."""
    environment = {"PYTHONPATH": ":".join(sys.path), "AWS_EC2_METADATA_DISABLED": "true", **KEY, **variables}
    program = OPEN[library].format(bucket=bucket)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    return done.stderr


@pytest.mark.parametrize("library", OPEN)
@pytest.mark.parametrize("others", [{}, {"AWS_ENDPOINT_URL": NOTHING}, {"AWS_ENDPOINT": NOTHING}])
def test_the_variable_for_s3_alone_names_the_server_of_every_library(
    hosts: tuple[str, set[tuple[str, str]]], library: str, others: Mapping[str, str]
) -> None:
    """Else data files were at one server, and the commits that name them at another one."""
    endpoint, seen = hosts
    open_by(library, "bucket", {"AWS_ENDPOINT_URL_S3": endpoint, **others})
    assert seen == {(endpoint.partition("://")[2], "bucket")}
    variables = {"AWS_ENDPOINT_URL_S3": endpoint, **others}
    assert hadoop_options_with(variables)["fs.s3a.endpoint"] == endpoint


@pytest.mark.parametrize("library", OPEN)
def test_every_library_puts_the_bucket_into_the_hosts_name(
    hosts: tuple[str, set[tuple[str, str]]], library: str
) -> None:
    """The bucket 127 of the host 0.0.1 is at 127.0.0.1, a name that each machine knows."""
    endpoint, seen = hosts
    of_host = {"AWS_ENDPOINT_URL": endpoint.replace("127.", "", 1), "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}
    open_by(library, "127", of_host)
    assert seen <= {(endpoint.partition("://")[2], name) for name in ("table", "")}  # "": deltalake lists the bucket
    assert (endpoint.partition("://")[2], "table") in seen


@pytest.mark.parametrize("library", OPEN)
def test_a_variable_that_only_some_libraries_read_is_refused(
    hosts: tuple[str, set[tuple[str, str]]], library: str
) -> None:
    endpoint, seen = hosts
    said = open_by(library, "bucket", {"AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true"})
    assert "not all libraries read the variable AWS_ENDPOINT; set AWS_ENDPOINT_URL in its place" in said
    assert seen == set()


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("AWS_ENDPOINT_URL", "minio:9000", 'the address of a server, as "http://minio:9000"'),
        ("AWS_ENDPOINT_URL_S3", "http://", 'the address of a server, as "http://minio:9000"'),
        ("AWS_REGION", " ", 'a region, as "eu-west-3"'),
        ("AWS_ACCESS_KEY_ID", "key\n", "a key: it has a blank, a line end or another character that no key has"),
        ("AWS_SECRET_ACCESS_KEY", "secret ", "a key: it has a blank, a line end or another character that no key has"),
    ],
)
@pytest.mark.parametrize("command", [("describe", "--all-groups"), ("create",), ("dump",)], ids=lambda words: words[0])
def test_a_variable_in_which_a_library_would_panic_is_one_line_without_a_secret(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: Sequence[str],
    name: str,
    value: str,
    what: str,
) -> None:
    for each, known in {**KEY, "AWS_ENDPOINT_URL": NOTHING, name: value}.items():
        monkeypatch.setenv(each, known)
    store = "s3://bucket/store"
    words = [command[0], store] if command == ("dump",) else [command[0], "--store", store, *command[1:]]
    assert main(words) == 1
    assert capfd.readouterr().err == f"offsets: error: wrong variable {name}: it is not {what}; set it anew\n"


def test_commits_are_conditional_whatever_a_variable_says(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    storage = storage_of(f"{s3}/conditional")
    assert [storage.create("file", contents, durable=True) for contents in (b"1", b"2")] == [True, False]
    assert storage.read("file") == b"1"


def hadoop_options_with(variables: Mapping[str, str]) -> dict[str, str]:
    with mock.patch.dict(os.environ, variables, clear=True):
        return hadoop_options()


@pytest.fixture
def connections() -> Iterator[tuple[str, set[tuple[str, int]]]]:
    """The URL of a server whose objects are empty and which keeps connections, and the clients' ends of these."""
    seen: set[tuple[str, int]] = set()

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802 - the name that the server calls
            seen.add(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 12:00:00 GMT")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that the server calls

    with served(Handler) as url:
        yield url, seen


def test_the_files_of_all_tables_of_a_bucket_share_connections(
    connections: tuple[str, set[tuple[str, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, seen = connections
    for name, value in {"AWS_ENDPOINT_URL": endpoint, **KEY}.items():
        monkeypatch.setenv(name, value)
    for number in range(20):
        system, path = open_path(f"s3://bucket/table{number}/file")
        with system.open_input_file(path) as file:
            assert file.size() == 0
    assert len(seen) == 1
    seen.clear()
    for number in range(20):
        assert storage_of(f"s3://bucket/table{number}").read("file") == b""
    assert len(seen) < 20  # one for each table before; obstore gives a connection back a moment after its answer


def test_a_machine_without_the_profile_signs_as_the_driver(
    requests: tuple[str, list[Signature]], profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_profiles(profiles)
    endpoint, seen = requests
    for name, value in {"AWS_ENDPOINT_URL": endpoint, "AWS_PROFILE": "dev"}.items():
        monkeypatch.setenv(name, value)
    of_tasks, of_jvm = task_environment(), hadoop_options() | hadoop_keys()
    for each in ("credentials", "config"):
        (profiles / each).unlink()
    environment = {"PYTHONPATH": ":".join(sys.path), **of_tasks}
    subprocess.run(
        [sys.executable, "-c", OPEN[ARROW].format(bucket="bucket")], env=environment, capture_output=True, check=False
    )
    assert set(seen) == {Signature("developer", "eu-west-3", "token")}
    names = ("access.key", "secret.key", "session.token", "endpoint.region")
    assert [of_jvm[f"fs.s3a.{name}"] for name in names] == ["developer", "secret", "token", "eu-west-3"]


def test_arrow_gets_the_region_else_it_asks_amazon_for_it(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regions = [open_path("s3://bucket/file")[0].region]
    use_profiles(profiles)
    monkeypatch.setenv("AWS_PROFILE", "dev")
    regions.append(open_path("s3://bucket/file")[0].region)
    assert regions == ["us-east-1", "eu-west-3"]


def test_a_profile_without_keys_is_one_line_that_says_how_to_get_some(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_profiles(profiles)
    monkeypatch.setenv("AWS_PROFILE", "role")
    with pytest.raises(
        ConfigError, match=r"^cannot use the profile role of AWS_PROFILE: .* --profile role --format env"
    ):
        object_store_options()
    hadoop_options()  # Spark starts for a store that is elsewhere
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    assert object_store_options() == {}


def test_broken_profiles_are_one_line_with_their_file(profiles: Path) -> None:
    (profiles / "credentials").write_text("no section", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=rf"^cannot read the profiles in {profiles}/credentials: [^\n]*; mend the file$"
    ):
        object_store_options()


SETTINGS = """
[s3]
endpoint_url = "http://minio:9000"
region = "eu-west-3"
virtual_hosted_style_request = true
profile = "dev"
role_arn = "arn:aws:iam::1:role/reader"
role_session_name = "offsets"
web_identity_token_file = "/run/secrets/token"
"""


@pytest.mark.parametrize(
    ("before", "differences"),
    [
        ({}, {}),
        (
            {"AWS_ENDPOINT_URL": "http://other:9000", "AWS_PROFILE": ""},
            {"AWS_ENDPOINT_URL": "http://other:9000"},
        ),
        ({"AWS_DEFAULT_REGION": "eu-north-1"}, {"AWS_DEFAULT_REGION": "eu-north-1", "AWS_REGION": None}),
    ],
    ids=["no variables", "a variable has precedence", "a variable of another name has precedence"],
)
def test_settings_of_the_file_are_variables(
    tmp_path: Path, before: Mapping[str, str], differences: Mapping[str, str | None]
) -> None:
    file = tmp_path / "offsets.toml"
    file.write_text(SETTINGS, encoding="utf-8")
    expected: dict[str, str | None] = {
        "AWS_ENDPOINT_URL": "http://minio:9000",
        "AWS_REGION": "eu-west-3",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_PROFILE": "dev",
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/reader",
        "AWS_ROLE_SESSION_NAME": "offsets",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/secrets/token",
        **differences,
    }
    with mock.patch.dict(os.environ, before, clear=True):
        use_settings(load_settings(file).s3)
        assert dict(os.environ) == {name: value for name, value in expected.items() if value is not None}


def test_a_role_without_a_web_identity_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "offsets.toml"
    file.write_text('[s3]\nrole_arn = "arn:aws:iam::1:role/reader"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\[s3\] role_arn and web_identity_token_file: give both or none; .*env"):
        load_settings(file)


def test_a_command_takes_endpoint_region_and_profile_from_the_settings_file(
    requests: tuple[str, list[Signature]], profiles: Path
) -> None:
    use_profiles(profiles)
    endpoint, seen = requests
    file = profiles / "offsets.toml"
    file.write_text(f'[s3]\nendpoint_url = "{endpoint}"\nregion = "eu-north-1"\nprofile = "dev"\n', encoding="utf-8")
    with mock.patch.dict(os.environ):
        os.environ.pop("AWS_ENDPOINT_URL", None)
        assert main(["describe", "--store", "s3a://bucket/store", "--all-groups", "--config", str(file)]) == 1
    assert Signature("developer", "eu-north-1", "token") in seen


def test_spark_reaches_a_store_of_your_own_by_path_and_amazons_by_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert not {"fs.s3a.endpoint", "fs.s3a.endpoint.region", "fs.s3a.path.style.access"} & hadoop_options().keys()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert hadoop_options()["fs.s3a.endpoint.region"] == "eu-west-3"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    options = hadoop_options()
    assert (options["fs.s3a.endpoint"], options["fs.s3a.path.style.access"]) == ("http://minio:9000", "true")
    assert options["fs.s3a.endpoint.region"] == "eu-west-3"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert hadoop_options().get("fs.s3a.endpoint.region") == "us-east-1"  # S3A would ask Amazon for the region
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    assert hadoop_options()["fs.s3a.path.style.access"] == "false"


@pytest.mark.parametrize(
    ("location", "expected"),
    [("s3://b/s", True), ("s3a://b/s", True), ("gs://b/s", False), ("/s3", False), ("schema:s3", False)],
)
def test_locations_on_s3(location: str, expected: bool) -> None:
    assert is_s3(location) is expected
