"""Conversions and reports in steps (``--emit-plan``, ``dsckpt work``, ``dsckpt commit``) as tasks of an engine. An engine is
anything that runs a function somewhere, like concurrent.futures.Executor. The tasks share a file system, which the
caller need not have.
"""
import os
import secrets

from ._errors import CorruptError, InconsistentError, UnsupportedError, UsageError, warn
from ._tool import run, shown

GROUP_BYTES = 4 << 30  # of one task, about
MOST_TRIES = 3  # of one task, since another machine may succeed
AT_FAULT = (CorruptError, InconsistentError, UnsupportedError, UsageError)  # errors that are the same on all machines


def run_in_steps(tool, paths, options, progress, executor, engine, engine_options):
    """The result of the tool's command, as _tool.run() returns it. A conversion that fails or is cancelled leaves
    nothing, unless ``resume=True`` keeps its progress."""
    executor = _executor_of(executor, engine, engine_options)
    keeps = bool(options.get("resume"))
    with shown(tool[0], progress) as report:
        steps = _Run(executor, report)
        try:
            results = steps(tool, paths, {**options, "resume": None, "emit_plan": True})
        except BaseException:
            if not keeps:
                steps.abandon()
            raise
    warn(dict.fromkeys(results[-1]["notes"]))
    return results[-1]


def report_in_steps(tool, paths, options, progress, executor, engine, engine_options):
    """The results of a command that only reads, one for each path. Meanwhile the plan and the answers are in a new
    folder in the current one."""
    executor = _executor_of(executor, engine, engine_options)
    folder = os.path.join(os.getcwd(), f".dsckpt-steps-{secrets.token_hex(8)}")
    with shown(tool[0], progress) as report:
        steps = _Run(executor, report)
        try:
            results = steps(tool, paths, {**options, "emit_plan": folder})
        finally:
            steps.abandon()
    warn(dict.fromkeys(note for result in results for note in result["notes"]))
    return results


def _executor_of(executor, engine, engine_options):
    if engine is None:
        if engine_options is not None:
            raise UsageError("engine_options go with engine", hint='engine="ray"')
        if not callable(getattr(executor, "submit", None)):
            raise UsageError(f"executor needs a submit() as in concurrent.futures; {type(executor).__name__} has none")
        return executor
    if executor is not None:
        raise UsageError("give executor or engine, not both")
    if engine != "ray":
        raise UsageError(f"there is no engine {engine!r}",
                         hint='"ray" is one; others are given by executor, such as Dask\'s client.get_executor()')
    return _Ray(engine_options or {})


class _Ray:
    """Ray's tasks as an executor. Ray itself repeats tasks of lost machines."""

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
    """A task: one command of a tool, called in `folder`. Returns the list of its results."""
    return run(tool, paths, options, False, several=True, warns=False, folder=folder)


class _Run:
    """The steps of one command."""

    def __init__(self, executor, report):
        self._executor = executor
        self._report = report
        self._folder = os.getcwd()
        self._planned = None  # the folder of the plan
        self._tasks = set()  # running tasks

    def __call__(self, tool, paths, options):
        """Returns the command's results. An exception cancels the tasks that have not begun."""
        try:
            planned = self._call(tool, paths, options)[-1]["steps"]
            self._planned = planned["folder"]
            self._work(planned, {"threads": options.get("threads"), "io_class": options.get("io_class")})
            return self._call(["ckpt-plan", "commit"], [self._planned], {"threads": options.get("threads")})
        except BaseException:
            for task in self._tasks:
                task.cancel()
            raise

    def abandon(self):
        """Removes the plan, as a task, or in this process if the engine is gone."""
        if self._planned is None:
            return
        try:
            self._executor.submit(_step, self._folder, ["ckpt-plan", "abandon"], [self._planned], {}).result()
        except Exception:
            if os.path.isdir(self._planned):
                run(["ckpt-plan", "abandon"], [self._planned], {}, False, warns=False)

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
        """Runs all portions, in consecutive groups. A lost group starts again."""
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
                    done += task.result()[-1]["bytes_done"]
                except AT_FAULT:
                    raise
                except Exception:
                    if tries == MOST_TRIES:
                        raise
                    shares.update(begin(share, tries + 1))
            if self._report:
                self._report(min(done, planned["bytes"]), planned["bytes"])
