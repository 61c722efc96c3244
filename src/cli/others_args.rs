//! Flags that llama-server has and users of it type: those that ask for what this server does anyway are
//! taken, those that ask for what it does not do are refused, each with the way out.

use clap::Args;

use super::CliError;

/// Flags of llama-server, not shown in the help.
#[derive(Args, Clone, Debug, Default)]
pub struct OthersArgs {
    // What is so anyway.
    #[arg(long, hide = true)]
    jinja: bool,
    #[arg(long, alias = "cont-batching", hide = true)]
    kv_unified: bool,
    #[arg(long, hide = true)]
    cache_prompt: bool,
    #[arg(long, hide = true)]
    props: bool,
    #[arg(long, hide = true)]
    no_context_shift: bool,
    #[arg(long, hide = true)]
    no_warmup: bool,
    #[arg(long, hide = true)]
    offline: bool,
    #[arg(long, alias = "fa", value_name = "HOW", num_args = 0..=1, hide = true)]
    flash_attn: Option<Option<String>>,
    #[arg(long, alias = "ngl", alias = "n-gpu-layers", value_name = "N", hide = true)]
    gpu_layers: Option<String>,
    // What is not here.
    #[arg(long, hide = true)]
    context_shift: bool,
    #[arg(long, alias = "embeddings", hide = true)]
    embedding: bool,
    #[arg(long, alias = "rerank", hide = true)]
    reranking: bool,
    #[arg(long, value_name = "FILE", hide = true)]
    lora: Option<String>,
    #[arg(long, value_name = "FILE", hide = true)]
    mmproj: Option<String>,
    #[arg(long, alias = "md", value_name = "FILE", hide = true)]
    model_draft: Option<String>,
    #[arg(long, alias = "hf", value_name = "REPO", hide = true)]
    hf_repo: Option<String>,
    #[arg(long, value_name = "URL", hide = true)]
    model_url: Option<String>,
    #[arg(long, value_name = "PREFIX", hide = true)]
    api_prefix: Option<String>,
    #[arg(long, alias = "no-webui", hide = true)]
    no_ui: bool,
}

impl OthersArgs {
    /// Says what of them is not here.
    ///
    /// # Errors
    /// The first flag that asks for something else than this server does, and what to do instead.
    pub fn check(&self) -> Result<(), CliError> {
        let layers = self.gpu_layers.as_deref();
        let (no_layers, some_layers) = (
            layers == Some("0"),
            layers.is_some_and(|n| !["0", "99", "999", "-1", "all", "auto"].contains(&n)),
        );
        let refused = [
            (
                self.context_shift,
                "--context-shift",
                "an answer ends where its context does; -c makes it longer",
            ),
            (self.embedding, "--embedding", "this server generates text"),
            (self.reranking, "--reranking", "this server generates text"),
            (self.lora.is_some(), "--lora", "merge the adapter into the model's file"),
            (self.mmproj.is_some(), "--mmproj", "models read text alone"),
            (self.model_draft.is_some(), "--model-draft", "there is no speculative decoding"),
            (self.hf_repo.is_some(), "--hf-repo", "download the file, and name it with -m"),
            (self.model_url.is_some(), "--model-url", "download the file, and name it with -m"),
            (self.api_prefix.is_some(), "--api-prefix", "let a proxy take the prefix off"),
            (self.no_ui, "--no-ui", "the page cannot be switched off; a proxy can leave it out"),
            (no_layers, "--gpu-layers 0", "--backend cpu runs a model without a card"),
            (some_layers, "--gpu-layers", "a model runs on one backend whole; --backend names it"),
        ];
        match refused.iter().find(|(asked, ..)| *asked) {
            Some((_, flag, way)) => Err(format!("{flag} is not supported: {way}").into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: OthersArgs,
    }

    #[test]
    fn flags_of_llama_server_are_taken_or_refused_with_the_way_out() {
        let check = |args: &[&str]| {
            let args = std::iter::once("serve").chain(args.iter().copied());
            Only::try_parse_from(args).unwrap().args.check().map_err(|err| err.to_string())
        };
        for args in [&["--jinja"][..], &["--flash-attn"], &["--flash-attn", "on"], &["--gpu-layers", "99"]] {
            assert_eq!(check(args), Ok(()), "{args:?}");
        }
        let refused = [
            (&["--hf-repo", "a/b"][..], "-m"),
            (&["--gpu-layers", "12"], "--backend"),
            (&["--no-ui"], "page"),
        ];
        for (args, words) in refused {
            let message = check(args).unwrap_err();
            assert!(message.starts_with(args[0]) && message.contains(words), "{message}");
        }
    }
}
