//! That the parameter structs are plain bytes.
#![allow(unsafe_code)]

use bytemuck::{Pod, Zeroable};

use super::params::{
    AppendBlocksParams, AppendParams, AttendBlocksParams, AttendCodesMmaParams, AttendCodesParams,
    AttendMmaParams, AttendParams, AttnInParams, BlockKvParams, CodedKvParams, CodesParams, CombineParams,
    EmbedParams, ExpertChoice, ExpertTile, ExpertsParams, FfnInParams, HeadsParams, InputParams, KvParams,
    LinearParams, LogitsParams, MixParams, NextWeights, NormParams, PostNormParams, ProjAddParams,
    RopeParams, RoundParams, RoundedParams, RouteParams, RoutesParams, RowQuant, SampleParams, SignsParams,
    StampParams, StepCounts, StepRow, StepSampling, StepTables, StepTile,
};

/// The size of a field that a closure names.
const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Takes every field of a struct: a missing one does not compile, and neither does padding between them.
macro_rules! plain {
    ($($name:ident { $($field:ident),* })*) => {$(
        const _: () = assert!(size_of::<$name>() == $(size_of_field(|it: &$name| &it.$field) +)* 0);

        // SAFETY: a struct of integers, floats and such structs, copied freely; zero is a value of each
        // field.
        unsafe impl Zeroable for $name {}

        // SAFETY: as above, every bit pattern is a value of each field, and there is no padding, as asserted.
        unsafe impl Pod for $name {}
    )*};
}

plain! {
    StepRow { token, pos, seq, output }
    StepCounts { rows, outputs, sampled, tiles }
    StepTile { first, rows }
    NextWeights { data, bytes }
    StepTables { counts, rows, outputs, pages, exact, pages_stride, reserved, next }
    NormParams { weight, bias, eps, kind }
    LinearParams { data, bias, tensor_scale, factor, rows, chunks }
    RowQuant { scale, sum }
    RoundedParams { rows, quants, sums, arrived }
    InputParams { x, norm, rounded, cols, int8, of_outputs, lanes_log2, row_bytes, reserved }
    RoundParams { step, in_, chunks, reserved }
    KvParams { pages, page_bytes, n_kv_heads, head_dim, stride, elem_bytes }
    RopeParams { cos_sin, pairs, adjacent }
    EmbedParams { step, table, positions, picked, x, cols, scale }
    AttnInParams { step, in_, wq, wk, wv, rope, kv, q, raw }
    CodesParams { signs, shrink, unit, borders, magnitudes, table, halves }
    SignsParams { signs, factor, unit, borders, magnitudes, table }
    CodedKvParams {
        codes, pages, exact, means, clamped, page_bytes, n_kv_heads, head_dim, sink_pages, newest_pages
    }
    BlockKvParams { signs, shrink, n_kv_heads, head_dim, forms, reserved, pages, clamped, page_bytes }
    AppendParams { step, kv, raw, q, group, reserved }
    AppendBlocksParams { step, kv, raw, q, group, reserved }
    AttendBlocksParams {
        step, kv, q, out, partial, arrived, sinks, scale, group, tiles, splits, window, reserved
    }
    AttendCodesParams {
        step, kv, q, out, partial, arrived, raw, sinks, scale, group, tiles, splits, window, reserved
    }
    AttendCodesMmaParams {
        step, kv, tiles, q, out, partial, arrived, sinks, scale, group, heads, head_tiles, blocks, window
    }
    AttendMmaParams {
        step, kv, tiles, q, out, partial, arrived, sinks, scale, group, heads, head_tiles, blocks, window
    }
    AttendParams { step, kv, q, out, partial, arrived, sinks, scale, group, tiles, splits, window, reserved }
    ProjAddParams { step, in_, w, x }
    FfnInParams { step, in_, gate, up, h, act, reserved }
    HeadsParams { step, rope, q_norm, k_norm, kv, q, keys, values, raw, n_heads, pitch }
    CombineParams { step, gate, y, out, cols, act, add, each }
    StampParams { at }
    ExpertChoice { expert, weight, place, reserved }
    ExpertTile { expert, first, rows, reserved }
    RoutesParams { choices, tiles, n_tiles, rows, counts, arrived, n_experts, n_used }
    RouteParams { step, routes, logits }
    ExpertsParams {
        step, in_, routes, table, logits, out, x, layer, act, outputs, chunks, of_step, reserved
    }
    MixParams { step, routes, products, x, cols, reserved }
    LogitsParams { step, in_, w, logits, soft_cap, reserved }
    PostNormParams { step, norm, product, x, cols, reserved }
    StepSampling { temperature, top_p, min_p, top_k, seed, counter, mailbox, reserved }
    SampleParams { step, sampling, logits, tokens, picked, mailboxes, best, arrived, n_vocab, reserved }
}

#[cfg(test)]
mod tests {
    /// Each struct of a text with its fields, as `name: type` of Rust, and each constant as `name = value`.
    type Twin = Vec<(String, Vec<String>)>;

    fn rust_type(of_c: &str) -> String {
        let of_c = of_c.replace("const ", "").replace("struct ", "");
        match of_c.as_str() {
            "uint64_t" => "u64".into(),
            "int32_t" => "i32".into(),
            "uint32_t" => "u32".into(),
            "float" => "f32".into(),
            pointer if pointer.starts_with("POINTER(") => "u64".into(),
            other => other.into(),
        }
    }

    /// What `cuda/params.h` declares.
    fn header(text: &str) -> Twin {
        let mut twin = Twin::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
                twin.push((name.into(), Vec::new()));
            } else if let Some((name, value)) =
                line.strip_prefix("#define ").and_then(|rest| rest.split_once(' '))
                && !name.contains('(')
            {
                let digits = value.strip_prefix("0x");
                let value = digits.map_or_else(|| value.parse(), |hex| u32::from_str_radix(hex, 16));
                twin.push((format!("{name} = {}", value.unwrap()), Vec::new()));
            } else if let Some((ty, name)) = line.strip_suffix(';').and_then(|field| field.rsplit_once(' ')) {
                let name = if name == "in" { "in_" } else { name };
                let field = match name.trim_end_matches(']').split_once('[') {
                    Some((name, n)) => format!("{name}: [{}; {n}usize]", rust_type(ty)),
                    None => format!("{name}: {}", rust_type(ty)),
                };
                twin.last_mut().unwrap().1.push(field);
            }
        }
        twin
    }

    /// What `params.rs` does.
    fn rust(text: &str) -> Twin {
        let mut twin = Twin::new();
        for line in text.lines() {
            if let Some(constant) = line.strip_prefix("pub const ") {
                let (name, value) = constant.trim_end_matches(';').split_once(": u32 = ").unwrap();
                twin.push((format!("{name} = {value}"), Vec::new()));
            } else if let Some(name) =
                line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {"))
            {
                twin.push((name.into(), Vec::new()));
            } else if let Some(field) = line.strip_prefix("    pub ") {
                twin.last_mut().unwrap().1.push(field.trim_end_matches(',').into());
            }
        }
        twin
    }

    #[test]
    fn the_header_and_its_twin_declare_the_same() {
        let headers =
            [include_str!("../../../cuda/params.h"), include_str!("../../../cuda/params_attend.h")].concat();
        let (mut header, mut rust) = (header(&headers), rust(include_str!("params.rs")));
        // bindgen has constants first.
        header.sort();
        rust.sort();
        assert!(header.iter().any(|(_, fields)| fields.len() > 3) && header.len() > 40, "{header:?}");
        assert_eq!(header, rust, "run scripts/bindgen.sh");
    }
}
