"""The pages of a profile's Parquet file: what each will take in memory, before one is read.

The metadata at a file's end can say anything. What makes Arrow reserve memory is in the header before each page: its size, and its
number of values. So we read these headers ourselves, in Thrift's compact protocol, and take only the kinds of pages that
`Profile.save` writes: no encoding in which few bytes stand for long strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_WRITER: Final = "parquet-cpp-arrow"
"""The writer of a profile. From files of other writers, Arrow may read more than the metadata says."""
_MAX_PAGES: Final = 100_000
_MAX_FIELD: Final = 50
_KINDS: Final = {0: 5, 2: 7}
"""Kinds of pages, data and dictionary, with the field that describes them."""
_ENCODINGS: Final = {0, 2, 3, 8}
"""PLAIN, PLAIN_DICTIONARY, RLE and RLE_DICTIONARY."""
_STOP, _BOOLEANS, _BYTE, _INTEGERS, _I32, _DOUBLE, _BINARY, _STRUCT = 0, (1, 2), 3, (4, 5, 6), 5, 7, 8, 12


def uncompressed_size(metadata: pq.FileMetaData, content: bytes) -> tuple[int, int]:
    """Return how many values and how many bytes all pages hold, without their compression.

    Raises:
        ValueError: it has pages that `Profile.save` does not write.
    """
    if not (metadata.created_by or "").startswith(_WRITER):
        raise ValueError("it is damaged: Evergreen did not write it")
    values = size = pages = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            at = column.data_page_offset
            if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
                at = column.dictionary_page_offset
            end = at + column.total_compressed_size
            if not 0 < at <= end <= len(content):
                raise ValueError("it is damaged: it has columns outside of the file")
            while at < end:
                try:
                    page, at = _struct(content, at)
                    described = page[_KINDS[page[1]]]
                    is_known, length = described[2] in _ENCODINGS, page[3]
                    values, size, pages = values + described[1], size + page[2], pages + 1
                except (KeyError, IndexError):
                    is_known, length = False, 0
                if not is_known or length < 0 or page[2] < 0 or described[1] < 0 or pages > _MAX_PAGES:
                    raise ValueError("it is damaged: Evergreen writes no such pages")
                at += length
    return values, size


def _struct(content: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the 32-bit integers and structures in a structure of Thrift by the numbers of their fields, and where it ends."""
    found: dict[int, Any] = {}
    field = 0
    while (head := content[at]) != _STOP:
        at += 1
        field, kind = field + (head >> 4), head & 15
        if head >> 4 == 0 or field > _MAX_FIELD:
            raise IndexError("no field of a header")
        if kind == _STRUCT:
            found[field], at = _struct(content, at)
        elif kind in _INTEGERS:
            number, at = _varint(content, at)
            if kind == _I32:
                number &= 0xFFFFFFFF
                found[field] = (number >> 1) ^ -(number & 1)
        elif kind == _BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind in {_BYTE, _DOUBLE}:
            at += 1 if kind == _BYTE else 8
        elif kind not in _BOOLEANS:
            raise IndexError("no field of a header")
    return found, at + 1


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise IndexError("no number")
