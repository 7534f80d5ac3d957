"""A store on S3, from its creation to its upkeep, through the commands."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from offsets_pipeline.coordinator.owned_store import OwnedStore
from tests.compare import compare
from tests.logs import CAPTURES, oracle
from tests.programs import in_process, offsets
from tests.s3mock import EACH_MAKE

if TYPE_CHECKING:
    from pathlib import Path


SECRET = "not-to-be-seen-5eCr3t"
#: A `java` that notes its command line.
NOTING_JAVA = """#!/bin/sh
printf '%s\\n' "$*" >> "{notes}"
exec "{java}" "$@"
"""
CAPTURE = "4.2.0-kip848"
RECORDS = 350  # of its segments, as Kafka's dump tool counts them


@EACH_MAKE
@pytest.mark.usefixtures("spark")
def test_a_store_on_s3_is_ingested_folded_reloaded_described_verified_and_maintained(s3: str, tmp_path: Path) -> None:
    store = f"{s3}/a store"
    fs.copy_files(str(CAPTURES / CAPTURE / "segments"), f"{s3}/segments")

    def said(command: str, *arguments: str, scheme: str = "s3") -> str:
        done = in_process(tmp_path, command, "--store", store.replace("s3", scheme, 1), *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def differences(scheme: str = "s3") -> list[str]:
        answer = said("describe", "--all-groups", "--format", "json", scheme=scheme)
        return compare(json.loads(answer), oracle(CAPTURE))

    assert said("ingest-segments", f"{s3}/segments").startswith(f"{RECORDS} records added to {store} from 5 segment")
    assert differences() == []
    assert said("fold", "--available-now") == f"{RECORDS} records folded in {store}\n"
    assert differences() == []
    assert said("fold", "--available-now", scheme="s3a").startswith("0 records folded in")
    assert differences("s3a") == []
    assert said("reload") == f"{RECORDS} records replayed in {store}\n"
    assert said("verify").startswith("equal: ")
    before, _, after, *_ = next(map(int, line.split()[1:]) for line in said("maintain").splitlines() if "log " in line)
    assert (before, after) == (5, 1)
    assert differences() == []
    broker = [name for name, group in oracle(CAPTURE)["groups"].items() if group.get("list_state") == "Stable"]
    listed = said(
        "sql", "--spark", "--format", "json", "SELECT group_id FROM consumer_groups WHERE state = 'Stable' ORDER BY 1"
    )
    assert [json.loads(each)["group_id"] for each in listed.splitlines()] == sorted(broker)


@pytest.mark.process  # a process has to end by itself: Arrow's library waited for ever for the end of its own threads
def test_a_command_ends_where_there_is_a_web_identity(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("of a web identity")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/offsets")
    store = f"{s3}/web-identity"

    def said(command: str, *arguments: str) -> str:
        done = offsets(tmp_path, command, "--store", store, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    said("create")
    said("commit", "--group", "g", "t:0=5")
    assert said("describe", "--group", "g").split()[-4:] == ["g", "t", "0", "5"]


@pytest.mark.slow  # two processes with Spark
@pytest.mark.process
def test_a_secret_of_variables_or_of_a_profile_is_shown_nowhere(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"{s3}/secret"
    fs.copy_files(str(CAPTURES / CAPTURE / "segments"), f"{s3}/segments")
    java = shutil.which("java")
    notes, noting = tmp_path / "notes", tmp_path / "java" / "bin" / "java"
    noting.parent.mkdir(parents=True)
    noting.write_text(NOTING_JAVA.format(notes=notes, java=java))
    noting.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    done = offsets(tmp_path, "ingest-segments", "--store", store, f"{s3}/segments")
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout

    profiles, config = tmp_path / "profiles", tmp_path / "offsets.toml"
    profiles.write_text(f"[dev]\naws_access_key_id = test\naws_secret_access_key = {SECRET}\n")
    config.write_text(
        f'[s3]\nendpoint_url = "{os.environ["AWS_ENDPOINT_URL"]}"\nregion = "us-east-1"\nprofile = "dev"\n'
    )
    for name in ("ENDPOINT_URL", "REGION", "ALLOW_HTTP", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}")
    with monkeypatch.context() as with_profile:
        with_profile.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
        done = offsets(tmp_path, "fold", "--store", store, "--available-now", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    printed += done.stdout
    assert f"{RECORDS} records added" in printed
    assert f"{RECORDS} records folded" in printed

    assert notes.read_text().count("org.apache.spark.deploy.SparkSubmit") >= 2
    files = fs.S3FileSystem(access_key="test", secret_key="test", endpoint_override=config.read_text().split('"')[1])
    bucket = store.removeprefix("s3://")
    found = [each for each in files.get_file_info(fs.FileSelector(bucket, recursive=True)) if each.is_file]
    assert len(found) > 20
    contents = [files.open_input_file(each.path).read() for each in found]
    local = [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file() and each != profiles]
    assert not any(SECRET.encode() in text for text in [printed.encode(), *contents, *local])


@EACH_MAKE
@pytest.mark.usefixtures("spark")
def test_an_owned_store_on_s3_takes_commits_before_and_after_a_fold(s3: str, tmp_path: Path) -> None:
    store = f"{s3}/owned"
    OwnedStore.create(store, 3)

    def committed() -> dict[str, int]:
        done = in_process(tmp_path, "describe", "--store", store, "--group", "g", "--format", "json")
        rows = json.loads(done.stdout)["groups"]["g"]["offsets"]
        return {f"{each['topic']}:{each['partition']}": each["offset"] for each in rows}

    for command in (
        ["commit", "--group", "g", "t:0=5", "t:1=6"],
        ["fold", "--available-now"],
        ["commit", "--group", "g", "t:1=7"],
    ):
        done = in_process(tmp_path, command[0], "--store", store, *command[1:])
        assert (done.returncode, done.stderr) == (0, "")
    assert committed() == {"t:0": 5, "t:1": 7}
