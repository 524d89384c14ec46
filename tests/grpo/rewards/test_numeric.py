from __future__ import annotations

import random
from fractions import Fraction

import pytest

from grpo.rewards import last_number, numbers_equal, parse_number


@pytest.mark.parametrize(
    ("text", "value"), [("$18.00", "18"), ("18 dollars.", "18"), ("It costs $18.", "18")]
)
def test_ext_02_currency_and_period(text, value):
    assert parse_number(last_number(text)) == Fraction(value)


@pytest.mark.parametrize("text", ["$18.00", "18 dollars.", "\\$18", "$18$", "18 USD", "18.", "18%", "18\\%"])
def test_ext_02_currency_and_units_are_dropped(text):
    assert parse_number(text) == 18


def test_ext_04_a_number_needs_a_digit():
    assert last_number("She sold 36 eggs, in all.") == "36"
    assert last_number("Well, no.") is None
    assert parse_number(",") is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("+7", "7", True),
        ("3.0", "3", True),
        ("-3.0", "-3", True),
        ("1e3", "1000", True),
        ("-3", "3", False),
        ("0.5", "1/2", True),
    ],
)
def test_ext_05_numeric_forms(one, other, same):
    assert numbers_equal(parse_number(one), parse_number(other)) is same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", "7"),
        ("1,234.50", "2469/2"),
        ("7{,}300", "7300"),
        ("1 1/2", "3/2"),
        ("-1 1/2", "-3/2"),
        ("-\\dfrac{1}{2}", "-1/2"),
        ("\\frac34", "3/4"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        (".5", "1/2"),
        ("\u22123", "-3"),
    ],
)
def test_forms_of_one_number(text, value):
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$",
        "-",
        "--3",
        "1,2",
        "1 or 2",
        "18 apples",
        "x=3",
        "1/0",
        "1_000",
        "0x10",
        "nan",
        "\u0661",
        "\\pm 11",
    ],
)
def test_what_is_not_one_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize("text", ["1e999999999", "9" * 5000, "1/" + "9" * 5000])
def test_numbers_that_would_fill_the_memory_are_not_read(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10-5", "5"),
        ("so x=-3.", "-3"),
        ("thinking...5", "5"),
        ("so 1,234,567 people", "1234567"),
        ("-$1,250.75!", "-1250.75"),
        ("version 1.2.3", "1.2"),
        ("3/2.5", "2.5"),
        ("on 5/8/2024", "2024"),
        ("1 or 2", "2"),
        ("1,2345", "2345"),
    ],
)
def test_the_last_number_of_running_text(text, number):
    assert last_number(text) == number


def test_a_tolerance_is_relative_and_to_the_reference():
    third, close = Fraction(1, 3), Fraction("0.333333")
    assert not numbers_equal(third, close)
    assert numbers_equal(third, close, rel_tolerance=1e-5)
    assert not numbers_equal(Fraction(1, 3**80), Fraction(1, 3**79), rel_tolerance=0.5)
    assert not numbers_equal(Fraction(0), Fraction(1, 10**30), rel_tolerance=0.5)


def written(value: Fraction, rng: random.Random) -> str:
    """A number as people write it, at random."""
    form = rng.choice(["plain", "commas", "latex", "dollars", "fraction", "frac"])
    sign, size = "-" if value < 0 else "", abs(value)
    if form == "fraction" or form != "frac" and 100 % size.denominator:
        return f"{sign}{size.numerator}/{size.denominator}"
    if form == "frac":
        return f"{sign}\\frac{{{size.numerator}}}{{{size.denominator}}}"
    digits = f"{size.numerator * 100 // size.denominator:03d}"
    whole, decimals = int(digits[:-2]), digits[-2:]
    grouped = str(whole) if form == "plain" else f"{whole:,}"
    grouped = grouped.replace(",", "{,}") if form == "latex" else grouped
    number = grouped if decimals == "00" and rng.random() < 0.5 else f"{grouped}.{decimals}"
    return f"{sign}${number}" if form == "dollars" else sign + number


def test_fuzz_numbers_come_back_as_they_were_written():
    rng = random.Random(5)
    for _ in range(2000):
        top, bottom = rng.randint(-(10 ** rng.randint(1, 12)), 10**9), rng.choice([1, 1, 4, 100, 7, 360])
        value = Fraction(top, bottom)
        text = written(value, rng)
        assert parse_number(text) == value, text
        running = f"First 12, then 3.5; the total is {text}{rng.choice(['.', ', in all.', '', ' apples!'])}"
        assert parse_number(last_number(running)) == value, running
