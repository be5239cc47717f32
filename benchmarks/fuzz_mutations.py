"""What is done to good inputs to make bad ones. Pure functions of the input and of a source of random numbers."""

import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

LARGE = (2**31 - 1, 2**31, 2**32 - 1, 2**16, 2**15, 100_000, 10**6, 10**9, 0, 1, 0x7F, 0xFF)
"""Numbers for the fields of a header."""
NAMES = ("../../etc/passwd", "/etc/passwd", "C:\\x", "\\\\host\\x", "..", ".", "", "~", "a\0b", "x" * 5000, "\udcff")
NAMES += ("\x1b[31mred", "line\nbreak", "\u202e\u0000", "%s%n{0}", "con", "é\u0301", "🐦", "-", "--help", "null", "nan")
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e-300, 1e308, math.nan, math.inf, -math.inf)
VALUES += (
    10**6,
    10**9,
    10**30,
    2**63,
    -(2**63) - 1,
    "1",
    "1e3",
    "true",
    [],
    {},
    [[]],
    [1, 2],
    [None],
    {"a": {"b": []}},
)
VALUES += ({"name": "rbf", "order": 10**9}, {"name": []}, [1e9] * 4, ["layer9"], *NAMES)


def mutated_bytes(data: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """A file with one to eight changes; ``others`` are files to take parts from."""
    result = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 8))):
        draw.choice(BYTE_CHANGES)(result, draw)
        if others and draw.random() < 0.05:
            part = draw.choice(others)
            start = draw.randrange(len(part))
            place = _place(result, draw)
            result[place:] = part[start:]
    return bytes(result)


def _place(data: bytearray, draw: Random) -> int:
    """Somewhere in a file, often near its beginning, where headers are."""
    return draw.randrange(min(len(data), 64) + 1) if draw.random() < 0.4 else draw.randrange(len(data) + 1)


def _flip(data: bytearray, draw: Random) -> None:
    for _ in range(draw.choice((1, 1, 2, 16))):
        if data:
            data[min(_place(data, draw), len(data) - 1)] ^= 1 << draw.randrange(8)


def _cut(data: bytearray, draw: Random) -> None:
    del data[_place(data, draw) :]


def _insert(data: bytearray, draw: Random) -> None:
    place = _place(data, draw)
    data[place:place] = draw.randbytes(draw.choice((1, 2, 4, 100))) if draw.random() < 0.7 else bytes(1000)


def _remove(data: bytearray, draw: Random) -> None:
    place = _place(data, draw)
    del data[place : place + draw.choice((1, 2, 4, 16, 200))]


def _repeat(data: bytearray, draw: Random) -> None:
    start, length = _place(data, draw), draw.choice((4, 12, 50, 500))
    part, place = data[start : start + length], _place(data, draw)
    data[place:place] = part * draw.choice((1, 1, 2, 50))


def _exchange(data: bytearray, draw: Random) -> None:
    one, other, length = _place(data, draw), _place(data, draw), draw.choice((1, 4, 30))
    first, second = data[one : one + length], data[other : other + length]
    data[one : one + length], data[other : other + length] = second, first


def _number(data: bytearray, draw: Random) -> None:
    """A field of a header gets a number that it was not made for."""
    size = draw.choice((1, 2, 4, 8))
    value = draw.choice(LARGE) % 2 ** (8 * size)
    place = _place(data, draw)
    data[place : place + size] = value.to_bytes(size, draw.choice(("big", "little")))


BYTE_CHANGES: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _cut, _insert, _remove, _repeat, _exchange),
    *(_number, _number, _number),
)


def mutated_tree(tree: Any, draw: Random) -> Any:
    """Lists, dictionaries, numbers and text with one to three changes."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        tree = _changed(tree, draw)
    return tree


def _changed(tree: Any, draw: Random) -> Any:
    if isinstance(tree, dict | list) and tree and draw.random() < 0.95:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = draw.choice(keys)
        result: Any = tree.copy()
        action = draw.random()
        if action < 0.12:
            del result[key]
        elif action < 0.2 and isinstance(result, dict):
            result[draw.choice((*NAMES, 7, None, "name", f"{key}x"))] = result[key]
        elif action < 0.2:
            result.append(result[key])
        else:
            result[key] = _changed(result[key], draw)
        return result
    if isinstance(tree, int | float) and not isinstance(tree, bool) and draw.random() < 0.3:
        return draw.choice((-tree, tree + 1, tree * 10**6, float(tree), str(tree), [tree], tree * 1e300))
    if isinstance(tree, str) and draw.random() < 0.3:
        return draw.choice((tree + "x", tree * 100, tree.upper(), f"../{tree}", f"/{tree}", [tree], tree[:-1]))
    return draw.choice(VALUES)


def as_json(tree: Any, draw: Random) -> bytes:
    """A tree as JSON, at times of a kind that no tree is written as."""
    text = json.dumps(tree, default=str)
    trick = draw.random()
    if trick < 0.02:
        text = "[" * 100_000 + text
    elif trick < 0.04:
        text = text.replace(":", f': {"[" * 3000}{"]" * 3000}, "again":', 1)
    elif trick < 0.06:
        text = text.replace("1", "1" * 5000, 1)
    elif trick < 0.08:
        text = "\ufeff" + text
    return text.encode(errors="surrogatepass")


def mutated_graph(model: Any, draw: Random) -> None:
    """Change an ONNX model where it stands: its operators, their wiring, its numbers, or what it asks of the reader."""
    graph = model.graph
    for _ in range(draw.choice((1, 1, 2, 3))):
        if not graph.node or not graph.initializer:
            return
        node, tensor, change = draw.choice(graph.node), draw.choice(graph.initializer), draw.randrange(10)
        if change == 0:
            node.op_type = draw.choice(("Loop", "Tile", "Expand", "ConstantOfShape", "Resize", "Identity", "x"))
        elif change == 1:
            graph.node.remove(node)
        elif change == 2 and node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice((tensor.name, draw.choice(graph.node).output[0]))
        elif change == 3 and node.attribute:
            attribute = draw.choice(node.attribute)
            attribute.i = draw.choice(LARGE)
            attribute.ints[:] = [draw.choice(LARGE) for _ in attribute.ints]
        elif change == 4:
            tensor.dims[:] = [draw.choice(LARGE) for _ in range(draw.randrange(5))]
        elif change == 5 and tensor.raw_data:
            tensor.raw_data = mutated_bytes(tensor.raw_data, draw)
        elif change == 6:
            tensor.data_type = draw.randrange(24)
        elif change == 7:
            tensor.data_location = 1
            tensor.external_data.add(key="location", value=draw.choice(NAMES[:4]))
        elif change == 8:
            graph.node.add().CopyFrom(node)
        else:
            shape = draw.choice((*graph.input, *graph.output)).type.tensor_type.shape
            draw.choice(shape.dim).dim_value = draw.choice(LARGE)


def mutated_text(text: bytes, draw: Random) -> bytes:
    """Lines of words with changes to lines, to words and to bytes."""
    lines = text.split(b"\n")
    for _ in range(draw.choice((1, 1, 2, 3))):
        number = draw.randrange(len(lines))
        action = draw.random()
        if action < 0.1:
            lines.insert(number, lines[draw.randrange(len(lines))])
        elif action < 0.2:
            del lines[number]
        elif action < 0.3:
            lines[number] = mutated_bytes(lines[number], draw)
        else:
            separator = b"," if b"," in lines[number] else b" "
            words = lines[number].split(separator)
            words[draw.randrange(len(words))] = str(draw.choice(VALUES)).encode(errors="surrogateescape")
            lines[number] = separator.join(words)
        lines = lines or [b""]
    return b"\n".join(lines)


def mutated_arguments(arguments: Sequence[str], names: Sequence[str], draw: Random) -> list[str]:
    """A list of arguments with other ones, fewer, more, or in another order; ``names`` are those of options."""
    result = list(arguments)
    for _ in range(draw.choice((1, 1, 2, 3))):
        place, action = draw.randrange(len(result) + 1), draw.random()
        word = str(draw.choice(VALUES)).replace("\0", "")
        if action < 0.35:
            name = draw.choice(names)
            form = draw.choice(("{}={}", "--{}={}", "--{} {}", "--{}", "{}"))
            result[place:place] = form.format(name, word).split(" ", 1)
        elif action < 0.5:
            result.insert(place, word)
        elif place < len(result) and action < 0.65:
            del result[place]
        elif place < len(result) and action < 0.85:
            head, equals, _ = result[place].partition("=")
            result[place] = f"{head}={word}" if equals else word
        else:
            draw.shuffle(result)
    return [word.replace("\0", "") for word in result]
