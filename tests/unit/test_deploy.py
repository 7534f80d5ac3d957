"""The files of deploy/: their formats, the files and names that they refer to, and their command lines."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from botocore.session import Session  # type: ignore[import-untyped]
from botocore.validate import validate_parameters  # type: ignore[import-untyped]
from click.testing import CliRunner

from offsets_pipeline import __version__
from offsets_pipeline.cli.program import offsets
from offsets_pipeline.common.config import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = "/opt/offsets-pipeline"
PROGRAM = f"{PROJECT}/.venv/bin/offsets"
IMAGE = f"offsets-pipeline:{__version__}"
COMMANDS = offsets.leaves()
#: Values of the variables in command lines.
VARIABLES = {
    "STORE": "s3://bucket/store",
    "BOOTSTRAP_SERVER": "broker-1:9093",
    "OPTIONS": "--metrics-port 127.0.0.1:9404",
    "AS_OF": "2026-03-01T00:00:00+00:00",
}
SECRET = re.compile("PASSWORD|SECRET|KEY|TOKEN|JAAS")

Yaml = dict[str, Any]


def kubernetes() -> list[Yaml]:
    return [each for path in (DEPLOY / "kubernetes").glob("*.yaml") for each in yaml.safe_load_all(path.read_text())]


def databricks() -> Yaml:
    bundle: Yaml = yaml.safe_load((DEPLOY / "databricks" / "databricks.yml").read_text())
    return bundle


def emr() -> Yaml:
    cluster: Yaml = json.loads((DEPLOY / "emr" / "cluster.json").read_text())
    return cluster


def unit(path: Path) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


def pod_of(kind: Yaml) -> Yaml:
    """The pod's specification in a Deployment or a CronJob."""
    spec = kind["spec"]
    pod: Yaml = (spec["jobTemplate"]["spec"] if kind["kind"] == "CronJob" else spec)["template"]["spec"]
    return pod


def pods() -> list[tuple[Yaml, Yaml]]:
    """Each pod with its container."""
    found = []
    for each in kubernetes():
        if each["kind"] in {"Deployment", "CronJob"}:
            pod = pod_of(each)
            (container,) = pod["containers"]
            found.append((pod, container))
    return found


def command_of_job(job: str) -> str:
    """The command of `offsets` that a script of jobs/ runs."""
    (command,) = re.findall(r'main\(\["([a-z-]+)", ', (ROOT / "jobs" / Path(job).name).read_text())
    return str(command)


def of_words(words: list[str]) -> list[str] | None:
    """The words after `offsets` in a command line, also in a container or as a job; None for another program."""
    if words[:2] == ["docker", "run"]:
        return words[words.index(IMAGE) + 1 :]
    for at, word in enumerate(words):
        if word in {"offsets", PROGRAM} and words[at - 1 : at] in ([], ["--"]):
            return words[at + 1 :]
        if re.fullmatch(rf"({PROJECT}/)?jobs/\w+\.py", word):
            return [command_of_job(word), *words[at + 1 :]]
    return None


def of_shell(text: str) -> list[list[str]]:
    """The command lines of the program in a shell script, without redirections."""
    lines = text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line.partition(" > ")[0], comments=True) for line in lines if line.strip()]
    return [found for each in words if (found := of_words(each)) is not None]


def command_lines() -> list[tuple[str, list[str]]]:
    """Each command line of the program in deploy/ and docs/deploy.md, with its file."""
    found = [("kubernetes", container["args"]) for _, container in pods()]
    for path in (DEPLOY / "systemd").glob("*.service"):
        program, *words = unit(path)["Service"]["ExecStart"].split()
        assert program == PROGRAM
        found.append((path.name, words))
    found += [("emr", of_words(step["HadoopJarStep"]["Args"]) or []) for step in emr()["Steps"]]
    for job in databricks()["resources"]["jobs"].values():
        for task in job["tasks"]:
            python = task["spark_python_task"]
            found.append(("databricks", [command_of_job(python["python_file"]), *python["parameters"]]))
    dag = ast.parse((DEPLOY / "airflow" / "offsets_upkeep.py").read_text())
    for keyword in ast.walk(dag):
        if isinstance(keyword, ast.keyword) and keyword.arg == "bash_command":
            found += [("airflow", words) for words in of_shell(ast.literal_eval(keyword.value))]
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE | re.DOTALL)
    return found + [("deploy.md", words) for block in blocks for words in of_shell(block)]


def with_values(words: list[str]) -> list[str]:
    """The words with values of variables; a whole word `$X` is split, as systemd does."""
    found: list[str] = []
    for word in words:
        if word == "$OPTIONS":
            found += VARIABLES["OPTIONS"].split()
        else:
            found.append(re.sub(r"\$[({]?(?:var\.)?(\w+)[)}]?", lambda name: VARIABLES[name[1].upper()], word))
    return found


LINES = command_lines()


def test_each_way_to_deploy_has_command_lines() -> None:
    assert {file for file, _ in LINES} == {
        *("kubernetes", "offsets-follow.service", "offsets-maintain.service", "emr", "databricks", "airflow"),
        "deploy.md",
    }


@pytest.mark.parametrize(("file", "words"), LINES, ids=[" ".join((file, *words[:1])) for file, words in LINES])
def test_a_command_line_is_one_of_the_program(file: str, words: list[str]) -> None:
    command, *arguments = with_values(words)
    COMMANDS[command].make_context(command, arguments)  # raises for a wrong one


def test_the_image_is_made_of_files_of_the_project_and_runs_as_a_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    steps = [(words[0], words[1:]) for line in lines if (words := line.split())]
    stages = [words for name, words in steps if name == "FROM"]
    assert [words for words in stages if len(words) > 1] == [
        ["debian:bookworm-slim", "AS", "base"],
        ["base", "AS", "build"],
    ]
    assert stages[-1] == ["base"]
    copied = [words[:-1] for name, words in steps if name == "COPY"]
    assert [source for sources in copied[:-1] for source in sources if not (ROOT / source).exists()] == []
    assert copied[-1] == ["--from=build", PROJECT]
    last = [name for name, _ in steps[len(steps) - 1 - [name for name, _ in steps][::-1].index("FROM") :]]
    assert last == ["FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT", "CMD"]
    (user,) = [words for name, words in steps if name == "USER"]
    assert f"--uid {user[0]} " in text
    assert {pod["securityContext"]["runAsUser"] for pod, _ in pods()} == {int(user[0])}
    entry = [" ".join(words) for name, words in steps if name in {"ENTRYPOINT", "CMD"}]
    assert json.loads(entry[0])[-1] == "offsets"
    assert CliRunner().invoke(offsets, json.loads(entry[1])).exit_code == 0


def test_objects_of_kubernetes_refer_to_each_other() -> None:
    objects = kubernetes()
    assert [each["kind"] for each in objects if not each["apiVersion"] or not each["metadata"]["name"]] == []
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    assert not any(SECRET.search(name) for name in maps["offsets"])
    for pod, container in pods():
        (environment, secret) = container["envFrom"]
        assert environment["configMapRef"]["name"] in maps
        assert secret == {"secretRef": {"name": "offsets"}}
        assert {name for word in container["args"] for name in re.findall(r"\$\((\w+)\)", word)} <= set(maps["offsets"])
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        (settings,) = [mount for mount in container["volumeMounts"] if mount["name"] == "settings"]
        (file,) = maps[volumes["settings"]["configMap"]["name"]]
        assert maps["offsets"]["OFFSETS_CONF"] == f"{settings['mountPath']}/{file}"
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["limits"]["memory"]
        assert container["image"] == IMAGE


def test_the_deployment_is_one_process_whose_probes_ask_for_its_metrics() -> None:
    (deployment,) = [each for each in kubernetes() if each["kind"] == "Deployment"]
    spec, (container,) = deployment["spec"], pod_of(deployment)["containers"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    (port,) = container["ports"]
    assert f"--metrics-port=0.0.0.0:{port['containerPort']}" in container["args"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": port["name"]}


def test_settings_of_kubernetes_are_settings_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data,) = [each["data"] for each in kubernetes() if each["metadata"]["name"] == "offsets-settings"]
    (tmp_path / "offsets.toml").write_text(data["offsets.toml"])
    monkeypatch.setenv("OFFSETS_CONF", str(tmp_path / "offsets.toml"))
    assert load_settings().kafka.options["sasl.jaas.config"] == "env:KAFKA_JAAS"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    units = []
    for path in (DEPLOY / "systemd").iterdir():
        units.append(tmp_path / path.name)
        units[-1].write_text(path.read_text().replace(PROGRAM, sys.executable))
    done = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "offsets-" in line]
    assert (done.returncode, said) == (0, [])


def test_units_start_the_program_as_the_same_user_with_the_same_environment() -> None:
    units = DEPLOY / "systemd"
    follow, maintain = (unit(units / f"offsets-{name}.service")["Service"] for name in ("follow", "maintain"))
    for name in ("User", "StateDirectory", "WorkingDirectory", "EnvironmentFile"):
        assert follow[name] == maintain[name]
    assert "Timer" in unit(units / "offsets-maintain.timer")


def test_the_cluster_is_a_request_of_emr() -> None:
    """Its fields have the names and types of Amazon's own description of the API."""
    model = Session().get_service_model("emr").operation_model("RunJobFlow").input_shape
    validate_parameters(emr(), model)
    (bootstrap,) = [each["ScriptBootstrapAction"] for each in emr()["BootstrapActions"]]
    assert (DEPLOY / "emr" / Path(bootstrap["Path"]).name).exists()
    for step in emr()["Steps"]:
        files = [word for word in step["HadoopJarStep"]["Args"] if word.startswith(PROJECT) and ".venv" not in word]
        assert [file for file in files if not (ROOT / Path(file).relative_to(PROJECT)).exists()] == []


def test_the_bundle_names_files_of_the_project_and_takes_secrets_from_a_scope() -> None:
    bundle = databricks()
    cluster = bundle["variables"]["cluster"]["default"]
    for name, value in cluster["spark_env_vars"].items():
        assert bool(SECRET.search(name)) == value.startswith("{{secrets/offsets/"), name
    (script,) = [each["workspace"]["destination"] for each in cluster["init_scripts"]]
    assert (ROOT / script.removeprefix("${workspace.file_path}/")).exists()
    for job in bundle["resources"]["jobs"].values():
        keys = {each["job_cluster_key"] for each in job["job_clusters"]}
        for task in job["tasks"]:
            assert task["job_cluster_key"] in keys
            assert (DEPLOY / "databricks" / task["spark_python_task"]["python_file"]).resolve().exists()


def test_properties_of_yarn_are_options_of_spark() -> None:
    lines = (DEPLOY / "yarn" / "spark.properties").read_text().splitlines()
    found = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    assert found["spark.master"] == "yarn"
    assert found["spark.pyspark.python"] == f"{PROJECT}/.venv/bin/python"
    assert [name for name in found if not name.startswith("spark.")] == []


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda script: script.name)
def test_scripts_are_bash(script: Path) -> None:
    bash = shutil.which("bash")
    assert bash
    assert subprocess.run([bash, "-n", script], check=False).returncode == 0


def test_each_file_is_in_the_table_of_what_was_tried() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    rows = re.findall(r"^\| \[[\w./-]+\]\(\.\./deploy/([\w./-]+)\) \|", text, re.MULTILINE)
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sorted(rows) == sorted(str(path.relative_to(DEPLOY)) for path in files)
