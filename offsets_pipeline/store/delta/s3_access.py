"""Access to S3: the one place that passes the variables `AWS_*` to Spark, `deltalake`, `obstore` and Arrow.

Arrow reads the keys and the profile itself.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsets_pipeline.common.foreign_errors import first_line
from offsets_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from offsets_pipeline.common.config.sections import S3Settings

    Pairs = tuple[tuple[str, str], ...]

#: Variables with the address of a server that is not Amazon's, the first that is set counts: as in Amazon's programs.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
#: URI schemes of S3: Amazon's, and those of Hadoop's clients.
S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})

#: Region of a bucket if neither a variable nor the profile names one.
DEFAULT_REGION = "us-east-1"

NO_CREDENTIALS = (
    "there are no credentials for S3; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile or a role "
    "(docs/storage.md)"
)

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
#: Variables of credentials that the libraries fetch themselves: of a role, or of a container.
_FETCHED = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
#: Options of connections with their defaults: with AWS_ before the name they are variables.
_CONNECTION = {
    "allow_http": "",
    "allow_invalid_certificates": "",
    "connect_timeout": "5s",
    "proxy_url": "",
    "timeout": "30s",
}
_RETRY_TIME = timedelta(seconds=15)
#: How often Arrow sends a request again. It knows no limit of the whole time, as the other libraries do.
ARROW_RETRIES = 6
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_HADOOP_KEYS = dict(zip(_KEYS, ("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token"), strict=True))
_KEY = re.compile(r"[!-~]+"), "a key: it has a blank, a line end or another character that no key has"
_URL = re.compile(r"https?://[^\s/@]+(/[!-~]*)?"), 'the address of a server, as "http://minio:9000"'
_REGION = re.compile(r"[\w-]+"), 'a region, as "eu-west-3"'
_DURATION = re.compile(r"\s*[1-9]\d*\s*(ms|s|m|h)\s*"), 'a duration, as "10s" or "500ms"'
#: Variables, the values that libraries take, and what these are.
_ALLOWED = {
    **{name.upper(): _KEY for name in _KEYS},
    **dict.fromkeys(_ENDPOINTS, _URL),
    **dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), _REGION),
    **dict.fromkeys(("AWS_TIMEOUT", "AWS_CONNECT_TIMEOUT"), _DURATION),
}
_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",  # keys with a session token
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",  # keys
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",  # a role, a container, an instance
)


def chosen_region() -> str | None:
    """Return the region that the variables or the profile name. Raises ConfigError: the profile cannot be read."""
    return _region(os.environ) or _profile_of_config().get("region")


def access_variables() -> Pairs:
    """Return the variables `AWS_*` of this process: a client that was made with others is not used any more."""
    return tuple(sorted(each for each in os.environ.items() if each[0].startswith("AWS_")))


def is_s3(location: str) -> bool:
    """Return whether a path or URI is on S3."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in S3_SCHEMES


def use_settings(settings: S3Settings) -> None:
    """Set the variables of the settings for this process and its children; a variable that is set has precedence."""
    variables = settings.variables()
    if _region(os.environ):
        variables.pop("AWS_REGION", None)
    for name, value in variables.items():
        if not os.environ.get(name):
            os.environ[name] = value


def task_environment() -> dict[str, str]:
    """Return the variables that Python tasks of Spark need to open files on S3, on machines without the user's profile.

    A profile without keys adds nothing: the store may be elsewhere.
    """
    of_profile = {}
    with suppress(ConfigError):
        of_profile = {name.upper(): value for name, value in object_store_options().items()}
    return dict(access_variables()) | of_profile


def connection_options() -> dict[str, str]:
    """Return the options of connections for `deltalake` and `obstore`; `obstore` reads no other variables.

    Both refuse an endpoint without TLS unless an option allows it.
    """
    options = {name: value for name in _CONNECTION if (value := _connection(name))}
    if endpoint_url(os.environ).startswith("http://"):
        options["allow_http"] = "true"
    return options


def longest_wait() -> timedelta:
    """Return how long a library tries a request again: longer than a timeout, so a lost one is sent again."""
    return _duration("timeout") + _RETRY_TIME


def arrow_options(region: str) -> dict[str, Any]:
    """Return the options of Arrow's client. Raises as `refuse_unusable_variables`."""
    refuse_unusable_variables()
    options: dict[str, Any] = {
        "region": region,
        # a time without a byte: an answer of many bytes may take longer. The least that curl counts is a second.
        "request_timeout": max(1.0, longest_wait().total_seconds() / (ARROW_RETRIES + 1)),
        "connect_timeout": _duration("connect_timeout").total_seconds(),
        "force_virtual_addressing": is_virtual_hosted(os.environ),
    }
    if endpoint := endpoint_url(os.environ):
        options["scheme"], _, options["endpoint_override"] = endpoint.partition("://")
    return options


def endpoint_url(variables: Mapping[str, str]) -> str:
    """Return the address of a server that is not Amazon's; empty for Amazon's."""
    return next((found for name in _ENDPOINTS if (found := variables.get(name))), "").rstrip("/")


def endpoint_options(location: str) -> dict[str, str]:
    """Return the option of `deltalake` and `obstore` for the address of a bucket's server; without it, Amazon's.

    Of several variables for it these libraries and Arrow would choose different ones. They take a host's name as it is:
    it has to have the bucket's, if that is not to be in the path.

    Raises as `refuse_unusable_variables`.
    """
    refuse_unusable_variables()
    endpoint = endpoint_url(os.environ)
    if not endpoint:
        return {}
    if is_virtual_hosted(os.environ):
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{location.partition('://')[2].partition('/')[0]}.{host}"
    return {"aws_endpoint_url": endpoint}


def refuse_unusable_variables() -> None:
    """Raise ConfigError for a variable that some libraries ignore, or in which a library ends with a panic."""
    if not endpoint_url(os.environ) and os.environ.get("AWS_ENDPOINT"):
        raise ConfigError("not all libraries read the variable AWS_ENDPOINT; set AWS_ENDPOINT_URL in its place")
    for name, (allowed, what) in _ALLOWED.items():
        value = os.environ.get(name)
        if value and not allowed.fullmatch(value):
            raise ConfigError(f"wrong variable {name}: it is not {what}; set it anew")


def is_virtual_hosted(variables: Mapping[str, str]) -> bool:
    """Return whether the bucket is in the host's name of a server that is not Amazon's, not in the path."""
    return variables.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"


def object_store_options() -> dict[str, str]:
    """Return the options of access for `deltalake` and `obstore`; these find other variables themselves.

    Neither reads profiles.

    Raises ConfigError: the user's profiles cannot be read, the one that AWS_PROFILE names has no keys, or there are no
    credentials.
    """
    options = {}
    if not _region(os.environ) and (region := _profile_of_config().get("region")):
        options["aws_region"] = region
    if any(os.environ.get(name) for name in (_KEYS[0].upper(), *_FETCHED)):
        return options
    profile = _profile("AWS_SHARED_CREDENTIALS_FILE", "credentials", "{}") or _profile_of_config()
    if _KEYS[0] not in profile and (name := os.environ.get("AWS_PROFILE")):
        raise ConfigError(
            f"cannot use the profile {name} of AWS_PROFILE: it has no aws_access_key_id; set the variables that "
            f"`aws configure export-credentials --profile {name} --format env` prints"
        )
    if _KEYS[0] not in profile and os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise ConfigError(NO_CREDENTIALS)  # these libraries would ask the instance all the same, for a minute
    return options | {name: profile[name] for name in _KEYS if name in profile}


def hadoop_options() -> dict[str, str]:
    """Return the options for Hadoop's client S3A, which opens `s3://` and `s3a://` in the JVM of any machine.

    They have no secrets: the command line of a JVM shows them.
    """
    variables = task_environment()
    options = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "fs.s3a.aws.credentials.provider": ",".join(_PROVIDERS),
    }
    region = _region(variables)
    if endpoint := endpoint_url(variables):
        in_path = not is_virtual_hosted(variables)
        options |= {"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": str(in_path).lower()}
        region = region or DEFAULT_REGION  # as the other libraries
    return options | ({"fs.s3a.endpoint.region": region} if region else {})


def hadoop_keys() -> dict[str, str]:
    """Return the key for S3A, once the JVM runs: other machines have neither the variables nor the user's profile."""
    variables = task_environment()
    return {key: variables[name.upper()] for name, key in _HADOOP_KEYS.items() if variables.get(name.upper())}


def _connection(name: str) -> str:
    return os.environ.get(f"AWS_{name.upper()}") or _CONNECTION[name]


def _duration(name: str) -> timedelta:
    number, unit = re.findall(r"\d+|[a-z]+", _connection(name))
    return timedelta(milliseconds=int(number) * _UNITS_MS[unit])


def _region(variables: Mapping[str, str]) -> str | None:
    return variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")


def _profile_of_config() -> dict[str, str]:
    return _profile("AWS_CONFIG_FILE", "config", "profile {}")


def _profile(variable: str, name: str, section: str) -> dict[str, str]:
    """Return the user's profile in one of Amazon's two files; nothing if there is none. Raises ConfigError."""
    profile = os.environ.get("AWS_PROFILE") or "default"
    path = Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser()
    file = configparser.RawConfigParser()
    try:
        file.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ConfigError(f"cannot read the profiles in {path}: {first_line(error)}; mend the file") from error
    sections = (section.format(profile), profile)
    return next((dict(file[each]) for each in sections if file.has_section(each)), {})
