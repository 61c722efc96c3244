"""Evaluates a model inside this process with EleutherAI's lm-eval, which must be installed:

    python -m sterna.lm_eval --model sterna --model_args pretrained=model.gguf,n_ctx=4096 --tasks arc_easy

Further `model_args` are parameters of `sterna.Engine`. Texts are scored and generated in one batch.
"""

from __future__ import annotations

from typing import Any, Optional

import lm_eval.__main__
from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from . import Engine

#: Maximum tokens of an answer, unless the task sets it: lm-eval's own default.
MAX_TOKENS = 256


@register_model("sterna")
class Sterna(TemplateLM):  # type: ignore[misc]
    """A model of Sterna for lm-eval."""

    def __init__(self, pretrained: Optional[str] = None, add_bos_token: bool = False, **options: Any) -> None:
        super().__init__()
        self._add_special = add_bos_token
        # lm-eval gives these to every model.
        for name in ("batch_size", "max_batch_size", "device"):
            options.pop(name, None)
        self.engine = Engine(pretrained, **options)
        special = self.engine.special_tokens
        eos = special["eos"] if special["eos"] is not None else special["eot"]
        if eos is None:
            raise ValueError("the model has no token for ends, which lm-eval needs")
        self._eos, self._bos = eos, special["bos"]

    @property
    def eot_token_id(self) -> int:
        """The token that ends texts."""
        return self._eos

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        return self._eos if self._bos is None else self._bos

    @property
    def max_length(self) -> int:
        """Maximum positions of a text."""
        return self.engine.n_ctx

    @property
    def tokenizer_name(self) -> str:
        """Name of the model, for caches of requests."""
        return str(self.engine.properties["model_alias"])

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> list[int]:
        """Tokens of a text, by default without those of beginnings and ends, as in lm-eval's other models:
        `add_bos_token=True` adds them."""
        add_special = self._add_special if add_special_tokens is None else add_special_tokens
        tokens: list[int] = self.engine.tokenize(string, add_special=add_special)
        return tokens

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as text."""
        parameters = {} if add_generation_prompt else {"continue_final_message": True}
        parameters["add_generation_prompt"] = add_generation_prompt
        return self.engine.apply_template(chat_history, **parameters)

    def chat_template(self, chat_template: Any = False) -> Optional[str]:
        """The template of the model, for records of the evaluation."""
        return str(self.engine.properties["chat_template"]) if chat_template else None

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        pairs, most = [], self.max_length
        for _, context, continuation in requests:
            # Only the last tokens of a context count, and the last of the continuation predicts nothing.
            tokens = (context + continuation)[-most:]
            n_after = min(len(continuation), len(tokens) - 1)
            pairs.append((tokens[:-n_after], tokens[-n_after:]))
        scores = [tuple(score) for score in self.engine.score_many(pairs, progress=not disable_tqdm)]
        for (strings, _, _), score in zip(requests, scores):
            if strings is not None:
                self.cache_hook.add_partial("loglikelihood", strings, score)
        return scores  # type: ignore[return-value]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, of which long ones are scored in windows."""
        windows, counts = [], []
        for (text,) in [request.args for request in requests]:
            of_text = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            of_text = [(None, *utils.make_disjoint_window(window)) for window in of_text]
            windows += of_text
            counts.append(len(of_text))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        return [sum(next(scores)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The text after each context."""
        texts = []
        for context, asked in [request.args for request in requests]:
            options = dict(asked)
            until = options.pop("until", None) or []
            until = [until] if isinstance(until, str) else list(until)
            most = options.pop("max_gen_toks", options.pop("max_tokens", MAX_TOKENS))
            options.pop("do_sample", None)
            tokens = self.tok_encode(context)[-(self.max_length - most) :]
            same: dict[str, Any] = {"max_tokens": most, "stop": until, "temperature": 0, "seed": 1234}
            texts.append(self.engine.generate(tokens, **same | options))
        answers = [str(text) for text in texts]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


if __name__ == "__main__":
    lm_eval.__main__.cli_evaluate()
