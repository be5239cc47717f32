"""Networks as folders and repositories in Hugging Face's convention: config.json and model.safetensors."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..atomic_io import whole_file
from ..extras import need
from ..text import printable
from .arguments import build_again, get_arguments
from .weights import check_size, read_state_dict, without_wrappers

hub = need("huggingface_hub", "hub")
errors = need("huggingface_hub.errors", "hub")
safetensors = need("safetensors.torch", "vision")

WEIGHTS = "model.safetensors"

ABOUT: Any = {
    "library_name": "cgnl",
    "paper_url": "https://arxiv.org/abs/1810.13125",
    "tags": ["cgnl", "non-local-networks"],
}
"""Metadata of the README of every repository."""


def _escaped(text: object) -> str:
    """Foreign text on one line, and no Markdown in it."""
    return re.sub(r"([\\`*_{}\[\]<>#|&!~])", r"\\\1", printable(text))


class Network(hub.PyTorchModelHubMixin, nn.Module, **ABOUT):
    """A network of ``create_model`` with ``save_pretrained``, ``from_pretrained`` and ``push_to_hub``.

    Weights are read from safetensors only. Their names are those of the network itself, ``network.network``, so that
    ``create_model(weights=...)`` takes the file too.

    Args:
        network: a name for ``create_model``, or a network that it made.
        classes: names of the outputs, or None.
        preprocessing: how pixels become input, stored unchanged, or None.
        options: further arguments of ``create_model``.
    """

    def __init__(
        self,
        network: str | nn.Module,
        *,
        classes: Sequence[str] | None = None,
        preprocessing: dict[str, Any] | None = None,
        **options: Any,
    ):
        super().__init__()
        if isinstance(network, str):
            network = build_again(network, **options)
        elif options:
            raise ValueError(f"the network is made already, but options are given: {', '.join(options)}")
        self.network, self.classes, self.preprocessing = network, classes and tuple(classes), preprocessing
        self._hub_mixin_config = get_arguments(network) | {
            name: value
            for name, value in (("classes", classes and list(classes)), ("preprocessing", preprocessing))
            if value is not None
        }

    def forward(self, *arguments: Any) -> Any:
        """Call the network with these arguments."""
        return self.network(*arguments)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """The README of a repository: what the network is, how it is loaded, and what its outputs mean.

        Args:
            args, kwargs: for templates of huggingface_hub, and not used.
        """
        config = self._hub_mixin_config
        about = {name: value for name, value in config.items() if name not in ("classes", "preprocessing")}
        sections = [
            f"# {config['network']}",
            f"A compact generalized non-local network of the library cgnl ([paper]({ABOUT['paper_url']})).",
            "```python\nfrom cgnl.models.pretrained import Network\n\n"
            'network = Network.from_pretrained("this folder or repository")\n```',
            "## Network",
            "\n".join(f"* {_escaped(name)}: {_escaped(value)}" for name, value in about.items()),
        ]
        if self.preprocessing:
            rows = [f"* {_escaped(name)}: {_escaped(value)}" for name, value in self.preprocessing.items()]
            sections += ["## Input", "\n".join(rows)]
        if self.classes:
            sections += ["## Classes", "\n".join(f"{i}. {_escaped(name)}" for i, name in enumerate(self.classes))]
        metadata = self._hub_mixin_info.model_card_data.to_yaml()
        return hub.ModelCard("\n\n".join([f"---\n{metadata}\n---", *sections, ""]), ignore_metadata_errors=True)

    def _save_pretrained(self, save_directory: Path) -> None:
        weights = {name: value.detach().cpu().contiguous() for name, value in self.network.state_dict().items()}
        with whole_file(save_directory / WEIGHTS) as file:
            file.write(safetensors.save(weights, {"format": "pt"}))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **arguments: Any):
        """A network from a folder or from Hugging Face; ``ValueError`` for anything else, whatever the files hold.

        Args:
            pretrained_model_name_or_path: the folder, or ``owner/birds``.
            arguments: those of ``PyTorchModelHubMixin.from_pretrained``, such as ``revision``.
        """
        name = pretrained_model_name_or_path
        try:
            return super().from_pretrained(name, **arguments)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError(f"{name} has a config.json that is not JSON") from None
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{name} has a config.json that does not describe a network: {error}") from None

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        map_location: str = "cpu",
        **arguments: Any,
    ):
        if "network" not in arguments:
            raise ValueError(f"{model_id} has no config.json that names a network of cgnl")
        if os.path.isdir(model_id):
            file = Path(model_id, WEIGHTS)
        else:
            where = {"revision": revision, "cache_dir": cache_dir, "token": token}
            how = {"force_download": force_download, "local_files_only": local_files_only}
            try:
                file = Path(hub.hf_hub_download(model_id, WEIGHTS, **where, **how))
            except errors.LocalEntryNotFoundError:  # no connection: the file may well exist
                raise
            except errors.EntryNotFoundError:
                file = Path(model_id, WEIGHTS)
        if not file.is_file():
            raise ValueError(f"{model_id} has no {WEIGHTS}, and weights of other formats are not read")
        if "weights" in arguments:
            raise ValueError(f"{model_id} has a config.json that asks for other weights")
        with torch.device("meta"):  # no memory is used, whatever the config asks for
            outline = cls(**arguments)
        state = without_wrappers(read_state_dict(file), outline.network.state_dict())
        check_size(outline.network, state, file)
        model = cls(**arguments)
        try:
            model.network.load_state_dict(state)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ValueError(f"the weights of {model_id} are of another network: {reason}") from None
        return model.to(map_location).eval()
