"""`penstock dashboard`: mistakes that would leave it open."""

from pathlib import Path

import pytest

from .command import Command

NOWHERE = "postgresql://127.0.0.1:1/nowhere"


@pytest.mark.parametrize(
    "variable", ["PENSTOCK_DASHBOARD_TOKEN", "PENSTOCK_DASHBOARD_VIEW_TOKEN", "PENSTOCK_DASHBOARD_BASIC"]
)
def test_a_secret_that_is_missing(tmp_path: Path, variable: str) -> None:
    """The variable is there, what was to fill it is not. Else anyone behind a proxy could do everything."""
    command = Command(NOWHERE, tmp_path)
    command("dashboard", "--port", "0", environ={variable: ""}).failed(2, variable, "empty")


def test_options_that_protect_nothing(tmp_path: Path) -> None:
    command = Command(NOWHERE, tmp_path)
    for wrong, told in (
        (("--token", ""), "must not be empty"),
        (("--token", "x", "--view-token", "x"), "must differ"),
        (("--redact", "("), "regular expressions"),
        (("--host", "0.0.0.0"), "without authentication"),  # noqa: S104
    ):
        command("dashboard", "--port", "0", *wrong).failed(2, told)
