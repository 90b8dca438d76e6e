"""Note where the time of a client goes. Python runs a module of this name at the start of every process.

The environment variable ISOPROTO_PARTS names a folder. There each process that answers for clients has a file, and adds
one line per message: the type of the message, its round, and the seconds of each part of the work. If a part calls
another part, the seconds of the called part count only for that part. A second thread that writes models to the disk at
the same time is counted separately.
"""

import os
import sys

if "ISOPROTO_PARTS" in os.environ:
    import importlib.util
    import json
    import threading
    import time
    from collections import Counter
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Function = Callable[..., Any]

    # All calls inside these parts count for them. For example, an evaluation computes features, too.
    WHOLE = ("training", "evaluation", "class statistics")

    class Clock:
        """Adds up the seconds of each part of one message."""

        def __init__(self) -> None:
            self.owner, self.beside, self.last = 0, 0.0, 0.0
            self.stack: list[str] = []
            self.parts: Counter[str] = Counter()

        def turn(self) -> None:
            """Add the time since the last turn to the part that runs now."""
            now = time.perf_counter()
            if self.stack:
                self.parts.update({self.stack[-1]: now - self.last})
            self.last = now

        def of(self, part: str, function: Function) -> Function:
            """Return the function so that its time counts for a part."""

            def call(*words: Any, **more: Any) -> Any:
                if threading.get_ident() != self.owner or (self.stack and self.stack[-1] in WHOLE):
                    return function(*words, **more)
                self.turn()
                self.stack.append(part)
                try:
                    return function(*words, **more)
                finally:
                    self.turn()
                    self.stack.pop()

            return call

        def apart(self, function: Function) -> Function:
            """Return the function so that its time counts separately; a second thread calls it."""

            def call(*words: Any, **more: Any) -> Any:
                began = time.perf_counter()
                try:
                    return function(*words, **more)
                finally:
                    self.beside += time.perf_counter() - began

            return call

        def message(self, function: Function) -> Function:
            """Return the function that answers messages so that it writes a line for each."""
            timed = self.of("the rest", function)

            def call(message: Any, *words: Any, **more: Any) -> Any:
                self.owner, self.parts, self.beside = threading.get_ident(), Counter(), 0.0
                answer = timed(message, *words, **more)
                told = {"type": message.metadata.message_type, "round": message.content["config"]["round"]}
                told |= {"parts": dict(self.parts), "beside": self.beside}
                with open(os.path.join(os.environ["ISOPROTO_PARTS"], f"{os.getpid()}.jsonl"), "a") as file:
                    file.write(json.dumps(told) + "\n")
                return answer

            return call

    def watch(app: Any) -> None:
        """Count the time of the parts of a client app."""
        clock = Clock()
        store, client, own_model, local_round = (
            sys.modules[f"client_app.{name}"] for name in ("store", "client", "own_model", "local_round")
        )
        for where, name, part in (
            (client.Client, "of", "data and settings"),
            (own_model, "load_model", "model is built or filled"),
            (store.ClientStore, "load", "model is read from disk"),
            (store.ClientStore, "prepare", "model is copied for the disk"),
            (local_round, "train", "training"),
            (local_round, "train_together", "training"),
            (local_round, "extract", "class statistics"),
            (local_round, "statistics_of", "class statistics"),
            (local_round, "evaluate_model", "evaluation"),
            (app.wire, "read_broadcast", "messages are read and written"),
            (app.wire, "write_train_reply", "messages are read and written"),
        ):
            setattr(where, name, clock.of(part, getattr(where, name)))
        vars(store)["write_atomically"] = clock.apart(vars(store)["write_atomically"])
        app.answer = clock.message(app.answer)

    class Finder:
        """Waits for the client app to be imported."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            """Let the other finders find the client app, and watch it once it is loaded."""
            if name != "client_app.app":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                watch(module)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
