# SPDX-License-Identifier: Apache-2.0
"""Makes a failing program short: drops steps, then makes sizes small."""


def shrink(program, fails, tries=400):
    """The shortest program found for which `fails(program)` still holds.

    Drops runs of steps, halving their length (delta debugging), then single
    nested steps, then replaces sizes by smaller ones. At most `tries` calls of
    `fails`.
    """
    left = [tries]

    def still(candidate):
        if left[0] <= 0:
            return False
        left[0] -= 1
        return fails(candidate)

    before = None
    while before != program and left[0] > 0:
        before = program
        program = _drop(program, still)
        program = _drop_nested(program, still)
        program = _smaller(program, still)
    return program


def _drop(steps, still):
    run = max(1, len(steps) // 2)
    while run >= 1:
        start = 0
        while start < len(steps):
            candidate = steps[:start] + steps[start + run :]
            if candidate and still(candidate):
                steps = candidate
            else:
                start += run
        run //= 2
    return steps


def _drop_nested(steps, still):
    for i, step in enumerate(steps):
        nested = step[-1]
        if not isinstance(nested, list) or len(nested) < 2:
            continue

        def with_nested(inner, i=i, step=step):
            return steps[:i] + [step[:-1] + [inner]] + steps[i + 1 :]

        kept = _drop(nested, lambda inner: still(with_nested(inner)))
        steps = with_nested(kept)
    return steps


SMALL = (1, 512, 1 << 20, 2 << 20)


def _smaller(steps, still):
    for i, step in enumerate(steps):
        for position, value in enumerate(step):
            if not isinstance(value, int) or value <= 4 or position == 0:
                continue
            for size in SMALL:
                if size >= value:
                    break
                candidate = (
                    steps[:i]
                    + [step[:position] + [size] + step[position + 1 :]]
                    + steps[i + 1 :]
                )
                if still(candidate):
                    steps = candidate
                    step = steps[i]
                    break
    return steps
