"""Runs an answer on arguments and writes down what happened. It knows no expected values."""

import contextlib
import copy
import ctypes
import dis
import io
import itertools
import linecache
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servelab.course.tasks.compare import NotPlainError, plain
from servelab.course.tasks.task import STANDARD_IMPORTS, Task

Outcome = Literal["value", "not_done", "error", "too_slow", "not_plain", "refused"]


@dataclass(frozen=True)
class Observation:
    """What one call did: `value` is plain data; `text` the exception, the type or the module that was refused.

    `line` is where in the learner's own code an exception came from; `printed` what the code printed.
    """

    outcome: Outcome
    value: Any = None
    text: str = ""
    line: str = ""
    printed: str = ""


class OutOfTimeError(BaseException):
    """Raised in the learner's code when its time is up; a BaseException, so that `except Exception` lets it by."""


def observe(task: Task, answer: Any, calls: Sequence[tuple[Any, ...]]) -> list[Observation]:
    """Run the answer on a copy of each of `calls`, up to the first that brings no value."""
    if answer is None or answer is ...:
        return [Observation("not_done")]
    if task.answer == "value":
        return [_plain_observation(answer, "")] * len(calls)
    if not callable(answer) or (task.answer == "class") != isinstance(answer, type):
        return [Observation("refused", text=f"type {type(answer).__name__}")]
    try:
        foreign = foreign_module(answer, (*STANDARD_IMPORTS, *task.allowed_imports))
    except Exception as error:  # an object whose attributes cannot be read
        return [Observation("error", text=_describe(error))]
    if foreign:
        return [Observation("refused", text=foreign)]
    observations = []
    for arguments in calls:
        observations.append(_one_call(task, answer, copy.deepcopy(arguments)))
        if observations[-1].outcome != "value":
            break
    return observations


def _one_call(task: Task, answer: Any, arguments: tuple[Any, ...]) -> Observation:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), time_limit(task.seconds):
            got = task.run(answer, arguments)
            return _plain_observation(got, out.getvalue())
    except NotImplementedError:
        return Observation("not_done", printed=out.getvalue())
    except OutOfTimeError:
        return Observation("too_slow", printed=out.getvalue())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Observation("error", text=_describe(error), line=_learner_line(error, answer), printed=out.getvalue())


def _plain_observation(got: Any, printed: str) -> Observation:
    if got is ...:
        return Observation("not_done", printed=printed)
    if isinstance(got, types.CoroutineType):
        got.close()  # else Python warns later that nobody awaited it
    try:
        return Observation("value", value=plain(got), printed=printed)
    except NotPlainError as error:
        return Observation("not_plain", text=str(error), printed=printed)


def _describe(error: BaseException) -> str:
    try:
        words = " ".join(str(error).split())
    except KeyboardInterrupt:
        raise
    except BaseException:
        words = ""
    name = type(error).__name__
    return f"{name}: {words[:200]}" if words else name


def _learner_line(error: BaseException, answer: Any) -> str:
    """The last line of the learner's own file or cell in the traceback, as ``3: return n / 0``; "" if none."""
    own = _files_of(answer)
    found = ""
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name in own or "ipykernel_" in name or name.startswith("<ipython-input"):
            text = linecache.getline(name, traceback.tb_lineno).strip()
            found = f"{traceback.tb_lineno}: {text}" if text else str(traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _files_of(answer: Any) -> set[str]:
    if isinstance(answer, type):
        methods = (getattr(value, "__func__", value) for value in vars(answer).values())
        return {m.__code__.co_filename for m in methods if isinstance(m, types.FunctionType)}
    code = getattr(getattr(answer, "__func__", answer), "__code__", None)
    return {code.co_filename} if code is not None else set()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in this thread when the body takes longer: by a signal in the main thread (which also
    wakes a sleep), elsewhere between two byte codes. It is raised again each second, for code that swallows it."""
    main = threading.current_thread() is threading.main_thread()
    stop = _limit_by_signal(seconds) if main and hasattr(signal, "setitimer") else _limit_by_thread(seconds)
    try:
        yield
    finally:
        stop()


def _limit_by_signal(seconds: float) -> Callable[[], None]:
    def ring(number: int, frame: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)

    def stop() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    return stop


def _limit_by_thread(seconds: float) -> Callable[[], None]:
    ended = threading.Event()
    target = ctypes.c_ulong(threading.get_ident())

    def ring() -> None:
        wait = seconds
        while not ended.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(target, ctypes.py_object(OutOfTimeError))
            wait = 1.0

    threading.Thread(target=ring, daemon=True).start()
    return ended.set


def foreign_module(answer: Any, allowed: Sequence[str]) -> str:
    """Return the first module that the answer uses and may not, "" if there is none.

    Looks at the answer's own module, at its base classes, at `import` in its code and at the modules, functions
    and classes its code names, and follows functions and classes of the learner's own module. Where a package is
    named of which only parts are allowed, what counts is the names that the code may take from it. This keeps an
    honest learner from handing in servelab's own solution by accident; the grader does not rely on it.
    """
    seen: set[int] = set()
    home = _module_of(answer)

    def bad(name: str) -> bool:
        public = name.lstrip("_")  # heapq's functions say that they come from _heapq
        return name not in ("builtins", home) and not any(f"{public}.".startswith(f"{a}.") for a in allowed)

    def is_way(thing: Any) -> bool:
        """Whether `thing` is a package that is not allowed itself and holds a module that is."""
        is_module = isinstance(thing, types.ModuleType)
        return is_module and bad(thing.__name__) and any(one.startswith(f"{thing.__name__}.") for one in allowed)

    def taken(function: Any) -> list[Any]:
        """What a function's code names; instead of a package on the way, whatever the code may take from it."""
        named, names = _named(function)
        for thing in named:  # grows: a package may hold the next one
            if is_way(thing):
                named += [vars(thing)[name] for name in sorted(names) if name in vars(thing)]
        return [thing for thing in named if not is_way(thing)]

    def look(thing: Any) -> str:
        if id(thing) in seen:
            return ""
        seen.add(id(thing))
        name = thing.__name__ if isinstance(thing, types.ModuleType) else _module_of(thing)
        if bad(name):
            return name
        if name != home:
            return ""
        parts = [*thing.__mro__[:-1], *vars(thing).values()] if isinstance(thing, type) else taken(thing)
        return next(filter(None, map(look, parts)), "")

    if home.partition(".")[0] == "servelab":
        return home
    return look(answer)


def _module_of(thing: Any) -> str:
    own = getattr(thing, "__module__", None)
    return own if isinstance(own, str) else str(type(thing).__module__)


def _named(thing: Any) -> tuple[list[Any], set[str]]:
    """What a function's code names: modules it imports, globals it reads, what it closes over; unwraps methods.

    And the names of all attributes that it reads or imports, whatever they are attributes of.
    """
    inner = ("__func__", "__wrapped__", "fget", "func")
    function = next((getattr(thing, name) for name in inner if hasattr(thing, name)), thing)
    if not isinstance(function, types.FunctionType):
        return ([function] if function is not thing else []), set()
    found: list[Any] = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        instructions = list(dis.get_instructions(code))
        for instruction, after in itertools.pairwise(instructions):
            name = instruction.argval
            if instruction.opname == "IMPORT_NAME":
                found.append(sys.modules.get(name) or types.ModuleType(name))
                top = name.partition(".")[0]
                if after.opname != "IMPORT_FROM" and top in sys.modules:  # `import a.b` gives the code all of a
                    found.append(sys.modules[top])
            elif instruction.opname in ("IMPORT_FROM", "LOAD_ATTR", "LOAD_METHOD"):
                names.add(name)
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in function.__globals__:
                found.append(function.__globals__[name])
    return found, names


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
