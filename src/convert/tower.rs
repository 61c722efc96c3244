//! Vision towers: plans the mmproj file of a multimodal checkpoint, whose text model is converted separately.

use std::path::Path;

use ggml_types::{QuantType, types};
use serde_json::Value as Json;

use super::arch::towers::{Form, IMAGE_BREAK, TOWERS, Tower};
use super::checkpoint::Checkpoint;
use super::config::Config;
use super::shape::{Shape, TowerShape};
use super::tensors::{NamedTensors, OutputTensor, Planner, Reading, short_name};
use super::tokenizer::optional;
use super::{ConvertError, Outtype};
use sterna_gguf::{Array, Metadata, Value, ValueType};
use sterna_quantize::Recipe;

/// The vision part of a checkpoint, and what is planned of it.
pub struct Plan {
    /// Tensors of the file.
    pub made: Vec<OutputTensor>,
    /// Keys under `clip.`.
    pub keys: Vec<(String, Value)>,
    /// Tensors with a type of their own, whatever the type of matrices is.
    pub fixed: Vec<(&'static str, &'static dyn QuantType)>,
}

/// The configuration of a tower.
struct Parts<'a> {
    tower: &'static Tower,
    whole: &'a Config,
    vision: Config,
    processor: Config,
}

/// Plans the mmproj file of the checkpoint in `folder`.
///
/// # Errors [`ConvertError`] for a class without a known tower, a configuration that files cannot express,
/// and a tensor that is missing, unknown, or has another shape.
pub fn plan(folder: &Path, config: &Config, checkpoint: &Checkpoint) -> Result<Plan, ConvertError> {
    let tower = by_class(config.class()?)?;
    let processor = processor(folder, config)?;
    let parts =
        Parts { tower, whole: config, vision: config.part("vision_config", tower.defaults)?, processor };
    parts.check()?;
    let (shape, image_size) = parts.shape()?;
    let mut named = NamedTensors::of_tower(checkpoint)?;
    let n_layers = parts.n_layers(shape.n_layers)?;
    for layer in n_layers..shape.n_layers {
        named.leave_out(&format!("{}{layer}.", tower.layers));
    }
    let reading = Reading { scale: Err("is packed".to_owned()), masters: Ok(false), spared: Vec::new() };
    let mut made = Vec::new();
    let deepstack = parts.deepstack(n_layers)?;
    let mut planner = Planner { named: &mut named, config, shape: shape.clone(), reading: &reading };
    for rule in tower.globals {
        match rule.from == [IMAGE_BREAK] {
            true => {
                let row = image_break(folder, checkpoint)?;
                made.push(planner.made(rule, rule.to.to_owned(), vec![row])?);
            }
            false => made.extend(planner.one("", "", rule)?),
        }
    }
    for layer in 0..n_layers {
        let (from, to) = (format!("{}{layer}.", tower.layers), format!("v.blk.{layer}."));
        for rule in tower.layer.iter().copied().flatten() {
            made.extend(planner.one(&from, &to, rule)?);
        }
    }
    for (at, layer) in deepstack.iter().enumerate() {
        let (from, to) = (format!("tower.deepstack_merger_list.{at}."), format!("v.deepstack.{layer}."));
        for rule in tower.deepstack {
            made.extend(planner.one(&from, &to, rule)?);
        }
    }
    if let Some((name, n)) = named.left() {
        let more = if n > 1 { format!(", and {} more tensors", n - 1) } else { String::new() };
        let detail = format!("does not belong to the vision tower of {}{more}", tower.classes[0]);
        return Err(ConvertError::tensor(name, detail));
    }
    let keys = parts.keys(&Shape { n_layers, ..shape }, image_size, &deepstack)?;
    let fixed = [
        ("v.patch_embd.weight", &types::F32 as &'static dyn QuantType),
        // Readers transpose it, which only types without blocks allow.
        ("mm.input_projection.weight", &types::F16),
        ("mm.patch_merger.weight", &types::F16),
    ];
    let is_there = |name: &str| made.iter().any(|made| made.info.name == name);
    Ok(Plan { fixed: fixed.into_iter().filter(|(name, _)| is_there(name)).collect(), made, keys })
}

/// The type of matrices.
///
/// # Errors
/// [`ConvertError::Unsupported`] for a mix, and for a type that readers of mmproj files do not expect.
pub fn recipe(outtype: Outtype, own: &'static dyn QuantType) -> Result<&'static dyn QuantType, ConvertError> {
    const TYPES: [&dyn QuantType; 4] = [&types::F32, &types::F16, &types::Bf16, &types::Q8_0];
    match outtype {
        Outtype::Auto => Ok(own),
        Outtype::Recipe(Recipe::Type(ty)) if TYPES.iter().any(|known| known.is(ty)) => Ok(ty),
        Outtype::Recipe(_) => {
            let known = TYPES.map(|ty| ty.name().to_owned()).join(", ");
            Err(ConvertError::Unsupported(format!(
                "the matrices of an mmproj file are auto, or one of {known}"
            )))
        }
    }
}

/// The tower of a class.
fn by_class(class: &str) -> Result<&'static Tower, ConvertError> {
    let found = TOWERS.iter().find(|tower| tower.classes.contains(&class));
    found.ok_or_else(|| {
        let known: Vec<_> = TOWERS.iter().flat_map(|tower| tower.classes).copied().collect();
        let (class, known) = (class.escape_debug(), known.join(", "));
        ConvertError::Unsupported(format!("no vision tower is known for {class}: want one of {known}"))
    })
}

/// The settings of the image processor: those of preprocessor_config.json, or of processor_config.json.
fn processor(folder: &Path, config: &Config) -> Result<Config, ConvertError> {
    let [own, of_both] = ["preprocessor_config.json", "processor_config.json"].map(|name| folder.join(name));
    let mut settings = optional(&own)?.as_object().cloned().unwrap_or_default();
    let of_both = optional(&of_both)?;
    if let Some(of_images) = of_both.get("image_processor").and_then(Json::as_object) {
        settings.extend(of_images.clone());
    }
    Ok(config.other(own, Json::Object(settings)))
}

/// The row of the embedding for the end of a row of tokens.
fn image_break(
    folder: &Path,
    checkpoint: &Checkpoint,
) -> Result<(String, super::checkpoint::Tensor), ConvertError> {
    let path = folder.join("tokenizer.json");
    let tokens = optional(&path)?;
    let added = tokens.get("added_tokens").and_then(Json::as_array).into_iter().flatten();
    let mut found = added.filter(|token| token.get("content").and_then(Json::as_str) == Some(IMAGE_BREAK));
    let id = found.next().and_then(|token| token.get("id")?.as_u64());
    let id = id.ok_or_else(|| ConvertError::file(&path, format!("want an added token {IMAGE_BREAK}")))?;
    let is_table = |name: &&str| short_name(name) == "model.embed_tokens.weight";
    let name = checkpoint.names().find(is_table);
    let (name, table) = name
        .and_then(|name| Some((name, checkpoint.get(name)?)))
        .ok_or_else(|| ConvertError::tensor("model.embed_tokens.weight", "is missing"))?;
    let row = table.row(id as usize);
    let row = row.ok_or_else(|| ConvertError::tensor(name, format!("has no row {id}, for {IMAGE_BREAK}")))?;
    Ok((format!("{name}, row {id}"), row))
}

impl Parts<'_> {
    /// Checks that a file can express the configuration.
    fn check(&self) -> Result<(), ConvertError> {
        const ACT: &[&str] = &["hidden_act", "hidden_activation"];
        let Self { tower, whole, vision, .. } = self;
        let is = |config: &Config, keys: &[&str], want: &str| match config.str(keys) {
            Some(found) if found != want => Err(config.wrong(keys[0], want, config.get(keys))),
            _ => Ok(()),
        };
        is(vision, ACT, tower.act)?;
        if !tower.model_type.is_empty() && vision.str(&["model_type"]) != Some(tower.model_type) {
            let found = vision.get(&["model_type"]);
            return Err(vision.wrong("model_type", tower.model_type, found));
        }
        is(whole, &["projector_hidden_act"], "gelu")?;
        let frames = vision.count(&["temporal_patch_size"])?;
        if frames.is_some_and(|frames| frames != 2) {
            let found = vision.get(&["temporal_patch_size"]);
            return Err(vision.wrong("temporal_patch_size", "2", found));
        }
        Ok(())
    }

    /// Dimensions, and the side of pictures.
    fn shape(&self) -> Result<(Shape, usize), ConvertError> {
        let Self { tower, whole, vision, .. } = self;
        // The other key is the width of the text model there.
        let is_ratio = tower.form == Form::Ratio;
        let hidden = vision.require(&[if is_ratio { "embed_dim" } else { "hidden_size" }])?;
        let n_heads = vision.require(&["num_attention_heads", "num_heads"])?;
        let head_dim = vision.count(&["head_dim"])?.unwrap_or(hidden / n_heads);
        if n_heads * head_dim != hidden {
            let found = vision.get(&["num_attention_heads", "num_heads"]);
            return Err(vision.wrong("num_attention_heads", &format!("a divisor of {hidden}"), found));
        }
        let patch = vision.require(&["patch_size"])?;
        let known = vision.count(&["num_position_embeddings", "position_embedding_size", "num_patches"])?;
        let image_size = match (tower.image_size, known) {
            (Some(side), _) => side,
            (None, Some(n)) => n.isqrt() * patch,
            (None, None) => vision.require(&["image_size"])?,
        };
        let n_positions = known.unwrap_or((image_size / patch).pow(2));
        const SIDE: &[&str] = &["spatial_merge_size", "scale_factor", "downsample_factor"];
        let side = vision.count(SIDE)?.map_or_else(|| whole.count(SIDE), |side| Ok(Some(side)))?;
        let of_tower = TowerShape {
            patch,
            side: side.unwrap_or(tower.side),
            text: whole.require(&["hidden_size"])?,
            projector: whole.count(&["projector_hidden_size"])?.unwrap_or(0),
        };
        let n_layers = vision.require(&["num_hidden_layers", "depth"])?;
        let ffn = match is_ratio {
            true => hidden * vision.require(&["mlp_ratio"])?,
            false => vision.require(&["intermediate_size"])?,
        };
        let eps = vision.positive(&["layer_norm_eps", "rms_norm_eps"])?.unwrap_or(1e-6);
        let shape = Shape::of_tower(of_tower, [n_layers, hidden, ffn, n_heads, head_dim, n_positions], eps);
        Ok((shape, image_size))
    }

    /// Layers whose output is read: all, or all but some of the last.
    fn n_layers(&self, n_layers: usize) -> Result<usize, ConvertError> {
        const LAYER: &str = "vision_feature_layer";
        let last = match self.whole.get(&[LAYER]) {
            None => -1,
            Some(layer) => layer
                .as_i64()
                .filter(|last| (-(n_layers as i64)..0).contains(last))
                .ok_or_else(|| self.whole.wrong(LAYER, "-1: the rows after the last layer", Some(layer)))?,
        };
        if last != -1 && self.tower.form != Form::NetworkOfTiles {
            return Err(self.whole.wrong(
                LAYER,
                "-1: the rows after the last layer",
                self.whole.get(&[LAYER]),
            ));
        }
        Ok((n_layers as i64 + 1 + last) as usize)
    }

    /// Layers after which further rows are computed.
    fn deepstack(&self, n_layers: usize) -> Result<Vec<usize>, ConvertError> {
        const KEY: &str = "deepstack_visual_indexes";
        let list = self.vision.get(&[KEY]).filter(|_| !self.tower.deepstack.is_empty());
        let Some(list) = list else { return Ok(Vec::new()) };
        let layer =
            |layer: &Json| layer.as_u64().map(|layer| layer as usize).filter(|layer| *layer < n_layers);
        let layers: Option<Vec<usize>> = list.as_array().and_then(|list| list.iter().map(layer).collect());
        let rises = |layers: &Vec<usize>| layers.windows(2).all(|pair| pair[0] < pair[1]);
        let layers = layers.filter(rises);
        layers.ok_or_else(|| self.vision.wrong(KEY, "numbers of layers in order", Some(list)))
    }

    /// Three numbers of the image processor, for the channels.
    fn channels(&self, key: &str, unscaled: f32) -> Result<Array, ConvertError> {
        let found = self.processor.get(&[key]);
        if found.is_none() && self.tower.unscaled {
            return Ok(Array::from_f32s([unscaled; 3]));
        }
        let list = found.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let numbers: Vec<f32> = list.iter().filter_map(Json::as_f64).map(|number| number as f32).collect();
        match numbers.len() {
            3 => Ok(Array::from_f32s(numbers)),
            _ => Err(self.processor.wrong(key, "three numbers", found)),
        }
    }

    /// Checks that the image processor cuts large pictures: files have no key for others.
    fn always_cuts(&self, flags: &[&str]) -> Result<(), ConvertError> {
        match flags.iter().find(|flag| self.processor.bool(&[**flag]) == Some(false)) {
            Some(flag) => Err(self.processor.wrong(flag, "true", self.processor.get(&[*flag]))),
            None => Ok(()),
        }
    }

    /// The keys under `clip.`.
    fn keys(
        &self,
        shape: &Shape,
        image_size: usize,
        deepstack: &[usize],
    ) -> Result<Vec<(String, Value)>, ConvertError> {
        let Self { tower, whole, vision, processor } = self;
        let parts = shape.tower.expect("the shape is that of a tower");
        let count = |n: usize| Value::U32(n as u32);
        let mut keys = vec![("clip.has_vision_encoder".to_owned(), Value::Bool(true))];
        let of_vision = if tower.form == Form::PoolOfAny { "vision." } else { "" };
        keys.push((format!("clip.{of_vision}projector_type"), Value::from(tower.projector)));
        let act = match tower.act {
            "silu" => Some("clip.use_silu"),
            // Readers take it where neither key is true.
            "quick_gelu" => None,
            _ => Some("clip.use_gelu"),
        };
        keys.extend(act.map(|act| (act.to_owned(), Value::Bool(true))));
        let mut set = |key: &str, value: Value| keys.push((format!("clip.vision.{key}"), value));
        set("image_size", count(image_size));
        set("patch_size", count(parts.patch));
        set("embedding_length", count(shape.hidden));
        set("feed_forward_length", count(shape.ffn.unwrap_or(0)));
        set("block_count", count(shape.n_layers));
        set("attention.head_count", count(shape.n_heads));
        set("attention.layer_norm_epsilon", Value::F32(shape.eps as f32));
        set("projection_dim", count(parts.text));
        set("image_mean", self.channels("image_mean", 0.0)?.into());
        set("image_std", self.channels("image_std", 1.0)?.into());
        match tower.form {
            Form::Pool => {
                const TOKENS: &str = "mm_tokens_per_image";
                let tokens = whole.count(&[TOKENS])?.unwrap_or(256);
                let (side, of_tokens) = (image_size / parts.patch, tokens.isqrt());
                if of_tokens * of_tokens != tokens || !side.is_multiple_of(of_tokens) {
                    let want = format!("the square of a divisor of {side}");
                    return Err(whole.wrong(TOKENS, &want, whole.get(&[TOKENS])));
                }
                // The default of readers.
                if side / of_tokens != 4 {
                    set("projector.scale_factor", count(side / of_tokens));
                }
            }
            Form::PoolOfAny => {
                const POOL: &str = "pooling_kernel_size";
                if vision.count(&[POOL])?.is_some_and(|side| side != 3) {
                    return Err(vision.wrong(POOL, "3", vision.get(&[POOL])));
                }
            }
            Form::Deepstack => {
                set("spatial_merge_size", count(parts.side));
                let layers: Vec<Value> =
                    (0..shape.n_layers).map(|layer| Value::Bool(deepstack.contains(&layer))).collect();
                set("is_deepstack_layers", Array::from_values(ValueType::Bool, &layers).into());
            }
            Form::Windows => {
                const WHOLE: &str = "fullatt_block_indexes";
                set("spatial_merge_size", count(parts.side));
                let found = vision.get(&[WHOLE]);
                let layers: Vec<usize> = match found.and_then(Json::as_array) {
                    Some(list) => list.iter().filter_map(Json::as_u64).map(|layer| layer as usize).collect(),
                    None => vec![7, 15, 23, 31],
                };
                let every = layers.first().map_or(0, |first| first + 1);
                let usual = (0..shape.n_layers).filter(|layer| (layer + 1).is_multiple_of(every));
                if !usual.eq(layers) {
                    return Err(vision.wrong(WHOLE, "the last of every n layers", found));
                }
                set("n_wa_pattern", count(every));
                set("window_size", count(vision.count(&["window_size"])?.unwrap_or(112)));
            }
            Form::RowEnds | Form::Ratio => set("spatial_merge_size", count(parts.side)),
            Form::Tiles => {
                set("projector.scale_factor", count(parts.side));
                let longest = |key: &str| {
                    let longest = processor.get(&[key])?.get("longest_edge")?.as_u64()?;
                    Some(longest as usize)
                };
                set("preproc_image_size", count(longest("size").unwrap_or(image_size)));
                const TILE: &str = "max_image_size";
                if longest(TILE).is_some_and(|side| side != image_size) {
                    let want = format!("the tower's {image_size} as `longest_edge`");
                    return Err(processor.wrong(TILE, &want, processor.get(&[TILE])));
                }
                self.always_cuts(&["do_image_splitting"])?;
            }
            Form::NetworkOfTiles => {
                set("projector.scale_factor", count(parts.side));
                self.always_cuts(&["do_image_splitting", "use_thumbnail"])?;
                const TOLERANCE: &str = "max_pixels_tolerance";
                if processor.positive(&[TOLERANCE])?.is_some_and(|tolerance| tolerance != 2.0) {
                    return Err(processor.wrong(TOLERANCE, "2", processor.get(&[TOLERANCE])));
                }
                // Readers know the values of the published models.
                let of_token = (parts.patch * parts.side).pow(2);
                for (from, usual, to, factor) in [
                    ("tile_size", 512, "preproc_image_size", 1),
                    ("min_tiles", 2, "preproc_min_tiles", 1),
                    ("max_tiles", 10, "preproc_max_tiles", 1),
                    ("min_image_tokens", 64, "image_min_pixels", of_token),
                    ("max_image_tokens", 256, "image_max_pixels", of_token),
                ] {
                    if let Some(found) = processor.count(&[from])?.filter(|found| *found != usual) {
                        set(to, count(found * factor));
                    }
                }
            }
        }
        Ok(keys)
    }
}

/// Sets the keys of a plan.
pub fn write(plan: &Plan, metadata: &mut Metadata) {
    metadata.set("general.architecture", "clip");
    metadata.set("general.type", "mmproj");
    for (key, value) in &plan.keys {
        metadata.set(key.clone(), value.clone());
    }
}
