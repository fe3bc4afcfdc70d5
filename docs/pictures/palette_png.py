"""Write a picture with at most 256 colours, a third as large. The browser that took it finds the colours."""

import base64
import struct
import zlib
from typing import Any

# The most frequent colours are kept, then those that differ most from them, such as that of one small icon. Every other
# pixel gets the nearest colour.
REDUCE = """
async (source) => {
  const picture = await createImageBitmap(await (await fetch(`data:image/png;base64,${source}`)).blob());
  const { width, height } = picture;
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(canvas.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const one of pixels) counts.set(one, (counts.get(one) ?? 0) + 1);
  const split = (one) => [one & 255, (one >> 8) & 255, (one >> 16) & 255];
  const measure = (one, other) => one.reduce((sum, value, part) => sum + (value - other[part]) ** 2, 0);
  const ranked = [...counts].map(([one, count]) => ({ one, count, colour: split(one), gap: Infinity }));
  ranked.sort((a, b) => b.count - a.count);
  const kept = ranked.splice(0, 96);
  for (let last = kept; ranked.length > 0 && kept.length < 256; kept.push(...last)) {
    for (const rest of ranked) rest.gap = Math.min(rest.gap, ...last.map(({ colour }) => measure(rest.colour, colour)));
    const weigh = ({ gap, count }) => gap * Math.log2(1 + count);
    const next = ranked.reduce((best, rest) => (weigh(rest) > weigh(best) ? rest : best));
    last = ranked.splice(ranked.indexOf(next), 1);
  }
  const palette = kept.map(({ one }) => one);
  const known = kept.map(({ colour }) => colour);
  const places = new Map(palette.map((one, place) => [one, place]));
  const find = (one) => {
    const wanted = split(one);
    let [best, least] = [0, Infinity];
    known.forEach((colour, place) => {
      const distance = measure(colour, wanted);
      if (distance < least) [best, least] = [place, distance];
    });
    places.set(one, best);
    return best;
  };
  const indexes = pixels.reduce((text, one, at) => {
    text[at] = places.get(one) ?? find(one);
    return text;
  }, new Uint8Array(pixels.length));
  let text = "";
  for (let at = 0; at < indexes.length; at += 8192) text += String.fromCharCode(...indexes.subarray(at, at + 8192));
  return { width, height, palette: known, indexes: btoa(text) };
}
"""


async def reduce_colours(page: Any, picture: bytes) -> bytes:
    """Turn a PNG into one with a palette. `page` is any page of a browser without a policy for its content."""
    found = await page.evaluate(REDUCE, base64.b64encode(picture).decode())
    width, height, indexes = found["width"], found["height"], base64.b64decode(found["indexes"])
    rows = b"".join(b"\0" + indexes[at : at + width] for at in range(0, len(indexes), width))
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": bytes(value for colour in found["palette"] for value in colour),
        b"IDAT": zlib.compress(rows, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(_write_part(kind, data) for kind, data in parts.items())


def _write_part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
