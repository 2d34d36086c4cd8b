#!/bin/sh
# Run the model and fold tests with the other major of TransformerLens.
#
# The environment of the project holds 4.x; this one, build/tl39, holds 3.9 with the same torch.
# It is made at the first call (a minute or two) and kept. Arguments go to pytest:
#   tools/other_transformer_lens.sh -k gelu
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)
env=build/tl39
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3

if ! [ -f "$env/ready" ]; then
    echo "making $env with transformer_lens 3.9"
    rm -rf "$env"
    "$python" -m venv "$env"
    # Only what the model needs; torch as in constraints.txt, the rest as 3.9 asks for it.
    torch=$(grep -i '^torch==' constraints.txt 2>/dev/null || echo 'torch==2.13.0')
    "$env/bin/python" -m pip install --quiet \
        'transformer_lens==3.9.*' "$torch" pytest jaxtyping beartype
    touch "$env/ready"
fi

"$env/bin/python" -c '
from importlib.metadata import version
print("transformer_lens", version("transformer_lens"), "- torch", version("torch"))'

# --noconftest: fixtures of other chapters may need packages that this environment leaves out.
PYTHONPATH="$here/src" exec "$env/bin/python" -m pytest --noconftest -q \
    -W "ignore:HookedTransformer is deprecated:DeprecationWarning" \
    -o cache_dir="$here/build/tl39/pytest_cache" \
    tests/test_config.py tests/test_model.py tests/test_model_hooks.py \
    tests/test_model_lens.py tests/test_fold.py tests/test_published_fold.py "$@"
