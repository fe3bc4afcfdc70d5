"""`python -m treadle.server`: what `treadle serve` does, without the command line around it."""

from __future__ import annotations

import argparse
import sys

from treadle.app.event_loop import run_in_fast_loop
from treadle.app.settings import load_settings
from treadle.errors import TreadleError
from treadle.server.serve import GRACE_SECONDS, ServeOptions, serve


def main() -> int:
    """Serve until a signal comes; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m treadle.server", description=__doc__)
    for name in ("model", "base-url", "api-key-env", "store", "workspace"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8420)
    parser.add_argument("--token-file", default="")
    parser.add_argument("--grace", type=float, default=GRACE_SECONDS)
    parser.add_argument("--allow-root", action="store_const", const=True)
    args = parser.parse_args()
    names = ("model", "base_url", "api_key_env", "store", "workspace", "allow_root")
    flags = {name: getattr(args, name) for name in names}
    options = ServeOptions(host=args.host, port=args.port, token_file=args.token_file, grace=args.grace)
    try:
        run_in_fast_loop(serve(load_settings(flags).settings, options))
    except TreadleError as error:
        sys.stderr.write(f"treadle: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
