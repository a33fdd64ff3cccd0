# SPDX-License-Identifier: Apache-2.0
"""Lists assertions of tests that hold although the numbers are NaN.

    python3 tests/repository/tidy/weak_comparisons.py [--all] [PATH...]

Per line: file, line, kind, code. Only functions that compute with tensors are
searched, and of them those that compare no number by value; with --all the
others too. The kinds:

    inequality   a != b, not torch.equal(a, b), not a < b
    not-none     a is not None
    length       len(a) == n, a.shape == b.shape
    largest      max(a, b) < tolerance: Python's max() ignores a later NaN
    tolerance    if difference > tolerance: fail
    equal-nan    comparisons that count NaN as equal
    bits         digests or bytes of two tensors that may both be NaN
"""

import argparse
import ast
import os
import re
import sys

_FILES = re.compile(r"(^|/)(test_\w+|\w+_test)\.py$|/(programs|steps)/\w+\.py$")
# What a function has that computes with tensors.
_COMPUTES = re.compile(
    r"\.backward\(|\.item\(\)|\.tolist\(\)|\bloss(es)?\b|\.sum\(|\.mean\(|"
    r"\brandn?\(|\.cuda\(|\bgrad\b|torch\.(ones|zeros|full|arange|empty)\(")
# What makes an expression one of tensors or their numbers.
_NUMBERS = re.compile(
    r"\.item\(\)|\.tolist\(\)|\bloss(es)?\b|\bgrads?\b|\bweight\b|"
    r"\bout(put)?s?\b|\bresults?\b|\bexpected\b|\bfound\b|\bvalues?\b|"
    r"\blogits\b|\by\b|\bx\b|\bp\b|\.data\b|\.abs\(|abs\(|\bdifference")
_EQUAL_NAN = re.compile(
    r"equal_nan=True|nan_ok=True|np\.testing\.|numpy\.testing\.|array_equal\(")
_BITS = re.compile(r"\bdigest|\.tobytes\(\)|sha\d+\(|xxh|\bhash\(|checksum")
_STRONG = ("equal", "allclose", "assert_close", "approx", "isfinite", "isclose",
           "array_equal", "same", "assertEqual", "assertAlmostEqual")


def _is_weak_operand(node):
    return not isinstance(node, ast.Constant)


def _called(node):
    """The name of what a call calls, without its module."""
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))


class _Function:
    """Assertions of one function by kind, and whether one compares values."""

    def __init__(self, node):
        self.weak, self.strong = [], False
        for each in ast.walk(node):
            if isinstance(each, ast.Assert):
                for part in self._parts(each.test):
                    self._assertion(part)
            elif isinstance(each, ast.Expr) and isinstance(
                    each.value, ast.Call):
                self._call(each.value)
            elif isinstance(each, ast.If):
                self._condition(each)
            elif isinstance(each, ast.Call) and _called(each) == "promise":
                for argument in each.args[1:2]:  # steps of tests/gpu_kit
                    for part in self._parts(argument):
                        self._assertion(part)

    @staticmethod
    def _parts(test):
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                yield from _Function._parts(value)
        else:
            yield test

    def _add(self, node, kind):
        self.weak.append((node.lineno, kind, ast.unparse(node)))

    def _call(self, call):
        if _EQUAL_NAN.search(ast.unparse(call)):
            self._add(call, "equal-nan")
        elif _called(call) in _STRONG:
            self.strong = True

    def _condition(self, node):
        """`if difference > tolerance:` with a failure behind it."""
        test = node.test
        fails = any(
            isinstance(each, ast.Raise) or isinstance(each, ast.Call)
            and _called(each) in ("append", "fail", "exit", "AssertionError")
            for body in node.body for each in ast.walk(body))
        if (fails and isinstance(test, ast.Compare) and any(
                isinstance(op, (ast.Gt, ast.GtE)) for op in test.ops)
                and re.search(r"abs\(|differ|gap|worst", ast.unparse(test))):
            self._add(test, "tolerance")

    def _assertion(self, test):
        text = ast.unparse(test)
        if _EQUAL_NAN.search(text):
            return self._add(test, "equal-nan")
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = test.operand
            if isinstance(inner, ast.Call) and _called(inner) in _STRONG:
                self._add(test, "inequality")
            elif isinstance(inner, ast.Compare) and any(
                    isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
                    for op in inner.ops):
                self._add(test, "inequality")
            return None
        if isinstance(test, ast.Compare):
            return self._comparison(test, text)
        if isinstance(test, ast.Call):
            if any(isinstance(each, ast.Call) and _called(each) in _STRONG
                   for each in ast.walk(test)):
                self.strong = True
        return None

    def _comparison(self, test, text):
        operands = [test.left, *test.comparators]
        if any(isinstance(op, ast.IsNot) for op in test.ops):
            if _NUMBERS.search(text):
                self._add(test, "not-none")
            return
        if any(isinstance(op, ast.NotEq) for op in test.ops):
            if all(map(_is_weak_operand, operands)):
                self._add(test, "inequality")
            return
        if any(isinstance(each, ast.Call) and _called(each) in ("len", "numel")
               or isinstance(each, ast.Attribute) and each.attr == "shape"
               for each in operands):
            self._add(test, "length")
            return
        if any(isinstance(op, (ast.Lt, ast.LtE)) for op in test.ops):
            if any(isinstance(each, ast.Call) and isinstance(
                    each.func, ast.Name) and each.func.id == "max"
                    for part in operands for each in ast.walk(part)):
                self._add(test, "largest")
                return
        if any(isinstance(op, ast.Eq) for op in test.ops):
            if _BITS.search(text):
                self._add(test, "bits")
            elif _NUMBERS.search(text):
                self.strong = True
        elif _NUMBERS.search(text):  # an ordering fails for NaN
            self.strong = True


def weak_comparisons(path, everything=False):
    """(line, function, kind, code) of each weak assertion of a file."""
    with open(path, encoding="utf-8") as file:
        source = file.read()
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not _COMPUTES.search(ast.get_source_segment(source, node) or ""):
            continue
        function = _Function(node)
        if function.strong and not everything:
            # A tolerance that NaN passes hides behind no other comparison.
            function.weak = [each for each in function.weak
                             if each[1] in ("tolerance", "largest",
                                            "equal-nan")]
        found += [(line, node.name, kind, code)
                  for line, kind, code in function.weak]
    return sorted(set(found))


def test_files(root):
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders
                      if not each.startswith((".", "bazel-", "build"))]
        for name in files:
            path = os.path.join(folder, name)
            if _FILES.search(path):
                yield path


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("paths", nargs="*", default=["."])
    arguments.add_argument("--all", action="store_true")
    options = arguments.parse_args()
    total = 0
    for root in options.paths:
        paths = [root] if os.path.isfile(root) else sorted(test_files(root))
        for path in paths:
            for line, name, kind, code in weak_comparisons(
                    path, options.all):
                total += 1
                print(f"{os.path.relpath(path)}:{line}: {kind}: {name}: "
                      f"{code[:110]}")
    print(f"{total} weak comparisons", file=sys.stderr)


if __name__ == "__main__":
    main()
