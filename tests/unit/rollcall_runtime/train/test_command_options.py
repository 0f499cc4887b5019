"""What the arguments of `rollcall-train` mean."""

import argparse

import pytest

from rollcall_protocol.data_config import DataSource
from rollcall_runtime.train.command_options import setting, source


def test_a_source_is_a_name_and_its_settings() -> None:
    assert source("/data/p.jsonl") == DataSource("/data/p.jsonl")
    assert source("org/math,weight=3,split=test,subset=main,column=q,columns=a+b") == DataSource(
        "org/math", weight=3, split="test", subset="main", column="q", columns=("a", "b")
    )
    assert source("builtin:reasoning-gym/sums,config.min_terms=2,config.kind=a") == DataSource(
        "builtin:reasoning-gym/sums", config={"min_terms": 2, "kind": "a"}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p.jsonl,weigth=3", "'weigth=3' is not KEY=VALUE with one of weight, subset, split"),
        ("p.jsonl,weight", "'weight' is not KEY=VALUE"),
        ("p.jsonl,weight=many", "'weight=many': invalid literal"),
        ("p.jsonl,weight=0", "a weight must be from 1 to 10000, not 0"),
        (",weight=1", "a source needs a name"),
        ("builtin:a/b,config.=1", "'=1' is not KEY=VALUE"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        source(text)


def test_a_setting_has_the_values_of_a_manifest() -> None:
    assert setting("packing=true") == ("packing", True)
    assert setting("maxTokensPerMicrobatch=512") == ("maxTokensPerMicrobatch", 512)
    assert setting("schedule=cosine") == ("schedule", "cosine")
    with pytest.raises(argparse.ArgumentTypeError, match="'packing' is not KEY=VALUE"):
        setting("packing")
