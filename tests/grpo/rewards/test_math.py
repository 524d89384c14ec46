from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo.config.errors import ConfigError
from grpo.rewards import MathCorrectness, WeightedReward, score
from grpo.rewards.math_process import GraderProcess


@pytest.fixture(scope="module")
def graded(sample):
    """Grades a boxed answer; one grader process serves the module."""
    reward = MathCorrectness(extract="boxed")
    return lambda gold, answer: reward(sample(f"so \\boxed{{{answer}}}", gold))


def test_ext_16_no_absolute_tolerance(graded):
    assert graded("1/3^80", "1/3^79") == 0.0
    assert graded("1/3^80", "1/3^{80}") == 1.0
    assert graded("\\frac{\\sqrt{2}}{3^{90}}", "\\frac{\\sqrt{2}}{3^{91}}") == 0.0
    assert graded("1/3", "0.333") == 0.0


def test_ext_16_choice_decimals_are_exact_unless_a_tolerance_is_stated(graded, sample):
    assert graded("1/3", "0.3333333333") == 0.0
    tolerant = MathCorrectness(rel_tolerance=1e-6)
    assert tolerant(sample("#### 0.3333333333", "1/3")) == 1.0
    assert tolerant(sample("#### 0.333", "1/3")) == 0.0
    assert tolerant(sample("#### 1.4142136", "\\sqrt{2}")) == 1.0
    assert tolerant(sample("#### 1.414", "\\sqrt{2}")) == 0.0


def test_ext_16_no_absolute_tolerance_within_lists_and_assignments(graded):
    assert graded("(1/3^{80}, 5)", "(1/3^{79}, 5)") == 0.0
    assert graded("1/3^{80}, 5", "1/3^{79}, 5") == 0.0
    assert graded("x=1/3^{80}", "1/3^{79}") == 0.0
    assert graded("(1/3^{80}, 5)", "(3^{-80}, 5)") == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"), [("\\pm 11", "11"), ("1, 2 and 3", "4, 5 and 3"), ("x=1,2", "x=2,3")]
)
def test_ext_17_all_elements_must_agree(graded, gold, answer):
    assert graded(gold, answer) == 0.0
    assert graded(gold, gold.replace("and", "\\text{ and }")) == 1.0


@pytest.mark.parametrize(("gold", "answer"), [("11", "\\pm 11"), ("3, 4", "3, 4, 5"), ("(1, 2)", "(2, 1)")])
def test_ext_17_neither_more_elements_nor_another_order(graded, gold, answer):
    assert graded(gold, answer) == 0.0


def test_ext_19_the_gold_answer_goes_first(graded):
    assert graded("1 < x < 4", "(1, 4)") == 1.0
    assert graded("(1, 4)", "1 < x < 4") == 0.0


def test_ext_20_equations_are_compared_as_equations(graded):
    assert graded("2x-y+5=0", "2x+3y+8=0") == 0.0
    assert graded("2x-y+5=0", "4x-2y+10=0") == 1.0
    assert graded("2x-y+5=0", "0") == 0.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("\\frac{1}{3}", "1/3"),
        ("3\\sqrt{2}", "\\sqrt{18}"),
        ("x^2+2x+1", "(x+1)^2"),
        ("x=5", "5"),
        ("50\\%", "50"),
        ("\\text{Monday}", "monday."),
        ("\\{1, 2\\}", "\\{2, 1\\}"),
        ("1500", "1.5\\times10^3"),
    ],
)
def test_other_ways_to_write_it(graded, gold, answer):
    assert graded(gold, answer) == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("\\sqrt{2}", "1.41421356"),
        ("\\text{listen}", "silent"),
        ("x=5", "y=5"),
        ("[1, 4]", "[1, 4)"),
        ("5", "\\frac{1}{0}"),
        ("5", "\\frac"),
    ],
)
def test_wrong_answers_and_no_mathematics_are_zero(graded, gold, answer):
    assert graded(gold, answer) == 0.0


def test_no_answer_and_far_too_long_ones_are_zero(sample):
    reward = MathCorrectness(max_answer_chars=50)
    assert reward(sample("\\boxed{\\frac{1}{2}", "1/2")) == 0.0
    assert reward(sample("I do not know.", "7")) == 0.0
    assert reward(sample(f"\\boxed{{{'1+' * 50}1}}", "51")) == 0.0


def test_a_box_inside_a_tag_and_a_solution_as_reference(sample):
    reward = MathCorrectness()
    assert reward(sample("<answer>$\\boxed{8}$</answer>", "It is $\\boxed 8$.")) == 1.0
    assert reward(sample("<answer>8</answer>", "4 + 4\n#### 8")) == 1.0


@pytest.mark.parametrize("gold", ["1/3", "\\frac{\\sqrt{4}}{6}"])
def test_ext_35_a_thread_does_not_change_the_grade(graded, gold):
    grades = []
    thread = threading.Thread(target=lambda: grades.append(graded(gold, "\\frac{1}{3}")))
    thread.start()
    thread.join()
    assert grades == [1.0] == [graded(gold, "\\frac{1}{3}")]


def test_ext_35_threads_at_once_get_their_own_verdicts(graded):
    pairs = [(f"{n}x", f"x{'+x' * (k - 1)}") for n in (2, 3, 4) for k in (2, 3, 4)]
    with ThreadPoolExecutor(4) as pool:
        grades = list(pool.map(lambda pair: graded(*pair), pairs * 3))
    assert grades == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0] * 3


def test_ext_35_arithmetic_without_end_is_counted_and_the_next_question_answered(rollouts):
    reward = WeightedReward(name="math", reward=MathCorrectness(timeout_seconds=1.5), success=True)
    turns = rollouts(["\\boxed{9^{9^{9^{9}}}}", "\\boxed{2+1}", "\\boxed{4}"], answer="3")
    scored = score(turns, [reward], max_error_fraction=0.5)
    assert scored.rewards == [None, 1.0, 0.0]
    assert scored.errors == 1


def test_a_grader_that_fails_says_why_and_ends_with_its_pipe():
    grader = GraderProcess(timeout_seconds=5.0)
    with pytest.raises(RuntimeError, match="nan or zoo"):
        grader.equal("\\frac{1}{0}", "x", 0.0)
    assert grader.equal("x", "x", 0.0) is True
    process = grader._process
    process.stdin.close()  # as when the run is killed
    assert process.wait(timeout=20) == 0


def test_an_interrupted_question_leaves_no_verdict_behind(monkeypatch):
    grader = GraderProcess(timeout_seconds=5.0)
    process = grader._running()

    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(process.stdout, "readline", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        grader.equal("x", "x", 0.0)
    assert process.poll() is not None
    assert grader.equal("x", "2x", 0.0) is False


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"extract": "boxes"}, "did you mean 'boxed'"),
        ({"rel_tolerance": -0.1}, "rel_tolerance: "),
        ({"timeout_seconds": 0}, "timeout_seconds: "),
        ({"max_answer_chars": 0}, "max_answer_chars: "),
    ],
)
def test_arguments_that_cannot_be_are_refused(kwargs, says):
    with pytest.raises(ConfigError, match=says):
        MathCorrectness.check(**kwargs)
