"""The codec refuses whatever does not fit the type exactly, and names the path of the field."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from rollcall_protocol.wire.json_codec import CodecError, decode, encode


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    scale: float
    closed: bool
    points: tuple[Point, ...]
    corner: tuple[int, str]
    color: Color | None = None
    tags: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a shape has at least one point")


SHAPE = Shape("s", 0.5, True, (Point(1, 2), Point(3)), (4, "c"), Color.BLUE, {"t": 1})


def plain(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = encode(SHAPE)
    return value | changes


def test_what_is_encoded_is_decoded_to_an_equal_value() -> None:
    assert decode(Shape, plain()) == SHAPE


def test_fields_with_a_default_may_be_missing() -> None:
    value = plain()
    del value["color"], value["tags"]
    assert decode(Shape, value) == Shape(
        SHAPE.name, SHAPE.scale, SHAPE.closed, SHAPE.points, SHAPE.corner
    )


def test_an_integer_is_taken_for_a_float() -> None:
    scale = decode(Shape, plain(scale=2)).scale
    assert (scale, type(scale)) == (2.0, float)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sides": 4}, "Shape.sides: unknown field; known are name, scale, closed, points"),
        ({"name": 7}, "Shape.name: expected str, got int"),
        ({"name": None}, "Shape.name: expected str, got NoneType"),
        ({"scale": "2"}, "Shape.scale: expected float, got str"),
        ({"scale": True}, "Shape.scale: expected float, got bool"),
        ({"closed": 1}, "Shape.closed: expected bool, got int"),
        ({"points": {}}, "Shape.points: expected a list, got dict"),
        ({"points": [{"x": 1}, {"x": True}]}, r"Shape.points\[1\].x: expected int, got bool"),
        ({"points": [{"x": 1.0}]}, r"Shape.points\[0\].x: expected int, got float"),
        ({"points": [{"y": 1}]}, r"Shape.points\[0\].x: missing"),
        ({"points": [{"x": 1, "z": 1}]}, r"Shape.points\[0\].z: unknown field; known are x, y"),
        ({"points": [3]}, r"Shape.points\[0\]: expected an object, got int"),
        ({"points": []}, "Shape: a shape has at least one point"),
        ({"corner": [4]}, "Shape.corner: expected 2 items, got 1"),
        ({"corner": ["c", 4]}, r"Shape.corner\[0\]: expected int, got str"),
        ({"color": "green"}, "Shape.color: 'green' is not one of red, blue"),
        ({"tags": {"t": "1"}}, "Shape.tags.t: expected int, got str"),
        ({"tags": [1]}, "Shape.tags: expected an object, got list"),
    ],
)
def test_a_wrong_value_is_refused_with_the_path_of_its_field(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CodecError, match=f"^{message}"):
        decode(Shape, plain(**changes))


def test_one_wrong_item_in_a_long_list_of_numbers_is_found() -> None:
    @dataclass(frozen=True, slots=True)
    class Tokens:
        tokens: tuple[int, ...]

    numbers: list[Any] = list(range(1000))
    assert decode(Tokens, {"tokens": numbers}).tokens == tuple(numbers)
    numbers[700] = True
    with pytest.raises(CodecError, match=r"tokens\[700\]: expected int, got bool"):
        decode(Tokens, {"tokens": numbers}, path="Tokens")
