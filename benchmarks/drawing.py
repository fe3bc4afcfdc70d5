#!/usr/bin/env python3
"""Measure the CPU that drawing an answer on a terminal costs for 1 000 tokens (4 characters each).

    python benchmarks/drawing.py [--times 5]

`feed` parses the text and draws finished blocks. `feed and redraw` also draws the open block after every token.
`redraw at 25 Hz` draws it as often as a terminal does when a model writes 100 tokens a second.
"""

import argparse
import time

from treadle.cli.draw.glyphs import Theme
from treadle.cli.draw.markdown_stream import MarkdownStream

ANSWER = """## What is wrong

The count of tokens is **wrong** for Japanese, because `count()` splits the text at spaces. Two callers use it, and
both of them show the gauge of the *context* to the user, who then compacts too late.

- `cli/status.py` shows it
- `server/usage.py` sends it to the [page](https://example.org/usage)

| source | used for | off by |
|---|---|---:|
| provider's usage | every finished turn | 0 % |
| estimate | unknown models | 8 % |

```python
def count(text: str, model: str = "local") -> int:
    if not text:
        return 0  # some models say 1
    return len(tokenizer(model).encode(text))
```

"""


def measure(text, every):
    """Return the CPU in ms for 1 000 tokens. The open block is drawn after `every` tokens, or never with 0."""
    stream = MarkdownStream(Theme(has_colour=True, has_style=True), 80)
    began = time.process_time()
    for number, start in enumerate(range(0, len(text), 4)):
        stream.feed(text[start : start + 4])
        if every and number % every == 0:
            stream.draw_open()
    stream.end()
    return (time.process_time() - began) * 1e3 * 1000 / (len(text) / 4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    text = ANSWER * 10
    measure(text, 1)  # the lexers are loaded once
    for name, every in (("feed", 0), ("redraw at 25 Hz", 4), ("feed and redraw", 1)):
        print(f"| {name} | {min(measure(text, every) for _ in range(times)):.0f} ms |")


if __name__ == "__main__":
    main()
