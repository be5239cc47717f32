"""``cgnl app``: a page on which anybody can try networks and look into them."""

import html
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.images import IMAGE_SUFFIXES, to_image
from ..data.video import VIDEO_SUFFIXES
from ..explain.maps import THRESHOLD, Map
from ..extras import need
from .page import (
    ALL,
    STRONGEST,
    STYLES,
    Look,
    Network,
    look,
    look_at,
    shown,
    write_examples,
    write_figure,
)

LARGEST = 64
"""MiB of a file that is taken."""
STYLE = """
.gradio-container { max-width: 1200px !important; margin: 0 auto !important; }
.look, .look button, .look .image-frame { border: none !important; background: none !important; }
.look img { cursor: crosshair; max-height: 420px; }
.icon-wrap { right: 8px !important; }
footer { display: none !important; }
"""


def serve(networks: Sequence[Network], host: str, port: int | None) -> None:
    """Serve the page until it is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the folder goes away
    with tempfile.TemporaryDirectory(prefix="cgnl-app-", ignore_cleanup_errors=True) as folder:
        page = build(networks, Path(folder))
        try:
            _, address, _ = page.launch(
                server_name=host,
                server_port=port,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                max_file_size=LARGEST * 2**20,
                footer_links=[],
                state_session_capacity=100,
                ssr_mode=False,
                theme=_theme(),
                css=STYLE,
            )
        except OSError:
            where = f"port {port}" if port else "any port from 7860 on"
            raise ValueError(f"nothing can listen on {where} of {host}: it is taken, or no address of ours") from None
        print(f"{address} is open; Ctrl-C ends it", flush=True)
        try:
            page.block_thread()
        finally:
            page.close()


def load_gradio(folder: Path) -> Any:
    """Gradio, told to keep its files in a folder of ours, to report to nobody and to fetch nothing for anybody."""
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    gradio = need("gradio", "app")

    async def refuse(address: str, *_: Any, **__: Any) -> Any:
        """A visitor may send a file, but not have one fetched: this machine may reach what theirs cannot."""
        raise gradio.Error(f"{address} is not fetched: send the file itself", print_exception=False)

    asked = ("get", "async_validate_url")  # by Gradio, for every address that a visitor names
    vars(need("safehttpx", "app")).update(dict.fromkeys(asked, refuse))
    return gradio


def keep(folder: Path, name: str, write: Callable[[Path], object]) -> str:
    """A file among Gradio's, which go away after an hour: in a folder named by what it holds, and never half of it."""
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        write(Path(aside) / name)
        return need("gradio.processing_utils", "app").save_file_to_cache(Path(aside) / name, str(folder))


class Column(NamedTuple):
    """What is on the page of one network."""

    picture: Any
    block: Any
    group: Any
    channel: Any
    top: Any
    caption: Any


def build(networks: Sequence[Network], folder: Path) -> Any:
    """The page. What a visitor looks at is in a state of their own; no visit changes anything here."""
    gr = load_gradio(folder)
    clips = networks[0].trained.kind == "videos"
    thing, suffixes = ("clip", VIDEO_SUFFIXES) if clips else ("picture", IMAGE_SUFFIXES)
    examples = [str(path) for path in write_examples(networks[0], folder)]
    with gr.Blocks(title="cgnl", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        looks = gr.State([], time_to_live=3600)
        gr.Markdown(
            f"## What {'it attends' if len(networks) == 1 else 'they attend'} to\n"
            f"Drop in a {thing}, then click anywhere on it: that is the reference position."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=260):
                file = gr.File(label=f"A {thing}", file_types=sorted(suffixes), height=130, elem_id="file")
                gallery = gr.Dataset(
                    components=[gr.Video(visible=False) if clips else gr.Image(visible=False)],
                    samples=[[path] for path in examples],
                    label="Or one of these",
                    visible=bool(examples),
                    elem_id="examples",
                )
                style = gr.Radio(STYLES, value=STYLES[0], label="Show", elem_id="style")
                threshold = gr.Slider(0.05, 1, THRESHOLD, step=0.05, label="Threshold", elem_id="threshold")
                frame = gr.Slider(0, 1, 0, step=1, label="Frame", visible=False, elem_id="frame")
                download = gr.DownloadButton("Download the figure", interactive=False, elem_id="download")
            columns = [_column(gr, network.title, number) for number, network in enumerate(networks)]
        choices = [*(c.group for c in columns), *(c.channel for c in columns), threshold, style, frame]

        def check_looked(looked: list[Look]) -> None:
            if not looked:
                raise ValueError(f"there is no {thing} yet: drop one in")

        def drawn(looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            """What follows from a choice: the pictures, and the words below them."""
            check_looked(looked)
            each, (at_least, how, t) = _split(looked, chosen)
            parts: dict[Any, Any] = {}
            for column, (one, group, channel) in zip(columns, each, strict=True):
                picture = to_image(shown(one, group, channel, at_least, how, int(t)))
                parts[column.picture] = keep(folder, "look.png", picture.save)
                parts[column.caption] = _caption(one, one.map(group, channel))
            return parts

        def looked_again(looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            return {looks: looked, **drawn(looked, *chosen)}

        def open_file(path: str | None, *chosen: Any) -> dict[Any, Any]:
            """A new file: choices that depend on it begin anew."""
            if path is None:
                return {looks: gr.skip()}
            looked = look_at(networks, path)
            last, count = max(looked[0].frames - 1, 0), len(columns)
            fresh = looked_again(looked, *[ALL] * count, *[STRONGEST] * count, *chosen[-3:-1], 0)
            for column, one in zip(columns, looked, strict=True):
                fresh[column.block] = gr.Dropdown(one.network.blocks, value=one.attention.block)
                fresh[column.group] = gr.Dropdown(one.groups, value=ALL)
                fresh[column.channel] = gr.Dropdown(one.channels(ALL), value=STRONGEST)
                fresh[column.top] = one.top()
            return fresh | {frame: gr.Slider(0, max(last, 1), 0, visible=last > 0)}

        def move(click: Any, number: int, looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            """Another reference position, for all networks."""
            at = looked[number].place(*click.index, frame=int(chosen[-1]))
            return looked_again([look(one.network, one.seen, at, one.attention.block) for one in looked], *chosen)

        def choose_block(number: int, looked: list[Look], name: str, *chosen: Any) -> dict[Any, Any]:
            check_looked(looked)
            one, looked, fresh = looked[number], [*looked], [*chosen]
            looked[number] = look(one.network, one.seen, one.at, name)
            fresh[number], fresh[len(columns) + number] = ALL, STRONGEST
            groups = gr.Dropdown(looked[number].groups, value=ALL)
            channels = gr.Dropdown(looked[number].channels(ALL), value=STRONGEST)
            return looked_again(looked, *fresh) | {columns[number].group: groups, columns[number].channel: channels}

        def choose_group(number: int, looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            check_looked(looked)
            fresh = [*chosen]
            fresh[len(columns) + number] = STRONGEST
            channels = gr.Dropdown(looked[number].channels(chosen[number]), value=STRONGEST)
            return drawn(looked, *fresh) | {columns[number].channel: channels}

        def figure(looked: list[Look], *chosen: Any) -> Any:
            each, (at_least, how, _) = _split(looked, chosen)
            rows = [one.row(group, channel) for one, group, channel in each]
            path = keep(folder, "attention.png", lambda path: write_figure(rows, at_least, how, path))
            return gr.DownloadButton(value=path, interactive=True)

        def told(function: Callable[..., Any], *before: Any) -> Callable[..., Any]:
            """The function with its first arguments given, and its errors as sentences on the page."""

            def call(*arguments: Any) -> Any:
                try:
                    return function(*before, *arguments)
                except (ValueError, OSError) as error:
                    raise gr.Error(str(error), title="Not shown", print_exception=False) from None

            return call

        def moved(number: int) -> Callable[..., Any]:
            def call(click: Any, *arguments: Any) -> Any:
                return told(move, click, number)(*arguments)

            call.__annotations__["click"] = gr.SelectData  # by which Gradio knows what is wanted
            return call

        everything = [looks, frame, *(part for column in columns for part in column)]
        pictures = [column.picture for column in columns]
        private = {"api_visibility": "private", "show_progress": "minimal", "show_progress_on": pictures}
        seen, latest = [looks, *choices], private | {"trigger_mode": "always_last"}
        first_of = told(lambda sample, *chosen: open_file(sample[0], *chosen))

        def nothing() -> dict[Any, Any]:
            """What is left after a file that cannot be shown: no prediction of another one."""
            words = {part: None for c in columns for part in (c.picture, c.top, c.caption)}
            return {looks: [], **words, download: gr.DownloadButton(interactive=False)}

        events = [
            file.upload(told(open_file), [file, *choices], everything, **private),
            gallery.click(first_of, [gallery, *choices], everything, **private),
            *([page.load(told(open_file, examples[0]), choices, everything, **private)] if examples else []),
        ]
        events[0].failure(nothing, None, [*everything, download], api_visibility="private", show_progress="hidden")
        for number, c in enumerate(columns):
            events += [
                c.picture.select(moved(number), seen, everything, **private),
                c.block.input(told(choose_block, number), [looks, c.block, *choices], everything, **private),
                c.group.input(told(choose_group, number), seen, everything, **private),
                c.channel.input(told(drawn), seen, everything, **latest),
            ]
        events += [control.input(told(drawn), seen, everything, **latest) for control in (threshold, style, frame)]
        for event in events:
            event.success(told(figure), seen, download, api_visibility="private", show_progress="hidden")
    return page


def _column(gr: Any, title: str, number: int) -> Column:
    with gr.Column(scale=2, min_width=300):
        gr.Markdown(f"### {html.escape(title)}")
        look = {"show_label": False, "interactive": False, "format": "png", "buttons": []}
        picture = gr.Image(elem_id=f"look{number}", elem_classes="look", **look)
        caption = gr.Markdown(elem_id=f"caption{number}")
        with gr.Row():
            block = gr.Dropdown([], label="Block", elem_id=f"block{number}", scale=4, min_width=164)
            group = gr.Dropdown([ALL], label="Group", elem_id=f"group{number}", scale=2, min_width=86)
            channel = gr.Dropdown([STRONGEST], label="Channel", elem_id=f"channel{number}", scale=3, min_width=138)
        top = gr.Label(show_label=False, show_heading=False, elem_id=f"top{number}")
    return Column(picture, block, group, channel, top, caption)


def _split(looked: Sequence[Look], chosen: Sequence[Any]) -> tuple[list[tuple[Look, str, str]], Sequence[Any]]:
    """What is chosen: each network's group and channel, and then threshold, style and frame."""
    count = len(looked)
    return list(zip(looked, chosen[:count], chosen[count : 2 * count], strict=True)), chosen[2 * count :]


def _caption(look: Look, map: Map) -> str:
    names = ("x", "y", "frame")
    place = ", ".join(f"{name} {value:.0f}" for name, value in zip(names, look.at, strict=False))
    return f"Reference at {place}. Shown: {map.name}. {look.attention.caption}"


def _theme() -> Any:
    """Colours and the system's own fonts: nothing is fetched from elsewhere."""
    gr = need("gradio", "app")
    return gr.themes.Default(
        primary_hue="blue", font=("system-ui", "sans-serif"), font_mono=("system-ui", "sans-serif")
    )
