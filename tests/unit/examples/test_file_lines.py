"""Lines and positions of a file, compared with the algorithm of Connect's FileStreamSourceTask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples import file_lines
from examples.file_lines import Mark, SourceFileTruncated, after_lines, chunks, lines, mark_of
from offsets_pipeline.errors import StorageFailed

if TYPE_CHECKING:
    import random
    from pathlib import Path

PIECES = ["\n", "\r", "\r\n", "a", "bc", "é", "漢", "😀", "x" * 20]


def as_connect_reads(text: str) -> list[tuple[str, int]]:
    """Lines with `streamOffset` after each, as FileStreamSourceTask.extractLine finds them among Java's characters."""
    units = text.encode("utf-16-le", "surrogatepass")
    buffer = [units[at : at + 2] for at in range(0, len(units), 2)]
    found: list[tuple[str, int]] = []
    stream_offset = 0
    newline, carriage_return = ("\n".encode("utf-16-le"), "\r".encode("utf-16-le"))
    while True:
        until = new_start = -1
        for at, unit in enumerate(buffer):
            if unit == newline:
                until, new_start = at, at + 1
                break
            if unit == carriage_return:
                if at + 1 >= len(buffer):
                    return found
                until, new_start = at, at + 2 if buffer[at + 1] == newline else at + 1
                break
        if until == -1:
            return found
        stream_offset += new_start
        found.append((b"".join(buffer[:until]).decode("utf-16-le", "surrogatepass"), stream_offset))
        buffer = buffer[new_start:]


def read(file: Path, start: Mark = Mark()) -> list[tuple[str, int]]:  # noqa: B008 - a tuple
    return [tuple(line) for chunk in chunks(str(file), start) for line in lines(chunk)]  # type: ignore[misc]


@pytest.mark.parametrize("chunk_bytes", [1, 3, 4_000])
def test_lines_and_positions_are_those_of_file_stream_source(
    tmp_path: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(file_lines, "_CHUNK_BYTES", chunk_bytes)
    file = tmp_path / "a.txt"
    for _ in range(200):
        text = "".join(chance.choices(PIECES, k=chance.randint(0, 30)))
        file.write_bytes(text.encode())
        expected = as_connect_reads(text)
        assert read(file) == expected
        assert sum(chunk.line_count() for chunk in chunks(str(file))) == len(expected)
        for number, (_, position) in enumerate(expected):  # from each position on, and up to it
            mark = mark_of(str(file), position)
            assert mark is not None
            assert read(file, mark) == expected[number + 1 :]
            before = [line for chunk in chunks(str(file), end_byte=mark.byte) for line in lines(chunk)]
            assert before == expected[: number + 1]


def test_a_number_of_lines_of_a_chunk_ends_where_they_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("é\r\nb\rc\n".encode())
    (chunk,) = chunks(str(tmp_path / "a"))
    assert [after_lines(chunk, count, 99) for count in range(5)] == [
        (Mark(0, 0), 0),
        (Mark(3, 4), 1),
        (Mark(5, 6), 2),
        (Mark(7, 8), 3),
        (Mark(7, 8), 3),
    ]
    assert after_lines(chunk, 9, 7) == (Mark(5, 6), 2)


def test_a_position_within_a_line_begins_there_as_after_an_alteration(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("éa\nxyz".encode())
    file = str(tmp_path / "a")
    assert read(tmp_path / "a", mark_of(file, 1) or Mark()) == [("a", 3)]
    assert mark_of(file, 5) == Mark(5, 6)  # in the incomplete line
    assert mark_of(file, 0) == Mark()


def test_malformed_bytes_are_replaced_as_java_does(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\xffb\xe6\xbc\nc\n")
    assert read(tmp_path / "a") == [("a�b�", 5), ("c", 7)]


def test_an_incomplete_line_waits_and_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert read(file) == []
    assert mark_of(str(file), 3) is None
    file.write_bytes(b"ab")
    assert read(file) == []
    file.write_bytes(b"abc\rd\r")  # whether \n follows is open
    assert read(file) == [("abc", 4)]


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"ab\ncd\n")
    for fails in (
        lambda: list(chunks(str(file), Mark(7, 7))),
        lambda: list(chunks(str(file), Mark(3, 3), 7)),
        lambda: mark_of(str(file), 7),
    ):
        with pytest.raises(SourceFileTruncated, match=r"it was truncated to 6 bytes; put the file back, or reset"):
            fails()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot read the source file"):
        list(chunks(str(tmp_path)))
