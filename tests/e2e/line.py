"""A line between a node and its SuperLink that a test can cut, and mend again."""

import asyncio
import contextlib
import threading
from typing import Self

from tests.e2e.processes import free_port

_HOST = "127.0.0.1"
_LIMIT_S = 10


class Line:
    """Passes on what comes to its port, as it is, until it is cut; TLS notices nothing.

    A connection that is there when the line is cut falls silent, as with a cable that was pulled: nothing comes
    through, not even that an end closed it. New ones are refused. A dead cable would leave them unanswered, but here
    the kernel answers them; TLS would then wait in vain, which Flower takes for a wrong certificate, and gives up.

    When the line is mended, connections from before are closed. What was held back in them is lost: no request arrives
    that its sender has long given up.

    Attributes:
        port: Where it is reached, at 127.0.0.1.
    """

    def __init__(self, to: int) -> None:
        self.port = free_port()
        self._to = to
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._whole = asyncio.Event()
        self._carrying: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._do(self._drop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()

    def cut(self) -> None:
        """Let nothing through any more."""
        self._do(self._cut())

    def mend(self) -> None:
        """Carry new connections, and close those from before."""
        self._do(self._mend())

    def _do(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    async def _cut(self) -> None:
        self._whole.clear()
        self._server.close()

    async def _mend(self) -> None:
        await self._drop()
        self._server = await asyncio.start_server(self._carry, _HOST, self.port)
        self._whole.set()

    async def _drop(self) -> None:
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._carrying.add(task)
        try:
            with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection(_HOST, self._to)
                with contextlib.closing(far_writer):
                    await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._carrying.remove(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.closing(sink), contextlib.suppress(OSError):
            while data := await source.read(2**16):
                await self._whole.wait()
                sink.write(data)
                await sink.drain()
            await self._whole.wait()
