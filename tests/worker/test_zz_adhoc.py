import asyncio, time
import pytest
from penstock import App
from tests.worker.stage import *

@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("ms", [0, 20])
async def test_rate(database18, mixed, ms):
    app = App(); n=0
    @app.task
    def thread(number: int):
        nonlocal n
        if ms: time.sleep(ms/1000)
        n+=1
    if mixed:
        @app.task
        async def other(): pass
    with app.connected_to(database18):
        await thread.enqueue_many_async([(i,) for i in range(600)])
        await app.aclose()
    async with working(app, database18, threads=8):
        t=time.time()
        try: await holds(lambda: n>=600, "all", 20)
        except AssertionError: pass
        print("mixed", mixed, ms, "ms:", n, "in", round(time.time()-t,2), "s =", round(n/(time.time()-t)), "/s")
