"""LeakSanitizer of clang 14 looks at ending threads after the end of the tool, and sometimes crashes."""
import re

CRASH = re.compile(r"Tracer caught signal 11: .*\n==\d+==LeakSanitizer has encountered a fatal error.(.*\n)*")
seen = 0  # crashes


def without_lost_race(status, errors):
    """The tool's status and messages. If the status is lost, it was 0 if there is no error message, and else
    unknown."""
    global seen
    if status != 1 or not isinstance(errors, str) or not CRASH.search(errors):
        return status, errors
    seen += 1
    said = CRASH.sub("", errors)
    return 1 if "error: " in said else 0, said
