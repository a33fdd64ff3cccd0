# SPDX-License-Identifier: Apache-2.0
"""The starved programs notice what they are there to notice."""

import ctypes
import faulthandler
import json
import math
import os
import signal
import textwrap

import pytest
import torch

from tests.system.e2e import running
from tests.system.starved import comparison
from tests.system.starved import fits
from tests.system.starved import zygote


def _result(value, loss=1.):
    return {"losses": [loss], "tensors": {"weight": torch.tensor(value)}}


def test_equal_results_do_not_differ():
    assert comparison.difference(_result([1., 2.]), _result([1., 2.])) == 0


def test_the_last_bit_is_a_difference():
    near = torch.nextafter(torch.tensor(2.), torch.tensor(3.)).item()
    assert comparison.difference(_result([1., 2.]), _result([1., near])) > 0
    assert comparison.difference(_result([1.]), _result([1.], near)) > 0


def test_not_a_number_is_as_far_as_can_be():
    assert comparison.difference(
        _result([1.]), _result([math.nan])) == math.inf


def test_a_reference_that_is_not_finite_proves_nothing():
    assert comparison.sound(_result([1.])) is None
    assert comparison.sound(_result([math.inf])) is not None


def test_a_child_answers():
    assert zygote.run(lambda value: value + 1, 2) == 3


def test_what_a_child_raises_arrives():
    def refuse():
        raise torch.OutOfMemoryError("not enough of it")

    with pytest.raises(zygote.Refused, match="OutOfMemoryError: not enough"):
        zygote.run(refuse)


def test_a_child_that_crashes_is_told_with_its_output():
    def crash():
        faulthandler.disable()  # pytest's, which would tell it as well
        os.write(2, b"last words")
        # What a broken library does.
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(zygote.Died, match="signal 11: last words"):
        zygote.run(crash)


def test_a_child_that_does_not_answer_is_ended():
    with pytest.raises(zygote.Died, match="no answer within"):
        zygote.run(signal.pause, timeout=.2)


def test_moved_bytes_of_a_job_that_fits_are_a_fault():
    row = {"virtual_ratio": 1., "ours": {
        "faults": [], "moved": {"out": 0, "in": 4096}}}
    assert "4096 in" in fits._fault(row)
    row["ours"]["moved"]["in"] = 0
    assert fits._fault(row) is None
    row["virtual_ratio"] = 1.03
    assert "1.03" in fits._fault(row)


_TOO_SMALL = textwrap.dedent("""
    import json, tempfile
    from tests.system.starved import zygote
    zygote.prepare()
    from tests.system.starved import cell, place
    with tempfile.TemporaryDirectory() as folder:
        reference = cell.Reference("vit", JOB, folder)
        def native():
            place.device(reference.card(1.5), "native")
            reference.work("cuda")
        try:
            zygote.run(native)
            print(json.dumps("fits"))
        except zygote.Refused as error:
            print(json.dumps(error.kind))
""")


@pytest.mark.parametrize("job", [
    "inference", pytest.param("adamw", marks=pytest.mark.long)])
def test_the_cards_of_the_matrix_are_too_small_for_native(job):
    done = running.python("-c", _TOO_SMALL.replace("JOB", repr(job)))
    assert running.last_json(done) == "OutOfMemoryError"


_LARGE_CARD = textwrap.dedent("""
    import json
    from tests.system.starved import zygote
    zygote.prepare(numbers="off")
    def total():
        import torch
        from tests.system.starved import place
        place.device(120 << 30, "native")
        return torch.cuda.mem_get_info()[1]
    print(json.dumps(zygote.run(total)))
""")


def test_a_card_may_be_larger_than_an_int():
    assert 120 << 30 > ctypes.c_int(-1).value & 0xffffffff
    done = running.python("-c", _LARGE_CARD)
    assert json.loads(done.stdout.strip().splitlines()[-1]) == 120 << 30
