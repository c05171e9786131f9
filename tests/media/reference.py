"""Writes tests/data/media: odd images and videos, and what transformers' own processors make of them.

Run it where torchvision is installed beside transformers (its C extension is not needed):

    python tests/media/reference.py

transformers 5.24.0, torch 2.13.0, torchvision 0.28.0, Pillow 13.0.0 and PyAV 18.1.0 wrote the files that are committed.
Budgets are small, so that the files are.
"""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image
from torch import library

namespace = library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):  # torchvision registers fakes for them as it loads
    namespace.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision.transforms.v2 import functional  # noqa: E402
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor  # noqa: E402
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor  # noqa: E402
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "media"
COMMON = {"patch_size": 16, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.5, 0.25, 0.3]}
IMAGE = {**COMMON, "size": {"shortest_edge": 2048, "longest_edge": 4096}}
VIDEO = {**COMMON, "size": {"shortest_edge": 4096, "longest_edge": 12288}, "cap_pixels_per_frame": False}
SIZES = (
    ((37, 53), (64, 96)),
    ((64, 96), (37, 53)),
    ((1, 1), (32, 32)),
    ((1, 70), (32, 64)),
    ((90, 3), (96, 32)),
    ((31, 33), (31, 64)),
    ((300, 200), (32, 32)),
)


def scene(height: int, width: int, channels: int, shift: int = 0) -> np.ndarray:
    """Waves, edges and a little noise: what a resize rounds in every way, yet packs well."""
    y, x = np.mgrid[:height, :width]
    layers = [127 + 127 * np.sin((x * (c + 1) + y * 2 + shift * 9) / 11) for c in range(channels)]
    pixels = np.stack(layers, -1)
    pixels[height // 3 : height // 2 + 1, : width // 2] = 255
    pixels[(x + y) % 13 == 0] = 0
    return pixels.astype(np.uint8)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def images() -> dict[str, bytes]:
    rgb, rgba = Image.fromarray(scene(60, 100, 3)), Image.fromarray(scene(60, 100, 4))
    grey = Image.fromarray(scene(60, 100, 1)[..., 0])
    deep = scene(60, 100, 1)[..., 0].astype(np.uint16)
    turned = Image.Exif()
    turned[0x0112] = 6
    palette = rgb.quantize(17)
    moving = [Image.fromarray(scene(60, 100, 3, shift)) for shift in range(3)]
    return {
        "one_pixel.png": encoded(rgb.crop((5, 5, 6, 6)), "PNG"),
        "one_row.png": encoded(Image.fromarray(scene(1, 200, 3)), "PNG"),
        "one_column.png": encoded(Image.fromarray(scene(200, 1, 3)), "PNG"),
        "large.png": encoded(Image.fromarray(scene(211, 317, 3)), "PNG"),
        "palette.png": encoded(palette, "PNG"),
        "palette_transparent.png": encoded(palette, "PNG", transparency=3),
        "palette_alpha.png": encoded(palette, "PNG", transparency=bytes(range(0, 255, 15))),
        "rgba.png": encoded(rgba, "PNG"),
        "grey_alpha.png": encoded(Image.fromarray(scene(60, 100, 2), "LA"), "PNG"),
        "grey_transparent.png": encoded(grey, "PNG", transparency=255),
        "rgb_transparent.png": encoded(rgb, "PNG", transparency=(255, 255, 255)),
        "bilevel.png": encoded(grey.convert("1"), "PNG"),
        "deep.png": encoded(Image.fromarray(deep * 257), "PNG"),
        "deep_dark.png": encoded(Image.fromarray(deep * 2), "PNG"),
        "animated.png": encoded(moving[0], "PNG", save_all=True, append_images=moving[1:]),
        "interlaced_size.png": encoded(rgb.resize((33, 31)), "PNG"),
        "turned.jpg": encoded(rgb, "JPEG", exif=turned.tobytes()),
        "cmyk.jpg": encoded(rgb.convert("CMYK"), "JPEG", quality=90),
        "grey.jpg": encoded(grey, "JPEG"),
        "progressive.jpg": encoded(rgb, "JPEG", progressive=True),
        "lossy.webp": encoded(rgb, "WEBP"),
        "alpha.webp": encoded(rgba, "WEBP", lossless=True),
        "animated.webp": encoded(moving[0], "WEBP", save_all=True, append_images=moving[1:]),
    }


def film(
    form: str,
    codec: str,
    count: int,
    size: tuple[int, int] = (48, 80),
    rate: int = 30,
    times: list[int] | None = None,
    **options: str,
) -> bytes:
    """A clip whose every frame differs; ``times`` in milliseconds make its rate vary."""
    out = io.BytesIO()
    with av.open(out, "w", format=form, options=options) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt, stream.gop_size = *size, "yuv420p", 12
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(count):
            frame = av.VideoFrame.from_ndarray(scene(*size, 3, index), "rgb24")
            if times:
                frame.pts, frame.time_base = times[index], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


def videos() -> dict[str, bytes]:
    return {
        "even.mp4": film("mp4", "libx264", 60),
        "odd.mp4": film("mp4", "libx264", 83),
        "two_frames.mp4": film("mp4", "mpeg4", 2),
        "varying.mp4": film("mp4", "libx264", 45, times=[3 * i * i for i in range(45)]),
        "fragments.mp4": film("mp4", "libx264", 31, movflags="frag_keyframe+empty_moov"),
        "slow.mov": film("mov", "libx264", 9, rate=3),
        "short.mkv": film("matroska", "libx264", 7),
        "no_duration.webm": film("webm", "libvpx", 45, live="1"),
        "narrow.webm": film("webm", "libvpx-vp9", 40, size=(16, 128)),
    }


def levels(values: torch.Tensor) -> np.ndarray:
    """Normalised patches [N, C * rest] as the pixels that they came from."""
    mean, std = (np.asarray(COMMON[key])[:, None] for key in ("image_mean", "image_std"))
    channels = values.numpy().reshape(len(values), 3, -1)
    return np.rint((channels * std + mean) * 255).astype(np.uint8).reshape(len(values), -1)


def write(name: str, arrays: dict[str, Any]) -> None:
    np.savez_compressed(DATA / name, **arrays)


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    rng, resized = np.random.default_rng(0), {}
    for index, (source, target) in enumerate(SIZES):
        pixels = rng.choice(np.array([0, 3, 128, 255], np.uint8), (*source, 3))
        planes = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        mode = functional.InterpolationMode.BICUBIC
        out = functional.resize(planes, list(target), interpolation=mode, antialias=True)
        resized |= {f"{index}/source": pixels, f"{index}/target": out.permute(1, 2, 0).numpy()}
    write("resize.npz", resized)

    processor, found = Qwen2VLImageProcessor(**IMAGE), {}
    for name, data in images().items():
        out = processor(images=[Image.open(io.BytesIO(data))], return_tensors="pt")
        found |= {f"{name}/file": np.frombuffer(data, np.uint8), f"{name}/grid": out["image_grid_thw"][0].numpy()}
        found[f"{name}/pixels"] = levels(out["pixel_values"])
    write("images.npz", found)

    processor, found = Qwen3VLVideoProcessor(**VIDEO), {}
    for name, data in videos().items():
        with av.open(io.BytesIO(data)) as container:
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
            metadata = {"total_num_frames": len(frames), "fps": float(container.streams.video[0].average_rate)}
        out = processor(videos=[frames], video_metadata=[metadata], return_metadata=True, return_tensors="pt")
        read = out["video_metadata"][0]
        found |= {f"{name}/file": np.frombuffer(data, np.uint8), f"{name}/grid": out["video_grid_thw"][0].numpy()}
        found[f"{name}/pixels"] = levels(out["pixel_values_videos"])
        found[f"{name}/indices"] = np.array(read.frames_indices)
        found[f"{name}/seconds"] = Qwen3VLProcessor._calculate_timestamps(None, read.frames_indices, read.fps, 2)
    write("videos.npz", found)


if __name__ == "__main__":
    main()
