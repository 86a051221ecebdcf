#!/bin/sh
# Every command behind the default adapter and benchmarks/results/finetuning.
#
#   sh benchmarks/finetuning.sh DATA DIR
#
# DATA holds train/*.jsonl.gz and eval/*.jsonl (the schema is in docs/evaluation-data.md); runs and
# the cache of encoded passages go to DIR, whose indexes/ holds what benchmarks/multihop.sh built. On
# two cores: about three hours. What was cut off goes on when it is run again.
set -eu
data=$1 dir=$2

multihop="--data $data/train/hotpotqa.jsonl.gz --data $data/train/2wikimqa.jsonl.gz
    --data $data/train/musique.jsonl.gz --against $data/eval/hotpotqa.jsonl
    --against $data/eval/2wikimqa.jsonl --against $data/eval/musique.jsonl"

# the default adapter
coinkv train "$dir/runs/smollm2-135m-instruct-nuggets" $multihop \
    --data "$data/train/squad.jsonl.gz=0.33" --data "$data/train/nq_oracle.jsonl.gz=0.33" --rows 720 \
    --dev "$data/eval/hotpotqa.jsonl" --dev "$data/eval/2wikimqa.jsonl" \
    --dev "$data/eval/musique.jsonl" --dev-limit 16 --evaluate-every 90 --keep last \
    --micro-batch 8 --accumulation 1 --epochs 3 --no-checkpointing --cache "$dir/cache" \
    --licence CC-BY-SA-4.0 \
    --attribution "base: SmolLM2-135M-Instruct (Hugging Face), Apache-2.0" \
    --attribution "HotpotQA (Yang et al. 2018), CC BY-SA 4.0" \
    --attribution "2WikiMultihopQA (Ho et al. 2020), Apache-2.0" \
    --attribution "MuSiQue (Trivedi et al. 2022), CC BY 4.0" \
    --attribution "SQuAD (Rajpurkar et al. 2016), CC BY-SA 4.0" \
    --attribution "Natural Questions (Kwiatkowski et al. 2019), CC BY-SA 3.0"

# controls and ablations: the same 240 rows once, in 30 steps of 8 rows; plain RAG, whose steps cost
# many times as much, ends after the 12 steps that take about as long, encoding included
trained() {
    name=$1
    shift
    coinkv train "$dir/runs/$name" $multihop --rows 240 --cache "$dir/cache" "$@"
}
trained coinrag_live --objective coinrag --micro-batch 8 --accumulation 1 --no-checkpointing
trained chunks_live --objective standard_cag --micro-batch 8 --accumulation 1 --no-checkpointing
trained coinrag_all --objective coinrag --through-cache --micro-batch 2 --accumulation 4
trained plain_rag --objective standard_rag --micro-batch 1 --accumulation 8 --no-checkpointing --steps 12
trained turborag_live --objective turborag --micro-batch 8 --accumulation 1 --no-checkpointing

# the default adapter, on the test halves; then what is in $dir/runs/.../adapter with "default": true on
# its card is src/coinkv/shipped_adapters/smollm2-135m-instruct-nuggets
gain() {
    out=$1
    shift
    python benchmarks/adapter_gain.py --data "$data/eval" --indexes "$dir/indexes" --out "$out" "$@"
}
runs=$dir/runs
gain default.json --leads "" "The answer is:" --ask none none coinrag \
    --ask adapter "$runs/smollm2-135m-instruct-nuggets/adapter" coinrag --pair adapter none
gain controls.json --ask none none coinrag --ask coinrag_live "$runs/coinrag_live/adapter" coinrag \
    --ask chunks_live_on_nuggets "$runs/chunks_live/adapter" coinrag \
    --ask chunks_live "$runs/chunks_live/adapter" standard_cag --ask chunks_none none standard_cag \
    --ask turborag_live "$runs/turborag_live/adapter" turborag --ask turborag_none none turborag \
    --pair coinrag_live none --pair chunks_live chunks_none --pair turborag_live turborag_none \
    --pair coinrag_live chunks_live_on_nuggets --pair coinrag_live turborag_live
gain scope.json --ask none none coinrag --ask coinrag_live "$runs/coinrag_live/adapter" coinrag \
    --ask coinrag_all "$runs/coinrag_all/adapter" coinrag --pair coinrag_all coinrag_live
gain plain.json --limit 12 --ask plain_none none standard_rag \
    --ask plain_rag "$runs/plain_rag/adapter" standard_rag \
    --ask default_on_plain "$runs/smollm2-135m-instruct-nuggets/adapter" standard_rag \
    --pair plain_rag plain_none --pair default_on_plain plain_none

# the default adapter behind the mark that a server's own indexes have: the first 30 dev questions of
# two sets, over their own passages
for set in hotpotqa 2wikimqa; do
    python benchmarks/first_questions.py "$data/eval/$set.jsonl" --half dev --limit 30 \
        --to "$dir/first/$set.jsonl"
    coinkv build "$dir/first/$set.jsonl" --index "$dir/marked/$set/sentences" --mark
    coinkv build "$dir/first/$set.jsonl" --index "$dir/unmarked/$set/sentences" --no-mark
done
marked() {
    kind=$1
    shift
    gain marked.json --indexes "$dir/$kind" --sets hotpotqa 2wikimqa --half dev --limit 30 \
        --ask "none_$kind" none coinrag --ask "adapter_$kind" smollm2-135m-instruct-nuggets coinrag \
        --pair "adapter_$kind" "none_$kind" "$@"
}
marked unmarked
marked marked --pair adapter_unmarked none_unmarked --pair adapter_marked adapter_unmarked \
    --pair none_marked none_unmarked
