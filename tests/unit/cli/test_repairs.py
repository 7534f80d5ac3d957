"""How a repair of a cluster ends that could not commit everything."""

from __future__ import annotations

import pytest

from offsets_pipeline.cli.repair_commands import raise_errors
from offsets_pipeline.errors import NonEmptyGroup, NoSuchTopic, NotAuthorized, OffsetsError


def test_the_first_error_ends_a_repair_and_each_other_one_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    raise_errors({}, [], "reset")
    assert capsys.readouterr().err == ""
    refused: list[OffsetsError] = [NoSuchTopic("no topic t"), NotAuthorized("no access to u")]
    with pytest.raises(NoSuchTopic, match=r"^no topic t$"):
        raise_errors({"g": "Stable"}, [*refused, refused[0]], "reset")
    assert capsys.readouterr().err == (
        "offsets: warning: no access to u\n"
        "offsets: warning: cannot reset groups with members: 'g' is Stable; stop the members first\n"
    )
    with pytest.raises(NonEmptyGroup, match=r"^cannot restore groups with members: 'g' is Stable, 'h' is Assigning; "):
        raise_errors({"g": "Stable", "h": "Assigning"}, [], "restore")
