"""Notes where a client's time goes. Python runs a module of this name in every process that it starts.

With ISOPROTO_PARTS in the environment, a folder, each process that answers for clients adds a line to a file of its own
there for each message: its type, its round, the seconds it took, and of which parts; what a second thread writes
meanwhile is apart. A part that is called by another one is not counted in that one.
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

    # What is called in them belongs to them: an evaluation computes features, too.
    WHOLE = ("training", "evaluation", "class statistics")

    class Clock:
        """Adds up the seconds of each part of one message."""

        def __init__(self) -> None:
            self.owner, self.beside, self.last = 0, 0.0, 0.0
            self.stack: list[str] = []
            self.parts: Counter[str] = Counter()

        def turn(self) -> None:
            """Count the time since the last turn for the part that is on."""
            now = time.perf_counter()
            if self.stack:
                self.parts.update({self.stack[-1]: now - self.last})
            self.last = now

        def of(self, part: str, function: Function) -> Function:
            """Return the function with its time counted."""

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
            """Return the function, which a second thread calls, with its time counted apart."""

            def call(*words: Any, **more: Any) -> Any:
                began = time.perf_counter()
                try:
                    return function(*words, **more)
                finally:
                    self.beside += time.perf_counter() - began

            return call

        def message(self, function: Function) -> Function:
            """Return the function that answers a message with a note written of it."""
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
        """Have the parts of a client app counted."""
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
            (local_round, "train_cohort", "training"),
            (local_round, "extract", "class statistics"),
            (local_round, "measure", "class statistics"),
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
            """Let the others find it, and watch what they load."""
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
