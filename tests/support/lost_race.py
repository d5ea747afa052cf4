"""LeakSanitizer of clang 14 looks at threads while they end, behind the end of the tool, and crashes at times."""
import re

CRASH = re.compile(r"Tracer caught signal 11: .*\n==\d+==LeakSanitizer has encountered a fatal error.(.*\n)*")
seen = 0  # crashes


def without_lost_race(status, errors):
    """What a tool has ended with and said; where that is lost, it was 0 if it has said no error, and else unknown."""
    global seen
    if status != 1 or not isinstance(errors, str) or not CRASH.search(errors):
        return status, errors
    seen += 1
    said = CRASH.sub("", errors)
    return 1 if "error: " in said else 0, said
