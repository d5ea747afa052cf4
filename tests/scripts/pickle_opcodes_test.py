#!/usr/bin/env python3
"""Holds the list of opcodes that tests/unit/opcodes_test.cpp goes by against CPython's pickletools.

    tests/scripts/pickle_opcodes_test.py [--write]     --write makes the list anew
"""

import os
import pickletools
import sys
import unittest

LIST = os.path.join(os.path.dirname(__file__), "..", "unit", "pickle_opcodes.inc")


def lines():
    yield "// Made of CPython's pickletools.opcodes by tests/scripts/pickle_opcodes_test.py --write:"
    yield "// opcode, name, name of the argument, and its size as ArgumentDescriptor.n has it."
    for opcode in sorted(pickletools.opcodes, key=lambda opcode: opcode.code):
        name, size = (opcode.arg.name, opcode.arg.n) if opcode.arg else ("", 0)
        yield f'{{0x{ord(opcode.code):02x}, "{opcode.name}", "{name}", {size}}},'


class PickleOpcodes(unittest.TestCase):
    def test_the_list_is_pickletools(self):
        with open(LIST, encoding="ascii") as file:
            self.assertEqual(list(lines()), file.read().splitlines())

    def test_sizes_mean_what_the_unit_test_takes_them_for(self):
        self.assertEqual(pickletools.UP_TO_NEWLINE, -1)
        self.assertEqual(pickletools.TAKEN_FROM_ARGUMENT1, -2)
        self.assertEqual(pickletools.TAKEN_FROM_ARGUMENT4, -3)  # signed
        self.assertEqual(pickletools.TAKEN_FROM_ARGUMENT4U, -4)
        self.assertEqual(pickletools.TAKEN_FROM_ARGUMENT8U, -5)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        with open(LIST, "w", encoding="ascii") as written:
            written.writelines(line + "\n" for line in lines())
    else:
        unittest.main()
