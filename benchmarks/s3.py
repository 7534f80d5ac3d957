"""S3 servers on loopback, for tests and benchmarks: variables of their clients, and a bucket."""

from __future__ import annotations


def client_variables(endpoint: str) -> dict[str, str]:
    """Return the environment in which clients reach a server, with a key that it accepts."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def create_bucket(name: str) -> str:
    """Create a bucket on the server of the environment; returns its URI."""
    from pyarrow import fs  # noqa: PLC0415 - it reads the environment

    fs.FileSystem.from_uri(f"s3://{name}?allow_bucket_creation=true")[0].create_dir(name)
    return f"s3://{name}"
