"""Counts as the benchmarks' command lines have them."""
import argparse
import re


def parse_count(text):
    """400M -> 400000000. Suffixes k, M and B."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMB]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"not a count: {text} (for example 400M)")
    return round(float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[match[2]])


def count(text):
    """Leaves it as it was written."""
    parse_count(text)
    return text


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"not a positive number: {text}")
    return int(text)
