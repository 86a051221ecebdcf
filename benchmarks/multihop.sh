#!/bin/sh
# Every command behind benchmarks/results/sweep and benchmarks/results/report.
#
#   sh benchmarks/multihop.sh DATA DIR [MODEL]
#
# DATA holds hotpotqa.jsonl, 2wikimqa.jsonl, musique.jsonl and covidqa_long.jsonl (the schema is in
# docs/evaluation-data.md); indexes and results go to DIR. MODEL is a second backbone, for example the
# folder that benchmarks/second_backbone.py makes. On two cores: several hours. A sweep that
# was stopped goes on when it is run again. Timing wants a quiet machine.
set -eu
data=$1 dir=$2 grids=benchmarks/grids
sets="hotpotqa 2wikimqa musique"

for set in $sets; do
    to="$dir/dev_$set.jsonl"
    for grid in dev ablations titles; do
        coinkv sweep "$data/$set.jsonl" --folder "$dir" --to "$to" --half dev --limit 24 \
            --grid "$grids/$grid.json"
    done
    for grid in dev_timed titles; do
        coinkv sweep "$data/$set.jsonl" --folder "$dir" --to "$to" --half dev --limit 24 \
            --grid "$grids/$grid.json" --timed-queries 24
    done
done

for set in $sets; do
    to="$dir/test_$set.jsonl"
    coinkv sweep "$data/$set.jsonl" --folder "$dir" --to "$to" --half test \
        --chosen-from "$dir/dev_hotpotqa.jsonl" --chosen-from "$dir/dev_2wikimqa.jsonl" \
        --chosen-from "$dir/dev_musique.jsonl" --budget 1x --budget none --timed-queries 150
    coinkv sweep "$data/$set.jsonl" --folder "$dir" --to "$to" --half test \
        --grid "$grids/ablations_test.json"
    coinkv sweep "$data/$set.jsonl" --folder "$dir" --to "$to" --half test \
        --grid "$grids/windows.json" --extractor windows
    coinkv sweep "$data/$set.jsonl" --folder "$dir" --to "$to" --half test \
        --grid "$grids/judged.json" --timed-queries 1000
done

coinkv sweep "$data/covidqa_long.jsonl" --folder "$dir" --to "$dir/covidqa_long.jsonl" \
    --half test --limit 24 --grid "$grids/long_documents.json" --timed-queries 200 --slow-queries 40

if [ $# -gt 2 ]; then
    mkdir -p "$dir/first16"
    head -n 16 "$data/hotpotqa.jsonl" > "$dir/first16/hotpotqa.jsonl"
    coinkv sweep "$dir/first16/hotpotqa.jsonl" --folder "$dir/second" --to "$dir/qwen.jsonl" \
        --half all --grid "$grids/second_backbone.json" --model "$3"
fi

coinkv report "$dir"/dev_*.jsonl "$dir"/test_*.jsonl --out "$dir/report"
