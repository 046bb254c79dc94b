"""What a type checker knows of tasks: their parameters without the context, and what they return."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each line that is wrong names the code of its error; all others are right.
PROGRAM = """
from datetime import datetime
from typing import Any, assert_type

import penstock
from penstock import Handle, TaskContext

app = penstock.App()


@app.task
def plain(x: int, name: str = "") -> float:
    return x / len(name)


@app.task(queue="mail", max_attempts=3)
async def awaited(x: int, *, at: datetime | None = None) -> list[str]:
    return [str(x), str(at)]


@app.task
def with_context(context: TaskContext, x: int) -> None: ...


@app.task(result=True)
async def awaited_with_context(context: TaskContext, to: str, *, times: int = 1) -> bool:
    return times > len(to)


@app.task()
def without_arguments() -> None: ...


@app.task()
async def total(results: list[float]) -> float:
    return sum(results)


async def main(connection: object) -> None:
    assert_type(plain.enqueue(1), Handle[float])
    assert_type(plain.enqueue(1, "a"), Handle[float])
    assert_type(plain.enqueue(x=1, name="a").result(timeout=5), float)
    assert_type(await plain.enqueue_async(1), Handle[float])
    assert_type(await (await plain.enqueue_async(1)).result_async(), float)
    assert_type(awaited.enqueue(1, at=datetime.now()).result(), list[str])
    assert_type(await (await awaited.enqueue_async(1)).result_async(timeout=1), list[str])
    assert_type(with_context.enqueue(1), Handle[None])
    assert_type(awaited_with_context.enqueue("a", times=2).result(), bool)
    assert_type(await (await awaited_with_context.enqueue_async("a")).result_async(), bool)
    assert_type(without_arguments.enqueue(), Handle[None])

    plain.enqueue()  # error: call-arg
    plain.enqueue("1")  # error: arg-type
    plain.enqueue(1, 2)  # error: arg-type
    plain.enqueue(1, "a", 3)  # error: call-arg
    plain.enqueue(1, nope=3)  # error: call-arg
    await plain.enqueue_async("1")  # error: arg-type
    awaited.enqueue(1, datetime.now())  # error: call-arg
    awaited.enqueue(1, at="now")  # error: arg-type
    await awaited.enqueue_async()  # error: call-arg
    with_context.enqueue()  # error: call-arg
    with_context.enqueue("1")  # error: arg-type
    awaited_with_context.enqueue("a", times="2")  # error: arg-type
    without_arguments.enqueue(1)  # error: call-arg

    later = plain.options(delay=5, priority=penstock.HIGH)
    assert_type(later.enqueue(1), Handle[float])
    assert_type(later.using(connection).enqueue(1, "a"), Handle[float])
    assert_type(plain.using(connection).options(tenant="a").enqueue(1).result(), float)
    assert_type(await awaited.using(connection).enqueue_async(1), Handle[list[str]])
    later.enqueue("1")  # error: arg-type
    plain.using(connection).enqueue()  # error: call-arg
    plain.options(delay="5")  # error: arg-type
    plain.options(nope=5)  # error: call-arg
    later.options(nope=5)  # error: call-arg

    assert_type(plain.enqueue_many([(1,), {"x": 2}]), list[Handle[float]])
    assert_type(await awaited.enqueue_many_async([(1,)]), list[Handle[list[str]]])
    assert_type(plain.handle(5), Handle[float])

    group = app.enqueue_group([plain.call(1), awaited.call(2)], callback=without_arguments.call())
    assert_type(group.results(), list[Any])
    app.enqueue_group([plain.call(1)], callback=total)
    await app.enqueue_group_async([plain.call(1)], callback=total)
    app.enqueue_group([plain.call(1)], callback=total.function)  # error: arg-type
    plain.call("1")  # error: arg-type
    app.enqueue_group([plain.enqueue(1)], callback=without_arguments.call())  # error: list-item

    app.task(max_attempts="3")  # error: call-overload
    app.task(nope=3)  # error: call-overload
    app.add_retries(plain, 3)
    app.add_retries("plain", 3)
"""


def errors_in(program: Path, directory: Path) -> dict[int, set[str]]:
    """The codes of mypy's errors, by line."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--output", "json"),
            *("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(directory), str(program)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = dict[int, set[str]]()
    for line in done.stdout.splitlines():
        one = json.loads(line)
        assert Path(one["file"]).name == program.name, one
        if one["severity"] == "error":
            found.setdefault(one["line"], set()).add(one["code"])
    assert done.returncode in (0, 1), done.stderr
    return found


@pytest.mark.slow
def test_what_mypy_knows_of_tasks(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    expected = {
        number: {line.rpartition("# error: ")[2]}
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# error: " in line
    }
    kept = pytestconfig.cache
    found = errors_in(program, tmp_path / "mypy" if kept is None else kept.mkdir("mypy"))
    lines = PROGRAM.splitlines()
    wrong = {lines[number - 1].strip(): (expected.get(number), codes) for number, codes in found.items()}
    missing = {lines[number - 1].strip() for number in expected if number not in found}
    assert missing == set()
    assert {line: codes for line, codes in wrong.items() if codes[0] != codes[1]} == {}
