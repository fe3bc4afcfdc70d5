"""Fetch weights for the embedded model, the small one by default: `python examples/weights.py [local|URL|PATH]`."""

import sys

from treadle.errors import TreadleError
from treadle.models.local import weights


def show(message: str, done: float, total: float) -> None:
    share = f" {done / total:4.0%}" if total else ""
    print(f"\r{message}{share} ", end="", flush=True, file=sys.stderr)


if __name__ == "__main__":
    source = sys.argv[1] if len(sys.argv) > 1 else "local"
    known = weights.find_weights(None) if source == "local" else None
    try:
        path = known or weights.pull_weights(source, show if sys.stderr.isatty() else None)
    except TreadleError as error:
        sys.exit(f"{error}")
    print(f"weights: {path}")
