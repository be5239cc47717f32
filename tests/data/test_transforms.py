import pytest
import torch

from cgnl.data import transforms
from cgnl.data.transforms import generator, integer, uniform

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def picture(height: int, width: int) -> torch.Tensor:
    return torch.randint(256, (3, height, width), dtype=torch.uint8)


def test_generator_depends_on_its_place_alone():
    first = torch.rand(4, generator=generator(0, 3, 7))
    torch.rand(100)
    assert torch.equal(first, torch.rand(4, generator=generator(0, 3, 7)))
    others = [generator(1, 3, 7), generator(0, 4, 7), generator(0, 3, 8), generator(0, 37), generator(0, 7, 3)]
    assert not any(torch.equal(first, torch.rand(4, generator=other)) for other in others)


def test_draws_stay_within_their_bounds():
    source = generator(0)
    assert all(2 <= uniform(2, 3, source) < 3 for _ in range(200))
    assert {integer(1, 4, source) for _ in range(200)} == {1, 2, 3}


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (40, 1000), (1000, 40), (1, 1), (7, 5)], ids=str)
def test_random_box_lies_inside_and_keeps_its_limits(size):
    height, width = size
    for sample in range(300):
        box = transforms.random_box(height, width, generator(0, sample))
        assert 0 <= box.top <= box.top + box.height <= height
        assert 0 <= box.left <= box.left + box.width <= width
        assert min(box.height, box.width) > 0
        slack = 1 / box.height + 1 / box.width  # rounding to whole pixels
        assert 3 / 4 - slack <= box.width / box.height <= 4 / 3 + slack


def test_random_box_draws_areas_from_the_papers_range():
    areas = [
        box.height * box.width / 250_000
        for box in (transforms.random_box(500, 500, generator(0, i)) for i in range(4000))
    ]
    assert min(areas) < 0.1
    assert max(areas) > 0.95
    assert 0.45 < sum(area < 0.5 for area in areas) / len(areas) < 0.65


def test_random_box_of_too_large_an_area_is_the_largest_centred_part():
    assert transforms.random_box(300, 900, generator(0), area=(1.2, 1.25)) == transforms.Box(0, 250, 300, 400)
    assert transforms.random_box(900, 300, generator(0), area=(1.2, 1.25)) == transforms.Box(250, 0, 400, 300)
    assert transforms.random_box(300, 320, generator(0), area=(1.2, 1.25)) == transforms.Box(0, 0, 300, 320)


def test_random_crop_of_a_clip_is_that_of_a_picture():
    still = picture(48, 64)
    for sample in range(8):
        alone, flip = transforms.random_crop(still, generator(0, sample))
        clip, flips = transforms.random_crop(still.expand(5, 3, 48, 64), generator(0, sample))
        assert flips == flip
        assert all(torch.equal(frame, alone) for frame in clip)


def test_random_crop_is_the_random_box():
    pixels = picture(48, 64)
    box = transforms.random_box(48, 64, generator(0, 1), area=(0.1, 0.2))
    part, _ = transforms.random_crop(pixels, generator(0, 1), area=(0.1, 0.2))
    assert torch.equal(part, pixels[:, box.top : box.top + box.height, box.left : box.left + box.width])


def test_random_crop_flips_half_of_the_time():
    pixels = picture(8, 8)
    flips = [transforms.random_crop(pixels, generator(0, i))[1] for i in range(400)]
    assert 0.4 < sum(flips) / 400 < 0.6
    assert not any(transforms.random_crop(pixels, generator(0, i), flip=False)[1] for i in range(20))


@pytest.mark.parametrize("size", [1, 7, 16, 40])
def test_bilinear_weights_are_those_of_an_antialiased_resize(size):
    lengths = [1, 5, 16, 37, 40]
    flips = [False, True, False, True, False]
    weights = transforms.bilinear_weights(lengths, flips, size)
    assert weights.shape == (5, size, 40)
    for row, length, flip in zip(weights, lengths, flips, strict=True):
        line = torch.rand(1, 1, 1, length)
        expected = torch.nn.functional.interpolate(line, (1, size), mode="bilinear", antialias=True)[0, 0, 0]
        assert (row[:, :length] @ line[0, 0, 0] - (expected.flip(0) if flip else expected)).abs().max() < 1e-5
        assert row[:, length:].abs().sum() == 0


SHAPES = {"pictures": [(3, 48, 64), (3, 7, 90), (3, 24, 24)], "clips": [(4, 3, 48, 64), (4, 3, 30, 5), (4, 3, 9, 9)]}
FLIPS = [True, False, True]


def parts_and_squares(shapes: list[tuple[int, ...]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Parts, and what each becomes by itself, 24 x 24."""
    parts = [torch.randint(256, shape, dtype=torch.uint8) for shape in shapes]
    squares = [transforms.resize(part, 24, 24) for part in parts]
    return parts, torch.stack([s.flip(-1) if flip else s for s, flip in zip(squares, FLIPS, strict=True)])


@pytest.mark.parametrize("size", [(1, 1), (7, 1), (1, 7), (7, 7)], ids=str)
def test_resize_of_bytes_is_that_of_numbers(size):
    pixels = torch.randint(256, (3, 20, 30), dtype=torch.uint8)
    expected = torch.nn.functional.interpolate(pixels[None].double(), size, mode="bilinear", antialias=True)[0]
    assert (transforms.resize(pixels, *size) - expected).abs().max() < 1


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_resize_all_resizes_each(shapes):
    parts, squares = parts_and_squares(shapes)
    assert torch.equal(transforms.resize_all(parts, FLIPS, 24), squares)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_resize_together_differs_by_rounding(shapes, device):
    parts, squares = parts_and_squares(shapes)
    together = transforms.resize_together([part.to(device) for part in parts], FLIPS, 24).cpu()
    assert (together.dtype, together.shape) == (squares.dtype, squares.shape)
    assert (together.int() - squares.int()).abs().max() <= 1


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (512, 512)], ids=str)
def test_one_spread_crop_is_the_centre(size):
    pixels = picture(*size)
    height, width = size
    ratio = 512 / min(size)
    whole = transforms.resize(pixels, round(height * ratio), round(width * ratio))
    top, left = round((whole.shape[1] - 448) / 2), round((whole.shape[2] - 448) / 2)
    assert torch.equal(
        transforms.spread_crops(pixels, 448, 512, count=1)[0], whole[:, top : top + 448, left : left + 448]
    )


def test_spread_crops_cover_the_longer_side():
    wide = torch.arange(160, dtype=torch.uint8).expand(2, 3, 64, 160)
    left, middle, right = transforms.spread_crops(wide, 64, 64)
    assert left[0, 0, 0].tolist() == list(range(64))
    assert middle[0, 0, 0].tolist() == list(range(48, 112))
    assert right[1, 2, 63].tolist() == list(range(96, 160))
    tall = transforms.spread_crops(wide.transpose(-1, -2), 64, 64)
    assert torch.equal(tall, torch.stack([left, middle, right]).transpose(-1, -2))


def test_spread_crops_larger_than_the_short_side_are_refused():
    with pytest.raises(ValueError, match="a crop of 448 does not fit into a short side of 256"):
        transforms.spread_crops(picture(300, 300), 448, 256)


def test_normalize_gives_imagenets_mean_zero():
    grey = torch.tensor(transforms.MEAN).view(3, 1, 1).expand(2, 3, 4, 4) * 255
    assert transforms.normalize(grey).abs().max() < 1e-5
    assert transforms.normalize(picture(4, 4)).dtype == torch.float32


def test_network_input_of_pictures_is_normalised():
    pixels = torch.randint(256, (2, 3, 4, 5), dtype=torch.uint8)
    x = transforms.network_input(pixels)
    assert (x.dtype, x.shape) == (torch.float32, (2, 3, 4, 5))
    for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        expected = (pixels[:, channel].double() / 255 - mean) / std
        assert (x[:, channel] - expected).abs().max() < 1e-6


def test_network_input_of_clips_puts_time_behind_the_channels():
    clips = torch.randint(256, (2, 4, 3, 5, 6), dtype=torch.uint8)
    x = transforms.network_input(clips)
    assert x.shape == (2, 3, 4, 5, 6)
    for frame in range(4):
        assert torch.equal(x[:, :, frame], transforms.network_input(clips[:, frame]))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((2, 3, 4, 5), torch.channels_last), ((2, 6, 3, 4, 5), torch.channels_last_3d)],
    ids=["pictures", "clips"],
)
def test_network_input_takes_either_memory_layout(shape, layout):
    pixels = torch.randint(256, shape, dtype=torch.uint8)
    plain, last = transforms.network_input(pixels), transforms.network_input(pixels, channels_last=True)
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=layout)
    assert not last.is_contiguous()
    assert torch.equal(plain, last)
