#!/bin/sh
# Compare the formulas of circuitbook/autoencoders/sae.py with those of sae-lens on the same weights.
#
# sae-lens asks for TransformerLens below 4, so it has an environment of its own, build/sae-lens,
# with the project's torch. It is made at the first call (some minutes) and kept. Optional: nothing
# else in the project needs it.
#   tools/sae_lens_check.sh
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)
env=build/sae-lens
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3

if ! [ -f "$env/ready" ]; then
    echo "making $env with sae-lens 6"
    rm -rf "$env"
    "$python" -m venv "$env"
    torch=$(grep -i '^torch==' constraints.txt 2>/dev/null || echo 'torch==2.13.0')
    "$env/bin/python" -m pip install --quiet 'sae-lens>=6,<7' "$torch" jaxtyping
    touch "$env/ready"
fi

PYTHONPATH="$here/src" exec "$env/bin/python" tools/sae_lens_check.py "$@"
