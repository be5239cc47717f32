"""Small pictures that claim to be enormous."""

import io
import struct
import zlib

from PIL import Image

LARGE_WEBP = bytes.fromhex("524946461a000000574542505650384c0d0000002fb7e42d19071011118888fe0700")
"""9400 x 9400 transparent pixels."""


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    """A PNG of one grey level, with further chunks before its pixels."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    packer = zlib.compressobj(9)
    pixels = packer.compress(bytes(min((width // 8 + 2) * height, 2**24))) + packer.flush()
    end = png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + end


def bombs(side: int = 100_000) -> dict[str, bytes]:
    """Small files that claim to be enormous."""
    zeros = zlib.compress(bytes(2**26), 9)
    jpeg, gif, webp, tiff, bmp = (io.BytesIO() for _ in range(5))
    for file, name in ((jpeg, "jpeg"), (gif, "gif"), (webp, "webp"), (tiff, "tiff"), (bmp, "bmp")):
        Image.new("RGB", (16, 16)).save(file, name)
    head = jpeg.getvalue().index(b"\xff\xc0") + 5
    most = struct.pack(">HH", 0xFFFF, 0xFFFF)
    still = webp.getvalue()
    canvas = b"VP8X" + struct.pack("<IB3x", 10, 0) + 2 * (side - 1).to_bytes(3, "little")
    webp_body = b"WEBP" + canvas + still[12:]
    small = gif.getvalue()
    frame = small[small.index(b"\x2c") : -1]
    wide = tiff.getvalue().replace(struct.pack("<HHIHH", 256, 3, 1, 16, 0), struct.pack("<HHII", 256, 4, 1, side))
    wide = wide.replace(struct.pack("<HHIHH", 257, 3, 1, 16, 0), struct.pack("<HHII", 257, 4, 1, side))
    return {
        "large.webp": LARGE_WEBP,
        "bomb.png": png(side, side),
        "large.png": png(13_000, 13_000),
        "still.png": png(9_000, 9_000),
        "text.png": png(16, 16, *[png_chunk(b"zTXt", b"a\0\0" + zeros)] * 4),
        "international.png": png(16, 16, png_chunk(b"iTXt", b"a\0\1\0\0\0" + zeros)),
        "colours.png": png(16, 16, png_chunk(b"iCCP", b"a\0\0" + zeros)),
        "bomb.jpg": jpeg.getvalue()[:head] + most + jpeg.getvalue()[head + 4 :],
        "bomb.gif": small[:6] + struct.pack("<HH", 65535, 65535) + small[10:],
        "frames.gif": small[:-1] + frame * 20_000 + b";",
        "bomb.webp": b"RIFF" + struct.pack("<I", len(webp_body)) + webp_body,
        "bomb.tif": wide,
        "bomb.bmp": bmp.getvalue()[:18] + struct.pack("<ii", side, side) + bmp.getvalue()[26:],
        "bomb.ppm": b"P6 %d %d 255\n" % (side, side) + bytes(100),
    }
