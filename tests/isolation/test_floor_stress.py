"""The floor, raised as often as possible under a load of every kind: nothing is lost, nothing acked twice."""

import os

import pytest

from tests.conftest import Connect
from tests.isolation.invariants import broken
from tests.isolation.rewriting import trust_the_floor_it_sees
from tests.isolation.stress import Stress

SECONDS = float(os.environ.get("PENSTOCK_STRESS_SECONDS", "5"))


@pytest.mark.slow
def test_no_message_ends_up_below_the_floor(connect18: Connect) -> None:
    stress = Stress(connect18)
    record = stress.run(SECONDS)
    print(f"{len(record.committed)} committed, the floor raised {record.raised} times")
    assert record.failures == []
    assert record.violations == []
    assert stress.lost() == set()
    assert record.acked.keys() == record.committed
    assert set(record.acked.values()) == {1}
    assert record.raised > 10 * SECONDS
    assert broken(connect18()) == []


@pytest.mark.slow
def test_the_stress_sees_a_publisher_that_trusts_an_old_floor(connect18: Connect) -> None:
    trust_the_floor_it_sees(connect18())
    record = Stress(connect18).run(60)
    assert record.failures == []
    assert any(violation.startswith("below the floor") for violation in record.violations)
