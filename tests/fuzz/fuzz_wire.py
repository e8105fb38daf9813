"""Coverage-guided bytes for every decoder and reader: `cd tests && python -m fuzz.fuzz_wire TARGET -runs=N`.

A target is a protocol or a reader of `targets`. An input is a seed for the mutations that the other tests use, followed
by bytes to decode as they are: the first finds deep fields, the second the parser's own corners.
"""

import random
import sys

import atheris

with atheris.instrument_imports(include=["rolltape.wire", "rolltape.engines", "rolltape.capture", "rolltape.sse"]):
    from fuzz import mutate, targets


def target(name: str):
    """What takes one input."""
    if name in targets.PROTOCOLS:
        seeds, make, take = targets.bodies(name), mutate.body, targets.decode
    else:
        seeds, make, take = targets.answers(name), mutate.answer, targets.read

    def one(data: bytes) -> None:
        take(name, make(seeds, random.Random(data[:8])))
        take(name, data[8:])

    return one


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    atheris.Setup(sys.argv, target(chosen))
    atheris.Fuzz()
