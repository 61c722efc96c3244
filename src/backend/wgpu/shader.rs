//! The kernels, and how the text of each is put together: WGSL has no includes, so pieces of `shaders/` stand one behind
//! the other, each in a few variants.

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
    /// Of a codec, and pairs of elements that a thread has.
    Attend(&'static str, u32),
    /// Of a codec, and vectors of 4 elements that a thread has: many rows at a time.
    AttendTile(&'static str, u32),
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
        let mut all = vec![Self::SampleBest, Self::Sample];
        all.extend([true, false].map(|ints| Self::Input { ints }));
        all.extend([true, false].map(|rotates| Self::AttendMerge { rotates }));
        for format in super::weight::FORMATS {
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
            all.extend([1, 2].map(|own| Self::Attend(codec.name, own)));
            all.extend([1, 2, 4, 8].map(|quads| Self::AttendTile(codec.name, quads)));
            all.extend(matches!(codec.form, Form::Lloyd(_)).then_some(Self::Append(codec.name)));
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
            Self::Attend(codec, own) => format!("attend__{codec}__{own}"),
            Self::AttendTile(codec, quads) => format!("attend_tile__{codec}__{quads}"),
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
            Self::AttnIn(_) => &[R, R, R, R, W, W, W],
            Self::Append(_) => &[R, W, W],
            Self::Attend(..) => &[R, R, R, R, W, W],
            Self::AttendTile(..) => &[R, R, R, R, W],
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
            Self::Linear { .. } | Self::AttnIn(_) | Self::Append(_) => THREADS,
            Self::Attend(..) | Self::AttendTile(..) | Self::AttendMerge { .. } => THREADS,
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
                match (rows, ints) {
                    (TILE, true) => add(include_str!("shaders/lib/linear_tile_ints.wgsl")),
                    (TILE, false) => add(include_str!("shaders/lib/linear_tile.wgsl")),
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
                add(&cache(codec.form, "head", 1));
                add(elements_of(codec));
                if let Form::Blocks(_) = codec.form {
                    add(codec.shader);
                    add(codec.encode);
                    add(include_str!("shaders/lib/keep_blocks.wgsl"));
                } else {
                    add(include_str!("shaders/lib/keep_elements.wgsl"));
                }
                add(include_str!("shaders/attn_in.wgsl"));
            }
            Self::Append(codec) => {
                let codec = of_codec(codec);
                add(wide);
                add(&cache(codec.form, "mean", 1));
                add(elements_of(codec));
                add(codec.shader);
                add(include_str!("shaders/lib/table.wgsl"));
                add(include_str!("shaders/append.wgsl"));
            }
            Self::Attend(codec, own) => {
                let codec = of_codec(codec);
                add(&format!("const OWN: u32 = {own}u;\n"));
                add(exp);
                add(&cache(codec.form, "of_heads", 1));
                add(include_str!("shaders/lib/attention.wgsl"));
                add(include_str!("shaders/lib/heads.wgsl"));
                add(&reads(codec));
                let elements = include_str!("shaders/lib/score_elements.wgsl");
                let codes = include_str!("shaders/lib/score_codes.wgsl");
                match codec.form {
                    Form::Elements(_) => {
                        [elements, include_str!("shaders/lib/scores_elements.wgsl")].map(add)
                    }
                    Form::Lloyd(_) => {
                        add(elements);
                        [codes, include_str!("shaders/lib/scores_windowed.wgsl")].map(add)
                    }
                    Form::Blocks(_) => [codes, include_str!("shaders/lib/scores_blocks.wgsl")].map(add),
                };
                text.push_str(&reduce("reduce_max4", "vec4<f32>", "max4"));
                text.push_str(&reduce("reduce_sum4", "vec4<f32>", "sum4"));
                text.push_str(include_str!("shaders/attend.wgsl"));
            }
            Self::AttendTile(codec, quads) => {
                let codec = of_codec(codec);
                add(&format!("const QUADS: u32 = {quads}u;\n"));
                add(exp);
                // 8 queries at a time are turned back.
                add(&cache(codec.form, "weights", 8));
                add(include_str!("shaders/lib/attention.wgsl"));
                add(&reads(codec));
                add(&lanes(caps, "vec4<f32>", &[("max_of_lanes", "max4"), ("sum_of_lanes", "sum4")]));
                add(include_str!("shaders/attend_tile.wgsl"));
            }
            Self::AttendMerge { rotates } => {
                add(exp);
                add(&rotation(rotates, "of_heads", 1));
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

/// How elements become words: those of exact pages, where the cache has codes.
fn elements_of(codec: &Codec) -> &'static str {
    if codec.form.rotates() { CODECS[0].shader } else { codec.shader }
}

/// What a cache is, and the rotation of `n` vectors that `vector` names.
fn rotation(rotates: bool, vector: &str, n: u32) -> String {
    let rotate = include_str!("shaders/lib/rotate.wgsl").replace("VECTOR[", &format!("{vector}["));
    let consts =
        format!("const ROTATES: bool = {rotates};\nconst VECTORS: u32 = {n}u;\nconst CHUNK: u32 = 32u;\n");
    consts + include_str!("shaders/lib/cache.wgsl") + &rotate
}

/// The same, and where the cache's pages lie.
fn cache(form: Form, vector: &str, n: u32) -> String {
    let pages = match form {
        Form::Elements(_) => include_str!("shaders/lib/cache_elements.wgsl"),
        Form::Lloyd(_) => include_str!("shaders/lib/cache_windowed.wgsl"),
        Form::Blocks(_) => include_str!("shaders/lib/cache_blocks.wgsl"),
    };
    rotation(form.rotates(), vector, n) + pages
}

/// How attention reads a cache.
fn reads(codec: &Codec) -> String {
    let read_elements = include_str!("shaders/lib/read_elements.wgsl");
    let read_codes = include_str!("shaders/lib/read_codes.wgsl");
    let pieces: &[&str] = match codec.form {
        Form::Elements(_) => &[codec.shader, read_elements, include_str!("shaders/lib/attend_elements.wgsl")],
        Form::Lloyd(_) => &[
            elements_of(codec),
            read_elements,
            codec.shader,
            read_codes,
            include_str!("shaders/lib/table.wgsl"),
            include_str!("shaders/lib/scale_of_vector.wgsl"),
            include_str!("shaders/lib/attend_windowed.wgsl"),
        ],
        Form::Blocks(_) => &[
            codec.shader,
            read_codes,
            include_str!("shaders/lib/scale_of_block.wgsl"),
            include_str!("shaders/lib/attend_blocks.wgsl"),
        ],
    };
    pieces.concat()
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
