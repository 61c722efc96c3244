//! The kernels, and how the text of each is put together: WGSL has no includes, so pieces of `shaders/` stand one behind
//! the other, each in a few variants.

use ggml_types::KvSide;

use super::kv::{CODECS, Codec, Form};
use super::weight::Format;

/// Threads that share a row of weights.
pub const LANES: u32 = 8;

/// Threads of a workgroup that multiplies or attends.
pub const THREADS: u32 = 64;

/// Up to how many rows of the step a workgroup multiplies: single ones, a few, and tiles of many.
pub const ROWS: [u32; 3] = [1, 8, TILE];

/// Rows of weights and of the step that a tile has.
const TILE: u32 = 32;

/// Stages whose products have a kernel of their own; what they do with them.
const LINEAR: &[(&str, &str)] = &[
    ("proj_add", include_str!("shaders/proj_add.wgsl")),
    ("ffn_in", include_str!("shaders/ffn_in.wgsl")),
    ("logits", include_str!("shaders/logits.wgsl")),
];

/// What a device does well, which picks a variant of each kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Threads meet in subgroups.
    pub subgroups: bool,
    /// Four packed int8 products are an instruction.
    pub packed: bool,
}

/// A storage buffer of a kernel, behind the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// It only reads.
    Read,
    /// It writes.
    Write,
}

/// A kernel; its text also depends on [`Caps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Of a weight type.
    Embed(&'static str),
    /// Leaves int8 activations, or floats.
    Input { ints: bool },
    /// The products of a stage.
    Linear {
        /// A name of [`LINEAR`].
        stage: &'static str,
        /// Weight type.
        ty: &'static str,
        /// Whether the activations are int8.
        ints: bool,
        /// Rows of the step that a workgroup multiplies.
        rows: u32,
    },
    /// Of a codec.
    AttnIn(&'static str),
    /// Of a codec: encodes pages that are full.
    Append(&'static str),
    /// For keys that keep signs.
    Project,
    /// Of the codecs of keys and values, and pairs of elements that a thread has.
    Attend { k: &'static str, v: &'static str, own: u32 },
    /// Of these, and vectors of 4 elements that a thread has: many rows at a time.
    AttendTile { k: &'static str, v: &'static str, quads: u32 },
    /// Of the splits of attention; turns the output back, or does not.
    AttendMerge { rotates: bool },
    /// First half of sampling.
    SampleBest,
    /// Second half of sampling.
    Sample,
}

impl Kernel {
    /// Every kernel.
    #[cfg(test)]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::SampleBest, Self::Sample, Self::Project];
        all.extend([true, false].map(|ints| Self::Input { ints }));
        all.extend([true, false].map(|rotates| Self::AttendMerge { rotates }));
        for format in super::weight::FORMATS.iter().filter(|format| format.name == format.kernels) {
            all.push(Self::Embed(format.name));
            for (stage, _) in LINEAR {
                for rows in ROWS {
                    let of = |ints| Self::Linear { stage, ty: format.name, ints, rows };
                    all.extend([false, true].into_iter().filter(|ints| !ints || format.ints).map(of));
                }
            }
        }
        for codec in CODECS {
            all.push(Self::AttnIn(codec.name));
            all.extend(codec.form.is_windowed().then_some(Self::Append(codec.name)));
            let k = codec.name;
            for v in CODECS.iter().filter(|codec| codec.form != Form::Signs).map(|codec| codec.name) {
                all.extend([1, 2].map(|own| Self::Attend { k, v, own }));
                all.extend([1, 2, 4, 8].map(|quads| Self::AttendTile { k, v, quads }));
            }
        }
        all
    }

    /// As it is called in messages: `proj_add__i2_s__ints__8`.
    pub fn name(self) -> String {
        match self {
            Self::Embed(ty) => format!("embed__{ty}"),
            Self::Input { ints } => (if ints { "input__ints" } else { "input" }).to_owned(),
            Self::Linear { stage, ty, ints, rows } => {
                let ints = if ints { "__ints" } else { "" };
                format!("{stage}__{ty}{ints}__{rows}")
            }
            Self::AttnIn(codec) => format!("attn_in__{codec}"),
            Self::Append(codec) => format!("append__{codec}"),
            Self::Project => "project".to_owned(),
            Self::Attend { k, v, own } => format!("attend__{k}__{v}__{own}"),
            Self::AttendTile { k, v, quads } => format!("attend_tile__{k}__{v}__{quads}"),
            Self::AttendMerge { rotates } => {
                (if rotates { "attend_merge__rotated" } else { "attend_merge" }).to_owned()
            }
            Self::SampleBest => "sample_best".to_owned(),
            Self::Sample => "sample".to_owned(),
        }
    }

    /// Its storage buffers, from binding 1 on; the step is always the first.
    pub fn bindings(self) -> &'static [Binding] {
        const R: Binding = Binding::Read;
        const W: Binding = Binding::Write;
        match self {
            Self::Embed(_) => &[R, R, R, R, W],
            Self::Input { .. } => &[R, R, R, W, W],
            Self::Linear { .. } => &[R, R, R, R, R, W],
            Self::AttnIn(_) => &[R, R, R, R, W, W, W, W],
            Self::Append(_) => &[R, W, W, W],
            Self::Project => &[R, R, W],
            Self::Attend { k, .. } if keeps_signs(k) => &[R, R, R, R, W, W, R],
            Self::Attend { .. } => &[R, R, R, R, W, W],
            Self::AttendTile { k, .. } if keeps_signs(k) => &[R, R, R, R, W, R],
            Self::AttendTile { .. } => &[R, R, R, R, W],
            Self::AttendMerge { .. } => &[R, R, W],
            Self::SampleBest => &[R, R, W],
            Self::Sample => &[R, R, R, W, W],
        }
    }

    /// Rows of weights, and of the step, that a workgroup has.
    pub fn tile(self) -> [u32; 2] {
        match self {
            Self::Linear { rows: TILE, .. } => [TILE; 2],
            Self::Linear { rows, .. } => [THREADS / LANES, rows],
            _ => [1, 1],
        }
    }

    fn threads(self) -> u32 {
        match self {
            Self::Input { .. } | Self::SampleBest | Self::Sample | Self::Embed(_) => 256,
            Self::Linear { .. } | Self::AttnIn(_) | Self::Append(_) | Self::Project => THREADS,
            Self::Attend { .. } | Self::AttendTile { .. } | Self::AttendMerge { .. } => THREADS,
        }
    }

    /// Its text for a device.
    pub fn source(self, caps: Caps) -> String {
        let mut text = format!("const THREADS: u32 = {}u;\nconst LANES: u32 = {LANES}u;\n", self.threads());
        let mut add = |piece: &str| text.push_str(piece);
        add(match caps.subgroups {
            true => include_str!("shaders/lib/main_subgroups.wgsl"),
            false => include_str!("shaders/lib/main.wgsl"),
        });
        add(include_str!("shaders/lib/step.wgsl"));
        let reduce = |name: &str, ty: &str, op: &str| {
            let template = match caps.subgroups {
                true => include_str!("shaders/lib/reduce_subgroups.wgsl"),
                false => include_str!("shaders/lib/reduce.wgsl"),
            };
            template.replace("NAME", name).replace("TYPE", ty).replace("OP(", &format!("{op}("))
        };
        let wide = include_str!("shaders/lib/wide.wgsl");
        let exp = include_str!("shaders/lib/exp.wgsl");
        let mut norm = String::from(wide);
        norm.push_str(&reduce("reduce_wide", "vec2<f32>", "add_wide"));
        norm.push_str(include_str!("shaders/lib/norm.wgsl"));
        match self {
            Self::Embed(ty) => {
                add(include_str!("shaders/lib/matrix.wgsl"));
                add(of_type(ty).shader);
                add(include_str!("shaders/embed.wgsl"));
            }
            Self::Input { ints } => {
                add(&format!("const INTS: bool = {ints};\n"));
                add(&norm);
                add(&reduce("reduce_max", "u32", "max_bits"));
                add(&reduce("reduce_sum", "i32", "sum_ints"));
                add(include_str!("shaders/input.wgsl"));
            }
            Self::Linear { stage, ty, ints, rows } => {
                add(&format!("const ROWS: u32 = {rows}u;\n"));
                add(include_str!("shaders/lib/matrix.wgsl"));
                add(of_type(ty).shader);
                match (ints, caps.packed) {
                    (false, _) => add(include_str!("shaders/lib/products.wgsl")),
                    (true, packed) => {
                        add(match packed {
                            true => include_str!("shaders/lib/linear_ints.wgsl"),
                            false => include_str!("shaders/lib/linear_ints_f32.wgsl"),
                        });
                        add(include_str!("shaders/lib/products_ints.wgsl"));
                    }
                }
                add(include_str!("shaders/lib/linear.wgsl"));
                match rows {
                    TILE => {
                        add(match ints {
                            true => include_str!("shaders/lib/tile_ints.wgsl"),
                            false => include_str!("shaders/lib/tile_floats.wgsl"),
                        });
                        add(include_str!("shaders/lib/linear_tile.wgsl"));
                    }
                    _ => {
                        add("fn sum(a: Acc, b: Acc) -> Acc {\n    return a + b;\n}\n");
                        add(&lanes(caps, "Acc", &[("sum_of_lanes", "sum")]));
                        add(include_str!("shaders/lib/linear_rows.wgsl"));
                    }
                }
                if stage == "ffn_in" {
                    add(exp);
                }
                add(LINEAR.iter().find(|(name, _)| *name == stage).expect("a stage with products").1);
            }
            Self::AttnIn(codec) => {
                let codec = of_codec(codec);
                add(&norm);
                add(&cache(codec.form.rotates(), "head", 1));
                add(include_str!("shaders/lib/half.wgsl"));
                writes(codec).iter().for_each(|piece| add(piece));
                add(include_str!("shaders/attn_in.wgsl"));
            }
            Self::Append(codec) => {
                let codec = of_codec(codec);
                let (vector, n) = if codec.form == Form::Signs { ("residual", 8) } else { ("mean", 1) };
                add(wide);
                add(&cache(true, vector, n));
                add(include_str!("shaders/lib/pages.wgsl"));
                add(include_str!("shaders/lib/pages_exact.wgsl"));
                add(include_str!("shaders/lib/half.wgsl"));
                codec.read.iter().chain(codec.write).for_each(|piece| add(piece));
                add(match codec.form {
                    Form::Signs => include_str!("shaders/lib/encode_signs.wgsl"),
                    _ => include_str!("shaders/lib/encode_lloyd.wgsl"),
                });
                add(include_str!("shaders/append.wgsl"));
            }
            Self::Project => {
                add(&cache(true, "head", 1));
                add(include_str!("shaders/project.wgsl"));
            }
            Self::Attend { k, v, own } => {
                let (k, v) = (of_codec(k), of_codec(v));
                add(&format!("const OWN: u32 = {own}u;\n"));
                add(exp);
                add(&cache(v.form.rotates(), "of_heads", 1));
                add(include_str!("shaders/lib/attention.wgsl"));
                add(include_str!("shaders/lib/heads.wgsl"));
                add(&reads(k, v, 7));
                scores(k.form).iter().for_each(|piece| add(piece));
                add(&reduce("reduce_max4", "vec4<f32>", "max4"));
                add(&reduce("reduce_sum4", "vec4<f32>", "sum4"));
                add(include_str!("shaders/attend.wgsl"));
            }
            Self::AttendTile { k, v, quads } => {
                let (k, v) = (of_codec(k), of_codec(v));
                add(&format!("const QUADS: u32 = {quads}u;\n"));
                add(exp);
                // 8 queries at a time are turned back.
                add(&cache(v.form.rotates(), "weights", 8));
                add(include_str!("shaders/lib/attention.wgsl"));
                add(&reads(k, v, 6));
                add(match k.form {
                    Form::Signs => include_str!("shaders/lib/tile_signs.wgsl"),
                    _ => include_str!("shaders/lib/tile_plain.wgsl"),
                });
                add(&lanes(caps, "vec4<f32>", &[("max_of_lanes", "max4"), ("sum_of_lanes", "sum4")]));
                add(include_str!("shaders/attend_tile.wgsl"));
            }
            Self::AttendMerge { rotates } => {
                add(exp);
                add(&cache(rotates, "of_heads", 1));
                add(include_str!("shaders/lib/attention.wgsl"));
                add(include_str!("shaders/lib/heads.wgsl"));
                add(include_str!("shaders/attend_merge.wgsl"));
            }
            Self::SampleBest => {
                add(include_str!("shaders/lib/candidate.wgsl"));
                add(&reduce("reduce_best", "vec2<u32>", "larger"));
                add(include_str!("shaders/sample_best.wgsl"));
            }
            Self::Sample => {
                add(wide);
                add(exp);
                add(include_str!("shaders/lib/candidate.wgsl"));
                add(&reduce("reduce_best", "vec2<u32>", "larger"));
                add(include_str!("shaders/sample.wgsl"));
            }
        }
        text
    }
}

fn of_type(ty: &str) -> &'static Format {
    super::weight::FORMATS.iter().find(|format| format.name == ty).expect("a type with kernels")
}

fn of_codec(codec: &str) -> &'static Codec {
    CODECS.iter().find(|known| known.name == codec).expect("a codec with kernels")
}

fn keeps_signs(k: &str) -> bool {
    of_codec(k).form == Form::Signs
}

/// What a cache is, and the rotation of `n` vectors that `vector` names.
fn cache(rotates: bool, vector: &str, n: u32) -> String {
    let rotate = include_str!("shaders/lib/rotate.wgsl").replace("VECTOR[", &format!("{vector}["));
    let consts = format!("const ROTATES: bool = {rotates};\nconst VECTORS: u32 = {n}u;\n");
    consts + include_str!("shaders/lib/cache.wgsl") + &rotate
}

/// How exact pages keep elements.
fn exact() -> &'static Codec {
    &CODECS[0]
}

/// How vectors of one side are written as a step brings them.
fn writes(codec: &Codec) -> Vec<&'static str> {
    let keep_elements = include_str!("shaders/lib/keep_elements.wgsl");
    let (of, keep) = match codec.form {
        Form::Elements(_) => (
            codec,
            [
                include_str!("shaders/lib/pages.wgsl"),
                include_str!("shaders/lib/write_elements.wgsl"),
                keep_elements,
            ],
        ),
        Form::Lloyd(_) | Form::Signs => (
            exact(),
            [
                include_str!("shaders/lib/pages_exact.wgsl"),
                include_str!("shaders/lib/write_exact.wgsl"),
                keep_elements,
            ],
        ),
        Form::Blocks(_) => (
            codec,
            [
                include_str!("shaders/lib/pages.wgsl"),
                include_str!("shaders/lib/write_blocks.wgsl"),
                include_str!("shaders/lib/keep_blocks.wgsl"),
            ],
        ),
    };
    of.read.iter().chain(of.write).copied().chain(keep).collect()
}

/// How attention reads keys and values; projected queries have the binding `projected_at`.
fn reads(k: &Codec, v: &Codec, projected_at: u32) -> String {
    let mut text = format!("const HAS_MEAN: bool = {};\n", k.form.is_windowed());
    if !k.form.is_windowed() {
        text.push_str(include_str!("shaders/lib/no_mean.wgsl"));
    }
    if k.form == Form::Signs {
        let binding = format!("@group(0) @binding({projected_at})");
        text.push_str(&format!("{binding} var<storage, read> projected: array<f32>;\n"));
    }
    for (codec, side, places) in [
        (k, KvSide::Keys, include_str!("shaders/lib/keys.wgsl")),
        (v, KvSide::Values, include_str!("shaders/lib/values.wgsl")),
    ] {
        text.push_str(places);
        text.push_str(&of_side(side, include_str!("shaders/lib/pages.wgsl")));
        reads_side(codec).iter().for_each(|piece| text.push_str(&of_side(side, piece)));
    }
    text
}

fn reads_side(codec: &Codec) -> Vec<&'static str> {
    let elements = include_str!("shaders/lib/read_elements.wgsl");
    let codes = include_str!("shaders/lib/read_codes.wgsl");
    let windowed = [
        include_str!("shaders/lib/pages_exact.wgsl"),
        include_str!("shaders/lib/page_windowed.wgsl"),
        elements,
        codes,
    ];
    let pieces: &[&str] = match codec.form {
        Form::Elements(_) => &[elements, include_str!("shaders/lib/side_of_elements.wgsl")],
        Form::Blocks(_) => &[codes, include_str!("shaders/lib/side_of_blocks.wgsl")],
        Form::Lloyd(_) => &[include_str!("shaders/lib/side_of_window.wgsl")],
        Form::Signs => &[include_str!("shaders/lib/side_of_signs.wgsl")],
    };
    let of_window = codec.form.is_windowed().then(|| exact().read.iter().chain(&windowed));
    let of_window = of_window.into_iter().flatten();
    codec.read.iter().chain([&codec.scales]).chain(of_window).chain(pieces).copied().collect()
}

/// How single rows score keys.
fn scores(form: Form) -> &'static [&'static str] {
    const ELEMENTS: &str = include_str!("shaders/lib/score_elements.wgsl");
    const CODES: &str = include_str!("shaders/lib/score_codes.wgsl");
    const OF_WINDOW: &str = include_str!("shaders/lib/scores_windowed.wgsl");
    const NO_SIGNS: &str = include_str!("shaders/lib/no_signs.wgsl");
    match form {
        Form::Elements(_) => &[NO_SIGNS, ELEMENTS, include_str!("shaders/lib/scores_elements.wgsl")],
        Form::Blocks(_) => &[NO_SIGNS, CODES, include_str!("shaders/lib/scores_blocks.wgsl")],
        Form::Lloyd(_) => &[NO_SIGNS, ELEMENTS, CODES, OF_WINDOW],
        Form::Signs => &[ELEMENTS, include_str!("shaders/lib/score_signs.wgsl"), OF_WINDOW],
    }
}

/// A piece for one side of a cache.
fn of_side(side: KvSide, piece: &str) -> String {
    let (name, upper) = match side {
        KvSide::Keys => ("key", "KEY"),
        KvSide::Values => ("value", "VALUE"),
    };
    piece
        .replace("params.side.", &format!("params.{name}s."))
        .replace("sides[", &format!("{name}s["))
        .replace("side_", &format!("{name}_"))
        .replace("SIDE_", &format!("{upper}_"))
}

/// Reductions over the threads of a slot: their names, and the functions of two values that they are made of.
fn lanes(caps: Caps, ty: &str, reductions: &[(&str, &str)]) -> String {
    let (scratch, template) = match caps.subgroups {
        true => (String::new(), include_str!("shaders/lib/lanes_subgroups.wgsl")),
        false => (
            format!("var<workgroup> lanes_scratch: array<{ty}, THREADS>;\n"),
            include_str!("shaders/lib/lanes.wgsl"),
        ),
    };
    let of = |(name, op): &(&str, &str)| {
        template.replace("NAME", name).replace("TYPE", ty).replace("OP(", &format!("{op}("))
    };
    scratch + &reductions.iter().map(of).collect::<String>()
}

#[cfg(test)]
mod tests;
