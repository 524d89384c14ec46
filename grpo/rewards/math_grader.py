"""Whether two mathematical expressions are the same: math-verify, run in a process of its own.

This file is the program of that process (see :class:`grpo.rewards.math_process.GraderProcess`)
and imports nothing of this package. It reads a line of JSON for each question and writes one for
each verdict.

math-verify (0.9) compares numbers at six decimals, or cuts small ones to zero: 1/3^80 equals
1/3^79 to it. Numbers are therefore compared here, exactly or within a stated relative tolerance;
math-verify judges everything else: sets, tuples, intervals, equations, inequalities, symbols.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import resource
import signal
import sys
from typing import Any, TextIO

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Eq, Expr, FiniteSet, Float, Interval, Mul, Rational, Symbol, Tuple, UnevaluatedExpr
from sympy.logic.boolalg import BooleanAtom

# Digits to which irrational numbers are evaluated, and at which equal ones must agree.
_DIGITS = 60
_AGREE = Rational(1, 10**40)
_HUNDREDTH = UnevaluatedExpr(Rational(1, 100))
_MATH_DELIMITERS = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_MEMORY_BYTES = 4 * 2**30


def equal(gold: str, answer: str, rel_tolerance: float = 0.0) -> bool:
    """Whether the answer's expression is the gold one's.

    Args:
        gold: LaTeX or plain mathematics; it decides what forms of an answer are accepted, so the
            two cannot be exchanged (an interval answers an inequality, not the reverse).
        answer: the same.
        rel_tolerance: for numbers; 0 means exactly equal.
    """
    gold_expr, answer_expr = _parsed(gold), _parsed(answer)
    if gold_expr is None or answer_expr is None:
        return False
    sides = _unassigned(gold_expr, answer_expr)
    same = _same_number(*sides, rel_tolerance)
    if same is not None:
        return same
    # No timeout here: math-verify's is a Python signal handler, which a long integer power never
    # lets run. This process is ended by the kernel instead.
    if not verify(gold_expr, answer_expr, timeout_seconds=None, raise_on_error=True):
        return False
    return _same_elements(*sides, rel_tolerance)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """The expression, or None where there is none in it."""
    text = _MATH_DELIMITERS.sub("", text).replace("\n", " ").strip()
    found = parse(
        f"${text}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return found[0] if found else None


def _unassigned(gold: Any, answer: Any) -> tuple[Any, Any]:
    """``x = 5`` as 5 on either side; unchanged where they assign to different names."""
    names = {e.lhs for e in (gold, answer) if _is_assignment(e)}
    if len(names) != 1:
        return gold, answer
    gold, answer = (e.rhs if _is_assignment(e) else e for e in (gold, answer))
    return gold, answer


def _is_assignment(expr: Any) -> bool:
    return isinstance(expr, Eq) and isinstance(expr.lhs, Symbol)


def _same_number(gold: Any, answer: Any, rel_tolerance: float) -> bool | None:
    """The verdict on two numbers; None where one of them is no plain number."""
    gold, answer = _number(gold), _number(answer)
    if gold is None or answer is None:
        return None
    tolerance = Rational(rel_tolerance)
    if not (gold.is_Rational and answer.is_Rational):
        tolerance = max(tolerance, _AGREE)
        gold, answer = gold.evalf(_DIGITS), answer.evalf(_DIGITS)
    within = abs(answer - gold) <= tolerance * abs(gold)
    # What sympy cannot evaluate stays a relation.
    return bool(within) if isinstance(within, BooleanAtom) else None


def _number(expr: Any) -> Expr | None:
    """An expression as a number without floats, percentages as they are written (50% is 50)."""
    if not isinstance(expr, Expr) or expr.free_symbols:
        return None
    if isinstance(expr, Mul) and len(expr.args) == 2 and expr.args[1] == _HUNDREDTH:
        expr = expr.args[0]
    expr = expr.xreplace({f: Rational(str(f)) for f in expr.atoms(Float)}).doit()
    return expr if expr.is_number and expr.is_finite else None


def _same_elements(gold: Any, answer: Any, rel_tolerance: float) -> bool:
    """Whether no number in two collections that math-verify calls equal differs after all."""
    golds, answers = _elements(gold), _elements(answer)
    if len(golds) != len(answers):
        return True

    def may_equal(one: Any, other: Any) -> bool:
        return _same_number(one, other, rel_tolerance) is not False

    if isinstance(gold, FiniteSet) or isinstance(answer, FiniteSet):
        return all(any(may_equal(g, a) for a in answers) for g in golds)
    return all(may_equal(g, a) for g, a in zip(golds, answers, strict=True))


def _elements(expr: Any) -> list[Any]:
    """The elements of a finite collection, the ends of an interval, nothing of anything else."""
    if isinstance(expr, Interval):
        return [expr.start, expr.end]
    return list(expr.args) if isinstance(expr, (FiniteSet, Tuple)) else []


def serve(questions: TextIO, verdicts: TextIO, timeout_seconds: float) -> None:
    """Answer line by line until the questions end.

    A question that takes more CPU time than the timeout ends the process by SIGPROF: its default
    action is the kernel's, which also reaches into arithmetic that never returns to Python. CPU
    time, so that verdicts do not depend on what else the machine does.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in questions:
        signal.setitimer(signal.ITIMER_PROF, timeout_seconds)
        try:
            verdict: dict[str, object] = {"equal": equal(**json.loads(line))}
        except Exception as error:
            # Told to the process that asked, which raises it.
            verdict = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=verdicts, flush=True)


def main() -> None:
    """Serve on the standard streams, with a bound on memory and without the parsers' chatter."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as verdicts:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        serve(sys.stdin, verdicts, float(sys.argv[1]))


if __name__ == "__main__":
    main()
