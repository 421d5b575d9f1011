#!/usr/bin/env bash
# Make .venv with every part: torch first (CPU build unless an NVIDIA GPU is present), then the lock, then SGLang.
# Run again at any time: it does nothing when the lock has not changed. No root needed.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3.11}
TORCH=2.13.0
SGLANG=0.5.23
LOCK=infra/requirements.lock
STAMP=.venv/.installed

command -v "$PYTHON" >/dev/null || { echo "setup: $PYTHON not found. Install Python 3.11, or set PYTHON to one." >&2; exit 1; }
want=$(cat "$LOCK" pyproject.toml infra/setup.sh | sha256sum)
if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$want" ]; then exit 0; fi

free_gb=$(df -Pk . | awk 'NR==2 {print int($4 / 1048576)}')
[ "$free_gb" -ge 8 ] || { echo "setup: $free_gb GB free here, 8 GB needed. Free some space and run it again." >&2; exit 1; }

[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
.venv/bin/python -m pip --version >/dev/null
.venv/bin/python -m pip install -q --disable-pip-version-check 'uv>=0.9'
# compiled once here: else every start of every process compiles what it imports, where PYTHONDONTWRITEBYTECODE is set
export UV_COMPILE_BYTECODE=1
export VIRTUAL_ENV="$PWD/.venv" UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"
# a mirror that pip knows by its settings is told to uv as well
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"; fi
if [ -n "${PIP_CERT:-}" ]; then export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"; fi
UV=.venv/bin/uv

echo "setup: torch $TORCH"
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    $UV pip install -q "torch==$TORCH" "sglang==$SGLANG"
else
    # a CPU build beside us first, else torch's own CPU index
    { [ -n "$UV_FIND_LINKS" ] && $UV pip install -q "torch==$TORCH+cpu" 2>/dev/null; } \
        || $UV pip install -q --torch-backend cpu "torch==$TORCH"
    echo "setup: packages of the lock"
    $UV pip install -q --no-deps -r "$LOCK"
    echo "setup: sglang $SGLANG (its CPU path: without its own list, which pins CUDA packages)"
    $UV pip install -q --no-deps "sglang==$SGLANG"
fi
echo "setup: the project"
$UV pip install -q --no-deps -e .
.venv/bin/python - <<'PY'
import importlib.util as u, torch
missing = [m for m in ("ray", "mlflow", "megatron.core", "sglang", "polars", "prefect") if u.find_spec(m) is None]
assert not missing, f"setup: not installed: {missing}"
print(f"setup: ready (torch {torch.__version__}, {'CUDA' if torch.version.cuda else 'CPU'})")
PY
echo "$want" >"$STAMP"
