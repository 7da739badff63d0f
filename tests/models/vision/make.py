"""Draws small pictures and writes what PIL and OpenCV make of them, for the tests of the native ops.

Run in this folder with Pillow, OpenCV and numpy; overwrites everything beside it. `NAME.rgb` holds
the pixels that `NAME.EXTENSION` is to be decoded to; `resize_*.rgb` and `.f32` what the op of that
case is to make of `resize.rgb`.
"""

import io
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageOps

HERE = Path(__file__).parent
# Odd, so that no block of a codec ends with the picture.
WIDTH, HEIGHT = 29, 19


def draw(width=WIDTH, height=HEIGHT):
    """A soft picture that has no symmetry, so that a wrong turn shows."""
    y, x = np.mgrid[0:height, 0:width] / [[[height]], [[width]]]
    planes = [40 + 200 * x, 230 - 180 * y, 60 + 90 * x + 90 * y]
    picture = Image.fromarray(np.stack(planes, -1).round().astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    pen.rectangle([2, 2, width // 3, height // 3], fill=(200, 30, 40))
    pen.ellipse([width // 2, height // 2, width - 3, height - 3], fill=(20, 60, 190))
    return picture


def opencv(data):
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def pil(data):
    picture = Image.open(io.BytesIO(data))
    return np.asarray(ImageOps.exif_transpose(picture).convert("RGBA").convert("RGB"))


def write(name, data, expected, also=None, within=0):
    """A file and its pixels; `also` is another decoder's result, to know that they agree."""
    if also is not None:
        apart = np.abs(expected.astype(int) - also.astype(int)).max()
        assert apart <= within, f"{name}: PIL and OpenCV are {apart} apart"
    (HERE / name).write_bytes(data)
    (HERE / name).with_suffix(".rgb").write_bytes(expected.tobytes())
    print(name, len(data), expected.shape)


def save(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def exif(orientation):
    tags = Image.Exif()
    tags[0x112] = orientation
    return tags.tobytes()


def jpegs():
    picture = draw()
    for name, options in {
        "jpeg_420": {"subsampling": 2},
        "jpeg_422": {"subsampling": 1},
        "jpeg_444": {"subsampling": 0},
        "jpeg_progressive": {"progressive": True},
        "jpeg_restarts": {"restart_marker_blocks": 1},
    }.items():
        data = save(picture, "JPEG", quality=90, **options)
        write(name + ".jpg", data, opencv(data), pil(data), 2)
    data = save(picture.convert("L"), "JPEG", quality=90)
    write("jpeg_gray.jpg", data, opencv(data), pil(data))
    # CMYK as Adobe writes it, all values inverted; OpenCV rounds differently.
    data = save(picture.convert("CMYK"), "JPEG", quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    write("jpeg_cmyk.jpg", data, expected, opencv(data), 2)
    for orientation in range(1, 9):
        data = save(picture, "JPEG", quality=90, exif=exif(orientation))
        write(f"jpeg_exif{orientation}.jpg", data, opencv(data), pil(data), 2)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def interlaced(picture):
    """PIL reads Adam7 but does not write it."""
    pixels = np.asarray(picture)
    height, width, _ = pixels.shape
    rows = b""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)]
    for x, y, dx, dy in [*passes, (0, 1, 1, 2)]:
        for row in pixels[y::dy, x::dx]:
            rows += b"\0" + row.tobytes() if row.size else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*it) for it in chunks)


def pngs():
    picture = draw()
    alpha = Image.linear_gradient("L").resize((WIDTH, HEIGHT))
    clear = picture.copy()
    clear.putalpha(alpha)
    gray_alpha = picture.convert("L")
    gray_alpha.putalpha(alpha)
    palette = picture.quantize(11)
    for name, it, options in [
        ("png_rgb", picture, {}),
        ("png_gray", picture.convert("L"), {}),
        ("png_bits", picture.convert("1"), {}),
        ("png_palette", palette, {}),
        ("png_palette_alpha", palette, {"transparency": bytes(range(0, 220, 20))}),
        ("png_exif6", picture, {"exif": exif(6)}),
    ]:
        data = save(it, "PNG", optimize=True, **options)
        write(name + ".png", data, pil(data), opencv(data))
    for name, it in [("png_rgba", clear), ("png_gray_alpha", gray_alpha)]:
        data = save(it, "PNG", optimize=True)
        write(name + ".png", data, np.asarray(it.convert("RGBA"))[..., :3].copy(), opencv(data))
    data = interlaced(picture)
    write("png_interlaced.png", data, pil(data), opencv(data))
    # 16 bits: what is read has 8, the upper ones.
    lower = np.arange(WIDTH, dtype=np.uint16)[None, :, None]
    wide = np.asarray(picture).astype(np.uint16) * 256 + lower
    data = cv2.imencode(".png", wide[..., ::-1])[1].tobytes()
    write("png_rgb16.png", data, np.asarray(picture), opencv(data))
    data = cv2.imencode(".png", wide[..., 0])[1].tobytes()
    write("png_gray16.png", data, np.repeat(np.asarray(picture)[..., :1], 3, -1), opencv(data))
    frames = [picture.rotate(180), picture]
    data = save(picture, "PNG", save_all=True, append_images=frames, duration=40)
    write("apng.png", data, pil(data))


def webps():
    picture = draw()
    clear = picture.copy()
    clear.putalpha(Image.linear_gradient("L").resize((WIDTH, HEIGHT)))
    animated = {"save_all": True, "append_images": [picture.rotate(180), picture]}
    for name, it, options in [
        ("webp_lossy", picture, {"quality": 90}),
        ("webp_lossless", picture, {"lossless": True}),
        ("webp_exif8", picture, {"lossless": True, "exif": exif(8)}),
        ("webp_animated", picture, {"lossless": True, **animated}),
        ("webp_animated_lossy", picture, {"quality": 80, **animated}),
    ]:
        data = save(it, "WEBP", **options)
        write(name + ".webp", data, pil(data))
    for name, options in [
        ("webp_alpha", {"lossless": True}),
        ("webp_lossy_alpha", {"quality": 90}),
    ]:
        data = save(clear, "WEBP", exact=True, **options)
        expected = np.asarray(Image.open(io.BytesIO(data)))[..., :3].copy()
        write(name + ".webp", data, expected, opencv(data))


def others():
    (HERE / "gif.gif").write_bytes(save(draw(), "GIF"))


def resizes():
    picture = draw(61, 43)
    pen = ImageDraw.Draw(picture)
    pen.line([5, 38, 55, 6], fill=(255, 255, 255), width=2)
    (HERE / "resize.rgb").write_bytes(picture.tobytes())
    pixels = np.asarray(picture)

    def case(name, resized):
        (HERE / f"resize_{name}.rgb").write_bytes(np.ascontiguousarray(resized).tobytes())
        print("resize", name, np.asarray(resized).shape)

    # No edge of a new pixel meets the centre of an old one, where a box may take it or leave it.
    for name, kind in [
        ("bilinear", Image.BILINEAR),
        ("box", Image.BOX),
        ("lanczos", Image.LANCZOS),
        ("nearest", Image.NEAREST),
    ]:
        for to, (width, height) in [("down", (23, 19)), ("up", (80, 50))]:
            # Columns first, as fast_image_resize does it: it matters where lanczos overshoots.
            columns = picture.resize((picture.width, height), kind)
            case(f"{name}_{to}", columns.resize((width, height), kind))
    for name, size in [("down", (23, 19)), ("up", (80, 50))]:
        case(f"opencv_{name}", cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR))
    # A whole ratio, where a box is the area.
    case("opencv_area", cv2.resize(pixels[:42, :60], (20, 14), interpolation=cv2.INTER_AREA))

    # ImageNet's numbers into 40 x 32, planes of BGR, padded with 114: 40 / 61 makes 40 x 28.
    box = np.full((32, 40, 3), 114, np.float32)
    box[2:30] = np.asarray(picture.resize((40, 28), Image.BILINEAR))
    mean, std = np.array([103.53, 116.28, 123.675]), np.array([57.375, 57.12, 58.395])
    planes = ((box[..., ::-1] - mean) / std).transpose(2, 0, 1).astype("<f4")
    (HERE / "resize_letterbox.f32").write_bytes(planes.tobytes())


for part in (jpegs, pngs, webps, others, resizes):
    part()
