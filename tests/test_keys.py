"""A key is declared once, and a declaration that cannot be right is refused when its class is made."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import pytest

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.keys import (
    COUNT,
    NAME,
    NAMES,
    OPEN_FRACTION,
    POSITIVE,
    WORDS,
    Bound,
    choices,
    declarations,
    key,
    no_key,
    table,
)  # fmt: skip
from quietsum.plan import keys_of, page, value_of


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@table
class Lid:
    """A lid."""

    weight: float = key("Its weight in kilograms.", default=0.5, bound=POSITIVE)


@table
class Box:
    """A box."""

    name: str = key("What the box is called.", bound=NAME)
    colour: Colour = key("The colour of the box.", default=Colour.RED)
    sides: int = key("How many sides it has.", default=6, bound=COUNT)
    material: str = key("What it is made of.", default="wood", bound=choices("wood", "tin"))
    fill: float | None = key("How full it is.", default=None, bound=OPEN_FRACTION)
    marks: tuple[str, ...] | int = key("Its marks, or how many.", default=(), bound=dataclasses.replace(NAMES, least=1))
    edges: tuple[float, float] | None = key("Two edges.", default=None, bound=Bound(shortest=2, longest=2))
    words: tuple[str, ...] = key("A word or several.", default=(), bound=WORDS)
    lids: tuple[Lid, ...] = key("The lids of the box.", default=())
    lid: Lid = key("The main lid.", default_factory=Lid)
    open: bool = key("Whether it is open.", default=False)
    notes: Mapping[str, Any] = key("Free notes.", default_factory=dict)
    owner: str = no_key(default="")


def read(**values: object) -> Box:
    found: Box = value_of(Box, values, where="box.toml", remedy="build one")
    return found


def refusal(**values: object) -> str:
    with pytest.raises(PlanRefused) as caught:
        read(**values)
    return str(caught.value)


# ------------------------------------------------------------------------------------------- declarations


def test_a_field_without_a_sentence_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Bare.size has no sentence: declare it with key"):

        @table
        class Bare:
            size: int = 3


@pytest.mark.parametrize("sentence", ["", "Size.", "The size of it"])
def test_a_sentence_says_something_and_ends(sentence: str) -> None:
    with pytest.raises(TypeError, match=r"Mute.size has no sentence: say what the key means"):

        @table
        class Mute:
            size: int = key(sentence, default=3)


def test_a_default_outside_its_bound_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong.rate has a default outside its bound: rate = 0.0 must be greater"):

        @table
        class Wrong:
            rate: float = key("The rate of it.", default=0.0, bound=POSITIVE)


def test_a_default_of_another_type_or_choice_is_refused() -> None:
    with pytest.raises(TypeError, match=r"default outside its bound: rate = 'fast' is not a number"):

        @table
        class Typed:
            rate: float = key("The rate of it.", default="fast")

    with pytest.raises(TypeError, match=r"default outside its bound: kind = 'c' is unknown; choose 'a' or 'b'"):

        @table
        class Chosen:
            kind: str = key("The kind of it.", default="c", bound=choices("a", "b"))


def test_the_keys_are_those_with_a_sentence_in_their_order() -> None:
    assert list(declarations(Box))[:2] == ["name", "colour"] and "owner" not in declarations(Box)
    assert [one.name for one in declarations(Box).values() if one.required] == ["name"]
    assert keys_of(Box)["lid.weight"] == "Its weight in kilograms."
    assert "| `lids.weight` | `0.5` | Its weight in kilograms. |" in page(Box)
    assert "| `name` | must be stated | What the box is called. |" in page(Box)


# ------------------------------------------------------------------------------------------------- values


def test_a_value_is_stored_in_its_type() -> None:
    box = Box(name="a", sides=4.0, fill=0.5, colour="blue", lids=[Lid(weight=2)])  # type: ignore[arg-type]
    assert type(box.sides) is int and box.colour is Colour.BLUE and type(box.lids) is tuple
    assert type(box.lids[0].weight) is float and str(Lid(weight=3).weight) == "3.0"
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.sides = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": " "}, "name = ' ' is not a name; what the box is called"),
        ({"name": 3}, "name = 3 is not a name"),
        ({"colour": "green"}, "colour = 'green' is unknown; choose 'red' or 'blue'"),
        ({"sides": 0}, "sides = 0 must be at least 1; how many sides it has"),
        ({"sides": 2.5}, "sides = 2.5 is not a whole number"),
        ({"sides": True}, "sides = True is not a number"),
        ({"sides": 10**10}, "sides = 10000000000 must be at most 1,000,000,000"),
        ({"material": "tim"}, "material = 'tim' is unknown; choose 'wood' or 'tin'"),
        ({"fill": 1}, "fill = 1 must be below 1; how full it is"),
        ({"fill": float("nan")}, "fill = nan is not finite"),
        ({"marks": "one"}, "marks = 'one' is not a list"),
        ({"marks": ("a", "")}, "marks[1] = '' is not a name"),
        ({"marks": 0}, "marks = 0 must be at least 1"),
        ({"edges": (1,)}, "edges = [1.0] has too few entries"),
        ({"edges": (1, 2, 3)}, "edges = [1.0, 2.0, 3.0] has too many entries"),
        ({"lids": (3,)}, "lids[0] = 3 is no Lid; pass Lid(...)"),
        ({"lid": 3}, "lid = 3 is no Lid"),
        ({"open": 1}, "open = 1 is neither true nor false"),
        ({"notes": 3}, "notes = 3 is not a table"),
    ],
)
def test_a_value_outside_its_type_or_bound_is_refused_by_name(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        Box(**{"name": "a", **wrong})
    assert told in str(caught.value)


# -------------------------------------------------------------------------------------------------- files


def test_a_file_gives_the_same_value_as_python() -> None:
    lids = ({"weight": 2.0},)
    found = read(name="a", words="one", lids=list(lids), notes={"x": 1}, marks=3, edges=[1, 2])
    assert found == Box(name="a", words=("one",), lids=(Lid(weight=2.0),), notes={"x": 1}, marks=3, edges=(1, 2))
    assert read(name="a") == Box(name="a")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"nam": "a"}, "nam: unknown key; did you mean name?"),
        ({"owner": "a"}, "owner: unknown key"),
        ({"lid": {"wait": 3}}, "lid.wait: unknown key; did you mean lid.weight?"),
        ({"name": ""}, "name is empty; what the box is called"),
        ({"sides": 8.0}, "sides = 8.0 is not a whole number"),
        ({"fill": 0}, "fill = 0 must be greater than 0; how full it is"),
        ({"edges": [1]}, "edges"),
        ({"lids": [{"weight": -1}]}, "lids[0].weight = -1 must be greater than 0"),
    ],
)
def test_a_file_is_held_to_the_declarations(wrong: dict[str, Any], told: str) -> None:
    assert told in refusal(**{"name": "a", **wrong})


def test_what_must_be_stated_is_named_with_its_meaning() -> None:
    assert refusal(sides=3) == "box.toml: name is missing; what the box is called"
