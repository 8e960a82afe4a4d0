"""What needs no extra works without any: `pip install tether` and nothing else."""

import json
import subprocess
import sys

EXTRAS = (
    "gguf", "httpx", "matplotlib", "peft", "playwright", "psycopg", "ray", "scipy", "sqlalchemy", "starlette", "tensorboardX", "trackio",
    "uvicorn", "vllm", "wandb",
)  # fmt: skip

CODE = """
import sys
for name in {extras!r}:
    sys.modules[name] = None  # importing it fails
import tether.api, tether.api_direct, tether.audit_rows, tether.cli_collect, tether.cli_evaluate, tether.compare, tether.dryrun, tether.labs
import tether.report.reward_audit
import tether.run.reward_audit.audit
from tether.run.reward_audit.pairs import load_pairs
print("pairs", len(load_pairs({path!r}, None, None, {{}}).pairs))
"""


def test_training_reporting_and_auditing_a_file_need_no_extra(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{n}", "chosen": "a" * (n + 2), "rejected": "b"}) + "\n" for n in range(40)))
    code = CODE.format(extras=EXTRAS, path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pairs 40" in done.stdout
