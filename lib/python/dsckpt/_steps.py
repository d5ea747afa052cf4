"""Conversions in steps (``--emit-plan``, ``dsckpt work``, ``dsckpt commit``) as tasks of an engine: of anything that
runs a function somewhere, as concurrent.futures.Executor does. The tasks see one file system; whoever calls need not.
"""
import os

from ._errors import CorruptError, InconsistentError, UnsupportedError, UsageError, warn
from ._tool import run, shown

GROUP_BYTES = 4 << 30  # of one task, about
MOST_TRIES = 3  # of one task, where another machine may do better
AT_FAULT = (CorruptError, InconsistentError, UnsupportedError, UsageError)  # what all machines find the same


def run_in_steps(tool, paths, options, progress, executor, engine, engine_options):
    """The result of the tool's command, as _tool.run() returns it. Nothing is left of a conversion that fails or is
    cancelled, unless ``resume=True`` keeps what was done."""
    executor = _executor_of(executor, engine, engine_options)
    keeps = bool(options.get("resume"))
    with shown(tool[0], progress) as report:
        return _Conversion(executor, report, keeps).run(tool, paths, {**options, "resume": None})


def _executor_of(executor, engine, engine_options):
    if engine is None:
        if engine_options is not None:
            raise UsageError("engine_options go with engine", hint='engine="ray"')
        if not callable(getattr(executor, "submit", None)):
            raise UsageError(f"executor has submit(), as concurrent.futures has it, and not {type(executor).__name__}")
        return executor
    if executor is not None:
        raise UsageError("give executor or engine, not both")
    if engine != "ray":
        raise UsageError(f"there is no engine {engine!r}",
                         hint='"ray" is one; others are given by executor, such as Dask\'s client.get_executor()')
    return _Ray(engine_options or {})


class _Ray:
    """Ray's tasks as an executor. Their retries are for machines that are lost, and are Ray's own."""

    def __init__(self, options):
        try:
            import ray
        except ImportError:
            raise UsageError('engine="ray" needs Ray', hint="pip install dsckpt[ray]") from None
        if not ray.is_initialized():
            ray.init()
        self._task = ray.remote(_step).options(**{"max_retries": MOST_TRIES, **options})

    def submit(self, _, *arguments):
        return self._task.remote(*arguments).future()


def _step(folder, tool, paths, options):
    """A task: one command of a tool, called in `folder`."""
    return run(tool, paths, options, False, warns=False, folder=folder)


class _Conversion:

    def __init__(self, executor, report, keeps):
        self._executor = executor
        self._report = report
        self._keeps = keeps
        self._folder = os.getcwd()
        self._tasks = set()  # under way

    def run(self, tool, paths, options):
        planned = None
        try:
            planned = self._call(tool, paths, {**options, "emit_plan": True})["steps"]
            self._work(planned, {"threads": options.get("threads"), "io_class": options.get("io_class")})
            done = self._call(["ckpt-plan", "commit"], [planned["folder"]], {"threads": options.get("threads")})
        except BaseException:
            for task in self._tasks:
                task.cancel()
            if planned is not None and not self._keeps:
                self._abandon(planned["folder"])
            raise
        warn(dict.fromkeys(done["notes"]))
        return done

    def _submit(self, tool, paths, options):
        task = self._executor.submit(_step, self._folder, tool, [os.fspath(path) for path in paths], options)
        self._tasks.add(task)
        return task

    def _call(self, tool, paths, options):
        for attempt in range(1, MOST_TRIES + 1):
            task = self._submit(tool, paths, options)
            try:
                return task.result()
            except AT_FAULT:
                raise
            except Exception:
                if attempt == MOST_TRIES:
                    raise
            finally:
                self._tasks.discard(task)

    def _work(self, planned, options):
        """All portions, in groups that follow each other; one that was lost is begun again."""
        from concurrent.futures import FIRST_COMPLETED, wait
        workers = getattr(self._executor, "_max_workers", None) or 4
        count = min(planned["portions"], max(-(-planned["bytes"] // GROUP_BYTES), 2 * workers))
        done = 0

        def begin(share, tries):
            task = self._submit(["ckpt-plan", "work"], [planned["folder"]],
                                {**options, "share": f"{share}/{count}", "only_share": True})
            return {task: (share, tries)}

        shares = {}
        for share in range(count):
            shares.update(begin(share, 1))
        while shares:
            for task in wait(shares, return_when=FIRST_COMPLETED).done:
                share, tries = shares.pop(task)
                self._tasks.discard(task)
                try:
                    done += task.result()["bytes_done"]
                except AT_FAULT:
                    raise
                except Exception:
                    if tries == MOST_TRIES:
                        raise
                    shares.update(begin(share, tries + 1))
            if self._report:
                self._report(min(done, planned["bytes"]), planned["bytes"])

    def _abandon(self, folder):
        """By a task; or here, where the engine is gone."""
        try:
            self._executor.submit(_step, self._folder, ["ckpt-plan", "abandon"], [folder], {}).result()
        except Exception:
            if os.path.isdir(folder):
                run(["ckpt-plan", "abandon"], [folder], {}, False, warns=False)
