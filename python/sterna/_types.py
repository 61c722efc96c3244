"""Types of parameters, for type checkers. Written by python/generate_types.py."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Union

#: The value of a flag.
Value = Union[str, int, float, bool, "os.PathLike[str]", "Sequence[Union[str, int, float]]", None]


class Flags(TypedDict, total=False):
    """Flags of `Engine` that are not in its signature."""

    act_type: Value
    adaptive_decay: Value
    adaptive_target: Value
    agent: Union[bool, None]
    alias: Value
    allow_credentials: Union[bool, None]
    allowed_headers: Value
    allowed_local_media_path: Value
    allowed_methods: Value
    allowed_origins: Value
    api_prefix: Value
    api_server_count: Value
    async_scheduling: Union[bool, None]
    attention_backend: Value
    backend_sampling: Union[bool, None]
    batch_size: Value
    binary_file: Value
    block_size: Value
    cache_idle_slots: Union[bool, None]
    cache_list: Union[bool, None]
    cache_prompt: Union[bool, None]
    cache_ram: Value
    cache_reuse: Value
    cache_type_k: Value
    cache_type_k_draft: Value
    cache_type_v: Value
    cache_type_v_draft: Value
    calculate_kv_scales: Union[bool, None]
    chat_format: Value
    chat_template: Value
    chat_template_content_format: Value
    chat_template_file: Value
    chat_template_kwargs: Value
    check_tensors: Union[bool, None]
    checkpoint_min_step: Value
    code_revision: Value
    compilation_config: Value
    completion_bash: Union[bool, None]
    config: Value
    cont_batching: Union[bool, None]
    context_shift: Union[bool, None]
    control_vector: Value
    control_vector_layer_range: Value
    control_vector_scaled: Value
    convert: Value
    cors_credentials: Union[bool, None]
    cors_headers: Value
    cors_methods: Value
    cpu_mask: Value
    cpu_mask_batch: Value
    cpu_mask_batch_draft: Value
    cpu_mask_draft: Value
    cpu_moe: Union[bool, None]
    cpu_moe_draft: Union[bool, None]
    cpu_offload_gb: Value
    cpu_range: Value
    cpu_range_batch: Value
    cpu_range_batch_draft: Value
    cpu_range_draft: Value
    cpu_strict: Value
    cpu_strict_batch: Value
    cpu_strict_batch_draft: Value
    cpu_strict_draft: Value
    ctx_checkpoints: Value
    ctx_size: Value
    ctx_size_draft: Value
    cuda_graph_sizes: Value
    data_parallel_size: Value
    default_chat_template_kwargs: Value
    defrag_thold: Value
    device: Value
    device_draft: Value
    dialect: Value
    direct_io: Union[bool, None]
    disable_custom_all_reduce: Union[bool, None]
    disable_frontend_multiprocessing: Union[bool, None]
    disable_log_requests: Union[bool, None]
    disable_log_stats: Union[bool, None]
    distributed_executor_backend: Value
    docker_repo: Value
    download_dir: Value
    draft: Value
    draft_max: Value
    draft_min: Value
    draft_n: Value
    draft_n_min: Value
    draft_p_min: Value
    draft_p_split: Value
    dry_allowed_length: Value
    dry_base: Value
    dry_multiplier: Value
    dry_penalty_last_n: Value
    dry_sequence_breaker: Value
    dtype: Value
    dynatemp_exp: Value
    dynatemp_range: Value
    embd_bge_small_en_default: Union[bool, None]
    embd_e5_small_en_default: Union[bool, None]
    embd_gemma_default: Union[bool, None]
    embd_gte_small_default: Union[bool, None]
    embd_normalize: Value
    embedding: Union[bool, None]
    embeddings: Union[bool, None]
    enable_auto_tool_choice: Union[bool, None]
    enable_chunked_prefill: Union[bool, None]
    enable_expert_parallel: Union[bool, None]
    enable_log_outputs: Union[bool, None]
    enable_log_requests: Union[bool, None]
    enable_lora: Union[bool, None]
    enable_prefix_caching: Union[bool, None]
    enable_reasoning: Union[bool, None]
    enable_sleep_mode: Union[bool, None]
    enforce_eager: Union[bool, None]
    escape: Union[bool, None]
    file: Value
    fim_qwen_14b_spec: Union[bool, None]
    fim_qwen_30b_default: Union[bool, None]
    fim_qwen_3b_default: Union[bool, None]
    fim_qwen_7b_default: Union[bool, None]
    fim_qwen_7b_spec: Union[bool, None]
    fit: Value
    fit_codecs: Value
    fit_ctx: Value
    fit_target: Value
    flash_attn: Value
    frequency_penalty: Value
    generation_config: Value
    gpt_oss_120b_default: Union[bool, None]
    gpt_oss_20b_default: Union[bool, None]
    gpu_layers: Value
    gpu_layers_draft: Value
    gpu_memory_utilization: Value
    grammar: Value
    grammar_file: Value
    guided_decoding_backend: Value
    head_type: Value
    headless: Union[bool, None]
    hf_config_path: Value
    hf_file: Value
    hf_overrides: Value
    hf_repo_draft: Value
    hf_token: Value
    ignore_eos: Union[bool, None]
    image_max_tokens: Value
    image_min_tokens: Value
    int8: Value
    jinja: Union[bool, None]
    json_schema: Value
    json_schema_file: Value
    keep: Value
    kv_cache_dtype: Value
    kv_cache_memory_bytes: Value
    kv_events_config: Value
    kv_offload: Union[bool, None]
    kv_positions: Value
    kv_sinks: Value
    kv_transfer_config: Value
    kv_unified: Union[bool, None]
    kv_unified_per_slot: Value
    kv_window: Value
    lazy_mode: Value
    limit_mm_per_prompt: Value
    list_devices: Union[bool, None]
    load_format: Value
    load_mode: Value
    log_colors: Value
    log_config_file: Value
    log_disable: Union[bool, None]
    log_file: Value
    log_jsonl: Union[bool, None]
    log_prefix: Union[bool, None]
    log_prompts_dir: Value
    log_timestamps: Union[bool, None]
    log_verbose: Union[bool, None]
    log_verbosity: Value
    logit_bias: Value
    logits_processors: Value
    lookup_cache_dynamic: Value
    lookup_cache_static: Value
    lora: Value
    lora_dir: Value
    lora_init_without_apply: Union[bool, None]
    lora_modules: Value
    lora_scaled: Value
    main_gpu: Value
    max_cpu_loras: Value
    max_log_len: Value
    max_logprobs: Value
    max_lora_rank: Value
    max_loras: Value
    max_model_len: Value
    max_num_batched_tokens: Value
    max_num_seqs: Value
    max_seq_len_to_capture: Value
    mcp_servers_config: Value
    mcp_servers_json: Value
    media_path: Value
    memory_f32: Union[bool, None]
    middleware: Value
    min_p: Value
    mirostat: Value
    mirostat_ent: Value
    mirostat_lr: Value
    mlock: Union[bool, None]
    mm_processor_kwargs: Value
    mmap: Value
    mmproj: Value
    mmproj_auto: Union[bool, None]
    mmproj_offload: Union[bool, None]
    mmproj_url: Value
    model_draft: Value
    model_impl: Value
    model_url: Value
    models_autoload: Union[bool, None]
    models_preset: Value
    mtmd_batch_max_tokens: Value
    n_cpu_ffn: Value
    n_cpu_moe: Value
    n_cpu_moe_draft: Value
    n_gpu_layers_draft: Value
    n_predict: Value
    nnodes: Value
    no_agent: Union[bool, None]
    no_cache_idle_slots: Union[bool, None]
    no_cache_prompt: Union[bool, None]
    no_cont_batching: Union[bool, None]
    no_context_shift: Union[bool, None]
    no_cors_credentials: Union[bool, None]
    no_direct_io: Union[bool, None]
    no_enable_chunked_prefill: Union[bool, None]
    no_enable_log_requests: Union[bool, None]
    no_enable_prefix_caching: Union[bool, None]
    no_escape: Union[bool, None]
    no_host: Value
    no_jinja: Union[bool, None]
    no_kv_offload: Value
    no_kv_unified: Union[bool, None]
    no_log_jsonl: Union[bool, None]
    no_log_prefix: Union[bool, None]
    no_log_timestamps: Union[bool, None]
    no_mmap: Union[bool, None]
    no_mmproj: Union[bool, None]
    no_mmproj_auto: Union[bool, None]
    no_mmproj_offload: Union[bool, None]
    no_models_autoload: Union[bool, None]
    no_op_offload: Value
    no_penalize_nl: Union[bool, None]
    no_perf: Union[bool, None]
    no_prefill_assistant: Union[bool, None]
    no_reasoning_preserve: Union[bool, None]
    no_repack: Union[bool, None]
    no_self_test: Union[bool, None]
    no_skip_chat_parsing: Union[bool, None]
    no_spec_draft_backend_sampling: Union[bool, None]
    no_ui: Union[bool, None]
    no_ui_mcp_proxy: Union[bool, None]
    no_warmup: Union[bool, None]
    no_webui: Union[bool, None]
    no_webui_mcp_proxy: Union[bool, None]
    num_gpu_blocks_override: Value
    num_speculative_tokens: Value
    numa: Value
    octets: Value
    offline: Union[bool, None]
    op_offload: Union[bool, None]
    op_offload_min_batch: Value
    otlp_traces_endpoint: Value
    override_generation_config: Value
    override_kv: Value
    override_pooler_config: Value
    override_tensor: Value
    override_tensor_draft: Value
    parallel: Value
    path: Value
    penalize_nl: Union[bool, None]
    perf: Union[bool, None]
    pipeline_parallel_size: Value
    poll: Value
    poll_batch: Value
    poll_batch_draft: Value
    poll_draft: Value
    pooler_config: Value
    pooling: Value
    predict: Value
    prefill_assistant: Union[bool, None]
    presence_penalty: Value
    prio: Value
    prio_batch: Value
    prio_batch_draft: Value
    prio_draft: Value
    prompt: Value
    props: Union[bool, None]
    quantization: Value
    reasoning: Value
    reasoning_budget: Value
    reasoning_budget_message: Value
    reasoning_effort: Value
    reasoning_format: Value
    reasoning_parser: Value
    reasoning_parser_plugin: Value
    reasoning_preserve: Union[bool, None]
    repack: Value
    repeat_last_n: Value
    repeat_penalty: Value
    rerank: Union[bool, None]
    reranking: Union[bool, None]
    resident_layers: Value
    response_role: Value
    reuse_port: Union[bool, None]
    reverse_prompt: Value
    revision: Value
    root_path: Value
    rope_freq_base: Value
    rope_freq_scale: Value
    rope_parameters: Value
    rope_scale: Value
    rope_scaling: Value
    rope_theta: Value
    rpc: Value
    runner: Value
    sampler_seq: Value
    samplers: Value
    sampling_seq: Value
    scheduling_policy: Value
    seed: Value
    served_model_name: Value
    skip_chat_parsing: Union[bool, None]
    skip_tokenizer_init: Union[bool, None]
    sleep_idle_seconds: Value
    slot_prompt_similarity: Value
    slot_save_max: Value
    slot_save_path: Value
    slot_save_space: Value
    spec_default: Union[bool, None]
    spec_draft_backend_sampling: Union[bool, None]
    spec_draft_cpu_mask: Value
    spec_draft_cpu_mask_batch: Value
    spec_draft_cpu_moe: Union[bool, None]
    spec_draft_cpu_range: Value
    spec_draft_cpu_range_batch: Value
    spec_draft_cpu_strict: Value
    spec_draft_cpu_strict_batch: Value
    spec_draft_ctx_size: Value
    spec_draft_device: Value
    spec_draft_hf: Value
    spec_draft_model: Value
    spec_draft_n_cpu_moe: Value
    spec_draft_n_max: Value
    spec_draft_n_min: Value
    spec_draft_ncmoe: Value
    spec_draft_ngl: Value
    spec_draft_override_tensor: Value
    spec_draft_p_min: Value
    spec_draft_p_split: Value
    spec_draft_poll: Value
    spec_draft_poll_batch: Value
    spec_draft_prio: Value
    spec_draft_prio_batch: Value
    spec_draft_replace: Value
    spec_draft_threads: Value
    spec_draft_threads_batch: Value
    spec_draft_type_k: Value
    spec_draft_type_v: Value
    spec_ngram_map_k4v_min_hits: Value
    spec_ngram_map_k4v_size_m: Value
    spec_ngram_map_k4v_size_n: Value
    spec_ngram_map_k_min_hits: Value
    spec_ngram_map_k_size_m: Value
    spec_ngram_map_k_size_n: Value
    spec_ngram_min_hits: Value
    spec_ngram_mod_n_match: Value
    spec_ngram_mod_n_max: Value
    spec_ngram_mod_n_min: Value
    spec_ngram_simple_min_hits: Value
    spec_ngram_simple_size_m: Value
    spec_ngram_simple_size_n: Value
    spec_ngram_size_m: Value
    spec_ngram_size_n: Value
    spec_replace: Value
    spec_synth_len: Value
    spec_synth_rates: Value
    spec_type: Value
    special: Union[bool, None]
    speculative_config: Value
    speculative_model: Value
    split_mode: Value
    spm_infill: Union[bool, None]
    ssl_ca_certs: Value
    ssl_cert_reqs: Value
    step_timeout: Value
    stream_slots: Value
    structured_outputs_config: Value
    swa_checkpoints: Value
    swa_full: Union[bool, None]
    swap_space: Value
    system_prompt_file: Value
    tags: Value
    task: Value
    temp: Value
    temperature: Value
    tensor_parallel_size: Value
    tensor_split: Value
    tfs: Value
    threads: Value
    threads_batch: Value
    threads_batch_draft: Value
    threads_draft: Value
    threads_http: Value
    tokenizer: Value
    tokenizer_mode: Value
    tokenizer_pre: Value
    tokenizer_revision: Value
    tool_call_parser: Value
    tool_parser_plugin: Value
    tools: Value
    tools_runtime: Value
    top_k: Value
    top_n_sigma: Value
    top_nsigma: Value
    top_p: Value
    trust_remote_code: Union[bool, None]
    type_k: Value
    type_v: Value
    typical: Value
    typical_p: Value
    ubatch_size: Value
    uds: Value
    ui: Union[bool, None]
    ui_config: Value
    ui_config_file: Value
    ui_mcp_proxy: Union[bool, None]
    usage: Union[bool, None]
    uvicorn_log_level: Value
    verbosity: Value
    version: Union[bool, None]
    video_ffmpeg_dir: Value
    video_fps: Value
    video_timestamp_interval: Value
    vision_gemma_12b_default: Union[bool, None]
    vision_gemma_4b_default: Union[bool, None]
    warmup: Union[bool, None]
    webui: Union[bool, None]
    webui_config: Value
    webui_config_file: Value
    webui_mcp_proxy: Union[bool, None]
    xtc_probability: Value
    xtc_threshold: Value
    yarn_attn_factor: Value
    yarn_beta_fast: Value
    yarn_beta_slow: Value
    yarn_ext_factor: Value
    yarn_orig_ctx: Value


class TextParameters(TypedDict, total=False):
    """Parameters of `generate` that are not in its signature."""

    best_of: Union[int, None]
    cache_prompt: Union[bool, None]
    cache_salt: Union[str, None]
    dry_multiplier: Any
    dynatemp_range: Any
    echo: Union[bool, None]
    frequency_penalty: Union[float, None]
    grammar: Union[str, None]
    guided_choice: Union[Sequence[Any], None]
    guided_grammar: Union[str, None]
    guided_json: Any
    guided_regex: Union[str, None]
    id_slot: Union[int, None]
    ignore_eos: Union[bool, None]
    include_stop_str_in_output: Union[bool, None]
    json_schema: Any
    json_whitespace: Any
    length_penalty: Any
    logit_bias: Any
    logprobs: Union[int, None]
    lora: Union[Sequence[Any], None]
    max_completion_tokens: Union[int, None]
    min_tokens: Union[int, None]
    mirostat: Any
    n_cmpl: Any
    n_predict: Union[int, None]
    n_probs: Union[int, None]
    presence_penalty: Union[float, None]
    priority: Any
    prompt_cache_key: Union[str, None]
    repeat_last_n: Union[int, None]
    repeat_penalty: Union[float, None]
    repetition_penalty: Union[float, None]
    response_format: Any
    return_progress: Union[bool, None]
    return_tokens: Union[bool, None]
    samplers: Any
    skip_special_tokens: Union[bool, None]
    stop_token_ids: Union[Sequence[Any], None]
    structured_outputs: Any
    suffix: Any
    t_max_predict_ms: Union[int, None]
    thinking_token_budget: Any
    timings_per_token: Union[bool, None]
    top_n_sigma: Any
    typical: Union[float, None]
    typical_p: Union[float, None]
    use_beam_search: Any
    xtc_probability: Any


class ChatParameters(TypedDict, total=False):
    """Parameters of `chat` that are not in its signature."""

    add_generation_prompt: Union[bool, None]
    cache_prompt: Union[bool, None]
    cache_salt: Union[str, None]
    chat_template: Any
    chat_template_kwargs: Union[Mapping[str, Any], None]
    continue_final_message: Union[bool, None]
    dry_multiplier: Any
    dynatemp_range: Any
    echo: Union[bool, None]
    frequency_penalty: Union[float, None]
    function_call: Any
    functions: Any
    grammar: Union[str, None]
    guided_choice: Union[Sequence[Any], None]
    guided_grammar: Union[str, None]
    guided_json: Any
    guided_regex: Union[str, None]
    id_slot: Union[int, None]
    ignore_eos: Union[bool, None]
    include_stop_str_in_output: Union[bool, None]
    json_schema: Any
    json_whitespace: Any
    length_penalty: Any
    logit_bias: Any
    logprobs: Union[bool, None]
    lora: Any
    max_completion_tokens: Union[int, None]
    min_tokens: Union[int, None]
    mirostat: Any
    n_cmpl: Any
    n_predict: Union[int, None]
    n_probs: Union[int, None]
    parallel_tool_calls: Union[bool, None]
    presence_penalty: Union[float, None]
    priority: Any
    prompt_cache_key: Union[str, None]
    reasoning_effort: Union[str, None]
    reasoning_format: Union[str, None]
    repeat_last_n: Union[int, None]
    repeat_penalty: Union[float, None]
    repetition_penalty: Union[float, None]
    response_format: Any
    return_progress: Union[bool, None]
    return_tokens: Union[bool, None]
    samplers: Any
    skip_special_tokens: Union[bool, None]
    stop_token_ids: Union[Sequence[Any], None]
    structured_outputs: Any
    suffix: Any
    t_max_predict_ms: Union[int, None]
    thinking_token_budget: Any
    timings_per_token: Union[bool, None]
    tool_choice: Any
    top_logprobs: Union[int, None]
    top_n_sigma: Any
    truncate_prompt_tokens: Union[int, None]
    typical: Union[float, None]
    typical_p: Union[float, None]
    use_beam_search: Any
    xtc_probability: Any


class ManyTextParameters(TextParameters, total=False):
    """Parameters of `generate_many`."""

    max_tokens: Union[int, None]
    temperature: Union[float, None]
    top_p: Union[float, None]
    top_k: Union[int, None]
    min_p: Union[float, None]
    seed: Union[int, None]
    stop: Union[str, Sequence[str], None]
    schema: Any


class ManyChatParameters(ChatParameters, total=False):
    """Parameters of `chat_many`."""

    max_tokens: Union[int, None]
    temperature: Union[float, None]
    top_p: Union[float, None]
    top_k: Union[int, None]
    min_p: Union[float, None]
    seed: Union[int, None]
    stop: Union[str, Sequence[str], None]
    schema: Any
    tools: Union[Sequence[Any], None]
