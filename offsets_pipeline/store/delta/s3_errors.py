"""Errors of a storage as errors of this package; of S3 with causes in the words of the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from offsets_pipeline.common.foreign_errors import first_line, with_causes
from offsets_pipeline.errors import StorageFailed, StorageRefused
from offsets_pipeline.store.delta.s3_access import DEFAULT_REGION, NO_CREDENTIALS, chosen_region, endpoint_url, is_s3

#: How obstore, `deltalake` and Arrow say a cause, the cause, and what to do. The first that fits counts. Causes that
#: stay until a person does that.
_LASTING = (
    (
        "<Code>NoSuchBucket<|AWS Error NO_SUCH_BUCKET",
        "the bucket {bucket} does not exist at {endpoint}",
        "check its name, or create the bucket",
    ),
    (
        # the address of an instance's credentials, which is asked last
        "/latest/(api/token|meta-data/iam)",
        *NO_CREDENTIALS.split("; "),
    ),
    (
        "<Code>InvalidAccessKeyId<|AWS Error INVALID_ACCESS_KEY_ID",
        "{endpoint} does not know the access key",
        "check AWS_ACCESS_KEY_ID or the profile",
    ),
    (
        "<Code>SignatureDoesNotMatch<|AWS Error SIGNATURE_DOES_NOT_MATCH",
        "the secret of the access key is wrong",
        "check AWS_SECRET_ACCESS_KEY or the profile",
    ),
    (
        "<Code>(ExpiredToken|InvalidToken)<|ExceptionName: (ExpiredToken|InvalidToken) ",
        "the session token is wrong or has expired",
        "get new credentials, and set AWS_SESSION_TOKEN with them",
    ),
    (
        "<Code>RequestTimeTooSkewed<|AWS Error REQUEST_TIME_TOO_SKEWED",
        "the clock of this machine differs too much from that of {endpoint}",
        "set the clock",
    ),
    (
        "403 Forbidden|AWS Error ACCESS_DENIED",
        "{endpoint} refused access to the bucket {bucket}",
        "check the credentials and their permissions",
    ),
    (
        "redirect without LOCATION|HTTP status 301|AuthorizationHeaderMalformed|bucket is located in",
        "the bucket {bucket} is not in the region {region}{located}",
        "set AWS_REGION to the region of the bucket",
    ),
    (
        r"status code: 501\b|HTTP status 501\b",
        "{endpoint} does not know a kind of request, such as a conditional put (If-None-Match)",
        "use a store that honours them (docs/storage.md)",
    ),
)
#: Causes that may pass.
_PASSING = (
    (
        r"<Code>SlowDown<|AWS Error (SLOW_DOWN|SERVICE_UNAVAILABLE)|(status code:|HTTP status) (429|503)\b",
        "{endpoint} gets too many requests, or is not available now",
        "try again later, or with fewer processes",
    ),
    (
        r"AWS Error INTERNAL_FAILURE|(status code:|HTTP status) 5\d\d\b",
        "{endpoint} has an error of its own",
        "try again later",
    ),
    (
        "request or response body error|curlCode: 18",
        "{endpoint} broke off an answer",
        "check the network, then try again",
    ),
    (
        r"error sending request|connection closed|AWS Error NETWORK_CONNECTION|curlCode: \d",
        "{endpoint} does not answer",
        "check AWS_ENDPOINT_URL and the network",
    ),
)
_LOCATED = re.compile(r"<Region>([\w-]+)<|located in '([\w-]+)'|expecting '([\w-]+)'")


def known_cause(location: str, error: BaseException) -> str | None:
    """Return the cause of an error of S3, and what to do; None for another storage or an unknown cause."""
    if not is_s3(location):
        return None
    said = _whole_text(error)
    for pattern, cause, remedy in _LASTING + _PASSING:
        if re.search(pattern, said):
            located = _LOCATED.search(said)
            region = chosen_region()
            facts = {
                "bucket": location.partition("://")[2].partition("/")[0],
                "endpoint": endpoint_url(os.environ) or f"Amazon S3 in {region or DEFAULT_REGION}",
                "region": region or f"{DEFAULT_REGION}, the default",
                "located": f" but in {next(filter(None, located.groups()))}" if located else "",
            }
            return f"{cause.format(**facts)}; {remedy}"
    return None


def cause(location: str, error: Exception, remedy: str) -> str:
    """Return the cause of an error of any storage, and what to do: ``remedy`` if the cause is unknown."""
    return known_cause(location, error) or f"{first_line(error)}; {remedy}"


def storage_failed(what: str, location: str, error: Exception, remedy: str) -> StorageFailed:
    """Return the error of a storage: ``what`` failed, and its `cause`. StorageRefused if a retry would fail, too."""
    said = _whole_text(error)
    is_lasting = is_s3(location) and any(re.search(pattern, said) for pattern, *_ in _LASTING)
    kind = StorageRefused if is_lasting or isinstance(error, PermissionError) else StorageFailed
    return kind(f"{what}: {cause(location, error, remedy)}")


def not_written(folder: str, error: OSError) -> StorageFailed:
    """Return the error of a write to a table's folder before its commit."""
    remedy = "nothing was committed; check its free space and your permissions, then try again"
    return storage_failed(f"cannot write to {folder}", folder, error, remedy)


@contextmanager
def writing(folder: str) -> Iterator[None]:
    """Context manager: raise StorageFailed, as `not_written`, for an OSError."""
    try:
        yield
    except OSError as error:
        raise not_written(folder, error) from error


def _whole_text(error: BaseException | None) -> str:
    """The texts of an error and of its causes: a storage's answer is in the second line of one of them."""
    texts = []
    while error is not None:
        texts.append(with_causes(error))
        error = error.__cause__
    return "\n".join(texts)
