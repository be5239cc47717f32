"""Settings: read from recipes, laid over one another, checked and written."""

import contextlib
import dataclasses
import json
import re
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cgnl.engine import config
from cgnl.engine.config import build, load, merge, nest, to_dict, to_yaml
from cgnl.engine.settings import Config, Data, Model, Optim, setting_names
from tests.engine.conftest import refused

AVERAGE = Model(head="average")
"""What a recipe that says nothing of its network has."""


def test_load_of_nothing_is_the_defaults():
    assert load() == Config()


def test_load_reads_a_recipe_and_what_it_extends():
    loaded = load("cub_r50_cgnl1")
    assert loaded.model == Model("resnet50", head="average", options={"groups": 8}, weights="IMAGENET1K_V1")
    assert loaded.optim == Optim(
        lr=0.01, batch_size=256, epochs=100, warmup_epochs=10, schedule="step", drops=(31, 61, 81), weight_decay=1e-4
    )
    assert loaded.data == Data(dataset="cub", size=448)


@pytest.mark.parametrize(
    "overrides",
    [
        {"optim.lr": 0.5, "optim.epochs": 7, "seed": 3},
        {"optim": {"lr": 0.5, "epochs": 7}, "seed": 3},
        {"optim": {"lr": 0.5}, "optim.epochs": 7, "seed": 3},
        {"optim.lr": "0.5", "optim.epochs": "7", "seed": "3"},
    ],
    ids=["dotted", "nested", "both", "text"],
)
def test_load_lays_overrides_over_the_recipe(overrides):
    before, after = load("parts"), load("parts", overrides)
    changed = dataclasses.replace(before.optim, lr=0.5, epochs=7)
    assert after == dataclasses.replace(before, optim=changed, seed=3)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("data.size", "64", 64),
        ("optim.lr", "1e-2", 0.01),
        ("data.flip", "false", False),
        ("model.block", "null", None),
        ("optim.drops", "[1, 2]", (1, 2)),
        ("data.area", "[0.5, 1]", (0.5, 1.0)),
        ("data.root", "007", "007"),
        ("name", "12", "12"),
        ("precision", "16", "16"),
        ("model.options", "{groups: 4}", {"groups": 4}),
        ("model.options.groups", "4", {"groups": 4}),
        ("model.options.norm", "group", {"norm": "group"}),
    ],
)
def test_load_reads_text_as_the_type_of_its_setting(name, text, expected):
    value = load(None, {name: text})
    for part in name.removesuffix(".groups").removesuffix(".norm").split("."):
        value = getattr(value, part)
    assert value == expected
    assert type(value) is type(expected)


def test_load_writes_out_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    found = load(overrides={"data.root": "~/birds", "data.labels": "b.csv", "model.weights": "~/w.pth"})
    assert (found.data.root, found.data.labels) == ("/home/anna/birds", "b.csv")
    assert found.model.weights == "/home/anna/w.pth"


def test_load_adds_options_of_the_block():
    loaded = load("cub_r50_cgnl1", {"model.options.norm": "group", "model.options.groups": "4"})
    assert loaded.model.options == {"groups": 4, "norm": "group"}


def test_load_reads_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("optim: {lr: 1e-2}\ndata: {area: [0.2, 1]}\n")
    assert load(file) == load(str(file)) == Config(optim=Optim(lr=0.01), data=Data(area=(0.2, 1.0)), model=AVERAGE)


def test_load_of_a_file_may_extend_a_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: cub_r50\noptim: {epochs: 7}\n")
    row = load("cub_r50")
    assert load(file) == dataclasses.replace(row, optim=dataclasses.replace(row.optim, epochs=7))


def test_load_of_a_file_may_extend_one_beside_it(tmp_path):
    (tmp_path / "common.yaml").write_text("extends: parts\nseed: 5\nname: common\n")
    (tmp_path / "mine.yaml").write_text("extends: common\nname: mine\n")
    assert load(tmp_path / "mine.yaml") == dataclasses.replace(load("parts"), seed=5, name="mine")


def test_load_of_a_file_prefers_the_one_beside_it(tmp_path):
    (tmp_path / "base.yaml").write_text("seed: 5\n")
    (tmp_path / "mine.yaml").write_text("extends: base\n")
    assert load(tmp_path / "mine.yaml") == Config(seed=5, model=AVERAGE)


def test_load_of_a_file_may_extend_the_recipe_of_its_own_name(tmp_path):
    (tmp_path / "parts.yaml").write_text("extends: parts\nseed: 5\n")
    assert load(tmp_path / "parts.yaml") == dataclasses.replace(load("parts"), seed=5)


def test_load_refuses_files_that_extend_each_other(tmp_path):
    (tmp_path / "one.yaml").write_text("extends: two\n")
    (tmp_path / "two.yaml").write_text("extends: one\n")
    assert "one" in refused(load, tmp_path / "one.yaml")


def test_recipe_has_an_average_even_if_null_is_typed():
    assert load("cub_r50", {"model.head": None}).model.head == "average"
    assert load(None, {"model.head": None}).model.head is None


def test_load_of_an_empty_file_is_the_defaults(tmp_path):
    (tmp_path / "empty.yaml").touch()
    assert load(tmp_path / "empty.yaml") == Config(model=AVERAGE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"optim: [1,\n", "is not YAML: while parsing"),
        (b"\xff\xfe\x00", "is not YAML: 'utf-8' codec can't decode"),
        (b"- 1\n- 2\n", "holds no settings"),
        (b"just words\n", "holds no settings"),
        (b"model: &a {options: *a}\n", "has an alias"),
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "has an alias"),
        (b"{a: " * 3000, "has more than 20 brackets in one another"),
        (b"[" * 100_000, "has more than 20 brackets in one another"),
        (b"model: !!python/object/apply:os.system [ls]\n", "is not YAML: could not determine a constructor"),
        (b"seed: !!int ''\n", "is not YAML: "),
        (b"seed: 2001-99-99\n", "is not YAML: "),
        (b"seed: " + b"1" * 5000 + b"\n", "is not YAML: "),
        (b"#" * (2**20 + 1), "is too long: more than 1,048,576 bytes"),
    ],
    ids=[
        "open bracket",
        "bytes",
        "list",
        "words",
        "itself",
        "laughs",
        "deep",
        "deeper",
        "code",
        "tag",
        "date",
        "digits",
        "long",
    ],
)
def test_load_refuses_what_is_no_recipe(tmp_path, content, message):
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    assert f"{file} {message}" in refused(load, file)


@pytest.mark.parametrize(("name", "hint"), [("prts", "parts"), ("relations", "relation")])
def test_load_names_the_nearest_recipe(name, hint):
    assert refused(load, name) == f"there is no recipe {name!r}; did you mean {hint}?"


def test_load_lists_the_recipes_when_none_is_near():
    assert refused(load, "zzzzzz").endswith(f"; there is {', '.join(config.recipes())}")


def test_load_says_when_there_is_no_such_file():
    assert refused(load, "/nowhere/x.yaml") == "there is no file /nowhere/x.yaml"


def test_load_leaves_out_the_options_of_another_block():
    assert load("cub_r50_cgnl1", {"model.block": "nl"}).model.options == {}
    assert load("cub_r50_cgnl1", {"model.block": "cgnl"}).model.options == {"groups": 8}
    assert load("cub_r50_cgnl1", {"model.block": "cgnlx", "model.options.groups": 4}).model.options == {"groups": 4}


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("optim: {lrr: 1}", "optim.lrr", "optim.lr"),
        ("lr: 1", "lr", "optim.lr"),
        ("batch_size: 8", "batch_size", "optim.batch_size"),
        ("data: {test_clip: 3}", "data.test_clip", "data.test_clips"),
        ("model: {nam: resnet18}", "model.nam", "model.name"),
        ("sed: 1", "sed", "seed"),
    ],
)
def test_load_refuses_a_misspelt_key(tmp_path, text, name, hint):
    (tmp_path / "mine.yaml").write_text(text)
    expected = f"{tmp_path / 'mine.yaml'}: there is no setting {name!r}; did you mean {hint}?"
    assert refused(load, tmp_path / "mine.yaml") == expected


def test_load_counts_the_settings_when_none_is_near():
    assert f"no setting 'zzzzzz'; there are {len(setting_names())}, such as " in refused(load, None, {"zzzzzz": 1})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("optim.lr", "fast", "a number or null"),
        ("optim.lr", True, "a number or null"),
        ("optim.lr.x", 1, "a number or null"),
        ("data.size", 64.5, "a whole number or null"),
        ("data.size", "large", "a whole number or null"),
        ("data.flip", "perhaps", "true or false"),
        ("data.area", [0.5], "tuple[float, float]"),
        ("optim.drops", "never", "tuple[int, ...]"),
        ("optim.schedule", "linear", "one of cosine, step"),
        ("data.cache", "disk", "one of none, gpu"),
        ("data.augment", "auto", "one of none, trivial, rand"),
        ("data.mixup", "some", "a number"),
        ("precision", "64", "one of auto, 32, bf16, 16"),
    ],
)
def test_load_refuses_a_value_of_another_type(name, value, wanted):
    given = {"x": 1} if name.endswith(".x") else value
    assert refused(load, None, {name: value}) == f"{name.removesuffix('.x')} = {given} must be {wanted}"


@pytest.mark.parametrize("value", [16, 32])
def test_load_takes_a_precision_that_yaml_read_as_a_number(tmp_path, value):
    (tmp_path / "mine.yaml").write_text(f"precision: {value}\n")
    assert load(tmp_path / "mine.yaml").precision == str(value)


@pytest.mark.parametrize(
    "name", ["optim.epochs", "optim.batch_size", "data.frames", "model.blocks", "seed", "data.area"]
)
def test_load_refuses_nothing_where_a_value_is_needed(name):
    assert name in refused(load, None, {name: None})


@pytest.mark.parametrize("group", ["data", "model", "optim"])
@pytest.mark.parametrize("value", [None, 5, [1]], ids=str)
def test_load_says_that_a_group_holds_settings(group, value):
    message = refused(load, None, {group: value})
    assert message.startswith(group)
    assert "there is no setting" not in message


@pytest.mark.parametrize("paper", ["null", "{table: main results on CUB, top1: 85.14}", "{anything: [1]}"])
def test_load_ignores_the_papers_numbers_in_older_files(tmp_path, paper):
    """Recipes, run folders and checkpoints once held them."""
    (tmp_path / "config.yaml").write_text(f"extends: parts\npaper: {paper}\nseed: 3\n")
    assert load(tmp_path / "config.yaml") == load("parts", {"seed": 3})
    assert build({"seed": 3, "paper": yaml.safe_load(paper)}) == build({"seed": 3})
    assert "paper" in refused(load, None, {"paper.top1": 85.14})


POSITIVE = [
    *("data.size", "data.samples", "data.frames", "data.stride", "data.test_clips", "data.test_crops"),
    *("data.test_size", "data.test_short_side", "optim.lr", "optim.batch_size", "optim.accumulate", "optim.epochs"),
    *("optim.clip_norm", "model.blocks", "devices", "nodes", "test_every", "save_every", "patience"),
]


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", POSITIVE)
def test_load_refuses_what_must_be_more_than_nothing(name, value):
    given = float(value) if name in ("optim.lr", "optim.clip_norm") else value
    assert refused(load, None, {name: value}) == f"{name} = {given} must be more than 0"


def test_load_refuses_a_rate_that_is_no_number():
    assert refused(load, None, {"optim.lr": float("nan")}) == "optim.lr = nan must be more than 0"


@pytest.mark.parametrize("name", ["optim.warmup_epochs", "data.bad_limit", "data.workers"])
def test_load_refuses_what_must_not_be_negative(name):
    assert refused(load, None, {name: -1}) == f"{name} = -1 must be at least 0"
    load(None, {name: 0})


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5])
@pytest.mark.parametrize("name", ["data.holdout", "model.dropout", "optim.ema"])
def test_load_refuses_what_is_no_share(name, value):
    assert re.search(rf"^{name} = {value} .*[01]$", refused(load, None, {name: value}))
    load(None, {name: 0.0})


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_load_refuses_a_smoothing_that_is_no_share(value):
    assert refused(load, None, {"optim.label_smoothing": value}).startswith(f"optim.label_smoothing = {value} ")


EVERYTHING = Config(
    Data("cub", "birds", holdout=0.1, area=(0.5, 1.0), test_size=32, workers=3, cache="gpu", augment="rand", mixup=0.2),
    Model("resnet50", None, 5, options={"groups": 4, "norm": "group"}, weights="weights.pth", dropout=0.0),
    Optim(0.5, drops=(1, 2), schedule="step", clip_norm=1.0, ema=0.5),
    name="12",
    precision="32",
    patience=3,
    devices=2,
)


@pytest.mark.parametrize("settings", [Config(), EVERYTHING], ids=["defaults", "everything"])
def test_to_yaml_is_read_back_as_it_was(tmp_path, settings):
    assert build(yaml.safe_load(to_yaml(settings))) == settings
    (tmp_path / "config.yaml").write_text(to_yaml(settings))
    written = dataclasses.replace(settings, model=dataclasses.replace(settings.model, head="average"))
    assert load(tmp_path / "config.yaml") == written


@pytest.mark.parametrize("settings", [Config(), EVERYTHING], ids=["defaults", "everything"])
def test_plain_can_be_written_as_json(settings):
    assert build(json.loads(json.dumps(to_dict(settings)))) == settings


def test_plain_names_every_setting():
    assert to_dict(EVERYTHING)["data"]["area"] == [0.5, 1.0]
    tree = to_dict(EVERYTHING)
    names = [n if not isinstance(v, dict) else [f"{n}.{k}" for k in v] for n, v in tree.items()]
    assert sorted(n for part in names for n in ([part] if isinstance(part, str) else part)) == sorted(setting_names())


def test_merge_goes_into_groups_and_changes_nothing():
    base, over = {"a": {"x": 1, "y": 2}, "b": 3, "c": {"z": 1}}, {"a": {"y": 4}, "c": 5, "d": {"w": 6}}
    assert merge(base, over) == {"a": {"x": 1, "y": 4}, "b": 3, "c": 5, "d": {"w": 6}}
    assert base == {"a": {"x": 1, "y": 2}, "b": 3, "c": {"z": 1}}


def test_nested_makes_groups_of_dotted_names():
    assert nest({"a.b.c": 1, "a.b.d": 2, "a": {"e": 3}, "f": 4}) == {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4}


def test_recipes_leaves_out_what_is_only_extended():
    assert {"parts", "relation", "actions", "cub_r50_cgnl1"} <= set(config.recipes())
    assert not any(name.startswith("base") for name in config.recipes())


def test_config_is_imported_without_anything_heavy():
    heavy = ["torch", "numpy", "torchvision", "lightning", "jsonargparse", "yaml"]
    script = f"import sys, cgnl.engine.config; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_load_needs_no_torch():
    script = "import sys; from cgnl.engine.config import load; load('cub_r50'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("base", ["3", "[parts]", "true", "{a: 1}"])
def test_load_refuses_to_extend_what_is_no_name(tmp_path, base):
    (tmp_path / "mine.yaml").write_text(f"extends: {base}\n")
    assert "is not the name of a recipe" in refused(load, tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("data.size", 10**9, "data.size = 1000000000 must be at most 8,192"),
        ("data.workers", 10**6, "data.workers = 1000000 must be at most 512"),
        ("data.frames", 10**6, "data.frames = 1000000 must be at most 1,024"),
        ("optim.epochs", 10**30, f"optim.epochs = {10**30} must be at most 1,000,000"),
        ("seed", -1, "seed = -1 must be at least 0"),
        ("seed", 2**32, f"seed = {2**32} must be at most 4,294,967,295"),
    ],
)
def test_load_refuses_what_no_machine_has(name, value, message):
    assert refused(load, None, {name: value}) == message


def test_load_refuses_options_that_are_no_yaml():
    assert "model.options.groups = [1 is not YAML" in refused(load, None, {"model.options.groups": "[1"})


NAMES = st.sampled_from([*setting_names(), "data", "model", "x", "model.options.groups"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({"a": 1})


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=3))
def test_settings_are_built_or_refused_whatever_they_are(tree):
    with contextlib.suppress(ValueError):
        load(None, tree)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.name": "resnet5"}, "model.name = resnet5 .*did you mean resnet50?"),
        ({"model.name": "vgg"}, "model.name = vgg .*there is resnet18, "),
        ({"data.dataset": "cubb"}, "'cubb'; did you mean cub?"),
        ({"model.options.group": "4"}, "model.options.group .*did you mean model.options.groups?"),
        ({"model.options.groups": "many"}, "model.options.groups = many must be a whole number"),
        ({"model.options.groups": "0"}, "model.options.groups = 0 must be more than 0"),
        ({"model.options": "{norm: layer}"}, "model.options.norm = layer must be one of batch, group or null"),
        ({"model.block": "nl", "model.options.groups": 4}, "model.options.groups .*block nl; there is model.options"),
        ({"optim.solver": "adam"}, "'optim.solver'; there is optim.lr, "),
    ],
    ids=str,
)
def test_load_refuses_names_that_there_are_not(settings, message):
    assert re.search(message.replace("?", r"\?"), refused(load, None, settings))


def test_build_takes_a_network_that_nobody_knows():
    assert build({"model": {"name": "theirs", "options": {"theirs": 1}}}).model.options == {"theirs": 1}


@pytest.mark.parametrize(
    ("overrides", "recipe"),
    [
        ({}, "parts"),
        ({"data.dataset": "actions"}, "actions"),
        ({"data": {"annotations": "a.json"}}, "base_objects"),
        ({"data.dataset": "coco"}, "base_objects"),
        ({"data.root": "birds"}, None),
        ({"data.dataset": "cub", "optim.lr": "1"}, None),
    ],
    ids=str,
)
def test_default_recipe_suits_the_dataset(overrides, recipe):
    assert config.default_recipe(overrides) == recipe


def test_check_overrides_leaves_open_what_depends_on_the_recipe():
    config.check_overrides({"model.options.subsample": "true", "optim.lr": "0.1"})
    assert "optim.lr" in refused(config.check_overrides, {"optim.lr": "fast"})
    assert "model.name" in refused(config.check_overrides, {"model.name": "resnet5"})
