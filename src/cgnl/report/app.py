"""The page of ``cgnl app``, where people try networks in a browser; the only module that imports Gradio."""

import html
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..data.images import to_image
from ..explain.figure import write_figure
from ..explain.maps import THRESHOLD
from ..extras import need
from .page import ALL, STRONGEST, STYLES, Look, Network, draw_look, look_at, write_examples

LARGEST = 64  # MiB of an upload
KEEP = 3600.0  # seconds for which a visitor's files and looks are kept
STYLE = """
.gradio-container { max-width: 1200px !important; margin: 0 auto !important; }
.look, .look button, .look .image-frame { border: none !important; background: none !important; }
.look img { cursor: crosshair; max-height: 420px; }
.icon-wrap { right: 8px !important; }
footer { display: none !important; }
"""


def serve(networks: Sequence[Network], host: str, port: int | None) -> None:
    """Serve the page until it is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the temporary folder is removed
    with tempfile.TemporaryDirectory(prefix="cgnl-app-", ignore_cleanup_errors=True) as folder:
        page, fonts = build(networks, Path(folder)), ("system-ui", "sans-serif")  # fetched from nowhere
        threading.Thread(target=sweep, args=(page, Path(folder), {*Path(folder).iterdir()}), daemon=True).start()
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
                theme=need("gradio", "app").themes.Default(primary_hue="blue", font=fonts, font_mono=fonts),
                css=STYLE,
            )
        except OSError:
            where = f"port {port}" if port else "any port from 7860 on"
            raise ValueError(f"cannot listen on {where} of {host}: it is taken, or not an address of ours") from None
        print(f"{address} is open; Ctrl-C ends it", flush=True)
        try:
            page.block_thread()
        finally:
            page.close()


def load_gradio(folder: Path) -> Any:
    """Import Gradio, with its files in our folder, without telemetry, and unable to fetch anything for a visitor."""
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    gradio = need("gradio", "app")

    async def refuse(address: str, *_: Any, **__: Any) -> Any:  # this machine may reach what the visitor's cannot
        raise gradio.Error(f"{address} is not fetched: send the file itself", print_exception=False)

    called = ("get", "async_validate_url")  # by Gradio, for every address that a visitor names
    vars(need("safehttpx", "app")).update(dict.fromkeys(called, refuse))
    return gradio


def sweep(page: Any, folder: Path, ours: Collection[Path]) -> None:
    """Remove the files of visitors when they have had their time; ``ours`` stay.

    Gradio's own task for it (``delete_cache``) ends for good when a visitor comes while it deletes, and does not know
    of files that are uploaded twice, nor of folders.
    """
    while True:
        time.sleep(KEEP / 4)
        remove_old(folder, KEEP, ours)
        for names in page.temp_file_sets:  # that Gradio keeps for its task
            names.clear()


def remove_old(folder: Path, seconds: float, ours: Collection[Path] = ()) -> None:
    """Remove files that have not changed for so many seconds, and empty folders; keep ``ours``."""
    before = time.time() - seconds
    for place, _, names in os.walk(folder, topdown=False):
        for path in [*(Path(place, name) for name in names), Path(place)]:  # a folder after what is in it
            with suppress(OSError):  # it is gone already, or a folder is not empty
                if path not in (folder, *ours) and path.lstat().st_mtime < before:
                    path.rmdir() if path.is_dir() else path.unlink()


def write_cached(folder: Path, name: str, write: Callable[[Path], object]) -> str:
    """Write a file into Gradio's cache, whole and under a name made from its content."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        write(Path(temporary) / name)
        return need("gradio.processing_utils", "app").save_file_to_cache(Path(temporary) / name, str(folder))


class Column(NamedTuple):
    """The components of one network."""

    image: Any
    caption: Any
    block: Any
    group: Any
    channel: Any
    top: Any


def build(networks: Sequence[Network], folder: Path) -> Any:
    """Build the page. Each visitor has a state of their own; nothing is shared between visits."""
    gr = load_gradio(folder)
    task = networks[0].trained.task
    examples = [str(path) for path in write_examples(networks[0], folder)]
    with gr.Blocks(title="cgnl", analytics_enabled=False) as page:
        looks = gr.State([], time_to_live=KEEP)
        gr.Markdown(
            f"## What {'it attends' if len(networks) == 1 else 'they attend'} to\n"
            f"Drop in your {task.sample}, then click anywhere on it: that is the reference position."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=260):
                file = gr.File(
                    label=f"Your {task.sample}", file_types=sorted(task.suffixes), height=130, elem_id="file"
                )
                gallery = gr.Dataset(
                    components=[gr.Video(visible=False) if task.has_frames else gr.Image(visible=False)],
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
        count = len(columns)
        choices = [*(c.group for c in columns), *(c.channel for c in columns), threshold, style, frame]

        # Handlers: from the visitor's looks and choices (in the order above) to new values of components.

        def split(looked: list[Look], chosen: Sequence[Any]) -> list[tuple[Look, str, str]]:
            if not looked:
                raise ValueError(f"there is no {task.sample} yet: drop one in")
            return list(zip(looked, chosen[:count], chosen[count : 2 * count], strict=True))

        def draw(looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            """Images, captions and predictions, which differ where the view was moved."""
            least, how, t = chosen[-3:]
            values: dict[Any, Any] = {}
            for column, (one, group, channel) in zip(columns, split(looked, chosen), strict=True):
                image = to_image(draw_look(one, group, channel, least, how, int(t)))
                values[column.image] = write_cached(folder, "look.png", image.save)
                values[column.caption] = one.describe(group, channel)
                values[column.top] = one.top()
            return values

        def draw_figure(looked: list[Look], *chosen: Any) -> Any:
            """The figure to download."""
            least, how, _ = chosen[-3:]
            rows = [one.row(group, channel) for one, group, channel in split(looked, chosen)]
            path = write_cached(folder, "attention.png", lambda path: write_figure(rows, path, least, how == "heat"))
            return gr.DownloadButton(value=path, interactive=True)

        def reset_menus(column: Column, one: Look) -> dict[Any, Any]:
            return {
                column.block: gr.Dropdown(one.network.blocks, value=one.attention.block),
                column.group: gr.Dropdown(one.groups, value=ALL),
                column.channel: gr.Dropdown(one.channels(ALL), value=STRONGEST),
            }

        def open_file(path: str | None, *chosen: Any) -> dict[Any, Any]:
            """A new file: choices that depend on it begin anew."""
            if path is None:
                return {looks: gr.skip()}
            looked = look_at(networks, path)
            last = max(looked[0].frames - 1, 0)
            values = {looks: looked} | draw(looked, *[ALL] * count, *[STRONGEST] * count, *chosen[-3:-1], 0)
            for column, one in zip(columns, looked, strict=True):
                values |= reset_menus(column, one)
            return values | {frame: gr.Slider(0, max(last, 1), 0, visible=last > 0)}

        def open_example(sample: list[str], *chosen: Any) -> dict[Any, Any]:
            return open_file(sample[0], *chosen)

        def move(number: int, click: Any, looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            """Another reference position, for all networks."""
            clicked, _, _ = split(looked, chosen)[number]
            at = clicked.place(*click.index, frame=int(chosen[-1]))
            looked = [one.move(at) for one in looked]
            return {looks: looked} | draw(looked, *chosen)

        def choose_block(number: int, name: str, looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            one, _, _ = split(looked, chosen)[number]
            looked, fresh = [*looked], [*chosen]
            looked[number] = one.move(one.at, name)
            fresh[number], fresh[count + number] = ALL, STRONGEST
            return {looks: looked} | draw(looked, *fresh) | reset_menus(columns[number], looked[number])

        def choose_group(number: int, looked: list[Look], *chosen: Any) -> dict[Any, Any]:
            one, group, _ = split(looked, chosen)[number]
            fresh = [*chosen]
            fresh[count + number] = STRONGEST
            return draw(looked, *fresh) | {columns[number].channel: gr.Dropdown(one.channels(group), value=STRONGEST)}

        def clear() -> dict[Any, Any]:
            """After a file that cannot be shown: no prediction of another one."""
            empty = {part: None for c in columns for part in (c.image, c.top, c.caption)}
            return {looks: [], **empty, download: gr.DownloadButton(interactive=False)}

        def report_errors(function: Callable[..., Any], *first: Any) -> Callable[..., Any]:
            """Bind the first arguments, and show errors on the page."""

            def call(*arguments: Any) -> Any:
                try:
                    return function(*first, *arguments)
                except (ValueError, OSError) as error:
                    raise gr.Error(str(error), title="Not shown", print_exception=False) from None

            return call

        def on_click(number: int) -> Callable[..., Any]:
            def call(click: Any, *arguments: Any) -> Any:
                return report_errors(move, number, click)(*arguments)

            call.__annotations__["click"] = gr.SelectData  # tells Gradio to pass it
            return call

        everything, seen = [looks, frame, *(part for column in columns for part in column)], [looks, *choices]
        hidden = {"api_visibility": "private", "show_progress": "hidden"}
        shows = {
            "outputs": everything,
            "api_visibility": "private",
            "show_progress": "minimal",
            "show_progress_on": [column.image for column in columns],
        }
        latest = shows | {"trigger_mode": "always_last"}
        uploaded = file.upload(report_errors(open_file), [file, *choices], **shows)
        uploaded.failure(clear, None, [*everything, download], **hidden)
        events = [uploaded, gallery.click(report_errors(open_example), [gallery, *choices], **shows)]
        if examples:
            events.append(page.load(report_errors(open_file, examples[0]), choices, **shows))
        for number, c in enumerate(columns):
            events += [
                c.image.select(on_click(number), seen, **shows),
                c.block.input(report_errors(choose_block, number), [c.block, *seen], **shows),
                c.group.input(report_errors(choose_group, number), seen, **shows),
                c.channel.input(report_errors(draw), seen, **latest),
            ]
        events += [control.input(report_errors(draw), seen, **latest) for control in (threshold, style, frame)]
        for event in events:
            event.success(report_errors(draw_figure), seen, download, **hidden)
    return page


def _column(gr: Any, title: str, number: int) -> Column:
    with gr.Column(scale=2, min_width=300):
        gr.Markdown(f"### {html.escape(title)}")
        look = {"show_label": False, "interactive": False, "format": "png", "buttons": []}
        image = gr.Image(elem_id=f"look{number}", elem_classes="look", **look)
        caption = gr.Markdown(elem_id=f"caption{number}")
        with gr.Row():
            block = gr.Dropdown([], label="Block", elem_id=f"block{number}", scale=4, min_width=164)
            group = gr.Dropdown([ALL], label="Group", elem_id=f"group{number}", scale=2, min_width=86)
            channel = gr.Dropdown([STRONGEST], label="Channel", elem_id=f"channel{number}", scale=3, min_width=138)
        top = gr.Label(show_label=False, show_heading=False, elem_id=f"top{number}")
    return Column(image, caption, block, group, channel, top)
