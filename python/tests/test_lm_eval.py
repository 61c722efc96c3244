"""Tests of lm-eval's model, compared with its model for servers of OpenAI's API."""

import json

import pytest

import sterna

lm_eval = pytest.importorskip("lm_eval")
api = pytest.importorskip("lm_eval.models.openai_completions")

TEXTS = ["Once upon a time there was a rabbit. It lived in a wood.", "The hen sat in the house."]
QUESTIONS = [
    {"question": "Once upon a", "choices": ["time", "house", "zebra"], "answer": 0},
    {
        "question": "There was a little rabbit who lived in a",
        "choices": ["wood", "sky", "of"],
        "answer": 0,
    },
    {"question": "The girl was", "choices": ["happy", "of the", "under under"], "answer": 0},
]


def tasks(folder):
    """Three tasks of lm-eval: a choice, a text that is scored, and one that is generated."""
    folder.joinpath("questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    folder.joinpath("texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))

    def task(name, file, output, **more):
        data = {"data_files": {"test": str(folder / file)}}
        return (
            {"task": name, "dataset_path": "json", "dataset_kwargs": data, "test_split": "test"}
            | {"output_type": output}
            | more
        )

    choice = {"doc_to_text": "{{question}}", "doc_to_choice": "choices", "doc_to_target": "answer"}
    metrics = ["acc", "acc_norm"]
    until = {"until": ["."], "max_gen_toks": 12, "do_sample": False}
    return [
        task(
            "choice",
            "questions.jsonl",
            "multiple_choice",
            metric_list=[{"metric": of} for of in metrics],
            **choice,
        ),
        task(
            "rolling",
            "texts.jsonl",
            "loglikelihood_rolling",
            doc_to_text="",
            doc_to_target="{{text}}",
            metric_list=[{"metric": "word_perplexity"}],
        ),
        task(
            "generated",
            "questions.jsonl",
            "generate_until",
            generation_kwargs=until,
            doc_to_text="{{question}}",
            doc_to_target="{{choices[0]}}",
            metric_list=[{"metric": "exact_match"}],
        ),
    ]


def test_scores_equal_those_over_http(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from sterna.lm_eval import Sterna

    def evaluated(model):
        done = lm_eval.simple_evaluate(
            model=model, tasks=tasks(tmp_path), bootstrap_iters=0, log_samples=True
        )
        samples = {name: [sample["filtered_resps"] for sample in of] for name, of in done["samples"].items()}
        results = {
            name: {of: value for of, value in result.items() if isinstance(value, float)}
            for name, result in done["results"].items()
        }
        return results, samples

    with_bos, _ = evaluated(Sterna(backend="cpu", n_ctx=512, add_bos_token=True))
    assert with_bos["choice"]["acc,none"] == pytest.approx(2 / 3)
    results, samples = evaluated(Sterna(backend="cpu", n_ctx=512))
    assert samples["generated"][0][0]
    with sterna.Engine(backend="cpu", n_ctx=512) as engine, engine.serve(port=0) as server:
        arguments = {
            "model": "sterna",
            "base_url": f"{server.base_url}/completions",
            "tokenizer_backend": "remote",
        }
        model = lm_eval.api.registry.get_model("local-completions")(
            **arguments, num_concurrent=1, max_length=512
        )
        theirs, their_samples = evaluated(model)
    assert results == {name: pytest.approx(of, rel=1e-3) for name, of in theirs.items()}
    assert samples["generated"] == their_samples["generated"]
